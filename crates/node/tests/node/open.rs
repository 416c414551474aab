//! Shards that a writer writes piece by piece count from their first acknowledged piece.

use bytes::Bytes;
use fieldstone_node::PeerId;
use fieldstone_proto::{
    Epoch, NodeError, ReplyBody, RequestBody, SealMeta, SegmentId, ShardIndex, ShardInfo, VolumeId,
    crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::disk::Faults;
use crate::world::{World, cap, config};

const VOLUME: VolumeId = VolumeId(5);
const SEGMENT: SegmentId = SegmentId(9);
const SHARD: ShardIndex = ShardIndex(1);

fn world(seed: u64) -> World {
    let mut world = World::new(config(16384, 4), ChaCha8Rng::seed_from_u64(seed));
    call(&mut world, 1, RequestBody::Fence { takeover: false }, &Bytes::new()).expect("fenced");
    world
}

fn call(
    world: &mut World,
    epoch: u64,
    body: RequestBody,
    payload: &Bytes,
) -> Result<ReplyBody, NodeError> {
    world.call(PeerId(epoch), cap(VOLUME, Epoch(epoch)), body, payload)
}

fn write(offset_bytes: u32, data: &Bytes, shard_bytes: Option<u32>) -> RequestBody {
    RequestBody::ShardWrite {
        segment: SEGMENT,
        shard: SHARD,
        offset_bytes,
        checksums: crc32c_blocks(data),
        seal: shard_bytes.map(|shard_bytes| SealMeta { shard_bytes, ..SealMeta::default() }),
        data_first: false,
    }
}

fn read(world: &mut World, epoch: u64, offset_bytes: u32, len: u32) -> Result<Bytes, NodeError> {
    let body =
        RequestBody::ShardRead { segment: SEGMENT, shard: SHARD, offset_bytes, len_bytes: len };
    match call(world, epoch, body, &Bytes::new())? {
        ReplyBody::Data(data) => Ok(data),
        other => panic!("{other:?}"),
    }
}

fn listed(world: &mut World, epoch: u64) -> Vec<ShardInfo> {
    let list = RequestBody::ShardList { from: SegmentId(0) };
    match call(world, epoch, list, &Bytes::new()).expect("listing") {
        ReplyBody::Shards { shards, .. } => shards,
        other => panic!("{other:?}"),
    }
}

fn filled(byte: u8, blocks: usize) -> Bytes {
    Bytes::from(vec![byte; blocks * 4096])
}

#[test]
fn an_open_shard_outlives_the_process_and_the_writer() {
    for seed in 0..50 {
        let mut world = world(seed);
        let piece = filled(3, 2);
        assert_eq!(call(&mut world, 1, write(4096, &piece, None), &piece), Ok(ReplyBody::Done));
        world.crash(false);
        world.start();
        // Even a writer that takes over finds the shard.
        call(&mut world, 2, RequestBody::Fence { takeover: true }, &Bytes::new()).expect("fenced");
        let shards = listed(&mut world, 2);
        assert!(shards.len() == 1 && shards[0].is_open(), "{shards:?}");
        assert_eq!(read(&mut world, 2, 4096, 8192), Ok(piece));
        let delete = RequestBody::ShardDelete { segments: vec![SEGMENT] };
        assert_eq!(call(&mut world, 2, delete, &Bytes::new()), Ok(ReplyBody::Done));
        assert!(listed(&mut world, 2).is_empty());
        world.crash(false);
        world.start();
        assert!(listed(&mut world, 2).is_empty(), "seed {seed}: a deleted shard is back");
        assert_eq!(world.node.stat().slots_free, 4);
    }
}

#[test]
fn a_synced_piece_outlives_a_power_loss_and_a_seal_that_is_torn() {
    let mut torn = 0;
    for seed in 0..200 {
        let mut world = world(seed);
        let (first, second) = (filled(1, 2), filled(2, 2));
        call(&mut world, 1, write(0, &first, None), &first).expect("written");
        call(&mut world, 1, RequestBody::ShardSync, &Bytes::new()).expect("synced");
        call(&mut world, 1, write(8192, &second, Some(16384)), &second).expect("sealed");
        world.crash(true);
        world.start();
        let shards = listed(&mut world, 1);
        assert_eq!(shards.len(), 1, "seed {seed}: {shards:?}");
        torn += usize::from(shards[0].is_open());
        assert_eq!(read(&mut world, 1, 0, 8192), Ok(first), "seed {seed}");
    }
    assert!(torn > 10 && torn < 190, "{torn} of 200 seals were lost");
}

#[test]
fn a_piece_that_fails_takes_none_of_the_others_along() {
    let mut world = world(1);
    let piece = filled(4, 1);
    call(&mut world, 1, write(0, &piece, None), &piece).expect("written");
    world.disk.faults = Faults { write_one_in: 1, ..Faults::default() };
    assert!(call(&mut world, 1, write(4096, &piece, None), &piece).is_err());
    // The write of the last piece fails, and so does the completion.
    assert!(call(&mut world, 1, write(8192, &piece, Some(12288)), &piece).is_err());
    world.disk.faults = Faults::default();
    assert_eq!(read(&mut world, 1, 0, 4096), Ok(piece.clone()));
    let rest = filled(4, 2);
    assert_eq!(call(&mut world, 1, write(4096, &rest, Some(12288)), &rest), Ok(ReplyBody::Done));
    assert_eq!(read(&mut world, 1, 0, 12288), Ok(filled(4, 3)));
    assert!(!listed(&mut world, 1)[0].is_open());
}

#[test]
fn pieces_outlive_a_write_over_them_that_finds_no_space() {
    let mut world = world(1);
    let (first, whole) = (filled(6, 2), filled(6, 3));
    call(&mut world, 1, write(0, &first, None), &first).expect("written");
    world.disk.faults = Faults { full_one_in: 1, ..Faults::default() };
    let refused = call(&mut world, 1, write(0, &whole, Some(12288)), &whole);
    assert_eq!(refused, Err(NodeError::NoSpace));
    assert_eq!(read(&mut world, 1, 0, 8192), Ok(first), "a journal may rely on them");
    world.disk.faults = Faults::default();
    // The node cannot tell whether these blocks are whole, so they complete nothing.
    let last = filled(6, 1);
    assert!(call(&mut world, 1, write(8192, &last, Some(12288)), &last).is_err());
    assert_eq!(call(&mut world, 1, write(0, &whole, Some(12288)), &whole), Ok(ReplyBody::Done));
    assert_eq!(read(&mut world, 1, 0, 12288), Ok(whole));
}

#[test]
fn a_failed_sync_tells_the_writer_that_pieces_may_be_gone() {
    let mut world = world(1);
    let piece = filled(5, 1);
    call(&mut world, 1, write(0, &piece, None), &piece).expect("written");
    world.disk.faults = Faults { sync_one_in: 1, ..Faults::default() };
    assert!(call(&mut world, 1, RequestBody::ShardSync, &Bytes::new()).is_err());
    world.disk.faults = Faults::default();
    world.settle();
    assert!(listed(&mut world, 1).is_empty());
}
