//! Groups step by step: the test answers for the nodes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_accel::{Job, JobId, Shard};
use fieldstone_block::Nanos;
use fieldstone_proto::{
    BLOCK_BYTES, JournalGen, NodeError, Outcome, ReplyBody, RequestBody, SealMeta, SegmentKind,
    crc32c_blocks,
};

use super::*;
use crate::script::{JOURNAL, Script, Sent};
use crate::segment::{SegmentIndex, State};
use crate::status::NodeHealth;

/// Length of a shard's part of what `write_rows` writes.
const PART_BYTES: usize = 4 * BLOCK_BYTES;

/// A volume rs:4+2 on eight nodes that replicates in this way. The nodes have confirmed its passes.
fn script(strategy: Strategy) -> Script {
    let mut script = Script::serving(8);
    script.core(|core| {
        core.config.replicate = strategy;
        core.nodes.iter_mut().for_each(|node| node.relay.reach = Reach::Here);
        let all: Vec<NodeIndex> = (0..8).map(NodeIndex).collect();
        assert!(!core.are_admitted(&all));
    });
    for sent in script.sent() {
        script.done(&sent);
    }
    script
}

fn is_shard(sent: &Sent) -> bool {
    matches!(sent.request.body, RequestBody::ShardWrite { .. })
}

fn is_pass(sent: &Sent) -> bool {
    matches!(sent.request.body, RequestBody::AdmitRelays { .. })
}

/// The shards of a write by rank: those of its route, or its own.
fn shards(sent: &Sent) -> Vec<u8> {
    match (&sent.request.route, &sent.request.body) {
        (Some(route), _) => route.replicas.iter().map(|replica| replica.shard.0).collect(),
        (None, RequestBody::ShardWrite { shard, .. }) => vec![shard.0],
        _ => panic!("{:?}", sent.request.body),
    }
}

/// The shards of each of these writes.
fn all_shards(sent: &[Sent]) -> Vec<Vec<u8>> {
    sent.iter().map(shards).collect()
}

/// The nodes of a write's route.
fn nodes(sent: &Sent) -> Vec<NodeIndex> {
    let route = sent.request.route.as_ref().expect("a route");
    route.replicas.iter().map(|replica| replica.node).collect()
}

fn codes(script: &Script) -> usize {
    let codes = |(_, job): &&(JobId, Job)| matches!(job, Job::Code { .. });
    script.jobs.iter().filter(codes).count()
}

/// The nodes of a route have the write, but for these ranks, which the head did not reach. Without
/// a route, the node has it.
fn answer(script: &mut Script, sent: &Sent, not_reached: &[usize]) {
    if sent.request.route.is_none() {
        return script.done(sent);
    }
    let outcome = |(rank, node): (usize, NodeIndex)| Outcome {
        node,
        result: match not_reached.contains(&rank) {
            true => Err(NodeError::NotPassedOn { from: sent.node, to: node }),
            false => Ok(()),
        },
    };
    let outcomes = nodes(sent).into_iter().enumerate().map(outcome).collect();
    script.answer(sent, Ok(ReplyBody::Outcomes(outcomes)));
}

/// Writes four rows. Gives the writes of shards that leave at once; the journal has the header.
fn write_rows(script: &mut Script) -> Vec<Sent> {
    script.write(0, 16);
    let (shards, headers): (Vec<_>, Vec<_>) = script.sent().into_iter().partition(is_shard);
    headers.iter().for_each(|sent| answer(script, sent, &[]));
    assert_eq!(codes(script), 4, "one for each row");
    assert!(script.sent().is_empty());
    shards
}

/// Writes four rows. Gives the writes of the two groups; the other shards have their rows.
fn write_groups(script: &mut Script) -> [Sent; 2] {
    let at_once = write_rows(script);
    assert_eq!(all_shards(&at_once), [[2], [3]]);
    at_once.iter().for_each(|sent| answer(script, sent, &[]));
    script.do_jobs();
    let groups = script.sent();
    assert_eq!(all_shards(&groups), [[0, 4], [1, 5]]);
    assert!(script.completions.is_empty());
    groups.try_into().ok().expect("two groups")
}

/// The node of each shard of the open segment.
fn keepers(script: &mut Script) -> Vec<NodeIndex> {
    script.core(|core| {
        let handle = core.log.open.expect("rows went there");
        let segment = core.segments.get(handle).expect("it is open");
        (0..6).map(|shard| core.row_node(segment, shard).expect("it has rows")).collect()
    })
}

fn assert_at_rest(script: &mut Script, relayed: u64, sent_again: u64) {
    script.core(|core| {
        assert!(core.nodes.iter().all(|node| node.slots.claimed.is_empty()));
        let counters = &core.counters;
        let parities = (counters.parities_relayed, counters.parities_sent_again);
        assert_eq!(parities, (relayed, sent_again));
        assert_eq!((counters.copies_relayed, counters.copies_sent_again), (0, 0));
    });
}

#[test]
fn one_data_node_serves_all_parity_nodes_or_several_share_them() {
    let groups = |k, m| -> Vec<Vec<usize>> {
        groups(k, m).into_iter().map(|group| group.to_vec()).collect()
    };
    assert_eq!(groups(1, 3), [[0, 1, 2, 3]], "as in the paper's figure");
    assert_eq!(groups(4, 2), [[0, 4], [1, 5]]);
    assert_eq!(groups(2, 5), [vec![0, 2, 4, 6], vec![1, 3, 5]]);
    assert_eq!(groups(3, 3), [[0, 3], [1, 4], [2, 5]]);
}

#[test]
fn parity_of_rows_goes_to_data_nodes_with_their_data() {
    let mut script = script(Strategy::Primary);
    let free =
        |script: &mut Script, node: NodeIndex| script.core(|core| core.node(node).slots.free);
    let before = script.core(|core| core.counters.sent_bytes);
    let at_once = write_rows(&mut script);
    assert_eq!(all_shards(&at_once), [[2], [3]]);
    assert!(at_once.iter().all(|sent| sent.request.route.is_none()));
    let keepers = keepers(&mut script);
    script.do_jobs();
    let groups = script.sent();
    assert_eq!(all_shards(&groups), [[0, 4], [1, 5]]);
    let sent_bytes = script.core(|core| core.counters.sent_bytes) - before;
    let header_bytes = BLOCK_BYTES as u64;
    assert_eq!(sent_bytes, 6 * PART_BYTES as u64 + header_bytes, "each shard once");
    let mut bytes: Vec<Vec<u8>> = vec![Vec::new(); 6];
    for sent in &at_once {
        bytes[usize::from(shards(sent)[0])] = sent.request.payload.concat();
    }
    for sent in &groups {
        let route = sent.request.route.as_deref().expect("a route");
        assert_eq!((route.check(sent.node), &route.content), (Ok(()), &Content::Parts));
        let by_shard = shards(sent).iter().map(|shard| keepers[usize::from(*shard)]).collect();
        assert_eq!(nodes(sent), <Vec<NodeIndex>>::clone(&by_shard));
        let RequestBody::ShardWrite { shard, offset_bytes, checksums, seal, .. } =
            &sent.request.body
        else {
            panic!("a write of shards")
        };
        assert_eq!((shard.0, *offset_bytes, *seal), (shards(sent)[0], 0, None));
        let payload = sent.request.payload.concat();
        assert_eq!(payload.len(), 2 * PART_BYTES);
        assert_eq!(*checksums, crc32c_blocks(&payload));
        for (shard, part) in shards(sent).iter().zip(payload.chunks(PART_BYTES)) {
            bytes[usize::from(*shard)] = part.to_vec();
        }
    }
    let code = script.core(|core| Arc::clone(core.shape.code().encode()));
    let (data, parity) = bytes.split_at(4);
    let inputs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut made = vec![vec![0; PART_BYTES]; 2];
    let mut outputs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
    code.execute(&inputs, &mut outputs).expect("it fits");
    assert!(made == parity, "each shard has its own bytes");
    at_once.iter().for_each(|sent| answer(&mut script, sent, &[]));
    let free_before = free(&mut script, keepers[4]);
    for sent in &groups {
        assert!(script.completions.is_empty());
        answer(&mut script, sent, &[]);
        script.sent();
    }
    assert_eq!(script.completions.len(), 1);
    assert_eq!(free(&mut script, keepers[4]), free_before - 1, "its slot is taken");
    assert_at_rest(&mut script, 2, 0);
}

/// The new pass reaches the node before the parity does, so no late parity can follow.
#[test]
fn parity_that_a_data_node_did_not_pass_on_comes_from_the_volume() {
    let mut script = script(Strategy::Primary);
    let [first, second] = write_groups(&mut script);
    answer(&mut script, &first, &[1]);
    let again = script.sent();
    let to = nodes(&first)[1];
    assert!(again.iter().all(|sent| sent.node == to));
    let [pass, direct] = &again[..] else { panic!("a pass and a write") };
    assert!(is_pass(pass) && is_shard(direct) && direct.request.route.is_none());
    assert_eq!(shards(direct), [4]);
    let payload = first.request.payload.concat();
    assert_eq!(direct.request.payload.concat(), payload[PART_BYTES..]);
    let RequestBody::ShardWrite { checksums, .. } = &direct.request.body else { unreachable!() };
    assert_eq!(*checksums, crc32c_blocks(&payload[PART_BYTES..]));
    script.done(pass);
    answer(&mut script, &second, &[]);
    script.sent();
    assert!(script.completions.is_empty(), "the parity node has not answered");
    script.done(direct);
    script.sent();
    assert_eq!(script.completions.len(), 1);
    script.core(|core| assert!(!core.log.journal_move.has_to_move()));
    assert_at_rest(&mut script, 1, 1);
    // The node rests, so the next parity for it comes from the volume at once.
    script.write(16, 16);
    let at_once: Vec<Sent> = script.sent().into_iter().filter(is_shard).collect();
    assert_eq!(all_shards(&at_once), [[0], [2], [3]]);
}

#[test]
fn a_busy_data_node_gets_its_rows_once_more_and_so_does_its_parity_node() {
    let mut script = script(Strategy::Primary);
    let [first, second] = write_groups(&mut script);
    answer(&mut script, &second, &[]);
    script.answer(&first, Err(NodeError::Busy));
    let again: Vec<Sent> = script.sent().into_iter().filter(is_shard).collect();
    assert_eq!(all_shards(&again), [[0], [4]]);
    again.iter().for_each(|sent| script.done(sent));
    script.sent();
    assert_eq!(script.completions.len(), 1);
    assert_at_rest(&mut script, 1, 1);
}

#[test]
fn a_lost_data_node_moves_the_journal_and_the_parity_comes_from_the_volume() {
    let mut script = script(Strategy::Primary);
    let [first, second] = write_groups(&mut script);
    answer(&mut script, &second, &[]);
    script.reconnect(first.node);
    let sent = script.sent();
    let to = nodes(&first)[1];
    let at = |wanted: fn(&Sent) -> bool| {
        sent.iter().position(|sent| sent.node == to && wanted(sent)).expect("it was sent")
    };
    assert!(at(is_pass) < at(is_shard), "no late parity can follow");
    script.core(|core| assert!(!core.may_get(first.node, NewForm::Parts), "it rests"));
    let again: Vec<Sent> = sent.into_iter().filter(is_shard).collect();
    assert_eq!(all_shards(&again), [[4]]);
    again.iter().for_each(|sent| script.done(sent));
    script.sent();
    script.core(|core| assert!(core.log.journal_move.has_to_move(), "a row is lost"));
    assert!(script.completions.is_empty());
    assert_at_rest(&mut script, 1, 1);
}

/// An older release closes the connection when it gets a payload in parts. Two data nodes that do
/// this again and again would leave no room for any other loss.
#[test]
fn a_data_node_that_is_lost_with_a_group_gets_none_for_a_while() {
    let mut script = script(Strategy::Primary);
    let groups = write_groups(&mut script);
    groups.iter().for_each(|sent| answer(&mut script, sent, &[]));
    let first = &groups[0];
    let head = first.node;
    let may = |script: &mut Script| {
        script.sent();
        script.core(|core| core.route_of_group(&nodes(first), BLOCK_BYTES).is_some())
    };
    for rest_ms in [1_000, 2_000, 4_000] {
        script.core(|core| core.note_new_form(head, NewForm::Parts, &Err(NodeError::Unreachable)));
        script.wait_ms(rest_ms - 1);
        assert!(!may(&mut script), "{rest_ms}");
        script.wait_ms(1);
        assert!(may(&mut script), "{rest_ms}");
    }
    script.core(|core| {
        core.note_new_form(head, NewForm::Parts, &Ok(ReplyBody::Outcomes(Vec::new())));
    });
    script.core(|core| core.note_new_form(head, NewForm::Parts, &Err(NodeError::Busy)));
    assert!(may(&mut script), "its connection stands");
    script.core(|core| core.note_new_form(head, NewForm::Parts, &Err(NodeError::Unreachable)));
    script.wait_ms(1_000);
    assert!(may(&mut script), "the first rest is short again");
}

/// The node may have lost what it had not synced.
#[test]
fn parity_on_a_node_that_was_lost_since_does_not_count() {
    let mut script = script(Strategy::Primary);
    let mut groups = write_groups(&mut script);
    // The loss of this node alone breaks no journal.
    groups.sort_by_key(|sent| JOURNAL.contains(&nodes(sent)[1]));
    let [first, second] = groups;
    let lost = nodes(&first)[1];
    assert!(!JOURNAL.contains(&lost), "{lost}");
    answer(&mut script, &second, &[]);
    script.reconnect(lost);
    script.sent();
    let free = |script: &mut Script| script.core(|core| core.node(lost).slots.free);
    let free_before = free(&mut script);
    answer(&mut script, &first, &[]);
    script.sent();
    assert!(script.completions.is_empty());
    assert_eq!(free(&mut script), free_before, "it has told its room since");
    script.core(|core| assert!(core.log.journal_move.has_to_move()));
    assert_at_rest(&mut script, 2, 0);
}

/// The node that answered with the error is gone.
#[test]
fn an_error_of_an_earlier_connection_costs_the_new_one_nothing() {
    for error in [NodeError::Io("it was broken".into()), NodeError::NoSpace] {
        let mut script = script(Strategy::Primary);
        let [first, _] = write_groups(&mut script);
        let lost = nodes(&first)[1];
        script.reconnect(lost);
        script.core(|core| core.node_mut(lost).health = NodeHealth::Up);
        script.sent();
        let outcomes = vec![
            Outcome { node: first.node, result: Ok(()) },
            Outcome { node: lost, result: Err(error) },
        ];
        script.answer(&first, Ok(ReplyBody::Outcomes(outcomes)));
        script.core(|core| {
            let state = core.node(lost);
            assert_eq!((state.health, state.slots.full), (NodeHealth::Up, false));
            assert!(core.log.journal_move.has_to_move(), "the row is lost all the same");
        });
    }
}

/// The move writes the record whole. The group that follows counts for nothing.
#[test]
fn the_journal_moves_while_a_data_shard_waits_for_its_parity() {
    let mut script = script(Strategy::Primary);
    let at_once = write_rows(&mut script);
    at_once.iter().for_each(|sent| answer(&mut script, sent, &[]));
    let counted = |script: &mut Script| {
        script.sent();
        script.core(|core| core.log.generation)
    };
    let generation = counted(&mut script);
    script.core(|core| core.log.generation = JournalGen(generation.0 + 1));
    script.do_jobs();
    let groups: Vec<Sent> = script.sent().into_iter().filter(is_shard).collect();
    assert_eq!(all_shards(&groups), [[0, 4], [1, 5]], "the shards need the rows");
    groups.iter().for_each(|sent| answer(&mut script, sent, &[]));
    script.sent();
    assert!(script.completions.is_empty(), "the old journal's answers do not count");
    assert_at_rest(&mut script, 2, 0);
}

/// A data node with two parity nodes, of which it reaches the first only.
#[test]
fn each_shard_of_a_larger_group_gets_its_own_bytes() {
    let mut script = Script::serving_in_chunks(8, "rs:2+4", 0);
    script.core(|core| {
        core.config.replicate = Strategy::Primary;
        core.nodes.iter_mut().for_each(|node| node.relay.reach = Reach::Here);
        let all: Vec<NodeIndex> = (0..8).map(NodeIndex).collect();
        assert!(!core.are_admitted(&all));
    });
    script.sent().iter().for_each(|sent| script.done(sent));
    let (handle, sent) = store(&mut script, SegmentKind::Data, BLOCK_BYTES);
    let mut found = all_shards(&sent);
    found.sort();
    assert_eq!(found, [[0, 2, 4], [1, 3, 5]]);
    for sent in &sent {
        let bytes: Vec<u8> = shards(sent).iter().flat_map(|shard| [*shard; BLOCK_BYTES]).collect();
        assert_eq!(sent.request.payload.concat(), bytes);
        answer(&mut script, sent, &[2]);
    }
    let again: Vec<Sent> = script.sent().into_iter().filter(is_shard).collect();
    let mut found = all_shards(&again);
    found.sort();
    assert_eq!(found, [[4], [5]]);
    for sent in &again {
        assert_eq!(sent.request.payload.concat(), vec![shards(sent)[0]; BLOCK_BYTES]);
        script.done(sent);
    }
    script.sent();
    assert_whole(&mut script, handle);
    assert_at_rest(&mut script, 2, 2);
}

/// A node is lost while the world makes the parity, and may have joined again. The others of its
/// group get their rows.
#[test]
fn rows_go_to_no_node_that_was_lost_while_their_parity_was_made() {
    for (shard, is_back, wanted) in [
        (5, false, [vec![1], vec![0, 4]]),
        (5, true, [vec![1], vec![0, 4]]),
        (1, false, [vec![0, 4], vec![5]]),
        (1, true, [vec![0, 4], vec![5]]),
    ] {
        let mut script = script(Strategy::Primary);
        let at_once = write_rows(&mut script);
        at_once.iter().for_each(|sent| answer(&mut script, sent, &[]));
        let keepers = keepers(&mut script);
        match is_back {
            true => script.core(|core| core.node_mut(keepers[shard]).link.session += 1),
            false => script.reconnect(keepers[shard]),
        }
        script.sent();
        script.do_jobs();
        let sent: Vec<Sent> = script.sent().into_iter().filter(is_shard).collect();
        let mut found = all_shards(&sent);
        found.sort();
        let mut wanted = wanted.to_vec();
        wanted.sort();
        assert_eq!(found, wanted);
        sent.iter().for_each(|sent| answer(&mut script, sent, &[]));
        script.sent();
        script.core(|core| assert!(core.log.journal_move.has_to_move()));
        assert!(script.completions.is_empty());
        assert_at_rest(&mut script, 1, 0);
    }
}

/// A group without a route goes as without groups: its data at once, and its parity after that.
#[test]
fn a_group_without_a_route_goes_from_the_volume() {
    for is_lost_later in [false, true] {
        let mut script = script(Strategy::Primary);
        let mut nodes = write_groups(&mut script).map(|sent| {
            answer(&mut script, &sent, &[]);
            nodes(&sent)
        });
        script.sent();
        let unreachable = nodes[0].remove(1);
        let cut = |script: &mut Script| {
            script.core(|core| core.node_mut(unreachable).relay.reach = Reach::Nowhere);
        };
        if !is_lost_later {
            cut(&mut script);
        }
        script.write(16, 16);
        let (at_once, headers): (Vec<_>, Vec<_>) = script.sent().into_iter().partition(is_shard);
        let wanted: &[[u8; 1]] = if is_lost_later { &[[2], [3]] } else { &[[0], [2], [3]] };
        assert_eq!(all_shards(&at_once), wanted);
        if is_lost_later {
            cut(&mut script);
        }
        script.do_jobs();
        let rest = script.sent();
        let mut found = all_shards(&rest);
        found.sort();
        let mut wanted = vec![vec![1, 5], vec![4]];
        if is_lost_later {
            wanted.insert(0, vec![0]);
        }
        assert_eq!(found, wanted);
        for sent in headers.iter().chain(&at_once).chain(&rest) {
            answer(&mut script, sent, &[]);
        }
        script.sent();
        assert_eq!(script.completions.len(), 2);
        assert_at_rest(&mut script, 3, 0);
    }
}

/// The write that seals a shard must not overtake rows that are on a route.
#[test]
fn sealing_waits_for_every_group_on_a_route() {
    let mut script = script(Strategy::Primary);
    let groups = write_groups(&mut script);
    script.core(VolumeCore::close_open_segment);
    let seals = |script: &mut Script| {
        let mut seals = 0;
        for _ in 0..5 {
            script.do_jobs();
            script.wait_ms(1);
            let of_seal = |sent: &&Sent| {
                matches!(sent.request.body, RequestBody::ShardWrite { seal: Some(_), .. })
            };
            seals += script.sent().iter().filter(of_seal).count();
        }
        seals
    };
    for sent in &groups {
        assert_eq!(seals(&mut script), 0);
        answer(&mut script, sent, &[]);
    }
    assert_eq!(seals(&mut script), 6);
}

/// The volume stores complete shards of `len_bytes`. Gives the segment, and what leaves at first.
fn store(script: &mut Script, kind: SegmentKind, len_bytes: usize) -> (SegmentIndex, Vec<Sent>) {
    let handle = script.add_segment(&[None; 6]);
    script.core(|core| {
        core.segments.set_state(handle, State::Closed);
        core.segments.get_mut(handle).expect("it was added").begun_at = Some(Nanos(1));
    });
    script.start(move |ctx| async move {
        let shard = |byte: u8| {
            let data = Bytes::from(vec![byte; len_bytes]);
            Shard { checksums: crc32c_blocks(&data), data }
        };
        let shards: Vec<Shard> = (0..6).map(shard).collect();
        let shard_bytes = u32::try_from(len_bytes).expect("a few MiB");
        let meta = SealMeta { kind, shard_bytes, ..SealMeta::default() };
        assert!(crate::seal::store(&ctx, handle, &shards, meta).await);
    });
    (handle, script.sent())
}

fn assert_whole(script: &mut Script, handle: SegmentIndex) {
    script.core(|core| {
        let segment = core.segments.get(handle).expect("it was added");
        assert_eq!((segment.missing(), segment.sending), (0, false));
    });
}

#[test]
fn complete_shards_go_in_groups() {
    for not_reached in [&[][..], &[1]] {
        let mut script = script(Strategy::Primary);
        let (handle, sent) = store(&mut script, SegmentKind::Data, 2 * BLOCK_BYTES);
        let mut found = all_shards(&sent);
        found.sort();
        assert_eq!(found, [vec![0, 4], vec![1, 5], vec![2], vec![3]]);
        for sent in &sent {
            let RequestBody::ShardWrite { seal, .. } = &sent.request.body else { unreachable!() };
            assert!(seal.is_some());
            let part = |shard: u8| vec![shard; 2 * BLOCK_BYTES];
            let bytes: Vec<u8> = shards(sent).into_iter().flat_map(part).collect();
            assert_eq!(sent.request.payload.concat(), bytes);
        }
        sent.iter().for_each(|sent| answer(&mut script, sent, not_reached));
        let again: Vec<Sent> = script.sent().into_iter().filter(is_shard).collect();
        assert_eq!(all_shards(&again), [vec![4], vec![5]][..2 * not_reached.len()]);
        again.iter().for_each(|sent| script.done(sent));
        script.sent();
        assert_whole(&mut script, handle);
        let missed = 2 * not_reached.len() as u64;
        assert_at_rest(&mut script, 2 - missed, missed);
    }
}

/// A parity node that was not reached is lost while the other group is on its way. Over a new
/// connection its shard would take a slot that the volume does not count.
#[test]
fn a_complete_shard_goes_once_more_over_the_same_connection_only() {
    let mut script = script(Strategy::Primary);
    let (_, sent) = store(&mut script, SegmentKind::Data, BLOCK_BYTES);
    let of = |data: u8| sent.iter().find(|sent| shards(sent)[0] == data).expect("it was sent");
    for data in [2, 3] {
        script.done(of(data));
    }
    answer(&mut script, of(1), &[1]);
    let lost = nodes(of(1))[1];
    assert!(!script.sent().iter().any(is_shard), "the groups end in their order");
    script.reconnect(lost);
    script.sent();
    answer(&mut script, of(0), &[]);
    let again = script.sent();
    assert!(!again.iter().any(|sent| sent.node == lost && is_shard(sent)), "over the new one");
}

#[test]
fn checkpoints_and_groups_that_are_too_long_for_a_message_go_from_the_volume() {
    let half = PAYLOAD_BYTES_MAX / 2;
    for (kind, len_bytes, messages) in [
        (SegmentKind::Data, half, 4),
        (SegmentKind::Data, half + BLOCK_BYTES, 6),
        (SegmentKind::Checkpoint, BLOCK_BYTES, 6),
    ] {
        let mut script = script(Strategy::Primary);
        let (handle, sent) = store(&mut script, kind, len_bytes);
        assert_eq!(sent.len(), messages, "{kind:?}, {len_bytes} bytes");
        let routed = sent.iter().filter(|sent| sent.request.route.is_some()).count();
        assert_eq!(routed, 6 - messages);
        sent.iter().for_each(|sent| answer(&mut script, sent, &[]));
        script.sent();
        assert_whole(&mut script, handle);
    }
    // One data node that would serve three parity nodes.
    let mut script = script(Strategy::Primary);
    let nodes: Vec<NodeIndex> = (0..4).map(NodeIndex).collect();
    let mut has_route =
        |part_bytes: usize| script.core(|core| core.route_of_group(&nodes, part_bytes).is_some());
    assert!(has_route(PAYLOAD_BYTES_MAX / 4) && !has_route(PAYLOAD_BYTES_MAX / 4 + BLOCK_BYTES));
}

/// A segment that lacks some shards only, as after a node was lost.
#[test]
fn missing_shards_without_the_rest_of_their_group_go_from_the_volume() {
    let mut script = script(Strategy::Primary);
    let targets = [(0, NodeIndex(3)), (1, NodeIndex(4)), (5, NodeIndex(5))];
    let shards: Vec<Shard> = (0..6)
        .map(|byte: u8| {
            let data = Bytes::from(vec![byte; BLOCK_BYTES]);
            Shard { checksums: crc32c_blocks(&data), data }
        })
        .collect();
    script.start(move |ctx| async move {
        let meta = SealMeta::default();
        let segment = fieldstone_proto::SegmentId(9);
        let results = crate::seal::write_shards(&ctx, segment, &targets, &shards, meta).await;
        assert_eq!(results, vec![Ok(ReplyBody::Done); 3]);
    });
    let sent = script.sent();
    let mut found = all_shards(&sent);
    found.sort();
    assert_eq!(found, [vec![0], vec![1, 5]]);
    sent.iter().for_each(|sent| answer(&mut script, sent, &[]));
    script.sent();
}

/// Its next join reports its shards, and may have deleted this one.
#[test]
fn a_complete_shard_on_a_node_that_was_lost_since_does_not_count() {
    let mut script = script(Strategy::Primary);
    let targets = [(1, NodeIndex(4)), (5, NodeIndex(5))];
    let data = Bytes::from(vec![5; BLOCK_BYTES]);
    let shards = vec![Shard { checksums: crc32c_blocks(&data), data }; 6];
    let results = Rc::new(RefCell::new(Vec::new()));
    let written = Rc::clone(&results);
    script.start(move |ctx| async move {
        let (segment, meta) = (fieldstone_proto::SegmentId(9), SealMeta::default());
        let all = crate::seal::write_shards(&ctx, segment, &targets, &shards, meta).await;
        *written.borrow_mut() = all;
    });
    let sent = script.sent_one();
    assert_eq!(all_shards(std::slice::from_ref(&sent)), [[1, 5]]);
    script.reconnect(NodeIndex(5));
    script.sent();
    answer(&mut script, &sent, &[]);
    script.sent();
    assert_eq!(*results.borrow(), [Ok(ReplyBody::Done), Err(NodeError::Unreachable)]);
}

#[test]
fn other_strategies_pass_no_parity_on() {
    for strategy in [Strategy::Flat, Strategy::Ring, Strategy::Tree] {
        let mut script = script(strategy);
        let at_once = write_rows(&mut script);
        assert_eq!(all_shards(&at_once), [[0], [1], [2], [3]]);
        script.do_jobs();
        let parity = script.sent();
        assert_eq!(all_shards(&parity), [[4], [5]]);
        for sent in at_once.iter().chain(&parity) {
            assert!(sent.request.route.is_none(), "{strategy}");
            script.done(sent);
        }
        let (_, sent) = store(&mut script, SegmentKind::Data, BLOCK_BYTES);
        assert!(sent.iter().filter(|s| is_shard(s)).all(|s| s.request.route.is_none()));
        script.core(|core| assert_eq!(core.counters.parities_relayed, 0));
    }
}

#[test]
fn copies_and_streams_have_no_groups() {
    let groups = |code: &str, encode| {
        let mut script = Script::serving_in_chunks(8, code, 2 * BLOCK_BYTES as u32);
        script.core(|core| {
            (core.config.replicate, core.config.encode) = (Strategy::Primary, encode);
            core.groups().len()
        })
    };
    assert_eq!(groups("rs:4+2", Encode::Client), 2);
    assert_eq!(groups("zigzag:4+2", Encode::Client), 2);
    assert_eq!(groups("copies:3", Encode::Client), 0);
    assert_eq!(groups("rs:4+2", Encode::Stream), 0);
    assert_eq!(groups("zigzag:4+2", Encode::Stream), 0);
}

/// A node of another process reaches no node of this one, and the data node comes first.
#[test]
fn a_data_node_has_to_reach_its_parity_nodes() {
    let mut script = script(Strategy::Primary);
    let nodes: Vec<NodeIndex> = (0..6).map(NodeIndex).collect();
    let mut groups = |apart: &[usize]| {
        script.core(|core| {
            for (at, node) in core.nodes.iter_mut().enumerate() {
                node.relay.reach = match apart.contains(&at) {
                    true => Reach::At(Bytes::from_static(b"unix:/n")),
                    false => Reach::Here,
                };
            }
            let groups = core.groups_with_routes(&nodes, BLOCK_BYTES);
            groups.iter().map(|group| group[0]).collect::<Vec<usize>>()
        })
    };
    assert_eq!(groups(&[]), [0, 1]);
    assert_eq!(groups(&[0, 1, 2, 3, 4, 5]), [0, 1]);
    assert_eq!(groups(&[4, 5]), [0, 1], "data nodes of this process reach every node");
    assert_eq!(groups(&[0]), [1]);
    assert_eq!(groups(&[0, 4, 1]), [0]);
}

/// A pass is announced once it is needed, and a group goes from the volume until it is confirmed.
#[test]
fn the_first_rows_go_from_the_volume_and_announce_passes() {
    let mut script = Script::serving(8);
    script.core(|core| {
        core.config.replicate = Strategy::Primary;
        core.nodes.iter_mut().for_each(|node| node.relay.reach = Reach::Here);
    });
    script.write(0, 16);
    let sent = script.sent();
    let at_once: Vec<Vec<u8>> = sent.iter().filter(|sent| is_shard(sent)).map(shards).collect();
    assert_eq!(at_once, [[0], [1], [2], [3]]);
    let keepers = keepers(&mut script);
    let passes: Vec<NodeIndex> =
        sent.iter().filter(|sent| is_pass(sent)).map(|sent| sent.node).collect();
    assert!(passes.contains(&keepers[4]) && passes.contains(&keepers[5]));
    let heads_only =
        |node: &NodeIndex| !keepers[4..].contains(node) && !JOURNAL[1..].contains(node);
    assert!(!passes.iter().any(heads_only), "no data node needs one for that");
}
