//! The node never lists a shard written with `data_first` without its data, after any power loss.

use bytes::Bytes;
use fieldstone_node::PeerId;
use fieldstone_proto::{
    Epoch, ReplyBody, RequestBody, SealMeta, SegmentId, ShardIndex, VolumeId, crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::world::{World, cap, config};

const VOLUME: VolumeId = VolumeId(5);
const SEGMENT: SegmentId = SegmentId(9);

/// Writes a shard and loses power before any sync request. Returns whether the shard is listed
/// afterwards, and whether it is whole.
fn survives(seed: u64, data_first: bool) -> (bool, bool) {
    let mut world = World::new(config(8192, 4), ChaCha8Rng::seed_from_u64(seed));
    let mut call = |epoch, body, payload: &Bytes| {
        world.call(PeerId(epoch), cap(VOLUME, Epoch(epoch)), body, payload)
    };
    let none = Bytes::new();
    assert!(call(1, RequestBody::Fence { takeover: false }, &none).is_ok());
    let data = Bytes::from(vec![7; 8192]);
    let write = RequestBody::ShardWrite {
        segment: SEGMENT,
        shard: ShardIndex(0),
        offset_bytes: 0,
        checksums: crc32c_blocks(&data),
        seal: Some(SealMeta { shard_bytes: 8192, ..SealMeta::default() }),
        data_first,
    };
    assert_eq!(call(1, write, &data), Ok(ReplyBody::Done));
    world.crash(true);
    world.start();
    world.settle();
    let mut call = |body| world.call(PeerId(2), cap(VOLUME, Epoch(1)), body, &none);
    let listed = match call(RequestBody::ShardList { from: SegmentId(0) }) {
        Ok(ReplyBody::Shards { shards, .. }) => shards.len() == 1,
        other => panic!("{other:?}"),
    };
    let verify = RequestBody::ShardVerify { segment: SEGMENT, shard: ShardIndex(0) };
    (listed, call(verify).is_ok())
}

#[test]
fn a_shard_with_its_data_first_is_listed_only_whole() {
    let (mut gone, mut whole) = (0, 0);
    for seed in 0..200 {
        let (listed, good) = survives(seed, true);
        assert_eq!(listed, good, "seed {seed}");
        if listed { whole += 1 } else { gone += 1 }
    }
    assert!(gone > 10 && whole > 10, "{gone} gone, {whole} whole");
}

#[test]
fn without_it_a_shard_may_be_listed_and_corrupt() {
    assert!((0..200).any(|seed| survives(seed, false) == (true, false)));
}
