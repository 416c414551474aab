//! Reservations: no other volume takes slots that a volume has reserved. Also disks without room.

use crate::disk::Faults;
use crate::world::{World, cap, config};
use bytes::Bytes;
use fieldstone_node::{NodeEvent, PeerId};
use fieldstone_proto::{
    Epoch, NodeError, NodeStat, ReplyBody, RequestBody, SealMeta, SegmentId, ShardIndex, VolumeId,
    crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const SLOTS: u32 = 8;
const A: VolumeId = VolumeId(5);
const B: VolumeId = VolumeId(6);

fn world() -> World {
    let mut world = World::new(config(16384, SLOTS), ChaCha8Rng::seed_from_u64(3));
    for volume in [A, B] {
        ask(&mut world, volume, RequestBody::Fence { takeover: false }).expect("a new volume");
        put_root(&mut world, volume);
    }
    world
}

/// The connection of a volume. Each volume has its own.
fn peer(volume: VolumeId) -> PeerId {
    PeerId(u64::try_from(volume.0).expect("small"))
}

fn ask(world: &mut World, volume: VolumeId, body: RequestBody) -> Result<ReplyBody, NodeError> {
    world.call(peer(volume), cap(volume, Epoch(1)), body, &Bytes::new())
}

fn put_root(world: &mut World, volume: VolumeId) {
    let root = Bytes::from_static(b"root");
    let body = RequestBody::PutRoot { version: 1 };
    world.call(peer(volume), cap(volume, Epoch(1)), body, &root).expect("stored");
}

fn reserve(world: &mut World, volume: VolumeId, slots: u32) -> Result<(), NodeError> {
    reserve_with_spare(world, volume, slots, 0)
}

fn reserve_with_spare(
    world: &mut World,
    volume: VolumeId,
    slots: u32,
    spare: u32,
) -> Result<(), NodeError> {
    ask(world, volume, RequestBody::Reserve { slots, spare }).map(|_| ())
}

fn write(world: &mut World, volume: VolumeId, segment: u64) -> Result<(), NodeError> {
    let data = Bytes::from(vec![segment as u8; 8192]);
    let body = RequestBody::ShardWrite {
        segment: SegmentId(segment),
        shard: ShardIndex(0),
        offset_bytes: 0,
        checksums: crc32c_blocks(&data),
        seal: Some(SealMeta { shard_bytes: 8192, ..SealMeta::default() }),
        data_first: false,
    };
    world.call(peer(volume), cap(volume, Epoch(1)), body, &data).map(|_| ())
}

fn delete(world: &mut World, volume: VolumeId, segment: u64) {
    let body = RequestBody::ShardDelete { segments: vec![SegmentId(segment)] };
    ask(world, volume, body).expect("deleted");
}

fn stat(world: &mut World) -> NodeStat {
    match ask(world, A, RequestBody::Stat).expect("known") {
        ReplyBody::Stat(stat) => stat,
        other => panic!("{other:?}"),
    }
}

/// The number of slots that the volume may still take, from an answer.
fn left(world: &mut World, volume: VolumeId) -> u32 {
    let tag = world.send(peer(volume), cap(volume, Epoch(1)), RequestBody::Stat, &Bytes::new());
    world.replies.remove(&tag).expect("answered at once").1.slots_free
}

#[test]
fn a_neighbour_cannot_take_what_a_volume_has_reserved() {
    let mut world = world();
    reserve(&mut world, A, 3).expect("there is room");
    assert_eq!((left(&mut world, A), left(&mut world, B), stat(&mut world).slots_free), (3, 5, 5));
    for segment in 0..5 {
        write(&mut world, B, segment).expect("not reserved");
    }
    assert_eq!(write(&mut world, B, 9), Err(NodeError::NoSpace));
    for segment in 0..3 {
        write(&mut world, A, segment).expect("reserved");
    }
    assert_eq!(write(&mut world, A, 9), Err(NodeError::NoSpace), "no more than it reserved");
    delete(&mut world, A, 0);
    assert_eq!(write(&mut world, B, 9), Err(NodeError::NoSpace), "it is A's again");
    write(&mut world, A, 9).expect("reserved");
}

#[test]
fn reservations_that_do_not_fit_are_refused_whole() {
    let mut world = world();
    reserve(&mut world, A, 6).expect("there is room");
    assert_eq!(reserve(&mut world, B, 3), Err(NodeError::NoSpace));
    assert_eq!(left(&mut world, B), 2, "a refusal changes nothing");
    reserve(&mut world, B, 2).expect("the rest");
    assert_eq!(reserve(&mut world, A, 7), Err(NodeError::NoSpace));
    reserve(&mut world, A, 4).expect("fewer is always granted");
    reserve(&mut world, B, 4).expect("given up by A");
    ask(&mut world, A, RequestBody::RemoveVolume).expect("removed");
    reserve(&mut world, B, 8).expect("all of it");
}

#[test]
fn who_needs_slots_waits_for_those_that_others_can_spare() {
    let mut world = world();
    reserve_with_spare(&mut world, A, 7, 4).expect("there is room");
    assert_eq!(reserve(&mut world, B, 6), Err(NodeError::NoSpace), "5 are all that there can be");
    assert_eq!(stat(&mut world).slots_lacking, 0);
    assert_eq!(reserve(&mut world, B, 4), Err(NodeError::Busy));
    assert_eq!(stat(&mut world).slots_lacking, 3);
    reserve_with_spare(&mut world, A, 4, 1).expect("fewer is always granted");
    assert_eq!(stat(&mut world).slots_lacking, 0);
    reserve(&mut world, B, 4).expect("given back by A");

    assert_eq!(reserve(&mut world, B, 5), Err(NodeError::Busy));
    assert_eq!(stat(&mut world).slots_lacking, 1);
    world.node.handle(0, NodeEvent::PeerLost { peer: peer(A) });
    assert_eq!(reserve(&mut world, B, 5), Err(NodeError::NoSpace), "nobody can give back A's");
}

#[test]
fn a_volume_that_is_removed_waits_for_nothing() {
    let mut world = world();
    reserve_with_spare(&mut world, A, 8, 4).expect("there is room");
    assert_eq!(reserve(&mut world, B, 3), Err(NodeError::Busy));
    assert_eq!(stat(&mut world).slots_lacking, 3);
    ask(&mut world, B, RequestBody::RemoveVolume).expect("removed");
    assert_eq!(stat(&mut world).slots_lacking, 0);
}

/// The volume is being created, and its writer was gone for a moment: other volumes have its slots.
#[test]
fn a_fence_brings_no_reservation_back() {
    let mut world = World::new(config(16384, SLOTS), ChaCha8Rng::seed_from_u64(3));
    for volume in [A, B] {
        ask(&mut world, volume, RequestBody::Fence { takeover: false }).expect("a new volume");
    }
    put_root(&mut world, A);
    reserve(&mut world, B, 6).expect("there is room");
    world.node.handle(0, NodeEvent::PeerLost { peer: peer(B) });
    reserve(&mut world, A, 8).expect("B has no root and no writer");
    let fence = RequestBody::Fence { takeover: true };
    world.call(peer(B), cap(B, Epoch(2)), fence, &Bytes::new()).expect("a newer epoch");
    let body = RequestBody::Reserve { slots: 6, spare: 0 };
    let refused = world.call(peer(B), cap(B, Epoch(2)), body, &Bytes::new());
    assert_eq!(refused, Err(NodeError::NoSpace));
}

#[test]
fn reservations_survive_a_restart_and_a_power_loss() {
    for power_loss in [false, true] {
        let mut world = world();
        reserve(&mut world, A, 3).expect("there is room");
        write(&mut world, A, 1).expect("reserved");
        ask(&mut world, A, RequestBody::ShardSync).expect("stable");
        world.crash(power_loss);
        world.start();
        assert_eq!((left(&mut world, A), left(&mut world, B)), (2, 5), "{power_loss}");
    }
}

#[test]
fn a_reservation_that_cannot_be_stored_is_not_granted() {
    let mut world = world();
    reserve(&mut world, A, 2).expect("there is room");
    world.disk.faults = Faults { write_one_in: 1, ..Faults::default() };
    assert!(matches!(reserve(&mut world, A, 5), Err(NodeError::Io(_))));
    world.disk.faults = Faults::default();
    assert_eq!((left(&mut world, A), left(&mut world, B)), (2, 6));
}

#[test]
fn a_volume_whose_making_was_given_up_keeps_nothing() {
    let mut world = World::new(config(16384, SLOTS), ChaCha8Rng::seed_from_u64(3));
    ask(&mut world, A, RequestBody::Fence { takeover: false }).expect("a new volume");
    reserve(&mut world, A, 7).expect("there is room");
    ask(&mut world, B, RequestBody::Fence { takeover: false }).expect("a new volume");
    assert_eq!(left(&mut world, B), 1);
    world.node.handle(0, NodeEvent::PeerLost { peer: peer(A) });
    assert_eq!(left(&mut world, B), 8);
    world.crash(false);
    world.start();
    assert_eq!(left(&mut world, B), 8);
}

#[test]
fn a_disk_that_is_fuller_than_promised_counts_as_full() {
    let mut world = world();
    reserve(&mut world, A, 6).expect("there is room");
    world.node.handle(0, NodeEvent::Room { room_bytes: 2 * 16384 });
    assert_eq!((left(&mut world, A), stat(&mut world).slots_free), (2, 0));
    write(&mut world, A, 0).expect("there is room");
    write(&mut world, A, 1).expect("there is room");
    assert_eq!(write(&mut world, A, 2), Err(NodeError::NoSpace));
    delete(&mut world, A, 0);
    write(&mut world, A, 2).expect("in the place of the deleted one");
    world.node.handle(0, NodeEvent::Room { room_bytes: 100 * 16384 });
    assert_eq!((left(&mut world, A), left(&mut world, B)), (4, 2));
}

#[test]
fn a_write_without_space_makes_the_node_full_until_the_disk_has_room() {
    let mut world = world();
    reserve(&mut world, A, 6).expect("there is room");
    write(&mut world, A, 0).expect("there is room");
    world.disk.faults = Faults { full_one_in: 1, ..Faults::default() };
    assert_eq!(write(&mut world, A, 1), Err(NodeError::NoSpace));
    world.disk.faults = Faults::default();
    assert_eq!(left(&mut world, A), 0, "the disk would refuse it again");
    delete(&mut world, A, 0);
    write(&mut world, A, 2).expect("in the place of the deleted one");
    assert_eq!(write(&mut world, A, 3), Err(NodeError::NoSpace));
    world.node.handle(0, NodeEvent::Room { room_bytes: 100 * 16384 });
    write(&mut world, A, 3).expect("there is room again");
}
