//! Each operation once, and the rules for capabilities, epochs and bounds.

use crate::disk::Faults;
use crate::world::{NOW_NS, World, cap, config};
use bytes::Bytes;
use fieldstone_node::{ControlEvent, NodeEvent, PeerId};
use fieldstone_proto::{
    Capability, CapabilityError, Epoch, JournalGen, JournalInfo, Lsn, NodeError, ReplyBody,
    RequestBody, Rights, SealMeta, SegmentId, ShardIndex, VolumeId, VolumeState, crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const VOLUME: VolumeId = VolumeId(5);
const PEER: PeerId = PeerId(1);

fn world() -> World {
    let mut world = World::new(config(16384, 8), ChaCha8Rng::seed_from_u64(1));
    fence(&mut world, PEER, 1, false).expect("a new volume");
    world
}

fn fence(
    world: &mut World,
    peer: PeerId,
    epoch: u64,
    takeover: bool,
) -> Result<VolumeState, NodeError> {
    let body = RequestBody::Fence { takeover };
    match world.call(peer, cap(VOLUME, Epoch(epoch)), body, &Bytes::new())? {
        ReplyBody::VolumeState(state) => Ok(state),
        other => panic!("{other:?}"),
    }
}

fn call(world: &mut World, body: RequestBody, payload: &Bytes) -> Result<ReplyBody, NodeError> {
    world.call(PEER, cap(VOLUME, Epoch(1)), body, payload)
}

fn ask(world: &mut World, body: RequestBody) -> Result<ReplyBody, NodeError> {
    call(world, body, &Bytes::new())
}

fn pattern(seed: u8, len: usize) -> Bytes {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8).collect()
}

fn write_body(segment: u64, data: &Bytes, offset_bytes: u32, seal: Option<u32>) -> RequestBody {
    RequestBody::ShardWrite {
        segment: SegmentId(segment),
        shard: ShardIndex(2),
        offset_bytes,
        checksums: crc32c_blocks(data),
        seal: seal.map(|shard_bytes| SealMeta { shard_bytes, ..SealMeta::default() }),
        data_first: false,
    }
}

fn read_body(segment: u64, offset_bytes: u32, len_bytes: u32) -> RequestBody {
    let segment = SegmentId(segment);
    RequestBody::ShardRead { segment, shard: ShardIndex(2), offset_bytes, len_bytes }
}

fn write_shard(world: &mut World, segment: u64, data: &Bytes) -> Result<ReplyBody, NodeError> {
    let len = u32::try_from(data.len()).expect("small");
    call(world, write_body(segment, data, 0, Some(len)), data)
}

fn listed(world: &mut World) -> Vec<u64> {
    match ask(world, RequestBody::ShardList { from: SegmentId(0) }).expect("listing") {
        ReplyBody::Shards { shards, next: None } => {
            let complete = shards.iter().filter(|shard| !shard.is_open());
            complete.map(|shard| shard.segment.0).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_shard_is_written_read_listed_verified_and_deleted() {
    let mut world = world();
    let data = pattern(1, 16384);
    let (first, rest) = (data.slice(..4096), data.slice(4096..));
    call(&mut world, write_body(7, &first, 0, None), &first).unwrap();
    assert_eq!(listed(&mut world), [0u64; 0], "incomplete shards are listed as such");
    assert_eq!(ask(&mut world, read_body(7, 0, 4096)), Ok(ReplyBody::Data(first)));
    assert!(matches!(ask(&mut world, read_body(7, 4096, 4096)), Err(NodeError::Invalid(_))));
    call(&mut world, write_body(7, &rest, 4096, Some(16384)), &rest).unwrap();
    assert_eq!(listed(&mut world), [7]);
    assert_eq!(ask(&mut world, read_body(7, 0, 16384)), Ok(ReplyBody::Data(data.clone())));
    assert_eq!(
        ask(&mut world, read_body(7, 8192, 4096)),
        Ok(ReplyBody::Data(data.slice(8192..12288)))
    );
    let verify = RequestBody::ShardVerify { segment: SegmentId(7), shard: ShardIndex(2) };
    assert_eq!(ask(&mut world, verify.clone()), Ok(ReplyBody::Done));
    assert_eq!(world.node.stat().slots_free, 7);
    assert_eq!(world.node.stat().written_bytes, 16384);
    assert_eq!(ask(&mut world, RequestBody::ShardSync), Ok(ReplyBody::Done));
    let delete = RequestBody::ShardDelete { segments: vec![SegmentId(7), SegmentId(8)] };
    assert_eq!(ask(&mut world, delete), Ok(ReplyBody::Done));
    assert_eq!(ask(&mut world, read_body(7, 0, 4096)), Err(NodeError::NotFound));
    assert_eq!(ask(&mut world, verify), Err(NodeError::NotFound));
    assert_eq!(world.node.stat().slots_free, 8);
}

#[test]
fn a_full_node_says_so_and_recovers_after_deletes() {
    let mut world = world();
    let data = pattern(2, 8192);
    for segment in 1..=8 {
        write_shard(&mut world, segment, &data).unwrap();
    }
    assert_eq!(write_shard(&mut world, 9, &data), Err(NodeError::NoSpace));
    let segments = (1..=8).map(SegmentId).collect();
    ask(&mut world, RequestBody::ShardDelete { segments }).unwrap();
    for segment in 11..=18 {
        write_shard(&mut world, segment, &data).unwrap();
    }
    assert_eq!(world.node.stat().slots_free, 0);
}

#[test]
fn journals_are_made_appended_read_and_deleted() {
    let mut world = world();
    let generation = JournalGen(3);
    let create = RequestBody::JournalCreate { generation, ring_bytes: 16384 };
    assert_eq!(ask(&mut world, create.clone()), Ok(ReplyBody::Done));
    assert_eq!(ask(&mut world, create), Ok(ReplyBody::Done), "repeating is fine");
    let data = pattern(3, 8192);
    let append = |lsn| RequestBody::JournalAppend { generation, lsn: Lsn(lsn) };
    call(&mut world, append(16384 * 9 + 8192), &data).unwrap();
    assert!(matches!(call(&mut world, append(12288), &data), Err(NodeError::Invalid(_))));
    assert!(matches!(call(&mut world, append(100), &data), Err(NodeError::Invalid(_))));
    ask(&mut world, RequestBody::JournalSync { generation }).unwrap();
    world.crash(true);
    world.start();
    let state = fence(&mut world, PeerId(2), 2, false).unwrap();
    assert_eq!(state.epoch_before, Epoch(1));
    assert_eq!(state.journals, [JournalInfo { generation, ring_bytes: 16384 }]);
    let mut ask = |body| world.call(PeerId(2), cap(VOLUME, Epoch(2)), body, &Bytes::new());
    let read = RequestBody::JournalRead { generation, offset_bytes: 8192, len_bytes: 8192 };
    assert_eq!(ask(read.clone()), Ok(ReplyBody::Data(data)));
    let delete = |first, below| RequestBody::JournalDelete {
        first: JournalGen(first),
        below: JournalGen(below),
    };
    assert_eq!(ask(delete(0, 3)), Ok(ReplyBody::Done));
    assert_eq!(ask(delete(4, u64::MAX)), Ok(ReplyBody::Done));
    assert!(ask(read.clone()).is_ok(), "only these generations go");
    assert_eq!(ask(delete(3, 4)), Ok(ReplyBody::Done));
    assert_eq!(ask(read), Err(NodeError::NotFound));
}

/// A peer that has recorded a writer's appends sends them again, after the writer has begun another
/// turn of the ring.
#[test]
fn an_append_of_an_earlier_turn_of_the_ring_changes_nothing() {
    let mut world = world();
    let generation = JournalGen(3);
    ask(&mut world, RequestBody::JournalCreate { generation, ring_bytes: 16384 }).unwrap();
    let append = |lsn| RequestBody::JournalAppend { generation, lsn: Lsn(lsn) };
    let (first, second) = (pattern(1, 8192), pattern(2, 8192));
    call(&mut world, append(0), &first).unwrap();
    call(&mut world, append(8192), &first).unwrap();
    call(&mut world, append(0), &first).expect("it is still in the ring");
    call(&mut world, append(16384), &second).unwrap();
    for late in [0, 4096] {
        let refused = call(&mut world, append(late), &first);
        assert!(matches!(refused, Err(NodeError::Invalid(_))), "{late}: {refused:?}");
    }
    call(&mut world, append(8192), &first).expect("the rest of the earlier turn is there");
    let read =
        |offset_bytes| RequestBody::JournalRead { generation, offset_bytes, len_bytes: 8192 };
    assert_eq!(ask(&mut world, read(0)), Ok(ReplyBody::Data(second)));
    assert_eq!(ask(&mut world, read(8192)), Ok(ReplyBody::Data(first)));
}

#[test]
fn fencing_follows_epoch_and_holder() {
    let mut world = world();
    let fenced = |sent, current| NodeError::Fenced { sent: Epoch(sent), current: Epoch(current) };
    assert_eq!(fence(&mut world, PEER, 1, true), Err(fenced(1, 1)), "not twice the same");
    let other = PeerId(2);
    assert_eq!(fence(&mut world, other, 2, false), Err(NodeError::InUse { current: Epoch(1) }));
    assert!(fence(&mut world, PEER, 2, false).is_ok(), "the holder may raise its epoch");
    assert!(fence(&mut world, other, 3, true).is_ok(), "a takeover is possible");
    assert_eq!(ask(&mut world, RequestBody::ShardSync), Err(fenced(1, 3)));
    world.node.handle(0, NodeEvent::PeerLost { peer: other });
    assert!(fence(&mut world, PEER, 4, false).is_ok(), "nobody holds it any more");
    world.node.handle(0, NodeEvent::PeerLost { peer: PEER });
    let sync = RequestBody::ShardSync;
    assert!(world.call(PeerId(3), cap(VOLUME, Epoch(4)), sync, &Bytes::new()).is_ok());
    let refused = fence(&mut world, other, 5, false);
    assert_eq!(refused, Err(NodeError::InUse { current: Epoch(4) }), "it came back and writes");
    let early = world.call(other, cap(VOLUME, Epoch(9)), RequestBody::ShardSync, &Bytes::new());
    assert!(matches!(early, Err(NodeError::Invalid(_))));
    world.crash(true);
    world.start();
    assert_eq!(fence(&mut world, other, 4, true), Err(fenced(4, 4)));
    assert_eq!(fence(&mut world, other, 5, false).unwrap().epoch_before, Epoch(4));
}

/// Whatever the network still delivers from a connection that a writer has given up, it changes
/// nothing that the writer sees over its new connection.
#[test]
fn requests_of_a_superseded_connection_are_refused() {
    let mut world = world();
    let (old, late, new) = (PEER, PeerId(2), PeerId(3));
    let data = pattern(9, 4096);
    let write = |segment| write_body(segment, &data, 0, Some(4096));
    let none = Bytes::new();
    let mut call =
        |peer, epoch, body, data: &Bytes| world.call(peer, cap(VOLUME, Epoch(epoch)), body, data);
    assert!(call(old, 1, write(1), &data).is_ok());
    let back = RequestBody::Fence { takeover: true };
    let fenced = Err(NodeError::Fenced { sent: Epoch(1), current: Epoch(1) });
    assert_eq!(call(new, 1, back.clone(), &none), fenced);
    assert_eq!(call(new, 1, back.clone(), &none), fenced, "it may ask again");
    let answer = call(late, 1, back.clone(), &none);
    assert!(matches!(answer, Err(NodeError::Invalid(_))), "a fence that was late: {answer:?}");
    let delete = RequestBody::ShardDelete { segments: vec![SegmentId(1)] };
    let (root, reserve) =
        (RequestBody::PutRoot { version: 3 }, RequestBody::Reserve { slots: 1, spare: 0 });
    for (body, data) in [
        (write(2), &data),
        (delete, &none),
        (RequestBody::ShardSync, &none),
        (root, &data),
        (reserve, &none),
        (read_body(1, 0, 4096), &none),
        (back, &none),
    ] {
        let answer = call(old, 1, body.clone(), data);
        assert!(matches!(answer, Err(NodeError::Invalid(_))), "{body:?}: {answer:?}");
    }
    assert_eq!(call(new, 1, read_body(1, 0, 4096), &none), Ok(ReplyBody::Data(data.clone())));
    assert_eq!(call(new, 1, read_body(2, 0, 4096), &none), Err(NodeError::NotFound));
    assert!(call(new, 1, write(2), &data).is_ok());
    // A fence with a higher epoch counts, no matter where it comes from.
    assert!(call(old, 2, RequestBody::Fence { takeover: true }, &none).is_ok());
    assert!(matches!(call(new, 1, write(3), &data), Err(NodeError::Fenced { .. })));
    assert!(call(old, 2, write(3), &data).is_ok());
    // The first write over a new connection supersedes the old one as well.
    assert!(call(late, 2, write(4), &data).is_ok());
    assert!(matches!(call(old, 2, write(5), &data), Err(NodeError::Invalid(_))));
    // So does a reservation: a volume whose slots have become fewer finds out.
    assert!(call(new, 2, RequestBody::Reserve { slots: 1, spare: 0 }, &none).is_ok());
    assert!(matches!(call(late, 2, write(5), &data), Err(NodeError::Invalid(_))));
}

/// A client of one volume learns nothing about the others.
#[test]
fn a_capability_for_a_volume_lists_this_volume_only() {
    let mut world = world();
    let other = VolumeId(VOLUME.0 + 1);
    let fence = RequestBody::Fence { takeover: false };
    world.call(PEER, cap(other, Epoch(1)), fence, &Bytes::new()).unwrap();
    let mut listed = |of: VolumeId, epoch: u64| {
        let list = RequestBody::ListVolumes;
        match world.call(PEER, cap(of, Epoch(epoch)), list, &Bytes::new()).unwrap() {
            ReplyBody::Volumes(volumes) => volumes.iter().map(|found| found.volume).collect(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(listed(VOLUME, 0), [VOLUME]);
    assert_eq!(listed(other, 1), [other]);
    assert_eq!(listed(VolumeId(VOLUME.0 + 2), 9), [] as [VolumeId; 0]);
    let all: Vec<VolumeId> = listed(VolumeId(0), 0);
    assert_eq!(all, [VOLUME, other]);
}

#[test]
fn roots_and_volumes_are_kept_and_removed() {
    let mut world = world();
    let root = pattern(4, 50_000);
    assert_eq!(call(&mut world, RequestBody::PutRoot { version: 3 }, &root), Ok(ReplyBody::Done));
    assert_eq!(call(&mut world, RequestBody::PutRoot { version: 3 }, &root), Ok(ReplyBody::Done));
    let lower = call(&mut world, RequestBody::PutRoot { version: 2 }, &root);
    assert!(matches!(lower, Err(NodeError::Invalid(_))));
    write_shard(&mut world, 1, &pattern(5, 4096)).unwrap();
    ask(&mut world, RequestBody::JournalCreate { generation: JournalGen(1), ring_bytes: 4096 })
        .unwrap();
    world.crash(false);
    world.start();
    match ask(&mut world, RequestBody::ListVolumes).unwrap() {
        ReplyBody::Volumes(volumes) => {
            assert_eq!(volumes.len(), 1);
            assert_eq!((volumes[0].volume, volumes[0].epoch), (VOLUME, Epoch(1)));
            assert_eq!((volumes[0].root_version, &volumes[0].root), (3, &root));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(listed(&mut world), [1]);
    assert_eq!(ask(&mut world, RequestBody::RemoveVolume), Ok(ReplyBody::Done));
    assert_eq!(ask(&mut world, RequestBody::RemoveVolume), Err(NodeError::NotFound));
    assert_eq!(ask(&mut world, RequestBody::ListVolumes), Ok(ReplyBody::Volumes(vec![])));
    assert_eq!(world.node.stat().slots_free, 8);
    assert_eq!(world.disk.files.len(), 2, "only slots and data are left");
}

/// A fence that the network held back until its volume was gone makes no new record.
#[test]
fn a_late_fence_of_a_removed_volume_is_refused() {
    let mut world = world();
    let fence = RequestBody::Fence { takeover: true };
    let none = Bytes::new();
    let fenced = world.call(PEER, cap(VOLUME, Epoch(5)), fence.clone(), &none);
    assert!(matches!(fenced, Ok(ReplyBody::VolumeState(_))), "{fenced:?}");
    let removed = world.call(PEER, cap(VOLUME, Epoch(5)), RequestBody::RemoveVolume, &none);
    assert_eq!(removed, Ok(ReplyBody::Done));
    for epoch in [Epoch(1), Epoch(5)] {
        let late = world.call(PEER, cap(VOLUME, epoch), fence.clone(), &none);
        assert_eq!(late, Err(NodeError::Fenced { sent: epoch, current: Epoch(5) }));
    }
    assert_eq!(world.disk.files.len(), 2, "only slots and data are left");
    // A removal that has to be repeated, because other nodes failed, has a higher epoch.
    let again = world.call(PEER, cap(VOLUME, Epoch(6)), fence, &none);
    assert!(matches!(again, Ok(ReplyBody::VolumeState(_))), "{again:?}");
}

/// A client repeats a removal whose erasures failed. When it succeeds, no data of the volume is
/// left, even if the node then loses its memory.
#[test]
fn a_removal_that_failed_leaves_nothing_when_it_is_repeated() {
    for faults in [
        Faults { write_one_in: 1, ..Faults::default() },
        Faults { sync_one_in: 1, ..Faults::default() },
    ] {
        for power_loss in [false, true] {
            let mut world = world();
            for segment in 1..4 {
                write_shard(&mut world, segment, &pattern(5, 4096)).unwrap();
            }
            ask(&mut world, RequestBody::ShardSync).unwrap();
            world.disk.faults = faults;
            assert!(ask(&mut world, RequestBody::RemoveVolume).is_err());
            world.disk.faults = Faults::default();
            assert_eq!(ask(&mut world, RequestBody::RemoveVolume), Ok(ReplyBody::Done));
            world.crash(power_loss);
            world.start();
            assert_eq!(world.node.stat().slots_free, 8, "{faults:?}, power loss {power_loss}");
        }
    }
}

#[test]
fn capabilities_are_enforced_and_counted() {
    let mut world = world();
    let refuse = |error| Err(NodeError::Capability(error));
    let none = Bytes::new();
    let mut forged = cap(VOLUME, Epoch(1));
    forged.mac[3] ^= 1;
    let forged_answer = world.call(PEER, forged, RequestBody::ShardSync, &none);
    assert_eq!(forged_answer, refuse(CapabilityError::Forged));
    let key = crate::world::KEY.derive(VOLUME, Epoch(1));
    let mut reader = cap(VOLUME, Epoch(1));
    reader.rights = Rights::READ;
    reader.segment_last = SegmentId(9);
    let reader = reader.signed(&key);
    for body in [RequestBody::ShardSync, RequestBody::ListVolumes, RequestBody::RemoveVolume] {
        assert_eq!(world.call(PEER, reader, body, &none), refuse(CapabilityError::Rights));
    }
    assert_eq!(
        world.call(PEER, reader, read_body(10, 0, 4096), &none),
        refuse(CapabilityError::Range)
    );
    assert_eq!(world.call(PEER, reader, read_body(9, 0, 4096), &none), Err(NodeError::NotFound));
    let mut late = cap(VOLUME, Epoch(1));
    late.expires_ns = crate::world::NOW_NS;
    let late = late.signed(&key);
    assert_eq!(world.call(PEER, late, RequestBody::Stat, &none), refuse(CapabilityError::Expired));
    assert_eq!(world.node.stat().refused, 6);
    let identify = world.call(PEER, forged, RequestBody::Identify, &none);
    assert!(matches!(identify, Ok(ReplyBody::Stat(stat)) if stat.incarnation == 77));
}

#[test]
fn a_capability_expires_by_the_present_time_of_day() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let mut world = world();
    let key = crate::world::KEY.derive(VOLUME, Epoch(1));
    let issued_at = |wall_ns: u64| {
        let mut capability = cap(VOLUME, Epoch(1));
        capability.expires_ns = wall_ns + HOUR_NS;
        capability.signed(&key)
    };
    // At a time of the node's clock, which goes on evenly.
    let mut works = |capability: Capability, now_s: u64, offset_ns: u64| {
        world.now_ns = now_s * 1_000_000_000;
        world.node.handle(world.now_ns, NodeEvent::WallClock { offset_ns });
        let answer = world.call(PEER, capability, RequestBody::Stat, &Bytes::new());
        let expired = Err(NodeError::Capability(CapabilityError::Expired));
        assert!(answer.is_ok() || answer == expired, "{answer:?}");
        answer.is_ok()
    };
    let wall_ns = 500_000 * HOUR_NS;
    let first = issued_at(wall_ns);
    assert!(works(first, 1, wall_ns));
    // The machine was suspended for two hours: its monotonic clock stood still.
    let later_ns = wall_ns + 2 * HOUR_NS;
    assert!(works(first, 2, later_ns), "the volume may not know the time yet");
    assert!(!works(first, 6, later_ns));
    let second = issued_at(later_ns);
    assert!(works(second, 7, later_ns));
    // The clock was ahead, and a time server sets it back.
    let back_ns = wall_ns - 5 * HOUR_NS;
    assert!(works(issued_at(back_ns), 8, back_ns));
    assert!(works(issued_at(back_ns), 9, later_ns));
    assert!(!works(issued_at(back_ns), 13, later_ns));
}

#[test]
fn damage_is_reported_and_counted_never_returned() {
    let mut world = world();
    let data = pattern(6, 12288);
    write_shard(&mut world, 1, &data).unwrap();
    let stored = &mut world.disk.files.get_mut(&fieldstone_node::FileId::Data).unwrap().current;
    let at = stored.windows(4096).position(|window| window == &data[8192..]).unwrap();
    stored[at + 17] ^= 4;
    let corrupt = Err(NodeError::Corrupt { offset_bytes: 8192 });
    assert_eq!(ask(&mut world, read_body(1, 4096, 8192)), corrupt);
    assert!(ask(&mut world, read_body(1, 0, 8192)).is_ok());
    let verify = RequestBody::ShardVerify { segment: SegmentId(1), shard: ShardIndex(2) };
    assert_eq!(ask(&mut world, verify.clone()), corrupt);
    assert_eq!(world.node.stat().corrupt_blocks, 2);
    // Rewriting repairs the shard. The slot with the damage becomes free once the new copy is
    // stable.
    write_shard(&mut world, 1, &data).unwrap();
    assert_eq!(ask(&mut world, verify.clone()), Ok(ReplyBody::Done));
    assert_eq!(world.node.stat().slots_free, 6);
    ask(&mut world, RequestBody::ShardSync).unwrap();
    assert_eq!(world.node.stat().slots_free, 7);
    // A verification finds a damaged header before the next start would lose the shard.
    let slots = &mut world.disk.files.get_mut(&fieldstone_node::FileId::Slots).unwrap().current;
    let at = slots.windows(8).rposition(|window| window == b"FSTNSLOT").unwrap();
    slots[at + 2000] ^= 1;
    assert_eq!(ask(&mut world, verify), Err(NodeError::Corrupt { offset_bytes: 0 }));
    // The node refuses data that was damaged on the way, before it stores the data.
    let body = write_body(2, &data, 0, Some(12288));
    let damaged = pattern(7, 12288);
    assert_eq!(call(&mut world, body, &damaged), Err(NodeError::Corrupt { offset_bytes: 0 }));
    assert_eq!(world.node.stat().slots_free, 7);
}

#[test]
fn nonsense_is_refused_without_touching_the_disk() {
    let mut world = world();
    let data = pattern(8, 8192);
    let odd = pattern(8, 5000);
    let none = Bytes::new();
    let mut short_sums = write_body(1, &data, 0, None);
    if let RequestBody::ShardWrite { checksums, .. } = &mut short_sums {
        checksums.pop();
    }
    let generation = JournalGen(1);
    let cases: Vec<(RequestBody, &Bytes)> = vec![
        (short_sums, &data),
        (write_body(1, &odd, 0, None), &odd),
        (write_body(1, &data, 512, None), &data),
        (write_body(1, &data, 12288, None), &data),
        (write_body(1, &data, u32::MAX - 4095, None), &data),
        (write_body(1, &data, 0, Some(16384)), &data),
        (write_body(1, &data, 0, Some(0)), &data),
        (write_body(1, &data, 0, Some(20480)), &data),
        (read_body(1, 0, 0), &none),
        (read_body(1, 4095, 4096), &none),
        (read_body(1, u32::MAX - 4095, 8192), &none),
        (RequestBody::ShardSync, &data),
        (RequestBody::JournalCreate { generation, ring_bytes: 5000 }, &none),
        (RequestBody::JournalCreate { generation, ring_bytes: 1 << 50 }, &none),
        (RequestBody::PutRoot { version: 0 }, &data),
        (RequestBody::ShardDelete { segments: vec![SegmentId(1); 5000] }, &none),
    ];
    for (body, payload) in cases {
        let shown = format!("{body:?}");
        let tag = world.send(PEER, cap(VOLUME, Epoch(1)), body, payload);
        let answer = world.take(tag).expect("answered at once");
        assert!(matches!(answer, Err(NodeError::Invalid(_))), "{shown}: {answer:?}");
        assert_eq!(world.node.in_flight(), (0, 0));
    }
    let huge = Bytes::from(vec![0; 61_441]);
    let answer = call(&mut world, RequestBody::PutRoot { version: 1 }, &huge);
    assert!(matches!(answer, Err(NodeError::Invalid(_))));
    assert_eq!(world.node.stat().slots_free, 8);
}

#[test]
fn a_connection_is_known_by_a_capability_that_was_accepted() {
    let mut world = world();
    let (stranger, none) = (PeerId(7), Bytes::new());
    assert!(world.node.has_accepted(PEER) && !world.node.has_accepted(stranger));
    let mut forged = cap(VOLUME, Epoch(1));
    forged.expires_ns ^= 1;
    world.call(stranger, forged, RequestBody::Stat, &none).expect_err("forged");
    world.call(stranger, forged, RequestBody::Identify, &none).expect("needs none");
    assert!(!world.node.has_accepted(stranger));
    // The requested volume need not exist.
    let other = cap(VolumeId(77), Epoch(1));
    let answer = world.call(stranger, other, RequestBody::ShardSync, &none);
    assert_eq!(answer, Err(NodeError::NotFound));
    assert!(world.node.has_accepted(stranger));
}

/// No matter how many reads a node carries out, a write finds room in its table.
#[test]
fn reads_leave_room_for_writes() {
    let mut world = world();
    write_shard(&mut world, 1, &pattern(5, 4096)).unwrap();
    let read = read_body(1, 0, 4096);
    let none = Bytes::new();
    let capability = cap(VOLUME, Epoch(1));
    let reads: Vec<_> =
        (0..4000).map(|_| world.send(PEER, capability, read.clone(), &none)).collect();
    let create = RequestBody::JournalCreate { generation: JournalGen(1), ring_bytes: 4096 };
    let created = world.send(PEER, capability, create, &none);
    world.settle();
    let answers: Vec<_> = reads.into_iter().filter_map(|tag| world.take(tag)).collect();
    let busy = answers.iter().filter(|answer| **answer == Err(NodeError::Busy)).count();
    assert!(busy > 0 && busy < 2000, "{busy} of {} are refused", answers.len());
    // Told once, for all of them.
    let events: Vec<_> = std::iter::from_fn(|| world.node.next_control_event()).collect();
    assert_eq!(events, [ControlEvent::TableFull]);
    assert_eq!(world.take(created), Some(Ok(ReplyBody::Done)));
}

/// A writer that comes back compares the shards that the node lists. A write from its lost
/// connection must not complete a shard after that.
#[test]
fn a_writer_lists_no_shards_while_its_former_writes_go_on() {
    let mut world = world();
    let data = pattern(5, 4096);
    let capability = cap(VOLUME, Epoch(1));
    world.send(PEER, capability, write_body(1, &data, 0, Some(4096)), &data);
    world.node.handle(NOW_NS, NodeEvent::PeerLost { peer: PEER });
    let again = PeerId(7);
    let sync = world.send(again, capability, RequestBody::ShardSync, &Bytes::new());
    let list = RequestBody::ShardList { from: SegmentId(0) };
    let early = world.send(again, capability, list.clone(), &Bytes::new());
    assert_eq!(world.take(early), Some(Err(NodeError::Busy)));
    world.settle();
    assert!(world.take(sync).is_some());
    let late = world.call(again, capability, list, &Bytes::new()).expect("listed");
    assert!(matches!(late, ReplyBody::Shards { shards, .. } if shards.len() == 1));
}
