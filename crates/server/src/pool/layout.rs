//! Default sizes of a pool and its volumes, with the reasons.
//!
//! - **Slot = shard = 1 MiB.** A segment of rs:4+2 then holds 4 MiB of data. That is large enough
//!   for sequential writes of the shards, and small enough that garbage collection moves little
//!   data at a time.
//! - **Unit = 128 KiB / k**, with k rounded up to a power of two, and from 16 to 64 KiB. It is
//!   smaller if the code would not fit into a slot otherwise. A unit is the bytes of a segment that
//!   lie together on one shard, so a 4 KiB read needs one node. For k up to 8, a row of units has
//!   at most 128 KiB. Many large writes have that size: such a write fills rows by itself and does
//!   not go through the journal.
//! - **Chunk = the shortest possible**, for codes that cut shards into elements (Zigzag, Clay):
//!   whole units and elements of whole blocks, 32 KiB for 4+2. The code cuts chunks instead of
//!   whole shards, so a row of chunks is coded as soon as its data is there, like a row of units.
//!   Where a row does not fit into a record of the log, chunks would only make the reads of a
//!   repair shorter, and the whole shard is one chunk.
//! - **Ring = 64 MiB**, less for small volumes and nodes. The ring bounds the acknowledged data
//!   that only the journal holds, and so the replay after a crash.
//! - **Node = a fair share of 80 % of the free space**, at most 64 GiB. Files are sparse. Only the
//!   tables, 0.8 %, take space before it is used.

use std::path::Path;

use anyhow::{Context, bail};
use fieldstone_codes::Profile;
use fieldstone_volume::{Geometry, RECORD_BLOCKS_MAX, step_blocks};

/// Size of a slot on a node: a slot holds one shard.
pub const SLOT_BYTES: u32 = 1 << 20;
/// The largest slot whose checksums fit into its header block.
pub const SLOT_BYTES_MAX: u32 = 3 << 20;
const ROW_BYTES: u32 = 128 << 10;
const UNIT_BYTES_MIN: u32 = 16 << 10;
const UNIT_BYTES_MAX: u32 = 64 << 10;
const RING_BYTES_MAX: u64 = 64 << 20;
const RING_BYTES_MIN: u64 = 16 << 20;
const NODE_BYTES_MAX: u64 = 64 << 30;
/// With fewer slots, a node has no space for both the data and a checkpoint.
const SLOTS_MIN: u64 = 16;
/// Most slots of a node: 4 TiB. A node takes the space of its tables at its first start (32 GiB at
/// this bound), reads them at every start, and keeps more than 80 bytes per slot in memory. With
/// many more slots, a node would read for so long that it seems to hang.
const SLOTS_MAX: u64 = 4 << 20;
/// Bytes of a node's tables (the file `slots`) for each slot: its header block and its open note.
pub const NODE_OVERHEAD_BYTES_PER_SLOT: u64 = 8192;

/// The largest ring of a journal on nodes whose slots have `node_bytes` in total.
pub fn ring_bytes_max(node_bytes: u64) -> u64 {
    RING_BYTES_MAX.min(node_bytes / 4).next_multiple_of(1 << 20)
}

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
    /// The node is too small or too large.
    pub fn for_node_bytes(node_bytes: u64) -> anyhow::Result<Self> {
        let slots = node_bytes / u64::from(SLOT_BYTES);
        if slots < SLOTS_MIN {
            bail!(
                "a node of {} is too small; it needs at least {}",
                fieldstone_units::size(node_bytes),
                fieldstone_units::size(SLOTS_MIN * u64::from(SLOT_BYTES))
            );
        }
        let slots = u32::try_from(slots).ok().filter(|slots| u64::from(*slots) <= SLOTS_MAX);
        let slots = slots.with_context(|| {
            format!(
                "a node of {} has too many slots; at most {} are possible: make more nodes instead",
                fieldstone_units::size(node_bytes),
                fieldstone_units::size(SLOTS_MAX * u64::from(SLOT_BYTES))
            )
        })?;
        Ok(Self { slot_bytes: SLOT_BYTES, slots })
    }

    /// Bytes of all slots.
    pub fn node_bytes(self) -> u64 {
        u64::from(self.slot_bytes) * u64::from(self.slots)
    }
}

/// The share of the free space around `folder` for one of `nodes` nodes, in whole slots.
///
/// # Errors
/// The system does not report the free space.
pub fn default_node_bytes(folder: &Path, nodes: u16) -> anyhow::Result<u64> {
    let free = free_bytes(folder)?;
    let share = free / 5 * 4 / u64::from(nodes.max(1));
    Ok(share.min(NODE_BYTES_MAX) / u64::from(SLOT_BYTES) * u64::from(SLOT_BYTES))
}

/// Free bytes of the file system of `folder`.
///
/// # Errors
/// The system does not report the free space.
pub fn free_bytes(folder: &Path) -> anyhow::Result<u64> {
    fieldstone_host::free_bytes(folder)
        .with_context(|| format!("cannot learn the free space of {}", folder.display()))
}

/// The sizes of a new volume of `size_bytes` with the code `profile`, on nodes with `layout`.
///
/// # Errors
/// A slot has no room for one block of each element into which the code divides a shard.
pub fn geometry(size_bytes: u64, profile: Profile, layout: Layout) -> anyhow::Result<Geometry> {
    let shards = u32::try_from(profile.k().next_power_of_two()).unwrap_or(u32::MAX);
    let mut unit_bytes = (ROW_BYTES / shards).clamp(UNIT_BYTES_MIN, UNIT_BYTES_MAX);
    let elements = profile.elements();
    let step_of = |unit_bytes: u32| u64::from(step_blocks(unit_bytes / 4096, elements)) * 4096;
    // If the number of elements is no power of two, its common multiple with the unit may be large.
    while step_of(unit_bytes) > u64::from(layout.slot_bytes) && unit_bytes > 4096 {
        unit_bytes /= 2;
    }
    let step_bytes = step_of(unit_bytes);
    let steps = u64::from(layout.slot_bytes).checked_div(step_bytes).unwrap_or(0);
    if steps == 0 {
        bail!(
            "{profile} cuts shards into {elements} elements, which is too many for volumes: a \
             shard would have at least {}, and slots of nodes have {}",
            fieldstone_units::size(step_bytes),
            fieldstone_units::size(u64::from(layout.slot_bytes))
        );
    }
    let shard_bytes = u32::try_from(steps * step_bytes).expect("at most a slot");
    let chunk_bytes = match elements {
        1 => 0,
        _ => chunk_bytes(step_bytes, profile.k() as u64),
    };
    let ring_bytes = (size_bytes / 8)
        .clamp(RING_BYTES_MIN, RING_BYTES_MAX)
        .next_multiple_of(1 << 20)
        .min(ring_bytes_max(layout.node_bytes()));
    Ok(Geometry { size_bytes, shard_bytes, unit_bytes, chunk_bytes, ring_bytes })
}

/// Bytes of a chunk of a code of several elements, whose shortest chunks have `step_bytes`. Zero if
/// a row, `k` chunks, does not fit into a record.
fn chunk_bytes(step_bytes: u64, k: u64) -> u32 {
    let fits = k * step_bytes <= u64::from(RECORD_BLOCKS_MAX) * 4096;
    if fits { u32::try_from(step_bytes).unwrap_or(0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_bounded() {
        assert!(Layout::for_node_bytes(15 << 20).is_err());
        assert_eq!(Layout::for_node_bytes(16 << 20).expect("enough").slots, 16);
        assert!(Layout::for_node_bytes(u64::MAX).is_err());
        assert!(Layout::for_node_bytes(4 << 40).is_ok());
        let error = Layout::for_node_bytes(100 << 40).expect_err("more than a node can start with");
        assert!(error.to_string().contains("at most 4 TiB"), "{error}");
        let free = default_node_bytes(Path::new("/"), 6).expect("statvfs works");
        assert!(free <= NODE_BYTES_MAX && free.is_multiple_of(u64::from(SLOT_BYTES)));
    }

    #[test]
    fn geometry_fits_the_format() {
        let layout = Layout { slot_bytes: SLOT_BYTES, slots: 4096 };
        let profile = |name: &str| name.parse::<Profile>().expect("the name of a code");
        for (size_bytes, name) in [
            (4096, "copies:3"),
            (1 << 20, "rs:3+1"),
            (1 << 30, "rs:4+2"),
            (1 << 42, "rs:250+2"),
            (1 << 30, "zigzag:4+2"),
            (1 << 30, "clay:6+3"),
            (1 << 30, "clay:8+4"),
            (1 << 30, "clay:9+3"),
            (1 << 30, "cauchy-good:6+3,w=32"),
        ] {
            let profile = profile(name);
            let geometry = geometry(size_bytes, profile, layout).expect("it fits");
            assert!(geometry.unit_bytes.is_multiple_of(4096));
            let elements_bytes = profile.code().elements() * 4096;
            assert!(geometry.shard_bytes.is_multiple_of(elements_bytes), "{name}");
            assert!(geometry.shard_bytes > layout.slot_bytes / 2, "{name}");
            assert!(geometry.shard_bytes.is_multiple_of(geometry.unit_bytes));
            let chunk = match name {
                "zigzag:4+2" => 32 << 10,
                _ => 0, // one element, or a row that no record holds
            };
            assert_eq!(geometry.chunk_bytes, chunk, "{name}");
            assert!(geometry.ring_bytes.is_multiple_of(4096));
            assert!(geometry.ring_bytes <= RING_BYTES_MAX);
        }
        let refused =
            geometry(1 << 30, profile("zigzag:11+2,n=1024"), layout).expect_err("too many");
        assert_eq!(
            refused.to_string(),
            "zigzag:11+2,n=1024 cuts shards into 1024 elements, which is too many for volumes: a \
             shard would have at least 4 MiB, and slots of nodes have 1 MiB"
        );
    }
}
