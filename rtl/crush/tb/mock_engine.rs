//! A mock of the draw engine and of the memories of the image. The mock computes draws with the CPU
//! crate's buckets, and answers them after random times and in random order.

use std::ops::Range;

use fieldstone_crush::{AlgorithmKind, BucketId, TypeId};
use fieldstone_rtl_common::card::Held;
use fieldstone_verilate::bench::{SeededRng, Stream, bits, set_bits};
use fieldstone_verilate::{Model, Port};
use rand::Rng;

use crate::place::Compiled;

/// Faults of draws that do not happen with a sound map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    None,
    /// Sometimes a kernel is missing.
    MissingKernel,
    /// Every draw gives a bucket of a type that no rule wants.
    Cycle,
}

/// A memory whose data comes one cycle after its address.
struct SyncRam {
    read: Port,
    index: Port,
    data: Port,
    pending: Option<usize>,
}

impl SyncRam {
    fn new(model: &Model, name: &str) -> Self {
        let port = |suffix: &str| model.port(&format!("{name}_{suffix}"));
        Self { read: port("read_o"), index: port("index_o"), data: port("i"), pending: None }
    }

    /// The port has a random value in every cycle that does not follow a read.
    fn drive(
        &self,
        model: &mut Model,
        rng: &mut SeededRng,
        content: impl Fn(usize) -> Option<u64>,
    ) {
        let mask = u64::MAX >> (64 - self.data.bits());
        let value = self.pending.and_then(content).unwrap_or_else(|| rng.random());
        model.set(self.data, value & mask);
    }

    fn sample(&mut self, model: &Model) {
        self.pending = model.is_set(self.read).then(|| model.get(self.index) as usize);
    }
}

/// The mock of the draw engine and of the memories.
pub struct MockEngine {
    pub compiled: Compiled,
    /// `rule_t` of every rule, and the steps of all rules, from the image.
    pub rules: Vec<u64>,
    pub steps: Vec<u64>,
    pub fault: InjectedFault,
    /// Cycles from a draw to its answer.
    pub delay_cycles: Range<u64>,
    pub stall: f64,
    /// True if the loader accepts the image.
    pub accepts: bool,
    /// The received image.
    pub image: Vec<u8>,
    /// Number of draws.
    pub draws: u64,
    settings: Vec<u8>,
    contexts: u64,
    cycle: u64,
    pending: Vec<(u64, [u8; 7])>,
    offered: Option<[u8; 7]>,
    is_loaded: bool,
    memories: [SyncRam; 3],
    choose: [Port; 3],
    chosen: [Port; 3],
    load: [Port; 4],
    load_result: [Port; 2],
    settings_port: Port,
    held_choose: Held,
    held_load: [Held; 2],
}

impl MockEngine {
    pub fn new(model: &Model, contexts: u64, compiled: Compiled) -> Self {
        let ports = |names: [&str; 3]| names.map(|name| model.port(name));
        let mut mock = Self {
            compiled,
            rules: Vec::new(),
            steps: Vec::new(),
            fault: InjectedFault::None,
            delay_cycles: 0..60,
            stall: 0.2,
            accepts: true,
            image: Vec::new(),
            draws: 0,
            settings: Vec::new(),
            contexts,
            cycle: 0,
            pending: Vec::new(),
            offered: None,
            is_loaded: false,
            memories: ["rule", "step", "reweight"].map(|name| SyncRam::new(model, name)),
            choose: ports(["choose_valid_o", "choose_ready_i", "choose_o"]),
            chosen: ports(["chosen_valid_i", "chosen_ready_o", "chosen_i"]),
            load: ["load_valid_o", "load_ready_i", "load_beat_o", "load_last_o"]
                .map(|name| model.port(name)),
            load_result: ["load_done_i", "load_ok_i"].map(|name| model.port(name)),
            settings_port: model.port("settings_i"),
            held_choose: Held::new("choose_o"),
            held_load: ["load_beat_o", "load_last_o"].map(Held::new),
        };
        mock.describe();
        mock
    }

    /// Sets another map, for the next load.
    pub fn set_map(&mut self, compiled: Compiled) {
        self.compiled = compiled;
        self.describe();
    }

    /// After a reset, no answer is pending.
    pub fn forget(&mut self) {
        self.pending.clear();
        self.offered = None;
        self.is_loaded = false;
        self.held_choose = Held::new("choose_o");
        self.held_load = ["load_beat_o", "load_last_o"].map(Held::new);
    }

    /// The content of the unit's memories, taken from the image. The image's header gives the
    /// number of entries of its sections.
    fn describe(&mut self) {
        let image = self.compiled.image.bytes();
        let count = |section: usize| bits(image, 64 + 32 * section, 32) as usize;
        let mut at = 64;
        for (section, entry_bytes) in [16, 16 * 16, 4].into_iter().enumerate() {
            at += (count(section) * entry_bytes).next_multiple_of(64);
        }
        let words = |at: usize, count: usize| -> Vec<u64> {
            (0..count).map(|index| bits(image, 8 * (at + 8 * index), 64)).collect()
        };
        self.rules = words(at, count(3));
        self.steps = words(at + (8 * count(3)).next_multiple_of(64), count(4));
        let mut settings = vec![0; 11];
        for (at, count, value) in [
            (0, 1, bits(image, 57, 1)),     // descend_once
            (1, 1, bits(image, 56, 1)),     // stable
            (2, 8, bits(image, 240, 8)),    // vary_r
            (10, 16, bits(image, 224, 16)), // choose_tries
            (26, 32, count(2) as u64),
            (58, 16, count(3) as u64),
            (74, 8, bits(image, 48, 8)), // algorithms
        ] {
            set_bits(&mut settings, at, count, value);
        }
        self.settings = settings;
    }

    fn answer(&mut self, request: &[u8], rng: &mut SeededRng) -> [u8; 7] {
        let (tag, x, r_base) =
            (bits(request, 110, 8), bits(request, 78, 32), bits(request, 46, 32) as u32);
        let (ftotal, numrep) = (bits(request, 30, 16) as u32, bits(request, 24, 5) as u32);
        let (bucket, position) = (bits(request, 8, 16) as i32, bits(request, 0, 8) as usize);
        assert!(tag < self.contexts, "no such context");
        self.draws += 1;
        let mut answer = [0; 7];
        set_bits(&mut answer, 43, 8, tag);
        if self.fault == InjectedFault::MissingKernel && rng.random_bool(0.01) {
            set_bits(&mut answer, 41, 1, 1);
            return answer;
        }
        let Compiled { map, args, .. } = &self.compiled;
        let bucket = map.bucket(BucketId(-1 - bucket)).expect("the map is sound");
        let size = bucket.items.len() as u32;
        let (mut step, mut is_stretched) = (1, false);
        if bits(request, 29, 1) == 1 {
            let is_uniform = bucket.algorithm.kind() == AlgorithmKind::Uniform;
            is_stretched = is_uniform && size.is_multiple_of(numrep);
            step = numrep + u32::from(is_stretched);
        }
        let r = r_base.wrapping_add(step.wrapping_mul(ftotal));
        let arg = args.as_ref().and_then(|args| args.buckets.get(&bucket.id));
        let drawn = bucket.choose(x as u32, r, arg, position);
        let item = drawn.map_or(0x7fff_ffff, |index| bucket.items[index].0);
        let kind = map.bucket(BucketId(item)).map_or(TypeId::DEVICE, |bucket| bucket.kind);
        set_bits(&mut answer, 0, 32, u64::from(item as u32));
        set_bits(&mut answer, 32, 8, u64::from(kind.0));
        set_bits(&mut answer, 40, 1, u64::from(is_stretched));
        set_bits(&mut answer, 42, 1, u64::from(size == 0));
        if self.fault == InjectedFault::Cycle {
            set_bits(&mut answer, 0, 32, u64::from(bucket.id.0 as u32));
            set_bits(&mut answer, 32, 8, 0xff);
            set_bits(&mut answer, 42, 1, 0);
        }
        answer
    }
}

impl Stream for MockEngine {
    fn drive(&mut self, model: &mut Model, rng: &mut SeededRng) {
        model.set(self.choose[1], u64::from(!rng.random_bool(self.stall)));
        model.set(self.load[1], u64::from(!rng.random_bool(self.stall)));
        model.set(self.load_result[0], u64::from(self.is_loaded));
        model.set(self.load_result[1], u64::from(self.accepts));
        self.is_loaded = false;
        if self.offered.is_none() && !rng.random_bool(self.stall) {
            let due: Vec<usize> =
                (0..self.pending.len()).filter(|&at| self.pending[at].0 <= self.cycle).collect();
            if !due.is_empty() {
                let at = due[rng.random_range(0..due.len())];
                self.offered = Some(self.pending.swap_remove(at).1);
            }
        }
        model.set(self.chosen[0], u64::from(self.offered.is_some()));
        if let Some(answer) = self.offered {
            model.set_bytes(self.chosen[2], &answer);
        }
        let [rules, steps, reweights] = &self.memories;
        let weight = |at| self.compiled.reweights.get(at).copied().map(u64::from);
        rules.drive(model, rng, |at| self.rules.get(at).copied());
        steps.drive(model, rng, |at| self.steps.get(at).copied());
        reweights.drive(model, rng, weight);
        model.set_bytes(self.settings_port, &self.settings);
        // The answers are made here, because this function has the generator.
        for at in 0..self.pending.len() {
            if self.pending[at].0 == u64::MAX {
                self.pending[at].0 = self.cycle + rng.random_range(self.delay_cycles.clone());
            }
        }
    }

    /// Also asserts the rule of streams.
    fn sample(&mut self, model: &Model, cycle: u64) {
        self.cycle += 1;
        self.held_choose.sample(model, self.choose, cycle);
        let [valid, ready, beat, last] = self.load;
        self.held_load[0].sample(model, [valid, ready, beat], cycle);
        self.held_load[1].sample(model, [valid, ready, last], cycle);
        let [valid, ready, request] = self.choose;
        if model.is_set(valid) && model.is_set(ready) {
            let request = model.bytes(request).to_vec();
            let mut rng = fieldstone_verilate::bench::seeded_rng(cycle);
            let answer = self.answer(&request, &mut rng);
            let tag = bits(&answer, 43, 8);
            let waits = self.pending.iter().map(|(_, other)| other).chain(&self.offered);
            assert!(waits.clone().all(|other| bits(other, 43, 8) != tag), "two draws at a time");
            self.pending.push((u64::MAX, answer));
        }
        let [valid, ready, _] = self.chosen;
        if model.is_set(valid) && model.is_set(ready) {
            self.offered = None;
        }
        for memory in &mut self.memories {
            memory.sample(model);
        }
        let [valid, ready, beat, last] = self.load;
        if model.is_set(valid) && model.is_set(ready) {
            self.image.extend_from_slice(model.bytes(beat));
            self.is_loaded = model.is_set(last);
        }
    }
}
