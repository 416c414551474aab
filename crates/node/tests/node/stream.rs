//! Parity that the nodes make while they store the data. The node under test is node 0; the test
//! answers for the others.

use crate::world::{NOW_NS, World, cap, config};
use bytes::Bytes;
use fieldstone_gf::field::mul;
use fieldstone_node::{ControlEvent, NodeEvent, ParityMemory, PeerId, limits};
use fieldstone_proto::route::WAIT_MS_MAX;
use fieldstone_proto::{
    BLOCK_BYTES, Column, Content, Epoch, Factors, Fragments, JournalGen, Lsn, NodeError, NodeIndex,
    Outcome, Pass, Replica, Reply, ReplyBody, RequestBody, Route, SealMeta, SegmentId, ShardIndex,
    ShardInfo, Strategy, Tag, VolumeId, crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

pub const VOLUME: VolumeId = VolumeId(5);
pub const OTHER: VolumeId = VolumeId(6);
pub const SEGMENT: SegmentId = SegmentId(1 << 40);
pub const PARITY: ShardIndex = ShardIndex(4);
pub const WRITER: PeerId = PeerId(1);
const AGAIN: PeerId = PeerId(2);
pub const PASS: Pass = Pass(4);
pub const WAIT_MS: u32 = 1000;
pub const LEN_BYTES: usize = 2 * BLOCK_BYTES;

/// The link of data node `column`.
pub fn link(column: u8) -> PeerId {
    PeerId(900 + u64::from(column))
}

/// The volume has epoch 1, and its writer has announced its pass.
pub fn know(world: &mut World, volume: VolumeId) {
    let capability = cap(volume, Epoch(1));
    for body in [RequestBody::Fence { takeover: false }, RequestBody::AdmitRelays { pass: PASS }] {
        assert!(world.call(WRITER, capability, body, &Bytes::new()).is_ok());
    }
}

/// The same with little memory for sums, and for products.
pub fn world_with(half_bytes: usize) -> World {
    world_sharing(ParityMemory::new(2 * half_bytes))
}

/// A node with this memory for parity, and with two volumes as in [`world`].
pub fn world_sharing(parity_memory: ParityMemory) -> World {
    let config = fieldstone_node::NodeConfig { parity_memory, ..config(4 * LEN_BYTES as u32, 8) };
    let mut world = World::new(config, ChaCha8Rng::seed_from_u64(1));
    [VOLUME, OTHER].iter().for_each(|volume| know(&mut world, *volume));
    world
}

/// A node with two volumes at epoch 1 that take writes from others.
pub fn world() -> World {
    world_with(limits::PARITY_MEMORY_BYTES / 2)
}

pub fn admit(world: &mut World, peer: PeerId, pass: Pass) -> Result<ReplyBody, NodeError> {
    let tag =
        world.send(peer, cap(VOLUME, Epoch(1)), RequestBody::AdmitRelays { pass }, &Bytes::new());
    world.take(tag).expect("it is answered at once")
}

/// Bytes that depend on the column.
pub fn data(column: u8) -> Bytes {
    (0..LEN_BYTES).map(|at| (at / 5 + at * (usize::from(column) + 3)) as u8).collect()
}

fn times(factor: u8, data: &[u8]) -> Vec<u8> {
    data.iter().map(|byte| mul(factor, *byte)).collect()
}

/// The sum of the columns' data.
pub fn sum(columns: u8) -> Vec<u8> {
    let mut sum = vec![0; LEN_BYTES];
    for column in 0..columns {
        sum.iter_mut().zip(&data(column)).for_each(|(sum, byte)| *sum ^= byte);
    }
    sum
}

/// A route from data node 7 to this node as the parity node, for column `index` of `count`.
pub fn route(index: u8, count: u8) -> Route {
    let replica = |node, shard| Replica {
        node: NodeIndex(node),
        pass: PASS,
        shard,
        address: Bytes::from(format!("unix:/n/{node}")),
    };
    let replicas = vec![replica(7, ShardIndex(index)), replica(0, PARITY)];
    let factors = Factors::Scalars(Bytes::from_static(&[1]));
    let content = Content::Column(Column { index, count, factors });
    Route {
        strategy: Strategy::Primary,
        rank: 1,
        wait_ms: WAIT_MS,
        replicas,
        content,
        ..Route::default()
    }
}

pub fn write(offset_bytes: u32, data: &[u8], seal: Option<SealMeta>) -> RequestBody {
    RequestBody::ShardWrite {
        segment: SEGMENT,
        shard: PARITY,
        offset_bytes,
        checksums: crc32c_blocks(data),
        seal,
        data_first: false,
    }
}

pub fn contribute_for(
    world: &mut World,
    volume: VolumeId,
    offset_bytes: u32,
    index: u8,
    count: u8,
) -> Tag {
    let data = data(index);
    let (body, route) = (write(offset_bytes, &data, None), route(index, count));
    world.send_routed(link(index), cap(volume, Epoch(1)), body, Some(route), &data)
}

pub fn contribute_at(world: &mut World, offset_bytes: u32, index: u8, count: u8) -> Tag {
    contribute_for(world, VOLUME, offset_bytes, index, count)
}

fn contribute(world: &mut World, index: u8, count: u8) -> Tag {
    contribute_at(world, 0, index, count)
}

/// The answer of the node to a contribution.
pub fn own(result: Result<(), NodeError>) -> Option<Result<ReplyBody, NodeError>> {
    Some(Ok(ReplyBody::Outcomes(vec![Outcome { node: NodeIndex(0), result }])))
}

pub fn read(world: &mut World, offset_bytes: u32) -> Result<ReplyBody, NodeError> {
    let (segment, shard, len_bytes) = (SEGMENT, PARITY, LEN_BYTES as u32);
    let body = RequestBody::ShardRead { segment, shard, offset_bytes, len_bytes };
    world.call(WRITER, cap(VOLUME, Epoch(1)), body, &Bytes::new())
}

/// The factors of column 2 in the parity shards 4 and 5.
const FACTORS: [u8; 2] = [1, 0x8e];

/// The write of column 2 to this node, which passes its products on to the parity nodes.
pub fn data_write(parity: &[u16], data: &[u8]) -> (RequestBody, Route) {
    let replica = |node, shard| Replica {
        node: NodeIndex(node),
        pass: PASS,
        shard: ShardIndex(shard),
        address: Bytes::new(),
    };
    let parity = parity.iter().zip(4..).map(|(node, shard)| replica(*node, shard));
    let replicas: Vec<Replica> = std::iter::once(replica(0, 2)).chain(parity).collect();
    let factors = Factors::Scalars(Bytes::copy_from_slice(&FACTORS[..replicas.len() - 1]));
    let content = Content::Column(Column { index: 2, count: 4, factors });
    let mut body = write(0, data, None);
    if let RequestBody::ShardWrite { shard, .. } = &mut body {
        *shard = ShardIndex(2);
    }
    (
        body,
        Route {
            strategy: Strategy::Primary,
            rank: 0,
            wait_ms: WAIT_MS,
            replicas,
            content,
            ..Route::default()
        },
    )
}

fn send_data(world: &mut World, parity: &[u16]) -> Tag {
    let data = data(2);
    let (body, route) = data_write(parity, &data);
    world.send_routed(WRITER, cap(VOLUME, Epoch(1)), body, Some(route), &data)
}

/// The parity node to which the node passed its request number `index` on answers.
fn answer(world: &mut World, index: usize, result: Result<(), NodeError>) {
    let (from, request) = &world.relayed[index];
    let outcome = Outcome { node: from.node, result };
    let (from, tag) = (from.clone(), request.tag);
    let reply = Reply { tag, result: Ok(ReplyBody::Outcomes(vec![outcome])), slots_free: 0 };
    world.node.handle(NOW_NS, NodeEvent::Relayed { from, reply });
    world.pump();
}

/// Time passes up to the node's next deadline.
pub fn expire(world: &mut World) {
    let due_ns = world.node.deadline_ns().expect("it waits");
    world.node.handle(due_ns - 1, NodeEvent::Tick);
    world.pump();
    assert!(world.node.deadline_ns().is_some());
    world.node.handle(due_ns, NodeEvent::Tick);
    world.pump();
}

#[test]
fn a_data_node_passes_on_the_products_of_its_bytes() {
    let mut world = world();
    let replica = |node, shard| Replica {
        node: NodeIndex(node),
        pass: PASS,
        shard: ShardIndex(shard),
        address: Bytes::new(),
    };
    let factors = Factors::Scalars(Bytes::from_static(&[1, 0x8e]));
    let column = Column { index: 2, count: 4, factors };
    let route = Route {
        strategy: Strategy::Primary,
        rank: 0,
        wait_ms: WAIT_MS,
        replicas: vec![replica(0, 2), replica(8, 4), replica(9, 5)],
        content: Content::Column(column.clone()),
        fragments: Fragments::Whole,
    };
    let seal = Some(SealMeta { shard_bytes: LEN_BYTES as u32, ..SealMeta::default() });
    let (data, capability) = (data(2), cap(VOLUME, Epoch(1)));
    let body = |shard: u8, data: &[u8]| match write(0, data, seal) {
        RequestBody::ShardWrite { segment, offset_bytes, checksums, seal, data_first, .. } => {
            let shard = ShardIndex(shard);
            RequestBody::ShardWrite { segment, shard, offset_bytes, checksums, seal, data_first }
        }
        other => other,
    };
    let tag = world.send_routed(WRITER, capability, body(2, &data), Some(route.clone()), &data);
    let [first, second] = &world.relayed[..] else { panic!("two parity nodes") };
    for ((to, request), (node, shard, factor)) in [(first, (8, 4, 1)), (second, (9, 5, 0x8e))] {
        assert_eq!(to.node, NodeIndex(node));
        let product = times(factor, &data);
        assert_eq!(request.payload, [Bytes::from(product.clone())]);
        assert_eq!(request.body, body(shard, &product), "with the checksums of the product");
        assert_eq!(request.capability, capability);
        let passed = request.route.as_ref().expect("a route");
        assert_eq!((passed.rank > 0, passed.column()), (true, Some(&column)));
    }
    for index in 0..2 {
        let (from, request) = &world.relayed[index];
        let outcome = Outcome { node: from.node, result: Ok(()) };
        let (from, tag) = (from.clone(), request.tag);
        let reply = Reply { tag, result: Ok(ReplyBody::Outcomes(vec![outcome])), slots_free: 0 };
        world.node.handle(NOW_NS, NodeEvent::Relayed { from, reply });
        world.pump();
        assert_eq!(world.take(tag), None, "its own disk has not ended");
    }
    world.settle();
    let Some(Ok(ReplyBody::Outcomes(outcomes))) = world.take(tag) else { panic!("outcomes") };
    assert_eq!(outcomes.len(), 3);
    assert!(outcomes.iter().all(|outcome| outcome.result == Ok(())));
    // The node's own shard is the data.
    let (segment, shard, len_bytes) = (SEGMENT, ShardIndex(2), LEN_BYTES as u32);
    let body_read = RequestBody::ShardRead { segment, shard, offset_bytes: 0, len_bytes };
    let found = world.call(WRITER, capability, body_read, &Bytes::new());
    assert_eq!(found, Ok(ReplyBody::Data(data.clone())));
    // A node that does not check payloads otherwise does it here, too: parity of other bytes than
    // those of the shard would be worse than none.
    let damaged = Bytes::from(times(3, &data));
    let tag = world.send_routed(WRITER, capability, body(2, &data), Some(route), &damaged);
    assert_eq!(world.take(tag), own(Err(NodeError::Corrupt { offset_bytes: 0 })));
    assert_eq!(world.relayed.len(), 2, "nothing is passed on");
    world.settle();
}

#[test]
fn the_last_contribution_writes_the_sum_and_answers_all() {
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mut world = world();
        let mut tags: Vec<Tag> = Vec::new();
        for index in order {
            assert!(tags.iter().all(|tag| world.take(*tag).is_none()));
            tags.push(contribute(&mut world, index, 3));
        }
        assert!(tags.iter().all(|tag| world.take(*tag).is_none()), "it is not in the file");
        assert_eq!(world.node.gathered(), (1, LEN_BYTES));
        while world.step() {}
        assert!(tags.iter().all(|tag| world.take(*tag) == own(Ok(()))));
        assert_eq!(read(&mut world, 0), Ok(ReplyBody::Data(sum(3).into())));
        assert_eq!(world.node.gathered(), (1, 0));
        world.settle();
    }
}

#[test]
fn contributions_complete_a_shard() {
    let mut world = world();
    let meta = SealMeta { shard_bytes: LEN_BYTES as u32, lsn_end: Lsn(9), ..SealMeta::default() };
    let tags: Vec<Tag> = (0..2)
        .map(|index| {
            let (data, capability) = (data(index), cap(VOLUME, Epoch(1)));
            let body = write(0, &data, Some(meta));
            world.send_routed(link(index), capability, body, Some(route(index, 2)), &data)
        })
        .collect();
    world.settle();
    assert!(tags.iter().all(|tag| world.take(*tag) == own(Ok(()))));
    let list = RequestBody::ShardList { from: SegmentId(0) };
    let listed = world.call(WRITER, cap(VOLUME, Epoch(1)), list, &Bytes::new());
    let shards = vec![ShardInfo { segment: SEGMENT, shard: PARITY, meta }];
    assert_eq!(listed, Ok(ReplyBody::Shards { shards, next: None }));
    assert_eq!(read(&mut world, 0), Ok(ReplyBody::Data(sum(2).into())));
}

#[test]
fn no_contribution_counts_twice_and_those_of_another_kind_are_refused() {
    let mut world = world();
    let refused = |world: &mut World, tag| {
        let Some(Ok(ReplyBody::Outcomes(outcomes))) = world.take(tag) else { return false };
        matches!(outcomes[..], [Outcome { result: Err(NodeError::Invalid(_)), .. }])
    };
    let first = contribute(&mut world, 0, 3);
    let twice = contribute(&mut world, 0, 3);
    assert!(refused(&mut world, twice));
    let other_count = contribute(&mut world, 1, 2);
    assert!(refused(&mut world, other_count));
    let meta = SealMeta { shard_bytes: LEN_BYTES as u32, ..SealMeta::default() };
    let (data, body) = (data(1), write(0, &data(1), Some(meta)));
    let sealing = world.send_routed(link(1), cap(VOLUME, Epoch(1)), body, Some(route(1, 3)), &data);
    assert!(refused(&mut world, sealing));
    let rest = [1, 2].map(|index| contribute(&mut world, index, 3));
    world.settle();
    assert!([first, rest[0], rest[1]].iter().all(|tag| world.take(*tag) == own(Ok(()))));
    assert_eq!(read(&mut world, 0), Ok(ReplyBody::Data(sum(3).into())));
}

#[test]
fn a_silent_data_node_costs_the_others_a_bounded_time() {
    let mut world = world();
    let tags = [0, 2].map(|index| contribute(&mut world, index, 3));
    let due_ns = NOW_NS + u64::from(WAIT_MS) / 2 * 1_000_000;
    assert_eq!(world.node.deadline_ns(), Some(due_ns), "before the data nodes' wait ends");
    expire(&mut world);
    assert!(tags.iter().all(|tag| world.take(*tag) == own(Err(NodeError::Busy))));
    assert_eq!((world.node.gathered(), world.node.deadline_ns()), ((0, 0), None));
    let (volume, segment) = (VOLUME, SEGMENT);
    let told = ControlEvent::SumGivenUp { volume, segment, arrived: 2, count: 3 };
    assert_eq!(world.node.next_control_event(), Some(told));
    // The late one waits alone, and is given up, too.
    let late = contribute(&mut world, 1, 3);
    expire(&mut world);
    assert_eq!(world.take(late), own(Err(NodeError::Busy)));
    world.settle();
    assert!(read(&mut world, 0).is_err(), "nothing was written");
    // However long a writer wants to wait, the memory comes back.
    let mut patient = route(0, 3);
    patient.wait_ms = u32::MAX;
    let (data, capability) = (data(0), cap(VOLUME, Epoch(1)));
    world.send_routed(link(0), capability, write(0, &data, None), Some(patient), &data);
    let due_ns = NOW_NS + u64::from(WAIT_MS_MAX) / 2 * 1_000_000;
    assert_eq!(world.node.deadline_ns(), Some(due_ns));
    expire(&mut world);
    world.settle();
}

#[test]
fn a_new_pass_and_the_loss_of_the_writer_end_what_was_gathered() {
    let mut world = world();
    let busy = own(Err(NodeError::Busy));
    let tags = [0, 2].map(|index| contribute(&mut world, index, 3));
    assert!(admit(&mut world, WRITER, Pass(PASS.0 + 1)).is_ok());
    assert!(tags.iter().all(|tag| world.take(*tag) == busy));
    assert_eq!(world.node.gathered(), (0, 0));
    let late = contribute(&mut world, 1, 3);
    assert_eq!(world.take(late), Some(Err(NodeError::Busy)), "it has the old pass");
    assert!(admit(&mut world, WRITER, PASS).is_ok());
    let tag = contribute(&mut world, 0, 3);
    world.node.handle(NOW_NS, NodeEvent::PeerLost { peer: WRITER });
    world.pump();
    assert_eq!(world.take(tag), busy);
    world.settle();
    assert_eq!(world.node.deadline_ns(), None);
}

/// The node was stopped, and the other contributions lie in its sockets.
#[test]
fn a_parity_node_forgives_others_its_own_delay() {
    let mut world = world();
    let handle = |world: &mut World, now_ns: u64, index: u8| {
        let (data, capability) = (data(index), cap(VOLUME, Epoch(1)));
        let (body, route) = (write(0, &data, None), route(index, 2));
        let request = world.routed(capability, body, Some(route), &data);
        let tag = request.tag;
        world.node.handle(now_ns, NodeEvent::Request { peer: link(index), request });
        world.pump();
        tag
    };
    let first = contribute(&mut world, 0, 2);
    let due_ns = world.node.deadline_ns().expect("it waits");
    let late_ns = due_ns + 2 * limits::OWN_DELAY_NS;
    world.node.handle(late_ns, NodeEvent::Tick);
    world.pump();
    assert_eq!(world.node.deadline_ns(), Some(late_ns + limits::OWN_DELAY_NS));
    let last = handle(&mut world, late_ns + 1, 1);
    while world.step() {}
    assert_eq!((world.take(first), world.take(last)), (own(Ok(())), own(Ok(()))));
    // Without it the time is over soon after: each wait is forgiven once.
    let alone = handle(&mut world, late_ns, 0);
    let late_ns = world.node.deadline_ns().expect("it waits") + 2 * limits::OWN_DELAY_NS;
    world.node.handle(late_ns, NodeEvent::Tick);
    assert_eq!(world.node.deadline_ns(), Some(late_ns + limits::OWN_DELAY_NS));
    world.node.handle(late_ns + 3 * limits::OWN_DELAY_NS, NodeEvent::Tick);
    world.pump();
    assert_eq!(world.take(alone), own(Err(NodeError::Busy)));
    world.settle();
}

/// A node may be a data node and a parity node of the same writer. When the writer is gone, neither
/// what it has passed on nor what it has gathered keeps an entry.
#[test]
fn a_writer_that_is_gone_leaves_neither_waits_nor_sums() {
    for own_first in [false, true] {
        let mut world = world();
        let gathers = contribute(&mut world, 0, 2);
        let passes_on = send_data(&mut world, &[8, 9]);
        assert_eq!(world.relayed.len(), 2);
        if own_first {
            while world.step() {}
        }
        assert!(world.node.in_flight().0 == 2 && world.node.gathered().1 == LEN_BYTES);
        world.node.handle(NOW_NS, NodeEvent::PeerLost { peer: WRITER });
        while world.step() {}
        world.pump();
        assert_eq!((world.node.in_flight(), world.node.deadline_ns()), ((0, 0), None));
        assert_eq!(world.node.gathered(), (0, 0));
        assert_eq!(world.take(gathers), own(Err(NodeError::Busy)), "the data node is there");
        assert_eq!(world.take(passes_on), None);
        // Late answers and late contributions count for nothing.
        answer(&mut world, 0, Ok(()));
        let late = contribute(&mut world, 1, 2);
        assert_eq!(world.take(late), Some(Err(NodeError::Busy)), "no writer, no pass");
        world.settle();
    }
}

/// A parity node that gets nothing does not shift the products of those behind it.
#[test]
fn products_go_to_the_parity_nodes_that_may_get_something() {
    let mut world = world();
    send_data(&mut world, &[8]);
    while world.step() {}
    let silent_ns = NOW_NS + limits::LINK_SILENCE_NS;
    world.node.handle(silent_ns, NodeEvent::Tick);
    // Past the node's own delay.
    world.node.handle(silent_ns + 2 * limits::OWN_DELAY_NS, NodeEvent::Tick);
    world.pump();
    assert_eq!((world.closed.len(), world.relayed.len()), (1, 1), "node 8 rests");
    let data = data(2);
    let (body, route) = data_write(&[8, 9], &data);
    let request = world.routed(cap(VOLUME, Epoch(1)), body, Some(route), &data);
    let tag = request.tag;
    world
        .node
        .handle(silent_ns + limits::LINK_REST_NS, NodeEvent::Request { peer: WRITER, request });
    world.pump();
    let (to, request) = &world.relayed[1];
    let product = times(FACTORS[1], &data);
    assert_eq!(
        (to.node, &request.payload[..]),
        (NodeIndex(9), &[Bytes::from(product.clone())][..])
    );
    let RequestBody::ShardWrite { shard, checksums, .. } = &request.body else { panic!("a write") };
    assert_eq!((*shard, &checksums[..]), (ShardIndex(5), &crc32c_blocks(&product)[..]));
    assert_eq!(world.relayed.len(), 2);
    answer(&mut world, 1, Ok(()));
    world.settle();
    let lost = Err(NodeError::NotPassedOn { from: NodeIndex(0), to: NodeIndex(8) });
    let outcome = |(node, result)| Outcome { node: NodeIndex(node), result };
    let outcomes = [(0, Ok(())), (8, lost), (9, Ok(()))].map(outcome).to_vec();
    assert_eq!(world.take(tag), Some(Ok(ReplyBody::Outcomes(outcomes))));
}

/// A writer chooses the factors. One that is zero gives zeroes, and not what the memory held.
#[test]
fn a_factor_of_zero_contributes_zeroes() {
    let mut world = world();
    let data = data(2);
    let (body, mut route) = data_write(&[8, 9], &data);
    if let Content::Column(column) = &mut route.content {
        column.factors = Factors::Scalars(Bytes::from_static(&[0, 0]));
    }
    world.send_routed(WRITER, cap(VOLUME, Epoch(1)), body, Some(route), &data);
    assert_eq!(world.relayed.len(), 2);
    for index in 0..2 {
        let request = &world.relayed[index].1;
        assert_eq!(request.payload, [Bytes::from(vec![0; LEN_BYTES])]);
        answer(&mut world, index, Ok(()));
    }
    world.settle();
}

/// A data node that is gone has contributed: its answer leaves no more, but the others' parity is
/// made.
#[test]
fn a_link_that_breaks_after_a_contribution_changes_nothing() {
    let mut world = world();
    let gone = contribute(&mut world, 0, 2);
    world.node.handle(NOW_NS, NodeEvent::PeerLost { peer: link(0) });
    let last = contribute(&mut world, 1, 2);
    world.settle();
    assert_eq!((world.take(gone), world.take(last)), (None, own(Ok(()))));
    assert_eq!(read(&mut world, 0), Ok(ReplyBody::Data(sum(2).into())));
}

#[test]
fn a_fence_waits_for_the_write_of_a_sum_only() {
    let mut world = world();
    let waiting = contribute_at(&mut world, 0, 0, 2);
    let complete = [0, 1].map(|index| contribute_at(&mut world, LEN_BYTES as u32, index, 2));
    let fence = RequestBody::Fence { takeover: true };
    let fence = world.send(AGAIN, cap(VOLUME, Epoch(2)), fence, &Bytes::new());
    assert_eq!(world.take(fence), None);
    while world.step() {}
    assert!(complete.iter().all(|tag| world.take(*tag) == own(Ok(()))));
    assert!(matches!(world.take(fence), Some(Ok(ReplyBody::VolumeState(_)))));
    assert_eq!(world.take(waiting), None);
    let last = contribute_at(&mut world, 0, 1, 2);
    assert!(matches!(world.take(last), Some(Err(NodeError::Fenced { .. }))));
    expire(&mut world);
    assert_eq!(world.take(waiting), own(Err(NodeError::Busy)));
    world.settle();
}

/// The node stores the sum of the contributions' checksums, so it notices damage on the way.
#[test]
fn damage_in_a_contribution_is_noticed_before_the_sum_is_stored() {
    let mut world = world();
    let (capability, route) = (cap(VOLUME, Epoch(1)), route(0, 2));
    let mut damaged = data(0).to_vec();
    damaged[BLOCK_BYTES + 7] ^= 1;
    let body = write(0, &data(0), None);
    let first = world.send_routed(link(0), capability, body, Some(route), &damaged.into());
    let last = contribute(&mut world, 1, 2);
    let corrupt = own(Err(NodeError::Corrupt { offset_bytes: BLOCK_BYTES as u32 }));
    assert_eq!((world.take(first), world.take(last)), (corrupt.clone(), corrupt));
    world.settle();
    assert!(read(&mut world, 0).is_err());
}

#[test]
fn only_writes_of_shards_have_a_column() {
    let mut world = world();
    let append = RequestBody::JournalAppend { generation: JournalGen(1), lsn: Lsn(0) };
    let (capability, route) = (cap(VOLUME, Epoch(1)), route(0, 2));
    let tag = world.send_routed(link(0), capability, append, Some(route), &data(0));
    assert!(matches!(world.take(tag), Some(Err(NodeError::Invalid(_)))));
    world.settle();
}
