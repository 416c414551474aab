//! Long writes to shards go to the disk in pieces, one at a time.

use std::collections::VecDeque;

use crate::world::{PIECE_BYTES, World, cap, config};
use bytes::Bytes;
use fieldstone_node::{DiskError, DiskId, DiskOp, DiskOutput, NodeAction, NodeEvent, PeerId};
use fieldstone_proto::{
    Epoch, JournalGen, Lsn, NodeError, ReplyBody, RequestBody, SealMeta, SegmentId, ShardIndex,
    Tag, VolumeId, crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const VOLUME: VolumeId = VolumeId(5);
const PEER: PeerId = PeerId(1);
const GENERATION: JournalGen = JournalGen(1);
const BLOCKS: usize = 7;
const SHARD_BYTES: u32 = BLOCKS as u32 * 4096;

/// The operations that the node wants and that the test has not completed.
type Wanted = VecDeque<(DiskId, DiskOp)>;

fn world() -> World {
    let mut world = World::new(config(SHARD_BYTES, 4), ChaCha8Rng::seed_from_u64(1));
    let fence = RequestBody::Fence { takeover: false };
    assert!(world.call(PEER, cap(VOLUME, Epoch(1)), fence, &Bytes::new()).is_ok());
    let create = RequestBody::JournalCreate { generation: GENERATION, ring_bytes: 65536 };
    assert!(world.call(PEER, cap(VOLUME, Epoch(1)), create, &Bytes::new()).is_ok());
    world
}

/// A shard whose blocks all differ.
fn shard(first: u8) -> Bytes {
    (0..BLOCKS).flat_map(|block| vec![first + block as u8; 4096]).collect::<Vec<u8>>().into()
}

fn write(segment: u64, data: &Bytes) -> RequestBody {
    RequestBody::ShardWrite {
        segment: SegmentId(segment),
        shard: ShardIndex(0),
        offset_bytes: 0,
        checksums: crc32c_blocks(data),
        seal: Some(SealMeta { shard_bytes: SHARD_BYTES, ..SealMeta::default() }),
        data_first: false,
    }
}

/// Sends a request whose disk operations the test itself completes. `parts` are its payload.
fn send(world: &mut World, wanted: &mut Wanted, body: RequestBody, parts: Vec<Bytes>) -> Tag {
    let mut request = world.routed(cap(VOLUME, Epoch(1)), body, None, &Bytes::new());
    request.payload = parts;
    let tag = request.tag;
    world.node.handle(world.now_ns, NodeEvent::Request { peer: PEER, request });
    collect(world, wanted);
    tag
}

fn collect(world: &mut World, wanted: &mut Wanted) {
    while let Some(action) = world.node.next_action() {
        match action {
            NodeAction::Disk { id, op } => wanted.push_back((id, op)),
            NodeAction::Reply { peer, reply } => {
                world.replies.insert(reply.tag, (peer, reply));
            }
            other => panic!("{other:?}"),
        }
    }
}

fn complete(world: &mut World, wanted: &mut Wanted, id: DiskId, result: Result<(), DiskError>) {
    let result = result.map(|()| DiskOutput::Done);
    world.node.handle(world.now_ns, NodeEvent::Disk { id, result });
    collect(world, wanted);
    world.node.assert_consistent();
}

/// The bytes of a write, and where they go.
fn content(op: &DiskOp) -> (u64, Bytes) {
    match op {
        DiskOp::Write { offset_bytes, data, .. } => (*offset_bytes, data.concat().into()),
        other => panic!("{other:?} is no write"),
    }
}

#[test]
fn one_piece_is_in_flight_and_an_append_waits_for_none() {
    let (mut world, mut wanted) = (world(), Wanted::new());
    let (first, second) = (shard(1), shard(100));
    // The payload has parts of any length, as a socket gives them.
    let parts = vec![first.slice(..100), first.slice(100..20_000), first.slice(20_000..)];
    let tags = [
        send(&mut world, &mut wanted, write(1, &first), parts),
        send(&mut world, &mut wanted, write(2, &second), vec![second.clone()]),
    ];
    assert_eq!(wanted.len(), 1, "{wanted:?}");
    let record = Bytes::from(vec![9; 3 * 4096]);
    let body = RequestBody::JournalAppend { generation: GENERATION, lsn: Lsn(0) };
    let append = send(&mut world, &mut wanted, body, vec![record.clone()]);
    assert_eq!(wanted.len(), 2, "the append goes to the disk at once, and in one piece");
    let (id, op) = wanted.pop_back().unwrap();
    assert_eq!(content(&op).1, record);
    complete(&mut world, &mut wanted, id, Ok(()));
    assert_eq!(world.take(append), Some(Ok(ReplyBody::Done)));

    for (tag, data) in tags.into_iter().zip([first, second]) {
        let (mut begin, mut written) = (None, Vec::new());
        while written.len() < data.len() {
            assert_eq!(world.take(tag), None);
            assert_eq!(wanted.len(), 1, "{wanted:?}");
            let (id, op) = wanted.pop_front().unwrap();
            let (offset_bytes, piece) = content(&op);
            let begin = *begin.get_or_insert(offset_bytes);
            assert_eq!(offset_bytes, begin + written.len() as u64);
            assert!(piece.len() <= PIECE_BYTES && piece.len().is_multiple_of(4096));
            written.extend_from_slice(&piece);
            complete(&mut world, &mut wanted, id, Ok(()));
        }
        assert_eq!(written, data);
        // The next write's first piece, and the header that seals this shard.
        let (header, _) = wanted.pop_back().unwrap();
        complete(&mut world, &mut wanted, header, Ok(()));
        assert_eq!(world.take(tag), Some(Ok(ReplyBody::Done)));
    }
    assert!(wanted.is_empty() && world.node.in_flight() == (0, 0));
}

#[test]
fn a_piece_that_fails_ends_its_write_and_no_other() {
    let (mut world, mut wanted) = (world(), Wanted::new());
    let data = shard(1);
    let failing = send(&mut world, &mut wanted, write(1, &data), vec![data.clone()]);
    let other = send(&mut world, &mut wanted, write(2, &data), vec![data.clone()]);
    let (id, _) = wanted.pop_front().unwrap();
    complete(&mut world, &mut wanted, id, Ok(()));
    let (id, _) = wanted.pop_front().unwrap();
    complete(&mut world, &mut wanted, id, Err(DiskError::NoSpace));
    assert_eq!(world.take(failing), Some(Err(NodeError::NoSpace)));
    while let Some((id, _)) = wanted.pop_front() {
        complete(&mut world, &mut wanted, id, Ok(()));
    }
    assert_eq!(world.take(other), Some(Ok(ReplyBody::Done)));
    assert_eq!(world.node.in_flight(), (0, 0));
}
