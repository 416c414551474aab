//! Tests of rows with a scripted peer.

use std::sync::Arc;

use fieldstone_accel::{Job, JobId};
use fieldstone_block::{Nanos, Op};

use fieldstone_proto::{BLOCK_BYTES, NodeIndex, RequestBody};

use super::*;
use crate::interface::VolumeEvent;
use crate::script::{JOURNAL, Script, Sent};

/// The data shards and the parity shards among the requests, with their nodes.
fn shards(sent: &[Sent]) -> (Vec<NodeIndex>, Vec<NodeIndex>) {
    let (mut data, mut parity) = (Vec::new(), Vec::new());
    for sent in sent {
        if let RequestBody::ShardWrite { shard, .. } = sent.request.body {
            if shard.0 < 4 { data.push(sent.node) } else { parity.push(sent.node) }
        }
    }
    (data, parity)
}

#[test]
fn a_write_of_rows_waits_for_its_parity() {
    let mut script = Script::serving(8);
    script.write(0, 16);
    let sent = script.sent();
    let (data, parity) = shards(&sent);
    assert_eq!((data.len(), parity.len()), (4, 0), "the world makes the parity");
    sent.iter().for_each(|sent| script.done(sent));
    assert!(script.sent().is_empty() && script.completions.is_empty());
    script.do_jobs();
    let sent = script.sent();
    let (data, parity) = shards(&sent);
    assert_eq!((data.len(), parity.len()), (0, 2));
    script.done(&sent[0]);
    assert!(script.sent().is_empty() && script.completions.is_empty());
    script.done(&sent[1]);
    script.sent();
    assert!(script.completions.iter().all(|done| done.result.is_ok()));
    assert_eq!(script.completions.len(), 1);
}

/// With Zigzag a row has a chunk of each shard, and each row is coded by itself.
#[test]
fn rows_of_a_code_with_elements_have_chunks() {
    // Two elements per chunk: chunks of two blocks, rows of four.
    let mut script = Script::serving_in_chunks(8, "zigzag:2+2", 2 * BLOCK_BYTES as u32);
    script.core(|core| {
        assert_eq!((core.shape.code().elements(), core.shape.layout().row_blocks()), (2, 4));
    });
    script.write(0, 16);
    let sent = script.sent();
    let mut shards: Vec<Vec<u8>> = vec![Vec::new(); 4];
    let mut take = |sent: &[Sent]| {
        for sent in sent {
            if let RequestBody::ShardWrite { shard, offset_bytes, .. } = sent.request.body {
                assert_eq!(offset_bytes, 0);
                assert!(shards[usize::from(shard.0)].is_empty(), "one write of all rows");
                shards[usize::from(shard.0)] = sent.request.payload.concat();
            }
        }
    };
    take(&sent);
    sent.iter().for_each(|sent| script.done(sent));
    let codes = |(_, job): &&(JobId, Job)| matches!(job, Job::Code { .. });
    assert_eq!(script.jobs.iter().filter(codes).count(), 4, "one for each row");
    script.do_jobs();
    let parity = script.sent();
    take(&parity);
    settle(&mut script, parity);
    assert_eq!(script.completions.len(), 1);
    assert!(shards.iter().all(|shard| shard.len() == 8 * BLOCK_BYTES));
    let code = script.core(|core| Arc::clone(core.shape.code().encode()));
    for chunk in (0..8 * BLOCK_BYTES).step_by(2 * BLOCK_BYTES) {
        let part = |shard: usize| &shards[shard][chunk..chunk + 2 * BLOCK_BYTES];
        let mut made = vec![vec![0; 2 * BLOCK_BYTES]; 2];
        let mut outputs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
        code.execute(&[part(0), part(1)], &mut outputs).expect("whole chunks");
        assert!(made[0] == part(2) && made[1] == part(3), "the chunk at {chunk}");
    }
}

/// A shard of one chunk has no rows: such a row would be a whole segment.
#[test]
fn a_shard_of_one_chunk_gets_no_rows() {
    let mut script = Script::serving_in_chunks(8, "zigzag:2+2", 0);
    script.write(0, 16);
    assert_eq!(row_blocks(&script.sent()), [] as [usize; 0]);
}

/// Answers all requests and does all jobs, until the volume sends no more.
fn settle(script: &mut Script, mut sent: Vec<Sent>) {
    while !sent.is_empty() || !script.jobs.is_empty() {
        sent.iter().for_each(|sent| script.done(sent));
        script.do_jobs();
        sent = script.sent();
    }
}

/// Lengths of the writes to data shards, in blocks.
fn row_blocks(sent: &[Sent]) -> Vec<usize> {
    let blocks = |sent: &Sent| match &sent.request.body {
        RequestBody::ShardWrite { shard, checksums, .. } if shard.0 < 4 => Some(checksums.len()),
        _ => None,
    };
    sent.iter().filter_map(blocks).collect()
}

/// Two records of one row are in flight.
fn two_records() -> (Script, Vec<Sent>) {
    let mut script = Script::serving(8);
    script.write(0, 4);
    let mut sent = script.sent();
    script.write(4, 4);
    sent.extend(script.sent());
    (script, sent)
}

#[test]
fn rows_are_gathered_while_two_records_are_in_flight() {
    let (mut script, first) = two_records();
    assert_eq!(row_blocks(&first), [1; 8]);
    script.write(8, 4);
    script.write(12, 4);
    assert!(script.sent().is_empty());
    first.iter().for_each(|sent| script.done(sent));
    script.do_jobs();
    let parity = script.sent();
    parity.iter().for_each(|sent| script.done(sent));
    let gathered = script.sent();
    assert_eq!(row_blocks(&gathered), [2; 4]);
    settle(&mut script, gathered);
    assert_eq!(script.completions.len(), 4);
}

#[test]
fn rows_are_not_held_back_before_a_trim() {
    let (mut script, first) = two_records();
    script.write(8, 4);
    assert!(script.sent().is_empty());
    script.submit(Op::Trim, 20, 4);
    assert_eq!(row_blocks(&script.sent()), [1; 4]);
    settle(&mut script, first);
}

#[test]
fn rows_that_were_held_back_go_to_no_node_that_was_lost_meanwhile() {
    let (mut script, first) = two_records();
    // The next segment gets its keepers while its first row is held back.
    script.core(VolumeCore::close_open_segment);
    script.write(8, 4);
    script.sent();
    let keepers = |core: &mut VolumeCore| -> Vec<NodeIndex> {
        let open = core.log.open.expect("for the row");
        let segment = core.segments.get(open).expect("it is open");
        let rows = segment.rows.iter().flat_map(|rows| &rows.keepers);
        rows.map(|keeper| keeper.node).collect()
    };
    let chosen = script.core(keepers);
    let lost = chosen.into_iter().find(|node| !JOURNAL.contains(node)).expect("six nodes");
    script.volume.handle(VolumeEvent::NodeDown(lost), Nanos(0));
    first.iter().filter(|sent| sent.node != lost).for_each(|sent| script.done(sent));
    script.do_jobs();
    let sent = script.sent();
    assert!(sent.iter().all(|sent| sent.node != lost));
}

#[test]
fn parity_goes_to_no_node_that_was_lost_since_the_data_was_sent() {
    let mut script = Script::serving(8);
    script.write(0, 16);
    let sent = script.sent();
    let keepers: Vec<NodeIndex> = script.core(|core| {
        let (_, segment) = core.segments.iter().next().expect("the open one");
        let rows = segment.rows.as_ref().expect("rows were written");
        rows.keepers.iter().map(|keeper| keeper.node).collect()
    });
    sent.iter().for_each(|sent| script.done(sent));
    let lost = keepers[5];
    script.reconnect(lost);
    // The journal moves, to have the record whole. Until then the write is not safe.
    let creates = |sent: &Sent| matches!(sent.request.body, RequestBody::JournalCreate { .. });
    assert!(script.sent().iter().any(creates));
    script.do_jobs();
    let sent = script.sent();
    assert_eq!(shards(&sent).1, [keepers[4]]);
    sent.iter().for_each(|sent| script.done(sent));
    script.sent();
    assert!(script.completions.is_empty());
}

/// A segment that is sealed again has complete shards on some of its keepers. Rows would begin
/// a second copy there.
#[test]
fn complete_shards_get_no_rows_again() {
    let mut script = Script::serving(8);
    let handle = script.add_segment(&[Some(0), None, Some(2), Some(7), Some(4), None]);
    let left = script.core(|core| {
        let keeper = |node| Keeper { node: NodeIndex(node), session: 0, lost: false };
        let keepers = (0..6).map(keeper).collect();
        let segment = core.segments.get_mut(handle).expect("it was added");
        segment.rows = Some(Rows { keepers, written: vec![true], intact: false, in_coding: 0 });
        core.shards_with_rows(handle)
    });
    assert_eq!(left, [(1, NodeIndex(1), 0), (5, NodeIndex(5), 0)]);
}

/// Seed 2817102: the volume deleted rows that a flush had made stable when all shards were
/// written, but not stable. A power loss took the shards.
#[test]
fn rows_stay_until_the_shards_are_durable() {
    let mut script = Script::serving(8);
    let handle = script.add_segment(&[Some(0), Some(1), Some(2), Some(3), Some(6), Some(7)]);
    script.core(|core| {
        let keeper = |node| Keeper { node: NodeIndex(node), session: 0, lost: false };
        let keepers = (0..6).map(keeper).collect();
        let segment = core.segments.get_mut(handle).expect("it was added");
        let written = vec![true];
        segment.rows = Some(Rows { keepers, written, intact: false, in_coding: 0 });
        core.segments.set_state(handle, State::Sealed);
        core.segments.set_detached(handle, true);
        core.drop_rows(handle);
    });
    assert!(script.sent().is_empty());
    script.core(|core| {
        core.segments.set_state(handle, State::Durable);
        core.drop_rows(handle);
    });
    let sent = script.sent();
    assert!(sent.iter().all(|s| matches!(s.request.body, RequestBody::ShardDelete { .. })));
    let nodes: Vec<u16> = sent.iter().map(|sent| sent.node.0).collect();
    assert_eq!(nodes, [4, 5], "the others have shards");
}
