//! Writes that come in fragments. The node under test is node 0; the test sends the fragments, and
//! answers for the nodes behind it.

use crate::stream::{
    LEN_BYTES, OTHER, PASS, SEGMENT, VOLUME, WAIT_MS, WRITER, admit, data, data_write, link, read,
    world,
};
use crate::world::{NOW_NS, World, cap, config};
use bytes::Bytes;
use fieldstone_gf::field::mul;
use fieldstone_node::{
    ControlEvent, LinkTarget, NodeConfig, NodeEvent, ParityMemory, PeerId, limits,
};
use fieldstone_proto::fragments::{cut, fragment, give_up};
use fieldstone_proto::{
    BLOCK_BYTES, Column, Content, ElementTable, ElementTerm, Epoch, Factors, FragmentRole,
    Fragments, JournalGen, Lsn, NodeError, NodeIndex, Outcome, Pass, Replica, Reply, ReplyBody,
    Request, RequestBody, Route, ShardIndex, Strategy, Tag, crc32c_blocks,
};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const AGAIN: PeerId = PeerId(2);

fn route(strategy: Strategy, nodes: &[u16], rank: u8) -> Route {
    let replica = |node: &u16| Replica {
        node: NodeIndex(*node),
        pass: PASS,
        shard: ShardIndex(4 + *node as u8),
        address: Bytes::from(format!("unix:/n/{node}")),
    };
    let replicas = nodes.iter().map(replica).collect();
    Route { strategy, rank, wait_ms: WAIT_MS, replicas, ..Route::default() }
}

/// The write of a shard on this node, of these bytes.
fn body(shard: u8, data: &[u8]) -> RequestBody {
    RequestBody::ShardWrite {
        segment: SEGMENT,
        shard: ShardIndex(shard),
        offset_bytes: 0,
        checksums: crc32c_blocks(data),
        seal: None,
        data_first: false,
    }
}

/// The write in fragments of this length.
fn fragments(
    world: &mut World,
    body: RequestBody,
    route: Route,
    data: &Bytes,
    bytes: u32,
) -> Vec<Request> {
    let route = Route { fragments: Fragments::Allowed(bytes), ..route };
    cut(world.routed(cap(VOLUME, Epoch(1)), body, Some(route), data)).collect()
}

/// Copies of two blocks on these nodes, block by block.
fn copies(world: &mut World, route: Route) -> (Tag, Vec<Request>) {
    let data = data(4);
    let sent = fragments(world, body(4, &data), route, &data, BLOCK_BYTES as u32);
    assert_eq!(sent.len(), 1 + LEN_BYTES / BLOCK_BYTES);
    (sent[0].tag, sent)
}

fn hand_in(world: &mut World, peer: PeerId, request: Request) {
    world.node.handle(world.now_ns, NodeEvent::Request { peer, request });
    world.pump();
    world.node.assert_consistent();
}

fn answer(world: &mut World, index: usize, result: Result<ReplyBody, NodeError>) {
    let (from, request) = &world.relayed[index];
    let reply = Reply { tag: request.tag, result, slots_free: 0 };
    let event = NodeEvent::Relayed { from: from.clone(), reply };
    world.node.handle(world.now_ns, event);
    world.pump();
}

fn outcomes(all: &[(u16, Result<(), NodeError>)]) -> Option<Result<ReplyBody, NodeError>> {
    let outcome = |(node, result): &(u16, _)| Outcome {
        node: NodeIndex(*node),
        result: Clone::clone(result),
    };
    Some(Ok(ReplyBody::Outcomes(all.iter().map(outcome).collect())))
}

fn done(nodes: &[u16]) -> Result<ReplyBody, NodeError> {
    let all: Vec<_> = nodes.iter().map(|node| (*node, Ok(()))).collect();
    outcomes(&all).expect("some")
}

fn lost(from: u16, to: u16) -> Result<(), NodeError> {
    Err(NodeError::NotPassedOn { from: NodeIndex(from), to: NodeIndex(to) })
}

/// The requests that went to this node, put together: the first one, and what its fragments bring.
fn passed_to(world: &World, node: u16) -> (Request, Vec<u32>, Vec<u8>) {
    let to_node = |relayed: &&(LinkTarget, Request)| relayed.0.node == NodeIndex(node);
    let mut requests = world.relayed.iter().filter(to_node).map(|(_, request)| request.clone());
    let first = requests.next().expect("it got something");
    let (mut checksums, mut bytes) = (Vec::new(), first.payload.concat());
    for request in requests {
        let RequestBody::Fragment { checksums: more, .. } = request.body else {
            panic!("a fragment")
        };
        assert_eq!(request.tag, first.tag);
        checksums.extend(more);
        bytes.extend(request.payload.concat());
    }
    (first, checksums, bytes)
}

#[test]
fn each_fragment_goes_on_before_the_next_one_comes() {
    let mut world = world();
    let (tag, sent) = copies(&mut world, route(Strategy::Ring, &[0, 1, 2], 0));
    for (count, request) in (1..).zip(sent.clone()) {
        hand_in(&mut world, WRITER, request);
        assert_eq!(world.relayed.len(), count, "it waits for nothing");
        assert_eq!(world.node.in_flight().0, 1);
    }
    let (first, checksums, bytes) = passed_to(&world, 1);
    let begun = first.route.as_ref().expect("a route");
    assert_eq!((begun.rank, begun.fragments), (1, Fragments::Follow(LEN_BYTES as u32)));
    assert_eq!((bytes, checksums), (data(4).to_vec(), crc32c_blocks(&data(4))));
    assert_eq!(first.capability, cap(VOLUME, Epoch(1)));
    assert_eq!(world.take(tag), None);
    answer(&mut world, 0, done(&[1, 2]));
    world.settle();
    assert_eq!(world.take(tag), outcomes(&[(0, Ok(())), (1, Ok(())), (2, Ok(()))]));
    assert_eq!(read(&mut world, 0), Ok(ReplyBody::Data(data(4))));
}

#[test]
fn nothing_reaches_a_file_before_the_last_fragment() {
    let mut world = world();
    let (tag, sent) = copies(&mut world, route(Strategy::Ring, &[0, 1], 0));
    let (last, others) = sent.split_last().expect("some");
    others.iter().for_each(|request| hand_in(&mut world, WRITER, request.clone()));
    assert!(!world.step(), "no disk operation");
    hand_in(&mut world, WRITER, last.clone());
    assert!(world.step());
    answer(&mut world, 0, done(&[1]));
    world.settle();
    assert!(world.take(tag).is_some());
}

/// The last node passes nothing on. It answers when the whole write is on its disk.
#[test]
fn the_last_node_of_a_route_takes_fragments_too() {
    let mut world = world();
    let (tag, sent) = copies(&mut world, route(Strategy::Ring, &[1, 0], 1));
    for request in sent {
        assert_eq!(world.take(tag), None);
        hand_in(&mut world, link(1), request);
    }
    world.settle();
    assert_eq!(world.take(tag), Some(done(&[0])));
    assert!(world.relayed.is_empty());
    assert_eq!(read(&mut world, 0), Ok(ReplyBody::Data(data(4))));
}

#[test]
fn fragments_of_several_writes_come_in_turns() {
    let mut world = world();
    let nodes = route(Strategy::Primary, &[0, 1, 2], 0);
    let writes: Vec<(Tag, Vec<Request>)> =
        (0..3).map(|_| copies(&mut world, nodes.clone())).collect();
    for at in 0..writes[0].1.len() {
        for (_, sent) in &writes {
            hand_in(&mut world, WRITER, sent[at].clone());
        }
    }
    assert_eq!(world.relayed.len(), 3 * 2 * writes[0].1.len());
    for index in 0..6 {
        let node = world.relayed[index].0.node.0;
        answer(&mut world, index, done(&[node]));
    }
    world.settle();
    assert!(writes.iter().all(|(tag, _)| world.take(*tag).is_some()));
}

#[test]
fn parts_go_to_their_nodes_wherever_the_fragments_are_cut() {
    for blocks in 1..=6 {
        let mut world = world();
        let whole: Bytes = [data(4), data(8), data(9)].concat().into();
        let (content, nodes) = (Content::Parts, &[0, 8, 9]);
        let route = Route { content, ..route(Strategy::Primary, nodes, 0) };
        let bytes = blocks * BLOCK_BYTES as u32;
        let sent = fragments(&mut world, body(4, &whole), route, &whole, bytes);
        let tag = sent[0].tag;
        sent.into_iter().for_each(|request| hand_in(&mut world, WRITER, request));
        for node in [8, 9] {
            let (first, checksums, bytes) = passed_to(&world, node);
            let of_node = data(node as u8);
            assert_eq!(bytes, of_node, "node {node}, {blocks} blocks");
            match first.fragment_role() {
                FragmentRole::Begins(len_bytes) => {
                    assert_eq!((len_bytes, &checksums), (LEN_BYTES, &crc32c_blocks(&of_node)));
                }
                other => assert_eq!((other, blocks), (FragmentRole::None, 6)),
            }
            assert!(matches!(first.body, RequestBody::ShardWrite { shard, .. }
                if shard == ShardIndex(4 + node as u8)));
        }
        for index in 0..world.relayed.len() {
            let node = world.relayed[index].0.node.0;
            if world.relayed[index].1.has_answer() {
                answer(&mut world, index, done(&[node]));
            }
        }
        world.settle();
        assert_eq!(world.take(tag), outcomes(&[(0, Ok(())), (8, Ok(())), (9, Ok(()))]));
        assert_eq!(read(&mut world, 0), Ok(ReplyBody::Data(data(4))));
        assert_eq!(world.node.stat().written_bytes, LEN_BYTES as u64);
    }
}

#[test]
fn products_go_on_fragment_by_fragment() {
    let mut world = world();
    let data = data(2);
    let (body, route) = data_write(&[8, 9], &data);
    let sent = fragments(&mut world, body, route, &data, BLOCK_BYTES as u32);
    let tag = sent[0].tag;
    for (count, request) in (1..).zip(sent) {
        hand_in(&mut world, WRITER, request);
        assert_eq!(world.relayed.len(), 2 * count);
    }
    for (node, factor) in [(8, 1), (9, 0x8e)] {
        let (first, checksums, bytes) = passed_to(&world, node);
        let expected: Vec<u8> = data.iter().map(|byte| mul(factor, *byte)).collect();
        assert_eq!((checksums, bytes), (crc32c_blocks(&expected), expected));
        assert!(first.route.is_some_and(|route| route.is_contribution()));
    }
    let in_use = world.node.in_flight().0;
    assert_eq!(in_use, 1);
    answer(&mut world, 0, done(&[8]));
    answer(&mut world, 1, done(&[9]));
    world.settle();
    assert_eq!(world.take(tag), outcomes(&[(0, Ok(())), (8, Ok(())), (9, Ok(()))]));
}

/// A chunk of elements is longer than a fragment: its product goes on when the chunk is there.
#[test]
fn products_of_elements_wait_for_whole_chunks() {
    let term = |element, factor| ElementTerm { element, factor };
    let rows = [vec![term(1, 3)], vec![term(0, 0x8e)]];
    let table = ElementTable::new(LEN_BYTES as u32, 2, rows.iter().map(Vec::as_slice));
    let table = table.expect("in bounds");
    let mut world = world();
    let data = data(2);
    let (body, mut route) = data_write(&[8], &data);
    let factors = Factors::Elements(table);
    route.content = Content::Column(Column { index: 2, count: 4, factors });
    let sent = fragments(&mut world, body, route, &data, BLOCK_BYTES as u32);
    let counts = sent.into_iter().map(|request| {
        hand_in(&mut world, WRITER, request);
        world.relayed.len()
    });
    assert_eq!(counts.collect::<Vec<_>>(), [1, 1, 2]);
    let (first, second) = data.split_at(LEN_BYTES / 2);
    let times = |factor, data: &[u8]| -> Vec<u8> { data.iter().map(|b| mul(factor, *b)).collect() };
    let expected = [times(3, second), times(0x8e, first)].concat();
    let (_, checksums, bytes) = passed_to(&world, 8);
    assert_eq!((checksums, bytes), (crc32c_blocks(&expected), expected));
    answer(&mut world, 0, done(&[8]));
    world.settle();
}

/// A product without memory: the parity node learns it at once, and the other one gets its own. The
/// memory comes back when nothing waits for it.
#[test]
fn a_product_without_memory_does_not_come() {
    // The volume's share holds two products, and a parity node may take half of the share.
    let memory = ParityMemory::new(4 * limits::PARITY_VOLUMES * LEN_BYTES);
    let shared = memory.clone();
    let config = NodeConfig { parity_memory: memory, ..config(4 * LEN_BYTES as u32, 8) };
    let mut world = World::new(config, ChaCha8Rng::seed_from_u64(1));
    crate::stream::know(&mut world, VOLUME);
    let data = data(2);
    let begin = |world: &mut World, parity: &[u16]| {
        let (body, route) = data_write(parity, &data);
        fragments(world, body, route, &data, BLOCK_BYTES as u32)
    };
    let earlier = begin(&mut world, &[8]);
    hand_in(&mut world, WRITER, earlier[0].clone());
    let sent = begin(&mut world, &[8, 9]);
    let tag = sent[0].tag;
    sent.into_iter().for_each(|request| hand_in(&mut world, WRITER, request));
    assert_eq!(shared.usage().products_bytes, 2 * LEN_BYTES);
    let to_8: Vec<&Request> =
        world.relayed.iter().filter(|(to, _)| to.node.0 == 8).map(|(_, request)| request).collect();
    assert_eq!(to_8.len(), 2, "nothing follows the second one");
    assert_eq!(to_8[1].route.as_ref().expect("a route").fragments, Fragments::Whole);
    assert_eq!(passed_to(&world, 9).2.len(), LEN_BYTES);
    let denied = |world: &World, node: u16| {
        let last = world.relayed.iter().rposition(|(to, r)| to.node.0 == node && r.has_answer());
        last.expect("it got something")
    };
    let (of_8, of_9) = (denied(&world, 8), denied(&world, 9));
    answer(&mut world, of_8, Err(NodeError::Denied));
    answer(&mut world, of_9, done(&[9]));
    while world.step() {}
    let all = [(0, Ok(())), (8, Err(NodeError::Denied)), (9, Ok(()))];
    assert_eq!(world.take(tag), outcomes(&all));
    // Its child is gone, so the earlier write keeps no memory for the product.
    let to = world.relayed[0].0.clone();
    world.node.handle(NOW_NS, NodeEvent::LinkLost { to });
    world.pump();
    world.relayed.clear();
    hand_in(&mut world, WRITER, earlier[1].clone());
    assert_eq!(shared.usage().products_bytes, 0);
    hand_in(&mut world, WRITER, earlier[2].clone());
    world.settle();
}

/// What leaves consists of whole blocks, also where chunks do not.
#[test]
fn products_of_odd_chunks_are_cut_at_blocks() {
    let term = |element, factor| ElementTerm { element, factor };
    let rows = [vec![term(2, 3)], vec![term(0, 1)], vec![term(1, 1), term(2, 1)]];
    let table = ElementTable::new(3 * 512, 3, rows.iter().map(Vec::as_slice)).expect("in bounds");
    let whole: Bytes = [data(2), data(3)].concat().into();
    let whole = whole.slice(..3 * BLOCK_BYTES);
    let products = [0, 2 * BLOCK_BYTES as u32].map(|bytes| {
        let mut world = world();
        let (body, mut route) = data_write(&[8], &whole);
        let factors = Factors::Elements(table.clone());
        route.content = Content::Column(Column { index: 2, count: 4, factors });
        let sent = fragments(&mut world, body, route, &whole, bytes);
        assert_eq!(sent.len(), if bytes == 0 { 1 } else { 3 });
        sent.into_iter().for_each(|request| hand_in(&mut world, WRITER, request));
        passed_to(&world, 8).2
    });
    assert_eq!(products[0].len(), whole.len());
    assert_eq!(products[0], products[1]);
}

/// The parity node adds up contributions that come in fragments, and whole ones.
#[test]
fn a_sum_is_made_of_contributions_in_fragments() {
    let mut world = world();
    let tags = [0u8, 1, 2].map(|column| {
        let data = data(column);
        let write = crate::stream::write(0, &data, None);
        let route = crate::stream::route(column, 3);
        let bytes = if column == 1 { 0 } else { BLOCK_BYTES as u32 };
        let sent = fragments(&mut world, write, route, &data, bytes);
        let tag = sent[0].tag;
        sent.into_iter().for_each(|request| hand_in(&mut world, link(column), request));
        tag
    });
    world.settle();
    assert!(tags.iter().all(|tag| world.take(*tag) == Some(done(&[0]))));
    assert_eq!(read(&mut world, 0), Ok(ReplyBody::Data(crate::stream::sum(3).into())));
}

#[test]
fn damage_in_a_fragment_ends_the_write_and_goes_no_further() {
    let mut world = world();
    let (tag, mut sent) = copies(&mut world, route(Strategy::Ring, &[0, 1, 2], 0));
    let mut damaged = sent[2].payload.concat();
    damaged[5] ^= 1;
    sent[2].payload = vec![damaged.into()];
    sent.into_iter().for_each(|request| hand_in(&mut world, WRITER, request));
    let offset_bytes = BLOCK_BYTES as u32;
    let corrupt = Err(NodeError::Corrupt { offset_bytes });
    assert_eq!(world.take(tag), outcomes(&[(0, corrupt), (1, lost(0, 1)), (2, lost(1, 2))]));
    let roles: Vec<FragmentRole> =
        world.relayed.iter().map(|(_, request)| request.fragment_role()).collect();
    let begins = FragmentRole::Begins(LEN_BYTES);
    assert_eq!(roles, [begins, FragmentRole::Continues, FragmentRole::Ends]);
    assert!(world.relayed.iter().all(|(_, request)| request.tag == world.relayed[0].1.tag));
    assert_eq!(world.node.stat().corrupt_blocks, 1);
    world.settle();
    assert!(read(&mut world, 0).is_err());
}

/// Whatever ends a write before its last fragment, the nodes behind learn it, and nothing stays.
#[test]
fn a_write_that_ends_early_is_given_up_everywhere() {
    type End = fn(&mut World, Tag);
    let silent: End = |world, _| {
        world.now_ns += limits::FRAGMENTS_SILENCE_NS;
        world.node.handle(world.now_ns, NodeEvent::Tick);
    };
    let sender_gone: End = |world, _| {
        world.node.handle(NOW_NS, NodeEvent::PeerLost { peer: WRITER });
    };
    let given_up: End = |world, tag| hand_in(world, WRITER, give_up(tag));
    let odd: End = |world, tag| {
        hand_in(world, WRITER, fragment(tag, vec![1], vec![vec![0; 100].into()]));
    };
    let empty: End = |world, tag| hand_in(world, WRITER, fragment(tag, vec![], vec![]));
    let without_checksums: End = |world, tag| {
        hand_in(world, WRITER, fragment(tag, vec![], vec![vec![0; BLOCK_BYTES].into()]));
    };
    let too_long: End = |world, tag| {
        let blocks = 1 + LEN_BYTES / BLOCK_BYTES;
        let data = vec![0; blocks * BLOCK_BYTES];
        hand_in(world, WRITER, fragment(tag, crc32c_blocks(&data), vec![data.into()]));
    };
    let ends = [silent, sender_gone, given_up, odd, empty, without_checksums, too_long];
    for (at, end) in ends.into_iter().enumerate() {
        for fragments_first in 0..LEN_BYTES / BLOCK_BYTES {
            let mut world = world();
            let mut waiting = route(Strategy::Primary, &[0, 1, 2], 0);
            waiting.wait_ms = 10_000;
            let (tag, sent) = copies(&mut world, waiting);
            for request in &sent[..=fragments_first] {
                hand_in(&mut world, WRITER, request.clone());
            }
            end(&mut world, tag);
            world.pump();
            let ended: Vec<u16> = world.relayed[world.relayed.len() - 2..]
                .iter()
                .filter(|(_, request)| request.fragment_role() == FragmentRole::Ends)
                .map(|(to, _)| to.node.0)
                .collect();
            assert_eq!(ended, [1, 2], "case {at}");
            assert_eq!(world.node.in_flight(), (0, 0), "case {at}");
            assert_eq!(world.node.deadline_ns(), None);
            assert_eq!(world.take(tag).is_some(), at != 1, "case {at}");
            // The rest is of no write, and costs nothing.
            let sent_before = world.relayed.len();
            for request in &sent[1 + fragments_first..] {
                hand_in(&mut world, WRITER, request.clone());
            }
            assert_eq!(world.relayed.len(), sent_before);
            world.settle();
            assert!(read(&mut world, 0).is_err());
        }
    }
}

#[test]
fn a_child_that_refuses_or_is_lost_gets_no_more_fragments() {
    let mut world = world();
    let (tag, sent) = copies(&mut world, route(Strategy::Primary, &[0, 1, 2, 3], 0));
    hand_in(&mut world, WRITER, sent[0].clone());
    answer(&mut world, 0, Err(NodeError::Busy));
    let to = world.relayed[1].0.clone();
    world.node.handle(NOW_NS, NodeEvent::LinkLost { to });
    for request in &sent[1..] {
        hand_in(&mut world, WRITER, request.clone());
    }
    let to: Vec<u16> = world.relayed.iter().map(|(to, _)| to.node.0).collect();
    // The link to node 2 may be open again, and then brings the request there.
    assert_eq!(
        (&to[..], &world.relayed[3].1.body),
        (&[1, 2, 3, 2, 3, 3][..], &RequestBody::GiveUp)
    );
    answer(&mut world, 2, done(&[3]));
    world.settle();
    let busy = Err(NodeError::Busy);
    assert_eq!(world.take(tag), outcomes(&[(0, Ok(())), (1, busy), (2, lost(0, 2)), (3, Ok(()))]));
}

/// The node stops waiting for a child while fragments are missing. The child learns it.
#[test]
fn a_child_that_is_too_slow_is_told_that_nothing_more_comes() {
    let mut world = world();
    let (tag, sent) = copies(&mut world, route(Strategy::Ring, &[0, 1], 0));
    hand_in(&mut world, WRITER, sent[0].clone());
    world.now_ns += u64::from(WAIT_MS) * 1_000_000;
    world.node.handle(world.now_ns, NodeEvent::Tick);
    world.pump();
    let roles: Vec<FragmentRole> = world.relayed.iter().map(|(_, r)| r.fragment_role()).collect();
    assert_eq!(roles, [FragmentRole::Begins(LEN_BYTES), FragmentRole::Ends]);
    for request in &sent[1..] {
        hand_in(&mut world, WRITER, request.clone());
    }
    assert_eq!(world.relayed.len(), 2);
    world.settle();
    assert_eq!(
        world.take(tag),
        outcomes(&[(1, lost(0, 1)), (0, Ok(()))]).map(|_| {
            Ok(ReplyBody::Outcomes(vec![
                Outcome { node: NodeIndex(0), result: Ok(()) },
                Outcome { node: NodeIndex(1), result: lost(0, 1) },
            ]))
        })
    );
}

/// A writer that stops within a write says nothing about the node behind: its link stays.
#[test]
fn a_child_that_lacks_fragments_is_not_silent() {
    for complete in [false, true] {
        let mut world = world();
        let mut patient = route(Strategy::Ring, &[0, 1], 0);
        patient.wait_ms = 1 + (limits::LINK_SILENCE_NS / 1_000_000) as u32;
        let (tag, sent) = copies(&mut world, patient);
        let count = if complete { sent.len() } else { sent.len() - 1 };
        sent[..count].iter().for_each(|request| hand_in(&mut world, WRITER, request.clone()));
        while world.step() {}
        world.now_ns = world.node.deadline_ns().expect("it waits");
        world.node.handle(world.now_ns, NodeEvent::Tick);
        world.pump();
        assert_eq!(world.closed.len(), usize::from(complete));
        if !complete {
            hand_in(&mut world, WRITER, sent[count].clone());
            world.settle();
        }
        assert_eq!(world.take(tag), outcomes(&[(0, Ok(())), (1, lost(0, 1))]));
    }
}

/// A node waits longer the higher its rank is. Each fragment renews the time, up to a bound.
#[test]
fn a_write_has_a_time_for_each_fragment_and_one_for_all() {
    let ms = 1_000_000;
    for (rank, silence_ns) in [
        (0, limits::FRAGMENTS_SILENCE_NS),
        (1, limits::FRAGMENTS_SILENCE_NS + limits::FRAGMENTS_SILENCE_STEP_NS),
    ] {
        let mut world = world();
        let nodes: &[u16] = if rank == 0 { &[0] } else { &[1, 0] };
        let (tag, sent) = copies(&mut world, route(Strategy::Ring, nodes, rank));
        hand_in(&mut world, WRITER, sent[0].clone());
        assert_eq!(world.node.deadline_ns(), Some(NOW_NS + silence_ns));
        world.now_ns += 3_000 * ms;
        hand_in(&mut world, WRITER, sent[1].clone());
        assert_eq!(world.node.deadline_ns(), Some(NOW_NS + 3_000 * ms + silence_ns));
        world.now_ns += silence_ns;
        world.node.handle(world.now_ns, NodeEvent::Tick);
        world.pump();
        assert_eq!(world.take(tag), outcomes(&[(0, Err(NodeError::Busy))]));
    }
    // One block every four seconds, for a write of eight.
    let mut world = world();
    let long: Bytes = (0..4).map(data).collect::<Vec<_>>().concat().into();
    let alone = route(Strategy::Ring, &[0], 0);
    let sent = fragments(&mut world, body(4, &long), alone, &long, BLOCK_BYTES as u32);
    for (at, request) in sent[..8].iter().enumerate() {
        world.now_ns = NOW_NS + at as u64 * 4_000 * ms;
        hand_in(&mut world, WRITER, request.clone());
    }
    assert_eq!(world.node.deadline_ns(), Some(NOW_NS + limits::ARRIVAL_NS));
    world.now_ns = NOW_NS + limits::ARRIVAL_NS;
    world.node.handle(world.now_ns, NodeEvent::Tick);
    world.pump();
    assert_eq!(world.take(sent[0].tag), outcomes(&[(0, Err(NodeError::Busy))]));
    world.settle();
}

/// The control side hears of a client that was silent, and of no other end of a write.
#[test]
fn the_control_side_hears_of_a_write_whose_client_fell_silent() {
    let mut world = world();
    let (_, sent) = copies(&mut world, route(Strategy::Ring, &[0], 0));
    hand_in(&mut world, WRITER, sent[0].clone());
    world.node.handle(NOW_NS, NodeEvent::PeerLost { peer: WRITER });
    world.settle();
    assert_eq!(world.node.next_control_event(), None, "the host knows that the client is gone");
    let (_, sent) = copies(&mut world, route(Strategy::Ring, &[0], 0));
    hand_in(&mut world, WRITER, sent[0].clone());
    hand_in(&mut world, WRITER, sent[1].clone());
    world.now_ns += limits::FRAGMENTS_SILENCE_NS;
    world.node.handle(world.now_ns, NodeEvent::Tick);
    world.settle();
    let Some(ControlEvent::WriteGivenUp { peer, volume, arrived_bytes, len_bytes }) =
        world.node.next_control_event()
    else {
        panic!("no event");
    };
    assert_eq!((peer, volume), (WRITER, VOLUME));
    assert_eq!((arrived_bytes, len_bytes), (BLOCK_BYTES as u64, LEN_BYTES as u64));
    assert_eq!(world.node.next_control_event(), None);
}

/// The checksum of a fragment that goes on unchanged is that of its sender. So damage in the
/// memory of this node shows at the next one.
#[test]
fn a_fragment_keeps_the_checksum_of_its_sender() {
    let mut world = world();
    let (_, mut sent) = copies(&mut world, route(Strategy::Ring, &[0, 1], 0));
    if let RequestBody::Fragment { payload_crc, .. } = &mut sent[1].body {
        *payload_crc = 7;
    }
    sent.into_iter().for_each(|request| hand_in(&mut world, WRITER, request));
    let crcs: Vec<u32> = world.relayed[1..]
        .iter()
        .map(|(_, request)| match &request.body {
            RequestBody::Fragment { payload_crc, .. } => *payload_crc,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(crcs, [7, fieldstone_proto::crc32c(&data(4)[BLOCK_BYTES..])]);
    answer(&mut world, 0, done(&[1]));
    world.settle();
}

/// Fences, removals and new passes do not wait for a write of which fragments are missing, and end
/// it. The writer's next connection makes it void, too.
#[test]
fn a_write_that_becomes_void_ends() {
    type Change = fn(&mut World);
    let fence: Change = |world| {
        let fence = RequestBody::Fence { takeover: true };
        assert!(world.call_beside(AGAIN, cap(VOLUME, Epoch(2)), fence).is_ok());
    };
    let removal: Change = |world| {
        let remove = RequestBody::RemoveVolume;
        assert!(world.call_beside(WRITER, cap(VOLUME, Epoch(1)), remove).is_ok());
    };
    let new_pass: Change = |world| {
        assert!(admit(world, WRITER, Pass(PASS.0 + 1)).is_ok());
    };
    // The writer is back over another connection.
    let superseded: Change = |world| {
        let (generation, ring_bytes) = (JournalGen(1), 4096);
        let create = RequestBody::JournalCreate { generation, ring_bytes };
        assert!(world.call_beside(AGAIN, cap(VOLUME, Epoch(1)), create).is_ok());
    };
    for (relayed, change, at_once) in [
        (false, fence, true),
        (true, fence, true),
        (false, removal, true),
        (true, new_pass, true),
        (false, superseded, false),
    ] {
        let mut world = world();
        let (nodes, rank, peer) = if relayed { ([1, 0], 1, link(1)) } else { ([0, 1], 0, WRITER) };
        let (tag, sent) = copies(&mut world, route(Strategy::Ring, &nodes, rank));
        let (last, others) = sent.split_last().expect("some");
        others.iter().for_each(|request| hand_in(&mut world, peer, request.clone()));
        change(&mut world);
        assert_eq!(world.replies.contains_key(&tag), at_once);
        hand_in(&mut world, peer, last.clone());
        while world.step() {}
        if !at_once {
            answer(&mut world, 0, done(&[1]));
        }
        let Some(Ok(ReplyBody::Outcomes(all))) = world.take(tag) else { panic!("an answer") };
        assert!(all[0].result.is_err(), "{:?}", all[0]);
        world.settle();
        assert!(read(&mut world, 0).is_err());
        let ends = world.relayed.iter().any(|(_, r)| r.fragment_role() == FragmentRole::Ends);
        assert_eq!(ends, at_once && !relayed);
    }
}

#[test]
fn hostile_beginnings_are_refused_and_nothing_is_passed_on() {
    let mut world = world();
    let data = data(4);
    let begin = |fragments: Fragments, change: fn(&mut Request)| {
        let route = Route { fragments, ..route(Strategy::Ring, &[0, 1], 0) };
        let mut request = Request {
            tag: Tag(70),
            capability: cap(VOLUME, Epoch(1)),
            body: body(4, &[]),
            route: Some(Box::new(route)),
            payload: Vec::new(),
        };
        change(&mut request);
        request
    };
    let len = Fragments::Follow(LEN_BYTES as u32);
    let keep: fn(&mut Request) = |_| {};
    let hostile = [
        begin(Fragments::Follow(0), keep),
        begin(Fragments::Follow(4097), keep),
        begin(Fragments::Follow(5 * LEN_BYTES as u32), keep),
        begin(len, |request| request.body = body(4, &[0; BLOCK_BYTES])),
        begin(len, |request| request.body = RequestBody::JournalSync { generation: JournalGen(1) }),
        begin(len, |request| request.capability.mac[0] ^= 1),
        begin(len, |request| request.route.as_mut().expect("some").replicas[1].node.0 = 0),
        begin(Fragments::NoRoom, keep),
    ];
    for (at, request) in hostile.into_iter().enumerate() {
        hand_in(&mut world, WRITER, request);
        let answer = world.take(Tag(70)).expect("an answer");
        match at {
            5 => assert!(matches!(answer, Err(NodeError::Capability(_))), "{answer:?}"),
            7 => assert_eq!(answer, Err(NodeError::Busy)),
            _ => assert!(matches!(answer, Err(NodeError::Invalid(_))), "case {at}: {answer:?}"),
        }
        hand_in(&mut world, WRITER, fragment(Tag(70), crc32c_blocks(&data), vec![data.clone()]));
        assert_eq!(world.node.in_flight(), (0, 0), "case {at}");
    }
    assert!(world.relayed.is_empty());
    // The same tag twice, and fragments over another connection.
    hand_in(&mut world, WRITER, begin(len, keep));
    hand_in(&mut world, WRITER, begin(len, keep));
    assert!(matches!(world.take(Tag(70)), Some(Err(NodeError::Invalid(_)))));
    hand_in(&mut world, AGAIN, fragment(Tag(70), crc32c_blocks(&data), vec![data.clone()]));
    hand_in(&mut world, AGAIN, give_up(Tag(70)));
    assert_eq!(world.node.in_flight().0, 1);
    hand_in(&mut world, WRITER, fragment(Tag(70), crc32c_blocks(&data), vec![data]));
    answer(&mut world, 0, done(&[1]));
    world.settle();
    assert_eq!(world.take(Tag(70)), Some(done(&[0, 1])));
}

/// The connection has taken memory for the whole payload of each such write.
#[test]
fn the_payloads_of_one_volume_have_a_bounded_length() {
    let mut world = world();
    let begin = |world: &mut World, volume| {
        let append = RequestBody::JournalAppend { generation: JournalGen(1), lsn: Lsn(0) };
        let fragments = Fragments::Follow(4 << 20);
        let route = Route { fragments, ..route(Strategy::Ring, &[0], 0) };
        world.send_routed(WRITER, cap(volume, Epoch(1)), append, Some(route), &Bytes::new())
    };
    let count = limits::ARRIVING_BYTES_PER_VOLUME_MAX / (4 << 20);
    let tags: Vec<Tag> = (0..count).map(|_| begin(&mut world, VOLUME)).collect();
    let more = begin(&mut world, VOLUME);
    assert_eq!(world.take(more), Some(Err(NodeError::Busy)));
    let other = begin(&mut world, OTHER);
    assert_eq!(world.take(other), None);
    hand_in(&mut world, WRITER, give_up(tags[0]));
    let again = begin(&mut world, VOLUME);
    assert_eq!(world.take(again), None);
    world.node.handle(NOW_NS, NodeEvent::PeerLost { peer: WRITER });
    world.settle();
}

/// Writes that never end leave room for those of other volumes.
#[test]
fn one_volume_has_a_bounded_number_of_writes_in_fragments() {
    let mut world = world();
    let begin = |world: &mut World| {
        let (tag, mut sent) = copies(world, route(Strategy::Ring, &[0], 0));
        hand_in(world, WRITER, sent.remove(0));
        tag
    };
    let tags: Vec<Tag> = (0..limits::ARRIVALS_PER_VOLUME_MAX).map(|_| begin(&mut world)).collect();
    assert!(tags.iter().all(|tag| world.take(*tag).is_none()));
    let more = begin(&mut world);
    assert_eq!(world.take(more), Some(Err(NodeError::Busy)));
    let (data, ring) = (data(4), route(Strategy::Ring, &[0], 0));
    let tag = world.send_routed(WRITER, cap(OTHER, Epoch(1)), body(4, &data), Some(ring), &data);
    while world.step() {}
    assert_eq!(world.take(tag), Some(done(&[0])), "the other volume has room");
    let due_ns = world.node.deadline_ns().expect("it waits");
    world.node.handle(due_ns, NodeEvent::Tick);
    world.pump();
    let given_up = outcomes(&[(0, Err(NodeError::Busy))]);
    assert!(tags.iter().all(|tag| world.take(*tag) == given_up));
    world.settle();
}

#[test]
fn an_append_comes_in_fragments_too() {
    let mut world = world();
    let (generation, capability) = (JournalGen(3), cap(VOLUME, Epoch(1)));
    let create = RequestBody::JournalCreate { generation, ring_bytes: 1 << 20 };
    assert!(world.call(WRITER, capability, create, &Bytes::new()).is_ok());
    let whole: Bytes = [data(1), data(2)].concat().into();
    let append = RequestBody::JournalAppend { generation, lsn: Lsn(4096) };
    let ring = route(Strategy::Ring, &[0, 1], 0);
    let sent = fragments(&mut world, append.clone(), ring, &whole, LEN_BYTES as u32);
    let tag = sent[0].tag;
    sent.into_iter().for_each(|request| hand_in(&mut world, WRITER, request));
    let (first, checksums, bytes) = passed_to(&world, 1);
    assert_eq!((first.body, checksums, bytes), (append, vec![], whole.to_vec()));
    answer(&mut world, 0, done(&[1]));
    world.settle();
    assert_eq!(world.take(tag), Some(done(&[0, 1])));
    let (offset_bytes, len_bytes) = (4096, whole.len() as u32);
    let body = RequestBody::JournalRead { generation, offset_bytes, len_bytes };
    assert_eq!(world.call(WRITER, capability, body, &Bytes::new()), Ok(ReplyBody::Data(whole)));
}

proptest! {
    /// The fragments of several writes in turns, some of which are given up: every write is
    /// answered once, nothing stays, and the file has the bytes of a write of which all came.
    #[test]
    fn fragments_of_several_writes_in_any_turns(
        steps in proptest::collection::vec((0usize..4, 0u8..10, 1u32..4), 1..60),
        seed in any::<u64>(),
    ) {
        let mut world = world();
        world.rng = ChaCha8Rng::seed_from_u64(seed);
        let mut writes: Vec<(Tag, std::vec::IntoIter<Request>, u8)> = Vec::new();
        let mut complete = Vec::new();
        for (which, action, blocks) in steps {
            match action {
                0..=2 => {
                    let shard = writes.len() as u8;
                    let data = data(shard);
                    let ring = route(Strategy::Ring, &[0], 0);
                    let mut sent = fragments(
                        &mut world, body(shard % 4, &data), ring, &data, blocks * 4096,
                    ).into_iter();
                    let first = sent.next().expect("some");
                    writes.push((first.tag, sent, shard));
                    let is_whole = first.has_answer() && !first.payload.is_empty();
                    hand_in(&mut world, WRITER, first);
                    complete.extend(is_whole.then_some(shard));
                }
                3..=7 => {
                    let Some((_, sent, shard)) = writes.get_mut(which) else { continue };
                    let Some(request) = sent.next() else { continue };
                    let last = sent.len() == 0;
                    let shard = *shard;
                    hand_in(&mut world, WRITER, request);
                    complete.extend(last.then_some(shard));
                }
                8 => {
                    let Some((tag, sent, _)) = writes.get_mut(which) else { continue };
                    sent.by_ref().for_each(drop);
                    let tag = *tag;
                    hand_in(&mut world, WRITER, give_up(tag));
                }
                _ => drop(world.step()),
            }
        }
        while let Some(due_ns) = world.node.deadline_ns() {
            world.now_ns = world.now_ns.max(due_ns);
            world.node.handle(world.now_ns, NodeEvent::Tick);
            world.pump();
        }
        world.settle();
        for (tag, _, shard) in &writes {
            let answer = world.take(*tag);
            let Some(Ok(ReplyBody::Outcomes(all))) = answer else { panic!("{answer:?}") };
            prop_assert_eq!(all[0].result.is_ok(), complete.contains(shard));
        }
        for place in 0..4u8 {
            let last = complete.iter().rev().find(|shard| **shard % 4 == place);
            let (segment, shard, len_bytes) = (SEGMENT, ShardIndex(place), LEN_BYTES as u32);
            let body = RequestBody::ShardRead { segment, shard, offset_bytes: 0, len_bytes };
            let found = world.call(WRITER, cap(VOLUME, Epoch(1)), body, &Bytes::new());
            match last {
                Some(_) => {
                    let Ok(ReplyBody::Data(found)) = found else { panic!("{found:?}") };
                    let mut of_place = complete.iter().filter(|shard| **shard % 4 == place);
                    let of_some = of_place.any(|shard| data(*shard) == found);
                    prop_assert!(of_some);
                }
                None => prop_assert!(found.is_err()),
            }
        }
    }
}
