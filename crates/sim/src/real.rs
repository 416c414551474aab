//! The real cast: the volume and the node that ship.

use fieldstone_block::Nanos;
use fieldstone_codes::Profile;
use fieldstone_node::{Node, NodeAccounting, NodeAction, NodeConfig, NodeEvent};
use fieldstone_proto::{KeyGeneration, PoolKeys};
use fieldstone_volume::Volume;
use fieldstone_volume::{NodeHealth, VolumePhase};
use fieldstone_volume::{VolumeAction, VolumeConfig, VolumeEvent};

use crate::actor::{Cast, Health, NodeProcess, NodeView, VolumeProcess};
use crate::conditions::{Chosen, Condition};
use crate::run::{Options, Outcome, run_cast};
use crate::scenario::Scenario;

/// The code of runs with more copies. With five, a tree has a node between its head and its last
/// nodes.
const FIVE_COPIES: Profile = Profile::Copies { n: 5 };

/// Casts the real volume and the real node.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealCast;

impl Cast for RealCast {
    type Volume = Volume;
    type Node = Node;

    fn volume(&self, config: VolumeConfig, now: Nanos) -> Volume {
        Volume::new(config, now)
    }

    fn node(&self, config: NodeConfig, now: Nanos) -> Node {
        let mut node = Node::new(config);
        node.start(now.0);
        node
    }
}

impl NodeProcess for Node {
    fn handle(&mut self, event: NodeEvent, now: Nanos) {
        Node::handle(self, now.0, event);
    }

    fn next_action(&mut self) -> Option<NodeAction> {
        Node::next_action(self)
    }

    fn deadline(&self) -> Option<Nanos> {
        Node::deadline_ns(self).map(Nanos)
    }

    fn is_ready(&self) -> bool {
        Node::is_ready(self)
    }

    fn accounting(&self) -> Option<NodeAccounting> {
        Node::accounting(self)
    }

    fn check(&self) {
        self.assert_consistent();
    }

    fn set_keys(&mut self, keys: PoolKeys) {
        Node::set_keys(self, keys);
    }

    fn requests(&self) -> usize {
        self.in_flight().0
    }

    fn limit_requests(&mut self, requests_max: usize) {
        Node::limit_requests(self, requests_max);
    }
}

impl VolumeProcess for Volume {
    fn handle(&mut self, event: VolumeEvent, now: Nanos) {
        Volume::handle(self, event, now);
    }

    fn next_action(&mut self) -> Option<VolumeAction> {
        Volume::next_action(self)
    }

    fn phase(&self) -> VolumePhase {
        Volume::phase(self)
    }

    fn health(&self) -> Health {
        let status = self.status();
        let up = status.nodes.iter().all(|node| node.health == NodeHealth::Up);
        let whole = status.phase == VolumePhase::Serving
            && up
            && status.segments_degraded == 0
            && status.shards_missing == 0
            && !status.rebuild.running
            && status.journal_whole;
        let view = |node: &fieldstone_volume::NodeStatus| NodeView {
            up: node.health == NodeHealth::Up,
            shards: u64::from(node.shards),
            fenced: node.fenced,
        };
        Health {
            phase: status.phase,
            whole,
            scrubbing: status.scrub.running,
            scrub_failed: status.scrub.shards_failed,
            nodes: status.nodes.iter().map(view).collect(),
            degraded: status.segments_degraded,
            missing: status.shards_missing,
            lost: status.segments_lost,
            unsealed: status.segments_unsealed,
            rebuilding: status.rebuild.running,
            journal_whole: status.journal_whole,
        }
    }

    fn describe_health(&self) -> String {
        let status = self.status();
        let down: Vec<String> = status
            .nodes
            .iter()
            .filter(|node| node.health != NodeHealth::Up)
            .filter(|node| status.phase != VolumePhase::Opening || !node.reason.is_empty())
            .map(|node| format!("{} {:?} ({})", node.node, node.health, node.reason))
            .collect();
        let free: Vec<u32> = status.nodes.iter().map(|node| node.slots_free).collect();
        let reserved: Vec<u32> = status.nodes.iter().map(|node| node.slots_reserved).collect();
        format!(
            "segments {} degraded {} lost {}, shards missing {}, free slots {free:?} of \
             {reserved:?}, live {} of {} bytes, rebuilding {}, scrubbing {}, journal whole {}, \
             not up: {down:?}",
            status.segments,
            status.segments_degraded,
            status.segments_lost,
            status.shards_missing,
            status.live_bytes,
            status.capacity_bytes,
            status.rebuild.running,
            status.scrub.running,
            status.journal_whole,
        )
    }

    fn request_close(&mut self) {
        Volume::request_close(self);
    }

    fn request_scrub(&mut self) {
        Volume::request_scrub(self, 0);
    }

    fn request_grow(&mut self, size_bytes: u64) {
        Volume::request_grow(self, size_bytes, false);
    }

    fn grow_refused(&self) -> Option<String> {
        self.status().grow_refused
    }

    fn relays(&self) -> [u64; 2] {
        let status = self.status();
        [
            status.appends_relayed + status.copies_relayed,
            status.appends_sent_again + status.copies_sent_again,
        ]
    }

    fn carried(&self) -> [u64; 2] {
        let status = self.status();
        [status.parities_relayed, status.parities_sent_again]
    }

    fn parities(&self) -> [u64; 2] {
        let status = self.status();
        [status.parities_streamed, status.parities_coded_again]
    }

    fn set_keys(&mut self, keys: PoolKeys) {
        Volume::set_keys(self, keys);
    }

    fn key_generation(&self) -> KeyGeneration {
        self.status().key_generation
    }
}

/// Runs the scenario of `seed` (and of the code, if one is given) with the real cast.
pub fn run(seed: u64, options: Options<'_>) -> Outcome {
    let five = || options.conditions.has(seed, Condition::Copies).then_some(FIVE_COPIES);
    let code = options.code.or_else(five);
    let mut scenario = match options.thin {
        true => Scenario::thin(seed, code),
        false => Scenario::from_seed(seed, code),
    };
    if let Some(strategy) = options.replicate {
        scenario.set_strategy(strategy);
    }
    if let Some(encode) = options.encode {
        scenario.set_encode(encode);
    }
    if options.conditions != Chosen::default() {
        scenario.set_conditions(&options.conditions);
    }
    run_cast(scenario, &RealCast, options)
}
