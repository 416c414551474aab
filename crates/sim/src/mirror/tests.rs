//! The world accepts correct actors, and finds every planted bug.

use super::{Bug, MirrorCast};
use crate::fault_model::Fault;
use crate::run::{Options, Outcome, run_cast, run_many};
use crate::scenario::{Kind, Scenario, StayingPlan};

/// Faults that a mirror survives. A mirror repairs nothing.
const FAULTS: [Fault; 8] = [
    Fault::NodeKill,
    Fault::NodeSlow,
    Fault::Partition,
    Fault::ConnectionLoss,
    Fault::VolumeKill,
    Fault::KillAll,
    Fault::PowerAll,
    Fault::Usurp,
];

fn scenario(seed: u64, faults: &[Fault], gap_ns: u64) -> Scenario {
    let mut scenario = Scenario::with_faults(seed, faults, gap_ns);
    scenario.disk.sector_bytes = 4096;
    scenario.volumes[0].plan.ops = 300;
    scenario
}

fn run(seed: u64, bug: Bug, faults: &[Fault], gap_ns: u64) -> Outcome {
    run_cast(scenario(seed, faults, gap_ns), &MirrorCast::new(bug), Options::default())
}

/// The failure of the first failing seed among several.
fn found(bug: Bug, faults: &[Fault]) -> String {
    let outcomes = (0..60).map(|seed| run(seed, bug, faults, 20_000_000));
    outcomes.filter_map(|outcome| outcome.failure).map(|f| f.what).next().unwrap_or_default()
}

#[test]
fn a_correct_mirror_passes_under_faults() {
    let mut injected = std::collections::BTreeMap::new();
    for seed in 0..60 {
        let outcome = run(seed, Bug::None, &FAULTS, 10_000_000);
        assert_eq!(outcome.failure, None, "{outcome:?}");
        for (name, count) in outcome.faults {
            *injected.entry(name).or_insert(0) += count;
        }
    }
    assert_eq!(injected.len(), FAULTS.len(), "every fault occurred: {injected:?}");
}

#[test]
fn a_seed_reproduces_its_run_exactly() {
    for seed in 0..5 {
        let first = run(seed, Bug::None, &FAULTS, 5_000_000);
        assert_eq!(first, run(seed, Bug::None, &FAULTS, 5_000_000));
        let mut text = Vec::new();
        let options = Options { trace: Some(&mut text), ..Options::default() };
        let cast = MirrorCast::new(Bug::None);
        let traced = run_cast(scenario(seed, &FAULTS, 5_000_000), &cast, options);
        assert_eq!(first, traced, "writing the trace changes nothing");
        assert!(String::from_utf8(text).expect("text").lines().count() > 300);
        assert_ne!(first.trace_hash, run(seed + 1, Bug::None, &FAULTS, 5_000_000).trace_hash);
    }
}

#[test]
fn acknowledging_before_the_nodes_have_it_is_found() {
    let what = found(Bug::AcknowledgesEarly, &[Fault::VolumeKill, Fault::KillAll]);
    assert!(what.contains("cannot be there"), "{what:?}");
}

#[test]
fn serving_stale_data_is_found() {
    let what = found(Bug::ServesStale, &[]);
    assert!(what.contains("cannot be there"), "{what:?}");
}

#[test]
fn losing_a_flush_is_found() {
    let what = found(Bug::LosesFlush, &[Fault::PowerAll]);
    assert!(what.contains("cannot be there"), "{what:?}");
}

#[test]
fn forgetting_a_request_is_found() {
    let what = found(Bug::Forgets, &[]);
    assert!(what.contains("unanswered"), "{what:?}");
}

#[test]
fn ignoring_the_fence_is_found() {
    let what = found(Bug::IgnoresFence, &[Fault::Usurp]);
    assert!(what.contains("fenced"), "{what:?}");
}

#[test]
fn never_opening_again_is_found() {
    let what = found(Bug::NeverReopens, &[]);
    assert!(what.contains("until every volume opens"), "{what:?}");
    assert!(what.contains("Opening"), "it says what the volume does: {what:?}");
}

#[test]
fn a_trim_without_an_answer_is_found() {
    let what = found(Bug::DropsTrims, &[]);
    assert!(what.contains("Trim") && what.contains("unanswered"), "{what:?}");
}

/// The failure of the first failing seed among several with two volumes.
fn found_among_two(bug: Bug, kind: Kind) -> String {
    let outcomes = (0..6).map(|seed| {
        let mut scenario = Scenario::shared(seed, 2);
        scenario.kind = kind;
        scenario.disk.sector_bytes = 4096;
        for volume in &mut scenario.volumes {
            volume.plan.ops = 200;
        }
        run_cast(scenario, &MirrorCast::new(bug), Options::default())
    });
    outcomes.filter_map(|outcome| outcome.failure).map(|f| f.what).next().unwrap_or_default()
}

#[test]
fn correct_mirrors_share_nodes() {
    assert_eq!(found_among_two(Bug::None, Kind::Within), "");
    assert_eq!(found_among_two(Bug::None, Kind::Crowded), "");
}

#[test]
fn no_space_while_there_is_room_is_found() {
    let what = found_among_two(Bug::FullEarly, Kind::Crowded);
    assert!(what.contains("must not fail") && what.contains("slots)"), "{what:?}");
}

#[test]
fn a_trim_refused_for_lack_of_space_is_found() {
    let what = found_among_two(Bug::RefusesTrims, Kind::Crowded);
    assert!(what.contains("Trim") && what.contains("must not fail"), "{what:?}");
}

#[test]
fn a_starving_neighbour_is_found() {
    let what = found_among_two(Bug::Starves, Kind::Crowded);
    assert!(what.contains("Write") && what.contains("unanswered"), "{what:?}");
}

/// The failure of a run in which a volume is asked to grow.
fn found_growing(bug: Bug) -> String {
    let mut scenario = scenario(1, &[], 0);
    scenario.volumes[0].more_blocks_at_end = 40;
    let outcome = run_cast(scenario, &MirrorCast::new(bug), Options::default());
    outcome.failure.map(|failure| failure.what).unwrap_or_default()
}

#[test]
fn a_volume_that_does_not_grow_is_found() {
    assert_eq!(found_growing(Bug::None), "");
    let what = found_growing(Bug::NeverGrows);
    assert!(what.contains("nor says why"), "{what:?}");
}

#[test]
fn a_volume_that_loses_its_new_size_is_found() {
    let what = found_growing(Bug::ForgetsGrowth);
    assert!(what.contains("fell back from"), "{what:?}");
}

#[test]
fn a_volume_that_does_nothing_for_ever_is_found() {
    let mut scenario = scenario(0, &[], 0);
    // Work for more virtual time than the volume, which acts each microsecond, has events for.
    scenario.volumes[0].plan.ops *= 20;
    let outcome = run_cast(scenario, &MirrorCast::new(Bug::Spins), Options::default());
    let what = outcome.failure.map(|failure| failure.what).unwrap_or_default();
    assert!(what.contains("events are not enough"), "{what:?}");
}

fn staying(seed: u64, fault: Fault, at_request: u32) -> Outcome {
    let mut scenario = scenario(seed, &[], 0);
    let node = fieldstone_proto::NodeIndex(1);
    scenario.staying = vec![StayingPlan { node, fault, at_request, copy_at_request: 0 }];
    run_cast(scenario, &MirrorCast::new(Bug::None), Options::default())
}

#[test]
fn waiting_for_ever_for_a_node_that_stays_silent_is_found() {
    // The mirror opens only with all nodes. It has every node until it is opened again.
    let outcome = staying(0, Fault::SilenceStays, u32::MAX);
    let what = outcome.failure.expect("node 1 never answers").what;
    assert!(what.contains("until every volume opens"), "{what:?}");
}

#[test]
fn every_fault_that_stays_strikes() {
    for fault in Fault::STAYING {
        let outcome = staying(0, fault, 20);
        assert_eq!(outcome.faults, [(fault.name(), 1)]);
    }
}

#[test]
fn many_seeds_run_on_threads_and_can_be_stopped() {
    let mut hashes = std::collections::BTreeMap::new();
    let one = |seed| run(seed, Bug::None, &[], 0);
    run_many(0..6, 2, one, |outcome| hashes.insert(outcome.seed, outcome.trace_hash).is_none());
    assert_eq!(hashes.keys().copied().collect::<Vec<_>>(), (0..6).collect::<Vec<_>>());
    assert_eq!(hashes[&3], one(3).trace_hash, "threads change nothing");
    let mut seen = 0;
    run_many(0..1000, 2, one, |_| {
        seen += 1;
        false
    });
    assert!(seen < 20, "{seen}");
}
