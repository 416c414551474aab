//! The cost of each layer per request, in nanoseconds of CPU: 4 KiB random at depth 32 over memory.
//!
//! The example measures CPU time of the thread, not elapsed time, so a busy machine disturbs it
//! little.
//!
//! `cargo run --release -p fieldstone-block --example cost`

use bytes::Bytes;
use fieldstone_block::layers::{
    Align, Cache, CacheOptions, LayerOptions, Meter, Scheduler, SchedulerOptions,
};
use fieldstone_block::{
    Backend, Completion, Info, Layer, Nanos, Op, Payload, QueueId, Ram, ReadDestination, Request,
    RequestFlags, RequestId, Stack, Stage, StageStats, Stamps,
};

const DEVICE_BYTES: u64 = 1 << 30;
const DEPTH: u64 = 32;
const REQUESTS: u64 = 1 << 20;

/// Answers at once with nothing: the base from which the example measures a layer's cost.
struct Null(Vec<Completion>, u32, Bytes);

impl Backend for Null {
    fn info(&self) -> Info {
        Info {
            size_bytes: DEVICE_BYTES,
            block_bytes: self.1,
            preferred_bytes: 4096,
            read_ahead_bytes: 0,
            read_only: false,
        }
    }
    fn submit(&mut self, request: Request, _now: Nanos) {
        let payload = match request.op {
            Op::Read => {
                Payload::Data([fieldstone_block::Piece::Data(self.2.clone())].into_iter().collect())
            }
            _ => Payload::None,
        };
        self.0.push(Completion::of(&request, Ok(payload)));
    }
    fn poll(&mut self, _now: Nanos, out: &mut Vec<Completion>) {
        out.append(&mut self.0);
    }
    fn deadline(&self) -> Option<Nanos> {
        None
    }
}

fn null(block_bytes: u32) -> Null {
    Null(Vec::new(), block_bytes, Bytes::from(vec![1; 4096]))
}

/// CPU time of this thread so far, in nanoseconds.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("needs Linux");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("a number comes first")
}

/// The median of five runs, in nanoseconds per request.
fn measure(mut backend: impl Backend, op: Op) -> f64 {
    let data = if op == Op::Write { Bytes::from(vec![7; 4096]) } else { Bytes::new() };
    let (mut state, mut out) = (1u64, Vec::new());
    let mut runs = [0.0; 5];
    for run in &mut runs {
        let start = cpu_ns();
        for round in 0..REQUESTS / DEPTH {
            for id in 0..DEPTH {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let request = Request {
                    id: RequestId(id),
                    op,
                    offset_bytes: (state >> 33) % (DEVICE_BYTES / 4096) * 4096,
                    len_bytes: 4096,
                    flags: RequestFlags::default(),
                    data: data.clone(),
                    destination: ReadDestination::default(),
                    queue: QueueId::default(),
                    stamps: Stamps::default(),
                };
                backend.submit(request, Nanos(round + 1));
            }
            backend.poll(Nanos(round + 1), &mut out);
            assert_eq!(out.len() as u64, DEPTH);
            out.clear();
        }
        *run = (cpu_ns() - start) as f64 / REQUESTS as f64;
    }
    runs.sort_by(f64::total_cmp);
    runs[2]
}

fn filled_ram() -> Ram {
    let mut ram = Ram::new(DEVICE_BYTES);
    let (data, mut out) = (Bytes::from(vec![1; 1 << 20]), Vec::new());
    for mebibyte in 0..DEVICE_BYTES >> 20 {
        let request = Request {
            id: RequestId(0),
            op: Op::Write,
            offset_bytes: mebibyte << 20,
            len_bytes: 1 << 20,
            flags: RequestFlags::default(),
            data: data.clone(),
            destination: ReadDestination::default(),
            queue: QueueId::default(),
            stamps: Stamps::default(),
        };
        ram.submit(request, Nanos(1));
        ram.poll(Nanos(1), &mut out);
        out.clear();
    }
    ram
}

/// Copying 4 KiB to a random page of 1 GiB: a lower bound for the cost of a write to `Ram`.
fn copy_cost() -> f64 {
    let mut pages: Vec<Vec<u8>> = (0..DEVICE_BYTES >> 16).map(|_| vec![1; 65536]).collect();
    let (source, mut state) = (std::hint::black_box(vec![7u8; 4096]), 1u64);
    let start = cpu_ns();
    for _ in 0..REQUESTS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = ((state >> 33) % (DEVICE_BYTES / 4096)) as usize;
        pages[at / 16][at % 16 * 4096..][..4096].copy_from_slice(&source);
    }
    let cost = (cpu_ns() - start) as f64 / REQUESTS as f64;
    std::hint::black_box(&pages);
    cost
}

fn record_cost() -> f64 {
    let mut stats = StageStats::new();
    let start = cpu_ns();
    for step in 0..REQUESTS {
        let mut stamps = Stamps::default();
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            stamps.stamp(stage, Nanos(1000 + index as u64 * (step % 9973)));
        }
        stats.record(Op::Read, &stamps);
    }
    let elapsed = cpu_ns() - start;
    assert_eq!(stats.rows().count(), 6);
    elapsed as f64 / REQUESTS as f64
}

fn main() {
    let stack = |block_bytes, layers| Stack::new(null(block_bytes), layers);
    for op in [Op::Read, Op::Write] {
        let floor = measure(null(1), op);
        println!("{op:?}: generating the request and nothing below: {floor:.0} ns; above that");
        let row = |name: &str, cost: f64| println!("  {name:<28}{:>6.0} ns", cost - floor);
        row("a stack without layers", measure(stack(1, Vec::new()), op));
        let layers: [(&str, u32, Box<dyn Layer>); 4] = [
            ("meter", 1, Box::new(Meter::new())),
            ("scheduler", 1, Box::new(Scheduler::new(SchedulerOptions::default()))),
            ("cache 32 MiB, 3 % hits", 1, Box::new(Cache::new(CacheOptions::default()))),
            ("align, aligned", 4096, Box::new(Align::new())),
        ];
        for (name, block_bytes, layer) in layers {
            row(name, measure(stack(block_bytes, vec![layer]), op));
        }
        let all = LayerOptions::default().make().expect("defaults are valid");
        row("the default layers", measure(stack(4096, all), op));
        row("Ram, 1 GiB filled", measure(filled_ram(), op));
    }
    println!("copying 4 KiB to a random page: {:.0} ns", copy_cost());
    println!("StageStats::record, six stages: {:.0} ns", record_cost());
}
