//! A scenario: all parameters of a run that are fixed before it starts, drawn from its seed.
//!
//! Sizes are small on purpose: with shards of 32 to 64 KiB and rings of a few hundred KiB, segments
//! are sealed, collection runs and checkpoints are written many times in a second of virtual time.

use fieldstone_block::Layer;
use fieldstone_block::layers::LayerOptions;
use fieldstone_codes::Profile;
use fieldstone_node::limits::PARITY_MEMORY_BYTES;
use fieldstone_proto::{Encode, NodeIndex, Strategy};
use fieldstone_volume::{Geometry, Provisioning, ReadPolicy, slots_whole, step_blocks};

use crate::conditions::{Chosen, Conditions};
use crate::device::DevicePlan;
use crate::disk::DiskKind;
use crate::fault_model::{Fault, FaultRates};
use crate::network::NetworkSpeed;
use crate::random::RandomStream;
use crate::workload::WorkloadConfig;

/// Memory for sums of parity, as nodes have it by default.
const ACCUMULATOR_BYTES: usize = PARITY_MEMORY_BYTES / 2;

/// The kind of a run. It decides which answers are permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Faults within the fault model: every request must succeed.
    Within,
    /// Sometimes more nodes are away than the code survives. Requests may fail meanwhile, but no
    /// data may be lost.
    Beyond,
    /// The pool is too small for the written data. Requests may fail for lack of space.
    Full,
    /// Several volumes need all of the pool's space or a little more. Requests may fail for lack of
    /// space.
    Crowded,
}

/// The plan for one volume of the pool.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// Its sizes.
    pub geometry: Geometry,
    /// Its users.
    pub plan: WorkloadConfig,
    /// The smallest part of a block that requests cover: [`BLOCK_BYTES`], or a fraction of it.
    pub cell_bytes: u32,
    /// Whether the volume is thick or thin.
    pub provisioning: Provisioning,
    /// When the volume grows, if it grows.
    pub growth: Option<Growth>,
    /// If set: after this many requests of its users the volume is removed, and created again.
    pub removed_at_request: Option<u32>,
    /// Blocks by which the volume grows when the users are done; 0 if it does not grow.
    pub more_blocks_at_end: u64,
}

/// When a volume grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The number of requests of its users after which it grows.
    pub at_request: u32,
    /// Its size from then on.
    pub size_bytes: u64,
}

/// A fault that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StayingPlan {
    /// The node that it strikes.
    pub node: NodeIndex,
    /// The fault, one of [`Fault::STAYING`].
    pub fault: Fault,
    /// It strikes when users have made this many requests, or as soon after that as the model
    /// allows.
    pub at_request: u32,
    /// For a stale copy: the number of requests after which the world copies the files.
    pub copy_at_request: u32,
}

/// When another program fills the disks of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisksFullPlan {
    /// When users have made this many requests, or as soon after that as no node is impaired.
    pub at_request: u32,
    /// How long the disks are full.
    pub for_ns: u64,
    /// The space that is left on each disk.
    pub left_bytes: u64,
}

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of the scenario.
    pub seed: u64,
    /// The kind of run.
    pub kind: Kind,
    /// The code that protects the data.
    pub profile: Profile,
    /// Nodes of the pool.
    pub nodes: u16,
    /// The volumes of the pool; at least one.
    pub volumes: Vec<VolumePlan>,
    /// Slots per node; a slot is a shard.
    pub slots: u32,
    /// How often each fault strikes.
    pub fault_rates: FaultRates,
    /// Mean time between faults; 0 for never.
    pub fault_gap_ns: u64,
    /// Faults that stay.
    pub staying: Vec<StayingPlan>,
    /// When all disks are full, if they are in this run.
    pub disks_full: Option<DisksFullPlan>,
    /// The accelerator devices of the volumes, if they have any.
    pub device: Option<DevicePlan>,
    /// The disks.
    pub disk: DiskKind,
    /// The network.
    pub network: NetworkSpeed,
    /// Messages travel as bytes of the wire format.
    pub wire: bool,
    /// Users send NBD's bytes.
    pub nbd: bool,
    /// The layers of each volume's device, if it has any.
    pub layers: Option<LayerOptions>,
    /// How records reach the nodes of a journal.
    pub replicate: Strategy,
    /// A longer write that nodes pass on goes in fragments of this length; 0 if none does.
    pub fragment_bytes: u32,
    /// Who makes the parity of new segments.
    pub encode: Encode,
    /// Bytes that a node has for sums of contributions to parity.
    pub accumulator_bytes: usize,
    /// Which copy answers a read.
    pub reads: ReadPolicy,
    /// The silence after which a volume counts a node as down.
    pub node_timeout_ms: u64,
    /// The time of day at the beginning, by which capabilities expire, minus the world's clock.
    pub wall_offset_ns: u64,
    /// The time of day, the secrets, and the processes of the nodes.
    pub conditions: Conditions,
}

/// Size of a volume's block.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Cells smaller than a block, and the largest device with them in blocks. A run costs more with
/// more cells.
const SMALL_CELLS: [(u32, u64); 4] = [(1024, 4096), (512, 4096), (512, 4096), (64, 512)];
/// How many volumes share a pool, in scenarios with several. A run costs more with each.
const VOLUMES: [u64; 5] = [2, 2, 2, 3, 4];
/// Fewest requests of each volume, where there are several.
const SHARED_OPS_MIN: u32 = 60;
/// Shards that a node must have room for, for each volume of any size: shards of open segments and
/// of checkpoints, and shards that wait to be freed.
const SLOTS_SPARE: u64 = 24;
/// The same in a crowded pool: enough for the slots that each volume must keep for itself, and few
/// more.
const SLOTS_SPARE_CROWDED: [u64; 3] = [12, 16, 24];
/// Most blocks by which a volume grows at the end of a run.
const BLOCKS_AT_END_MAX: u64 = 128;
/// Slots that thick volumes leave to each volume in addition to those that they reserve.
const SLOTS_OF_THIN: u64 = 12;

impl Scenario {
    /// The scenario of `seed`. Uses `code`, if given, in place of the code that the seed draws.
    #[must_use]
    pub fn from_seed(seed: u64, code: Option<Profile>) -> Self {
        let mut scenario = Self::thin(seed, code);
        scenario.draw_provisioning();
        scenario.draw_growth_at_end();
        scenario.draw_removal();
        scenario.draw_disks_full();
        scenario.device = DevicePlan::draw(&mut RandomStream::new(seed, "device plan", 0));
        scenario.wire = RandomStream::new(seed, "wire", 0).chance(250);
        scenario.nbd = RandomStream::new(seed, "nbd", 0).chance(250);
        scenario.layers = draw_layers(&mut RandomStream::new(seed, "layers", 0));
        scenario.draw_cells();
        scenario.set_strategy(draw_strategy(seed));
        scenario.set_encode(draw_encode(seed));
        scenario.fragment_bytes = draw_fragment_bytes(seed);
        scenario.set_conditions(&Chosen::default());
        scenario
    }

    /// Sets how records reach the nodes of a journal. In half of the runs in which this is not
    /// flat, reads are balanced over copies. Flat runs are as they were before there was a choice.
    pub fn set_strategy(&mut self, strategy: Strategy) {
        self.replicate = strategy;
        let mut rng = RandomStream::new(self.seed, "reads", 0);
        let balance = strategy != Strategy::Flat && rng.chance(500);
        self.reads = if balance { ReadPolicy::Balance } else { ReadPolicy::Primary };
    }

    /// Sets who makes parity. Runs in which the volume does are as they were before there was a
    /// choice. In some of the others the nodes have little memory for it.
    pub fn set_encode(&mut self, encode: Encode) {
        self.encode = encode;
        let mut rng = RandomStream::new(self.seed, "accumulators", 0);
        self.accumulator_bytes = match encode {
            Encode::Client => ACCUMULATOR_BYTES,
            Encode::Stream => rng.pick(&[64 << 10, 512 << 10, ACCUMULATOR_BYTES]),
        };
    }

    /// Sets the conditions of the run. Runs without any are as they were before there was a choice.
    pub fn set_conditions(&mut self, chosen: &Chosen) {
        self.conditions = Conditions::draw(self.seed, self.nodes, chosen);
    }

    /// The same with only thin volumes, none of which grows.
    #[must_use]
    pub fn thin(seed: u64, code: Option<Profile>) -> Self {
        let mut scenario = Self::alone(seed, code);
        scenario.draw_neighbours();
        scenario.draw_staying();
        scenario
    }

    /// The scenario of `seed` with one volume, and without faults that stay.
    fn alone(seed: u64, code: Option<Profile>) -> Self {
        let mut rng = RandomStream::new(seed, "scenario", 0);
        let kind = match rng.index(10) {
            0 => Kind::Beyond,
            1 => Kind::Full,
            _ => Kind::Within,
        };
        let (mut profile, mut nodes) = draw_pool(&mut rng);
        if let Some(code) = code {
            profile = code;
            nodes = code.shards() as u16 + nodes % 3;
        }
        if kind == Kind::Beyond {
            nodes = nodes.max(2 * profile.m() as u16 + 1);
        }
        let device_blocks = rng.pick(&[256, 512, 1024, 2048]);
        let geometry = draw_geometry(&mut rng, &profile, device_blocks);
        let needed = needed_slots(&profile, nodes, &geometry);
        let slots = match kind {
            Kind::Full => needed * rng.between(40, 90) / 100 + SLOTS_SPARE,
            _ => needed * rng.pick(&[200, 300, 400]) / 100 + SLOTS_SPARE,
        };
        let mut plan = WorkloadConfig::draw(&mut rng, device_blocks);
        if kind == Kind::Full {
            plan.fill();
        }
        let disk = draw_disk(&mut rng);
        // A node that is as slow as usual must not count as down.
        let node_timeout_ms =
            if disk.sync_ns > 5_000_000 { 3000 } else { rng.pick(&[200, 1000, 3000]) };
        Self {
            seed,
            kind,
            profile,
            nodes,
            volumes: vec![VolumePlan::thin(geometry, plan)],
            slots: slots as u32,
            fault_rates: FaultRates::draw(&mut rng),
            fault_gap_ns: rng.pick(&[0, 3_000_000, 20_000_000, 100_000_000, 600_000_000]),
            staying: Vec::new(),
            disks_full: None,
            device: None,
            disk,
            network: draw_network(&mut rng),
            wire: false,
            nbd: false,
            layers: None,
            replicate: Strategy::Flat,
            fragment_bytes: 0,
            encode: Encode::Client,
            accumulator_bytes: ACCUMULATOR_BYTES,
            reads: ReadPolicy::Primary,
            node_timeout_ms,
            wall_offset_ns: rng.between(0, 1 << 60),
            conditions: Conditions::default(),
        }
    }

    /// In half of the runs the pool gets more volumes, and all volumes get other sizes and users.
    fn draw_neighbours(&mut self) {
        let mut rng = RandomStream::new(self.seed, "volumes", 0);
        if rng.chance(500) {
            return;
        }
        let count = rng.pick(&VOLUMES);
        self.kind = match self.kind {
            Kind::Beyond => Kind::Beyond,
            Kind::Within if rng.chance(500) => Kind::Within,
            _ => Kind::Crowded,
        };
        let (profile, nodes) = (self.profile, self.nodes);
        let crowded = self.kind == Kind::Crowded;
        let draw = |rng: &mut RandomStream| {
            let sizes = if crowded { [256, 256, 512, 1024] } else { [128, 128, 256, 512] };
            let device_blocks = rng.pick(&sizes);
            let geometry = draw_geometry(rng, &profile, device_blocks);
            let mut plan = WorkloadConfig::draw(rng, device_blocks);
            if crowded {
                plan.fill();
                plan.ops = plan.ops * 3 / 2;
            }
            plan.ops = (plan.ops / count as u32).max(SHARED_OPS_MIN);
            VolumePlan::thin(geometry, plan)
        };
        self.volumes = (0..count).map(|_| draw(&mut rng)).collect();
        let needed = |volume: &VolumePlan| needed_slots(&profile, nodes, &volume.geometry);
        let needed: u64 = self.volumes.iter().map(needed).sum();
        let per_cent = if crowded { rng.between(70, 110) } else { rng.pick(&[200, 300, 400]) };
        let spare = if crowded { rng.pick(&SLOTS_SPARE_CROWDED) } else { SLOTS_SPARE };
        self.slots = (needed * per_cent / 100 + spare * count) as u32;
    }

    /// In a part of the runs faults stay, on at most as many nodes as the code survives. In a
    /// scenario *beyond*, where more nodes may be away, every node is needed, so no fault stays.
    fn draw_staying(&mut self) {
        let mut rng = RandomStream::new(self.seed, "staying", 0);
        if self.kind == Kind::Beyond || self.profile.m() == 0 || !rng.chance(400) {
            return;
        }
        let count = rng.between(1, self.profile.m() as u64) as usize;
        let mut nodes: Vec<NodeIndex> = (0..self.nodes).map(NodeIndex).collect();
        rng.shuffle(&mut nodes);
        let ops: u32 = self.volumes.iter().map(|volume| volume.plan.ops).sum();
        for node in nodes.into_iter().take(count) {
            let fault = rng.pick(&Fault::STAYING);
            let at_request = rng.between(1, u64::from(ops)) as u32;
            let copy_at_request = rng.between(0, u64::from(at_request)) as u32;
            self.staying.push(StayingPlan { node, fault, at_request, copy_at_request });
        }
    }

    /// A part of the volumes are thick, as many as the pool has room for. Some volumes grow,
    /// whether the pool has room for that or not.
    fn draw_provisioning(&mut self) {
        let mut rng = RandomStream::new(self.seed, "provisioning", 0);
        let count = self.volumes.len() as u64;
        let mut left = u64::from(self.slots).saturating_sub(SLOTS_OF_THIN * count);
        let (profile, nodes) = (self.profile, self.nodes);
        for volume in &mut self.volumes {
            let whole = slots_whole(&volume.geometry, profile, nodes);
            if rng.chance(500) && whole <= left {
                volume.provisioning = Provisioning::Thick;
                left -= whole;
            }
            if rng.chance(250) {
                let device_blocks = volume.geometry.size_bytes / BLOCK_BYTES;
                let blocks = device_blocks * rng.between(101, 200) / 100;
                let at_request = rng.between(1, u64::from(volume.plan.ops)) as u32;
                let size_bytes = blocks * BLOCK_BYTES;
                volume.growth = Some(Growth { at_request, size_bytes });
            }
        }
    }

    /// In half of the runs each volume grows a little at the end.
    fn draw_growth_at_end(&mut self) {
        let mut rng = RandomStream::new(self.seed, "growth at end", 0);
        if rng.chance(500) {
            for volume in &mut self.volumes {
                volume.more_blocks_at_end = rng.between(1, BLOCKS_AT_END_MAX);
            }
        }
    }

    /// In a part of the runs one volume is removed, and created again. A node that cannot remove
    /// the volume may have no slots for the new one, so no fault stays in these runs. In a pool
    /// that is short of room, the other volumes may have grown into the room of the removed one. So
    /// there the pool needs room for the whole size of the others.
    fn draw_removal(&mut self) {
        let mut rng = RandomStream::new(self.seed, "removal", 0);
        if rng.chance(250) && self.staying.is_empty() {
            let index = rng.index(self.volumes.len());
            let short = matches!(self.kind, Kind::Full | Kind::Crowded);
            let grow = self.volumes.iter().any(|volume| volume.growth.is_some());
            let thick = self.volumes[index].provisioning == Provisioning::Thick;
            if short && (grow || thick || !self.has_capacity_with_others(index)) {
                return;
            }
            let volume = &mut self.volumes[index];
            let latest = u64::from(volume.plan.ops) * 3 / 4;
            volume.removed_at_request = Some(rng.between(1, latest) as u32);
        }
    }

    /// In a part of the runs with layers, the requests to some volumes are not aligned to blocks. A
    /// volume without layers takes only whole blocks.
    fn draw_cells(&mut self) {
        let mut rng = RandomStream::new(self.seed, "cells", 0);
        if self.layers.is_none() || !rng.chance(500) {
            return;
        }
        for volume in &mut self.volumes {
            let (cell_bytes, blocks_max) = rng.pick(&SMALL_CELLS);
            if volume.plan.device_cells <= blocks_max {
                volume.cell_bytes = cell_bytes;
                let cells_per_block = volume.cells_per_block();
                volume.plan.divide_blocks(cells_per_block, rng.chance(500));
            }
        }
    }

    /// True if the pool has the slots to create a thin volume while all other volumes hold their
    /// whole size, also the size to which they grow at the end.
    fn has_capacity_with_others(&self, index: usize) -> bool {
        let whole = |volume: &VolumePlan| {
            let more_bytes = volume.more_blocks_at_end * BLOCK_BYTES;
            let size_bytes = volume.geometry.size_bytes + more_bytes;
            let geometry = Geometry { size_bytes, ..volume.geometry };
            slots_whole(&geometry, self.profile, self.nodes)
        };
        let others = self.volumes.iter().enumerate().filter(|(other, _)| *other != index);
        let held: u64 = others.map(|(_, volume)| whole(volume)).sum();
        held + SLOTS_OF_THIN <= u64::from(self.slots)
    }

    /// In a part of the runs all disks are full for a while. No other fault is in effect meanwhile.
    fn draw_disks_full(&mut self) {
        // The stream has the fault's old name: with another name, every seed would change.
        let mut rng = RandomStream::new(self.seed, "squeeze", 0);
        let alone = self.volumes.iter().all(|volume| volume.removed_at_request.is_none());
        if !rng.chance(150) || !self.staying.is_empty() || !alone {
            return;
        }
        let ops: u64 = self.volumes.iter().map(|volume| u64::from(volume.plan.ops)).sum();
        let at_request = rng.between(1, ops / 2) as u32;
        let for_ns = rng.between(5_000_000_000, 60_000_000_000);
        let left_bytes = rng.pick(&[0, 0, 64 << 10, 1 << 20]);
        self.disks_full = Some(DisksFullPlan { at_request, for_ns, left_bytes });
    }

    /// A scenario without any fault, for tests that plant their own faults.
    #[must_use]
    pub fn calm(seed: u64) -> Self {
        let mut scenario = Self::alone(seed, None);
        scenario.kind = Kind::Within;
        scenario.fault_gap_ns = 0;
        scenario
    }

    /// A scenario with `count` volumes in a pool that has room for all of them, without any fault.
    #[must_use]
    pub fn shared(seed: u64, count: usize) -> Self {
        let mut scenario = Self::calm(seed);
        let first = scenario.volumes[0].clone();
        scenario.volumes.resize(count, first);
        scenario.slots *= count as u32;
        scenario
    }

    /// A scenario with only these faults.
    #[must_use]
    pub fn with_faults(seed: u64, faults: &[Fault], gap_ns: u64) -> Self {
        let mut scenario = Self::calm(seed);
        scenario.fault_rates = FaultRates::only(faults);
        scenario.fault_gap_ns = gap_ns;
        scenario
    }

    /// New layers for a device.
    #[must_use]
    pub fn layers(&self) -> Vec<Box<dyn Layer>> {
        let layers = self.layers.as_ref().map(|options| options.make().expect("it was tried"));
        layers.unwrap_or_default()
    }

    /// Size of a slot of every node: the largest shard of any volume.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.volumes.iter().map(|volume| volume.geometry.shard_bytes).max().unwrap_or_default()
    }

    /// A summary in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let volumes: Vec<String> = self.volumes.iter().map(VolumePlan::summary).collect();
        let stays = |plan: &StayingPlan| format!(", {} on {}", plan.fault.name(), plan.node);
        let staying: String = self.staying.iter().map(stays).collect();
        let full = |plan: DisksFullPlan| {
            let (kib, seconds) = (plan.left_bytes >> 10, plan.for_ns / 1_000_000_000);
            format!(", {kib} KiB left for {seconds} s after {} ops", plan.at_request)
        };
        let full = self.disks_full.map(full).unwrap_or_default();
        let device = |plan: DevicePlan| {
            let DevicePlan { job_ns, full, fault, .. } = plan;
            format!(", devices of {} us a job, {full} and {fault} in 1000", job_ns / 1000)
        };
        let device = self.device.map(device).unwrap_or_default();
        let wire = if self.wire { ", wire" } else { "" };
        let nbd = if self.nbd { ", nbd" } else { "" };
        let staying = format!("{staying}{full}");
        let replicate = match self.replicate {
            Strategy::Flat => String::new(),
            strategy if self.reads == ReadPolicy::Balance => format!(", {strategy}, balanced"),
            strategy => format!(", {strategy}"),
        };
        let encode = match self.encode {
            Encode::Client => String::new(),
            Encode::Stream => format!(", {} KiB for parity", self.accumulator_bytes >> 10),
        };
        let fragments = match self.fragment_bytes {
            0 => String::new(),
            bytes => format!(", fragments of {} KiB", bytes >> 10),
        };
        let conditions = self.conditions.summary();
        let with = format!("{device}{wire}{nbd}{replicate}{encode}{fragments}{conditions}");
        let layers: String =
            self.layers().iter().map(|layer| format!(", {}", layer.name())).collect();
        format!(
            "{:?} {} on {} nodes, slots {}, faults every {} ms{staying}{with}{layers}, {}",
            self.kind,
            self.profile,
            self.nodes,
            self.slots,
            self.fault_gap_ns / 1_000_000,
            volumes.join("; "),
        )
    }
}

impl VolumePlan {
    fn thin(geometry: Geometry, plan: WorkloadConfig) -> Self {
        let provisioning = Provisioning::Thin;
        Self {
            geometry,
            plan,
            cell_bytes: BLOCK_BYTES as u32,
            provisioning,
            growth: None,
            removed_at_request: None,
            more_blocks_at_end: 0,
        }
    }

    /// Cells of a block.
    #[must_use]
    pub fn cells_per_block(&self) -> u64 {
        BLOCK_BYTES / u64::from(self.cell_bytes)
    }

    fn summary(&self) -> String {
        let Self { geometry, plan, cell_bytes, provisioning, growth, removed_at_request, .. } =
            self;
        let thick = if *provisioning == Provisioning::Thick { "thick, " } else { "" };
        let cells = match self.cells_per_block() {
            1 => String::new(),
            _ => format!(" in cells of {cell_bytes}"),
        };
        let grows = |growth: &Growth| {
            let blocks = growth.size_bytes / BLOCK_BYTES;
            format!(", {blocks} blocks after {} ops", growth.at_request)
        };
        let grows = growth.as_ref().map(grows).unwrap_or_default();
        let removed = |at: u32| format!(", removed after {at} ops");
        let removed = removed_at_request.map(removed).unwrap_or_default();
        let more = |blocks: u64| format!(", {blocks} blocks more at the end");
        let at_end = Some(self.more_blocks_at_end).filter(|blocks| *blocks > 0).map(more);
        let at_end = at_end.unwrap_or_default();
        let chunk = match geometry.chunk_bytes {
            0 => String::new(),
            bytes => format!(" chunk {bytes}"),
        };
        format!(
            "{thick}{} blocks{cells}, shard {} unit {}{chunk} ring {}, {} ops depth {} think {} \
             us{grows}{removed}{at_end}",
            geometry.size_bytes / BLOCK_BYTES,
            geometry.shard_bytes,
            geometry.unit_bytes,
            geometry.ring_bytes,
            plan.ops,
            plan.depth,
            plan.think_ns / 1000,
        )
    }
}

/// In half of the runs nodes pass records on to each other.
fn draw_strategy(seed: u64) -> Strategy {
    let mut rng = RandomStream::new(seed, "replicate", 0);
    match rng.chance(500) {
        true => Strategy::Flat,
        false => rng.pick(&[Strategy::Ring, Strategy::Tree, Strategy::Primary]),
    }
}

/// In two of three runs long writes go in fragments, if nodes pass them on.
fn draw_fragment_bytes(seed: u64) -> u32 {
    RandomStream::new(seed, "fragments", 0).pick(&[0, 0, 4 << 10, 8 << 10, 16 << 10, 64 << 10])
}

/// In three of ten runs nodes make the parity.
fn draw_encode(seed: u64) -> Encode {
    match RandomStream::new(seed, "encode", 0).chance(300) {
        true => Encode::Stream,
        false => Encode::Client,
    }
}

fn draw_pool(rng: &mut RandomStream) -> (Profile, u16) {
    match rng.index(4) {
        0 => (Profile::Copies { n: 3 }, rng.between(3, 5) as u16),
        1 => (Profile::Rs { k: 2, m: 1 }, rng.between(3, 5) as u16),
        _ => (Profile::Rs { k: 4, m: 2 }, rng.between(6, 8) as u16),
    }
}

/// In one run of four each device has the default layers, some with options that make them busy.
fn draw_layers(rng: &mut RandomStream) -> Option<LayerOptions> {
    if !rng.chance(250) {
        return None;
    }
    let mut layers = LayerOptions::default();
    let mut add = |text: &str| layers.add(text).expect("a layer and its options");
    add(&format!("cache:capacity={}", rng.pick(&["64K", "256K", "4M"])));
    add(rng.pick(&["cache:write-allocate=on", "cache:write-allocate=off"]));
    add(&format!("scheduler:max-delay={}", rng.pick(&["0us", "100us", "5ms"])));
    add(&format!("readahead:window={}", rng.pick(&["0", "16K", "64K", "auto"])));
    if rng.chance(250) {
        add(rng.pick(&["limit:iops=500", "limit:bytes=4M", "limit:iops=2000,burst=50ms"]));
    }
    if rng.chance(250) {
        add(rng.pick(&["delay:read=1ms", "delay:write=2ms"]));
    }
    Some(layers)
}

fn draw_geometry(rng: &mut RandomStream, profile: &Profile, device_blocks: u64) -> Geometry {
    let shard_bytes: u32 = rng.pick(&[32 << 10, 64 << 10]);
    let unit_bytes = rng.pick(&[4 << 10, 8 << 10, 16 << 10]);
    let step_blocks = step_blocks(unit_bytes / 4096, profile.code().elements());
    // With one element, chunks are units.
    let chunk_bytes = match profile.code().elements() {
        1 => 0,
        _ => rng.pick(&[0, 1, 1, 2]) * step_blocks * 4096,
    };
    // At least two chunks, so that rows have room beside the footer of their segment.
    let shard_bytes = shard_bytes.max(2 * chunk_bytes);
    let shard_bytes = shard_bytes.next_multiple_of(chunk_bytes.max(step_blocks * 4096));
    let segment_bytes = u64::from(shard_bytes) * profile.k() as u64;
    Geometry {
        size_bytes: device_blocks * BLOCK_BYTES,
        shard_bytes,
        unit_bytes,
        chunk_bytes,
        // A smaller ring would close segments before they are full, and so waste slots.
        ring_bytes: (segment_bytes * rng.pick(&[2, 4, 8])).max(128 << 10),
    }
}

/// Slots per node that hold the full device once.
fn needed_slots(profile: &Profile, nodes: u16, geometry: &Geometry) -> u64 {
    let segment_bytes = u64::from(geometry.shard_bytes) * profile.k() as u64;
    let segments = geometry.size_bytes.div_ceil(segment_bytes);
    (segments * profile.shards() as u64).div_ceil(u64::from(nodes))
}

fn draw_disk(rng: &mut RandomStream) -> DiskKind {
    let sector_bytes = rng.pick(&[512, 512, 4096]);
    let (read_ns, write_ns, sync_ns) = rng.pick(&[
        (80_000, 30_000, 500_000),
        (10_000, 10_000, 50_000),
        (4_000_000, 400_000, 12_000_000),
    ]);
    DiskKind { read_ns, write_ns, sync_ns, sector_bytes }
}

fn draw_network(rng: &mut RandomStream) -> NetworkSpeed {
    rng.pick(&[
        NetworkSpeed { delay_ns: 5_000, notice_ns: 50_000 },
        NetworkSpeed { delay_ns: 60_000, notice_ns: 1_000_000 },
        NetworkSpeed { delay_ns: 1_000_000, notice_ns: 40_000_000 },
    ])
}
