//! Checks that the disks have the capacity for the nodes of a new pool.
//!
//! Node files are sparse: a node takes the space of its tables when it starts, and the space of its
//! slots while they fill. The journals of volumes take rings in addition to the slots. A node that
//! is larger than its disk would find the file system full before its slots are full. So the
//! creation of a pool compares the sizes with the free space of each file system that nodes share.
//! There must be space for the tables in any case: without them no node starts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::layout::{Layout, NODE_OVERHEAD_BYTES_PER_SLOT, free_bytes, ring_bytes_max};
use fieldstone_units as units;

/// Nodes that share a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shared {
    /// The folder of the pool or of one of these nodes.
    folder: PathBuf,
    nodes: u64,
    free_bytes: u64,
}

impl Shared {
    /// Bytes of the nodes' tables.
    fn table_bytes(&self, layout: Layout) -> u64 {
        (u64::from(layout.slots) * NODE_OVERHEAD_BYTES_PER_SLOT).saturating_mul(self.nodes)
    }

    /// Bytes of the largest rings of a volume's journal. An opening makes new rings before it
    /// removes the old ones.
    fn ring_bytes(&self, layout: Layout) -> u64 {
        (2 * ring_bytes_max(layout.node_bytes())).saturating_mul(self.nodes)
    }

    /// The reason why the nodes do not fit into the free space. None if they fit.
    fn shortage(&self, layout: Layout) -> Option<String> {
        let slots_bytes = layout.node_bytes().saturating_mul(self.nodes);
        let needed_bytes = slots_bytes
            .saturating_add(self.table_bytes(layout))
            .saturating_add(self.ring_bytes(layout));
        (needed_bytes > self.free_bytes).then(|| {
            format!(
                "{} of {} need {} with their tables and journals, and the file system of {} has \
                 {} free",
                if self.nodes == 1 { "1 node".to_owned() } else { format!("{} nodes", self.nodes) },
                units::size(layout.node_bytes()),
                units::size(needed_bytes),
                self.folder.display(),
                units::size(self.free_bytes)
            )
        })
    }
}

/// Compares nodes of this size, in these folders of a pool, with the free space of their file
/// systems. A folder that does not exist will be on the file system of the pool's folder. If there
/// is less free space, this is an error, or with `overcommit` a warning on stderr.
///
/// # Errors
/// The nodes do not fit, even with `overcommit` if their tables do not. Or the system does not
/// report the free space.
pub fn check_capacity(
    pool: &Path,
    nodes: impl Iterator<Item = PathBuf>,
    layout: Layout,
    overcommit: bool,
) -> anyhow::Result<()> {
    let mut shared: BTreeMap<u64, Shared> = BTreeMap::new();
    for node in nodes {
        let folder = if node.is_dir() { node } else { pool.to_path_buf() };
        let meta = fs::metadata(&folder).with_context(|| format!("{}", folder.display()))?;
        if let Some(known) = shared.get_mut(&meta.dev()) {
            known.nodes += 1;
            continue;
        }
        let free_bytes = free_bytes(&folder)?;
        shared.insert(meta.dev(), Shared { folder, nodes: 1, free_bytes });
    }
    let short: Vec<String> = shared.values().filter_map(|group| group.shortage(layout)).collect();
    if short.is_empty() {
        return Ok(());
    }
    let text = short.join("; ");
    if let Some(group) = shared.values().find(|group| group.table_bytes(layout) > group.free_bytes)
    {
        let tables = units::size(group.table_bytes(layout));
        bail!("{text}: the tables alone take {tables}; pass a smaller --node-size");
    }
    if !overcommit {
        bail!("{text}; pass a smaller --node-size, or --overcommit to make the pool all the same");
    }
    eprint_line!("fieldstone: warning: {text}: the disk will be full before the nodes are");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_on_one_file_system_share_its_room() {
        let layout = Layout { slot_bytes: 1 << 20, slots: 64 };
        let shared =
            |nodes, free_bytes| Shared { folder: PathBuf::from("/pool"), nodes, free_bytes };
        assert_eq!(shared(3, 300 << 20).shortage(layout), None);
        let short = shared(3, 288 << 20).shortage(layout).expect("no room for the tables");
        assert!(short.contains("3 nodes of 64 MiB") && short.contains("288 MiB free"), "{short}");
        assert!(short.contains("/pool"), "{short}");
        assert_eq!(shared(1, 97 << 20).shortage(layout), None);
        assert!(shared(1, 95 << 20).shortage(layout).is_some(), "no room for the journals");
    }

    #[test]
    fn what_does_not_fit_is_refused_unless_asked_for() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let nodes = || (0..6).map(|node| temp.path().join(format!("node.{node}")));
        // More than the disk has, with tables for which it has room.
        let free_bytes = free_bytes(temp.path()).expect("statvfs works");
        let slots = u32::try_from((free_bytes >> 20) + 1).expect("a disk of less than 4 PiB");
        let large = Layout { slot_bytes: 1 << 20, slots };
        let error = check_capacity(temp.path(), nodes(), large, false).expect_err("no such disk");
        assert!(error.to_string().contains("--overcommit"), "{error}");
        check_capacity(temp.path(), nodes(), large, true).expect("asked for");
        let huge = Layout { slot_bytes: 1 << 20, slots: u32::MAX };
        let error =
            check_capacity(temp.path(), nodes(), huge, true).expect_err("no room for tables");
        assert!(error.to_string().contains("the tables alone"), "{error}");
        let small = Layout { slot_bytes: 4096, slots: 16 };
        check_capacity(temp.path(), nodes(), small, false).expect("room for 400 KiB");
    }
}
