//! Compares every layer and the whole stack with one model of the contract.
//!
//! A seed fixes the requests, the backend's temper and the shape of the device. The layer under
//! test stands over a backend that completes in any order and sometimes fails (`chaos`). The oracle
//! knows the permitted values of each cell (`oracle`). The harness compares (`harness`).

#[cfg(test)]
mod chaos;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod writes;

use std::num::NonZeroU64;

use chaos::{Chaos, Temper};
use fieldstone_block::layers::{
    Align, Cache, CacheOptions, Delay, DelayOptions, ErrorInject, ErrorOptions, Limit,
    LimitOptions, Luks, LuksOptions, Policy, ReadAhead, ReadAheadOptions, Scheduler,
    SchedulerOptions, TrimPolicy,
};
use fieldstone_block::{Backend, Layer, Nanos, Op, Ram, Stack};
use fieldstone_luks::{SectorCipher, Segment, Unlocked};
use harness::{Harness, Shape};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SEEDS: u64 = 750;
const BLOCKS: Wants = Wants { blocks: true, streams: false, lines: false };
const LINES: Wants = Wants { blocks: false, streams: false, lines: true };
const STREAMS: Wants = Wants { blocks: false, streams: true, lines: false };

/// The properties of the requests and the backend that a test asks for.
#[derive(Clone, Copy, Default)]
struct Wants {
    /// The backend may have blocks larger than a cell.
    blocks: bool,
    /// Half of the runs are long, deep and sequential.
    streams: bool,
    /// Cells about as large as a cache line.
    lines: bool,
}

/// A shape and a temper from a seed.
fn draw(seed: u64, wants: Wants) -> (Shape, Temper) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let sizes = if wants.lines { [1024, 2048, 4096] } else { [4, 256, 1024] };
    let cell_bytes = sizes[random.random_range(0..3)];
    let cells_per_block = if wants.blocks { [1, 4, 16][random.random_range(0..3)] } else { 1 };
    let cells = cells_per_block as usize * random.random_range(3..20);
    let max_delay = 10_000;
    let mut shape = Shape {
        cells,
        cell_bytes,
        trim_bytes: cell_bytes * cells_per_block,
        requests: 120,
        max_in_flight: [1, 3, 12, 40][random.random_range(0..4)],
        sequential: [0.0, 0.5, 0.95][random.random_range(0..3)],
        max_gap: [0, 3_000, 30_000][random.random_range(0..3)],
    };
    if wants.streams && random.random_bool(0.5) {
        shape =
            Shape { requests: 240, max_in_flight: 40, sequential: 0.95, max_gap: 2_000, ..shape };
    }
    let failing = [0, 0, 20][random.random_range(0..3)];
    (shape, Temper { block_bytes: cell_bytes * cells_per_block, max_delay, failing })
}

fn over(chaos: Chaos, layer: impl Layer) -> Stack<Chaos> {
    Stack::new(chaos, vec![Box::new(layer)])
}

fn check_seed<B: Backend>(
    seed: u64,
    wants: Wants,
    stack: impl Fn(Chaos, &Shape) -> B,
    chaos_of: impl Fn(&B) -> &Chaos,
) -> Harness<B> {
    let (shape, temper) = draw(seed, wants);
    let size_bytes = shape.cells as u64 * u64::from(shape.cell_bytes);
    let backend = stack(Chaos::new(size_bytes, temper, seed ^ 0xc4a0), &shape);
    let mut harness = Harness::new(backend, shape, seed);
    if let Err(error) = harness.run(|backend, tag| chaos_of(backend).is_stable(tag)) {
        panic!("seed {seed}: {error}\n{shape:?}\n{temper:?}");
    }
    harness
}

#[test]
fn ram_keeps_the_contract() {
    for seed in 0..SEEDS / 5 {
        let (shape, _) = draw(seed, Wants::default());
        let shape = Shape { cell_bytes: 1028, trim_bytes: 1, cells: 200, ..shape };
        let mut harness = Harness::new(Ram::new(200 * 1028), shape, seed);
        harness.run(|_, _| true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn chaos_itself_keeps_the_contract() {
    for seed in 0..SEEDS / 5 {
        check_seed(seed, Wants::default(), |chaos, _| chaos, |chaos| chaos);
    }
}

#[test]
fn align_keeps_the_contract() {
    for seed in 0..SEEDS {
        check_seed(seed, BLOCKS, |chaos, _| over(chaos, Align::new()), Stack::store);
    }
}

#[test]
fn scheduler_keeps_the_contract() {
    let mut merged = 0;
    for seed in 0..SEEDS {
        let stack = |chaos, shape: &Shape| {
            let options = SchedulerOptions {
                policy: [Policy::HalfMean, Policy::AsShipped][seed as usize % 2],
                min_in_flight: [1, 2, 4][seed as usize % 3],
                large_bytes: shape.cell_bytes * 16,
                max_merge_bytes: shape.cell_bytes * 24,
                ..SchedulerOptions::default()
            };
            over(chaos, Scheduler::new(options))
        };
        let harness = check_seed(seed, STREAMS, stack, Stack::store);
        merged += harness.backend.layer::<Scheduler>().unwrap().stats().merged;
    }
    assert!(merged > SEEDS, "only {merged} requests were merged: the test does not test merging");
}

#[test]
fn cache_keeps_the_contract() {
    let mut hits = 0;
    let mut refused = 0;
    for seed in 0..SEEDS {
        let stack = |chaos, _: &Shape| {
            let options = CacheOptions {
                capacity_bytes: [2 << 12, 1 << 20][seed as usize % 2],
                bypass_bytes: [16 << 10, 256 << 10][seed as usize / 2 % 2],
                stream_bytes: [8 << 10, u32::MAX][seed as usize / 4 % 2],
                write_allocate: seed % 3 == 0,
            };
            over(chaos, Cache::new(options))
        };
        // Lines are 4 KiB: cells of 1 KiB and 4 KiB give lines in part and several lines.
        let harness = check_seed(seed, LINES, stack, Stack::store);
        let stats = harness.backend.layer::<Cache>().unwrap().stats();
        hits += stats.hits;
        refused += stats.refused;
    }
    assert!(hits > SEEDS && refused > SEEDS, "{hits} hits, {refused} refused");
}

#[test]
fn readahead_keeps_the_contract() {
    let (mut hits, mut waited, mut cut, mut failed) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let window = [8 << 10, 16 << 10, 64 << 10][seed as usize % 3];
        let options = ReadAheadOptions { window_bytes: Some(window) };
        let wants = Wants { blocks: false, streams: seed % 4 > 0, lines: true };
        let stack = |chaos, _: &Shape| over(chaos, ReadAhead::new(options));
        let harness = check_seed(seed, wants, stack, Stack::store);
        let stats = harness.backend.layer::<ReadAhead>().unwrap().stats();
        hits += stats.hits;
        waited += stats.waited;
        cut += stats.cut;
        failed += stats.failed;
    }
    let fewest = hits.min(waited).min(cut);
    assert!(fewest > SEEDS / 4 && failed > 0, "{hits}, {waited}, {cut}, {failed}");
}

/// Sectors that are smaller and larger than the blocks of the store, and requests of parts of
/// sectors. The backend sees encrypted bytes, so it cannot say which writes are stable.
#[test]
fn luks_keeps_the_contract() {
    const DATA_BYTES: u64 = 16 << 10;
    for seed in 0..SEEDS {
        let (shape, temper) = draw(seed, Wants::default());
        let block_bytes = [256, 512, 4096][seed as usize % 3];
        let sector_bytes = [512, 4096][seed as usize / 3 % 2];
        let trim_bytes = block_bytes.max(sector_bytes);
        let shape = Shape { cell_bytes: 256, cells: 64, trim_bytes, ..shape };
        let trim = [TrimPolicy::Zeroes, TrimPolicy::Pass][seed as usize / 6 % 2];
        let cipher = SectorCipher::new(&[seed as u8; 64], sector_bytes, 0).unwrap();
        let segment =
            Segment { offset_bytes: DATA_BYTES, len_bytes: None, sector_bytes, first_sector: 0 };
        let unlocked = Unlocked { cipher, segment, slot: 0 };
        let luks = Luks::unlocked(LuksOptions { passphrase_file: None, trim }, unlocked);
        // A write that fails in the middle of a sector leaves noise there.
        let failing = if block_bytes < sector_bytes { 0 } else { temper.failing };
        let temper = Temper { block_bytes, failing, ..temper };
        let chaos = Chaos::new(64 * 256, temper, seed ^ 0xc4a0).grown(DATA_BYTES);
        let layers: Vec<Box<dyn Layer>> = vec![Box::new(Align::new()), Box::new(luks)];
        let mut harness = Harness::new(Stack::new(chaos, layers), shape, seed);
        if let Err(error) = harness.run(|_, _| true) {
            panic!("seed {seed}: {error}\n{shape:?}\n{temper:?}");
        }
        assert!(
            harness
                .backend
                .store()
                .seen
                .iter()
                .all(|(op, offset_bytes, _)| { *op == Op::Flush || *offset_bytes >= DATA_BYTES })
        );
    }
}

#[test]
fn error_delay_and_limit_keep_the_contract() {
    for seed in 0..SEEDS / 3 {
        let stack = |chaos, _: &Shape| {
            let errors = ErrorOptions {
                seed,
                reads_one_in: 20,
                writes_one_in: 15,
                flushes_one_in: 3,
                bad_ranges: Vec::new(),
            };
            let delays =
                DelayOptions { read: Nanos(700), write: Nanos(seed % 2 * 5_000), flush: Nanos(1) };
            let rates = LimitOptions {
                bytes_per_second: (seed % 3 > 0).then_some(NonZeroU64::new(100_000_000).unwrap()),
                requests_per_second: (seed % 5 > 0).then_some(NonZeroU64::new(200_000).unwrap()),
                burst: Nanos(20_000),
            };
            let layers: Vec<Box<dyn Layer>> = vec![
                Box::new(Limit::new(rates)),
                Box::new(Delay::new(delays)),
                Box::new(ErrorInject::new(errors)),
            ];
            Stack::new(chaos, layers)
        };
        check_seed(seed, Wants::default(), stack, Stack::store);
    }
}

#[test]
fn the_whole_list_keeps_the_contract() {
    let (mut merged, mut hits, mut ahead, mut edges) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let stack = |chaos, shape: &Shape| {
            let scheduler = SchedulerOptions {
                policy: [Policy::HalfMean, Policy::AsShipped, Policy::Off][seed as usize % 3],
                min_in_flight: 2,
                large_bytes: shape.cell_bytes * 16,
                max_merge_bytes: shape.cell_bytes * 24,
                ..SchedulerOptions::default()
            };
            let cache = CacheOptions {
                capacity_bytes: [0, 4 << 12, 1 << 20][seed as usize / 3 % 3],
                ..CacheOptions::default()
            };
            let window_bytes = [0, 8 << 10, 64 << 10][seed as usize / 9 % 3];
            let read_ahead = ReadAheadOptions { window_bytes: Some(window_bytes) };
            let layers: Vec<Box<dyn Layer>> = vec![
                Box::new(Scheduler::new(scheduler)),
                Box::new(Cache::new(cache)),
                Box::new(ReadAhead::new(read_ahead)),
                Box::new(Align::new()),
            ];
            Stack::new(chaos, layers)
        };
        let wants = Wants { blocks: true, streams: true, lines: seed % 2 == 0 };
        let stack = check_seed(seed, wants, stack, Stack::store).backend;
        merged += stack.layer::<Scheduler>().unwrap().stats().merged;
        hits += stack.layer::<Cache>().unwrap().stats().hits;
        ahead += stack.layer::<ReadAhead>().unwrap().stats().hits;
        edges += stack.layer::<Align>().unwrap().stats().read_modify_writes;
        assert_eq!(stack.in_flight(), 0);
    }
    let least = merged.min(hits).min(edges);
    assert!(least > SEEDS, "{merged} merged, {hits} hits, {edges} read-modify-writes");
    assert!(ahead > SEEDS / 10, "{ahead} reads answered by windows");
}
