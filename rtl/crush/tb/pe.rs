//! The processing element alone. The bench simulates the draws, the memories of the image, and card
//! memory. The results are those of the CPU's mapper, and errors get the right answers.
#![cfg(feature = "verilator")]

mod maps;
mod mock_engine;
mod place;

use fieldstone_crush::{
    AlgorithmKind, BucketId, ItemId, Map, MapBuilder, RuleId, RuleStep, TypeId, WEIGHT_ONE,
};
use fieldstone_fpga::regs::{H2cOp, ReconfigurableModule, Status, descriptor};
use fieldstone_rtl_common::card::CardMemory;
use fieldstone_rtl_crush as designs;
use fieldstone_verilate::{Design, Port};
use mock_engine::{InjectedFault, MockEngine};
use place::{Bench, Compiled, PlacementCase, Response};
use rand::Rng;

const IMAGE: u64 = 0;
const INPUTS: u64 = 0x1_0000;
const ROWS: u64 = 0x4_0000;

/// The model with its streams and simulated parts.
struct Testbench {
    bench: Bench,
    mock: MockEngine,
    module: Port,
    ready: Port,
    busy: Port,
    idle: Port,
    epoch: u64,
}

impl Testbench {
    fn new(design: &'static Design, contexts: u64, seed: u64, stall: f64) -> Self {
        let bench = Bench::new(design, seed, stall);
        let compiled = whole(tree(AlgorithmKind::Straw2));
        let mut mock = MockEngine::new(&bench.model, contexts, compiled);
        mock.stall = stall;
        let port = |name: &str| bench.model.port(name);
        let (module, ready) = (port("rp_module_i"), port("rp_ready_i"));
        let (busy, idle) = (port("rp_busy_o"), port("idle_o"));
        Self { bench, mock, module, ready, busy, idle, epoch: 0 }
    }

    fn wait(&mut self, answers: usize) -> Vec<Response> {
        self.bench.wait(answers, &mut [&mut self.mock])
    }

    fn cycles(&mut self, cycles: u64) {
        for _ in 0..cycles {
            self.bench.cycle(&mut [&mut self.mock]);
        }
    }

    fn status(&mut self) -> u64 {
        self.wait(1)[0].status
    }

    /// Loads the map, and the module that it needs into the partition.
    fn load(&mut self, compiled: Compiled) {
        let module = compiled.module().unwrap_or_else(|| self.bench.rng.random_range(0..4));
        self.bench.model.set(self.module, module);
        self.bench.model.set(self.ready, 1);
        let image = compiled.image.bytes().to_vec();
        self.bench.memory.bytes[..image.len()].copy_from_slice(&image);
        self.mock.set_map(compiled);
        self.mock.image.clear();
        self.epoch = self.bench.rng.random_range(0..1 << 32);
        self.bench.load(IMAGE, image.len() as u64, self.epoch);
        assert_eq!(self.status(), Status::Ok as u64);
        assert_eq!(self.mock.image, image);
    }

    fn job(&self, rule: u64, width: u64, inputs: u64) -> PlacementCase {
        let (source, destination) = (INPUTS, ROWS);
        PlacementCase { source, destination, length: 4 * inputs, epoch: self.epoch, width, rule }
    }

    /// Maps random inputs through every rule of the map and compares. Returns the number of
    /// mappings.
    fn check_rules(&mut self, name: &str, most_inputs: usize) -> u64 {
        let Self { bench, mock, .. } = self;
        let compiled = mock.compiled.clone();
        let areas = [INPUTS, ROWS];
        let mappings =
            bench.check_rules(&compiled, self.epoch, most_inputs, areas, &mut [mock], name);
        assert!(!self.bench.model.is_set(self.busy), "nothing is in flight");
        mappings
    }
}

fn random_maps(design: &'static Design, contexts: u64, seed: u64, maps: usize, stall: f64) {
    let mut tb = Testbench::new(design, contexts, seed, stall);
    let mut mappings = 0;
    for number in 0..maps {
        let kinds = maps::algorithms(&mut tb.bench.rng);
        let map = maps::random(&mut tb.bench.rng, &kinds);
        let reweights = maps::reweights(&mut tb.bench.rng, &map);
        // Some maps have no rule that fits.
        let Ok(compiled) = Compiled::new(map, None, reweights) else { continue };
        tb.load(compiled);
        mappings += tb.check_rules(&format!("seed {seed}, map {number}"), 60);
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
    let mut tb = Testbench::new(&designs::PE, 32, 5, 0.1);
    let (mut mappings, mut left_out) = (0, Vec::new());
    for (name, map) in maps::golden() {
        let reweights = maps::reweights(&mut tb.bench.rng, &map);
        let args = map.choose_args_for_pool(0).cloned();
        match Compiled::new(map, args, reweights) {
            Ok(compiled) if compiled.fits_partition() => {
                tb.load(compiled);
                mappings += tb.check_rules(&name, 24);
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

fn loaded(seed: u64, algorithm: AlgorithmKind) -> Testbench {
    let mut tb = Testbench::new(&designs::PE, 32, seed, 0.2);
    tb.load(whole(tree(algorithm)));
    tb
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let mut tb = loaded(6, AlgorithmKind::Straw2);
    let good = tb.job(0, 3, 20);
    let top = 1 << 40;
    for (job, status, detail) in [
        (PlacementCase { source: INPUTS + 4, ..good }, Status::BadAlignment, INPUTS + 4),
        (PlacementCase { destination: ROWS + 32, ..good }, Status::BadAlignment, ROWS + 32),
        (PlacementCase { length: 0, ..good }, Status::BadLength, 0),
        (PlacementCase { length: 7, ..good }, Status::BadLength, 7),
        (PlacementCase { length: 1 << 32, ..good }, Status::BadLength, 1 << 32),
        (PlacementCase { source: top, ..good }, Status::CardFault, top),
        (PlacementCase { source: top - 64, ..good }, Status::CardFault, top - 64),
        (PlacementCase { destination: top, ..good }, Status::CardFault, top),
        (PlacementCase { destination: top - 19 * 64, ..good }, Status::CardFault, top - 19 * 64),
        (PlacementCase { epoch: tb.epoch ^ 1, ..good }, Status::StaleEpoch, tb.epoch),
        (PlacementCase { width: 0, ..good }, Status::BadParameter, 0),
        (PlacementCase { width: 16, ..good }, Status::BadParameter, 16),
        (PlacementCase { rule: 1, ..good }, Status::BadParameter, 1),
        (PlacementCase { rule: 2, ..good }, Status::BadParameter, 2),
        (PlacementCase { rule: 3, ..good }, Status::BadParameter, 3),
        (PlacementCase { rule: 5, ..good }, Status::BadParameter, 5),
        // At the very end of the addresses: the command is accepted, but the memory is smaller.
        (PlacementCase { source: top - 128, ..good }, Status::CardFault, top - 128),
        (PlacementCase { destination: top - 20 * 64, ..good }, Status::CardFault, top - 20 * 64),
    ] {
        let tag = tb.bench.place(&job);
        let expected = Response { tag, status: status as u64, result: 0, detail };
        assert_eq!(tb.wait(1), [expected], "{job:?}");
    }
    let mut bytes = [0; descriptor::BYTES];
    for op in [H2cOp::Nop, H2cOp::Copy, H2cOp::Reconfigure] {
        descriptor::OP.put(&mut bytes, op as u64);
        tb.bench.command(&bytes);
        assert_eq!(tb.status(), Status::BadOp as u64);
    }
    tb.check_rules("after refusals", 60);
}

#[test]
fn faults_of_card_memory_end_the_command_that_met_them() {
    let mut tb = loaded(7, AlgorithmKind::Straw2);
    for _ in 0..10 {
        let inputs = tb.bench.rng.random_range(1..200);
        let job = tb.job(0, 3, inputs);
        // Some inputs cannot be read; a command directly after it is not affected.
        let broken = tb.bench.rng.random_range(0..inputs.div_ceil(16));
        tb.bench.memory.broken_from = (INPUTS / 64 + broken) as usize;
        let tag = tb.bench.place(&job);
        let fault = Status::CardFault as u64;
        let expected = Response { tag, status: fault, result: 0, detail: INPUTS };
        assert_eq!(tb.wait(1), [expected]);
        tb.bench.memory.broken_from = usize::MAX;
        // Some rows cannot be written.
        let size = tb.bench.memory.bytes.len() as u64;
        let destination = size - 64 * tb.bench.rng.random_range(0..inputs);
        tb.bench.place(&PlacementCase { destination, ..job });
        let expected = Response { tag: tag + 1, detail: destination, ..expected };
        assert_eq!(tb.wait(1), [expected]);
    }
    tb.check_rules("after faults", 60);
}

#[test]
fn maps_are_loaded_between_placements() {
    let mut tb = loaded(8, AlgorithmKind::Straw2);
    let old = tb.job(0, 3, 300);
    for accepts in [true, false, true] {
        tb.mock.accepts = accepts;
        tb.bench.write_inputs(INPUTS, 300);
        let first = tb.bench.place(&PlacementCase { epoch: tb.epoch, ..old });
        let load = tb.bench.load(IMAGE, 640, 77);
        let second = tb.bench.place(&PlacementCase { epoch: 77, ..old });
        let third = tb.bench.place(&PlacementCase { epoch: 78, ..old });
        let by_tag = |answers: &[Response], tag| {
            answers.iter().find(|answer| answer.tag == tag).expect("an answer each").status
        };
        let answers = tb.wait(4);
        let stale = Status::StaleEpoch as u64;
        let was_loaded = tb.epoch != 0;
        assert_eq!(by_tag(&answers, first), if was_loaded { 0 } else { stale });
        let refused = Status::BadImage as u64;
        assert_eq!(by_tag(&answers, load), if accepts { 0 } else { refused });
        assert_eq!(by_tag(&answers, second), if accepts { 0 } else { stale });
        assert_eq!(by_tag(&answers, third), stale);
        assert!(tb.bench.answers.beats.is_empty());
        tb.epoch = if accepts { 77 } else { 0 };
    }
    tb.mock.accepts = true;
    for (source, length, status) in [
        (IMAGE + 8, 64, Status::BadAlignment),
        (IMAGE, 96, Status::BadLength),
        (IMAGE, 0, Status::BadLength),
        (1 << 41, 64, Status::CardFault),
    ] {
        tb.bench.load(source, length, 9);
        assert_eq!(tb.status(), status as u64);
    }
    // None of these has changed the loaded map; a fault in the middle of an image does.
    tb.check_rules("after refusals", 40);
    tb.bench.memory.broken_from = 5;
    tb.bench.load(IMAGE, 640, 77);
    assert_eq!(tb.status(), Status::CardFault as u64);
    tb.bench.memory.broken_from = usize::MAX;
    tb.bench.place(&old);
    assert_eq!(tb.status(), Status::StaleEpoch as u64);
}

#[test]
fn missing_kernels_and_unsound_images_end_only_their_command() {
    let mut tb = loaded(9, AlgorithmKind::Straw2);
    let job = tb.job(0, 4, 150);
    for (fault, status) in [
        (InjectedFault::MissingKernel, Status::NotLoaded),
        (InjectedFault::Cycle, Status::BadImage),
    ] {
        tb.mock.fault = fault;
        tb.bench.place(&job);
        let before = tb.bench.memory.beats.1;
        assert_eq!(tb.status(), status as u64);
        assert_eq!(tb.bench.memory.beats.1 - before, 150, "every row has landed");
        tb.mock.fault = InjectedFault::None;
        tb.check_rules("after a fault", 60);
    }
    // A choose step that wants more items than the rule engine can count; no compiler makes such a
    // step.
    let steps = tb.mock.steps.clone();
    tb.mock.steps[1] = 32 << 32 | 0x106;
    tb.bench.place(&job);
    assert_eq!(tb.status(), Status::BadImage as u64);
    // Operations without a meaning have no effect, and a rule may have no steps.
    tb.mock.steps = steps;
    tb.mock.steps[0] = 99;
    tb.mock.rules[1] = 1 << 32;
    for rule in [0, 1] {
        tb.bench.place(&PlacementCase { rule, ..job });
        assert_eq!(tb.status(), Status::Ok as u64);
        assert!((0..150).all(|index| tb.bench.row(ROWS, index) == place::NOTHING));
    }
}

/// MAX_CYCLES of `pe_brief`.
const BRIEF_CYCLES: u64 = 10_000;
/// Cycles of the work that may be in flight at the time limit: a draw per context, and inputs that
/// are dropped.
const UNDER_WAY_CYCLES: u64 = 1500;

/// Four devices, and two rules for them: one that tries without end, and one that ends.
fn endless() -> Compiled {
    let mut builder = MapBuilder::new();
    let items = (0..4).map(|osd| (ItemId(osd), WEIGHT_ONE));
    builder.bucket(BucketId(-1), TypeId(1), AlgorithmKind::Straw2, items);
    let take = RuleStep::Take(ItemId(-1));
    let choose = RuleStep::ChooseFirstn { count: 0, kind: TypeId::DEVICE };
    let tries = RuleStep::SetChooseTries(65_535);
    builder.rule(RuleId(0), [tries, take, choose, RuleStep::Emit]);
    builder.rule(RuleId(1), [take, choose, RuleStep::Emit]);
    whole(builder.build().expect("the map is valid"))
}

#[test]
fn placements_that_take_too_long_are_ended_and_only_those() {
    let too_long = Status::TooLong as u64;
    for (seed, stall) in [(13, 0.0), (14, 0.3)] {
        let mut tb = Testbench::new(&designs::PE_BRIEF, 8, seed, stall);
        tb.load(endless());
        let compiled = tb.mock.compiled.clone();
        let other_rows = 0xf_0000;

        // More inputs than fit into the time limit, and more tries; each with other jobs behind it.
        for (rule, width, inputs) in
            [(1, 3, (1 << 30) - 1), (0, 15, 1), (0, 15, 20), (0, 15, 1 << 20), (1, 3, 1 << 25)]
        {
            tb.bench.memory.owner = tb.bench.rng.random_range(0..16);
            tb.bench.memory.bytes[ROWS as usize..].fill(0xa5);
            let xs = tb.bench.write_inputs(INPUTS, 3000);
            let long = tb.job(rule, width, inputs);
            let short = PlacementCase { destination: other_rows, ..tb.job(1, 3, 100) };
            let began = tb.bench.clock.cycles;
            let tag = tb.bench.place(&long);
            let short_tag = tb.bench.place(&short);
            let answers = tb.wait(1);
            let expected = Response { tag, status: too_long, result: 0, detail: 0 };
            let mut took = tb.bench.clock.cycles - began;
            if inputs == 1 {
                // Then the job behind it has ended before it.
                assert_eq!((answers[0].tag, answers[0].status), (short_tag, Status::Ok as u64));
                assert_eq!(tb.wait(1), [expected]);
                took = tb.bench.clock.cycles - began;
            } else {
                assert_eq!(answers, [expected]);
                assert_eq!(tb.status(), Status::Ok as u64);
            }
            assert!(took > BRIEF_CYCLES, "{took} cycles");
            assert!(took < BRIEF_CYCLES + UNDER_WAY_CYCLES, "{took} cycles");
            tb.bench.check(&compiled, &short, &xs[..100], "behind");
            // Rows are right, or empty if the mapping was stopped, or unchanged.
            let mut counts = [0; 3];
            let right = compiled.rows(&PlacementCase { rule: 1, ..long }, &xs);
            for (index, right) in right.iter().enumerate() {
                let row = tb.bench.row(ROWS, index);
                let is_right = rule == 1 && row == *right;
                let is = [is_right, row == place::NOTHING, row == [0xa5a5_a5a5; 16]];
                let which = is.iter().position(|&is| is);
                counts[which.unwrap_or_else(|| panic!("row {index}: {row:x?}"))] += 1;
            }
            assert!(counts[1] <= 8, "{counts:?}: no more than there are contexts");
            assert_eq!(counts[0] > 0, rule == 1, "{counts:?}");
            tb.cycles(2);
            assert!(tb.bench.model.is_set(tb.idle));
        }

        // Every job has the full time limit, however long the jobs before it took.
        let long = tb.job(0, 15, 3);
        let began = tb.bench.clock.cycles;
        for _ in 0..4 {
            tb.bench.place(&long);
        }
        assert!(tb.wait(4).iter().all(|answer| answer.status == too_long));
        let took = tb.bench.clock.cycles - began;
        assert!(took > 4 * BRIEF_CYCLES, "{took} cycles");
        assert!(took < 4 * (BRIEF_CYCLES + UNDER_WAY_CYCLES), "{took} cycles");

        // A fault has priority, whether it happens before the time limit or after it.
        for (broken, inputs) in [(1, 20), (2, 20 * 16)] {
            tb.bench.memory.broken_from = (INPUTS / 64) as usize + broken;
            tb.bench.place(&PlacementCase { destination: 0, ..tb.job(0, 15, inputs) });
            assert_eq!(tb.status(), Status::CardFault as u64);
            tb.bench.memory.broken_from = usize::MAX;
        }

        // There is no time limit for loading.
        tb.bench.memory.latency_cycles = BRIEF_CYCLES;
        tb.load(whole(tree(AlgorithmKind::Straw2)));
        tb.bench.memory.latency_cycles = 20;
        tb.check_rules("after all that", 60);
    }
}

#[test]
fn the_partition_is_used_only_while_it_is_ready() {
    for (algorithm, module) in [
        (AlgorithmKind::Uniform, ReconfigurableModule::Uniform),
        (AlgorithmKind::List, ReconfigurableModule::List),
        (AlgorithmKind::Tree, ReconfigurableModule::Tree),
    ] {
        let mut tb = loaded(10, algorithm);
        let job = tb.job(0, 3, 100);
        for other in 0..=4 {
            tb.bench.model.set(tb.module, other);
            let tag = tb.bench.place(&job);
            let answer = tb.wait(1)[0];
            if other == module as u64 {
                assert_eq!(answer.status, Status::Ok as u64);
            } else {
                let status = Status::NotLoaded as u64;
                assert_eq!(answer, Response { tag, status, result: 0, detail: other });
            }
        }
        // Jobs in flight end, and new jobs are refused.
        tb.bench.model.set(tb.module, module as u64);
        tb.bench.place(&job);
        tb.cycles(60);
        assert!(tb.bench.model.is_set(tb.busy) && !tb.bench.model.is_set(tb.idle));
        tb.bench.model.set(tb.ready, 0);
        tb.bench.place(&job);
        let mut statuses: Vec<u64> = tb.wait(2).iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [Status::Ok as u64, Status::NotLoaded as u64]);
        tb.cycles(2);
        assert!(!tb.bench.model.is_set(tb.busy) && tb.bench.model.is_set(tb.idle));
    }
    let mut tb = loaded(11, AlgorithmKind::Straw2);
    tb.bench.model.set(tb.ready, 0);
    let job = tb.job(0, 3, 100);
    tb.bench.place(&job);
    tb.cycles(60);
    assert!(!tb.bench.model.is_set(tb.busy), "straw2 does not use the partition");
    assert_eq!(tb.status(), Status::Ok as u64);
}

#[test]
fn a_reset_in_the_middle_leaves_nothing_behind() {
    let mut tb = loaded(12, AlgorithmKind::Straw2);
    for cycles in [40, 100, 333, 1000] {
        let job = tb.job(0, 5, 200);
        tb.bench.place(&job);
        tb.bench.place(&job);
        tb.cycles(cycles);
        let Testbench { bench, mock, .. } = &mut tb;
        bench.clock.pulse_reset(&mut bench.model);
        bench.memory = CardMemory::new(&bench.model, "", bench.memory.bytes.clone(), 0.2);
        bench.memory.owner = place::OWNER;
        bench.commands.queue.clear();
        bench.answers.beats.clear();
        mock.forget();
        tb.cycles(100);
        assert!(tb.bench.model.is_set(tb.idle) && tb.bench.answers.beats.is_empty());
        tb.bench.place(&job);
        assert_eq!(tb.status(), Status::StaleEpoch as u64, "the map is forgotten");
        tb.load(whole(tree(AlgorithmKind::Straw2)));
        tb.check_rules("after a reset", 60);
    }
}
