//! The kernels alone: beats in, positions out.

use std::collections::VecDeque;

use fieldstone_crush::{Algorithm, AlgorithmKind, BucketId, ItemId, TypeId};
use fieldstone_fpga::image::{BucketSlots, SLOT_BYTES};
use fieldstone_rtl_crush as designs;
use fieldstone_verilate::bench::{Clock, SeededRng, Source, Stream, seeded_rng};
use fieldstone_verilate::{Design, Model, Port};
use rand::Rng;

use crate::buckets;

/// The expected result of a draw.
struct Expected {
    tag: u64,
    /// The position; or, if there is no such item, the bound that the position must not be below.
    position: Result<u64, u64>,
}

/// Compares the results of the kernels.
struct Checker {
    valid: Port,
    drawn: Port,
    expected: Vec<VecDeque<Expected>>,
    checked: usize,
}

/// Bits of `drawn_t`, and of the tag in it.
const DRAWN_BITS: u32 = 46;
const TAG_BITS: u32 = 30;

impl Stream for Checker {
    fn drive(&mut self, _: &mut Model, _: &mut SeededRng) {}

    fn sample(&mut self, model: &Model, _: u64) {
        let valid = model.get(self.valid);
        for kernel in (0..5).filter(|kernel| valid >> kernel & 1 == 1) {
            let low = kernel * DRAWN_BITS;
            let mut bytes = [0; 16];
            let all = &model.bytes(self.drawn)[low as usize / 8..];
            let len = all.len().min(16);
            bytes[..len].copy_from_slice(&all[..len]);
            let drawn = (u128::from_le_bytes(bytes) >> (low % 8)) as u64;
            let (position, tag) = (drawn & 0xffff, drawn >> 16 & ((1 << TAG_BITS) - 1));
            let expected =
                self.expected[kernel as usize].pop_front().expect("someone asked for it");
            assert_eq!(tag, expected.tag, "kernel {}", kernel + 1);
            match expected.position {
                Ok(exactly) => assert_eq!(position, exactly, "kernel {}", kernel + 1),
                Err(least) => assert!(position >= least, "kernel {}", kernel + 1),
            }
            self.checked += 1;
        }
    }
}

/// A random draw from a random bucket: gives its beats to the source, and its result to the
/// checker.
fn draw(rng: &mut SeededRng, lanes: usize, source: &mut Source, checker: &mut Checker) {
    let algorithm = AlgorithmKind::ALL[rng.random_range(0..5)];
    let items = buckets::size(rng, algorithm, 300);
    let items: Vec<ItemId> = (0..items).map(|_| ItemId(rng.random())).collect();
    let id = BucketId(-1 - rng.random_range(0..4096));
    let bucket = buckets::bucket(rng, id, TypeId(1), algorithm, &items);
    let slots = BucketSlots::new(&bucket, None, &|_| 0).expect("the weights fit");
    let slots = &slots.sets[0];
    let size = match &bucket.algorithm {
        Algorithm::Tree { node_weights } => node_weights.len() / 2,
        _ => items.len(),
    };
    for _ in 0..rng.random_range(1..8) {
        let x: u32 = rng.random();
        let r: u32 = if rng.random_bool(0.8) { rng.random_range(0..20) } else { rng.random() };
        let r = if algorithm == AlgorithmKind::Uniform { r % size as u32 } else { r };
        let tag = rng.random_range(0..1 << TAG_BITS);
        let position = bucket.choose(x, r, None, 0).map(|index| match algorithm {
            AlgorithmKind::List => items.len() - 1 - index,
            _ => index,
        });
        let position = position.map(|at| at as u64).ok_or(items.len() as u64);
        checker.expected[algorithm as usize - 1].push_back(Expected { tag, position });

        let rows = size.div_ceil(lanes);
        let mut order: Vec<usize> = (0..rows).collect();
        if algorithm == AlgorithmKind::Uniform {
            order = (0..=r as usize / lanes).rev().collect();
        }
        for (at, &row) in order.iter().enumerate() {
            let (first, last) = (u8::from(at == 0), u8::from(at + 1 == order.len()));
            let mut beat = Vec::new();
            beat.extend((row as u16).to_le_bytes());
            beat.extend((size as u16).to_le_bytes());
            beat.extend(id.0.to_le_bytes());
            beat.extend(r.to_le_bytes());
            beat.extend(x.to_le_bytes());
            let ends = u32::from(first) << 31 | u32::from(last) << 30;
            beat.extend((ends | tag as u32).to_le_bytes());
            let row = &slots[row * lanes..size.min((row + 1) * lanes)];
            let mask = ((1u64 << row.len()) - 1).to_le_bytes();
            let mut data = row.concat();
            // Bytes after a bucket's slots must not matter.
            data.resize_with(lanes * SLOT_BYTES, || rng.random());
            source.push_bytes(&[&[algorithm as u8], &beat, &mask[..lanes.div_ceil(8)], &data]);
        }
    }
}

fn kernels_draw_as_the_software(design: &'static Design, seed: u64, draws: usize) {
    for stall in [0.0, 0.3] {
        let mut rng = seeded_rng(seed);
        let mut model = Model::new(design);
        let lanes = model.port("mask_i").bits() as usize;
        let ports = ["kernel_i", "beat_i", "mask_i", "slots_i"];
        let mut source = Source::new(&model, "", &ports, stall);
        let mut checker = Checker {
            valid: model.port("valid_o"),
            drawn: model.port("drawn_o"),
            expected: (0..5).map(|_| VecDeque::new()).collect(),
            checked: 0,
        };
        let mut clock = Clock::reset(&mut model);
        for _ in 0..draws {
            draw(&mut rng, lanes, &mut source, &mut checker);
            while source.queue.len() > 64 {
                clock.cycle(&mut model, &mut rng, &mut [&mut source, &mut checker]);
            }
        }
        while !source.is_done() {
            clock.cycle(&mut model, &mut rng, &mut [&mut source, &mut checker]);
        }
        for _ in 0..64 {
            clock.cycle(&mut model, &mut rng, &mut [&mut source, &mut checker]);
        }
        assert!(checker.expected.iter().all(VecDeque::is_empty), "draws are missing");
        assert!(checker.checked >= draws);
    }
}

#[test]
fn kernels_of_16_lanes_draw_as_the_software() {
    kernels_draw_as_the_software(&designs::KERNELS_16, 16, 3000);
}

#[test]
fn kernels_of_4_lanes_draw_as_the_software() {
    kernels_draw_as_the_software(&designs::KERNELS_4, 4, 1500);
}
