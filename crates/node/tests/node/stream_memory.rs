//! Memory for parity: what a hostile client can make a node hold, and what the node does without
//! memory. The node under test is node 0; the test answers for the others.

use crate::stream::{
    LEN_BYTES, OTHER, PASS, SEGMENT, VOLUME, WAIT_MS, WRITER, admit, contribute_at, contribute_for,
    data, data_write, expire, know, link, own, read, route, sum, world, world_sharing, world_with,
    write,
};
use crate::world::{NOW_NS, World, cap, config};
use bytes::Bytes;
use fieldstone_node::{LinkTarget, NodeEvent, ParityMemory, limits};
use fieldstone_proto::{
    BLOCK_BYTES, Epoch, NodeError, NodeIndex, Outcome, Pass, Reply, ReplyBody, Request,
    RequestBody, SegmentId, ShardIndex, Tag, VolumeId, crc32c_blocks,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const DENIED: Result<(), NodeError> = Err(NodeError::Denied);

fn piece(number: u32) -> u32 {
    number * LEN_BYTES as u32
}

/// The sum of the payloads that still exist.
fn alive(relayed: &[(LinkTarget, Request)]) -> usize {
    relayed.iter().flat_map(|(_, request)| &request.payload).map(Bytes::len).sum()
}

/// Data node `column` has no memory for its contribution.
fn contribute_nothing(world: &mut World, offset_bytes: u32, column: u8, count: u8) -> Tag {
    let (body, route) = (write(offset_bytes, &[], None), route(column, count));
    world.send_routed(link(column), cap(VOLUME, Epoch(1)), body, Some(route), &Bytes::new())
}

/// Clients with capabilities to write send as much as a node takes, for parity nodes that never
/// answer and never take anything.
#[test]
fn products_for_silent_nodes_take_bounded_memory() {
    const SLOT_BYTES: usize = 64 * BLOCK_BYTES;
    const VOLUMES: u128 = 8;
    let half = 24 * SLOT_BYTES;
    let memory = ParityMemory::new(2 * half);
    let config = fieldstone_node::NodeConfig {
        parity_memory: memory.clone(),
        ..config(SLOT_BYTES as u32, 4096)
    };
    let mut world = World::new(config, ChaCha8Rng::seed_from_u64(1));
    let data = Bytes::from(vec![7; SLOT_BYTES]);
    let checksums = crc32c_blocks(&data);
    let (mut wanted, mut lacking) = (0, 0);
    (1..=VOLUMES).for_each(|volume| know(&mut world, VolumeId(volume)));
    for volume in (1..=VOLUMES).map(VolumeId) {
        for number in 0..limits::RELAYS_PER_VOLUME_MAX as u64 {
            let (_, mut route) = data_write(&[8, 9], &data);
            // Addresses of the client's own.
            for replica in &mut route.replicas[1..] {
                replica.address = Bytes::from(format!("unix:/{}/{}", volume.0, replica.node.0));
            }
            let body = RequestBody::ShardWrite {
                segment: SegmentId(number),
                shard: ShardIndex(2),
                offset_bytes: 0,
                checksums: checksums.clone(),
                seal: None,
                data_first: false,
            };
            world.send_routed(WRITER, cap(volume, Epoch(1)), body, Some(route), &data);
            while world.step() {}
            wanted += 2;
        }
        let of_volume = world.relayed.iter().filter(|(_, sent)| sent.capability.volume == volume);
        let of_volume: Vec<_> = of_volume.cloned().collect();
        assert!(alive(&of_volume) <= half / limits::PARITY_VOLUMES, "a quarter for each");
        lacking += of_volume.iter().filter(|(_, sent)| sent.payload.is_empty()).count();
        drop(of_volume);
        assert!(alive(&world.relayed) <= half);
        assert_eq!(memory.usage().products_bytes, alive(&world.relayed));
    }
    assert_eq!(memory.usage().products_bytes, half, "four volumes have used all of it");
    assert!(wanted > world.relayed.len() && lacking > 1000, "{wanted} {lacking}");
    assert_eq!(memory.usage().denied, lacking as u64);
    // The waits end. What the links have not sent still counts.
    while world.node.deadline_ns().is_some() {
        expire(&mut world);
    }
    while world.step() {}
    assert_eq!(world.node.in_flight(), (0, 0));
    assert_eq!(memory.usage().products_bytes, half);
    let sent = world.relayed.len() / 2;
    world.relayed.drain(..sent);
    assert_eq!(memory.usage().products_bytes, alive(&world.relayed));
    world.relayed.clear();
    assert_eq!(memory.usage().products_bytes, 0);
}

/// The nodes of a process share its memory, and the shares of volumes.
#[test]
fn nodes_of_a_process_share_the_memory() {
    let memory = ParityMemory::new(2 * limits::PARITY_VOLUMES * 4 * LEN_BYTES);
    let mut worlds: Vec<World> = (0..5)
        .map(|seed| {
            let parity_memory = memory.clone();
            let config =
                fieldstone_node::NodeConfig { parity_memory, ..config(4 * LEN_BYTES as u32, 8) };
            let mut world = World::new(config, ChaCha8Rng::seed_from_u64(seed));
            [VOLUME, OTHER].iter().for_each(|volume| know(&mut world, *volume));
            world
        })
        .collect();
    let tags: Vec<Tag> = worlds.iter_mut().map(|world| contribute_at(world, 0, 0, 2)).collect();
    let answers: Vec<_> =
        worlds.iter_mut().zip(&tags).map(|(world, tag)| world.take(*tag)).collect();
    assert_eq!(answers, [None, None, None, None, own(DENIED)]);
    assert_eq!(memory.usage().sums_bytes, 4 * LEN_BYTES);
    let other = contribute_for(&mut worlds[4], OTHER, 0, 0, 2);
    assert_eq!(worlds[4].take(other), None, "another volume has its own share");
    // A node that ends gives back what it has.
    worlds.remove(0);
    let later = contribute_at(&mut worlds[3], piece(1), 0, 2);
    assert_eq!(worlds[3].take(later), None);
    drop(worlds);
    assert_eq!((memory.usage().sums_bytes, memory.usage().denied), (0, 1));
}

/// A data node without memory for a product says so to the parity node, and does its own part.
#[test]
fn a_data_node_without_memory_passes_nothing_on_but_the_fact() {
    // Enough for one product for each parity node.
    let mut world = world_with(2 * limits::PARITY_VOLUMES * LEN_BYTES);
    let data = data(2);
    let (body, route) = data_write(&[9], &data);
    world.send_routed(WRITER, cap(VOLUME, Epoch(1)), body, Some(route), &data);
    let (slow, earlier) = world.relayed.pop().expect("a parity node");
    assert_eq!(earlier.payload.concat().len(), LEN_BYTES);
    let (body, route) = data_write(&[8, 9], &data);
    let tag = world.send_routed(WRITER, cap(VOLUME, Epoch(1)), body, Some(route), &data);
    let [(_, product), (to, nothing)] = &world.relayed[..] else { panic!("two parity nodes") };
    assert_eq!((product.payload.concat().len(), to.node), (LEN_BYTES, NodeIndex(9)));
    assert!(nothing.payload.is_empty());
    let RequestBody::ShardWrite { shard, checksums, .. } = &nothing.body else { panic!("a write") };
    assert_eq!((*shard, checksums.len()), (ShardIndex(5), 0));
    assert!(nothing.route.as_ref().is_some_and(|route| route.is_contribution()));
    let sent = [&(slow, earlier), &world.relayed[0], &world.relayed[1]];
    let sent = sent.map(|(from, request)| (from.clone(), request.tag));
    for ((from, tag), result) in sent.into_iter().zip([Ok(()), Ok(()), DENIED]) {
        let outcome = Outcome { node: from.node, result };
        let reply = Reply { tag, result: Ok(ReplyBody::Outcomes(vec![outcome])), slots_free: 0 };
        world.node.handle(NOW_NS, NodeEvent::Relayed { from, reply });
    }
    world.settle();
    let outcome = |(node, result)| Outcome { node: NodeIndex(node), result };
    let outcomes = [(0, Ok(())), (8, Ok(())), (9, DENIED)].map(outcome).to_vec();
    assert_eq!(world.take(tag), Some(Ok(ReplyBody::Outcomes(outcomes))));
    world.relayed.clear();
    let (body, route) = data_write(&[8], &data);
    world.send_routed(WRITER, cap(VOLUME, Epoch(1)), body, Some(route), &data);
    assert_eq!(alive(&world.relayed), LEN_BYTES, "there is memory again");
}

/// No data node waits for a sum that one of them does not contribute to.
#[test]
fn an_empty_contribution_ends_its_sum_and_no_other() {
    let mut world = world();
    let other = contribute_at(&mut world, piece(1), 0, 3);
    let first = contribute_at(&mut world, 0, 0, 3);
    let nothing = contribute_nothing(&mut world, 0, 1, 3);
    assert_eq!((world.take(first), world.take(nothing)), (own(DENIED), own(DENIED)));
    let late = contribute_at(&mut world, 0, 2, 3);
    assert_eq!(world.take(late), own(DENIED), "it would wait in vain");
    assert_eq!(world.node.gathered(), (0, LEN_BYTES));
    // The empty one comes first: the others need not wait either.
    for (column, count) in [(2, 3), (0, 3), (1, 3)] {
        let tag = match column {
            2 => contribute_nothing(&mut world, piece(2), column, count),
            _ => contribute_at(&mut world, piece(2), column, count),
        };
        assert_eq!(world.take(tag), own(DENIED), "column {column}");
    }
    // All have come, so a later attempt is welcome.
    let again: Vec<Tag> = (0..3).map(|column| contribute_at(&mut world, 0, column, 3)).collect();
    let rest = [1, 2].map(|column| contribute_at(&mut world, piece(1), column, 3));
    world.settle();
    assert!(again.iter().chain(&rest).all(|tag| world.take(*tag) == own(Ok(()))));
    assert_eq!(world.take(other), own(Ok(())));
    for number in [0, 1] {
        assert_eq!(read(&mut world, piece(number)), Ok(ReplyBody::Data(sum(3).into())));
    }
    assert!(read(&mut world, piece(2)).is_err());
}

/// The node knows of a denied sum for as long as data nodes may wait for it, which is longer than
/// it waits for them itself.
#[test]
fn a_late_contribution_to_a_denied_sum_is_denied() {
    let mut world = world();
    let nothing = contribute_nothing(&mut world, 0, 0, 3);
    assert_eq!(world.take(nothing), own(DENIED));
    let wait_ns = u64::from(WAIT_MS) * 1_000_000;
    world.now_ns += wait_ns / 2 + 1;
    let late = contribute_at(&mut world, 0, 1, 3);
    assert_eq!(world.take(late), own(DENIED));
    world.now_ns += wait_ns / 2;
    let again = contribute_at(&mut world, 0, 2, 3);
    assert_eq!(world.take(again), None, "a new sum");
    expire(&mut world);
    world.settle();
}

/// Only a contribution may be empty. A peer without a pass or a capability ends nothing.
#[test]
fn an_empty_write_needs_a_column_a_pass_and_a_capability() {
    let mut world = world();
    let waits = contribute_at(&mut world, 0, 0, 2);
    let (capability, none) = (cap(VOLUME, Epoch(1)), Bytes::new());
    let invalid = |result| matches!(result, Some(Err(NodeError::Invalid(_))));
    for route in [None, Some(data_write(&[8], &[]).1)] {
        let tag = world.send_routed(WRITER, capability, write(0, &[], None), route, &none);
        assert!(invalid(world.take(tag)));
    }
    let mut stale = route(1, 2);
    stale.replicas[1].pass = Pass(PASS.0 - 1);
    let tag = world.send_routed(link(1), capability, write(0, &[], None), Some(stale), &none);
    assert_eq!(world.take(tag), Some(Err(NodeError::Busy)));
    let forged = fieldstone_proto::Capability { epoch: Epoch(9), ..capability };
    let tag = world.send_routed(link(1), forged, write(0, &[], None), Some(route(1, 2)), &none);
    assert!(matches!(world.take(tag), Some(Err(NodeError::Capability(_)))));
    assert_eq!(world.take(waits), None);
    let last = contribute_at(&mut world, 0, 1, 2);
    world.settle();
    assert_eq!((world.take(waits), world.take(last)), (own(Ok(())), own(Ok(()))));
}

/// A volume may use a part of the memory for sums. A sum without memory costs the others nothing.
#[test]
fn a_volume_without_memory_for_a_sum_is_denied_this_sum() {
    let mut world = world_with(2 * LEN_BYTES * limits::PARITY_VOLUMES);
    let waiting = [0, 1].map(|number| contribute_at(&mut world, piece(number), 0, 2));
    let denied = contribute_for(&mut world, VOLUME, piece(2), 0, 2);
    assert_eq!(world.take(denied), own(DENIED));
    assert_eq!(world.node.gathered(), (0, 2 * LEN_BYTES));
    let other = contribute_for(&mut world, OTHER, 0, 0, 2);
    assert_eq!(world.take(other), None);
    let last = contribute_at(&mut world, piece(1), 1, 2);
    assert_eq!(world.node.gathered(), (1, 3 * LEN_BYTES), "until the sum is in the file");
    let denied = contribute_at(&mut world, piece(3), 0, 2);
    assert_eq!(world.take(denied), own(DENIED), "the sum still has the memory");
    while world.step() {}
    assert_eq!(world.node.gathered(), (1, 2 * LEN_BYTES));
    assert_eq!((world.take(waiting[1]), world.take(last)), (own(Ok(())), own(Ok(()))));
    // There is room again. The other contributions to the denied sums come back all the same.
    for number in [2, 3] {
        let late = contribute_at(&mut world, piece(number), 1, 2);
        assert_eq!(world.take(late), own(DENIED));
        assert_eq!(world.node.gathered(), (1, 2 * LEN_BYTES));
    }
    let later = contribute_at(&mut world, piece(2), 0, 2);
    assert_eq!(world.take(later), None);
    expire(&mut world);
    for tag in [waiting[0], other, later] {
        assert_eq!(world.take(tag), own(Err(NodeError::Busy)));
    }
    assert_eq!(world.node.gathered(), (1, 0));
    world.settle();
}

#[test]
fn all_volumes_share_the_memory_for_sums() {
    let mut world = world_with(limits::PARITY_VOLUMES * LEN_BYTES);
    let volumes = [VOLUME, OTHER, VolumeId(7), VolumeId(8), VolumeId(9)];
    volumes[2..].iter().for_each(|volume| know(&mut world, *volume));
    assert_eq!(volumes.len(), limits::PARITY_VOLUMES + 1);
    let tags = volumes.map(|volume| contribute_for(&mut world, volume, 0, 0, 2));
    let (last, first) = tags.split_last().expect("five");
    assert!(first.iter().all(|tag| world.take(*tag).is_none()));
    assert_eq!(world.take(*last), own(DENIED));
    expire(&mut world);
    world.settle();
}

/// Contributions that wait are entries of the request table.
#[test]
fn one_volume_has_a_bounded_number_of_contributions_that_wait() {
    let memory = ParityMemory::new(limits::PARITY_MEMORY_BYTES);
    let mut world = world_sharing(memory.clone());
    let most = limits::GATHERING_PER_VOLUME_MAX;
    let count = u8::MAX;
    let send = |world: &mut World, at: usize| {
        contribute_for(world, VOLUME, piece(at as u32 / 254), (at % 254) as u8, count)
    };
    let tags: Vec<Tag> = (0..most).map(|at| send(&mut world, at)).collect();
    assert_eq!(world.node.in_flight().0, most);
    let more = send(&mut world, most);
    assert_eq!(world.take(more), own(DENIED));
    assert_eq!(memory.usage().denied, 0, "it is not the memory that lacks");
    // So the sum is given up, and what was added with it.
    assert!(tags[2 * 254..].iter().all(|tag| world.take(*tag) == own(DENIED)));
    assert_eq!(world.node.in_flight().0, 2 * 254);
    let other = contribute_for(&mut world, OTHER, 0, 0, 2);
    assert_eq!(world.take(other), None, "other volumes have room");
    for at in 3 * 254..3 * 254 + most - 2 * 254 {
        assert!({
            let tag = send(&mut world, at);
            world.take(tag).is_none()
        });
    }
    // The last contribution to a piece does not wait, so it is welcome.
    let last = contribute_for(&mut world, VOLUME, 0, 254, count);
    while world.step() {}
    assert_eq!(world.take(last), own(Ok(())));
    assert!(tags[..254].iter().all(|tag| world.take(*tag) == own(Ok(()))));
    let more = send(&mut world, 3 * 254 + 100);
    assert_eq!(world.take(more), None);
    expire(&mut world);
    world.settle();
    assert_eq!(read(&mut world, 0), Ok(ReplyBody::Data(sum(count).into())));
}

/// A client that has many sums denied makes the node remember a bounded number of them. For the
/// others the writer has to announce a new pass, which ends what waits.
#[test]
fn a_node_remembers_a_bounded_number_of_denied_sums() {
    let mut world = world_with(0);
    let deny = |world: &mut World, segment: u64, column: u8| {
        let data = data(column);
        let mut body = write(0, &data, None);
        if let RequestBody::ShardWrite { segment: to, .. } = &mut body {
            *to = SegmentId(SEGMENT.0 + segment);
        }
        let route = route(column, 3);
        let capability = cap(VOLUME, Epoch(1));
        let tag = world.send_routed(link(column), capability, body, Some(route), &data);
        world.take(tag)
    };
    let most = limits::DENIED_SUMS_PER_VOLUME_MAX as u64;
    for segment in 0..most {
        assert_eq!(deny(&mut world, segment, 0), own(DENIED));
    }
    assert_eq!(deny(&mut world, most, 0), own(Err(NodeError::Busy)));
    // The rest of a sum makes room for another one.
    assert_eq!(deny(&mut world, 0, 1), own(DENIED));
    assert_eq!(deny(&mut world, most, 0), own(Err(NodeError::Busy)));
    assert_eq!(deny(&mut world, 0, 2), own(DENIED));
    assert_eq!(deny(&mut world, most, 0), own(DENIED));
    // So does a new pass.
    assert!(admit(&mut world, WRITER, Pass(PASS.0 + 1)).is_ok());
    assert!(admit(&mut world, WRITER, PASS).is_ok());
    for segment in 0..most {
        assert_eq!(deny(&mut world, segment, 0), own(DENIED));
    }
    // And time.
    assert_eq!(deny(&mut world, most, 0), own(Err(NodeError::Busy)));
    world.now_ns += 1_000_000_000;
    assert_eq!(deny(&mut world, most, 0), own(DENIED));
    world.settle();
}
