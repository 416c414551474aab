//! Writes of a data shard that bring the parity shards of its stripe along. The node under test is
//! node 0, the data node; the test answers for the parity nodes.

use crate::stream::{LEN_BYTES, PASS, SEGMENT, VOLUME, WAIT_MS, WRITER, data, know, link, world};
use crate::world::{NOW_NS, World, cap, config};
use bytes::Bytes;
use fieldstone_node::{LinkTarget, NodeConfig, NodeEvent, limits};
use fieldstone_proto::{
    BLOCK_BYTES, Content, Epoch, JournalGen, Lsn, NodeError, NodeIndex, Outcome, PAYLOAD_BYTES_MAX,
    Pass, Replica, Reply, ReplyBody, Request, RequestBody, Route, SealMeta, ShardIndex, Strategy,
    Tag, crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The shards of the write, and their nodes: a data shard, and two parity shards.
const SHARDS: [(u16, u8); 3] = [(0, 1), (8, 4), (9, 5)];

fn route(strategy: Strategy, shards: &[(u16, u8)], rank: u8) -> Route {
    let replica = |(node, shard): &(u16, u8)| Replica {
        node: NodeIndex(*node),
        pass: PASS,
        shard: ShardIndex(*shard),
        address: Bytes::from(format!("unix:/n/{node}")),
    };
    let replicas = shards.iter().map(replica).collect();
    Route {
        strategy,
        rank,
        wait_ms: WAIT_MS,
        replicas,
        content: Content::Parts,
        ..Route::default()
    }
}

fn primary() -> Route {
    route(Strategy::Primary, &SHARDS, 0)
}

fn seal() -> SealMeta {
    SealMeta { shard_bytes: LEN_BYTES as u32, ..SealMeta::default() }
}

fn body(shard: u8, checksums: Vec<u32>) -> RequestBody {
    RequestBody::ShardWrite {
        segment: SEGMENT,
        shard: ShardIndex(shard),
        offset_bytes: 0,
        checksums,
        seal: Some(seal()),
        data_first: false,
    }
}

/// The parts of the shards, one behind the other.
fn payload() -> Vec<u8> {
    SHARDS.iter().flat_map(|(_, shard)| data(*shard)).collect()
}

fn send(world: &mut World, route: Route, body: RequestBody, payload: &[u8]) -> Tag {
    let payload = Bytes::copy_from_slice(payload);
    world.send_routed(WRITER, cap(VOLUME, Epoch(1)), body, Some(route), &payload)
}

fn whole_body() -> RequestBody {
    body(1, crc32c_blocks(&payload()))
}

fn answer(world: &mut World, index: usize, result: Result<(), NodeError>) {
    let (from, request) = &world.relayed[index];
    let outcome = Outcome { node: from.node, result };
    let (from, tag) = (from.clone(), request.tag);
    let reply = Reply { tag, result: Ok(ReplyBody::Outcomes(vec![outcome])), slots_free: 0 };
    world.node.handle(NOW_NS, NodeEvent::Relayed { from, reply });
    world.pump();
}

fn outcomes(all: [(u16, Result<(), NodeError>); 3]) -> Option<Result<ReplyBody, NodeError>> {
    let outcome = |(node, result)| Outcome { node: NodeIndex(node), result };
    Some(Ok(ReplyBody::Outcomes(all.map(outcome).to_vec())))
}

fn lost(to: u16) -> Result<(), NodeError> {
    Err(NodeError::NotPassedOn { from: NodeIndex(0), to: NodeIndex(to) })
}

fn read(world: &mut World, shard: u8) -> Result<ReplyBody, NodeError> {
    let (segment, shard, len_bytes) = (SEGMENT, ShardIndex(shard), LEN_BYTES as u32);
    let body = RequestBody::ShardRead { segment, shard, offset_bytes: 0, len_bytes };
    world.call(WRITER, cap(VOLUME, Epoch(1)), body, &Bytes::new())
}

/// The pieces of the payload need not be the parts.
#[test]
fn the_data_node_writes_its_part_and_passes_each_other_part_on() {
    let ends = [
        vec![3 * LEN_BYTES],
        vec![LEN_BYTES, 2 * LEN_BYTES, 3 * LEN_BYTES],
        vec![BLOCK_BYTES, LEN_BYTES + BLOCK_BYTES, LEN_BYTES + BLOCK_BYTES, 3 * LEN_BYTES],
        vec![100, 2 * LEN_BYTES + 7, 3 * LEN_BYTES],
    ];
    for ends in ends {
        let mut world = world();
        let (whole, capability) = (Bytes::from(payload()), cap(VOLUME, Epoch(1)));
        let mut request = world.routed(capability, whole_body(), Some(primary()), &whole);
        let begins = std::iter::once(0).chain(ends.iter().copied());
        request.payload = begins.zip(&ends).map(|(begin, end)| whole.slice(begin..*end)).collect();
        let tag = request.tag;
        world.node.handle(NOW_NS, NodeEvent::Request { peer: WRITER, request });
        world.pump();
        assert_eq!(world.relayed.len(), 2);
        for (at, (node, shard)) in SHARDS.iter().enumerate().skip(1) {
            let (to, passed) = &world.relayed[at - 1];
            let address = Bytes::from(format!("unix:/n/{node}"));
            assert_eq!(*to, LinkTarget { node: NodeIndex(*node), address });
            assert_eq!(passed.payload.concat(), data(*shard), "{ends:?}");
            assert_eq!(passed.body, body(*shard, crc32c_blocks(&data(*shard))));
            assert_eq!(passed.capability, capability);
            let plain = Route { rank: at as u8, content: Content::Same, ..primary() };
            assert_eq!(passed.route.as_deref(), Some(&plain));
        }
        answer(&mut world, 0, Ok(()));
        answer(&mut world, 1, Ok(()));
        assert_eq!(world.take(tag), None, "its own disk has not ended");
        world.settle();
        assert_eq!(world.take(tag), outcomes([(0, Ok(())), (8, Ok(())), (9, Ok(()))]));
        assert_eq!(world.node.stat().written_bytes, LEN_BYTES as u64, "its own part");
        assert_eq!(read(&mut world, 1), Ok(ReplyBody::Data(data(1))), "{ends:?}");
    }
}

/// A parity node sees an ordinary write, and takes it with the writer's pass and capability only.
#[test]
fn a_parity_node_takes_its_part_like_any_write_that_is_passed_on() {
    let mut head = world();
    send(&mut head, primary(), whole_body(), &payload());
    let (to, passed) = head.relayed.pop().expect("two were passed on");
    let config = NodeConfig { node: to.node, ..config(4 * LEN_BYTES as u32, 8) };
    let mut world = World::new(config, ChaCha8Rng::seed_from_u64(1));
    know(&mut world, VOLUME);
    let mut take = |tag: u64, change: &dyn Fn(&mut Request)| {
        let mut request = Request { tag: Tag(tag), ..passed.clone() };
        change(&mut request);
        world.node.handle(NOW_NS, NodeEvent::Request { peer: link(1), request });
        world.settle();
        (world.take(Tag(tag)), read(&mut world, 5).ok())
    };
    let late = |request: &mut Request| {
        let route = request.route.as_mut().expect("a route");
        route.replicas[2].pass = Pass(PASS.0 - 1);
    };
    assert_eq!(take(1 << 40, &late), (Some(Err(NodeError::Busy)), None));
    let forged = |request: &mut Request| request.capability.mac[0] ^= 1;
    let (answer, stored) = take(2 << 40, &forged);
    assert!(matches!(answer, Some(Err(NodeError::Capability(_)))) && stored.is_none());
    let own = Outcome { node: NodeIndex(9), result: Ok(()) };
    let done = Some(Ok(ReplyBody::Outcomes(vec![own])));
    assert_eq!(take(3 << 40, &|_| {}), (done, Some(ReplyBody::Data(data(5)))));
}

#[test]
fn a_parity_node_that_is_not_reached_is_named() {
    let mut world = world();
    let tag = send(&mut world, primary(), whole_body(), &payload());
    while world.step() {}
    answer(&mut world, 1, Ok(()));
    let to = world.relayed[0].0.clone();
    world.node.handle(NOW_NS, NodeEvent::LinkLost { to });
    world.settle();
    assert_eq!(world.take(tag), outcomes([(0, Ok(())), (9, Ok(())), (8, lost(8))]));
}

/// The node names what it did not pass on. It writes its own part.
#[test]
fn without_room_among_the_waits_the_node_still_writes_its_part() {
    let mut world = world();
    let (capability, generation) = (cap(VOLUME, Epoch(1)), JournalGen(3));
    let create = RequestBody::JournalCreate { generation, ring_bytes: 32 << 20 };
    assert!(world.call(WRITER, capability, create, &Bytes::new()).is_ok());
    let block = Bytes::from(vec![7; BLOCK_BYTES]);
    // One more wait has room.
    let waits = limits::RELAYS_PER_VOLUME_MAX - 1;
    for at in 0..waits as u64 {
        let body = RequestBody::JournalAppend { generation, lsn: Lsn(at * BLOCK_BYTES as u64) };
        let route = Route { content: Content::Same, ..route(Strategy::Primary, &SHARDS[..2], 0) };
        world.send_routed(WRITER, capability, body, Some(route), &block);
    }
    assert_eq!(world.relayed.len(), waits);
    let before = world.node.stat().written_bytes;
    let tag = send(&mut world, primary(), whole_body(), &payload());
    assert_eq!(world.relayed.len(), waits + 1);
    assert_eq!(world.relayed[waits].1.payload.concat(), data(4));
    while world.step() {}
    (0..=waits).for_each(|index| answer(&mut world, index, Ok(())));
    world.settle();
    assert_eq!(world.take(tag), outcomes([(0, Ok(())), (9, lost(9)), (8, Ok(()))]));
    let appended = (waits * BLOCK_BYTES) as u64;
    assert_eq!(world.node.stat().written_bytes - before, appended + LEN_BYTES as u64);
    assert_eq!(read(&mut world, 1), Ok(ReplyBody::Data(data(1))));
}

/// A part that is damaged on the way to the head harms its own shard only.
#[test]
fn damage_in_a_part_is_noticed_where_the_part_is_written() {
    for (damaged, own) in [(0, Err(NodeError::Corrupt { offset_bytes: 4096 })), (2, Ok(()))] {
        let mut world = world();
        let mut bytes = payload();
        bytes[damaged * LEN_BYTES + BLOCK_BYTES + 7] ^= 1;
        let tag = send(&mut world, primary(), whole_body(), &bytes);
        assert_eq!(world.relayed.len(), 2);
        answer(&mut world, 0, Ok(()));
        answer(&mut world, 1, Ok(()));
        world.settle();
        assert_eq!(world.take(tag), outcomes([(0, own), (8, Ok(())), (9, Ok(()))]));
    }
}

/// The bounds of a shard are those of a part, and those of a message are those of all parts.
#[test]
fn a_part_fits_a_slot_and_all_parts_fit_a_message() {
    let slot_bytes = 1 << 20;
    let shards: Vec<(u16, u8)> = (0..5).map(|at| (u16::from(at), at)).collect();
    for (count, len_bytes, is_taken) in [
        (4, slot_bytes, true),
        (5, slot_bytes, false),
        (2, slot_bytes, true),
        (2, slot_bytes + BLOCK_BYTES, false),
    ] {
        let config = config(slot_bytes as u32, 8);
        let mut world = World::new(config, ChaCha8Rng::seed_from_u64(1));
        know(&mut world, VOLUME);
        let payload = vec![5; count * len_bytes];
        assert_eq!(payload.len() > PAYLOAD_BYTES_MAX, count == 5);
        let body = RequestBody::ShardWrite {
            segment: SEGMENT,
            shard: ShardIndex(0),
            offset_bytes: 0,
            checksums: crc32c_blocks(&payload),
            seal: None,
            data_first: false,
        };
        let route = route(Strategy::Primary, &shards[..count], 0);
        let tag = send(&mut world, route, body, &payload);
        assert_eq!(world.relayed.len(), if is_taken { count - 1 } else { 0 });
        let refused = matches!(world.take(tag), Some(Err(NodeError::Invalid(_))));
        assert_eq!(refused, !is_taken, "{count} parts of {len_bytes}");
        (0..world.relayed.len()).for_each(|index| answer(&mut world, index, Ok(())));
        world.settle();
    }
}

#[test]
fn hostile_parts_are_refused_and_nothing_is_passed_on() {
    let mut world = world();
    let sums = || crc32c_blocks(&payload());
    let payload = payload();
    let cases = [
        ("lengths that do not divide", primary(), sums(), &payload[..2 * LEN_BYTES]),
        ("parts that are no blocks", primary(), sums(), &payload[..3 * 100]),
        ("half a block each", primary(), sums(), &payload[..3 * BLOCK_BYTES / 2]),
        ("no bytes", primary(), Vec::new(), &payload[..0]),
        ("no bytes, but checksums", primary(), sums(), &payload[..0]),
        ("too few checksums", primary(), sums()[..3].to_vec(), &payload[..]),
        ("checksums that do not divide", primary(), sums()[..5].to_vec(), &payload[..]),
        ("too many checksums", primary(), [sums(), vec![1; 3]].concat(), &payload[..]),
        ("no checksums", primary(), Vec::new(), &payload[..]),
        ("no other node", route(Strategy::Primary, &SHARDS[..1], 0), sums(), &payload[..]),
        ("no node", route(Strategy::Primary, &[], 0), sums(), &payload[..]),
        ("a ring", route(Strategy::Ring, &SHARDS, 0), sums(), &payload[..]),
        ("a tree", route(Strategy::Tree, &SHARDS, 0), sums(), &payload[..]),
        ("flat", route(Strategy::Flat, &SHARDS, 0), sums(), &payload[..]),
        (
            "one node twice",
            route(Strategy::Primary, &[(0, 1), (8, 4), (8, 5)], 0),
            sums(),
            &payload[..],
        ),
        (
            "not the head",
            route(Strategy::Primary, &[(8, 1), (0, 4), (9, 5)], 1),
            sums(),
            &payload[..],
        ),
    ];
    for (what, route, checksums, payload) in cases {
        let tag = send(&mut world, route, body(1, checksums), payload);
        let answer = world.take(tag);
        assert!(matches!(answer, Some(Err(NodeError::Invalid(_)))), "{what}: {answer:?}");
    }
    let append = RequestBody::JournalAppend { generation: JournalGen(1), lsn: Lsn(0) };
    let tag = send(&mut world, primary(), append, &payload);
    let why = "only writes of shards have a payload in parts".to_owned();
    assert_eq!(world.take(tag), Some(Err(NodeError::Invalid(why))));
    assert!(world.relayed.is_empty());
    world.settle();
    assert!(read(&mut world, 1).is_err());
}
