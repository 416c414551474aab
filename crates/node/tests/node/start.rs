//! How a node handles the files that it finds: torn, damaged, foreign, newer.

use bytes::Bytes;
use fieldstone_node::{FileId, Node, PeerId};
use fieldstone_proto::{
    Epoch, JournalGen, NodeError, ReplyBody, RequestBody, SealMeta, SegmentId, ShardIndex,
    VolumeId, VolumeSummary, crc32c, crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::disk::Faults;
use crate::world::{NOW_NS, World, cap, config};

const VOLUME: VolumeId = VolumeId(5);
const PEER: PeerId = PeerId(1);
const SLOTS: u32 = 4;

/// A stopped node with a root, a journal and one shard per slot but the last. All of it is stable.
fn stopped() -> World {
    let mut world = World::new(config(8192, SLOTS), ChaCha8Rng::seed_from_u64(3));
    fill(&mut world);
    assert!(ask(&mut world, 1, RequestBody::ShardSync).is_ok());
    world.crash(true);
    world
}

/// Makes the root, the journal and the shards.
fn fill(world: &mut World) {
    let mut call = |body, payload: &Bytes| world.call(PEER, cap(VOLUME, Epoch(1)), body, payload);
    let none = Bytes::new();
    assert!(call(RequestBody::Fence { takeover: false }, &none).is_ok());
    assert!(call(RequestBody::PutRoot { version: 1 }, &Bytes::from_static(b"root")).is_ok());
    let create = RequestBody::JournalCreate { generation: JournalGen(1), ring_bytes: 4096 };
    assert!(call(create, &none).is_ok());
    let data = Bytes::from(vec![8; 8192]);
    for segment in 1..u64::from(SLOTS) {
        let body = RequestBody::ShardWrite {
            segment: SegmentId(segment),
            shard: ShardIndex(0),
            offset_bytes: 0,
            checksums: crc32c_blocks(&data),
            seal: Some(SealMeta { shard_bytes: 8192, ..SealMeta::default() }),
            data_first: false,
        };
        assert!(call(body, &data).is_ok());
    }
}

fn bytes_of(world: &mut World, file: FileId) -> &mut Vec<u8> {
    &mut world.disk.files.get_mut(&file).expect("the file exists").current
}

fn ask(world: &mut World, epoch: u64, body: RequestBody) -> Result<ReplyBody, NodeError> {
    world.call(PEER, cap(VOLUME, Epoch(epoch)), body, &Bytes::new())
}

fn listed(world: &mut World) -> Vec<u64> {
    listed_at(world, 1)
}

fn listed_at(world: &mut World, epoch: u64) -> Vec<u64> {
    match ask(world, epoch, RequestBody::ShardList { from: SegmentId(0) }) {
        Ok(ReplyBody::Shards { shards, .. }) => shards.iter().map(|info| info.segment.0).collect(),
        other => panic!("{other:?}"),
    }
}

/// Length of a slot's record in the slots file.
const RECORD_BYTES: usize = 8192;

/// The version and the root of the volume in the node's list.
fn volume_listed(world: &mut World) -> Option<(u64, Bytes)> {
    match ask(world, 0, RequestBody::ListVolumes) {
        Ok(ReplyBody::Volumes(volumes)) => {
            volumes.into_iter().find(|v| v.volume == VOLUME).map(|v| (v.root_version, v.root))
        }
        other => panic!("{other:?}"),
    }
}

fn refused(world: &mut World) -> String {
    world.node.start(NOW_NS);
    world.settle();
    assert!(!world.node.is_ready());
    let reason = world.node.failure().expect("a reason").to_owned();
    let answer = ask(world, 1, RequestBody::ShardSync);
    assert_eq!(answer, Err(NodeError::Io(reason.clone())), "requests are told why");
    reason
}

#[test]
fn a_node_that_is_starting_is_busy_but_says_who_it_is() {
    let mut world = stopped();
    world.node.start(NOW_NS);
    world.pump();
    let sync = world.send(PEER, cap(VOLUME, Epoch(1)), RequestBody::ShardSync, &Bytes::new());
    assert_eq!(world.take(sync), Some(Err(NodeError::Busy)));
    let who = world.send(PEER, cap(VOLUME, Epoch(1)), RequestBody::Identify, &Bytes::new());
    assert!(matches!(world.take(who), Some(Ok(ReplyBody::Stat(_)))));
    world.settle();
    assert_eq!(listed(&mut world), [1, 2, 3]);
}

#[test]
fn a_damaged_slot_header_costs_its_shard_and_no_other() {
    let mut world = stopped();
    let slots = bytes_of(&mut world, FileId::Slots);
    slots[RECORD_BYTES + 1100] ^= 1;
    world.start();
    assert_eq!(listed(&mut world), [1, 3]);
    assert_eq!(world.node.stat().slots_free, 2);
}

#[test]
fn a_slot_header_in_the_wrong_place_or_of_another_node_is_not_believed() {
    let mut world = stopped();
    let slots = bytes_of(&mut world, FileId::Slots);
    slots.copy_within(0..4096, 3 * RECORD_BYTES);
    let foreign = &mut slots[RECORD_BYTES..RECORD_BYTES + 4096];
    foreign[56] ^= 1;
    let crc = crc32c(&foreign[12..]);
    foreign[8..12].copy_from_slice(&crc.to_le_bytes());
    world.start();
    assert_eq!(listed(&mut world), [1, 3]);
}

#[test]
fn slots_written_by_a_newer_release_stop_the_start() {
    let mut world = stopped();
    let header = &mut bytes_of(&mut world, FileId::Slots)[..4096];
    header[12] = 2;
    let crc = crc32c(&header[12..]);
    header[8..12].copy_from_slice(&crc.to_le_bytes());
    let reason = refused(&mut world);
    assert_eq!(
        reason,
        "slot 0: the slot header has version 2, this program knows versions up to 1"
    );
}

#[test]
fn a_missing_data_file_stops_the_start() {
    let mut world = stopped();
    world.disk.files.remove(&FileId::Data);
    assert_eq!(refused(&mut world), "the data file is missing");
}

#[test]
fn what_a_failed_sync_dropped_is_written_anew_by_the_next_start() {
    let shards: Vec<u64> = (1..u64::from(SLOTS)).collect();
    for seed in 0..50 {
        let mut world = World::new(config(8192, SLOTS), ChaCha8Rng::seed_from_u64(seed));
        fill(&mut world);
        world.crash(false);
        world.start_without_syncs();
        world.crash(false);
        assert!(world.disk.files.contains_key(&FileId::Doubt));
        world.start();
        assert!(!world.disk.files.contains_key(&FileId::Doubt));
        assert_eq!(listed(&mut world), shards, "memory still shows them");
        world.crash(true);
        world.start();
        assert_eq!(listed(&mut world), shards, "seed {seed}: a header is gone");
        for &segment in &shards {
            let segment = SegmentId(segment);
            let verify = RequestBody::ShardVerify { segment, shard: ShardIndex(0) };
            assert_eq!(ask(&mut world, 1, verify), Ok(ReplyBody::Done), "seed {seed}: {segment}");
        }
    }
}

/// Seed 2920660: a disk failed the sync of an erasure, and the creation of the file `doubt` too.
/// The next starts took the erasure for stable, and much later the slot had its old shard again.
#[test]
fn a_failed_sync_is_noted_as_soon_as_the_disk_works_again() {
    let mut world = stopped();
    world.start();
    let broken = Faults { sync_one_in: 1, create_one_in: 1, ..Faults::default() };
    world.disk.faults = broken;
    let delete = RequestBody::ShardDelete { segments: vec![SegmentId(1)] };
    assert!(ask(&mut world, 1, delete).is_ok());
    assert!(ask(&mut world, 1, RequestBody::ShardSync).is_err());
    let marked = |world: &World| world.disk.files.contains_key(&FileId::Doubt);
    assert!(ask(&mut world, 1, RequestBody::Stat).is_ok());
    assert!(!marked(&world), "the disk fails the file again");
    world.disk.faults = Faults::default();
    assert!(ask(&mut world, 1, RequestBody::Stat).is_ok());
    world.settle();
    assert!(marked(&world));
    world.crash(false);
    world.start();
    assert!(!marked(&world), "what was in doubt is written anew");
    world.crash(true);
    world.start();
    assert!(!listed(&mut world).contains(&1), "a deleted shard is back");
}

#[test]
fn a_disk_that_cannot_sync_stops_the_start() {
    let mut world = stopped();
    world.disk.faults = Faults { sync_one_in: 1, ..Faults::default() };
    assert!(refused(&mut world).contains("injected"));
}

#[test]
fn a_journal_that_could_neither_be_made_nor_removed_goes_with_its_volume() {
    let mut world = stopped();
    world.start();
    world.disk.faults = Faults { write_one_in: 1, remove_one_in: 1, ..Faults::default() };
    let create = RequestBody::JournalCreate { generation: JournalGen(2), ring_bytes: 4096 };
    assert!(ask(&mut world, 1, create).is_err());
    world.settle();
    world.disk.faults = Faults::default();
    let file = FileId::Journal(VOLUME, JournalGen(2));
    assert!(world.disk.files.contains_key(&file), "its removal failed");
    assert_eq!(ask(&mut world, 1, RequestBody::RemoveVolume), Ok(ReplyBody::Done));
    assert!(!world.disk.files.contains_key(&file));
}

#[test]
fn a_damaged_volume_record_refuses_everything_but_removal() {
    let mut world = stopped();
    bytes_of(&mut world, FileId::Volume(VOLUME))[41] ^= 1;
    world.start();
    let unusable = Some((VolumeSummary::UNUSABLE, Bytes::new()));
    assert_eq!(volume_listed(&mut world), unusable, "it is told all the same");
    let fence = RequestBody::Fence { takeover: true };
    for (epoch, body) in
        [(1, RequestBody::ShardSync), (9, fence.clone()), (1, RequestBody::PutRoot { version: 9 })]
    {
        let answer = ask(&mut world, epoch, body);
        assert!(
            matches!(&answer, Err(NodeError::Io(why)) if why.contains("damaged")),
            "{answer:?}"
        );
    }
    assert_eq!(ask(&mut world, 1, RequestBody::RemoveVolume), Ok(ReplyBody::Done));
    assert_eq!(world.node.stat().slots_free, SLOTS);
    assert!(ask(&mut world, 2, fence).is_ok(), "as good as new");
}

#[test]
fn a_damaged_volume_record_is_renewed_by_a_writer_that_serves() {
    // A byte of the header in either half of the file, and a byte of the magic.
    for at in [0, 41, 65536, 65536 + 41] {
        let mut world = stopped();
        let blank = bytes_of(&mut world, FileId::Volume(VOLUME))[at / 65536 * 65536] == 0;
        bytes_of(&mut world, FileId::Volume(VOLUME))[at] ^= 1;
        world.start();
        let Ok(ReplyBody::VolumeState(state)) = ask(&mut world, 7, RequestBody::RenewRecord) else {
            panic!("byte {at} (blank: {blank}) is not mended")
        };
        assert_eq!(state.root_version, 0);
        assert_eq!(state.journals.len(), 1, "what is there is kept");
        assert_eq!(listed_at(&mut world, 7), [1, 2, 3]);
        let again = ask(&mut world, 7, RequestBody::RenewRecord);
        assert!(matches!(again, Err(NodeError::Invalid(_))), "{again:?}");
        world.crash(true);
        world.start();
        let fenced = ask(&mut world, 7, RequestBody::Fence { takeover: true });
        assert!(matches!(fenced, Err(NodeError::Fenced { .. })), "epoch 7 is stable: {fenced:?}");
        assert!(ask(&mut world, 8, RequestBody::Fence { takeover: true }).is_ok());
    }
}

/// The sync of a record may fail although the record is there.
#[test]
fn a_record_that_was_read_is_not_renewed_by_a_writer_that_is_fenced() {
    let mut world = stopped();
    world.start();
    assert!(ask(&mut world, 8, RequestBody::Fence { takeover: true }).is_ok());
    world.crash(false);
    world.start_without_sync_of(FileId::Volume(VOLUME));
    let fenced = NodeError::Fenced { sent: Epoch(7), current: Epoch(8) };
    assert_eq!(ask(&mut world, 7, RequestBody::RenewRecord), Err(fenced));
    let renewed = ask(&mut world, 8, RequestBody::RenewRecord);
    assert!(renewed.is_ok(), "the epoch of the holder: {renewed:?}");
}

#[test]
fn a_volume_file_without_a_record_is_as_good_as_none() {
    let mut world = stopped();
    bytes_of(&mut world, FileId::Volume(VOLUME)).fill(0);
    world.start();
    assert_eq!(volume_listed(&mut world), Some((0, Bytes::new())), "a creation may have left it");
    assert_eq!(ask(&mut world, 1, RequestBody::ShardSync), Err(NodeError::NotFound));
    let Ok(ReplyBody::VolumeState(state)) =
        ask(&mut world, 1, RequestBody::Fence { takeover: false })
    else {
        panic!("fencing an unknown volume makes it known")
    };
    assert_eq!((state.epoch_before, state.root_version), (Epoch(0), 0));
    assert_eq!(state.journals.len(), 1, "what is there is kept");
    assert_eq!(listed(&mut world), [1, 2, 3]);
}

#[test]
fn an_unfinished_journal_is_removed_and_a_damaged_one_hidden() {
    let mut world = stopped();
    let journal = FileId::Journal(VOLUME, JournalGen(1));
    bytes_of(&mut world, journal)[40] ^= 1;
    world.start();
    let read =
        RequestBody::JournalRead { generation: JournalGen(1), offset_bytes: 0, len_bytes: 4096 };
    assert_eq!(ask(&mut world, 1, read), Err(NodeError::NotFound));
    let delete = RequestBody::JournalDelete { first: JournalGen(0), below: JournalGen(9) };
    assert_eq!(ask(&mut world, 1, delete), Ok(ReplyBody::Done));
    assert!(world.disk.files.contains_key(&journal), "a person may want to look at it");
    world.crash(false);
    bytes_of(&mut world, journal)[..4096].fill(0);
    world.start();
    assert!(!world.disk.files.contains_key(&journal));
}

#[test]
fn a_damaged_journal_goes_with_its_volume() {
    let mut world = stopped();
    let journal = FileId::Journal(VOLUME, JournalGen(1));
    bytes_of(&mut world, journal)[40] ^= 1;
    world.start();
    assert_eq!(ask(&mut world, 1, RequestBody::RemoveVolume), Ok(ReplyBody::Done));
    assert!(!world.disk.files.contains_key(&journal));
}

#[test]
fn slots_whose_headers_cannot_be_read_are_out_of_use() {
    let mut world = stopped();
    world.disk.faults = Faults { read_one_in: 2, ..Faults::default() };
    let config = config(8192, SLOTS);
    for _ in 0..50 {
        world.node = Node::new(config.clone());
        world.node.start(NOW_NS);
        world.settle();
        assert!(world.node.is_ready());
        assert!(world.node.stat().slots_free <= 1, "an unreadable slot may hold a shard");
    }
    world.disk.faults = Faults::default();
    world.crash(false);
    world.start();
    assert_eq!(listed(&mut world), [1, 2, 3]);
}

/// Starts the node until it cannot read the header of the last shard, which has the highest
/// sequence on the disk, and can read the volume's record.
fn start_without_last_header(world: &mut World) {
    world.disk.faults = Faults { read_one_in: 3, ..Faults::default() };
    loop {
        world.node = Node::new(config(8192, SLOTS));
        world.node.start(NOW_NS);
        world.settle();
        let free_read = world.node.is_ready() && world.node.stat().slots_free == 1;
        if free_read
            && let Ok(ReplyBody::Shards { shards, .. }) =
                ask(world, 1, RequestBody::ShardList { from: SegmentId(0) })
            && shards.iter().all(|info| info.segment != SegmentId(3))
        {
            break;
        }
    }
    world.disk.faults = Faults::default();
}

/// A copy of a shard that is written while an older copy's header cannot be read is the newer one
/// of the two, also when both headers can be read.
#[test]
fn a_copy_that_could_not_be_read_does_not_win_over_its_replacement() {
    let mut world = stopped();
    start_without_last_header(&mut world);
    let data = Bytes::from(vec![9; 8192]);
    let body = RequestBody::ShardWrite {
        segment: SegmentId(3),
        shard: ShardIndex(0),
        offset_bytes: 0,
        checksums: crc32c_blocks(&data),
        seal: Some(SealMeta { shard_bytes: 8192, ..SealMeta::default() }),
        data_first: false,
    };
    assert_eq!(world.call(PEER, cap(VOLUME, Epoch(1)), body, &data), Ok(ReplyBody::Done));
    assert_eq!(ask(&mut world, 1, RequestBody::ShardSync), Ok(ReplyBody::Done));
    world.crash(true);
    world.start();
    let read = RequestBody::ShardRead {
        segment: SegmentId(3),
        shard: ShardIndex(0),
        offset_bytes: 0,
        len_bytes: 8192,
    };
    assert_eq!(ask(&mut world, 1, read), Ok(ReplyBody::Data(data)));
}

/// A removal misses a shard whose header cannot be read. The node lists its volume as one without a
/// root, so that it can be removed again.
#[test]
fn shards_that_a_removal_missed_are_listed() {
    let mut world = stopped();
    start_without_last_header(&mut world);
    assert_eq!(ask(&mut world, 1, RequestBody::RemoveVolume), Ok(ReplyBody::Done));
    assert_eq!(volume_listed(&mut world), None);
    world.crash(false);
    world.start();
    assert_eq!(volume_listed(&mut world), Some((0, Bytes::new())));
    assert!(ask(&mut world, 2, RequestBody::Fence { takeover: false }).is_ok());
    assert_eq!(listed_at(&mut world, 2), [3]);
    assert_eq!(ask(&mut world, 2, RequestBody::RemoveVolume), Ok(ReplyBody::Done));
    world.crash(true);
    world.start();
    assert_eq!(volume_listed(&mut world), None);
    assert_eq!(world.node.stat().slots_free, SLOTS);
}
