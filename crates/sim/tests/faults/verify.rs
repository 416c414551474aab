//! The conditions that every row of the table must meet, whatever its fault.
//!
//! At each of the row's moments: the volume opens, or goes on serving, within a bound of virtual
//! time. All blocks read as written. The volume acknowledges new writes and a flush. It blames no
//! node except the victim. Then, depending on the row: the volume is whole with the fault in place
//! ([`Ends::Whole`]), or the victim is out of use and the volume gives the reason ([`Ends::Out`]),
//! or the volume uses the victim and lacks something ([`Ends::Short`]). When the fault is taken
//! away, or an empty node replaces the victim, the volume is whole, and the test proves this: all
//! blocks read as written with two other nodes gone.

use fieldstone_block::Op;
use fieldstone_volume::VolumePhase;

use crate::bench::{BLOCKS, Bench, NODES, is_whole};

/// When a fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The pool is closed; then it is opened.
    Closed,
    /// The server and all nodes were killed; then they start.
    Killed,
    /// The node's process starts again, with the fault, while the volume serves.
    Restarted,
    /// The node runs, and the volume serves.
    Serving,
}

/// How a row ends.
#[derive(Clone, Copy, Debug)]
pub enum Ends {
    /// The volume repairs the damage, and is whole.
    Whole,
    /// The volume gives this reason while it does not use the node. Then it uses the node again,
    /// and is whole.
    Back(&'static str),
    /// The volume does not use the node, at least at times, and gives this reason.
    Out(&'static str),
    /// The volume uses the node, but lacks the data that the node cannot hold.
    Short,
}

/// How the test takes a fault away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The disk works again, and the process answers again.
    Lift,
    /// The same, and the node's process starts again.
    Restart,
    /// An empty node replaces the victim.
    Replace,
}

/// A row.
pub struct Row {
    /// When the fault begins: the test tries each of these moments.
    pub moments: &'static [Moment],
    /// Injects the fault into a node.
    pub inject: fn(&mut Bench, usize),
    /// How the row ends.
    pub ends: Ends,
    /// How the test takes the fault away.
    pub remedy: Remedy,
}

/// Longest virtual time until the volume serves. An opening after a crash waits 20 s for a node
/// that may have a copy of the journal, or 30 s if the log was cut short.
const OPEN_NS_MAX: u64 = 35_000_000_000;
/// Longest virtual time of a request. The volume gives a node up after 1 s without an answer, and a
/// request may meet that a few times.
const REQUEST_NS_MAX: u64 = 8_000_000_000;
/// Longest virtual time until the volume is whole.
const WHOLE_NS_MAX: u64 = 60_000_000_000;
/// How long the fault stays after the requests, so that the volume repeats all its attempts
/// meanwhile.
const STAY_NS: u64 = 3_000_000_000;
/// Blocks per large request: whole rows of a segment, which go to their shards at once.
const STEP_BLOCKS: u64 = 16;

/// Verifies a row at each of its moments.
pub fn verify(name: &str, row: &Row) {
    let failures: Vec<String> = row
        .moments
        .iter()
        .filter_map(|moment| verify_at(row, *moment).err().map(|why| format!("{moment:?}: {why}")))
        .collect();
    assert!(failures.is_empty(), "{name}: {failures:#?}");
}

fn verify_at(row: &Row, moment: Moment) -> Result<(), String> {
    let mut bench = prepared()?;
    let victim = usize::from(bench.status().journal_nodes[0].0);
    strike(&mut bench, row, moment, victim)?;
    let result = go_on(&mut bench, row, victim);
    let told = format!("told: {:?}", bench.told);
    if std::env::var_os("FAULTS_TELL").is_some() {
        let node = &bench.status().nodes[victim];
        eprintln!(
            "{moment:?} {result:?} whole {} victim {:?}, slowest {} ms, at {} s, {told}",
            is_whole(&bench),
            node.health,
            bench.slowest_ns / 1_000_000,
            bench.now().0 / 1_000_000_000
        );
    }
    result.map_err(|why| format!("{why} ({told})"))?;
    match &bench.accused {
        Some(node) => Err(format!("another node is said to be at fault: {node}")),
        None => Ok(()),
    }
}

/// A volume that serves, with sealed segments, a checkpoint, and records that only the journal has.
pub fn prepared() -> Result<Bench, String> {
    let mut bench = Bench::new();
    bench.start_volume();
    serving(&mut bench)?;
    bench.sweep(Op::Write, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX)?;
    bench.flush(REQUEST_NS_MAX)?;
    bench.remember_files();
    close(&mut bench)?;
    bench.kill_volume();
    bench.start_volume();
    serving(&mut bench)?;
    bench.sweep(Op::Write, 0..BLOCKS / 2, STEP_BLOCKS, REQUEST_NS_MAX)?;
    bench.flush(REQUEST_NS_MAX)?;
    bench.sweep(Op::Write, BLOCKS / 2..BLOCKS / 2 + 8, 1, REQUEST_NS_MAX)?;
    // Rows of a segment that stays open.
    bench.sweep(Op::Write, 0..8, 8, REQUEST_NS_MAX)?;
    Ok(bench)
}

fn serving(bench: &mut Bench) -> Result<(), String> {
    let over = |bench: &Bench| !matches!(bench.phase(), VolumePhase::Opening);
    bench.until(OPEN_NS_MAX, over);
    match bench.phase() {
        VolumePhase::Serving => Ok(()),
        other => {
            Err(format!("the volume is {other:?}, and waits for: {}", bench.status().waits_for))
        }
    }
}

fn close(bench: &mut Bench) -> Result<(), String> {
    bench.volume().request_close();
    bench.pump_volume();
    match bench.until(OPEN_NS_MAX, |bench| bench.phase() == VolumePhase::Closed) {
        true => Ok(()),
        false => Err(format!("the volume does not close, and is {:?}", bench.phase())),
    }
}

fn strike(bench: &mut Bench, row: &Row, moment: Moment, victim: usize) -> Result<(), String> {
    let all = 0..usize::from(NODES);
    match moment {
        Moment::Closed | Moment::Killed => {
            if moment == Moment::Closed {
                close(bench)?;
            }
            bench.kill_volume();
            all.clone().for_each(|node| bench.stop_node(node));
            bench.victim = Some(victim);
            (row.inject)(bench, victim);
            all.for_each(|node| bench.start_node(node));
            bench.start_volume();
        }
        Moment::Restarted => {
            bench.victim = Some(victim);
            bench.stop_node(victim);
            (row.inject)(bench, victim);
            bench.pass(300_000_000);
            bench.start_node(victim);
        }
        Moment::Serving => {
            bench.victim = Some(victim);
            (row.inject)(bench, victim);
        }
    }
    Ok(())
}

fn go_on(bench: &mut Bench, row: &Row, victim: usize) -> Result<(), String> {
    serving(bench)?;
    read_all(bench).map_err(|why| format!("at first: {why}"))?;
    bench.sweep(Op::Write, BLOCKS / 4..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX)?;
    bench.sweep(Op::Write, 0..8, 1, REQUEST_NS_MAX)?;
    bench.flush(REQUEST_NS_MAX)?;
    read_all(bench).map_err(|why| format!("after new writes: {why}"))?;
    bench.pass(STAY_NS);
    if let Ends::Out(text) | Ends::Back(text) = row.ends {
        let any = |told: &String| text.split('|').any(|text| told.contains(text.trim()));
        if !bench.told.iter().any(any) {
            return Err(format!("nothing says {text:?} of the node"));
        }
    }
    match row.ends {
        Ends::Whole | Ends::Back(_) => scrub(bench)?,
        Ends::Out(_) => {
            if is_whole(bench) {
                return Err("the volume counts as whole while the fault is there".into());
            }
        }
        Ends::Short => {
            scrub_once(bench)?;
            if is_whole(bench) {
                return Err("the volume counts as whole while the fault is there".into());
            }
        }
    }
    read_all(bench).map_err(|why| format!("with the fault in place: {why}"))?;
    if !matches!(row.ends, Ends::Whole | Ends::Back(_)) {
        match row.remedy {
            Remedy::Replace => {
                bench.lift(victim);
                bench.replace_node(victim);
            }
            Remedy::Restart => {
                bench.lift(victim);
                bench.stop_node(victim);
                bench.start_node(victim);
            }
            Remedy::Lift => bench.lift(victim),
        }
        scrub(bench).map_err(|why| format!("after the remedy: {why}"))?;
    }
    prove(bench, victim)
}

fn read_all(bench: &mut Bench) -> Result<(), String> {
    bench.sweep(Op::Read, 0..BLOCKS, STEP_BLOCKS, REQUEST_NS_MAX)
}

/// Damage where no request reads is found by a scrub. After that everything is whole.
fn scrub(bench: &mut Bench) -> Result<(), String> {
    let whole = |bench: &mut Bench| match bench.until(WHOLE_NS_MAX, is_whole) {
        true => Ok(()),
        false => Err(format!("the volume is not whole: {}", bench.describe())),
    };
    whole(bench)?;
    scrub_once(bench)?;
    whole(bench)
}

fn scrub_once(bench: &mut Bench) -> Result<(), String> {
    bench.volume().request_scrub(0);
    bench.pump_volume();
    match bench.until(WHOLE_NS_MAX, |bench| !bench.status().scrub.running) {
        true => Ok(()),
        false => Err("the scrub does not end".into()),
    }
}

/// The volume reports that it is whole, so two other nodes may go.
fn prove(bench: &mut Bench, victim: usize) -> Result<(), String> {
    let accused = bench.accused.take();
    // Only one, if the fault is still there: the victim counts as lost.
    let others = if bench.is_sound(victim) { 2 } else { 1 };
    for node in (0..usize::from(NODES)).filter(|node| *node != victim).take(others) {
        bench.stop_node(node);
    }
    let proof = read_all(bench).map_err(|why| format!("with two other nodes gone: {why}"));
    bench.accused = accused;
    proof
}
