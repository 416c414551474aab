//! The conditions of runs do what they say, and the world notices a node that does not follow them.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_node::{Node, NodeAccounting, NodeAction, NodeConfig, NodeEvent};
use fieldstone_proto::{Encode, PoolKeys, Strategy};
use fieldstone_sim::actor::{Cast, NodeProcess};
use fieldstone_sim::fault_model::Fault;
use fieldstone_sim::scenario::Kind;
use fieldstone_sim::{Chosen, Condition, Options, RealCast, Scenario, run_cast};
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
        // A process that misses a rotation is a fault.
        if let Some(plan) = &mut scenario.conditions.keys {
            plan.missed_per_mille = 0;
        }
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
