//! A node never shows two shards of a segment because a deleted one came back.

use bytes::Bytes;
use fieldstone_node::{FileId, PeerId};
use fieldstone_proto::{
    Epoch, NodeError, ReplyBody, RequestBody, SealMeta, SegmentId, ShardIndex, VolumeId,
    crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::disk::Faults;
use crate::world::{World, cap, config};

const SEGMENT: SegmentId = SegmentId(9);
/// So many that one deletion alone is no reason for a sync.
const SLOTS: u32 = 64;

fn call(world: &mut World, body: RequestBody, payload: &Bytes) -> Result<ReplyBody, NodeError> {
    world.call(PeerId(1), cap(VolumeId(5), Epoch(1)), body, payload)
}

fn world(seed: u64) -> World {
    world_of(4, seed)
}

fn world_of(slots: u32, seed: u64) -> World {
    let mut world = World::new(config(16384, slots), ChaCha8Rng::seed_from_u64(seed));
    call(&mut world, RequestBody::Fence { takeover: false }, &Bytes::new()).expect("fenced");
    world
}

fn write(world: &mut World, segment: SegmentId, shard: u8) -> Result<ReplyBody, NodeError> {
    let data = Bytes::from(vec![shard; 16384]);
    let body = RequestBody::ShardWrite {
        segment,
        shard: ShardIndex(shard),
        offset_bytes: 0,
        checksums: crc32c_blocks(&data),
        seal: Some(SealMeta { shard_bytes: 16384, ..SealMeta::default() }),
        data_first: false,
    };
    call(world, body, &data)
}

fn delete(world: &mut World) {
    let body = RequestBody::ShardDelete { segments: vec![SEGMENT] };
    call(world, body, &Bytes::new()).expect("deleted");
}

fn sync(world: &mut World) -> Result<ReplyBody, NodeError> {
    call(world, RequestBody::ShardSync, &Bytes::new())
}

fn shards(world: &mut World) -> Vec<u8> {
    let list = RequestBody::ShardList { from: SegmentId(0) };
    match call(world, list, &Bytes::new()).expect("listing") {
        ReplyBody::Shards { shards, .. } => shards.iter().map(|info| info.shard.0).collect(),
        other => panic!("{other:?}"),
    }
}

/// Seed 3873723: a node deleted a shard and took another one of the same segment. A power loss
/// brought the first one back.
#[test]
fn a_power_loss_brings_no_second_shard_of_a_segment_back() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..200 {
        let mut world = world(seed);
        write(&mut world, SEGMENT, 1).expect("written");
        sync(&mut world).expect("synced");
        delete(&mut world);
        write(&mut world, SEGMENT, 2).expect("written");
        world.crash(true);
        world.start();
        match shards(&mut world)[..] {
            [2] => kept += 1,
            [] => lost += 1,
            ref other => panic!("seed {seed}: shards {other:?}"),
        }
    }
    assert!(kept > 10 && lost > 10, "{kept} and {lost} of 200");
}

#[test]
fn the_same_shard_and_other_segments_wait_for_nothing() {
    let mut world = world(1);
    write(&mut world, SEGMENT, 1).expect("written");
    delete(&mut world);
    let syncs = world.disk.syncs;
    write(&mut world, SEGMENT, 1).expect("written");
    write(&mut world, SegmentId(10), 2).expect("written");
    assert_eq!(world.disk.syncs, syncs);
}

#[test]
fn a_node_that_cannot_erase_a_shard_takes_no_other_one_of_its_segment() {
    let mut world = world(1);
    write(&mut world, SEGMENT, 1).expect("written");
    world.disk.faults = Faults { write_one_in: 1, ..Faults::default() };
    let body = RequestBody::ShardDelete { segments: vec![SEGMENT] };
    assert!(call(&mut world, body, &Bytes::new()).is_err());
    world.disk.faults = Faults::default();
    let refused = write(&mut world, SEGMENT, 2);
    assert!(matches!(refused, Err(NodeError::Io(_))), "{refused:?}");
    write(&mut world, SegmentId(10), 2).expect("another segment");
    write(&mut world, SEGMENT, 2).expect("it has erased the shard meanwhile");
    assert_eq!(shards(&mut world), [2, 2]);
}

/// A failed sync may have dropped the erasure of a deleted shard, so the erasure is done again. A
/// sync that succeeds afterwards makes it stable.
#[test]
fn a_sync_covers_the_deletions_that_a_failed_one_lost() {
    for seed in 0..200 {
        let mut world = world_of(SLOTS, seed);
        write(&mut world, SEGMENT, 1).expect("written");
        write(&mut world, SegmentId(10), 1).expect("written");
        sync(&mut world).expect("synced");
        delete(&mut world);
        world.disk.faults.sync_of = Some(FileId::Slots);
        assert!(sync(&mut world).is_err());
        world.disk.faults = Faults::default();
        sync(&mut world).expect("synced");
        world.crash(true);
        world.start();
        assert_eq!(shards(&mut world), [1], "seed {seed}: the other segment's");
    }
}

/// A sync of the node's own fails, and no request waits for that sync: the next request to sync
/// tells the volume.
#[test]
fn a_lost_deletion_fails_the_next_sync() {
    let mut world = world_of(SLOTS, 1);
    write(&mut world, SEGMENT, 1).expect("written");
    sync(&mut world).expect("synced");
    delete(&mut world);
    world.disk.faults.sync_of = Some(FileId::Slots);
    // This write waits for a sync of its own.
    let refused = write(&mut world, SEGMENT, 2);
    assert!(matches!(refused, Err(NodeError::Io(_))), "{refused:?}");
    world.disk.faults = Faults::default();
    assert!(sync(&mut world).is_err());
    sync(&mut world).expect("synced");
}
