//! Whether the disks have the room that a pool's nodes are made with.
//!
//! Node files are sparse: a node takes its space as it fills. A node that is larger than its disk
//! would run into a full file system long before it counts as full. So the sizes are compared with
//! the free space when the pool is made, for each file system that nodes share.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::layout::{Layout, NODE_OVERHEAD_BYTES_PER_SLOT, free_bytes};
use crate::units;

/// Nodes that share a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shared {
    /// A folder on it.
    folder: PathBuf,
    nodes: u64,
    free_bytes: u64,
}

impl Shared {
    /// Why the nodes have no room, if so.
    fn shortage(&self, layout: Layout) -> Option<String> {
        let overhead = u64::from(layout.slots) * NODE_OVERHEAD_BYTES_PER_SLOT;
        let needed_bytes = layout.node_bytes().saturating_add(overhead).saturating_mul(self.nodes);
        (needed_bytes > self.free_bytes).then(|| {
            format!(
                "{} of {} need {} with their tables, and the file system of {} has {} free",
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
/// systems. Folders that are not there yet will lie on the file system of the pool's. Beyond the
/// free space, it is an error, or with `overcommit` a warning on stderr.
///
/// # Errors
/// The nodes would not fit, or a file system cannot be asked.
pub fn check_room(
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
    if !overcommit {
        bail!("{text}; pass a smaller --node-size, or --overcommit to make the pool all the same");
    }
    eprintln!("fieldstone: {text}: the disk will be full before the nodes are");
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
        assert_eq!(shared(3, 200 << 20).shortage(layout), None);
        let short = shared(3, 192 << 20).shortage(layout).expect("no room for the tables");
        assert!(short.contains("3 nodes of 64 MiB") && short.contains("192 MiB free"), "{short}");
        assert!(short.contains("/pool"), "{short}");
        assert_eq!(shared(1, 65 << 20).shortage(layout), None);
    }

    #[test]
    fn what_does_not_fit_is_refused_unless_asked_for() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let nodes = || (0..6).map(|node| temp.path().join(format!("node.{node}")));
        let huge = Layout { slot_bytes: 1 << 20, slots: u32::MAX };
        let error = check_room(temp.path(), nodes(), huge, false).expect_err("no such disk");
        assert!(error.to_string().contains("--overcommit"), "{error}");
        check_room(temp.path(), nodes(), huge, true).expect("asked for");
        let small = Layout { slot_bytes: 4096, slots: 16 };
        check_room(temp.path(), nodes(), small, false).expect("room for 400 KiB");
    }
}
