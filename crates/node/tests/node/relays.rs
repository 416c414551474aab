//! Writes that nodes pass on to each other. The node under test is node 0; the test answers for the
//! others.

use crate::world::{NOW_NS, World, cap, config};
use bytes::Bytes;
use fieldstone_node::{LinkTarget, NodeEvent, PeerId, limits};
use fieldstone_proto::route::WAIT_MS_MAX;
use fieldstone_proto::{
    Epoch, JournalGen, Lsn, NodeError, NodeIndex, Outcome, Pass, Replica, Reply, ReplyBody,
    RequestBody, Route, ShardIndex, Strategy, Tag, VolumeId,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const VOLUME: VolumeId = VolumeId(5);
const GENERATION: JournalGen = JournalGen(3);
/// The writer's own connection, its next one, and the link of another node.
const WRITER: PeerId = PeerId(1);
const AGAIN: PeerId = PeerId(2);
const LINK: PeerId = PeerId(900);
const PASS: Pass = Pass(4);
/// As long as a link may be silent.
const WAIT_MS: u32 = (limits::LINK_SILENCE_NS / 1_000_000) as u32;

/// A node with a journal of a volume at epoch 1.
fn world() -> World {
    let mut world = World::new(config(16384, 8), ChaCha8Rng::seed_from_u64(1));
    let fence = RequestBody::Fence { takeover: false };
    assert!(world.call(WRITER, cap(VOLUME, Epoch(1)), fence, &Bytes::new()).is_ok());
    let create = RequestBody::JournalCreate { generation: GENERATION, ring_bytes: 32 << 20 };
    assert!(world.call(WRITER, cap(VOLUME, Epoch(1)), create, &Bytes::new()).is_ok());
    world
}

fn route(strategy: Strategy, nodes: &[u16], rank: u8) -> Route {
    let replica = |node: &u16| Replica {
        node: NodeIndex(*node),
        pass: PASS,
        shard: ShardIndex(0),
        address: Bytes::from(format!("unix:/n/{node}")),
    };
    let replicas = nodes.iter().map(replica).collect();
    Route { strategy, rank, wait_ms: WAIT_MS, replicas, ..Route::default() }
}

fn append_body(lsn: u64) -> RequestBody {
    RequestBody::JournalAppend { generation: GENERATION, lsn: Lsn(lsn) }
}

fn data() -> Bytes {
    vec![7u8; 4096].into()
}

fn append(world: &mut World, peer: PeerId, route: Route) -> Tag {
    let cap = cap(VOLUME, Epoch(1));
    world.send_routed(peer, cap, append_body(0), Some(route), &data())
}

fn admit(world: &mut World, peer: PeerId, pass: Pass) -> Result<ReplyBody, NodeError> {
    let body = RequestBody::AdmitRelays { pass };
    world.call(peer, cap(VOLUME, Epoch(1)), body, &Bytes::new())
}

/// The other end of the link on which the node passed its request number `index` on answers.
fn answer(world: &mut World, index: usize, result: Result<ReplyBody, NodeError>) {
    let (from, request) = &world.relayed[index];
    let reply = Reply { tag: request.tag, result, slots_free: 0 };
    let event = NodeEvent::Relayed { from: from.clone(), reply };
    world.node.handle(NOW_NS, event);
    world.pump();
}

fn outcomes(all: &[(u16, Result<(), NodeError>)]) -> Option<Result<ReplyBody, NodeError>> {
    let outcome = |(node, result): (u16, Result<(), NodeError>)| {
        let node = NodeIndex(node);
        Outcome { node, result }
    };
    Some(Ok(ReplyBody::Outcomes(all.iter().cloned().map(outcome).collect())))
}

fn lost(from: u16, to: u16) -> Result<(), NodeError> {
    Err(NodeError::NotPassedOn { from: NodeIndex(from), to: NodeIndex(to) })
}

fn done(nodes: &[u16]) -> Result<ReplyBody, NodeError> {
    let all: Vec<_> = nodes.iter().map(|node| (*node, Ok(()))).collect();
    outcomes(&all).expect("some")
}

#[test]
fn the_head_passes_the_request_on_and_answers_for_all() {
    for own_first in [true, false] {
        let mut world = world();
        let tag = append(&mut world, WRITER, route(Strategy::Ring, &[0, 1, 2], 0));
        let [(to, passed)] = &world.relayed[..] else { panic!("one child") };
        let address = Bytes::from_static(b"unix:/n/1");
        assert_eq!(*to, LinkTarget { node: NodeIndex(1), address });
        assert_eq!((&passed.body, &passed.payload[..]), (&append_body(0), &[data()][..]));
        assert_eq!(passed.capability, cap(VOLUME, Epoch(1)));
        assert_eq!(passed.route.as_ref().map(|route| route.rank), Some(1));
        if own_first {
            while world.step() {}
        }
        assert_eq!(world.take(tag), None);
        answer(&mut world, 0, done(&[1, 2]));
        if !own_first {
            assert_eq!(world.take(tag), None, "its own disk has not ended");
        }
        world.settle();
        let mut nodes = match world.take(tag) {
            Some(Ok(ReplyBody::Outcomes(all))) => all,
            other => panic!("{other:?}"),
        };
        nodes.sort_by_key(|outcome| outcome.node);
        assert_eq!(Some(Ok(ReplyBody::Outcomes(nodes))), Some(done(&[0, 1, 2])));
    }
}

#[test]
fn each_strategy_has_its_children_and_a_leaf_has_none() {
    let passed_to = |strategy, nodes: &[u16], rank| {
        let mut world = world();
        assert!(admit(&mut world, WRITER, PASS).is_ok());
        let peer = if rank == 0 { WRITER } else { LINK };
        let tag = append(&mut world, peer, route(strategy, nodes, rank));
        let to: Vec<u16> = world.relayed.iter().map(|(to, _)| to.node.0).collect();
        if to.is_empty() {
            world.settle();
            assert_eq!(world.take(tag), Some(done(&[0])));
        }
        to
    };
    assert_eq!(passed_to(Strategy::Ring, &[1, 0, 2, 3], 1), [2]);
    assert_eq!(passed_to(Strategy::Tree, &[0, 1, 2, 3, 4], 0), [1, 2]);
    assert_eq!(passed_to(Strategy::Tree, &[1, 0, 2, 3, 4], 1), [3, 4]);
    assert_eq!(passed_to(Strategy::Primary, &[0, 1, 2, 3], 0), [1, 2, 3]);
    assert!(passed_to(Strategy::Primary, &[1, 2, 0], 2).is_empty());
    assert!(passed_to(Strategy::Ring, &[1, 2, 0], 2).is_empty());
}

#[test]
fn a_child_that_refuses_or_is_lost_is_named_with_those_behind_it() {
    let tree = || route(Strategy::Tree, &[0, 1, 2, 3, 4, 5], 0);
    let mut world = world();
    let tag = append(&mut world, WRITER, tree());
    while world.step() {}
    // Node 1 (before 3 and 4) answers for itself and for 4 only; node 2 (before 5) is busy.
    answer(&mut world, 0, done(&[4, 1]));
    answer(&mut world, 1, Err(NodeError::Busy));
    let busy = Err(NodeError::Busy);
    let known = outcomes(&[
        (0, Ok(())),
        (1, Ok(())),
        (3, lost(1, 3)),
        (4, Ok(())),
        (2, busy),
        (5, lost(2, 5)),
    ]);
    assert_eq!(world.take(tag), known);
    let tag = append(&mut world, WRITER, tree());
    while world.step() {}
    let to = world.relayed[2].0.clone();
    world.node.handle(NOW_NS, NodeEvent::LinkLost { to });
    // An answer after that counts for nothing, nor does one over another link.
    answer(&mut world, 2, done(&[1, 3, 4]));
    let (tag_of_2, other) = (world.relayed[3].1.tag, world.relayed[2].0.clone());
    let reply = Reply { tag: tag_of_2, result: done(&[2, 5]), slots_free: 0 };
    world.node.handle(NOW_NS, NodeEvent::Relayed { from: other, reply });
    assert_eq!(world.take(tag), None);
    answer(&mut world, 3, Ok(ReplyBody::Done));
    let gone = [
        (0, Ok(())),
        (1, lost(0, 1)),
        (3, lost(1, 3)),
        (4, lost(1, 4)),
        (2, lost(0, 2)),
        (5, lost(2, 5)),
    ];
    assert_eq!(world.take(tag), outcomes(&gone));
    world.settle();
}

#[test]
fn a_silent_child_costs_a_bounded_time_and_its_link() {
    let mut world = world();
    assert_eq!(world.node.deadline_ns(), None);
    let first = append(&mut world, WRITER, route(Strategy::Primary, &[0, 1, 2], 0));
    let other = world.send_routed(
        WRITER,
        cap(VOLUME, Epoch(1)),
        append_body(8192),
        Some(route(Strategy::Ring, &[0, 1], 0)),
        &data(),
    );
    while world.step() {}
    answer(&mut world, 1, done(&[2]));
    let due_ns = NOW_NS + u64::from(WAIT_MS) * 1_000_000;
    assert_eq!(world.node.deadline_ns(), Some(due_ns));
    world.node.handle(due_ns - 1, NodeEvent::Tick);
    world.pump();
    assert_eq!((world.take(first), world.take(other)), (None, None));
    world.node.handle(due_ns, NodeEvent::Tick);
    world.pump();
    let silent = lost(0, 1);
    assert_eq!(world.take(first), outcomes(&[(0, Ok(())), (2, Ok(())), (1, silent.clone())]));
    assert_eq!(world.take(other), outcomes(&[(0, Ok(())), (1, silent)]));
    assert_eq!(world.closed, [world.relayed[0].0.clone()], "once");
    assert_eq!(world.node.deadline_ns(), None);
    world.settle();
}

#[test]
fn an_error_of_the_own_disk_leaves_the_others_their_part() {
    let mut world = world();
    let cap = cap(VOLUME, Epoch(1));
    let body = RequestBody::JournalAppend { generation: JournalGen(99), lsn: Lsn(0) };
    let ring = route(Strategy::Ring, &[0, 1], 0);
    let tag = world.send_routed(WRITER, cap, body, Some(ring), &data());
    assert_eq!(world.take(tag), None);
    answer(&mut world, 0, done(&[1]));
    assert_eq!(world.take(tag), outcomes(&[(0, Err(NodeError::NotFound)), (1, Ok(()))]));
    world.settle();
}

#[test]
fn a_node_takes_writes_from_others_only_with_the_pass_of_the_present_connection() {
    let mut world = world();
    let relayed = |pass| {
        let mut route = route(Strategy::Ring, &[1, 0], 1);
        route.replicas[1].pass = pass;
        route
    };
    let take = |world: &mut World, pass| {
        let tag = append(world, LINK, relayed(pass));
        world.settle();
        world.take(tag).expect("an answer")
    };
    let busy = Err(NodeError::Busy);
    assert_eq!(take(&mut world, PASS), busy, "none is announced");
    assert!(admit(&mut world, WRITER, PASS).is_ok());
    assert_eq!(take(&mut world, PASS), done(&[0]));
    assert_eq!(take(&mut world, Pass(PASS.0 - 1)), busy);
    // The link has not become the holder: the writer goes on.
    assert!(admit(&mut world, WRITER, Pass(PASS.0 + 1)).is_ok());
    assert_eq!(take(&mut world, PASS), busy, "a new pass ends the old one");
    assert_eq!(take(&mut world, Pass(PASS.0 + 1)), done(&[0]));
    // The writer comes back over another connection.
    let fence = RequestBody::Fence { takeover: true };
    let fenced = world.call(AGAIN, cap(VOLUME, Epoch(1)), fence, &Bytes::new());
    assert!(matches!(fenced, Err(NodeError::Fenced { .. })), "{fenced:?}");
    assert_eq!(take(&mut world, Pass(PASS.0 + 1)), busy);
    assert!(matches!(admit(&mut world, WRITER, PASS), Err(NodeError::Invalid(_))));
    assert!(admit(&mut world, AGAIN, PASS).is_ok());
    assert_eq!(take(&mut world, PASS), done(&[0]));
    world.node.handle(NOW_NS, NodeEvent::PeerLost { peer: AGAIN });
    assert_eq!(take(&mut world, PASS), busy, "the writer is gone");
}

#[test]
fn hostile_routes_are_refused_and_nothing_is_passed_on() {
    let mut world = world();
    let ring = |nodes: &[u16], rank| route(Strategy::Ring, nodes, rank);
    let many: Vec<u16> = (0..40).collect();
    let mut long = ring(&[0, 1], 0);
    long.replicas[1].address = vec![b'x'; 5000].into();
    for hostile in [
        ring(&[1, 0], 0),
        ring(&[0, 1], 7),
        ring(&[0, 0], 0),
        ring(&[0, 1, 2, 1], 0),
        ring(&[], 0),
        ring(&many, 0),
        route(Strategy::Flat, &[0, 1], 0),
        long,
    ] {
        let tag = append(&mut world, WRITER, hostile.clone());
        let answer = world.take(tag);
        assert!(matches!(answer, Some(Err(NodeError::Invalid(_)))), "{hostile:?}: {answer:?}");
    }
    // Other operations take no route, and a wrong capability learns nothing of the route.
    let tag = world.send_routed(
        WRITER,
        cap(VOLUME, Epoch(1)),
        RequestBody::JournalSync { generation: GENERATION },
        Some(ring(&[0, 1], 0)),
        &Bytes::new(),
    );
    assert!(matches!(world.take(tag), Some(Err(NodeError::Invalid(_)))));
    let mut forged = cap(VOLUME, Epoch(1));
    forged.mac[3] ^= 1;
    let tag = world.send_routed(LINK, forged, append_body(0), Some(ring(&[1, 0], 0)), &data());
    assert!(matches!(world.take(tag), Some(Err(NodeError::Capability(_)))));
    assert!(world.relayed.is_empty());
    world.settle();
}

#[test]
fn a_fence_waits_for_the_nodes_own_part_only() {
    let mut world = world();
    let tag = append(&mut world, WRITER, route(Strategy::Ring, &[0, 1], 0));
    let fence = RequestBody::Fence { takeover: true };
    let fence = world.send(AGAIN, cap(VOLUME, Epoch(2)), fence, &Bytes::new());
    while world.step() {}
    assert!(matches!(world.take(fence), Some(Ok(ReplyBody::VolumeState(_)))));
    assert_eq!(world.take(tag), None, "node 1 has not answered");
    answer(&mut world, 0, Err(NodeError::Fenced { sent: Epoch(1), current: Epoch(2) }));
    let fenced = Err(NodeError::Fenced { sent: Epoch(1), current: Epoch(2) });
    assert_eq!(world.take(tag), outcomes(&[(0, Ok(())), (1, fenced)]));
    // From now on the node refuses the old writer's appends from others too.
    let tag = append(&mut world, LINK, route(Strategy::Ring, &[1, 0], 1));
    assert!(matches!(world.take(tag), Some(Err(NodeError::Fenced { .. }))));
    world.settle();
}

#[test]
fn a_writer_that_is_gone_keeps_no_entry() {
    for own_first in [true, false] {
        let mut world = world();
        let tag = append(&mut world, WRITER, route(Strategy::Ring, &[0, 1], 0));
        if own_first {
            while world.step() {}
            assert_eq!(world.node.in_flight(), (1, 0));
        }
        world.node.handle(NOW_NS, NodeEvent::PeerLost { peer: WRITER });
        while world.step() {}
        assert_eq!(world.node.in_flight(), (0, 0));
        assert_eq!(world.node.deadline_ns(), None);
        // Its answer comes too late, and counts for nothing.
        answer(&mut world, 0, done(&[1]));
        assert_eq!(world.take(tag), None);
        world.settle();
    }
}

/// A writer chooses its wait, and must not hold entries of the table for longer than others do.
#[test]
fn the_longest_wait_is_bounded() {
    let mut world = world();
    let mut ring = route(Strategy::Ring, &[0, 1], 0);
    ring.wait_ms = u32::MAX;
    append(&mut world, WRITER, ring);
    while world.step() {}
    let max_ns = u64::from(WAIT_MS_MAX) * 1_000_000;
    assert_eq!(world.node.deadline_ns(), Some(NOW_NS + max_ns));
    world.node.handle(NOW_NS + max_ns, NodeEvent::Tick);
    assert_eq!(world.node.in_flight(), (0, 0));
}

/// One volume's waits leave room for those of others. What the node does not pass on, it says.
#[test]
fn one_volume_has_a_bounded_number_of_waits() {
    let mut world = world();
    let ring = || route(Strategy::Ring, &[0, 1], 0);
    let at = |lsn: usize| append_body(4096 * lsn as u64);
    let send = |world: &mut World, lsn: usize| {
        world.send_routed(WRITER, cap(VOLUME, Epoch(1)), at(lsn), Some(ring()), &data())
    };
    let most = limits::RELAYS_PER_VOLUME_MAX;
    let tags: Vec<Tag> = (0..most).map(|lsn| send(&mut world, lsn)).collect();
    let more = send(&mut world, most);
    while world.step() {}
    assert_eq!(world.relayed.len(), most);
    assert_eq!(world.take(more), outcomes(&[(0, Ok(())), (1, lost(0, 1))]));
    assert_eq!(world.node.in_flight().0, most, "all others wait for node 1");
    for index in 0..most {
        answer(&mut world, index, done(&[1]));
    }
    assert!(tags.iter().all(|tag| world.take(*tag) == Some(done(&[0, 1]))));
    let again = append(&mut world, WRITER, ring());
    answer(&mut world, most, done(&[1]));
    world.settle();
    assert_eq!(world.take(again), Some(done(&[0, 1])));
}

/// Writers share a link. One that gives its requests no time, or sends what the other node keeps
/// waiting, costs the others nothing while that node answers them.
#[test]
fn a_wait_that_ends_leaves_those_of_other_writers() {
    let mut world = world();
    let ms = 1_000_000;
    let mut hasty = route(Strategy::Ring, &[0, 1], 0);
    hasty.wait_ms = 0;
    let mine = append(&mut world, WRITER, route(Strategy::Ring, &[0, 1], 0));
    let cap = cap(VOLUME, Epoch(1));
    let other = world.send_routed(WRITER, cap, append_body(8192), Some(hasty), &data());
    while world.step() {}
    world.node.handle(NOW_NS + ms, NodeEvent::Tick);
    world.pump();
    assert_eq!(world.take(other), outcomes(&[(0, Ok(())), (1, lost(0, 1))]));
    assert_eq!((world.take(mine), world.closed.len()), (None, 0));
    // Node 1 answers shortly before the time of the first request is over, and lacks another one.
    let mut late = route(Strategy::Ring, &[0, 1], 0);
    late.wait_ms = 10;
    let at_ns = NOW_NS + limits::LINK_SILENCE_NS - ms;
    let body = append_body(16384);
    let request = world.routed(cap, body, Some(late), &data());
    let third = request.tag;
    world.node.handle(at_ns, NodeEvent::Request { peer: WRITER, request });
    world.pump();
    while world.step() {}
    let reply = Reply { tag: world.relayed[0].1.tag, result: done(&[1]), slots_free: 0 };
    let from = world.relayed[0].0.clone();
    world.node.handle(at_ns, NodeEvent::Relayed { from, reply });
    world.node.handle(at_ns + 10 * ms, NodeEvent::Tick);
    world.pump();
    assert_eq!(world.take(mine), Some(done(&[0, 1])));
    assert_eq!(world.take(third), outcomes(&[(0, Ok(())), (1, lost(0, 1))]));
    assert!(world.closed.is_empty(), "node 1 has answered");
    world.settle();
}

/// After a silence the node does not keep payloads for the silent node again and again.
#[test]
fn a_silent_node_rests() {
    let mut world = world();
    let ring = || route(Strategy::Ring, &[0, 1], 0);
    append(&mut world, WRITER, ring());
    while world.step() {}
    let mut now_ns = world.node.deadline_ns().expect("it waits");
    world.node.handle(now_ns, NodeEvent::Tick);
    world.pump();
    assert_eq!(world.closed.len(), 1);
    for (rest_ns, passed_on) in [(limits::LINK_REST_NS - 1, 0), (1, 1)] {
        now_ns += rest_ns;
        let request = world.routed(cap(VOLUME, Epoch(1)), append_body(0), Some(ring()), &data());
        let tag = request.tag;
        world.node.handle(now_ns, NodeEvent::Request { peer: WRITER, request });
        world.pump();
        while world.step() {}
        assert_eq!(world.relayed.len(), 1 + passed_on);
        let answer = world.take(tag);
        match passed_on {
            0 => assert_eq!(answer, outcomes(&[(0, Ok(())), (1, lost(0, 1))])),
            _ => assert_eq!(answer, None),
        }
    }
}

/// The node was stopped, and the answers lie in its sockets.
#[test]
fn a_node_forgives_others_its_own_delay() {
    let mut world = world();
    let ring = || route(Strategy::Ring, &[0, 1], 0);
    let [first, second] = [0, 8192].map(|lsn| {
        let cap = cap(VOLUME, Epoch(1));
        world.send_routed(WRITER, cap, append_body(lsn), Some(ring()), &data())
    });
    while world.step() {}
    let due_ns = world.node.deadline_ns().expect("it waits");
    let late_ns = due_ns + 2 * limits::OWN_DELAY_NS;
    for (index, tag) in [(0, first), (1, second)] {
        let reply = Reply { tag: world.relayed[index].1.tag, result: done(&[1]), slots_free: 0 };
        let from = world.relayed[index].0.clone();
        world.node.handle(late_ns, NodeEvent::Relayed { from, reply });
        world.pump();
        assert_eq!(world.take(tag), Some(done(&[0, 1])), "{index}");
    }
    // Without an answer the time is over soon after.
    let request = world.routed(cap(VOLUME, Epoch(1)), append_body(0), Some(ring()), &data());
    let third = request.tag;
    world.node.handle(late_ns, NodeEvent::Request { peer: WRITER, request });
    world.pump();
    while world.step() {}
    let late_ns = world.node.deadline_ns().expect("it waits") + 2 * limits::OWN_DELAY_NS;
    world.node.handle(late_ns, NodeEvent::Tick);
    assert_eq!(world.node.deadline_ns(), Some(late_ns + limits::OWN_DELAY_NS));
    // It is late again, as always on a machine that has too much to do, and that counts no more.
    world.node.handle(late_ns + 3 * limits::OWN_DELAY_NS, NodeEvent::Tick);
    world.pump();
    assert_eq!(world.take(third), outcomes(&[(0, Ok(())), (1, lost(0, 1))]));
    world.settle();
}
