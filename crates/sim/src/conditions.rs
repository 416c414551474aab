//! Conditions that only some runs have: the time of day jumps, the pool's secret is replaced, nodes
//! run in processes of their own, shards go to the disk in short pieces, volumes are those of
//! clients, there are five copies of the data, or a stranger speaks to the nodes.
//!
//! The worlds of older seeds had a steady clock, one secret, all nodes in the process of the
//! volumes, and disks that took each shard at once. Each of the plans here comes from a stream of
//! its own. So a run without a plan is the run that its seed gave before there was such a plan.

use std::str::FromStr;

use fieldstone_node::limits::REQUESTS_MAX;
use fieldstone_proto::{NodeIndex, RequestBody};

use crate::random::RandomStream;

const MS: u64 = 1_000_000;
const MINUTE: u64 = 60_000 * MS;
const HOUR: u64 = 60 * MINUTE;
/// Lengths of short pieces. Most shards of a run are longer.
const PIECE_BYTES: [u64; 3] = [4096, 8192, 16384];

/// A condition that only some runs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// The time of day jumps, and the clocks of processes may differ.
    Clock,
    /// The pool's secret is replaced again and again.
    Keys,
    /// Nodes run in processes of their own, in a part of the runs with such a plan only some.
    Places,
    /// Nodes write shards in short pieces.
    Pieces,
    /// Volumes are those of clients: they have no secret of the pool.
    Clients,
    /// The code is five copies, so a tree of replicas is two steps deep.
    Copies,
    /// A stranger speaks to the nodes on connections of its own.
    Stranger,
    /// A stranger sends requests of the present writers once more. No seed has this on its own: a
    /// capability is a bearer token.
    Replays,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Condition; 8] = [
        Self::Clock,
        Self::Keys,
        Self::Places,
        Self::Pieces,
        Self::Clients,
        Self::Copies,
        Self::Stranger,
        Self::Replays,
    ];

    /// Its name, as on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Keys => "keys",
            Self::Places => "places",
            Self::Pieces => "pieces",
            Self::Clients => "clients",
            Self::Copies => "copies",
            Self::Stranger => "stranger",
            Self::Replays => "replays",
        }
    }

    /// Runs of a thousand that have it, if nothing else is said.
    fn per_mille(self) -> u32 {
        match self {
            Self::Clock | Self::Keys | Self::Clients | Self::Stranger => 250,
            Self::Pieces => 300,
            Self::Places => 350,
            Self::Copies => 60,
            Self::Replays => 0,
        }
    }
}

/// A text names no condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no condition of a run: it is clock, keys, places, pieces, clients, copies, stranger \
     or replays"
)]
pub struct UnknownCondition(String);

impl FromStr for Condition {
    type Err = UnknownCondition;

    fn from_str(text: &str) -> Result<Self, UnknownCondition> {
        let found = Self::ALL.into_iter().find(|condition| condition.name() == text);
        found.ok_or_else(|| UnknownCondition(text.to_owned()))
    }
}

/// The conditions that each run has, and those that none has. The seeds decide about the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Each run has these.
    pub with: Vec<Condition>,
    /// No run has these.
    pub without: Vec<Condition>,
}

impl Chosen {
    /// Only these, in each run. The worlds of older seeds had none.
    #[must_use]
    pub fn only(with: &[Condition]) -> Self {
        let without = Condition::ALL.into_iter().filter(|condition| !with.contains(condition));
        Self { with: with.to_vec(), without: without.collect() }
    }

    /// Whether the run of this seed has the condition.
    #[must_use]
    pub fn has(&self, seed: u64, condition: Condition) -> bool {
        self.stream(seed, condition).is_some()
    }

    /// The stream of the condition's plan, if the run of this seed has it.
    fn stream(&self, seed: u64, condition: Condition) -> Option<RandomStream> {
        let mut rng = RandomStream::new(seed, condition.name(), 0);
        let drawn = rng.chance(condition.per_mille());
        let has = self.with.contains(&condition) || (drawn && !self.without.contains(&condition));
        has.then_some(rng)
    }
}

/// The plans of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// How the time of day behaves, if it is not steady.
    pub clock: Option<ClockPlan>,
    /// How the pool's secret is replaced, if it is.
    pub keys: Option<KeyPlan>,
    /// Where the nodes run, if not all in the process of the volumes.
    pub places: Option<PlacePlan>,
    /// The longest write to a shard that goes to a node's disk at once, in bytes, if it is shorter
    /// than all shards.
    pub piece_bytes: Option<usize>,
    /// How the metadata service answers, if volumes have no secret of the pool.
    pub service: Option<ServicePlan>,
    /// What a stranger does, if there is one.
    pub stranger: Option<StrangerPlan>,
    /// What a stranger sends once more, if there is one that has read it.
    pub replays: Option<ReplayPlan>,
}

impl Conditions {
    /// The plans of `seed` for a pool of `nodes` nodes.
    #[must_use]
    pub fn draw(seed: u64, nodes: u16, chosen: &Chosen) -> Self {
        let stream = |condition| chosen.stream(seed, condition);
        let clock = stream(Condition::Clock).map(|mut rng| ClockPlan::draw(&mut rng));
        let jumps = clock.is_some();
        Self {
            clock,
            keys: stream(Condition::Keys).map(|mut rng| KeyPlan::draw(&mut rng)),
            places: stream(Condition::Places).map(|mut rng| PlacePlan::draw(&mut rng, nodes)),
            piece_bytes: stream(Condition::Pieces).map(|mut rng| rng.pick(&PIECE_BYTES) as usize),
            service: stream(Condition::Clients).map(|mut rng| ServicePlan::draw(&mut rng, jumps)),
            stranger: stream(Condition::Stranger).map(|mut rng| StrangerPlan::draw(&mut rng)),
            replays: stream(Condition::Replays).map(|mut rng| ReplayPlan::draw(&mut rng)),
        }
    }

    /// A part of the summary of a scenario; empty without plans.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = String::new();
        if let Some(ClockPlan { forwards_per_mille, jump_ns, skew_ns_max, .. }) = &self.clock {
            let (longest, skew) = (jump_ns.1 / MINUTE, skew_ns_max / (1000 * MS));
            text += &format!(
                ", clock jumps up to {longest} min, {forwards_per_mille} in 1000 forwards, {skew} \
                 s of skew"
            );
        }
        if let Some(KeyPlan { watch_ns, .. }) = &self.keys {
            text += &format!(", secrets seen in {} ms", watch_ns / MS);
        }
        if let Some(PlacePlan { outside, moves }) = &self.places {
            let outside: Vec<String> = (0..)
                .zip(outside)
                .filter(|(_, outside)| **outside)
                .map(|(node, _): (u16, _)| node.to_string())
                .collect();
            let moves = if *moves { " at new addresses" } else { "" };
            text += &format!(", outside {}{moves}", outside.join(" "));
        }
        if let Some(bytes) = self.piece_bytes {
            text += &format!(", pieces of {} KiB", bytes >> 10);
        }
        if let Some(ServicePlan { lifetime_ns, delay_ns_max, .. }) = &self.service {
            let (lifetime, delay) = (lifetime_ns / (1000 * MS), delay_ns_max / MS);
            text += &format!(", capabilities of {lifetime} s in {delay} ms");
        }
        if let Some(StrangerPlan { gap_ns, requests_max, .. }) = &self.stranger {
            let gap = gap_ns.1 / MS;
            text += &format!(", a stranger every {gap} ms, tables of {requests_max}");
        }
        if let Some(ReplayPlan { class, .. }) = &self.replays {
            text += &format!(", replays of {}", class.name());
        }
        text
    }
}

/// How the time of day behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockPlan {
    /// Jumps of a thousand that go forwards.
    pub forwards_per_mille: u32,
    /// The shortest and the longest jump.
    pub jump_ns: (u64, u64),
    /// The shortest and the longest time between two jumps.
    pub gap_ns: (u64, u64),
    /// The clock of each process is ahead of the earliest one by at most this. A capability is
    /// valid for half an hour or longer when a volume uses it.
    pub skew_ns_max: u64,
    /// Nodes are on machines of their own, whose clocks jump within a second. Otherwise all nodes
    /// know of a jump at once.
    pub machines_apart: bool,
}

impl ClockPlan {
    fn draw(rng: &mut RandomStream) -> Self {
        let machines_apart = rng.chance(500);
        let gaps_ns = match machines_apart {
            // Longer than a node lets the time before a jump count, and another machine may be late
            // (docs/campaigns.md, open findings: a writer that starts between two jumps).
            true => [(4_100 * MS, 9_000 * MS); 2],
            false => [(100 * MS, 2_000 * MS), (1_000 * MS, 9_000 * MS)],
        };
        Self {
            forwards_per_mille: rng.pick(&[1000, 800, 500, 200, 0]),
            jump_ns: rng.pick(&[
                (500 * MS, 30_000 * MS),
                (10 * MINUTE, 40 * MINUTE),
                (MINUTE, 30 * HOUR),
                (HOUR, 30 * HOUR),
            ]),
            gap_ns: rng.pick(&gaps_ns),
            skew_ns_max: rng.pick(&[0, 0, 2_000 * MS, 20 * MINUTE]),
            machines_apart,
        }
    }
}

/// How the pool's secret is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPlan {
    /// A process learns of a step within this time. Two steps are at least twice as far apart.
    pub watch_ns: u64,
    /// The shortest and the longest time that the command adds to that.
    pub pause_ns: (u64, u64),
    /// Rotations of a thousand that retire the old secret without waiting for requests that it
    /// signed.
    pub demanded_per_mille: u32,
    /// Starts of a thousand at which a node that was down for a step reads an old copy of the
    /// secrets.
    pub old_copies_per_mille: u32,
    /// Rotations of a thousand of which a process that serves a volume learns nothing before the
    /// old secret is retired.
    pub missed_per_mille: u32,
    /// The longest time for which a process has secrets that are two steps too old.
    pub late_ns_max: u64,
}

impl KeyPlan {
    fn draw(rng: &mut RandomStream) -> Self {
        let watch_ns = rng.pick(&[30 * MS, 200 * MS, 1_000 * MS]);
        Self {
            watch_ns,
            pause_ns: rng.pick(&[(0, 10 * MS), (0, 3 * watch_ns), (watch_ns, 10 * watch_ns)]),
            demanded_per_mille: rng.pick(&[0, 300]),
            old_copies_per_mille: rng.pick(&[0, 500]),
            missed_per_mille: rng.pick(&[0, 0, 500]),
            late_ns_max: rng.pick(&[50 * MS, 1_000 * MS, 4_000 * MS]),
        }
    }
}

/// Where the nodes run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacePlan {
    /// The nodes that run in a process of their own. The others run in that of the volumes.
    pub outside: Vec<bool>,
    /// A node of a process of its own has another address after each start.
    pub moves: bool,
}

impl PlacePlan {
    fn draw(rng: &mut RandomStream, nodes: u16) -> Self {
        let all = rng.chance(200);
        let mut outside: Vec<bool> = (0..nodes).map(|_| all || rng.chance(500)).collect();
        if !all {
            // At least one of each kind.
            let first = rng.index(outside.len());
            let second = (first + 1) % outside.len();
            (outside[first], outside[second]) = (true, false);
        }
        Self { outside, moves: rng.chance(500) }
    }

    /// Whether the node runs in a process of its own.
    #[must_use]
    pub fn is_outside(&self, node: NodeIndex) -> bool {
        self.outside.get(usize::from(node.0)).copied().unwrap_or_default()
    }
}

/// How the metadata service answers volumes that have no secret of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePlan {
    /// How long a capability is valid.
    pub lifetime_ns: u64,
    /// The service answers within this time.
    pub delay_ns_max: u64,
    /// Questions of a thousand that are lost. Never two in a row.
    pub lost_per_mille: u32,
    /// The shortest and the longest time between two times at which the service is silent for
    /// longer than a capability is valid, towards one volume; `None` if it never is.
    pub silence_gap_ns: Option<(u64, u64)>,
}

impl ServicePlan {
    /// If the time of day `jumps`, nodes let capabilities expire 3 s later by the new time. By
    /// then, volumes must have new ones. And clocks differ by less than an hour then.
    fn draw(rng: &mut RandomStream, jumps: bool) -> Self {
        let lifetime_ns = rng.pick(&[10_000 * MS, 30_000 * MS, HOUR]);
        let delay_ns_max = rng.pick(&[MS, 20 * MS, 300 * MS]);
        let lost_per_mille = rng.pick(&[0, 200]);
        let is_silent = rng.chance(500);
        let gap_ns = rng.pick(&[(2_000 * MS, 10_000 * MS), (5_000 * MS, 60_000 * MS)]);
        let plan = Self { lifetime_ns, delay_ns_max, lost_per_mille, silence_gap_ns: None };
        match jumps {
            true => Self {
                lifetime_ns: HOUR,
                delay_ns_max: delay_ns_max.min(20 * MS),
                lost_per_mille: 0,
                ..plan
            },
            // Nothing would come of a silence of an hour.
            false if lifetime_ns == HOUR => plan,
            false => Self { silence_gap_ns: is_silent.then_some(gap_ns), ..plan },
        }
    }
}

/// What a stranger on the nodes' network does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrangerPlan {
    /// The shortest and the longest time between two visits of a node.
    pub gap_ns: (u64, u64),
    /// Visits in a run. Each costs some events.
    pub visits_max: u32,
    /// The longest time for which a visit leaves requests unfinished. Nodes give some up before.
    pub hang_ns_max: u64,
    /// Requests that a node takes at a time: as many as usual, or few, so that a stranger can fill
    /// the table.
    pub requests_max: usize,
    /// Visits of a thousand that fill the table of a node, if tables are small. A node whose table
    /// is full is impaired.
    pub floods_per_mille: u32,
}

impl StrangerPlan {
    fn draw(rng: &mut RandomStream) -> Self {
        let requests_max = rng.pick(&[128, 256, REQUESTS_MAX]);
        let floods_per_mille = if requests_max < REQUESTS_MAX { 100 } else { 0 };
        Self {
            gap_ns: rng.pick(&[(MS, 20 * MS), (10 * MS, 300 * MS)]),
            visits_max: 600,
            hang_ns_max: rng.pick(&[20 * MS, 1_000 * MS, 40_000 * MS]),
            requests_max,
            floods_per_mille,
        }
    }
}

/// A class of requests that a stranger sends once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayClass {
    /// Reads of shards and journals, lists, and counters.
    Reads,
    /// Fences of the present epoch.
    Fences,
    /// Roots.
    Roots,
    /// Reservations.
    Reservations,
    /// Creations and removals of journals.
    Journals,
    /// Appends to journals.
    Appends,
    /// Syncs of journals and shards.
    Syncs,
    /// Writes of shards.
    ShardWrites,
    /// Removals of shards.
    ShardDeletes,
    /// Passes.
    Passes,
}

impl ReplayClass {
    /// Every class.
    pub const ALL: [ReplayClass; 10] = [
        Self::Reads,
        Self::Fences,
        Self::Roots,
        Self::Reservations,
        Self::Journals,
        Self::Appends,
        Self::Syncs,
        Self::ShardWrites,
        Self::ShardDeletes,
        Self::Passes,
    ];

    /// Its name in summaries.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Fences => "fences",
            Self::Roots => "roots",
            Self::Reservations => "reservations",
            Self::Journals => "journals",
            Self::Appends => "appends",
            Self::Syncs => "syncs",
            Self::ShardWrites => "shard writes",
            Self::ShardDeletes => "shard deletes",
            Self::Passes => "passes",
        }
    }

    /// The class of a request; `None` for one that no volume sends.
    #[must_use]
    pub fn of(body: &RequestBody) -> Option<Self> {
        Some(match body {
            RequestBody::JournalRead { .. }
            | RequestBody::ShardRead { .. }
            | RequestBody::ShardVerify { .. }
            | RequestBody::ShardList { .. }
            | RequestBody::ListVolumes
            | RequestBody::Stat => Self::Reads,
            RequestBody::Fence { .. } => Self::Fences,
            RequestBody::PutRoot { .. } => Self::Roots,
            RequestBody::Reserve { .. } => Self::Reservations,
            RequestBody::JournalCreate { .. } | RequestBody::JournalDelete { .. } => Self::Journals,
            RequestBody::JournalAppend { .. } => Self::Appends,
            RequestBody::JournalSync { .. } | RequestBody::ShardSync => Self::Syncs,
            RequestBody::ShardWrite { .. } => Self::ShardWrites,
            RequestBody::ShardDelete { .. } => Self::ShardDeletes,
            RequestBody::AdmitRelays { .. } => Self::Passes,
            RequestBody::Identify
            | RequestBody::RenewRecord
            | RequestBody::RemoveVolume
            | RequestBody::Fragment { .. }
            | RequestBody::GiveUp => return None,
        })
    }
}

/// What a stranger that has read the requests of a writer sends once more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayPlan {
    /// Requests of this class. One class for each run, so that a failure names it.
    pub class: ReplayClass,
    /// The shortest and the longest time between two replays.
    pub gap_ns: (u64, u64),
}

impl ReplayPlan {
    fn draw(rng: &mut RandomStream) -> Self {
        let class = rng.pick(&ReplayClass::ALL);
        Self { class, gap_ns: rng.pick(&[(MS, 20 * MS), (10 * MS, 300 * MS)]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_has_the_same_plan_whoever_chose_it() {
        let all = Chosen::only(&Condition::ALL);
        let mut drawn = [0; 4];
        for seed in 0..400 {
            let free = Conditions::draw(seed, 6, &Chosen::default());
            let with = Conditions::draw(seed, 6, &all);
            assert!(free.clock.is_none() || free.clock == with.clock);
            assert!(free.keys.is_none() || free.keys == with.keys);
            assert!(free.places.is_none() || free.places == with.places);
            drawn[0] += usize::from(free.clock.is_some());
            drawn[1] += usize::from(free.keys.is_some());
            drawn[2] += usize::from(free.places.is_some());
            drawn[3] += usize::from(free.service.is_some());
            let none = Conditions::draw(seed, 6, &Chosen::only(&[]));
            assert_eq!((none, none_text(seed)), (Conditions::default(), String::new()));
        }
        assert!(drawn.iter().all(|count| (60..200).contains(count)), "{drawn:?}");
    }

    fn none_text(seed: u64) -> String {
        Conditions::draw(seed, 6, &Chosen::only(&[])).summary()
    }

    #[test]
    fn most_pools_with_nodes_outside_have_some_inside() {
        let places = Chosen::only(&[Condition::Places]);
        let mixed = (0..200).filter(|seed| {
            let plan = Conditions::draw(*seed, 3, &places).places.expect("each run has it");
            assert!(plan.outside.contains(&true));
            plan.outside.contains(&false)
        });
        assert!((130..190).contains(&mixed.count()));
    }

    #[test]
    fn names_are_read_again() {
        for condition in Condition::ALL {
            assert_eq!(condition.name().parse(), Ok(condition));
        }
        assert!("clocks".parse::<Condition>().is_err());
    }
}
