//! The world: nodes, volume processes and users on one virtual clock.
//!
//! One loop takes the next event off the schedule and hands it to its receiver. The receiver's
//! actions go back on the schedule. Nothing else moves time, so a run is a function of its
//! scenario. The parts: `nodes` and `volumes` host the processes; `users` submits requests and
//! judges answers; `growth` and `removal` grow and remove whole volumes; `faults` makes faults
//! strike; `links` connects nodes with each other, and strikes these links; `permanent_faults`
//! makes the faults that stay; `disk_full` fills the disks of all nodes; `wall_clock` lets the
//! time of day jump; `rotation` replaces the pool's secret; `stranger` speaks to the nodes on
//! connections of its own; `expected_space` decides when a volume
//! may report a lack of space; `accounting` checks the contents of nodes; `script` runs a run from
//! creation to the last check.

mod accounting;
mod describe;
mod disk_full;
mod expected_space;
mod faults;
mod growth;
mod links;
mod metadata;
mod nodes;
mod permanent_faults;
mod removal;
mod rotation;
pub(crate) mod script;
mod sim_volume;
mod stranger;
mod users;
mod volumes;
mod wall_clock;

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_node::{DiskId, PeerId};
use fieldstone_proto::{Epoch, NodeIndex, PoolId};

use crate::actor::{Cast, VolumeProcess};
use crate::device::DeviceFault;
use crate::fault_model::{Fault, FaultModel};
use crate::network::{ClientId, FrameDirection, Network};
use crate::random::RandomStream;
use crate::scenario::{Kind, Scenario, StayingPlan};
use crate::schedule::Schedule;
use crate::trace::{Trace, Who};
use disk_full::DisksFull;
use links::LinkEnd;
use metadata::Service;
use nodes::NodeHost;
use permanent_faults::OldCopy;
use rotation::Secrets;
use sim_volume::{Scrub, SimVolume};
use stranger::Stranger;
use users::InFlight;
use volumes::VolumeHost;
use wall_clock::{Side, TimeOfDay};

/// The kinds of events.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A frame is due on a connection.
    Frame { peer: PeerId, direction: FrameDirection },
    /// A disk operation of a node's `life` is due.
    Disk { node: NodeIndex, life: u64, id: DiskId },
    /// The time for which a volume process asked for a poll.
    Timer { client: ClientId, at: Nanos },
    /// A volume process tries to connect.
    Connect { client: ClientId, node: NodeIndex, attempt: u64 },
    /// The time for which a node's process asked for a tick.
    NodeTimer { node: NodeIndex, life: u64, at: Nanos },
    /// A node that a process of `life` wanted to reach refused.
    LinkRefused { node: NodeIndex, life: u64, to: LinkEnd },
    /// The next fault of a link between nodes is due.
    StrikeLink,
    /// A link between nodes works again.
    HealLink { from: NodeIndex, to: NodeIndex },
    /// The users of a volume go on.
    Work { volume_number: usize },
    /// The next fault is due.
    Strike,
    /// A fault on a node ends.
    Recover { node: NodeIndex, what: FaultEnd },
    /// Starts a process of a volume if none runs.
    Open { volume_number: usize },
    /// The user goes on removing a volume, or makes it again.
    Remove { volume_number: usize },
    /// Ends a volume process that has a successor.
    EndStale { client: ClientId },
    /// The nodes learn how much room their disks have.
    TellRoom,
    /// The time of day jumps.
    JumpWallClock,
    /// A process learns the present time of day.
    TellWallClock { side: Side },
    /// The command that replaces the pool's secret looks whether it may make the next step.
    Rotate,
    /// A process learns the present secrets of the pool.
    TellKeys { side: Side },
    /// A process that has missed a rotation learns the secrets.
    EndRefusals,
    /// The metadata service answers a volume that wants a capability.
    Issue { client: ClientId, epoch: Epoch },
    /// The metadata service falls silent towards a volume.
    StrikeService,
    /// The metadata service answers again.
    EndSilence,
    /// The stranger visits a node.
    Visit,
    /// The stranger leaves a node.
    Leave { peer: PeerId },
    /// The stranger sends a request of a writer once more.
    Replay,
    /// Checks the conditions that must always hold.
    Audit,
}

/// How a fault on a node ends.
#[derive(Clone, Copy, Debug)]
enum FaultEnd {
    /// The dead process comes back.
    Start,
    /// The disk has its normal speed again.
    Speed,
    /// The link to this volume process works again.
    Link(ClientId),
    /// The link to this succeeded volume process works again. `counts`: the node had counted as
    /// impaired.
    StaleLink { client: ClientId, counts: bool },
    /// The disk works again; the process is restarted.
    Disk,
    /// An empty node replaces the damaged one.
    Replace,
    /// The present file with the secrets replaces the old copy.
    OldKeys,
}

/// The failure of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub what: String,
    /// The time.
    pub at: Nanos,
}

/// How often the world checks the conditions that must always hold; less often in long runs.
const AUDIT_GAP_NS: u64 = 20_000_000;
/// Longest virtual time of a request while no node is impaired. Twice this if the pool is short of
/// room, and four times if a disk is also slow for good. In a pool that is short of room, a request
/// also waits for each other request in the queue (`QUEUED_NS_MAX`, `SLOW_QUEUED_NS_MAX`).
const SOUND_NS_MAX: u64 = 15_000_000_000;
/// The same if a node was impaired since the request was made.
const REQUEST_NS_MAX: u64 = 30_000_000_000;
/// Longest virtual time without a process that serves a volume, however often processes are killed
/// meanwhile.
const SHUT_NS_MAX: u64 = 600_000_000_000;

/// A seeded world in the middle of a run.
pub struct World<'a, C: Cast> {
    scenario: Scenario,
    cast: &'a C,
    schedule: Schedule<Happening>,
    trace: Trace<'a>,
    network: Network,
    nodes: Vec<NodeHost<C::Node>>,
    /// The volumes, each with its users.
    sim_volumes: Vec<SimVolume>,
    /// The living volume processes.
    volumes: BTreeMap<ClientId, VolumeHost<C::Volume>>,
    /// The volume of each process, in the order of the starts.
    owners: Vec<usize>,
    fault_model: FaultModel,
    in_flight: BTreeMap<u32, InFlight>,
    requests: u32,
    /// Users make requests by themselves, and faults strike.
    users_active: bool,
    faults_active: bool,
    /// The users are done, and no fault strikes any more, except staying faults that are still to
    /// come.
    calm: bool,
    /// At the last audit every volume was as sound as it can be where faults stay, and no process
    /// has died since.
    steady: bool,
    fault_rng: RandomStream,
    /// Decides which volumes a fault strikes, if there are several.
    volume_rng: RandomStream,
    /// Faults that stay and have not struck yet.
    staying: Vec<StayingPlan>,
    disks_full: DisksFull,
    old_copies: BTreeMap<NodeIndex, OldCopy>,
    permanent_rng: RandomStream,
    /// Audits so far.
    audits: u64,
    /// Blocks that acknowledged trims and zeroes covered, and blocks of volumes that were removed.
    freed_blocks: u64,
    world_rng: RandomStream,
    /// Decides about links between nodes.
    link_rng: RandomStream,
    link_faults: BTreeMap<&'static str, u64>,
    time_of_day: TimeOfDay,
    secrets: Secrets,
    service: Service,
    stranger: Stranger,
    /// Requests that nodes passed on, as in [`crate::Outcome::links`].
    links: [u64; 3],
    /// Fragments that nodes passed on.
    fragments: u64,
    /// Records that nodes passed on, and records that volumes sent once more, of volume processes
    /// that have died.
    relays: [u64; 2],
    /// The same for parity that data nodes passed on.
    carried: [u64; 2],
    /// The same for parity that nodes make: what nodes made, and what volumes made in their place.
    parities: [u64; 2],
    injected: BTreeMap<Fault, u64>,
    device_faults: BTreeMap<DeviceFault, u64>,
    /// The counters of the layers of volume processes that have died.
    layers: BTreeMap<(&'static str, &'static str), u64>,
    failed_requests: u64,
    failure: Option<Failure>,
}

impl<'a, C: Cast> World<'a, C> {
    /// A world with started nodes, and without volumes.
    pub fn new(scenario: Scenario, cast: &'a C, trace: Trace<'a>) -> Self {
        let seed = scenario.seed;
        let beyond = scenario.kind == Kind::Beyond;
        let mut world = Self {
            schedule: Schedule::default(),
            network: Network::new(
                RandomStream::new(seed, "network", 0),
                scenario.network,
                scenario.wire,
            ),
            nodes: Vec::new(),
            sim_volumes: (0..scenario.volumes.len())
                .map(|n| SimVolume::new(&scenario, n))
                .collect(),
            volumes: BTreeMap::new(),
            owners: Vec::new(),
            fault_model: FaultModel::new(scenario.profile.m(), beyond),
            in_flight: BTreeMap::new(),
            requests: 0,
            users_active: false,
            faults_active: false,
            calm: false,
            steady: false,
            fault_rng: RandomStream::new(seed, "faults", 0),
            // The name that the streams of recorded seeds have.
            volume_rng: RandomStream::new(seed, "tenants", 0),
            staying: scenario.staying.clone(),
            disks_full: DisksFull::Ahead,
            old_copies: BTreeMap::new(),
            permanent_rng: RandomStream::new(seed, "lasting", 0),
            audits: 0,
            freed_blocks: 0,
            world_rng: RandomStream::new(seed, "world", 0),
            link_rng: RandomStream::new(seed, "links", 0),
            link_faults: BTreeMap::new(),
            time_of_day: TimeOfDay::new(&scenario),
            secrets: Secrets::new(&scenario),
            service: Service::new(&scenario),
            stranger: Stranger::new(&scenario),
            links: [0; 3],
            fragments: 0,
            relays: [0, 0],
            carried: [0, 0],
            parities: [0, 0],
            injected: BTreeMap::new(),
            device_faults: BTreeMap::new(),
            layers: BTreeMap::new(),
            failed_requests: 0,
            failure: None,
            scenario,
            cast,
            trace,
        };
        for node in 0..world.scenario.nodes {
            world.add_node(NodeIndex(node));
        }
        world.schedule.after(AUDIT_GAP_NS, Happening::Audit);
        world
    }

    /// The present time.
    fn now(&self) -> Nanos {
        self.schedule.now()
    }

    fn pool() -> PoolId {
        PoolId(0xf1e1d)
    }

    /// Records the first failure. The run ends with it.
    fn fail(&mut self, what: String) {
        if self.failure.is_none() {
            let at = self.now();
            self.trace.line(at, Who::World, "FAILED", 0, format_args!("{what}"));
            self.failure = Some(Failure { what, at });
        }
    }

    fn note(&mut self, who: Who, what: &'static str, key: u64, detail: std::fmt::Arguments<'_>) {
        self.trace.line(self.schedule.now(), who, what, key, detail);
    }

    /// Handles the next event. False when no event is left or the run has failed.
    fn step(&mut self) -> bool {
        if self.failure.is_some() {
            return false;
        }
        let Some(happening) = self.schedule.next_event() else { return false };
        match happening {
            Happening::Frame { peer, direction } => self.frame_due(peer, direction),
            Happening::Disk { node, life, id } => self.disk_due(node, life, id),
            Happening::Timer { client, at } => self.timer_due(client, at),
            Happening::Connect { client, node, attempt } => self.connect_due(client, node, attempt),
            Happening::NodeTimer { node, life, at } => self.node_timer_due(node, life, at),
            Happening::LinkRefused { node, life, to } => self.link_refused_due(node, life, to),
            Happening::StrikeLink => self.link_strike_due(),
            Happening::HealLink { from, to } => self.heal_link_due(from, to),
            Happening::Work { volume_number } => self.work_due(volume_number),
            Happening::Strike => self.strike_due(),
            Happening::Recover { node, what } => self.recover_due(node, what),
            Happening::Open { volume_number } => self.open_due(volume_number),
            Happening::TellRoom => self.tell_room_due(),
            Happening::Remove { volume_number } => self.remove_due(volume_number),
            Happening::EndStale { client } => self.kill_volume(client, "end of a stale writer"),
            Happening::JumpWallClock => self.jump_due(),
            Happening::TellWallClock { side } => self.tell_wall_clock_due(side),
            Happening::Rotate => self.rotation_due(),
            Happening::TellKeys { side } => self.tell_keys_due(side),
            Happening::EndRefusals => self.end_refusals_due(),
            Happening::Issue { client, epoch } => self.issue_due(client, epoch),
            Happening::StrikeService => self.strike_service_due(),
            Happening::EndSilence => self.end_silence_due(),
            Happening::Visit => self.visit_due(),
            Happening::Leave { peer } => self.leave_due(peer),
            Happening::Replay => self.replay_due(),
            Happening::Audit => self.audit_due(),
        }
        self.collect_frames();
        self.failure.is_none()
    }

    /// Puts the network's frames on the schedule.
    fn collect_frames(&mut self) {
        for due in self.network.take_due() {
            let happening = Happening::Frame { peer: due.peer, direction: due.direction };
            self.schedule.at(due.at, happening);
        }
    }

    fn frame_due(&mut self, peer: PeerId, direction: FrameDirection) {
        let Some((ends, arrival)) = self.network.arrive(peer, direction) else { return };
        match direction {
            FrameDirection::ToNode => self.arrived_at_node(ends, arrival),
            FrameDirection::ToClient => match ends.client.node() {
                Some(node) => self.arrived_over_link(node, ends, arrival),
                None => self.arrived_at_volume(ends, arrival),
            },
        }
    }

    fn audit_due(&mut self) {
        let gap_ns = AUDIT_GAP_NS.max(self.now().0 / 1000);
        self.schedule.after(gap_ns, Happening::Audit);
        if self.has_clients() {
            self.note_end_of_refusals();
        }
        self.check_for_stuck_requests();
        self.audit_nodes();
        self.audit_tables();
        self.audit_growth();
        self.strike_to_stay();
        self.fill_disks_if_due();
        let mut whole = true;
        for volume_number in self.volume_numbers() {
            whole &= self.audit_volume(volume_number);
        }
        if self.sim_volumes.iter().all(|sim_volume| sim_volume.scrub == Scrub::Done) {
            self.fault_model.scrubbed();
            self.forget_scrubs();
        }
        if whole {
            self.fault_model.whole(self.now());
        }
        let steady =
            |sim_volume: &SimVolume| sim_volume.active.is_some_and(|active| self.is_steady(active));
        self.steady = self.calm && self.sim_volumes.iter().all(steady);
    }

    /// The volume goes on without a node until it is opened again.
    fn has_fenced_node(&self, client: ClientId) -> bool {
        let volume = self.volumes[&client].device.store();
        volume.phase() == fieldstone_volume::VolumePhase::Serving
            && volume.health().nodes.iter().any(|node| node.fenced)
    }

    /// Starts or follows a scrub of a volume, if the fault model needs one. True when the volume is
    /// whole.
    fn audit_volume(&mut self, volume_number: usize) -> bool {
        let Some(active) = self.sim_volumes[volume_number].active else { return false };
        if self.has_fenced_node(active) && (self.calm || self.world_rng.chance(20)) {
            // The operator reads this in the status, sooner or later, and opens the volume again.
            self.kill_volume(active, "a node waits for the next opening");
            return false;
        }
        let scrub = self.sim_volumes[volume_number].scrub;
        if !self.is_whole(active) {
            if matches!(scrub, Scrub::Requested { by, .. } if by != active) {
                self.sim_volumes[volume_number].scrub = Scrub::Idle;
            }
            return false;
        }
        let now = self.now();
        let health = self.volumes[&active].device.store().health();
        let scrubbing = health.scrubbing;
        match scrub {
            Scrub::Requested { by, at } if by == active && !scrubbing && at < now => {
                let complete = health.scrub_failed == 0;
                self.sim_volumes[volume_number].scrub =
                    if complete { Scrub::Done } else { Scrub::Idle };
            }
            Scrub::Requested { by, .. } if by == active => {}
            Scrub::Done => {}
            _ if self.fault_model.wants_scrub() && !scrubbing => {
                self.note(Who::World, "scrub", volume_number as u64, format_args!("is asked for"));
                self.sim_volumes[volume_number].scrub = Scrub::Requested { by: active, at: now };
                self.with_volume(active, |volume, _| volume.request_scrub());
            }
            _ => {}
        }
        true
    }

    /// Forgets scrubs under way or over: they may have passed a place that was damaged since.
    fn forget_scrubs(&mut self) {
        for sim_volume in &mut self.sim_volumes {
            sim_volume.scrub = Scrub::Idle;
        }
    }
}

impl<C: Cast> World<'_, C> {
    /// An actor panicked.
    pub(crate) fn panicked(&mut self, text: &str) {
        self.fail(format!("panic: {text}"));
    }

    /// The outcome of the run.
    pub(crate) fn outcome(mut self, seed: u64, scenario: String) -> crate::run::Outcome {
        for host in std::mem::take(&mut self.volumes).values() {
            self.count_layers(host);
        }
        let injected = self.injected.iter().map(|(fault, count)| (fault.name(), *count));
        let of_links = self.link_faults.iter().map(|(fault, count)| (*fault, *count));
        let of_conditions = [
            ("clock-jump", self.time_of_day.jumps),
            ("new-secret", self.secrets.retired),
            ("old-secret", self.secrets.old_copies),
            ("missed-secret", self.secrets.missed),
            ("silent-service", self.service.silences),
        ];
        let of_conditions = of_conditions.into_iter().filter(|(_, count)| *count > 0);
        let of_stranger = self.stranger.counts.iter().map(|(what, count)| (*what, *count));
        let of_devices = self.device_faults.iter().map(|(fault, count)| (fault.name(), *count));
        crate::run::Outcome {
            seed,
            scenario,
            ops: u64::from(self.requests),
            ops_failed: self.failed_requests,
            events: self.schedule.taken(),
            virtual_time: self.schedule.now(),
            volumes_started: self.owners.len() as u32,
            faults: injected
                .chain(of_devices)
                .chain(of_links)
                .chain(of_conditions)
                .chain(of_stranger)
                .collect(),
            relays: self.relays,
            carried: self.carried,
            parities: self.parities,
            links: self.links,
            fragments: self.fragments,
            layers: self.layers.iter().map(|(name, value)| (name.0, name.1, *value)).collect(),
            trace_hash: self.trace.hash(),
            failure: self.failure,
        }
    }
}
