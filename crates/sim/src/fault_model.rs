//! The fault model: the faults that may come together, and that the code must therefore survive.
//!
//! Let `m` be the losses that the volume's profile repairs. At any time at most `m` nodes are
//! **impaired**. A node is impaired from the moment when one of these faults strikes it until the
//! fault is over *and* every volume has reported, over newer connections, that it is whole (every
//! node up, no shard missing or still to be written, no rebuild running, the journal on all its
//! nodes):
//!
//! | fault             | what happens                                                            |
//! |-------------------|-------------------------------------------------------------------------|
//! | `NodeKill`        | its process dies and comes back; the page cache stays                    |
//! | `NodePower`       | its machine loses power: unsynced writes are kept, lost or torn          |
//! | `NodeWipe`        | it dies, and comes back empty under a new incarnation                    |
//! | `NodeSlow`        | its disk is up to a hundred times slower for a while                     |
//! | `Partition`       | its link to the volume is silent for a while                             |
//! | `ConnectionLoss`  | its connection breaks                                                    |
//! | `BitFlip`         | a bit at rest flips. In shard data: until every volume scrubbed. In its  |
//! |                   | other files: until the node is wiped, which the world does after a while |
//! | `DiskErrors`      | some reads, writes and syncs fail for a while; then its process restarts |
//! | `DiskFull`        | the disk refuses new space for a while; then its process restarts        |
//!
//! Some faults **stay**: the world never heals them. So their nodes are impaired to the end of the
//! run, and the run's final checks must hold with these faults present. They strike at most `m`
//! nodes, and only nodes that no other fault has impaired. The world does not replace the files of
//! such a node.
//!
//! | fault             | what stays                                                               |
//! |-------------------|--------------------------------------------------------------------------|
//! | `DamageStays`     | bits have flipped in any of the node's files: records of volumes, slot   |
//! |                   | headers, notes, shards, journals                                         |
//! | `ErrorsStay`      | all operations of the disk fail, or all of a kind, or all on files of a  |
//! |                   | kind                                                                     |
//! | `FullStays`       | the disk refuses new space                                               |
//! | `ReadOnlyStays`   | every operation that changes a file fails, and changes nothing           |
//! | `SlowStays`       | each operation of the disk takes a large part of the time after which a  |
//! |                   | node counts as down, or longer than that                                 |
//! | `SilenceStays`    | the process takes connections and requests, and never answers            |
//! | `StaleCopy`       | the node goes on with its files of some time ago                         |
//!
//! While a fault that stays is in place, another node is sound again when the volumes report that
//! they are as whole as they can be without the nodes of such faults: these nodes are down or have
//! no shards, every other node is up, no segment lacks more than one shard, and the journal is
//! whole.
//!
//! Faults that impair no node. They may come at any time, whatever else is impaired:
//!
//! | fault        | what happens                                                               |
//! |--------------|----------------------------------------------------------------------------|
//! | `VolumeKill` | volume processes die; new ones open. Acknowledged writes must be there      |
//! | `KillAll`    | every process dies, no page cache is lost. Acknowledged writes must be there |
//! | `PowerAll`   | every machine loses power. Flushed writes must be there                     |
//! | `Usurp`      | a second process of a volume takes over while the first is alive, perhaps   |
//! |              | cut off. The first must do no harm, and acknowledge nothing that is not     |
//! |              | there. Nodes that it is cut off from count as impaired, unless they are     |
//! |              | more than `m`                                                               |
//!
//! In a part of the runs other things happen that impair no node. They come at any time, to the end
//! of the run:
//!
//! | condition | what happens                                                                  |
//! |-----------|-------------------------------------------------------------------------------|
//! | `clock`   | the time of day jumps, forwards and backwards. Volumes learn of a jump one     |
//! |           | after another. In half of the runs nodes do so, too. The clocks of processes   |
//! |           | may differ all the time (`world/wall_clock.rs`)                                |
//! | `keys`    | the pool's secret is replaced, step by step. Processes learn of each step one  |
//! |           | after another. Some read an old copy or miss a rotation, which counts as a     |
//! |           | fault (`world/rotation.rs`)                                                    |
//! | `places`  | nodes run in processes of their own, and have addresses (`world/links.rs`)     |
//! | `pieces`  | nodes write shards in pieces of 1, 2 or 4 blocks (`node/src/disk.rs`)          |
//!
//! With several volumes, `VolumeKill`, `Usurp`, `Partition` and `ConnectionLoss` strike one of
//! them, or all.
//!
//! Faults strike an impaired node at most a few more times before the volumes are whole, and all
//! processes die at most a few times before one serves. Otherwise opening and rebuilding might
//! never make progress.
//!
//! After `KillAll` and `PowerAll`, and after all disks were full, every node counts as impaired
//! until the volumes are whole, so no fault that impairs nodes strikes before that. The nodes come
//! back one by one. But the world opens no volume before all nodes are back that no fault of their
//! own had impaired. A volume that opened without such nodes would go on without data that only
//! they have, as if these nodes were lost for good.
//!
//! In a scenario *beyond*, `NodeKill`, `Partition` and `ConnectionLoss` ignore the bound of `m`,
//! unless a fault that destroys something has impaired a node. (These scenarios have pools of more
//! than 2m nodes, where any two sets of nodes that a volume opens with have a node in common.) An
//! opening does not wait for ever for absent nodes, and going on without them would mean losing
//! more than `m` nodes. A request may fail if, at any time since it was made, faults of their own
//! had impaired more than `m` nodes; every other request must succeed. Every request must get an
//! answer, no read may give wrong data, and no serving volume may fail. These faults destroy
//! nothing: when the nodes are back, every volume opens and every block can be read. Bits flip in
//! shard data only: a node with another damaged file is lost in the end, and by then it may be one
//! of few nodes that have the written data.
//!
//! In a scenario *full* or *crowded*, requests may fail for lack of space while the pool is short
//! of space, and trimming must help.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_proto::NodeIndex;

use crate::random::RandomStream;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the module's table describes each")]
pub enum Fault {
    NodeKill,
    NodePower,
    NodeWipe,
    NodeSlow,
    Partition,
    ConnectionLoss,
    BitFlip,
    DiskErrors,
    DiskFull,
    VolumeKill,
    KillAll,
    PowerAll,
    Usurp,
    DamageStays,
    ErrorsStay,
    FullStays,
    ReadOnlyStays,
    SlowStays,
    SilenceStays,
    StaleCopy,
}

impl Fault {
    /// Faults that pass, or that end with the recovery from them.
    pub const PASSING: [Fault; 13] = [
        Fault::NodeKill,
        Fault::NodePower,
        Fault::NodeWipe,
        Fault::NodeSlow,
        Fault::Partition,
        Fault::ConnectionLoss,
        Fault::BitFlip,
        Fault::DiskErrors,
        Fault::DiskFull,
        Fault::VolumeKill,
        Fault::KillAll,
        Fault::PowerAll,
        Fault::Usurp,
    ];

    /// Faults that stay to the end of a run.
    pub const STAYING: [Fault; 7] = [
        Fault::DamageStays,
        Fault::ErrorsStay,
        Fault::FullStays,
        Fault::ReadOnlyStays,
        Fault::SlowStays,
        Fault::SilenceStays,
        Fault::StaleCopy,
    ];

    /// Its name in outcomes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fault::NodeKill => "node-kill",
            Fault::NodePower => "node-power",
            Fault::NodeWipe => "node-wipe",
            Fault::NodeSlow => "node-slow",
            Fault::Partition => "partition",
            Fault::ConnectionLoss => "connection-loss",
            Fault::BitFlip => "bit-flip",
            Fault::DiskErrors => "disk-errors",
            Fault::DiskFull => "disk-full",
            Fault::VolumeKill => "volume-kill",
            Fault::KillAll => "kill-all",
            Fault::PowerAll => "power-all",
            Fault::Usurp => "usurp",
            Fault::DamageStays => "damage-stays",
            Fault::ErrorsStay => "errors-stay",
            Fault::FullStays => "full-stays",
            Fault::ReadOnlyStays => "read-only-stays",
            Fault::SlowStays => "slow-stays",
            Fault::SilenceStays => "silence-stays",
            Fault::StaleCopy => "stale-copy",
        }
    }

    /// True for a fault that strikes one node.
    #[must_use]
    pub fn impairs(self) -> bool {
        !matches!(self, Fault::VolumeKill | Fault::KillAll | Fault::PowerAll | Fault::Usurp)
    }

    /// True for a fault that may take acknowledged data from a node's disk.
    #[must_use]
    pub fn destroys(self) -> bool {
        matches!(
            self,
            Fault::NodePower
                | Fault::NodeWipe
                | Fault::BitFlip
                | Fault::DiskErrors
                | Fault::DiskFull
        )
    }

    /// True for a fault that may exceed the bound in a scenario beyond: it destroys nothing.
    #[must_use]
    pub fn is_harmless_to_data(self) -> bool {
        matches!(self, Fault::NodeKill | Fault::Partition | Fault::ConnectionLoss)
    }
}

/// The relative frequency with which the world chooses each passing fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRates([u32; Fault::PASSING.len()]);

impl FaultRates {
    /// About half of the faults, in random proportion.
    #[must_use]
    pub fn draw(rng: &mut RandomStream) -> Self {
        Self(std::array::from_fn(|_| if rng.chance(450) { 0 } else { rng.between(1, 10) as u32 }))
    }

    /// Only these faults, equally often.
    #[must_use]
    pub fn only(faults: &[Fault]) -> Self {
        Self(Fault::PASSING.map(|fault| u32::from(faults.contains(&fault))))
    }

    /// A random fault, or `None` if all are off.
    pub fn pick(&self, rng: &mut RandomStream) -> Option<Fault> {
        rng.weighted(&self.0).map(|index| Fault::PASSING[index])
    }
}

/// The largest number of faults that strike one node before the volume is whole again.
const STRIKES_MAX: u32 = 6;

/// The state of an impaired node.
#[derive(Clone, Copy, Debug, Default)]
struct Impairment {
    /// Faults that struck the node since it was last sound.
    strikes: u32,
    /// Faults that are still in effect.
    ongoing: u32,
    ended_at: Nanos,
    needs_scrub: bool,
    /// The node was struck by a fault of its own, not only by one of all nodes.
    own: bool,
    /// The node was struck by a fault that stays.
    stays: bool,
    /// The node may have lost acknowledged data.
    lossy: bool,
}

/// Records the impaired nodes, and decides which faults may strike.
#[derive(Clone, Debug)]
pub struct FaultModel {
    impaired: BTreeMap<NodeIndex, Impairment>,
    impaired_max: usize,
    /// More than `impaired_max` nodes may have harmless faults.
    beyond: bool,
    /// When the number of struck nodes last exceeded the code's limit, if that is over.
    exceeded_until: Option<Nanos>,
    /// When a node was last impaired, if none is impaired now.
    impaired_until: Option<Nanos>,
}

impl FaultModel {
    /// A fault model for at most `impaired_max` impaired nodes, or for any number of harmless
    /// faults if `beyond`.
    #[must_use]
    pub fn new(impaired_max: usize, beyond: bool) -> Self {
        let impaired = BTreeMap::new();
        Self { impaired, impaired_max, beyond, exceeded_until: None, impaired_until: None }
    }

    /// True when `fault` may strike `node` now.
    #[must_use]
    pub fn allows(&self, fault: Fault, node: NodeIndex) -> bool {
        let known = self.impaired.get(&node);
        if known.is_some_and(|impairment| impairment.strikes >= STRIKES_MAX) {
            return false;
        }
        self.impaired.len() + usize::from(known.is_none()) <= self.impaired_max
            || (self.beyond && fault.is_harmless_to_data() && !self.is_lossy())
    }

    /// Nodes may have lost acknowledged data that the volumes have not restored.
    fn is_lossy(&self) -> bool {
        self.impaired.values().any(|impairment| impairment.lossy)
    }

    /// Notes that a fault destroys something on `node`.
    pub fn destroys(&mut self, node: NodeIndex) {
        self.impaired.entry(node).or_default().lossy = true;
    }

    /// True when a fault that stays may strike `node` now: no other fault has impaired the node,
    /// and few enough nodes are impaired.
    #[must_use]
    pub fn allows_staying(&self, node: NodeIndex) -> bool {
        !self.impaired.contains_key(&node) && self.impaired.len() < self.impaired_max
    }

    /// Notes that a fault strikes `node` and stays.
    pub fn begins_to_stay(&mut self, node: NodeIndex) {
        let impairment = self.impaired.entry(node).or_default();
        impairment.own = true;
        impairment.stays = true;
    }

    /// True when a fault that stays has struck `node`.
    #[must_use]
    pub fn stays(&self, node: NodeIndex) -> bool {
        self.impaired.get(&node).is_some_and(|impairment| impairment.stays)
    }

    /// Number of nodes that faults struck to stay.
    #[must_use]
    pub fn staying(&self) -> usize {
        self.impaired.values().filter(|impairment| impairment.stays).count()
    }

    /// Number of nodes that a fault of their own struck. The pool may have lost their space.
    #[must_use]
    pub fn struck(&self) -> usize {
        self.impaired.values().filter(|impairment| impairment.own).count()
    }

    /// True when all of `nodes` may be impaired together, in addition to the impaired ones.
    #[must_use]
    pub fn allows_all(&self, nodes: &[NodeIndex]) -> bool {
        let added = nodes.iter().filter(|node| !self.impaired.contains_key(node)).count();
        self.impaired.len() + added <= self.impaired_max
    }

    /// The largest number of impaired nodes.
    #[must_use]
    pub fn impaired_max(&self) -> usize {
        self.impaired_max
    }

    /// True when faults of their own have struck more nodes than the code survives.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        let struck = |impairment: &&Impairment| impairment.own || impairment.needs_scrub;
        self.impaired.values().filter(struck).count() > self.impaired_max
    }

    /// True when a node was impaired at any time since `at`.
    #[must_use]
    pub fn was_impaired_since(&self, at: Nanos) -> bool {
        !self.impaired.is_empty() || self.impaired_until.is_some_and(|until| until >= at)
    }

    /// True when [`FaultModel::is_exceeded`] was true at any time since `at`.
    #[must_use]
    pub fn was_exceeded_since(&self, at: Nanos) -> bool {
        self.is_exceeded() || self.exceeded_until.is_some_and(|until| until >= at)
    }

    /// Notes that a fault strikes `node`.
    pub fn begins(&mut self, node: NodeIndex) {
        let impairment = self.impaired.entry(node).or_default();
        impairment.ongoing += 1;
        impairment.strikes += 1;
        impairment.own = true;
    }

    /// Notes that a fault of all nodes strikes `node`.
    pub fn begins_for_all(&mut self, node: NodeIndex) {
        self.impaired.entry(node).or_default().ongoing += 1;
    }

    /// True if a volume may be opened while `node` is away.
    #[must_use]
    pub fn may_be_missed(&self, node: NodeIndex) -> bool {
        self.impaired.get(&node).is_some_and(|impairment| impairment.own)
    }

    /// Notes that a fault of `node` is over at this time, now or soon. Its consequences may go on.
    pub fn ends(&mut self, node: NodeIndex, at: Nanos) {
        if let Some(impairment) = self.impaired.get_mut(&node) {
            impairment.ongoing = impairment.ongoing.saturating_sub(1);
            impairment.ended_at = impairment.ended_at.max(at);
        }
    }

    /// Notes that shards on `node` are damaged until a scrub repairs them.
    pub fn needs_scrub(&mut self, node: NodeIndex) {
        self.impaired.entry(node).or_default().needs_scrub = true;
    }

    /// True when a scrub would help.
    #[must_use]
    pub fn wants_scrub(&self) -> bool {
        self.impaired.values().any(|impairment| impairment.needs_scrub)
    }

    /// Notes that a scrub has ended that began after the last damage.
    pub fn scrubbed(&mut self) {
        for impairment in self.impaired.values_mut() {
            impairment.needs_scrub = false;
        }
    }

    /// Notes that the volume reports at `now` that it is whole, and that its connections are sound.
    pub fn whole(&mut self, now: Nanos) {
        if self.is_exceeded() {
            self.exceeded_until = Some(now);
        }
        if !self.impaired.is_empty() {
            self.impaired_until = Some(now);
        }
        self.impaired.retain(|_, impairment| {
            let over = impairment.ongoing == 0 && impairment.ended_at < now;
            impairment.stays || impairment.needs_scrub || !over
        });
    }

    /// The impaired nodes.
    #[must_use]
    pub fn impaired(&self) -> Vec<NodeIndex> {
        self.impaired.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_until_the_volume_is_whole() {
        let mut model = FaultModel::new(1, false);
        assert!(model.allows(Fault::NodeWipe, NodeIndex(0)));
        model.begins(NodeIndex(0));
        assert!(!model.allows(Fault::NodeKill, NodeIndex(1)));
        assert!(model.allows(Fault::NodePower, NodeIndex(0)), "it is impaired already");
        model.whole(Nanos(10));
        assert_eq!(model.impaired().len(), 1, "the fault is not over");
        model.ends(NodeIndex(0), Nanos(20));
        assert!(!model.allows(Fault::NodeKill, NodeIndex(1)));
        model.whole(Nanos(21));
        assert!(model.allows(Fault::NodeKill, NodeIndex(1)));
    }

    #[test]
    fn a_node_is_not_struck_forever() {
        let mut model = FaultModel::new(1, true);
        for _ in 0..STRIKES_MAX {
            assert!(model.allows(Fault::NodeKill, NodeIndex(0)));
            model.begins(NodeIndex(0));
            model.ends(NodeIndex(0), Nanos(5));
        }
        assert!(!model.allows(Fault::NodeKill, NodeIndex(0)));
        model.whole(Nanos(6));
        assert!(model.allows(Fault::NodeKill, NodeIndex(0)));
    }

    #[test]
    fn what_stays_counts_to_the_end() {
        let mut model = FaultModel::new(2, false);
        model.begins(NodeIndex(1));
        assert!(!model.allows_staying(NodeIndex(1)), "something else is wrong with it");
        assert!(model.allows_staying(NodeIndex(0)));
        model.begins_to_stay(NodeIndex(0));
        model.ends(NodeIndex(1), Nanos(5));
        model.whole(Nanos(6));
        assert_eq!(model.impaired(), [NodeIndex(0)]);
        assert_eq!((model.staying(), model.stays(NodeIndex(0))), (1, true));
        assert!(model.allows(Fault::NodeKill, NodeIndex(2)));
        model.begins_to_stay(NodeIndex(3));
        assert!(!model.allows(Fault::NodeKill, NodeIndex(2)));
        assert!(!model.allows_staying(NodeIndex(2)));
    }

    #[test]
    fn damage_is_over_after_a_scrub_only() {
        let mut model = FaultModel::new(2, false);
        model.needs_scrub(NodeIndex(3));
        model.whole(Nanos(10));
        assert!(model.wants_scrub());
        model.scrubbed();
        model.whole(Nanos(11));
        assert!(model.impaired().is_empty());
    }

    #[test]
    fn beyond_lets_only_harmless_faults_through() {
        let mut model = FaultModel::new(1, true);
        model.begins(NodeIndex(0));
        assert!(model.allows(Fault::NodeKill, NodeIndex(1)));
        assert!(!model.allows(Fault::NodeWipe, NodeIndex(1)));
        model.begins(NodeIndex(1));
        assert!(model.is_exceeded());
        assert!(!model.allows(Fault::NodePower, NodeIndex(1)), "it would lose data");
    }

    #[test]
    fn an_excess_ends_when_the_volumes_are_whole() {
        let mut model = FaultModel::new(1, true);
        model.begins_for_all(NodeIndex(0));
        model.begins_for_all(NodeIndex(1));
        assert!(!model.was_exceeded_since(Nanos(0)), "all of them come back");
        model.begins(NodeIndex(0));
        model.begins(NodeIndex(1));
        assert!(model.was_exceeded_since(Nanos(5)));
        for node in [NodeIndex(0), NodeIndex(1)] {
            model.ends(node, Nanos(6));
            model.ends(node, Nanos(6));
        }
        assert!(model.was_exceeded_since(Nanos(7)), "not whole yet");
        model.whole(Nanos(8));
        assert!(model.was_exceeded_since(Nanos(8)) && !model.was_exceeded_since(Nanos(9)));
        assert!(model.was_impaired_since(Nanos(8)) && !model.was_impaired_since(Nanos(9)));
        model.begins(NodeIndex(0));
        assert!(model.was_impaired_since(Nanos(9)) && !model.was_exceeded_since(Nanos(9)));
    }
}
