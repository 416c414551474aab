//! The file `nodes.json`: the pool's record of its nodes' folders.
//!
//! ```text
//! { "format": 1,
//!   "pool": "…",                        32 hexadecimal digits; a file of another pool is not read
//!   "nodes": [
//!     { "node": 2,
//!       "incarnation": "91be…",         of the node that was found or made last, 16 digits
//!       "place": "beside",              how its folder was reached
//!       "rebuild": true,                made empty by a replacement, and not known to be rebuilt
//!       "whole": [ "…" ] } ] }          volumes that were seen whole since then
//! ```
//!
//! The file serves two decisions, and no data depends on it:
//!
//! - **May a server make an empty node without a command** (`serve --replace-missing`)? Only if the
//!   old folder was *beside* `pool.json`: in the pool's folder and on the same file system. Where a
//!   disk was mounted (`mount`), or the folder was a link (`link`), a missing folder may mean that
//!   a disk is absent.
//! - **How many more nodes may be lost?** An empty node holds no data until it is rebuilt. It
//!   counts like an absent node until every volume of the pool was seen whole with it, each by any
//!   process: the pool's volumes may be open in several servers, and at clients.
//!
//! The file has relations (`beside`) and no device numbers, because device numbers change when the
//! machine restarts.
//!
//! Servers, node processes and commands write the file. Each holds a lock on `pool.json` while it
//! reads, changes and replaces the file. If the file is absent or damaged, no folder is known, and
//! no node is made without a command. A process does not change a file of a newer format.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use fieldstone_proto::{NodeIndex, PoolId};
use serde::{Deserialize, Serialize};

use super::POOL_FILE;
use crate::json_format;

/// The file's name.
pub const NODES_FILE: &str = "nodes.json";
/// The format that this version writes, and the newest that it reads.
const FORMAT: u32 = 1;
/// How long a process waits for the lock. Other processes hold it for milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between tries to lock.
const LOCK_POLL: Duration = Duration::from_millis(2);

/// How a node's folder is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FolderKind {
    /// A folder in the pool's folder, on the same file system.
    #[serde(rename = "beside")]
    Inside,
    /// The folder is on another file system: a disk is mounted there.
    Mount,
    /// The folder is a symbolic link.
    Link,
}

impl FolderKind {
    /// How the folder at `path` is reached from the pool's folder `pool`.
    ///
    /// # Errors
    /// The system refuses the access.
    pub fn of(pool: &Path, path: &Path) -> std::io::Result<Self> {
        if fs::symlink_metadata(path)?.is_symlink() {
            return Ok(Self::Link);
        }
        let same = fs::metadata(path)?.dev() == fs::metadata(pool)?.dev();
        Ok(if same { Self::Inside } else { Self::Mount })
    }
}

/// The record's entry for a node's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The node.
    node: u16,
    /// The incarnation of the node that was found or made last.
    incarnation: String,
    /// How the folder was reached.
    pub place: FolderKind,
    /// The node was made empty in place of a lost node, and is not known to be rebuilt.
    #[serde(default)]
    pub rebuild: bool,
    /// The ids of volumes that were seen whole with the replaced node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    whole: Vec<String>,
}

/// A volume that was seen whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeVolume {
    /// The volume's id.
    pub id: String,
    /// The incarnation of each node that the volume has joined.
    pub incarnations: Vec<(NodeIndex, String)>,
}

/// All volumes of a pool, as its nodes listed them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllVolumes {
    /// Their ids.
    pub ids: Vec<String>,
    /// The incarnation of each node that listed its volumes.
    pub incarnations: Vec<(NodeIndex, String)>,
}

/// The content of `nodes.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    format: u32,
    pool: String,
    nodes: Vec<Entry>,
}

impl Record {
    fn empty(pool: PoolId) -> Self {
        Self { format: FORMAT, pool: pool.to_string(), nodes: Vec::new() }
    }

    /// Reads the record of the pool at `folder`. If the file is absent, damaged or of another pool,
    /// the record is empty.
    ///
    /// # Errors
    /// The file is of a newer version, or cannot be read.
    pub fn read(folder: &Path, pool: PoolId) -> anyhow::Result<Self> {
        let path = folder.join(NODES_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::empty(pool));
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => String::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        json_format::check(&text, FORMAT).with_context(|| path.display().to_string())?;
        match serde_json::from_str::<Self>(&text) {
            Ok(record) if record.pool == pool.to_string() => Ok(record),
            Ok(_) => Ok(Self::empty(pool)),
            Err(error) => {
                tracing::warn!("{} is damaged and not believed: {error}", path.display());
                Ok(Self::empty(pool))
            }
        }
    }

    /// The entry of a node.
    pub fn entry(&self, node: NodeIndex) -> Option<&Entry> {
        self.nodes.iter().find(|entry| entry.node == node.0)
    }

    /// The nodes that are not known to be rebuilt.
    pub fn to_rebuild(&self) -> Vec<NodeIndex> {
        let waiting = self.nodes.iter().filter(|entry| entry.rebuild);
        waiting.map(|entry| NodeIndex(entry.node)).collect()
    }

    /// Notes that a node was found in its folder.
    pub fn note_seen(&mut self, node: NodeIndex, incarnation: u64, place: FolderKind) {
        let incarnation = hex(incarnation);
        let before = self.entry(node);
        let rebuild = before.is_some_and(|entry| entry.rebuild);
        let same = before.filter(|entry| entry.incarnation == incarnation);
        let whole = same.map(|entry| entry.whole.clone()).unwrap_or_default();
        self.put(Entry { node: node.0, incarnation, place, rebuild, whole });
    }

    /// Notes that an empty node was made; with `replaced`, in place of a lost node.
    pub fn note_made(
        &mut self,
        node: NodeIndex,
        incarnation: u64,
        place: FolderKind,
        replaced: bool,
    ) {
        let (incarnation, whole) = (hex(incarnation), Vec::new());
        self.put(Entry { node: node.0, incarnation, place, rebuild: replaced, whole });
    }

    /// Notes that volumes were seen whole. `all` are all volumes of the pool, if they are known. A
    /// replaced node with which each of them was seen whole is rebuilt.
    pub fn note_whole(&mut self, volumes: &[WholeVolume], all: Option<&AllVolumes>) {
        for entry in self.nodes.iter_mut().filter(|entry| entry.rebuild) {
            // A volume that has not noticed the replacement yet speaks of another incarnation.
            let node = (NodeIndex(entry.node), entry.incarnation.clone());
            let seen = volumes.iter().filter(|volume| volume.incarnations.contains(&node));
            entry.whole.extend(seen.map(|volume| volume.id.clone()));
            entry.whole.sort();
            entry.whole.dedup();
            // A volume that was made after the list was made with the nodes of that time. The list
            // counts only if the replaced node was one of them.
            let Some(all) = all.filter(|all| all.incarnations.contains(&node)) else { continue };
            entry.whole.retain(|id| all.ids.contains(id));
            if all.ids.iter().all(|id| entry.whole.contains(id)) {
                entry.rebuild = false;
                entry.whole.clear();
            }
        }
    }

    /// Forgets that this volume was seen whole: its client is not believed any more.
    pub fn forget_whole(&mut self, volume: &str) {
        self.nodes.iter_mut().for_each(|entry| entry.whole.retain(|id| id != volume));
    }

    /// Whether this volume is whole with a replaced node, and the record does not have that.
    pub fn is_news(&self, volume: &WholeVolume) -> bool {
        self.nodes.iter().any(|entry| {
            let node = (NodeIndex(entry.node), entry.incarnation.clone());
            let known = entry.whole.contains(&volume.id);
            entry.rebuild && !known && volume.incarnations.contains(&node)
        })
    }

    fn put(&mut self, entry: Entry) {
        self.nodes.retain(|other| other.node != entry.node);
        self.nodes.push(entry);
        self.nodes.sort_by_key(|entry| entry.node);
    }

    fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        let partial = folder.join(format!("{NODES_FILE}.partial"));
        super::write_new(&partial, text.as_bytes(), 0o644)?;
        let path = folder.join(NODES_FILE);
        fs::rename(&partial, &path).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn hex(incarnation: u64) -> String {
    format!("{incarnation:016x}")
}

/// Changes the record of the pool at `folder`, under the lock. Writes the file only if the record
/// changes.
///
/// # Errors
/// The file cannot be locked, read or written, or is of a newer version.
pub fn update(folder: &Path, pool: PoolId, change: impl FnOnce(&mut Record)) -> anyhow::Result<()> {
    let _locked = lock_pool(folder)?;
    let before = Record::read(folder, pool)?;
    let mut after = before.clone();
    change(&mut after);
    if after == before { Ok(()) } else { after.write(folder) }
}

/// Locks the pool at `folder` for a change of one of its records. The lock ends when the file is
/// dropped.
///
/// # Errors
/// The file cannot be opened, or another process holds the lock for seconds.
pub fn lock_pool(folder: &Path) -> anyhow::Result<fs::File> {
    let path = folder.join(POOL_FILE);
    let file = fs::File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    lock(&file, LOCK_TIMEOUT).with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Locks the file. The lock ends when `file` is closed.
///
/// # Errors
/// Another process holds the lock for longer than `timeout`, or the system refuses the lock.
fn lock(file: &fs::File, timeout: Duration) -> std::io::Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_POLL);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolId = PoolId(7);

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join(POOL_FILE), "{}").expect("writable");
        folder
    }

    #[test]
    fn what_is_noted_is_read_back() {
        let folder = folder();
        let dir = folder.path();
        update(dir, POOL, |record| {
            record.note_made(NodeIndex(4), 0xabc, FolderKind::Inside, true);
            record.note_made(NodeIndex(1), 0xdef, FolderKind::Mount, false);
        })
        .expect("writable");
        update(dir, POOL, |record| record.note_seen(NodeIndex(4), 0xabc, FolderKind::Inside))
            .expect("writable");
        let record = Record::read(dir, POOL).expect("readable");
        assert_eq!(record.to_rebuild(), [NodeIndex(4)]);
        assert_eq!(record.entry(NodeIndex(1)).map(|entry| entry.place), Some(FolderKind::Mount));
        assert_eq!(record.entry(NodeIndex(0)), None);
    }

    /// Each volume may be seen by another process, at another time.
    #[test]
    fn a_replaced_node_is_rebuilt_when_each_volume_was_seen_whole_with_it() {
        let folder = folder();
        let dir = folder.path();
        let made = |node, incarnation| {
            update(dir, POOL, |record| {
                record.note_made(NodeIndex(node), incarnation, FolderKind::Inside, true);
            })
            .expect("writable");
        };
        let nodes = |of_node_4: u64| vec![(NodeIndex(3), hex(7)), (NodeIndex(4), hex(of_node_4))];
        let note = |volumes: &[WholeVolume], all: Option<&AllVolumes>| {
            update(dir, POOL, |record| record.note_whole(volumes, all)).expect("writable");
            Record::read(dir, POOL).expect("readable").to_rebuild()
        };
        let all = |ids: &[&str], incarnation: u64| AllVolumes {
            ids: ids.iter().map(ToString::to_string).collect(),
            incarnations: nodes(incarnation),
        };
        let whole = |id: &str, incarnation: u64| {
            [WholeVolume { id: id.to_owned(), incarnations: nodes(incarnation) }]
        };
        // The node lists the volumes.
        let see = |id: &str, incarnation: u64, ids: Option<&[&str]>| {
            let listed = Record::read(dir, POOL).expect("readable");
            let of_record = listed.entry(NodeIndex(4)).expect("made").incarnation.clone();
            let of_record = u64::from_str_radix(&of_record, 16).expect("hexadecimal");
            note(&whole(id, incarnation), ids.map(|ids| all(ids, of_record)).as_ref())
        };
        made(4, 0xabc);
        assert_eq!(see("a", 0xabc, None), [NodeIndex(4)]);
        // A list of before the replacement lacks what was made since.
        assert_eq!(note(&whole("a", 0xabc), Some(&all(&["a"], 0xab))), [NodeIndex(4)]);
        // It speaks of the node of before.
        assert_eq!(see("b", 0xab, Some(&["a", "b"])), [NodeIndex(4)]);
        // It is found again in its folder, as at each start of a server.
        update(dir, POOL, |record| record.note_seen(NodeIndex(4), 0xabc, FolderKind::Inside))
            .expect("writable");
        // `a` is gone, and `c` is new.
        assert_eq!(see("b", 0xabc, Some(&["b", "c"])), [NodeIndex(4)]);
        assert_eq!(see("c", 0xabc, Some(&["b", "c"])), []);
        // What was seen with a node says nothing about the next one.
        made(4, 0xdef);
        assert_eq!(see("c", 0xdef, Some(&["b", "c"])), [NodeIndex(4)]);
        update(dir, POOL, |record| record.note_seen(NodeIndex(4), 0xeee, FolderKind::Inside))
            .expect("writable");
        assert_eq!(see("b", 0xeee, Some(&["b", "c"])), [NodeIndex(4)]);
        assert_eq!(see("c", 0xeee, Some(&["b", "c"])), []);
        // A pool without volumes has nothing to rebuild.
        made(4, 0xfff);
        assert_eq!(note(&[], Some(&all(&[], 0xfff))), []);
        // What a client said that is evicted counts for nothing.
        made(4, 0x123);
        assert_eq!(see("b", 0x123, Some(&["b", "c"])), [NodeIndex(4)]);
        update(dir, POOL, |record| record.forget_whole("b")).expect("writable");
        let record = Record::read(dir, POOL).expect("readable");
        assert!(record.is_news(&whole("b", 0x123)[0]) && !record.is_news(&whole("b", 0x12)[0]));
        assert_eq!(see("c", 0x123, Some(&["b", "c"])), [NodeIndex(4)]);
        assert_eq!(see("b", 0x123, Some(&["b", "c"])), []);
    }

    #[test]
    fn what_cannot_be_believed_says_nothing_and_a_newer_format_is_left_alone() {
        let folder = folder();
        let (dir, path) = (folder.path(), folder.path().join(NODES_FILE));
        update(dir, PoolId(8), |record| {
            record.note_made(NodeIndex(1), 1, FolderKind::Inside, true);
        })
        .expect("writable");
        assert!(Record::read(dir, POOL).expect("another pool's").to_rebuild().is_empty());
        for damaged in [&b"{\"format\": 1"[..], b"", b"\xff\xfe", b"[]"] {
            fs::write(&path, damaged).expect("writable");
            assert!(Record::read(dir, POOL).expect("damaged").entry(NodeIndex(1)).is_none());
        }
        let newer = "{\"format\": 2, \"what\": \"ever\"}";
        fs::write(&path, newer).expect("writable");
        let note = |record: &mut Record| record.note_whole(&[], Some(&AllVolumes::default()));
        let error = format!("{:#}", update(dir, POOL, note).expect_err("newer"));
        assert!(error.contains("newer version"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("readable"), newer);
    }

    #[test]
    fn a_lock_that_is_held_for_ever_is_an_error() {
        let folder = folder();
        let open = || fs::File::open(folder.path().join(POOL_FILE)).expect("there");
        let (holder, other) = (open(), open());
        holder.lock().expect("free");
        let error = lock(&other, Duration::from_millis(10)).expect_err("held");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        drop(holder);
        lock(&other, Duration::from_millis(10)).expect("free again");
    }

    #[test]
    fn places_are_told_apart() {
        let folder = folder();
        let (beside, link) = (folder.path().join("node.0"), folder.path().join("node.1"));
        fs::create_dir(&beside).expect("made");
        std::os::unix::fs::symlink(&beside, &link).expect("linked");
        let place = |path: &Path| FolderKind::of(folder.path(), path).expect("there");
        assert_eq!((place(&beside), place(&link)), (FolderKind::Inside, FolderKind::Link));
        assert_eq!(place(Path::new("/proc")), FolderKind::Mount);
        assert!(FolderKind::of(folder.path(), &folder.path().join("node.2")).is_err());
    }
}
