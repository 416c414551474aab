//! The fault tolerance of a pool: finds the nodes that hold no data now, and decides whether
//! another node may be made empty.
//!
//! A volume reads its data from the nodes that have its shards. An empty node does no harm while no
//! more nodes are absent or empty than the code tolerates. With more such nodes, an empty node
//! could take the place of a node that is only unmounted. Then the volume could not be read even
//! after the disk is mounted again.
//!
//! A folder may hang with its disk. So each folder is examined in its own thread, all at the same
//! time. A folder that has not answered by a deadline counts as lost, because its data cannot be
//! read now.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fieldstone_host::folder::Found;
use fieldstone_host::{FolderError, NodeRegistry, folder, timed_call};
use fieldstone_proto::NodeIndex;
use fieldstone_proto::disk::Superblock;

use super::record::{self, FolderKind, Record};
use super::{POOL_FILE, Pool, PoolFile};

/// How long the examination of a folder may take. A healthy disk answers within milliseconds.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Examines the path of a node's folder, as [`folder::inspect`] does, but waits at most
/// `INSPECT_TIMEOUT`.
///
/// # Errors
/// The system refuses the access, or the folder does not answer.
pub fn inspect(path: &Path) -> Result<Found, FolderError> {
    let folder = path.to_path_buf();
    let call = move || folder::inspect(&folder);
    timed_call::within(Instant::now() + INSPECT_TIMEOUT, &path.to_string_lossy(), call)
        .unwrap_or_else(|_| Err(FolderError::Silent(path.to_path_buf())))
}

/// Examines the folders of these nodes with `find_node`, all at the same time, for at most
/// `timeout`. Returns the nodes that were not found.
fn not_found<F>(
    nodes: Vec<(NodeIndex, PathBuf, Superblock)>,
    timeout: Duration,
    find_node: F,
) -> BTreeMap<u16, FolderError>
where
    F: Fn(&Path, &Superblock) -> Result<Superblock, FolderError> + Copy + Send + 'static,
{
    let deadline = Instant::now() + timeout;
    let (found, answers) = mpsc::channel();
    let mut lost = BTreeMap::new();
    for (node, path, superblock) in nodes {
        let (found, at) = (found.clone(), path.clone());
        let call = move || find_node(&at, &superblock);
        // The caller may have stopped waiting.
        let tell = move |answer| drop(found.send((node, answer)));
        // Without a thread or an answer, the node stays in `lost`.
        let _ = timed_call::begin(&path.to_string_lossy(), call, tell);
        lost.insert(node.0, FolderError::Silent(path));
    }
    drop(found);
    let rest = || deadline.saturating_duration_since(Instant::now());
    while let Ok((node, answer)) = answers.recv_timeout(rest()) {
        match answer {
            Ok(_) => lost.remove(&node.0),
            Err(error) => lost.insert(node.0, error),
        };
    }
    lost
}

/// The nodes of a pool that hold no data, each with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses(pub BTreeMap<u16, String>);

impl Losses {
    /// Finds the nodes without data. Does not examine the folders of nodes `elsewhere`, which run
    /// at an address.
    ///
    /// # Errors
    /// The pool's record cannot be read.
    pub fn of(pool: &Pool, elsewhere: &[NodeIndex]) -> anyhow::Result<Self> {
        let record = Record::read(&pool.folder, pool.id)?;
        let mut losses = BTreeMap::new();
        for node in pool.node_indices() {
            if record.entry(node).is_some_and(|entry| entry.rebuild) {
                let reason = "was made empty and is not known to be rebuilt".to_owned();
                losses.insert(node.0, reason);
            }
        }
        let here = pool.node_indices().filter(|node| !elsewhere.contains(node));
        let here = here.map(|node| (node, pool.node_folder(node), pool.superblock(node)));
        for (node, error) in not_found(here.collect(), INSPECT_TIMEOUT, folder::find_node) {
            losses.insert(node, short(error));
        }
        Ok(Self(losses))
    }

    /// Checks that the nodes `made` may become empty: then no more nodes hold no data than the
    /// pool's code tolerates.
    ///
    /// # Errors
    /// The check fails: lists the other nodes without data, with the reasons.
    pub fn allow(&self, pool: &Pool, made: &[NodeIndex]) -> Result<(), String> {
        let others: Vec<(&u16, &String)> =
            self.0.iter().filter(|(node, _)| !made.contains(&NodeIndex(**node))).collect();
        let (tolerated, count) = (pool.profile.m(), others.len() + made.len());
        if count <= tolerated {
            return Ok(());
        }
        let mut text = format!(
            "{count} nodes would be absent or empty, and {} makes up for {tolerated}: data would \
             be lost that is still there if nodes are only unmounted",
            pool.profile
        );
        for (node, reason) in others {
            text.push_str(&format!("\n  node.{node}: {reason}"));
        }
        Err(text)
    }
}

/// The state of a node's folder, without advice.
fn short(error: FolderError) -> String {
    match error {
        FolderError::Missing(path) => format!("nothing lies at {}", path.display()),
        FolderError::Empty(path) => format!("the folder {} is empty", path.display()),
        other => other.to_string(),
    }
}

/// Keeps the pool's record for a process that opens the pool's nodes, and decides whether it may
/// make an empty node.
#[derive(Debug)]
pub struct PoolRegistry {
    pool: Pool,
    /// Nodes that run at an address.
    elsewhere: Vec<NodeIndex>,
    /// The device number of the file system of `pool.json` at the start.
    device: u64,
}

impl PoolRegistry {
    /// The registry of a pool whose nodes `elsewhere` run at addresses.
    ///
    /// # Errors
    /// The system refuses the access to `pool.json`.
    pub fn new(pool: &Pool, elsewhere: Vec<NodeIndex>) -> anyhow::Result<Self> {
        let path = pool.folder.join(POOL_FILE);
        let meta = fs::metadata(&path).with_context(|| format!("{}", path.display()))?;
        Ok(Self { pool: pool.clone(), elsewhere, device: meta.dev() })
    }

    /// Checks that the pool's folder is still the one at the start.
    fn check_pool(&self) -> anyhow::Result<()> {
        let path = self.pool.folder.join(POOL_FILE);
        let shown = path.display();
        let bytes = fs::read(&path).with_context(|| format!("cannot read {shown}"))?;
        if PoolFile::parse(&bytes).and_then(|file| file.pool_id()).ok() != Some(self.pool.id) {
            bail!("{shown} is not this pool's any more");
        }
        let device = |path: PathBuf| fs::metadata(path).map(|meta| meta.dev()).ok();
        let same = device(path.clone()) == Some(self.device)
            && device(self.pool.folder.clone()) == Some(self.device);
        if !same {
            bail!("{shown} lies on another file system than at the start");
        }
        Ok(())
    }

    fn note(&self, path: &Path, change: impl FnOnce(&mut Record, FolderKind)) {
        let noted = FolderKind::of(&self.pool.folder, path).map_err(Into::into).and_then(|place| {
            record::update(&self.pool.folder, self.pool.id, |record| change(record, place))
        });
        if let Err(error) = noted {
            // A user who may not write the record may still use the nodes.
            tracing::info!("cannot note where {} lies: {error:#}", path.display());
        }
    }
}

impl NodeRegistry for PoolRegistry {
    fn seen(&self, node: NodeIndex, path: &Path, incarnation: u64) {
        self.note(path, |record, place| record.note_seen(node, incarnation, place));
    }

    fn may_replace(&self, node: NodeIndex, _path: &Path) -> Result<(), String> {
        let text = |error: anyhow::Error| format!("{error:#}");
        self.check_pool().map_err(text)?;
        let record = Record::read(&self.pool.folder, self.pool.id).map_err(text)?;
        match record.entry(node).map(|entry| entry.place) {
            Some(FolderKind::Inside) => {}
            Some(FolderKind::Mount) => {
                return Err("it lay on a file system of its own, which may only be away".to_owned());
            }
            Some(FolderKind::Link) => {
                return Err("it lay behind a link, and may only be away".to_owned());
            }
            None => {
                let file = record::NODES_FILE;
                return Err(format!("{file} does not say that it lay in the pool's own folder"));
            }
        }
        Losses::of(&self.pool, &self.elsewhere).map_err(text)?.allow(&self.pool, &[node])
    }

    fn made(&self, node: NodeIndex, path: &Path, incarnation: u64) {
        self.note(path, |record, place| record.note_made(node, incarnation, place, true));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Layout, random};
    use super::*;
    use fieldstone_proto::{MasterKey, PoolId};

    fn made(folder: &Path) -> Pool {
        let pool = Pool {
            folder: folder.to_path_buf(),
            id: PoolId(random().expect("random")),
            nodes: 6,
            profile: "rs:4+2".parse().expect("a profile"),
            layout: Layout { slot_bytes: 1 << 20, slots: 100 },
            replicate: fieldstone_proto::Strategy::Flat,
            encode: fieldstone_proto::Encode::Client,
            keys: MasterKey([1; 16]).into(),
        };
        pool.write().expect("writable");
        let registry = PoolRegistry::new(&pool, Vec::new()).expect("there");
        for node in pool.node_indices() {
            let (path, superblock) = (pool.node_folder(node), pool.superblock(node));
            folder::create(&path, &superblock).expect("made");
            registry.seen(node, &path, superblock.incarnation);
        }
        pool
    }

    #[test]
    fn as_many_nodes_as_the_code_makes_up_for_are_replaced() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let pool = made(temp.path());
        let registry = PoolRegistry::new(&pool, Vec::new()).expect("there");
        let may =
            |node: u16| registry.may_replace(NodeIndex(node), &pool.node_folder(NodeIndex(node)));
        for node in [0, 1] {
            let path = pool.node_folder(NodeIndex(node));
            fs::remove_dir_all(&path).expect("removable");
            assert_eq!(may(node), Ok(()));
            let superblock = pool.superblock(NodeIndex(node));
            folder::create(&path, &superblock).expect("made");
            registry.made(NodeIndex(node), &path, superblock.incarnation);
        }
        fs::remove_dir_all(pool.node_folder(NodeIndex(2))).expect("removable");
        let refused = may(2).expect_err("the third");
        assert!(refused.contains("3 nodes") && refused.contains("node.1: was made"), "{refused}");
        let mut all = record::AllVolumes::default();
        for node in pool.node_indices().take(2) {
            let found = folder::find_node(&pool.node_folder(node), &pool.superblock(node));
            let incarnation = found.expect("made").incarnation;
            all.incarnations.push((node, format!("{incarnation:016x}")));
        }
        record::update(&pool.folder, pool.id, |record| record.note_whole(&[], Some(&all)))
            .expect("writable");
        assert_eq!(may(2), Ok(()));
        // Folders of nodes that run elsewhere are not examined.
        for node in [3, 4] {
            fs::remove_dir_all(pool.node_folder(NodeIndex(node))).expect("removable");
        }
        assert!(may(2).is_err());
        let elsewhere = vec![NodeIndex(3), NodeIndex(4)];
        let registry = PoolRegistry::new(&pool, elsewhere).expect("there");
        assert_eq!(registry.may_replace(NodeIndex(2), Path::new("x")), Ok(()));
    }

    #[test]
    fn a_folder_that_hangs_is_lost_and_keeps_no_other_from_being_seen() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let pool = made(temp.path());
        fs::remove_dir_all(pool.node_folder(NodeIndex(5))).expect("removable");
        let here = pool.node_indices();
        let here = here.map(|node| (node, pool.node_folder(node), pool.superblock(node)));
        let hangs = |path: &Path, superblock: &Superblock| {
            if superblock.node == NodeIndex(1) {
                std::thread::sleep(Duration::from_secs(3600));
            }
            folder::find_node(path, superblock)
        };
        let start = Instant::now();
        let lost = not_found(here.collect(), Duration::from_secs(3), hangs);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        assert_eq!(lost.keys().copied().collect::<Vec<_>>(), [1, 5]);
        assert!(matches!(lost[&1], FolderError::Silent(_)), "{}", lost[&1]);
        assert!(matches!(lost[&5], FolderError::Missing(_)), "{}", lost[&5]);
    }

    #[test]
    fn only_what_lay_in_the_pools_own_folder_is_replaced() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let pool = made(temp.path());
        let registry = PoolRegistry::new(&pool, Vec::new()).expect("there");
        let path = pool.node_folder(NodeIndex(0));
        fs::remove_dir_all(&path).expect("removable");
        for (place, says) in [(FolderKind::Mount, "of its own"), (FolderKind::Link, "link")] {
            record::update(&pool.folder, pool.id, |record| {
                record.note_seen(NodeIndex(0), 1, place);
            })
            .expect("writable");
            let refused = registry.may_replace(NodeIndex(0), &path).expect_err("may be away");
            assert!(refused.contains(says), "{refused}");
        }
        fs::remove_file(pool.folder.join(record::NODES_FILE)).expect("removable");
        let refused = registry.may_replace(NodeIndex(0), &path).expect_err("never seen");
        assert!(refused.contains("nodes.json does not say"), "{refused}");
        record::update(&pool.folder, pool.id, |record| {
            record.note_seen(NodeIndex(0), 1, FolderKind::Inside);
        })
        .expect("writable");
        assert_eq!(registry.may_replace(NodeIndex(0), &path), Ok(()));
        // The pool's disk is absent too. Another pool, or none, is below its mount point.
        let file = pool.folder.join(POOL_FILE);
        let text = fs::read_to_string(&file).expect("readable");
        fs::write(&file, text.replace(&pool.id.to_string(), &PoolId(1).to_string()))
            .expect("writable");
        assert!(registry.may_replace(NodeIndex(0), &path).is_err());
        fs::remove_file(&file).expect("removable");
        assert!(registry.may_replace(NodeIndex(0), &path).is_err());
    }
}
