//! The rule machine alone: draws, memories of the image and card memory are played by the bench; the
//! results are those of the CPU's mapper, and what is wrong is answered as it should be.
#![cfg(feature = "verilator")]

mod maps;
mod place;
mod played;

use fieldstone_crush::{
    AlgorithmKind, BucketId, ItemId, Map, MapBuilder, RuleId, RuleStep, TypeId, WEIGHT_ONE,
};
use fieldstone_fpga::regs::{H2cOp, ReconfigurableModule, Status, descriptor};
use fieldstone_rtl_common::card::CardMemory;
use fieldstone_rtl_crush as designs;
use fieldstone_verilate::{Design, Port};
use place::{Answer, Bench, Compiled, Job};
use played::{Fault, Played};
use rand::Rng;

const IMAGE: u64 = 0;
const INPUTS: u64 = 0x1_0000;
const ROWS: u64 = 0x4_0000;

/// The model and everything around it.
struct World {
    bench: Bench,
    played: Played,
    module: Port,
    ready: Port,
    busy: Port,
    idle: Port,
    epoch: u64,
}

impl World {
    fn new(design: &'static Design, contexts: u64, seed: u64, stall: f64) -> Self {
        let bench = Bench::new(design, seed, stall);
        let compiled = whole(tree(AlgorithmKind::Straw2));
        let mut played = Played::new(&bench.model, contexts, compiled);
        played.stall = stall;
        let port = |name: &str| bench.model.port(name);
        let (module, ready) = (port("rp_module_i"), port("rp_ready_i"));
        let (busy, idle) = (port("rp_busy_o"), port("idle_o"));
        Self { bench, played, module, ready, busy, idle, epoch: 0 }
    }

    fn wait(&mut self, answers: usize) -> Vec<Answer> {
        self.bench.wait(answers, &mut [&mut self.played])
    }

    fn cycles(&mut self, cycles: u64) {
        for _ in 0..cycles {
            self.bench.cycle(&mut [&mut self.played]);
        }
    }

    fn status(&mut self) -> u64 {
        self.wait(1)[0].status
    }

    /// Loads the map, and puts the module into the partition that it needs, if it needs one.
    fn load(&mut self, compiled: Compiled) {
        let module = compiled.module().unwrap_or_else(|| self.bench.dice.random_range(0..4));
        self.bench.model.set(self.module, module);
        self.bench.model.set(self.ready, 1);
        let image = compiled.image.bytes().to_vec();
        self.bench.memory.bytes[..image.len()].copy_from_slice(&image);
        self.played.set_map(compiled);
        self.played.image.clear();
        self.epoch = self.bench.dice.random_range(0..1 << 32);
        self.bench.load(IMAGE, image.len() as u64, self.epoch);
        assert_eq!(self.status(), Status::Ok as u64);
        assert_eq!(self.played.image, image);
    }

    fn job(&self, rule: u64, width: u64, inputs: u64) -> Job {
        let (source, destination) = (INPUTS, ROWS);
        Job { source, destination, length: 4 * inputs, epoch: self.epoch, width, rule }
    }

    /// Maps random inputs through every rule of the map and compares; says how many.
    fn check_rules(&mut self, name: &str, most_inputs: usize) -> u64 {
        let Self { bench, played, .. } = self;
        let compiled = played.compiled.clone();
        let areas = [INPUTS, ROWS];
        let mappings =
            bench.check_rules(&compiled, self.epoch, most_inputs, areas, &mut [played], name);
        assert!(!self.bench.model.is_set(self.busy), "nothing is in flight");
        mappings
    }
}

fn random_maps(design: &'static Design, contexts: u64, seed: u64, maps: usize, stall: f64) {
    let mut world = World::new(design, contexts, seed, stall);
    let mut mappings = 0;
    for number in 0..maps {
        let kinds = maps::algorithms(&mut world.bench.dice);
        let map = maps::random(&mut world.bench.dice, &kinds);
        let reweights = maps::reweights(&mut world.bench.dice, &map);
        // Some maps have no rule that fits.
        let Ok(compiled) = Compiled::new(map, None, reweights) else { continue };
        world.load(compiled);
        mappings += world.check_rules(&format!("seed {seed}, map {number}"), 60);
    }
    assert!(mappings > 60 * maps as u64, "{mappings} mappings are too few");
}

#[test]
fn random_maps_give_what_the_cpu_gives() {
    random_maps(&designs::PE, 32, 1, 40, 0.0);
    random_maps(&designs::PE, 32, 2, 40, 0.3);
    random_maps(&designs::PE_5, 5, 3, 15, 0.6);
    random_maps(&designs::PE_5, 5, 4, 15, 0.1);
}

#[test]
fn golden_maps_give_what_the_cpu_gives() {
    let mut world = World::new(&designs::PE, 32, 5, 0.1);
    let (mut mappings, mut left_out) = (0, Vec::new());
    for (name, map) in maps::golden() {
        let reweights = maps::reweights(&mut world.bench.dice, &map);
        let args = map.choose_args_for_pool(0).cloned();
        match Compiled::new(map, args, reweights) {
            Ok(compiled) if compiled.fits_partition() => {
                world.load(compiled);
                mappings += world.check_rules(&name, 24);
            }
            Ok(_) => left_out.push(format!("{name}: more than one module")),
            Err(error) => left_out.push(format!("{name}: {error}")),
        }
    }
    println!("{mappings} mappings; left out: {left_out:#?}");
    assert!(mappings > 1000);
}

/// A tree of racks, hosts and devices, of one algorithm.
fn tree(algorithm: AlgorithmKind) -> Map {
    let (host, rack, root) = (TypeId(1), TypeId(2), TypeId(3));
    let mut builder = MapBuilder::new();
    for slot in 0..16 {
        let osds = (4 * slot..4 * slot + 4).map(|osd| (ItemId(osd), WEIGHT_ONE));
        builder.bucket(BucketId(-10 - slot), host, algorithm, osds);
    }
    for slot in 0..4 {
        let hosts = (4 * slot..4 * slot + 4).map(|host| (ItemId(-10 - host), 4 * WEIGHT_ONE));
        builder.bucket(BucketId(-2 - slot), rack, algorithm, hosts);
    }
    let racks = (0..4).map(|slot| (ItemId(-2 - slot), 16 * WEIGHT_ONE));
    builder.bucket(BucketId(-1), root, algorithm, racks);
    let take = RuleStep::Take(ItemId(-1));
    let leaf = RuleStep::ChooseleafFirstn { count: 0, kind: host };
    builder.rule(RuleId(0), [take, leaf, RuleStep::Emit]);
    builder.rule(RuleId(2), [RuleStep::SetChooseLocalTries(1), take, leaf, RuleStep::Emit]);
    builder.rule(RuleId(4), [take, leaf, RuleStep::Emit]);
    builder.build().expect("the map is valid")
}

/// A map, compiled with all devices in.
fn whole(map: Map) -> Compiled {
    let reweights = vec![WEIGHT_ONE; map.max_devices() as usize];
    Compiled::new(map, None, reweights).expect("the map fits")
}

fn loaded(seed: u64, algorithm: AlgorithmKind) -> World {
    let mut world = World::new(&designs::PE, 32, seed, 0.2);
    world.load(whole(tree(algorithm)));
    world
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let mut world = loaded(6, AlgorithmKind::Straw2);
    let good = world.job(0, 3, 20);
    let top = 1 << 40;
    for (job, status, detail) in [
        (Job { source: INPUTS + 4, ..good }, Status::BadAlignment, INPUTS + 4),
        (Job { destination: ROWS + 32, ..good }, Status::BadAlignment, ROWS + 32),
        (Job { length: 0, ..good }, Status::BadLength, 0),
        (Job { length: 7, ..good }, Status::BadLength, 7),
        (Job { length: 1 << 32, ..good }, Status::BadLength, 1 << 32),
        (Job { source: top, ..good }, Status::CardFault, top),
        (Job { source: top - 64, ..good }, Status::CardFault, top - 64),
        (Job { destination: top, ..good }, Status::CardFault, top),
        (Job { destination: top - 19 * 64, ..good }, Status::CardFault, top - 19 * 64),
        (Job { epoch: world.epoch ^ 1, ..good }, Status::StaleEpoch, world.epoch),
        (Job { width: 0, ..good }, Status::BadParameter, 0),
        (Job { width: 16, ..good }, Status::BadParameter, 16),
        (Job { rule: 1, ..good }, Status::BadParameter, 1),
        (Job { rule: 2, ..good }, Status::BadParameter, 2),
        (Job { rule: 3, ..good }, Status::BadParameter, 3),
        (Job { rule: 5, ..good }, Status::BadParameter, 5),
        // At the very end of the addresses: not refused, but the memory is not that large.
        (Job { source: top - 128, ..good }, Status::CardFault, top - 128),
        (Job { destination: top - 20 * 64, ..good }, Status::CardFault, top - 20 * 64),
    ] {
        let tag = world.bench.place(&job);
        let expected = Answer { tag, status: status as u64, result: 0, detail };
        assert_eq!(world.wait(1), [expected], "{job:?}");
    }
    let mut bytes = [0; descriptor::BYTES];
    for op in [H2cOp::Nop, H2cOp::Copy, H2cOp::Reconfigure] {
        descriptor::OP.put(&mut bytes, op as u64);
        world.bench.command(&bytes);
        assert_eq!(world.status(), Status::BadOp as u64);
    }
    world.check_rules("after refusals", 60);
}

#[test]
fn faults_of_card_memory_end_the_command_that_met_them() {
    let mut world = loaded(7, AlgorithmKind::Straw2);
    for _ in 0..10 {
        let inputs = world.bench.dice.random_range(1..200);
        let job = world.job(0, 3, inputs);
        // Some of the inputs cannot be read; a command right behind is not concerned.
        let broken = world.bench.dice.random_range(0..inputs.div_ceil(16));
        world.bench.memory.broken_from = (INPUTS / 64 + broken) as usize;
        let tag = world.bench.place(&job);
        let fault = Status::CardFault as u64;
        let expected = Answer { tag, status: fault, result: 0, detail: INPUTS };
        assert_eq!(world.wait(1), [expected]);
        world.bench.memory.broken_from = usize::MAX;
        // Some of the rows cannot be written.
        let size = world.bench.memory.bytes.len() as u64;
        let destination = size - 64 * world.bench.dice.random_range(0..inputs);
        world.bench.place(&Job { destination, ..job });
        let expected = Answer { tag: tag + 1, detail: destination, ..expected };
        assert_eq!(world.wait(1), [expected]);
    }
    world.check_rules("after faults", 60);
}

#[test]
fn maps_are_loaded_between_placements() {
    let mut world = loaded(8, AlgorithmKind::Straw2);
    let old = world.job(0, 3, 300);
    for accepts in [true, false, true] {
        world.played.accepts = accepts;
        world.bench.write_inputs(INPUTS, 300);
        let first = world.bench.place(&Job { epoch: world.epoch, ..old });
        let load = world.bench.load(IMAGE, 640, 77);
        let second = world.bench.place(&Job { epoch: 77, ..old });
        let third = world.bench.place(&Job { epoch: 78, ..old });
        let by_tag = |answers: &[Answer], tag| {
            answers.iter().find(|answer| answer.tag == tag).expect("an answer each").status
        };
        let answers = world.wait(4);
        let stale = Status::StaleEpoch as u64;
        let was_loaded = world.epoch != 0;
        assert_eq!(by_tag(&answers, first), if was_loaded { 0 } else { stale });
        let refused = Status::BadImage as u64;
        assert_eq!(by_tag(&answers, load), if accepts { 0 } else { refused });
        assert_eq!(by_tag(&answers, second), if accepts { 0 } else { stale });
        assert_eq!(by_tag(&answers, third), stale);
        assert!(world.bench.answers.beats.is_empty());
        world.epoch = if accepts { 77 } else { 0 };
    }
    world.played.accepts = true;
    for (source, length, status) in [
        (IMAGE + 8, 64, Status::BadAlignment),
        (IMAGE, 96, Status::BadLength),
        (IMAGE, 0, Status::BadLength),
        (1 << 41, 64, Status::CardFault),
    ] {
        world.bench.load(source, length, 9);
        assert_eq!(world.status(), status as u64);
    }
    // None of these has touched the loaded map; a fault in the middle of an image does.
    world.check_rules("after refusals", 40);
    world.bench.memory.broken_from = 5;
    world.bench.load(IMAGE, 640, 77);
    assert_eq!(world.status(), Status::CardFault as u64);
    world.bench.memory.broken_from = usize::MAX;
    world.bench.place(&old);
    assert_eq!(world.status(), Status::StaleEpoch as u64);
}

#[test]
fn missing_kernels_and_unsound_images_end_only_their_command() {
    let mut world = loaded(9, AlgorithmKind::Straw2);
    let job = world.job(0, 4, 150);
    for (fault, status) in
        [(Fault::MissingKernel, Status::NotLoaded), (Fault::Cycle, Status::BadImage)]
    {
        world.played.fault = fault;
        world.bench.place(&job);
        let before = world.bench.memory.beats.1;
        assert_eq!(world.status(), status as u64);
        assert_eq!(world.bench.memory.beats.1 - before, 150, "every row has landed");
        world.played.fault = Fault::None;
        world.check_rules("after a fault", 60);
    }
    // A choose step that wants more than the machine can count: no compiler makes it.
    let steps = world.played.steps.clone();
    world.played.steps[1] = 32 << 32 | 0x106;
    world.bench.place(&job);
    assert_eq!(world.status(), Status::BadImage as u64);
    // Operations that mean nothing do nothing, and a rule may have no step at all.
    world.played.steps = steps;
    world.played.steps[0] = 99;
    world.played.rules[1] = 1 << 32;
    for rule in [0, 1] {
        world.bench.place(&Job { rule, ..job });
        assert_eq!(world.status(), Status::Ok as u64);
        let mut nothing = vec![ItemId::NONE.0 as u32; 16];
        nothing[0] = 0;
        assert!((0..150).all(|index| world.bench.row(ROWS, index) == nothing));
    }
}

#[test]
fn the_partition_is_used_only_while_it_is_ready() {
    for (algorithm, module) in [
        (AlgorithmKind::Uniform, ReconfigurableModule::Uniform),
        (AlgorithmKind::List, ReconfigurableModule::List),
        (AlgorithmKind::Tree, ReconfigurableModule::Tree),
    ] {
        let mut world = loaded(10, algorithm);
        let job = world.job(0, 3, 100);
        for other in 0..=4 {
            world.bench.model.set(world.module, other);
            let tag = world.bench.place(&job);
            let answer = world.wait(1)[0];
            if other == module as u64 {
                assert_eq!(answer.status, Status::Ok as u64);
            } else {
                let status = Status::NotLoaded as u64;
                assert_eq!(answer, Answer { tag, status, result: 0, detail: other });
            }
        }
        // Jobs in flight end, new ones are refused.
        world.bench.model.set(world.module, module as u64);
        world.bench.place(&job);
        world.cycles(60);
        assert!(world.bench.model.is_set(world.busy) && !world.bench.model.is_set(world.idle));
        world.bench.model.set(world.ready, 0);
        world.bench.place(&job);
        let mut statuses: Vec<u64> = world.wait(2).iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [Status::Ok as u64, Status::NotLoaded as u64]);
        world.cycles(2);
        assert!(!world.bench.model.is_set(world.busy) && world.bench.model.is_set(world.idle));
    }
    let mut world = loaded(11, AlgorithmKind::Straw2);
    world.bench.model.set(world.ready, 0);
    let job = world.job(0, 3, 100);
    world.bench.place(&job);
    world.cycles(60);
    assert!(!world.bench.model.is_set(world.busy), "straw2 does not use the partition");
    assert_eq!(world.status(), Status::Ok as u64);
}

#[test]
fn a_reset_in_the_middle_leaves_nothing_behind() {
    let mut world = loaded(12, AlgorithmKind::Straw2);
    for cycles in [40, 100, 333, 1000] {
        let job = world.job(0, 5, 200);
        world.bench.place(&job);
        world.bench.place(&job);
        world.cycles(cycles);
        let World { bench, played, .. } = &mut world;
        bench.clock.pulse_reset(&mut bench.model);
        bench.memory = CardMemory::new(&bench.model, "", bench.memory.bytes.clone(), 0.2);
        bench.memory.owner = place::OWNER;
        bench.commands.queue.clear();
        bench.answers.beats.clear();
        played.forget();
        world.cycles(100);
        assert!(world.bench.model.is_set(world.idle) && world.bench.answers.beats.is_empty());
        world.bench.place(&job);
        assert_eq!(world.status(), Status::StaleEpoch as u64, "the map is forgotten");
        world.load(whole(tree(AlgorithmKind::Straw2)));
        world.check_rules("after a reset", 60);
    }
}
