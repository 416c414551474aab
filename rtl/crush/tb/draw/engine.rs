//! The draw engine with its memories. The bench loads an image, gives draws, and takes the answers.

use std::collections::HashMap;

use fieldstone_crush::{AlgorithmKind, BucketId, ChooseArgs, ItemId, Map};
use fieldstone_fpga::image::Image;
use fieldstone_fpga::regs::BEAT_BYTES;
use fieldstone_rtl_crush as designs;
use fieldstone_verilate::bench::{Clock, SeededRng, Sink, Source, seeded_rng};
use fieldstone_verilate::{Design, Model};
use rand::Rng;
use rand::seq::IndexedRandom;

use crate::buckets;

/// A draw as the rule engine requests it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choose {
    pub x: u32,
    pub r_base: u32,
    pub ftotal: u16,
    pub is_indep: bool,
    pub numrep: u8,
    pub bucket: u16,
    pub position: u8,
}

impl Choose {
    /// A random draw from a bucket.
    pub fn random(rng: &mut SeededRng, bucket: u16) -> Self {
        Self {
            x: rng.random(),
            r_base: if rng.random_bool(0.9) { rng.random_range(0..12) } else { rng.random() },
            ftotal: if rng.random_bool(0.7) { 0 } else { rng.random_range(0..200) },
            is_indep: rng.random(),
            numrep: rng.random_range(1..32),
            bucket,
            position: rng.random_range(0..15),
        }
    }

    /// `choose_t`.
    fn bytes(&self, tag: u8) -> [u8; 15] {
        let fields = [
            (u128::from(self.position), 8),
            (self.bucket.into(), 16),
            (self.numrep.into(), 5),
            (self.is_indep.into(), 1),
            (self.ftotal.into(), 16),
            (self.r_base.into(), 32),
            (self.x.into(), 32),
            (tag.into(), 8),
        ];
        let (number, _) = fields
            .iter()
            .fold((0, 0), |(number, low), (value, bits)| (number | value << low, low + bits));
        let mut bytes = [0; 15];
        bytes.copy_from_slice(&number.to_le_bytes()[..15]);
        bytes
    }

    /// The expected answer.
    fn chosen(&self, map: &Map, choose_args: Option<&ChooseArgs>, module: u64) -> Chosen {
        let id = BucketId(-1 - i32::from(self.bucket));
        let Some(bucket) = map.bucket(id) else { return Chosen::Bad };
        if bucket.items.is_empty() {
            return Chosen::Empty;
        }
        let algorithm = bucket.algorithm.kind();
        if !matches!(algorithm, AlgorithmKind::Straw | AlgorithmKind::Straw2)
            && algorithm as u64 != module
        {
            return Chosen::Bad;
        }
        let numrep = u32::from(self.numrep);
        let is_stretched = self.is_indep
            && algorithm == AlgorithmKind::Uniform
            && (bucket.items.len() as u32).is_multiple_of(numrep);
        let step = if self.is_indep { numrep + u32::from(is_stretched) } else { 1 };
        let r = self.r_base.wrapping_add(u32::from(self.ftotal) * step);
        let arg = choose_args.and_then(|args| args.buckets.get(&id));
        let index = bucket.choose(self.x, r, arg, self.position.into());
        let item = index.map_or(ItemId::NONE, |index| bucket.items[index]);
        let kind = item.bucket().and_then(|id| map.bucket(id)).map_or(0, |bucket| bucket.kind.0);
        Chosen::Item { item, kind: kind as u8, is_stretched }
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    Item { item: ItemId, kind: u8, is_stretched: bool },
    Empty,
    Bad,
}

impl Chosen {
    /// Decodes a `chosen_t`, with its tag.
    fn from_beat(beat: u64) -> (u8, Self) {
        let bit = |at: u32| beat >> at & 1 == 1;
        let item = ItemId(beat as u32 as i32);
        let kind = (beat >> 32) as u8;
        let chosen = match (bit(42), bit(41)) {
            (true, false) => Self::Empty,
            (false, true) => Self::Bad,
            (false, false) => Self::Item { item, kind, is_stretched: bit(40) },
            (true, true) => panic!("an answer is both empty and bad"),
        };
        ((beat >> 43) as u8, chosen)
    }
}

/// The model with its streams.
pub struct Engine {
    pub model: Model,
    pub clock: Clock,
    pub rng: SeededRng,
    pub chooses: Source,
    pub answers: Sink,
    load: Source,
    module: u64,
}

impl Engine {
    pub fn new(design: &'static Design, seed: u64, stalls: (f64, f64)) -> Self {
        let mut model = Model::new(design);
        let load = Source::new(&model, "load", &["load_last_i", "load_beat_i"], 0.2);
        let chooses = Source::new(&model, "choose", &["choose_i"], stalls.0);
        let answers = Sink::new(&model, "chosen", &["chosen_o"], stalls.1);
        let clock = Clock::reset(&mut model);
        Self { model, clock, rng: seeded_rng(seed), chooses, answers, load, module: 0 }
    }

    pub fn cycle(&mut self) {
        let streams: &mut [&mut dyn fieldstone_verilate::bench::Stream] =
            &mut [&mut self.chooses, &mut self.answers, &mut self.load];
        self.clock.cycle(&mut self.model, &mut self.rng, streams);
    }

    /// Changes the partition's module.
    pub fn set_module(&mut self, module: u64, is_ready: bool) {
        self.model.set(self.model.port("rp_module_i"), module);
        self.model.set(self.model.port("rp_ready_i"), is_ready.into());
        self.module = if is_ready { module } else { 0 };
    }

    /// Loads an image; true if the device accepts it.
    pub fn load(&mut self, bytes: &[u8]) -> bool {
        let beats = bytes.chunks(BEAT_BYTES);
        let last = beats.len() - 1;
        beats
            .enumerate()
            .for_each(|(at, beat)| self.load.push_bytes(&[&[u8::from(at == last)], beat]));
        let done = self.model.port("load_done_o");
        let ok = self.model.port("load_ok_o");
        for _ in 0..8 * last + 100 {
            self.cycle();
            if self.model.is_set(done) {
                assert!(self.load.is_done(), "the loader ended before the image");
                return self.model.is_set(ok);
            }
        }
        panic!("the loader never ended");
    }

    /// Makes these draws, with as many in flight as there are tags, and compares the answers.
    pub fn check(
        &mut self,
        map: &Map,
        args: Option<&ChooseArgs>,
        draws: impl IntoIterator<Item = Choose>,
    ) {
        let mut draws = draws.into_iter().peekable();
        let mut free: Vec<u8> = (0..=255).rev().collect();
        let mut expected = HashMap::new();
        let mut idle = 0;
        while draws.peek().is_some() || !expected.is_empty() {
            while self.chooses.queue.len() < 4
                && let Some(tag) = free.pop()
            {
                let Some(draw) = draws.next() else { break };
                self.chooses.push_bytes(&[&draw.bytes(tag)]);
                expected.insert(tag, (draw, draw.chosen(map, args, self.module)));
            }
            self.cycle();
            idle += 1;
            assert!(idle < 5000, "wedged");
            while let Some(beat) = self.answers.pop() {
                idle = 0;
                let (tag, chosen) = Chosen::from_beat(beat[0]);
                let (draw, expected) = expected.remove(&tag).expect("the tag is in flight");
                assert_eq!(
                    chosen,
                    expected,
                    "{draw:?} from {:?}",
                    map.bucket(BucketId(-1 - i32::from(draw.bucket)))
                );
                free.push(tag);
            }
        }
    }
}

/// Draws from all buckets of random maps, with and without weight sets, with any module in the
/// partition.
fn draws_are_those_of_the_software(
    design: &'static Design,
    seed: u64,
    stalls: (f64, f64),
    draws: usize,
) {
    let mut engine = Engine::new(design, seed, stalls);
    for round in 0..4u64 {
        let map = buckets::map(&mut engine.rng, 150, 120);
        let args = (round % 2 == 1).then(|| buckets::choose_args(&mut engine.rng, &map));
        let image = Image::compile(&map, &[], args.as_ref()).expect("the map fits");
        assert!(engine.load(image.bytes()));
        for module in [1, 2, 3, 0] {
            engine.set_module(module, round != 2 || module != 1);
            let mut rng = seeded_rng(seed << 8 | round << 4 | module);
            // Buckets past the last exist in no image. Most draws use buckets of the partition's
            // module.
            let mine: Vec<u16> = (0..155).filter(|n| n % 5 == module as u16 || n % 5 > 2).collect();
            let choose = |_| {
                let bucket = match rng.random_range(0..10) {
                    0 => rng.random_range(0..155),
                    _ => *mine.choose(&mut rng).expect("it is not empty"),
                };
                Choose::random(&mut rng, bucket)
            };
            engine.check(&map, args.as_ref(), (0..draws).map(choose).collect::<Vec<_>>());
        }
    }
}

#[test]
fn draws_of_16_lanes_are_those_of_the_software() {
    draws_are_those_of_the_software(&designs::DRAW_16, 1, (0.0, 0.0), 1500);
    draws_are_those_of_the_software(&designs::DRAW_16, 2, (0.3, 0.6), 600);
}

#[test]
fn draws_of_4_lanes_are_those_of_the_software() {
    draws_are_those_of_the_software(&designs::DRAW_4, 3, (0.1, 0.1), 500);
}
