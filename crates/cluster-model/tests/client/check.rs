//! What was asked for and answered, and what the answers have to be.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fieldstone_cluster_model::Store;
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{ObjectName, Watcher};

/// Bytes of a cell.
pub const CELL: u64 = 4096;
/// Bytes of an appended record.
pub const RECORD: usize = 16;
/// A watch that is not heard of learns that it was interrupted in this time: the silence limit and
/// the time to reach the OSD again.
const INTERRUPTION_MS: u64 = 120_000;

/// Versions of a cell.
#[derive(Clone, Copy, Debug, Default)]
struct Versions {
    issued: u32,
    /// Acknowledged, or seen by a reader.
    least: u32,
}

/// A notification's answer did not name a watch.
#[derive(Debug)]
struct Unnamed {
    watch: Watcher,
    from: Nanos,
    until: Nanos,
}

#[derive(Default)]
struct Inner {
    serial: u64,
    open: BTreeMap<u64, String>,
    cells: BTreeMap<(ObjectName, u64), Versions>,
    appended: BTreeMap<ObjectName, u64>,
    created: BTreeSet<String>,
    asked: BTreeSet<String>,
    winners: BTreeMap<String, usize>,
    lock_holder: Option<usize>,
    /// Watches that stand, with the time since when.
    watches: BTreeMap<Watcher, Nanos>,
    interruptions: Vec<(Watcher, Nanos)>,
    unnamed: Vec<Unnamed>,
    acknowledged: BTreeSet<(Watcher, Vec<u8>)>,
    counts: BTreeMap<&'static str, u64>,
}

/// The log of a run. Copies are the same log.
#[derive(Clone, Default)]
pub struct Log {
    inner: Rc<RefCell<Inner>>,
    /// The numbers of groups of the pool of copies, as the cluster has it.
    pub groups: Rc<Cell<u32>>,
}

/// A number that depends on all of the arguments.
fn mixed(object: &ObjectName, cell: u64, version: u32) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ object.pool.0 as u64;
    for byte in object.name.bytes().chain(cell.to_le_bytes()).chain(version.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash
}

/// The content of a cell.
pub fn content(object: &ObjectName, cell: u64, version: u32) -> Vec<u8> {
    let mut word = mixed(object, cell, version);
    let mut bytes = Vec::with_capacity(CELL as usize);
    bytes.extend(u64::from(version).to_le_bytes());
    while bytes.len() < CELL as usize {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        bytes.extend((word >> 7).to_le_bytes());
    }
    bytes
}

/// The version of a cell's content; 0 for one that was never written.
pub fn version_of(object: &ObjectName, cell: u64, bytes: &[u8]) -> u32 {
    if bytes.iter().all(|&byte| byte == 0) {
        return 0;
    }
    let version = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
    assert_eq!(bytes, content(object, cell, version), "{object:?} {cell}: never written");
    version
}

/// The n-th record that is appended to an object.
pub fn record(object: &ObjectName, number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(mixed(object, number, 0).to_le_bytes());
    bytes
}

impl Log {
    /// Notes a call, until it is answered.
    pub async fn call<T>(&self, what: &'static str, answer: impl Future<Output = T>) -> T {
        let number = {
            let mut inner = self.inner.borrow_mut();
            inner.serial += 1;
            let number = inner.serial;
            inner.open.insert(number, what.to_owned());
            number
        };
        let result = answer.await;
        let mut inner = self.inner.borrow_mut();
        assert!(inner.open.remove(&number).is_some(), "{what} is answered twice");
        *inner.counts.entry(what).or_default() += 1;
        result
    }

    /// The calls that are not answered.
    pub fn open_calls(&self) -> Vec<String> {
        self.inner.borrow().open.values().cloned().collect()
    }

    /// How many calls were answered, by their kinds.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.inner.borrow().counts.clone()
    }

    /// The next version of a cell.
    pub fn issue(&self, object: &ObjectName, cell: u64) -> u32 {
        let mut inner = self.inner.borrow_mut();
        let versions = inner.cells.entry((object.clone(), cell)).or_default();
        versions.issued += 1;
        versions.issued
    }

    /// The least version that a read from now on may see.
    pub fn least(&self, object: &ObjectName, cell: u64) -> u32 {
        self.inner.borrow().cells.get(&(object.clone(), cell)).map_or(0, |cell| cell.least)
    }

    /// A write was acknowledged.
    pub fn wrote(&self, object: &ObjectName, cell: u64, version: u32) {
        let mut inner = self.inner.borrow_mut();
        let versions = inner.cells.entry((object.clone(), cell)).or_default();
        versions.least = versions.least.max(version);
    }

    /// A read saw a version; `least` is from before the read.
    pub fn saw(&self, object: &ObjectName, cell: u64, version: u32, least: u32) {
        let mut inner = self.inner.borrow_mut();
        let versions = inner.cells.entry((object.clone(), cell)).or_default();
        let issued = versions.issued;
        assert!(
            (least..=issued).contains(&version),
            "{object:?} {cell}: read version {version}, not {least} to {issued}"
        );
        versions.least = versions.least.max(version);
    }

    /// Records that were appended to an object, acknowledged.
    pub fn appended(&self, object: &ObjectName, count: u64) {
        self.inner.borrow_mut().appended.insert(object.clone(), count);
    }

    /// A client asks for a new object.
    pub fn asks_to_create(&self, name: &str) {
        self.inner.borrow_mut().asked.insert(name.to_owned());
    }

    /// An object surely exists.
    pub fn exists(&self, name: &str) {
        self.inner.borrow_mut().created.insert(name.to_owned());
    }

    /// A client has created an object as the only one.
    pub fn won(&self, name: &str, node: usize) {
        let before = self.inner.borrow_mut().winners.insert(name.to_owned(), node);
        assert_eq!(before, None, "{name} was created by two");
        self.exists(name);
    }

    /// The names of objects that surely exist.
    pub fn existing(&self) -> BTreeSet<String> {
        self.inner.borrow().created.clone()
    }

    /// Checks a whole list of objects; `before` existed when it began.
    pub fn listed(&self, names: &[String], before: &BTreeSet<String>) {
        let unique: BTreeSet<String> = names.iter().cloned().collect();
        assert_eq!(unique.len(), names.len(), "an object is listed twice: {names:?}");
        let missing: Vec<&String> = before.difference(&unique).collect();
        assert!(missing.is_empty(), "{missing:?} are not listed");
        let inner = self.inner.borrow();
        let unknown: Vec<&String> = unique.difference(&inner.asked).collect();
        assert!(unknown.is_empty(), "{unknown:?} were never asked for");
    }

    /// A client got the lock.
    pub fn locked(&self, node: usize) {
        let before = self.inner.borrow_mut().lock_holder.replace(node);
        assert_eq!(before, None, "two clients hold the lock");
    }

    /// A client is about to give the lock back.
    pub fn unlocks(&self, node: usize) {
        assert_eq!(self.inner.borrow_mut().lock_holder.take(), Some(node));
    }

    /// A watch stands.
    pub fn watches(&self, watch: Watcher, now: Nanos) {
        self.inner.borrow_mut().watches.insert(watch, now);
    }

    /// A watch was interrupted. It stands again by itself.
    pub fn interrupted(&self, watch: Watcher, now: Nanos) {
        let mut inner = self.inner.borrow_mut();
        inner.interruptions.push((watch, now));
        inner.watches.insert(watch, now);
    }

    /// A watch is over.
    pub fn watch_ends(&self, watch: Watcher, now: Nanos) {
        let mut inner = self.inner.borrow_mut();
        inner.interruptions.push((watch, now));
        inner.watches.remove(&watch);
    }

    /// A watcher answers.
    pub fn acknowledges(&self, watch: Watcher, payload: &[u8]) {
        self.inner.borrow_mut().acknowledged.insert((watch, payload.to_vec()));
    }

    /// The answer to a notification that began at `from`.
    pub fn notified(
        &self,
        payload: &[u8],
        acknowledged: &[(Watcher, bytes::Bytes)],
        missed: &[Watcher],
        (from, until): (Nanos, Nanos),
    ) {
        let mut inner = self.inner.borrow_mut();
        let mut named = BTreeSet::new();
        for (watch, answer) in acknowledged {
            assert!(named.insert(*watch), "{watch:?} is named twice");
            let expected: Vec<u8> = payload.iter().rev().copied().collect();
            assert_eq!(answer.as_ref(), expected, "{watch:?} answered something else");
            let has = inner.acknowledged.contains(&(*watch, payload.to_vec()));
            assert!(has, "{watch:?} did not answer");
        }
        for watch in missed {
            assert!(named.insert(*watch), "{watch:?} is named twice");
        }
        let standing = inner.watches.iter().filter(|&(_, &since)| since < from);
        let unnamed: Vec<Unnamed> = standing
            .filter(|(watch, _)| !named.contains(watch))
            .map(|(&watch, _)| Unnamed { watch, from, until })
            .collect();
        inner.unnamed.extend(unnamed);
    }

    /// Checks what can be checked at the end only.
    pub fn check(&self, store: &Store) {
        let inner = self.inner.borrow();
        assert!(inner.open.is_empty(), "{:?} are not answered", inner.open);
        for (object, &count) in &inner.appended {
            let stored = store.object(object).map(|object| object.head.data.len()).unwrap_or(0);
            assert_eq!(stored, count * RECORD as u64, "records of {object:?}");
        }
        for name in inner.asked.iter().filter(|name| name.starts_with("race")) {
            assert!(inner.winners.contains_key(name), "nobody created {name}");
        }
        for one in &inner.unnamed {
            let end = one.until.plus(Nanos::from_ms(INTERRUPTION_MS));
            let is_told = inner
                .interruptions
                .iter()
                .any(|&(watch, at)| watch == one.watch && (one.from..=end).contains(&at));
            assert!(is_told, "{one:?} was not interrupted: {:?}", inner.interruptions);
        }
    }
}
