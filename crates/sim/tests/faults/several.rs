//! Faults of several nodes at once: as many as the code survives, and one more.

use bytes::Bytes;
use fieldstone_block::{BlockError, Nanos, Op};
use fieldstone_node::FileId;
use fieldstone_proto::disk::{VOLUME_FILE_BYTES, VolumeRecord};
use fieldstone_proto::{NodeIndex, RequestBody};
use fieldstone_sim::disk::NodeFileKind;
use fieldstone_volume::{NodeHealth, VolumePhase};

use crate::bench::{BLOCKS, Bench, M, NODE_TIMEOUT_MS, NODES, Ops, is_whole};
use crate::corrupt::{Part, eio, enospc, flip, flip_record, never};
use crate::verify::prepared;

/// Longest virtual time of an opening, with the attempts that it makes before it fails.
const OPEN_NS_MAX: u64 = 180_000_000_000;
const REQUEST_NS_MAX: u64 = 30_000_000_000;
const WHOLE_NS_MAX: u64 = 60_000_000_000;
const STEP_BLOCKS: u64 = 16;
/// How long a volume may need to notice that a fault is gone.
const LIFT_NS: u64 = 3_000_000_000;
/// Longest virtual time of a closing: a server waits for 30 s.
const CLOSE_NS_MAX: u64 = 30_000_000_000;
/// How long the server is stopped: much longer than nodes may be silent.
const STOPPED_NS: u64 = 60_000_000_000;

/// Names of the tests of this file.
pub const NAMES: &[&str] = &[
    "an_empty_node_is_not_called_full",
    "processes_die_at_the_first_root",
    "processes_die_at_each_root_of_a_new_volume",
    "openings_die_at_their_roots",
    "an_absent_node_has_a_root_that_never_counted",
    "an_opening_died_when_it_had_fenced_a_node",
    "no_disk_has_room_for_a_journal",
    "an_opening_finds_no_room_for_a_journal",
    "few_disks_have_room_for_a_journal",
    "the_server_is_stopped",
    "m_nodes_die_while_serving",
    "m_nodes_are_away_at_an_opening",
    "m_records_are_damaged",
    "m_copies_of_the_journal_are_damaged",
    "m_nodes_with_faults_of_two_kinds",
    "more_nodes_die_while_serving",
    "more_nodes_are_away_at_an_opening",
    "more_nodes_answer_late_at_an_opening",
    "a_silent_node_beside_damaged_records",
    "more_records_are_damaged",
    "more_nodes_are_empty",
    "more_disks_are_full",
    "more_disks_are_full_at_a_closing",
    "more_nodes_die_behind_a_full_journal",
    "every_copy_of_a_journal_record_is_damaged",
];

fn nodes(count: u16) -> std::ops::Range<usize> {
    0..usize::from(count)
}

fn all() -> std::ops::Range<usize> {
    nodes(NODES)
}

/// Kills the server and all nodes, runs `inject`, and starts all of them.
fn killed_with(bench: &mut Bench, inject: impl FnOnce(&mut Bench)) {
    bench.kill_volume();
    all().for_each(|node| bench.stop_node(node));
    inject(bench);
    all().for_each(|node| bench.start_node(node));
    bench.start_volume();
}

fn opens(bench: &mut Bench) -> VolumePhase {
    bench.until(OPEN_NS_MAX, |bench| bench.phase() != VolumePhase::Opening);
    bench.phase()
}

/// Everything reads as written, and the volume accepts new writes.
fn serves(bench: &mut Bench) {
    bench.sweep(Op::Read, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("reads");
    bench.sweep(Op::Write, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("writes");
    bench.flush(REQUEST_NS_MAX).expect("flushes");
    bench.sweep(Op::Read, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("reads new data");
}

fn becomes_whole(bench: &mut Bench) {
    assert!(bench.until(WHOLE_NS_MAX, is_whole), "not whole: {}", bench.describe());
    bench.sweep(Op::Read, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("reads");
}

fn failure(bench: &mut Bench) -> String {
    match opens(bench) {
        VolumePhase::Failed(why) => why.to_string(),
        other => panic!("the volume is {other:?}"),
    }
}

/// The failed opening gets back the nodes that it needed: the volume opens, and nothing is lost.
fn opens_again(bench: &mut Bench) {
    bench.kill_volume();
    bench.start_volume();
    assert_eq!(opens(bench), VolumePhase::Serving);
    serves(bench);
    becomes_whole(bench);
}

#[test]
fn an_empty_node_is_not_called_full() {
    let mut bench = prepared().expect("a volume");
    let victim = usize::from(bench.status().journal_nodes[0].0);
    bench.victim = Some(victim);
    killed_with(&mut bench, |bench| bench.replace_node(victim));
    assert_eq!(opens(&mut bench), VolumePhase::Serving);
    serves(&mut bench);
    becomes_whole(&mut bench);
    assert!(bench.told.iter().all(|told| !told.contains("full")), "{:?}", bench.told);
}

/// A volume is created while more than m processes die each time they get a root. Then some nodes
/// have the root. When the processes stay alive, the creation succeeds.
#[test]
fn processes_die_at_the_first_root() {
    let mut bench = Bench::new();
    for node in nodes(M + 1) {
        bench.nodes[node].dies_at = Some(|body| matches!(body, RequestBody::PutRoot { .. }));
    }
    bench.start_volume();
    bench.pass(LIFT_NS);
    assert_eq!(bench.phase(), VolumePhase::Opening);
    nodes(M + 1).for_each(|node| bench.nodes[node].dies_at = None);
    assert_eq!(opens(&mut bench), VolumePhase::Serving);
    bench.sweep(Op::Write, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("writes");
    becomes_whole(&mut bench);
}

/// The same, for ever: the creation fails, and no data of the volume is left.
#[test]
fn processes_die_at_each_root_of_a_new_volume() {
    let mut bench = Bench::new();
    for node in all() {
        bench.nodes[node].dies_at = Some(|body| matches!(body, RequestBody::PutRoot { .. }));
    }
    bench.start_volume();
    failure(&mut bench);
    bench.pass(LIFT_NS);
    for node in all() {
        for kind in [NodeFileKind::Volume, NodeFileKind::Journal] {
            assert!(bench.files(node, kind).is_empty(), "node {node}: {kind:?}");
        }
    }
}

/// Attempts to open die when nodes get the new root, after they have made their journals. Later
/// attempts delete the journals of earlier ones.
#[test]
fn openings_die_at_their_roots() {
    let mut bench = prepared().expect("a volume");
    let rings = |bench: &Bench, node: usize| bench.files(node, NodeFileKind::Journal).len();
    let named: usize = all().map(|node| rings(&bench, node)).sum();
    for _ in 0..8 {
        killed_with(&mut bench, |bench| {
            for node in all() {
                bench.nodes[node].dies_at =
                    Some(|body| matches!(body, RequestBody::PutRoot { .. }));
            }
        });
        let made = |bench: &Bench| all().map(|node| rings(bench, node)).sum::<usize>() > named;
        assert!(bench.until(OPEN_NS_MAX, made), "{}", bench.describe());
        bench.pass(LIFT_NS);
        let most = all().map(|node| rings(&bench, node)).max();
        assert!(most <= Some(2), "{most:?} journals on a node");
    }
    all().for_each(|node| bench.nodes[node].dies_at = None);
    opens_again(&mut bench);
}

/// The writer dies when only one node has the root of its checkpoint. The next opening works
/// without this node, deletes segments that this root names, and dies. Then the node is back.
#[test]
fn an_absent_node_has_a_root_that_never_counted() {
    let mut bench = prepared().expect("a volume");
    let holders = bench.status().journal_nodes;
    let odd = all().find(|node| !holders.contains(&NodeIndex(*node as u16))).expect("six nodes");
    for node in all().filter(|node| *node != odd) {
        bench.nodes[node].dies_at = Some(|body| matches!(body, RequestBody::PutRoot { .. }));
    }
    let before = bench.bytes(odd, NodeFileKind::Volume);
    bench.volume().request_close();
    bench.pump_volume();
    let has_root = |bench: &Bench| bench.bytes(odd, NodeFileKind::Volume) != before;
    assert!(bench.until(REQUEST_NS_MAX, has_root), "{}", bench.describe());
    bench.kill_volume();
    bench.stop_node(odd);
    let others = |bench: &mut Bench, dies: Option<fn(&RequestBody) -> bool>| {
        all().filter(|node| *node != odd).for_each(|node| bench.nodes[node].dies_at = dies);
    };
    others(&mut bench, Some(|body| matches!(body, RequestBody::JournalCreate { .. })));
    bench.start_volume();
    bench.pass(LIFT_NS);
    assert_eq!(bench.phase(), VolumePhase::Opening);
    bench.kill_volume();
    others(&mut bench, None);
    bench.start_node(odd);
    bench.start_volume();
    assert_eq!(opens(&mut bench), VolumePhase::Serving);
    serves(&mut bench);
    becomes_whole(&mut bench);
}

/// An opening fences a node that is not connected to the writer, and dies. The writer goes on
/// without the node. The next opening uses it again.
#[test]
fn an_opening_died_when_it_had_fenced_a_node() {
    let mut bench = prepared().expect("a volume");
    bench.stop_node(0);
    let FileId::Volume(volume) = bench.file(0, NodeFileKind::Volume) else { unreachable!() };
    bench.change(0, NodeFileKind::Volume, |file| {
        // The disk of the bench does not keep the zeroes behind the written bytes.
        file.resize(VOLUME_FILE_BYTES, 0);
        let bytes = Bytes::copy_from_slice(file);
        let mut record = VolumeRecord::decode_file(&bytes, volume).expect("a sound record");
        record.epoch.0 += 5;
        *file = record.encode_file().to_vec();
    });
    bench.start_node(0);
    let fenced = |bench: &Bench| bench.status().nodes[0].fenced;
    assert!(bench.until(WHOLE_NS_MAX, fenced), "{}", bench.describe());
    serves(&mut bench);
    let others = bench.status().nodes.iter().filter(|node| node.health == NodeHealth::Up).count();
    assert_eq!(others, usize::from(NODES) - 1, "{}", bench.describe());
    assert!(bench.status().nodes[0].reason.contains("an opening that did not end has fenced it"));
    bench.kill_volume();
    bench.start_volume();
    assert_eq!(opens(&mut bench), VolumePhase::Serving);
    serves(&mut bench);
    becomes_whole(&mut bench);
}

fn no_room_for_journals(bench: &mut Bench, nodes: impl Iterator<Item = usize>) {
    nodes.for_each(|node| enospc(bench, node, Ops::Creations, Some(NodeFileKind::Journal)));
}

fn room_again(bench: &mut Bench) {
    for node in all() {
        bench.stop_node(node);
        bench.lift(node);
        bench.start_node(node);
    }
}

/// A node of the journal dies, and no disk has room for a new journal: every request gets an
/// answer.
#[test]
fn no_disk_has_room_for_a_journal() {
    let mut bench = prepared().expect("a volume");
    no_room_for_journals(&mut bench, all());
    let holder = usize::from(bench.status().journal_nodes[0].0);
    bench.stop_node(holder);
    let requests: Vec<u64> = [Op::Write, Op::Trim, Op::Flush]
        .into_iter()
        .map(|op| bench.submit(op, 0, if op == Op::Flush { 0 } else { 8 }))
        .collect();
    let answered = |bench: &Bench| requests.iter().all(|id| bench.is_answered(*id));
    assert!(bench.until(REQUEST_NS_MAX, answered), "{}", bench.describe());
    bench.forget_write();
    let refused = bench.request(Op::Write, 0, 8, REQUEST_NS_MAX).expect("an answer");
    assert_eq!(refused, Err(BlockError::NoSpace));
    bench.forget_write();
    bench.start_node(holder);
    room_again(&mut bench);
    bench.pass(LIFT_NS);
    assert!(bench.until(WHOLE_NS_MAX, is_whole), "not whole: {}", bench.describe());
    bench.sweep(Op::Write, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("writes");
    becomes_whole(&mut bench);
}

/// No disk has room for the new journal of an opening. The opening fails with the reason, and
/// succeeds later.
#[test]
fn an_opening_finds_no_room_for_a_journal() {
    let mut bench = prepared().expect("a volume");
    killed_with(&mut bench, |bench| no_room_for_journals(bench, all()));
    let why = failure(&mut bench);
    assert!(why.contains("a journal could not be made: no space on node.0"), "{why}");
    room_again(&mut bench);
    opens_again(&mut bench);
}

/// Only one disk has room for a journal, and a node of the journal dies: the journal does not
/// shrink to one copy.
#[test]
fn few_disks_have_room_for_a_journal() {
    let mut bench = prepared().expect("a volume");
    no_room_for_journals(&mut bench, all().skip(1));
    let holders = bench.status().journal_nodes;
    let dying = usize::from(holders.iter().map(|node| node.0).max().expect("three"));
    bench.stop_node(dying);
    bench.request(Op::Write, 0, 8, REQUEST_NS_MAX).expect("an answer").expect_err("one copy");
    bench.forget_write();
    bench.start_node(dying);
    room_again(&mut bench);
    assert!(bench.until(WHOLE_NS_MAX, is_whole), "not whole: {}", bench.describe());
    bench.sweep(Op::Write, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("writes");
    becomes_whole(&mut bench);
}

/// The volume's process is stopped while its requests are on their way to the nodes. This does not
/// count against the nodes.
#[test]
fn the_server_is_stopped() {
    let mut bench = prepared().expect("a volume");
    for block in (0..64).step_by(8) {
        bench.submit(Op::Write, block, 8);
    }
    bench.stop_volume_for(STOPPED_NS);
    let end = bench.now().plus(Nanos(STOPPED_NS));
    bench.pass(STOPPED_NS);
    while bench.now() < end.plus(Nanos(REQUEST_NS_MAX)) {
        bench.pass(REQUEST_NS_MAX / 100);
        assert_eq!(bench.accused, None);
        assert!(is_whole(&bench), "not whole: {}", bench.describe());
    }
    serves(&mut bench);
}

#[test]
fn m_nodes_die_while_serving() {
    let mut bench = prepared().expect("a volume");
    nodes(M).for_each(|node| bench.stop_node(node));
    serves(&mut bench);
    nodes(M).for_each(|node| bench.start_node(node));
    becomes_whole(&mut bench);
}

#[test]
fn m_nodes_are_away_at_an_opening() {
    let mut bench = prepared().expect("a volume");
    killed_with(&mut bench, |_| {});
    nodes(M).for_each(|node| bench.stop_node(node));
    assert_eq!(opens(&mut bench), VolumePhase::Serving);
    serves(&mut bench);
    nodes(M).for_each(|node| bench.start_node(node));
    becomes_whole(&mut bench);
}

#[test]
fn m_records_are_damaged() {
    let mut bench = prepared().expect("a volume");
    killed_with(&mut bench, |bench| {
        nodes(M).for_each(|node| flip(bench, node, Part::Record, 40));
    });
    assert_eq!(opens(&mut bench), VolumePhase::Serving);
    serves(&mut bench);
    becomes_whole(&mut bench);
}

#[test]
fn m_copies_of_the_journal_are_damaged() {
    let mut bench = prepared().expect("a volume");
    let holders = bench.status().journal_nodes;
    assert_eq!(holders.len(), usize::from(M) + 1);
    killed_with(&mut bench, |bench| {
        for node in &holders[1..] {
            flip_record(bench, usize::from(node.0), 20);
        }
    });
    assert_eq!(opens(&mut bench), VolumePhase::Serving);
    serves(&mut bench);
    becomes_whole(&mut bench);
}

#[test]
fn m_nodes_with_faults_of_two_kinds() {
    let mut bench = prepared().expect("a volume");
    killed_with(&mut bench, |bench| {
        flip(bench, 0, Part::Record, 40);
        eio(bench, 1, Ops::All, None);
    });
    assert_eq!(opens(&mut bench), VolumePhase::Serving);
    serves(&mut bench);
    bench.lift(1);
    becomes_whole(&mut bench);
}

#[test]
fn more_nodes_die_while_serving() {
    let mut bench = prepared().expect("a volume");
    nodes(M + 1).for_each(|node| bench.stop_node(node));
    bench.pass(1_000_000_000);
    let refused = bench.request(Op::Write, 0, 8, REQUEST_NS_MAX).expect("an answer");
    let Err(BlockError::Io(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("only 3 of 6 nodes are reachable, 4 are needed"), "{why}");
    let unread = bench.sweep(Op::Read, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect_err("reads");
    assert!(unread.contains("3 of the 4 shards needed are there"), "{unread}");
    assert_eq!(bench.phase(), VolumePhase::Serving);
    bench.forget_write();
    nodes(M + 1).for_each(|node| bench.start_node(node));
    assert!(bench.until(WHOLE_NS_MAX, is_whole), "not whole: {}", bench.describe());
    serves(&mut bench);
}

#[test]
fn more_nodes_are_away_at_an_opening() {
    let mut bench = prepared().expect("a volume");
    killed_with(&mut bench, |_| {});
    nodes(M + 1).for_each(|node| bench.stop_node(node));
    let why = failure(&mut bench);
    assert!(why.contains("only 3 of 6 nodes are reachable, 4 are needed"), "{why}");
    nodes(M + 1).for_each(|node| assert!(why.contains(&format!("node.{node}")), "{why}"));
    nodes(M + 1).for_each(|node| bench.start_node(node));
    opens_again(&mut bench);
}

/// Each operation of every disk takes a part of the time that a node has to answer, and answers
/// need several. The disks become faster when the volume serves.
#[test]
fn more_nodes_answer_late_at_an_opening() {
    let mut bench = prepared().expect("a volume");
    bench.kill_volume();
    all().for_each(|node| bench.nodes[node].delay_ns = NODE_TIMEOUT_MS * 600_000);
    bench.start_volume();
    assert_eq!(opens(&mut bench), VolumePhase::Serving, "{}", bench.describe());
    all().for_each(|node| bench.nodes[node].delay_ns = 0);
    becomes_whole(&mut bench);
    serves(&mut bench);
}

#[test]
fn a_silent_node_beside_damaged_records() {
    let mut bench = prepared().expect("a volume");
    let kept: Vec<_> = nodes(M).map(|node| bench.bytes(node, NodeFileKind::Volume)).collect();
    let silent = usize::from(M);
    killed_with(&mut bench, |bench| {
        nodes(M).for_each(|node| flip(bench, node, Part::Record, 40));
        bench.nodes[silent].silent = true;
    });
    let why = failure(&mut bench);
    assert!(why.contains(&format!("node.{silent} (did not answer in time)")), "{why}");
    let record = |node| format!("node.{node} (storage error: the record");
    nodes(M).for_each(|node| assert!(why.contains(&record(node)), "{why}"));
    bench.kill_volume();
    bench.lift(silent);
    for (node, bytes) in kept.iter().enumerate() {
        bench.stop_node(node);
        bench.change(node, NodeFileKind::Volume, |now| now.clone_from(bytes));
        bench.start_node(node);
    }
    opens_again(&mut bench);
}

#[test]
fn more_records_are_damaged() {
    let mut bench = prepared().expect("a volume");
    let kept: Vec<_> = nodes(M + 1).map(|node| bench.bytes(node, NodeFileKind::Volume)).collect();
    killed_with(&mut bench, |bench| {
        nodes(M + 1).for_each(|node| flip(bench, node, Part::Record, 40));
    });
    let why = failure(&mut bench);
    assert!(why.contains("cannot be used"), "{why}");
    bench.kill_volume();
    for (node, bytes) in kept.iter().enumerate() {
        bench.stop_node(node);
        bench.change(node, NodeFileKind::Volume, |now| now.clone_from(bytes));
        bench.start_node(node);
    }
    opens_again(&mut bench);
}

#[test]
fn more_nodes_are_empty() {
    let mut bench = prepared().expect("a volume");
    killed_with(&mut bench, |bench| nodes(M + 1).for_each(|node| bench.replace_node(node)));
    let why = failure(&mut bench);
    assert!(why.contains("only 3 of the nodes know the volume, 4 are needed"), "{why}");
}

#[test]
fn every_copy_of_a_journal_record_is_damaged() {
    let mut bench = prepared().expect("a volume");
    let holders = bench.status().journal_nodes;
    killed_with(&mut bench, |bench| {
        for node in &holders {
            flip_record(bench, usize::from(node.0), 20);
        }
    });
    assert_eq!(opens(&mut bench), VolumePhase::Serving);
    let lost =
        bench.sweep(Op::Read, 0..BLOCKS, 1, REQUEST_NS_MAX).expect_err("it was nowhere else");
    assert!(lost.contains("does not read as it was written"), "{lost}");
}

/// The disks of more nodes than may be lost have no room: the volume refuses a write within the
/// bound. When the disks have room again, it accepts writes again.
#[test]
fn more_disks_are_full() {
    let mut bench = prepared().expect("a volume");
    nodes(M + 2).for_each(|node| enospc(&mut bench, node, Ops::Changes, Some(NodeFileKind::Data)));
    let mut refused = None;
    for block in (0..BLOCKS).cycle().step_by(8).take(400) {
        let answer = bench.request(Op::Write, block, 8, REQUEST_NS_MAX);
        if answer.expect("an answer within the bound").is_err() {
            bench.forget_write();
            refused = bench.request(Op::Write, block, 8, REQUEST_NS_MAX);
            break;
        }
    }
    assert_eq!(refused.expect("refused").err(), Some(BlockError::NoSpace));
    bench.forget_write();
    nodes(M + 2).for_each(|node| bench.lift(node));
    // The volume tries the nodes again.
    bench.pass(LIFT_NS);
    assert!(bench.until(WHOLE_NS_MAX, is_whole), "not whole: {}", bench.describe());
    // The refused writes may have left some of their blocks old and some new.
    bench.sweep(Op::Write, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("writes");
    becomes_whole(&mut bench);
}

/// The disks of more nodes than may be lost have no room when the volume closes. The volume closes
/// without a checkpoint, and the journal keeps what the disks have no room for. When the disks have
/// room again, the volume opens and has every write.
#[test]
fn more_disks_are_full_at_a_closing() {
    let mut bench = prepared().expect("a volume");
    bench.sweep(Op::Write, 0..BLOCKS, 1, REQUEST_NS_MAX).expect("writes");
    nodes(M + 2).for_each(|node| enospc(&mut bench, node, Ops::Changes, Some(NodeFileKind::Data)));
    bench.volume().request_close();
    bench.pump_volume();
    let closed = bench.until(CLOSE_NS_MAX, |bench| bench.phase() == VolumePhase::Closed);
    assert!(closed, "{}", bench.describe());
    bench.kill_volume();
    nodes(M + 2).for_each(|node| bench.lift(node));
    bench.start_volume();
    assert!(bench.until(OPEN_NS_MAX, |bench| bench.phase() == VolumePhase::Serving));
    bench.sweep(Op::Read, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("reads");
    becomes_whole(&mut bench);
}

/// Users' writes wait because the journal is full. Too few nodes are left to store segments; the
/// lost nodes hold no journal. Every request gets an answer.
#[test]
fn more_nodes_die_behind_a_full_journal() {
    let mut bench = prepared().expect("a volume");
    // Small writes have no rows: from here on only the journal has the data that is not stored yet.
    bench.sweep(Op::Write, 0..BLOCKS, 1, REQUEST_NS_MAX).expect("writes");
    let holders = bench.status().journal_nodes;
    let others = |node: &usize| !holders.contains(&NodeIndex(*node as u16));
    let dying: Vec<usize> = all().filter(others).take(usize::from(M) + 1).collect();
    assert_eq!(dying.len(), usize::from(M) + 1);
    dying.iter().for_each(|node| never(&mut bench, *node, Ops::Changes, Some(NodeFileKind::Data)));
    let writes: Vec<u64> =
        (0..2 * BLOCKS).map(|at| bench.submit(Op::Write, at % BLOCKS, 1)).collect();
    let answered = |bench: &Bench| writes.iter().all(|id| bench.is_answered(*id));
    assert!(bench.until(REQUEST_NS_MAX, answered), "{}", bench.describe());
    dying.iter().for_each(|node| {
        bench.stop_node(*node);
        bench.lift(*node);
        bench.start_node(*node);
    });
    assert!(bench.until(WHOLE_NS_MAX, is_whole), "not whole: {}", bench.describe());
    bench.sweep(Op::Write, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("writes");
    bench.sweep(Op::Read, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX).expect("reads");
}
