//! Requests in flight together: which request waits for which, and which syncs are shared.

use crate::world::{World, cap, config};
use bytes::Bytes;
use fieldstone_node::{DiskOp, NodeAction, NodeEvent, PeerId, limits};
use fieldstone_proto::{
    Epoch, JournalGen, Lsn, NodeError, ReplyBody, Request, RequestBody, SealMeta, SegmentId,
    ShardIndex, Tag, VolumeId, crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const VOLUME: VolumeId = VolumeId(5);
const OLD: PeerId = PeerId(1);
const NEW: PeerId = PeerId(2);
const GENERATION: JournalGen = JournalGen(1);

fn none() -> Bytes {
    Bytes::new()
}

fn world(seed: u64) -> World {
    let mut world = World::new(config(16384, 4), ChaCha8Rng::seed_from_u64(seed));
    let fence = RequestBody::Fence { takeover: false };
    assert!(world.call(OLD, cap(VOLUME, Epoch(1)), fence, &none()).is_ok());
    let create = RequestBody::JournalCreate { generation: GENERATION, ring_bytes: 16384 };
    assert_eq!(world.call(OLD, cap(VOLUME, Epoch(1)), create, &none()), Ok(ReplyBody::Done));
    world
}

fn send(world: &mut World, body: RequestBody, payload: &Bytes) -> Tag {
    world.send(OLD, cap(VOLUME, Epoch(1)), body, payload)
}

fn filled(byte: u8, blocks: usize) -> Bytes {
    vec![byte; blocks * 4096].into()
}

fn write(segment: u64, offset_bytes: u32, data: &Bytes, seal: Option<u32>) -> RequestBody {
    RequestBody::ShardWrite {
        segment: SegmentId(segment),
        shard: ShardIndex(0),
        offset_bytes,
        checksums: crc32c_blocks(data),
        seal: seal.map(|shard_bytes| SealMeta { shard_bytes, ..SealMeta::default() }),
        data_first: false,
    }
}

fn read(offset_bytes: u32, len_bytes: u32) -> RequestBody {
    RequestBody::ShardRead { segment: SegmentId(1), shard: ShardIndex(0), offset_bytes, len_bytes }
}

fn append(lsn: u64) -> RequestBody {
    RequestBody::JournalAppend { generation: GENERATION, lsn: Lsn(lsn) }
}

fn read_ring(offset_bytes: u64) -> RequestBody {
    RequestBody::JournalRead { generation: GENERATION, offset_bytes, len_bytes: 4096 }
}

#[test]
fn a_fence_takes_effect_after_everything_older_has_ended() {
    for seed in 0..100 {
        let mut world = world(seed);
        let data = filled(7, 2);
        let mut older = vec![
            send(&mut world, append(0), &data),
            send(&mut world, write(1, 0, &data, Some(8192)), &data),
            send(&mut world, write(2, 0, &data, None), &data),
            send(&mut world, RequestBody::ShardSync, &none()),
            send(&mut world, RequestBody::JournalSync { generation: GENERATION }, &none()),
        ];
        let fence = RequestBody::Fence { takeover: true };
        let fence = world.send(NEW, cap(VOLUME, Epoch(2)), fence, &none());
        let late = send(&mut world, append(8192), &data);
        let fenced = NodeError::Fenced { sent: Epoch(1), current: Epoch(2) };
        assert_eq!(world.take(late), Some(Err(fenced)), "refused from the start of the fence");
        while !world.replies.contains_key(&fence) {
            assert!(world.step(), "the fence never ends");
        }
        older.retain(|&tag| world.take(tag).is_none());
        assert!(older.is_empty(), "{older:?} were still going on after the fence");
        world.settle();
        assert_eq!(world.node.stat().slots_free, 2, "what was written of a shard stays");
    }
}

#[test]
fn of_two_writes_to_the_same_bytes_the_later_one_stays() {
    for seed in 0..100 {
        let mut world = world(seed);
        let (first, second, third) = (filled(1, 2), filled(2, 2), filled(3, 1));
        send(&mut world, write(1, 0, &first, None), &first);
        send(&mut world, append(4096), &first);
        world.node.handle(0, NodeEvent::PeerLost { peer: OLD });
        let second_write = send(&mut world, write(1, 4096, &second, None), &second);
        let between = send(&mut world, read(4096, 4096), &none());
        send(&mut world, write(1, 8192, &third, None), &third);
        send(&mut world, append(8192), &second);
        send(&mut world, append(16384 + 8192), &third);
        world.settle();
        assert_eq!(world.take(second_write), Some(Ok(ReplyBody::Done)));
        assert_eq!(world.take(between), Some(Ok(ReplyBody::Data(filled(2, 1)))), "in order");
        let mut ask = |body| world.call(OLD, cap(VOLUME, Epoch(1)), body, &none());
        let shard: Bytes = [filled(1, 1), filled(2, 1), third.clone()].concat().into();
        assert_eq!(ask(read(0, 12288)), Ok(ReplyBody::Data(shard)));
        for (block, data) in [(1, filled(1, 1)), (2, third.clone()), (3, filled(2, 1))] {
            assert_eq!(ask(read_ring(block * 4096)), Ok(ReplyBody::Data(data)), "block {block}");
        }
    }
}

#[test]
fn a_write_waits_for_a_slot_that_is_on_its_way_back() {
    for seed in 0..50 {
        let mut world = world(seed);
        let data = filled(9, 1);
        for segment in 1..=4 {
            send(&mut world, write(segment, 0, &data, Some(4096)), &data);
        }
        world.settle();
        world.replies.clear();
        let segments = vec![SegmentId(1), SegmentId(2)];
        send(&mut world, RequestBody::ShardDelete { segments }, &none());
        let waiting: Vec<Tag> = (11..=13)
            .map(|segment| send(&mut world, write(segment, 0, &data, Some(4096)), &data))
            .collect();
        world.settle();
        let answers: Vec<_> = waiting.iter().map(|&tag| world.take(tag)).collect();
        let expected = [Ok(ReplyBody::Done), Ok(ReplyBody::Done), Err(NodeError::NoSpace)];
        assert_eq!(answers, expected.map(Some));
    }
}

/// Counts the syncs among the node's actions.
fn syncs(world: &mut World) -> usize {
    let mut syncs = 0;
    while let Some(action) = world.node.next_action() {
        if let NodeAction::Disk { id, op } = action {
            syncs += usize::from(matches!(op, DiskOp::Sync { .. }));
            world.disk.submit(id, op);
        }
    }
    syncs
}

#[test]
fn syncs_of_one_file_share() {
    let mut world = world(1);
    let request = |tag| Request {
        tag: Tag(tag),
        capability: cap(VOLUME, Epoch(1)),
        body: RequestBody::JournalSync { generation: GENERATION },
        route: None,
        payload: Vec::new(),
    };
    let mut submitted = 0;
    for tag in 1000..1100 {
        world.node.handle(0, NodeEvent::Request { peer: OLD, request: request(tag) });
        submitted += syncs(&mut world);
    }
    assert_eq!(submitted, 1, "one is in flight, the others wait");
    let (id, result) = world.disk.complete_one(&mut world.rng).unwrap();
    world.node.handle(0, NodeEvent::Disk { id, result });
    assert_eq!(syncs(&mut world), 1, "the others share the next");
    let (id, result) = world.disk.complete_one(&mut world.rng).unwrap();
    world.node.handle(0, NodeEvent::Disk { id, result });
    assert_eq!(syncs(&mut world), 0);
    assert_eq!(world.node.in_flight(), (0, 0));
}

#[test]
fn a_full_request_table_makes_the_node_busy_and_no_more() {
    let mut world = world(1);
    let data = filled(1, 1);
    let tags: Vec<Tag> =
        (0..limits::REQUESTS_MAX).map(|_| send(&mut world, read_ring(0), &none())).collect();
    assert_eq!(world.node.in_flight().0, limits::REQUESTS_MAX);
    let refused = send(&mut world, append(0), &data);
    assert_eq!(world.take(refused), Some(Err(NodeError::Busy)));
    let fence = RequestBody::Fence { takeover: true };
    let fence = world.send(NEW, cap(VOLUME, Epoch(2)), fence, &none());
    assert_eq!(world.take(fence), Some(Err(NodeError::Busy)));
    let identify = send(&mut world, RequestBody::Identify, &none());
    assert!(matches!(world.take(identify), Some(Ok(ReplyBody::Stat(_)))));
    world.settle();
    assert!(tags.iter().all(|&tag| matches!(world.take(tag), Some(Ok(_)))));
    let accepted = send(&mut world, append(0), &data);
    world.settle();
    assert_eq!(world.take(accepted), Some(Ok(ReplyBody::Done)));
}

#[test]
fn payloads_are_checked_however_the_list_is_cut() {
    let data: Bytes = (0..3 * 4096u32).map(|at| (at % 251) as u8).collect();
    for cuts in [vec![], vec![1], vec![4095, 4097], vec![100, 8192, 8193], vec![4096, 8192]] {
        for damaged in [None, Some(0usize), Some(5000), Some(12287)] {
            let mut world = world(3);
            let mut sent = data.to_vec();
            if let Some(at) = damaged {
                sent[at] ^= 1;
            }
            let sent = Bytes::from(sent);
            let ends = cuts.iter().copied().chain([sent.len()]);
            let starts = [0].into_iter().chain(cuts.iter().copied());
            let request = Request {
                tag: Tag(1000),
                capability: cap(VOLUME, Epoch(1)),
                body: write(1, 4096, &data, None),
                route: None,
                payload: starts.zip(ends).map(|(from, to)| sent.slice(from..to)).collect(),
            };
            world.node.handle(0, NodeEvent::Request { peer: OLD, request });
            world.settle();
            let expected = match damaged {
                None => Ok(ReplyBody::Done),
                Some(at) => {
                    let offset_bytes = 4096 + u32::try_from(at / 4096 * 4096).unwrap();
                    Err(NodeError::Corrupt { offset_bytes })
                }
            };
            assert_eq!(world.take(Tag(1000)), Some(expected), "{cuts:?} {damaged:?}");
            if damaged.is_none() {
                let all = world.call(OLD, cap(VOLUME, Epoch(1)), read(4096, 12288), &none());
                assert_eq!(all, Ok(ReplyBody::Data(data.clone())));
            }
        }
    }
}
