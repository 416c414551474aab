//! The rule machine alone: draws, memories of the image and card memory are played by the bench; the
//! results are those of the CPU's mapper, and what is wrong is answered as it should be.
#![cfg(feature = "verilator")]

mod maps;
mod place;
mod played;

use fieldstone_crush::{
    AlgorithmKind, ChooseArgsId, Kernel, Map, MapBuilder, RuleId, RuleStep, TypeId, WEIGHT_ONE,
};
use fieldstone_fpga::regs::{H2cOp, ReconfigurableModule, Status, descriptor};
use fieldstone_rtl_crush as designs;
use fieldstone_verilate::bench::{Dice, dice};
use fieldstone_verilate::{Design, Port};
use place::{Answer, Bench, Job};
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
        let mut bench = Bench::new(design, seed, stall);
        let map = maps::random(&mut bench.dice, &AlgorithmKind::ALL);
        let mut played = Played::new(&bench.model, contexts, map, Vec::new());
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
    fn load(&mut self, map: Map, golden_args: bool, reweights: Vec<u32>) {
        let args =
            if golden_args { map.choose_args_for_pool(0).cloned() } else { None };
        let needs = map.buckets().map(|bucket| bucket.algorithm.kind() as u64).find(|&n| n <= 3);
        self.played.set_map(map, args, reweights);
        let module = needs.unwrap_or_else(|| self.bench.dice.random_range(0..4));
        self.bench.model.set(self.module, module);
        self.bench.model.set(self.ready, 1);
        let beats = self.bench.dice.random_range(1..70);
        for byte in &mut self.bench.memory.bytes[..beats * 64] {
            *byte = self.bench.dice.random();
        }
        self.played.image.clear();
        self.epoch = self.bench.dice.random_range(0..1 << 32);
        self.bench.load(IMAGE, 64 * beats as u64, self.epoch);
        assert_eq!(self.status(), Status::Ok as u64);
        assert_eq!(self.played.image, self.bench.memory.bytes[..beats * 64]);
    }

    fn job(&self, rule: u64, width: u64, inputs: u64) -> Job {
        let (source, destination) = (INPUTS, ROWS);
        Job { source, destination, length: 4 * inputs, epoch: self.epoch, width, rule }
    }

    /// Maps random inputs through every rule of the map that fits, several commands at a time, and
    /// compares; says how many mappings that were.
    fn check_rules(&mut self, name: &str, most_inputs: usize) -> u64 {
        let rules: Vec<RuleId> = self.played.map.rules().map(|(id, _)| id).collect();
        let mut jobs = Vec::new();
        let (mut source, mut destination) = (INPUTS, ROWS);
        self.bench.memory.bytes[ROWS as usize..].fill(0xa5);
        for rule in rules {
            let width = maps::pick(&mut self.bench.dice, &[1, 2, 3, 3, 4, 6, 8, 15]);
            let inputs = self.bench.dice.random_range(1..=most_inputs);
            let job = Job { source, destination, ..self.job(rule.0.into(), width, inputs as u64) };
            let tag = self.bench.place(&job);
            let xs = self.bench.write_inputs(source, inputs);
            source += (4 * inputs as u64).next_multiple_of(64);
            destination += 64 * inputs as u64 + 64;
            jobs.push((tag, rule, job, xs));
        }
        let answers = self.wait(jobs.len());
        let mut mappings = 0;
        for (tag, rule, job, xs) in jobs {
            let answer = answers.iter().find(|answer| answer.tag == tag).expect("an answer each");
            if !self.played.rules.has(rule) {
                assert_eq!(answer.status, Status::BadParameter as u64, "{name}, rule {}", rule.0);
                continue;
            }
            assert_eq!(answer.status, Status::Ok as u64, "{name}, rule {}", rule.0);
            assert_eq!(answer.result, xs.len() as u64);
            let Played { map, args, reweights, .. } = &self.played;
            let cpu = map.rule(rule).expect("it is one of the map's");
            let cpu = cpu.with_choose_args(args.as_ref());
            let rows = cpu.map_rows_with(Kernel::Scalar, &xs, job.width as usize, reweights);
            let what = format!("{name}, rule {} of {:?}", rule.0, map.rules().nth(0));
            self.bench.check(job.destination, &xs, &rows, &what);
            let after = job.destination as usize + 64 * xs.len();
            assert!(self.bench.memory.bytes[after..after + 64].iter().all(|&byte| byte == 0xa5));
            mappings += xs.len() as u64;
        }
        assert!(!self.bench.model.is_set(self.busy), "nothing is in flight");
        mappings
    }
}

/// The algorithms of a random map: one module of the partition at most.
fn algorithms(dice: &mut Dice) -> Vec<AlgorithmKind> {
    let fixed = [AlgorithmKind::Straw2, AlgorithmKind::Straw];
    let module = AlgorithmKind::ALL[dice.random_range(0..3)];
    match dice.random_range(0..3) {
        0 => fixed.to_vec(),
        1 => vec![module],
        _ => [fixed.to_vec(), vec![module]].concat(),
    }
}

fn random_maps(design: &'static Design, contexts: u64, seed: u64, maps: usize, stall: f64) {
    let mut world = World::new(design, contexts, seed, stall);
    let mut mappings = 0;
    for number in 0..maps {
        let kinds = algorithms(&mut world.bench.dice);
        let map = maps::random(&mut world.bench.dice, &kinds);
        let reweights = maps::reweights(&mut world.bench.dice, &map);
        world.load(map, false, reweights);
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
    let mut mappings = 0;
    let mut left_out = Vec::new();
    for (name, map) in maps::golden() {
        let modules =
            map.buckets().map(|bucket| bucket.algorithm.kind() as u8).filter(|&kind| kind <= 3);
        let mut modules: Vec<u8> = modules.collect();
        modules.sort_unstable();
        modules.dedup();
        if modules.len() > 1 {
            left_out.push(name);
            continue;
        }
        let reweights = maps::reweights(&mut world.bench.dice, &map);
        world.load(map, true, reweights);
        mappings += world.check_rules(&name, 24);
    }
    println!("{mappings} mappings; more than one module: {left_out:?}");
    assert!(mappings > 1000);
}
