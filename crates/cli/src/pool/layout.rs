//! Sizes that a pool and its volumes get unless told otherwise, and why.
//!
//! - **Slot = shard = 1 MiB.** A segment of rs:4+2 then holds 4 MiB of data: large enough that its
//!   shards are written sequentially, small enough that collecting garbage moves little at a time.
//! - **Unit = 128 KiB / k**, a power of two from 16 to 64 KiB. Bytes of a segment that lie together on
//!   one shard: a 4 KiB read meets one node. A row of units is then at most 128 KiB, which is what
//!   large writes mostly come in: each fills rows on its own, and goes around the journal.
//! - **Ring = 64 MiB**, less for small volumes: how much acknowledged data only the journal holds
//!   at most, which bounds the replay after a crash.
//! - **Node = a fair share of 80 % of the free space**, at most 64 GiB. Files are sparse: nothing is
//!   taken before it is used.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, bail};
use fieldstone_volume::Geometry;

/// Size of a slot on a node: a slot holds one shard.
pub const SLOT_BYTES: u32 = 1 << 20;
/// The largest slot whose checksums fit its header block.
pub const SLOT_BYTES_MAX: u32 = 3 << 20;
const ROW_BYTES: u32 = 128 << 10;
const UNIT_BYTES_MIN: u32 = 16 << 10;
const UNIT_BYTES_MAX: u32 = 64 << 10;
const RING_BYTES_MAX: u64 = 64 << 20;
const RING_BYTES_MIN: u64 = 16 << 20;
const NODE_BYTES_MAX: u64 = 64 << 30;
/// Fewer slots than this leave no room for a checkpoint beside the data.
const SLOTS_MIN: u64 = 16;

/// The slots of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// Number of slots.
    pub slots: u32,
}

impl Layout {
    /// The slots of a node of `node_bytes`.
    ///
    /// # Errors
    /// When the node is too small or too large.
    pub fn for_node_bytes(node_bytes: u64) -> anyhow::Result<Self> {
        let slots = node_bytes / u64::from(SLOT_BYTES);
        if slots < SLOTS_MIN {
            bail!(
                "a node of {} is too small; it needs at least {}",
                crate::units::size(node_bytes),
                crate::units::size(SLOTS_MIN * u64::from(SLOT_BYTES))
            );
        }
        let slots = u32::try_from(slots).ok().with_context(|| {
            format!("a node of {} has too many slots", crate::units::size(node_bytes))
        })?;
        Ok(Self { slot_bytes: SLOT_BYTES, slots })
    }

    /// Bytes of the node's slots.
    pub fn node_bytes(self) -> u64 {
        u64::from(self.slot_bytes) * u64::from(self.slots)
    }
}

/// A fair share of the free space around `folder` for one of `nodes` nodes.
///
/// # Errors
/// When the file system cannot be asked.
pub fn default_node_bytes(folder: &Path, nodes: u16) -> anyhow::Result<u64> {
    let free = free_bytes(folder)?;
    let share = free / 5 * 4 / u64::from(nodes.max(1));
    Ok(share.min(NODE_BYTES_MAX) / u64::from(SLOT_BYTES) * u64::from(SLOT_BYTES))
}

/// Free space of the file system around `folder`.
///
/// # Errors
/// When the file system cannot be asked.
pub fn free_bytes(folder: &Path) -> anyhow::Result<u64> {
    let name = CString::new(folder.as_os_str().as_bytes())
        .with_context(|| format!("{} contains a zero byte", folder.display()))?;
    let mut info = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `name` is a C string and `info` a valid place for the result.
    let failed = unsafe { libc::statvfs(name.as_ptr(), info.as_mut_ptr()) };
    if failed != 0 {
        return Err(std::io::Error::last_os_error())
            .with_context(|| format!("cannot learn the free space of {}", folder.display()));
    }
    // SAFETY: all zeroes is a valid statvfs, and the call filled it in.
    let info = unsafe { info.assume_init() };
    Ok(info.f_bavail.saturating_mul(info.f_frsize))
}

/// The sizes of a new volume of `size_bytes`, in segments of `k` data shards, on nodes with `layout`.
pub fn geometry(size_bytes: u64, k: usize, layout: Layout) -> Geometry {
    let shards = u32::try_from(k.next_power_of_two()).unwrap_or(u32::MAX);
    let unit_bytes = (ROW_BYTES / shards).clamp(UNIT_BYTES_MIN, UNIT_BYTES_MAX);
    let ring_bytes = (size_bytes / 8)
        .clamp(RING_BYTES_MIN, RING_BYTES_MAX)
        .min(layout.node_bytes() / 4)
        .next_multiple_of(1 << 20);
    Geometry { size_bytes, shard_bytes: layout.slot_bytes, unit_bytes, ring_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_bounded() {
        assert!(Layout::for_node_bytes(15 << 20).is_err());
        assert_eq!(Layout::for_node_bytes(16 << 20).expect("enough").slots, 16);
        assert!(Layout::for_node_bytes(u64::MAX).is_err());
        let free = default_node_bytes(Path::new("/"), 6).expect("statvfs works");
        assert!(free <= NODE_BYTES_MAX && free.is_multiple_of(u64::from(SLOT_BYTES)));
    }

    #[test]
    fn geometry_fits_the_format() {
        let layout = Layout { slot_bytes: SLOT_BYTES, slots: 4096 };
        for (size_bytes, k) in [(4096, 1), (1 << 20, 3), (1 << 30, 4), (1 << 42, 255)] {
            let geometry = geometry(size_bytes, k, layout);
            assert!(geometry.unit_bytes.is_multiple_of(4096));
            assert!(geometry.shard_bytes.is_multiple_of(geometry.unit_bytes));
            assert!(geometry.ring_bytes.is_multiple_of(4096));
            assert!(geometry.ring_bytes <= RING_BYTES_MAX);
        }
    }
}
