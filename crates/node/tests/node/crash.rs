//! One node under random requests, faults and crashes, checked against a model.
//!
//! One writer at a time drives a volume with many requests in flight; the disk completes them in
//! any order. At random moments the process dies, with or without power. After the restart:
//! - every shard that a successful sync covered, and that was not deleted, reads back right, in
//!   that version or a later one. Every other shard is absent, right, or reported corrupt. Reads
//!   never give wrong bytes. A shard that was written with `data_first` is never corrupt;
//! - data that the node shows after the restart stays, even after a further power loss;
//! - the epoch is between the last acknowledged one and the last requested one;
//! - the root is the last acknowledged one or a later one, whole;
//! - journal blocks that were synced are there;
//! - no slot is lost: when everything is deleted, all slots are free.
//!
//! To run one failing seed: `SEED=123 cargo test -p fieldstone-node --test node crash`. To run
//! other seeds than the usual ones: `SEEDS=0..100000`.

use std::collections::BTreeMap;

use crate::disk::Faults;
use crate::model::{self, Key, Shard, salt_of};
use crate::world::{World, cap, config};
use bytes::Bytes;
use fieldstone_node::{NodeEvent, PeerId};
use fieldstone_proto::{
    Capability, Epoch, JournalGen, Lsn, NodeError, ReplyBody, RequestBody, SealMeta, SegmentId,
    ShardIndex, ShardInfo, Tag, VolumeId, crc32c_blocks,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const VOLUME: VolumeId = VolumeId(5);
const SLOT_BLOCKS: u32 = 4;
const SLOTS: u32 = 9;
const SEGMENTS: u64 = 5;
const RING_BLOCKS: u64 = 4;
const GENERATION: JournalGen = JournalGen(1);

/// The request whose answer the test awaits.
#[derive(Clone, Debug)]
enum Pending {
    /// A part of an attempt.
    Write(Key, u64),
    Delete(Vec<Key>),
    /// The attempts that a success makes stable, each with its number of deletions.
    Sync(Vec<(Key, u64, u64)>),
    /// First block, and whether the start had found the shard open at the time of the request.
    Read(Key, u32, bool),
    Root(u64),
    /// Block of the ring and salt.
    Append(usize, u64),
    JournalSync(Vec<(usize, u64)>),
    Verify(Key),
}

/// A block of the ring.
#[derive(Clone, Copy, Debug, Default)]
struct RingBlock {
    last_salt: u64,
    acknowledged: u64,
    synced: u64,
    busy: bool,
}

struct Run {
    world: World,
    faulty: bool,
    shards: BTreeMap<Key, Shard>,
    ring: [RingBlock; RING_BLOCKS as usize],
    pending: BTreeMap<Tag, Pending>,
    /// Parts of attempts in flight, and whether all have succeeded so far.
    attempts: BTreeMap<(Key, u64), (u32, bool)>,
    peer: u64,
    epoch: u64,
    epoch_acknowledged: u64,
    root_version: u64,
    root_acknowledged: u64,
}

fn root(version: u64) -> Bytes {
    let len = usize::try_from(version * 7919 % 20_000).expect("small");
    let mut root: Vec<u8> = vec![u8::try_from(version % 251).expect("below 251"); len];
    root.extend_from_slice(&version.to_le_bytes());
    root.into()
}

impl Run {
    fn new(seed: u64) -> Self {
        let world = World::new(config(SLOT_BLOCKS * 4096, SLOTS), ChaCha8Rng::seed_from_u64(seed));
        let mut run = Self {
            world,
            faulty: seed % 3 == 2,
            shards: BTreeMap::new(),
            ring: Default::default(),
            pending: BTreeMap::new(),
            attempts: BTreeMap::new(),
            peer: 0,
            epoch: 0,
            epoch_acknowledged: 0,
            root_version: 0,
            root_acknowledged: 0,
        };
        run.open();
        run
    }

    fn random(&mut self, below: u64) -> u64 {
        self.world.rng.random_range(0..below)
    }

    fn cap(&self) -> Capability {
        cap(VOLUME, Epoch(self.epoch))
    }

    /// Takes the volume over with a new epoch and checks the node's contents, without faults.
    fn open(&mut self) {
        self.world.disk.faults = Faults::default();
        self.peer += 1;
        self.epoch += 1;
        let fence = RequestBody::Fence { takeover: true };
        let state = match self.world.call(PeerId(self.peer), self.cap(), fence, &Bytes::new()) {
            Ok(ReplyBody::VolumeState(state)) => state,
            other => panic!("{other:?}"),
        };
        assert!(state.epoch_before.0 >= self.epoch_acknowledged, "the epoch went back");
        assert!(state.epoch_before.0 < self.epoch, "an epoch nobody asked for");
        self.epoch_acknowledged = self.epoch;
        let version = state.root_version;
        assert!((self.root_acknowledged..=self.root_version).contains(&version));
        let expected = if version == 0 { Bytes::new() } else { root(version) };
        assert_eq!(state.root, expected, "the root of version {version}");
        self.root_acknowledged = version;
        self.check_shards();
        self.check_ring(!state.journals.is_empty());
        if self.faulty {
            self.world.disk.faults = Faults {
                create_one_in: 60,
                remove_one_in: 60,
                write_one_in: 60,
                read_one_in: 60,
                sync_one_in: 25,
                full_one_in: 60,
                sync_of: None,
            };
        }
    }

    fn ask(&mut self, body: RequestBody) -> Result<ReplyBody, NodeError> {
        self.world.call(PeerId(self.peer), self.cap(), body, &Bytes::new())
    }

    /// Reads every shard back after a start.
    fn check_shards(&mut self) {
        let list = self.ask(RequestBody::ShardList { from: SegmentId(0) });
        let Ok(ReplyBody::Shards { shards: listed, next: None }) = list else { panic!("{list:?}") };
        for info in &listed {
            let key = (info.segment, info.shard);
            let shard = self.shards.get_mut(&key);
            shard.unwrap_or_else(|| panic!("{key:?} was never written")).doubtful = info.is_open();
        }
        let listed: BTreeMap<Key, ShardInfo> = listed
            .into_iter()
            .filter(|info| !info.is_open())
            .map(|info| ((info.segment, info.shard), info))
            .collect();
        for key in listed.keys() {
            assert!(self.shards.contains_key(key), "{key:?} was never written");
        }
        for key in self.shards.keys().copied().collect::<Vec<_>>() {
            let found = listed.get(&key).and_then(|info| {
                let read = RequestBody::ShardRead {
                    segment: key.0,
                    shard: key.1,
                    offset_bytes: 0,
                    len_bytes: info.meta.shard_bytes,
                };
                match self.ask(read) {
                    Ok(ReplyBody::Data(data)) => {
                        let salt = salt_of(key, &self.shards[&key], 0, &data);
                        assert_eq!(
                            salt, info.meta.lsn_first.0,
                            "the header is from another attempt"
                        );
                        let blocks = u32::try_from(data.len() / 4096).expect("small");
                        assert_eq!(self.shards[&key].blocks[&salt], blocks);
                        Some(salt)
                    }
                    Err(NodeError::Corrupt { .. }) => {
                        let data_first = &self.shards[&key].data_first;
                        assert!(!data_first.contains(&info.meta.lsn_first.0), "header before data");
                        None
                    }
                    other => panic!("{key:?}: {other:?}"),
                }
            });
            let shard = self.shards.get_mut(&key).expect("it is one of the keys");
            if let Some(synced) = shard.must_survive() {
                let found = found.unwrap_or_else(|| panic!("{key:?} was synced and is lost"));
                assert!(found >= synced, "{key:?}: {found} instead of {synced} or later");
            }
            *shard = Shard {
                doubtful: shard.doubtful,
                last_salt: shard.last_salt,
                blocks: std::mem::take(&mut shard.blocks),
                data_first: std::mem::take(&mut shard.data_first),
                deletions: shard.deletions,
                sealed: found,
                synced: found,
                damaged: found.is_none() && listed.contains_key(&key),
                ..Shard::default()
            };
        }
    }

    fn check_ring(&mut self, exists: bool) {
        if !exists {
            let synced = self.ring.iter().any(|block| block.synced > 0);
            assert!(!synced, "the journal is lost");
            let ring_bytes = RING_BLOCKS * 4096;
            let create = RequestBody::JournalCreate { generation: GENERATION, ring_bytes };
            assert_eq!(self.ask(create), Ok(ReplyBody::Done));
        }
        for at in 0..self.ring.len() {
            let read = RequestBody::JournalRead {
                generation: GENERATION,
                offset_bytes: at as u64 * 4096,
                len_bytes: 4096,
            };
            let Ok(ReplyBody::Data(data)) = self.ask(read) else { panic!("reading the ring") };
            let block = &mut self.ring[at];
            // Blocks may be torn. Only a block without a write after its sync is certain.
            if block.last_salt == block.synced && block.synced > 0 {
                let expected = model::block((SegmentId(99), ShardIndex(0)), block.synced, 0);
                assert!(data == expected, "block {at} of the ring was synced and is lost");
            }
            *block = RingBlock { last_salt: block.last_salt, ..RingBlock::default() };
        }
    }

    fn send(&mut self, body: RequestBody, payload: &Bytes, pending: Pending) {
        let tag = self.world.send(PeerId(self.peer), self.cap(), body, payload);
        self.pending.insert(tag, pending);
        self.collect();
    }

    /// Sends a random request.
    fn request(&mut self) {
        let key = (SegmentId(1 + self.random(SEGMENTS)), ShardIndex(self.random(2) as u8));
        let busy = self.shards.entry(key).or_default().busy;
        match self.random(20) {
            0..=7 if !busy => self.write(key),
            8 | 9 if !busy => self.delete(key),
            10 | 11 => self.sync(),
            12..=14 => self.read(key),
            15 => {
                let body = RequestBody::ShardVerify { segment: key.0, shard: key.1 };
                self.send(body, &Bytes::new(), Pending::Verify(key));
            }
            16 => {
                self.root_version += 1;
                let version = self.root_version;
                let body = RequestBody::PutRoot { version };
                self.send(body, &root(version), Pending::Root(version));
            }
            17 => self.append(),
            18 => {
                let covered = self.ring.iter().enumerate().map(|(at, b)| (at, b.acknowledged));
                let pending = Pending::JournalSync(covered.collect());
                let body = RequestBody::JournalSync { generation: GENERATION };
                self.send(body, &Bytes::new(), pending);
            }
            _ => {}
        }
    }

    fn write(&mut self, key: Key) {
        let blocks = 1 + self.random(u64::from(SLOT_BLOCKS)) as u32;
        let data_first = self.random(4) == 0;
        let shard = self.shards.get_mut(&key).expect("made by the caller");
        shard.last_salt += 1;
        let salt = shard.last_salt;
        shard.blocks.insert(salt, blocks);
        if data_first {
            shard.data_first.insert(salt);
        }
        shard.busy = true;
        let cut = self.random(u64::from(blocks)) as u32;
        let parts: Vec<(u32, u32)> =
            if cut == 0 { vec![(0, blocks)] } else { vec![(0, cut), (cut, blocks)] };
        self.attempts.insert((key, salt), (u32::try_from(parts.len()).expect("two"), true));
        let meta =
            SealMeta { lsn_first: Lsn(salt), shard_bytes: blocks * 4096, ..SealMeta::default() };
        for (first, end) in parts {
            let data = model::blocks(key, salt, first, end);
            let body = RequestBody::ShardWrite {
                segment: key.0,
                shard: key.1,
                offset_bytes: first * 4096,
                checksums: crc32c_blocks(&data),
                seal: (end == blocks).then_some(meta),
                data_first,
            };
            self.send(body, &data, Pending::Write(key, salt));
        }
    }

    fn delete(&mut self, key: Key) {
        // A deletion takes all shards of a segment together, so none of them may be busy.
        let keys: Vec<Key> = self.shards.keys().filter(|other| other.0 == key.0).copied().collect();
        if keys.iter().any(|key| self.shards[key].busy) {
            return;
        }
        for key in &keys {
            let shard = self.shards.get_mut(key).expect("one of the keys");
            shard.deletions += 1;
            shard.may_be_gone = true;
            shard.sealed = None;
            shard.busy = true;
        }
        let body = RequestBody::ShardDelete { segments: vec![key.0] };
        self.send(body, &Bytes::new(), Pending::Delete(keys));
    }

    fn sync(&mut self) {
        let covered = self
            .shards
            .iter()
            .filter_map(|(key, shard)| shard.sealed.map(|salt| (*key, salt, shard.deletions)));
        let pending = Pending::Sync(covered.collect());
        self.send(RequestBody::ShardSync, &Bytes::new(), pending);
    }

    fn read(&mut self, key: Key) {
        let first = self.random(u64::from(SLOT_BLOCKS)) as u32;
        let end = first + 1 + self.random(u64::from(SLOT_BLOCKS - first)) as u32;
        let body = RequestBody::ShardRead {
            segment: key.0,
            shard: key.1,
            offset_bytes: first * 4096,
            len_bytes: (end - first) * 4096,
        };
        let doubtful = self.shards.get(&key).is_some_and(|shard| shard.doubtful);
        self.send(body, &Bytes::new(), Pending::Read(key, first, doubtful));
    }

    fn append(&mut self) {
        let at = self.random(RING_BLOCKS) as usize;
        let block = &mut self.ring[at];
        if block.busy {
            return;
        }
        block.busy = true;
        block.last_salt += 1;
        let salt = block.last_salt;
        let data = Bytes::from(model::block((SegmentId(99), ShardIndex(0)), salt, 0));
        let lsn = Lsn((salt * RING_BLOCKS + at as u64) * 4096);
        let body = RequestBody::JournalAppend { generation: GENERATION, lsn };
        self.send(body, &data, Pending::Append(at, salt));
    }

    /// Takes the available answers.
    fn collect(&mut self) {
        let tags: Vec<Tag> = self.world.replies.keys().copied().collect();
        for tag in tags {
            let result = self.world.take(tag).expect("it is there");
            if let Some(pending) = self.pending.remove(&tag) {
                self.answer(pending, result);
            }
        }
    }

    fn answer(&mut self, pending: Pending, result: Result<ReplyBody, NodeError>) {
        if !self.faulty {
            let fine = matches!(
                result,
                Ok(_)
                    | Err(NodeError::NotFound
                        | NodeError::NoSpace
                        | NodeError::Invalid(_)
                        | NodeError::Corrupt { .. })
            );
            assert!(fine, "{pending:?}: {result:?} without any fault");
        }
        match pending {
            Pending::Write(key, salt) => {
                if result.is_err() {
                    self.doubt(key);
                }
                let (parts, good) = self.attempts.get_mut(&(key, salt)).expect("it is under way");
                *parts -= 1;
                *good &= result.is_ok();
                if *parts > 0 {
                    return;
                }
                let (_, good) = self.attempts.remove(&(key, salt)).expect("it was there");
                let shard = self.shards.get_mut(&key).expect("it was written");
                shard.busy = false;
                if good {
                    shard.sealed = Some(salt);
                    shard.doubtful = false;
                }
            }
            Pending::Delete(keys) => {
                for key in keys {
                    self.shards.get_mut(&key).expect("it was there").busy = false;
                }
            }
            Pending::Sync(covered) if result.is_ok() => {
                for (key, salt, deletions) in covered {
                    let shard = self.shards.get_mut(&key).expect("it was there");
                    if shard.deletions == deletions {
                        shard.synced = Some(salt);
                        shard.may_be_gone = false;
                    }
                }
            }
            Pending::Sync(_) => {
                for shard in self.shards.values_mut() {
                    shard.sealed = shard.sealed.filter(|_| shard.sealed == shard.must_survive());
                }
            }
            Pending::Read(key, first, doubtful) => {
                if let Ok(ReplyBody::Data(data)) = result {
                    // The pieces of an open shard may come from several attempts.
                    let shard = &self.shards[&key];
                    // A write may have failed whose answer waits for other parts of its attempt.
                    let doubtful = doubtful || (self.faulty && shard.busy);
                    let blocks = (first..).zip(data.chunks(4096)).filter(|_| !doubtful);
                    for (index, block) in blocks {
                        salt_of(key, shard, index, block);
                    }
                } else {
                    let corrupt = matches!(result, Err(NodeError::Corrupt { .. }));
                    assert!(!corrupt || self.shards[&key].damaged, "damage out of nothing");
                }
            }
            Pending::Root(version) => {
                if result.is_ok() {
                    self.root_acknowledged = self.root_acknowledged.max(version);
                }
            }
            Pending::Append(at, salt) => {
                self.ring[at].busy = false;
                if result.is_ok() {
                    self.ring[at].acknowledged = salt;
                }
            }
            Pending::JournalSync(covered) if result.is_ok() => {
                for (at, salt) in covered {
                    self.ring[at].synced = salt;
                }
            }
            Pending::Verify(key) => {
                let corrupt = matches!(result, Err(NodeError::Corrupt { .. }));
                assert!(!corrupt || self.shards[&key].damaged, "damage out of nothing");
            }
            Pending::JournalSync(_) => {}
        }
    }

    /// A write to a shard failed: the test checks neither later reads of it nor those under way.
    fn doubt(&mut self, key: Key) {
        self.shards.get_mut(&key).expect("it was written").doubtful = true;
        for pending in self.pending.values_mut() {
            if let Pending::Read(of, _, doubtful) = pending {
                *doubtful |= *of == key;
            }
        }
    }

    /// The connection breaks. The writer comes back as a new peer and forgets its requests.
    fn lose_peer(&mut self) {
        self.world.node.handle(0, NodeEvent::PeerLost { peer: PeerId(self.peer) });
        self.peer += 1;
        self.pending.clear();
        self.attempts.clear();
        for shard in self.shards.values_mut() {
            // Answers may be lost with the connection, including those of failed syncs.
            let certain = !shard.busy && shard.sealed == shard.must_survive();
            shard.sealed = shard.sealed.filter(|_| certain);
            shard.doubtful |= shard.busy;
            shard.busy = false;
        }
        for block in &mut self.ring {
            block.busy = false;
            block.acknowledged = 0;
        }
    }

    /// Checks, without faults, that acknowledged data is there once nothing is in flight.
    fn check_at_rest(&mut self) {
        self.world.settle();
        self.collect();
        assert!(self.pending.is_empty(), "unanswered: {:?}", self.pending);
        if self.faulty {
            return;
        }
        for (key, shard) in self.shards.clone() {
            let Some(salt) = shard.sealed else { continue };
            let len_bytes = shard.blocks[&salt] * 4096;
            let read =
                RequestBody::ShardRead { segment: key.0, shard: key.1, offset_bytes: 0, len_bytes };
            match self.ask(read) {
                Ok(ReplyBody::Data(data)) => assert_eq!(salt_of(key, &shard, 0, &data), salt),
                other => panic!("{key:?} with salt {salt}: {other:?}"),
            }
        }
    }

    fn crash(&mut self) {
        let power_loss = self.random(3) > 0;
        self.world.crash(power_loss);
        self.world.replies.clear();
        self.pending.clear();
        self.attempts.clear();
        // The next start must not take data for stable that the syncs of a failed start dropped.
        if self.faulty && self.random(2) == 0 {
            self.world.start_without_syncs();
            let power_loss = self.random(4) == 0;
            self.world.crash(power_loss);
        }
        self.world.start();
        // A second power loss right away must not take data back that the node has shown.
        let mut before = None;
        for _ in 0..2 {
            self.open();
            let shown: Vec<_> =
                self.shards.iter().map(|(key, shard)| (*key, shard.synced)).collect();
            if let Some(before) = before {
                assert_eq!(shown, before, "what was shown is gone");
            }
            before = Some(shown);
            if self.random(4) > 0 {
                break;
            }
            self.world.crash(true);
            self.world.start();
        }
    }

    fn run(&mut self) {
        let phases = 2 + self.random(4);
        for _ in 0..phases {
            for _ in 0..20 + self.random(120) {
                if self.random(5) < 2 {
                    self.request();
                } else {
                    self.world.step();
                    self.collect();
                }
                if self.random(150) == 0 {
                    self.lose_peer();
                }
            }
            if self.random(3) == 0 {
                self.check_at_rest();
            }
            self.crash();
        }
        self.finish();
    }

    /// Deletes everything. All slots become free.
    fn finish(&mut self) {
        self.world.disk.faults = Faults::default();
        let segments = (1..=SEGMENTS).map(SegmentId).collect();
        assert_eq!(self.ask(RequestBody::ShardDelete { segments }), Ok(ReplyBody::Done));
        assert_eq!(self.ask(RequestBody::ShardSync), Ok(ReplyBody::Done));
        assert_eq!(self.world.node.stat().slots_free, SLOTS, "slots are lost");
        let data = model::blocks((SegmentId(1), ShardIndex(0)), 1, 0, 1);
        for segment in 0..u64::from(SLOTS) {
            let body = RequestBody::ShardWrite {
                segment: SegmentId(100 + segment),
                shard: ShardIndex(0),
                offset_bytes: 0,
                checksums: crc32c_blocks(&data),
                seal: Some(SealMeta { shard_bytes: 4096, ..SealMeta::default() }),
                data_first: false,
            };
            let answer = self.world.call(PeerId(self.peer), self.cap(), body, &data);
            assert_eq!(answer, Ok(ReplyBody::Done), "slot {segment} cannot be used");
        }
        assert_eq!(self.ask(RequestBody::RemoveVolume), Ok(ReplyBody::Done));
        assert_eq!(self.world.node.stat().slots_free, SLOTS);
        self.world.crash(true);
        self.world.start();
        assert_eq!(self.world.node.stat().slots_free, SLOTS, "a removed volume came back");
        let left = self.ask(RequestBody::ListVolumes);
        assert_eq!(left, Ok(ReplyBody::Volumes(Vec::new())));
    }
}

/// Seeds beyond the first thousand that once failed.
const ONCE_FAILED: [u64; 3] = [39912, 80273, 103205];

fn run_seeds(seeds: impl Iterator<Item = u64>) {
    for seed in seeds {
        let result = std::panic::catch_unwind(|| Run::new(seed).run());
        if let Err(panic) = result {
            eprintln!("failed with SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn a_node_keeps_its_promises_through_crashes() {
    let number = |text: &str| text.parse::<u64>().expect("seeds are numbers");
    match (std::env::var("SEED"), std::env::var("SEEDS")) {
        (Ok(seed), _) => run_seeds(std::iter::once(number(&seed))),
        (_, Ok(seeds)) => {
            let (from, to) = seeds.split_once("..").expect("SEEDS=0..100000");
            run_seeds(number(from)..number(to));
        }
        _ => run_seeds((0..1_000).chain(ONCE_FAILED)),
    }
}
