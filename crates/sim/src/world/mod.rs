//! The world: nodes, volume processes and users on one virtual clock.
//!
//! One loop takes the next event off the schedule and hands it to whom it concerns; whatever that
//! one wants done goes back on the schedule. Nothing else moves time, so a run is a function of
//! its scenario. The parts: `nodes` and `volumes` host the processes, `users` submits requests
//! and judges answers, `faults` strikes, `script` tells a run from creation to the last check.

mod describe;
mod faults;
mod nodes;
pub(crate) mod script;
mod users;
mod volumes;

use std::collections::BTreeMap;

use fieldstone_block::Nanos;
use fieldstone_node::{DiskId, PeerId};
use fieldstone_proto::{Epoch, MasterKey, NodeIndex, PoolId, VolumeId};

use crate::actor::{Cast, VolumeProcess};
use crate::atlas::{Atlas, Fault};
use crate::checker::Checker;
use crate::dice::Dice;
use crate::network::{ClientId, Direction, Network};
use crate::scenario::{Kind, Scenario};
use crate::schedule::Schedule;
use crate::trace::{Trace, Who};
use crate::workload::Workload;
use nodes::NodeHost;
use users::InFlight;
use volumes::VolumeHost;

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A frame is due on a connection.
    Frame { peer: PeerId, direction: Direction },
    /// A disk operation of a node's `life` is due.
    Disk { node: NodeIndex, life: u64, id: DiskId },
    /// A volume process asked to be polled.
    Timer { client: ClientId, at: Nanos },
    /// A volume process tries to connect.
    Connect { client: ClientId, node: NodeIndex, attempt: u64 },
    /// The users go on.
    Work,
    /// The next fault is due.
    Strike,
    /// A fault on a node ends.
    Recover { node: NodeIndex, what: Recovery },
    /// A volume process is started if none is.
    Open,
    /// A succeeded volume process is put out of its misery.
    EndStale { client: ClientId },
    /// Things that must hold all the time are looked at.
    Audit,
}

/// How a fault on a node ends.
#[derive(Clone, Copy, Debug)]
enum Recovery {
    /// The dead process comes back.
    Start,
    /// The disk is at its speed again.
    Speed,
    /// The link to this volume process is whole again.
    Link(ClientId),
    /// The link to this succeeded volume process is whole again; the node need not have counted as
    /// impaired.
    StaleLink { client: ClientId, counts: bool },
    /// The disk works again; the process is restarted.
    Disk,
    /// The damaged node is replaced by an empty one.
    Replace,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What.
    pub what: String,
    /// When.
    pub at: Nanos,
}

/// The id of the volume of every run.
const VOLUME: VolumeId = VolumeId(0x5eed);
/// How often the world looks at what must hold all the time; more rarely the longer the run.
const AUDIT_GAP_NS: u64 = 20_000_000;
/// Longest virtual time that a request may take.
const REQUEST_NS_MAX: u64 = 120_000_000_000;

/// A seeded world in the middle of a run.
pub struct World<'a, C: Cast> {
    scenario: Scenario,
    cast: &'a C,
    schedule: Schedule<Happening>,
    trace: Trace<'a>,
    network: Network,
    nodes: Vec<NodeHost<C::Node>>,
    volumes: BTreeMap<ClientId, VolumeHost<C::Volume>>,
    /// The volume process that users talk to; the one started last.
    active: Option<ClientId>,
    clients_started: u32,
    workload: Workload,
    checker: Checker,
    atlas: Atlas,
    in_flight: BTreeMap<u32, InFlight>,
    requests: u32,
    /// A `Work` event is on the schedule.
    work_pending: bool,
    /// An `Open` event is on the schedule.
    open_pending: bool,
    /// Requests that a succeeded writer is still given.
    stale_ops_left: u32,
    /// Users make requests of their own accord, and faults strike.
    users_active: bool,
    faults_active: bool,
    scrub: Scrub,
    opening_failures: u32,
    /// Deaths of volume processes since one served.
    strikes_since_serving: u32,
    /// The highest epoch that each node has shown since it was empty.
    epochs: Vec<Epoch>,
    fault_dice: Dice,
    world_dice: Dice,
    injected: BTreeMap<Fault, u64>,
    failed_requests: u64,
    failure: Option<Failure>,
}

/// Where the world is with a scrub that it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scrub {
    Idle,
    Requested { by: ClientId, at: Nanos },
}

impl<'a, C: Cast> World<'a, C> {
    /// A world with its nodes started, and no volume yet.
    pub fn new(scenario: Scenario, cast: &'a C, trace: Trace<'a>) -> Self {
        let seed = scenario.seed;
        let beyond = scenario.kind == Kind::Beyond;
        let mut world = Self {
            schedule: Schedule::default(),
            network: Network::new(Dice::new(seed, "network", 0), scenario.network),
            nodes: Vec::new(),
            volumes: BTreeMap::new(),
            active: None,
            clients_started: 0,
            workload: Workload::new(scenario.plan.clone(), Dice::new(seed, "workload", 0)),
            checker: Checker::new(scenario.plan.device_blocks, ClientId(0)),
            atlas: Atlas::new(scenario.profile.m(), beyond),
            in_flight: BTreeMap::new(),
            requests: 0,
            work_pending: false,
            open_pending: false,
            stale_ops_left: 0,
            users_active: false,
            faults_active: false,
            scrub: Scrub::Idle,
            opening_failures: 0,
            strikes_since_serving: 0,
            epochs: vec![Epoch(0); usize::from(scenario.nodes)],
            fault_dice: Dice::new(seed, "faults", 0),
            world_dice: Dice::new(seed, "world", 0),
            injected: BTreeMap::new(),
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

    /// The time.
    fn now(&self) -> Nanos {
        self.schedule.now()
    }

    fn key() -> MasterKey {
        MasterKey([0x5e; 16])
    }

    fn pool() -> PoolId {
        PoolId(0xf1e1d)
    }

    /// Records the first thing that went wrong; the run ends with it.
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

    /// Lets the next thing happen; false when nothing is left or something went wrong.
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
            Happening::Work => self.work_due(),
            Happening::Strike => self.strike_due(),
            Happening::Recover { node, what } => self.recover_due(node, what),
            Happening::Open => self.open_due(),
            Happening::EndStale { client } => self.kill_volume(client, "end of a stale writer"),
            Happening::Audit => self.audit_due(),
        }
        self.collect_frames();
        self.failure.is_none()
    }

    /// Puts what the network wants delivered on the schedule.
    fn collect_frames(&mut self) {
        for due in self.network.take_due() {
            let happening = Happening::Frame { peer: due.peer, direction: due.direction };
            self.schedule.at(due.at, happening);
        }
    }

    fn frame_due(&mut self, peer: PeerId, direction: Direction) {
        let Some((ends, arrival)) = self.network.arrive(peer, direction) else { return };
        match direction {
            Direction::ToNode => self.arrived_at_node(ends, arrival),
            Direction::ToClient => self.arrived_at_volume(ends, arrival),
        }
    }

    fn audit_due(&mut self) {
        let gap_ns = AUDIT_GAP_NS.max(self.now().0 / 1000);
        self.schedule.after(gap_ns, Happening::Audit);
        self.check_for_stuck_requests();
        let Some(active) = self.active else { return };
        if !self.is_whole(active) {
            if !matches!(self.scrub, Scrub::Requested { by, .. } if by == active) {
                self.scrub = Scrub::Idle;
            }
            return;
        }
        let now = self.now();
        let health = self.volumes[&active].process.health();
        let scrubbing = health.scrubbing;
        match self.scrub {
            Scrub::Requested { by, at } if by == active && !scrubbing && at < now => {
                if health.scrub_failed == 0 {
                    self.atlas.scrubbed();
                }
                self.scrub = Scrub::Idle;
            }
            Scrub::Requested { by, .. } if by == active => {}
            _ if self.atlas.wants_scrub() && !scrubbing => {
                self.note(Who::World, "scrub", 0, format_args!("is asked for"));
                self.scrub = Scrub::Requested { by: active, at: now };
                self.with_volume(active, |volume, _| volume.request_scrub());
            }
            _ => {}
        }
        self.atlas.whole(now);
    }
}

impl<C: Cast> World<'_, C> {
    /// An actor panicked.
    pub(crate) fn panicked(&mut self, text: &str) {
        self.fail(format!("panic: {text}"));
    }

    /// How the run went.
    pub(crate) fn outcome(self, seed: u64, scenario: String) -> crate::run::Outcome {
        crate::run::Outcome {
            seed,
            scenario,
            ops: u64::from(self.requests),
            ops_failed: self.failed_requests,
            events: self.schedule.taken(),
            virtual_time: self.schedule.now(),
            volumes_started: self.clients_started,
            faults: self.injected.iter().map(|(fault, count)| (fault.name(), *count)).collect(),
            trace_hash: self.trace.hash(),
            failure: self.failure,
        }
    }
}
