//! The conditions of runs do what they say, and the world notices a node that does not follow them.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_node::{Node, NodeAccounting, NodeAction, NodeConfig, NodeEvent};
use fieldstone_proto::{
    Capability, Encode, Epoch, PoolKeys, Request, RequestBody, Rights, Strategy, VolumeId,
};
use fieldstone_sim::actor::{Cast, NodeProcess};
use fieldstone_sim::fault_model::Fault;
use fieldstone_sim::scenario::Kind;
use fieldstone_sim::{Chosen, Condition, Options, RealCast, Scenario, run, run_cast};
use fieldstone_volume::{Volume, VolumeConfig};

const HOUR_NS: u64 = 3_600_000_000_000;

/// Casts nodes that learn nothing of one condition after their start.
struct DeafCast(Condition);

struct DeafNode {
    node: Node,
    deaf_to: Condition,
    /// The node has the time of day of its start.
    told: bool,
}

impl Cast for DeafCast {
    type Volume = Volume;
    type Node = DeafNode;

    fn volume(&self, config: VolumeConfig, now: Nanos) -> Volume {
        RealCast.volume(config, now)
    }

    fn node(&self, config: NodeConfig, now: Nanos) -> DeafNode {
        DeafNode { node: RealCast.node(config, now), deaf_to: self.0, told: false }
    }
}

impl NodeProcess for DeafNode {
    fn handle(&mut self, event: NodeEvent, now: Nanos) {
        if matches!(event, NodeEvent::WallClock { .. }) && self.deaf_to == Condition::Clock {
            if self.told {
                return;
            }
            self.told = true;
        }
        NodeProcess::handle(&mut self.node, event, now);
    }

    fn next_action(&mut self) -> Option<NodeAction> {
        self.node.next_action()
    }

    fn deadline(&self) -> Option<Nanos> {
        NodeProcess::deadline(&self.node)
    }

    fn is_ready(&self) -> bool {
        self.node.is_ready()
    }

    fn accounting(&self) -> Option<NodeAccounting> {
        self.node.accounting()
    }

    fn check(&self) {
        self.node.assert_consistent();
    }

    fn set_keys(&mut self, keys: PoolKeys) {
        if self.deaf_to != Condition::Keys {
            self.node.set_keys(keys);
        }
    }
}

/// How many of eight runs with one condition fail with deaf nodes. None has another fault.
fn failures_of_the_deaf(condition: Condition) -> usize {
    let runs = (0..8).map(|seed| {
        let mut scenario = Scenario::calm(seed);
        scenario.set_conditions(&Chosen::only(&[condition]));
        // Jumps forwards are harmless if only the volumes know of them.
        if let Some(plan) = &mut scenario.conditions.clock {
            (plan.forwards_per_mille, plan.jump_ns) = (0, (2 * HOUR_NS, 3 * HOUR_NS));
            (plan.gap_ns, plan.skew_ns_max) = ((0, 500_000_000), 0);
        }
        run_cast(scenario, &DeafCast(condition), Options::default())
    });
    runs.filter(|outcome| outcome.failure.is_some()).count()
}

#[test]
fn nodes_that_miss_every_rotation_fail_runs() {
    assert!(failures_of_the_deaf(Condition::Keys) > 5);
}

#[test]
fn nodes_that_keep_the_time_of_their_start_fail_runs() {
    assert!(failures_of_the_deaf(Condition::Clock) > 5);
}

/// Without faults no request fails, whatever the conditions are, and each of them happens.
#[test]
fn sound_pools_feel_nothing_of_the_conditions() {
    let (mut happened, mut links, mut fragments) = (BTreeMap::new(), [0; 3], 0);
    for seed in 0..12 {
        let mut scenario = Scenario::calm(seed);
        scenario.set_conditions(&Chosen::only(&Condition::ALL));
        // A process that misses a rotation is a fault, and so are a node whose table is full and a
        // writer whose requests come twice.
        if let Some(plan) = &mut scenario.conditions.keys {
            plan.missed_per_mille = 0;
        }
        if let Some(plan) = &mut scenario.conditions.stranger {
            plan.floods_per_mille = 0;
        }
        scenario.conditions.replays = None;
        // The runs are short.
        if let Some(plan) = &mut scenario.conditions.clock
            && !plan.machines_apart
        {
            plan.gap_ns = (100_000_000, 1_000_000_000);
        }
        scenario.set_strategy(Strategy::ALL[1 + seed as usize % 3]);
        scenario.set_encode(Encode::Stream);
        scenario.fragment_bytes = 4096 << (seed % 3);
        assert_eq!(scenario.kind, Kind::Within);
        let outcome = run_cast(scenario, &RealCast, Options::default());
        assert_eq!((outcome.failure, outcome.ops_failed), (None, 0), "{}", outcome.scenario);
        links = [0, 1, 2].map(|at| links[at] + outcome.links[at]);
        fragments += outcome.fragments;
        for (name, count) in outcome.faults {
            *happened.entry(name).or_insert(0) += count;
        }
    }
    assert!(happened["clock-jump"] > 10 && happened["new-secret"] > 10, "{happened:?}");
    assert!(links.iter().all(|count| *count > 100), "{links:?}");
    assert!(fragments > 1000, "{fragments}");
}

/// Processes that have secrets that are too old are a fault that volumes survive.
#[test]
fn some_processes_have_secrets_that_are_too_old() {
    let mut happened = BTreeMap::new();
    for seed in 0..8 {
        let mut scenario = match seed % 2 {
            0 => Scenario::calm(seed),
            _ => Scenario::with_faults(seed, &[Fault::NodeKill], 100_000_000),
        };
        scenario.set_conditions(&Chosen::only(&[Condition::Keys]));
        let plan = scenario.conditions.keys.as_mut().expect("each run has it");
        (plan.watch_ns, plan.pause_ns) = (30_000_000, (0, 0));
        (plan.old_copies_per_mille, plan.missed_per_mille) = (1000, 1000);
        let outcome = run_cast(scenario, &RealCast, Options::default());
        assert_eq!(outcome.failure, None, "seed {seed}: {}", outcome.scenario);
        for (name, count) in outcome.faults {
            *happened.entry(name).or_insert(0) += count;
        }
    }
    for fault in ["old-secret", "missed-secret"] {
        assert!(happened.get(fault).is_some_and(|count| *count > 0), "{fault}: {happened:?}");
    }
}

/// The scenario of `seed` with a stranger who comes often, and with small tables.
fn with_stranger(seed: u64, faults: &[Fault]) -> Scenario {
    let mut scenario = Scenario::with_faults(seed, faults, 100_000_000);
    scenario.set_conditions(&Chosen::only(&[Condition::Stranger]));
    let plan = scenario.conditions.stranger.as_mut().expect("each run has it");
    (plan.gap_ns, plan.requests_max) = ((100_000, 5_000_000), 128);
    scenario
}

/// A stranger takes nothing from users, whatever it sends, and nodes keep nothing of it. Writers of
/// which a node of a full table takes no more find their way.
#[test]
fn a_stranger_does_no_harm() {
    let mut happened = BTreeMap::new();
    for seed in 0..8 {
        let mut scenario = with_stranger(seed, &[Fault::NodeKill, Fault::VolumeKill]);
        let plan = scenario.conditions.stranger.as_mut().expect("each run has it");
        (plan.floods_per_mille, plan.hang_ns_max) = (200, 300_000_000);
        scenario.set_strategy(Strategy::ALL[seed as usize % 4]);
        let outcome = run_cast(scenario, &RealCast, Options::default());
        assert_eq!(outcome.failure, None, "seed {seed}: {}", outcome.scenario);
        for (name, count) in outcome.faults {
            *happened.entry(name).or_insert(0) += count;
        }
    }
    for what in ["refused", "old", "own", "hang", "flood", "denied"] {
        let count = happened.get(format!("stranger-{what}").as_str()).copied();
        assert!(count.is_some_and(|count| count > 100), "{what}: {happened:?}");
    }
    assert!(happened.get("writer-denied").is_some_and(|count| *count > 10), "{happened:?}");
}

/// What a node does wrong with a stranger.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// It does not compare signatures, times and rights.
    TrustsAll,
    /// It takes every epoch for the present one.
    TakesOldEpochs,
    /// It says that one more request is under way.
    KeepsOne,
    /// It has room for as many requests as usual.
    TakesTooMany,
}

/// Casts nodes that do something wrong.
struct WrongCast(Wrong);

struct WrongNode {
    node: Node,
    wrong: Wrong,
    keys: PoolKeys,
    /// The highest epoch of each volume.
    epochs: BTreeMap<VolumeId, Epoch>,
}

impl Cast for WrongCast {
    type Volume = Volume;
    type Node = WrongNode;

    fn volume(&self, config: VolumeConfig, now: Nanos) -> Volume {
        RealCast.volume(config, now)
    }

    fn node(&self, config: NodeConfig, now: Nanos) -> WrongNode {
        let keys = config.keys;
        let node = RealCast.node(config, now);
        WrongNode { node, wrong: self.0, keys, epochs: BTreeMap::new() }
    }
}

impl WrongNode {
    fn trust(&mut self, request: &mut Request) {
        let Capability { volume, epoch, .. } = request.capability;
        let highest = self.epochs.entry(volume).or_default();
        let fences = matches!(request.body, RequestBody::Fence { .. });
        let key = self.keys.derive(volume, epoch);
        let is_genuine = request.capability.check(&key, Rights(0), 0).is_ok();
        if is_genuine {
            *highest = epoch.max(*highest);
        }
        let epoch = match self.wrong {
            Wrong::TrustsAll => epoch,
            Wrong::TakesOldEpochs if is_genuine && !fences => *highest,
            _ => return,
        };
        let key = self.keys.derive(volume, epoch);
        request.capability = Capability::issue(&key, volume, epoch, Rights::ALL, u64::MAX);
    }
}

impl NodeProcess for WrongNode {
    fn handle(&mut self, mut event: NodeEvent, now: Nanos) {
        if let NodeEvent::Request { request, .. } = &mut event {
            self.trust(request);
        }
        NodeProcess::handle(&mut self.node, event, now);
    }

    fn next_action(&mut self) -> Option<NodeAction> {
        self.node.next_action()
    }

    fn deadline(&self) -> Option<Nanos> {
        NodeProcess::deadline(&self.node)
    }

    fn is_ready(&self) -> bool {
        self.node.is_ready()
    }

    fn accounting(&self) -> Option<NodeAccounting> {
        self.node.accounting()
    }

    fn check(&self) {
        self.node.assert_consistent();
    }

    fn requests(&self) -> usize {
        self.node.in_flight().0 + usize::from(self.wrong == Wrong::KeepsOne)
    }

    fn limit_requests(&mut self, requests_max: usize) {
        if self.wrong != Wrong::TakesTooMany {
            self.node.limit_requests(requests_max);
        }
    }
}

/// Why a run with such nodes fails.
fn complaint_about(wrong: Wrong, faults: &[Fault]) -> String {
    let runs = (0..8).map(|seed| {
        let mut scenario = with_stranger(seed, faults);
        let plan = scenario.conditions.stranger.as_mut().expect("each run has it");
        plan.floods_per_mille = if wrong == Wrong::TakesTooMany { 500 } else { 0 };
        run_cast(scenario, &WrongCast(wrong), Options::default())
    });
    let mut failures = runs.filter_map(|outcome| outcome.failure);
    failures.next().map(|failure| failure.what).unwrap_or_default()
}

#[test]
fn nodes_that_do_wrong_with_a_stranger_are_found() {
    let what = complaint_about(Wrong::TrustsAll, &[]);
    assert!(what.contains("of a stranger"), "{what:?}");
    let what = complaint_about(Wrong::TakesOldEpochs, &[Fault::VolumeKill]);
    assert!(what.contains("of a stranger"), "{what:?}");
    let what = complaint_about(Wrong::KeepsOne, &[]);
    assert!(what.contains("until no node has a request left"), "{what:?}");
    let what = complaint_about(Wrong::TakesTooMany, &[]);
    assert!(what.contains("and room for 128"), "{what:?}");
}

/// With five copies a tree has a node between its head and its last nodes, which faults strike.
#[test]
fn some_trees_are_two_steps_deep() {
    let five = Chosen::only(&[Condition::Copies]);
    let mut relays = [0, 0];
    for seed in 0..3 {
        let (conditions, replicate) = (five.clone(), Some(Strategy::Tree));
        let outcome = run(seed, Options { conditions, replicate, ..Options::default() });
        assert!(outcome.scenario.contains("copies:5"), "{}", outcome.scenario);
        assert_eq!(outcome.failure, None, "seed {seed}: {}", outcome.scenario);
        relays = [0, 1].map(|at| relays[at] + outcome.relays[at]);
    }
    assert!(relays[0] > 300 && relays[1] > 10, "{relays:?}");
    let drawn = (0..1000).filter(|seed| Chosen::default().has(*seed, Condition::Copies)).count();
    assert!((30..100).contains(&drawn), "{drawn}");
}
