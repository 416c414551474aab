//! What the write cache does to 4 KiB writes, for each policy: how many requests reach the store,
//! how long a write takes, and the CPU time of the layers.
//!
//! The store answers each request after 1 ms of virtual time, and any number at once. After every
//! 1,024 writes the client sends a flush and waits for it. So the times are not those of any real
//! store, but the counts are exact.
//!
//! `cargo run --release -p fieldstone-block --example write_cache`

use std::collections::VecDeque;

use bytes::Bytes;
use fieldstone_block::layers::{WriteCache, WriteCacheOptions, WritePolicy};
use fieldstone_block::{
    Backend, Completion, Info, Layer, Nanos, Op, Payload, QueueId, ReadDestination, Request,
    RequestFlags, RequestId, Stack, Stamps,
};

const DEVICE_BYTES: u64 = 1 << 30;
const LATENCY: Nanos = Nanos::from_ms(1);
const WRITES: u64 = 1 << 17;
const FLUSH_EVERY: u64 = 1024;

/// Answers after a while, in order.
#[derive(Default)]
struct Slow {
    requests: u64,
    answers: VecDeque<(Nanos, Completion)>,
}

impl Backend for Slow {
    fn info(&self) -> Info {
        Info {
            size_bytes: DEVICE_BYTES,
            block_bytes: 512,
            preferred_bytes: 4096,
            read_ahead_bytes: 0,
            read_only: false,
        }
    }
    fn submit(&mut self, request: Request, now: Nanos) {
        self.requests += u64::from(request.op == Op::Write);
        let completion = Completion::of(&request, Ok(Payload::None));
        self.answers.push_back((now.plus(LATENCY), completion));
    }
    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        while self.answers.front().is_some_and(|(at, _)| *at <= now) {
            out.extend(self.answers.pop_front().map(|(_, completion)| completion));
        }
    }
    fn deadline(&self) -> Option<Nanos> {
        self.answers.front().map(|(at, _)| *at)
    }
}

/// CPU time of this thread so far, in nanoseconds.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("needs Linux");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("a number comes first")
}

struct Row {
    requests: u64,
    virtual_us: f64,
    cpu_ns: f64,
}

struct Client {
    stack: Stack<Slow>,
    now: Nanos,
    in_flight: u64,
    out: Vec<Completion>,
}

impl Client {
    fn submit(&mut self, op: Op, offset_bytes: u64, data: Bytes) {
        let request = Request {
            id: RequestId(0),
            op,
            offset_bytes,
            len_bytes: data.len() as u32,
            flags: RequestFlags::default(),
            data,
            destination: ReadDestination::default(),
            queue: QueueId::default(),
            stamps: Stamps::default(),
        };
        self.in_flight += 1;
        self.stack.submit(request, self.now);
    }

    /// Polls until at most `most` requests are in flight.
    fn wait(&mut self, most: u64) {
        loop {
            self.stack.poll(self.now, &mut self.out);
            self.in_flight -= self.out.drain(..).len() as u64;
            if self.in_flight <= most {
                return;
            }
            let next = self.stack.next_deadline().expect("something is in flight");
            self.now = self.now.max(next);
        }
    }
}

fn measure(layers: Vec<Box<dyn Layer>>, sequential: bool, depth: u64) -> Row {
    let stack = Stack::new(Slow::default(), layers);
    let mut client = Client { stack, now: Nanos(1), in_flight: 0, out: Vec::new() };
    let data = Bytes::from(vec![7; 4096]);
    let mut state = 1u64;
    let begun = cpu_ns();
    for write in 0..WRITES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let blocks = DEVICE_BYTES / 4096;
        let block = if sequential { write % blocks } else { (state >> 33) % blocks };
        client.submit(Op::Write, block * 4096, data.clone());
        client.wait(depth - 1);
        // The client itself needs a moment.
        client.now = client.now.plus(Nanos(2_000));
        if write % FLUSH_EVERY == FLUSH_EVERY - 1 {
            client.wait(0);
            client.submit(Op::Flush, 0, Bytes::new());
            client.wait(0);
        }
    }
    Row {
        requests: client.stack.store().requests,
        virtual_us: client.now.0 as f64 / 1e3 / WRITES as f64,
        cpu_ns: (cpu_ns() - begun) as f64 / WRITES as f64,
    }
}

fn main() {
    println!("{:<30}{:>14}{:>14}{:>12}", "", "requests/write", "us/write", "CPU ns/write");
    for (pattern, sequential) in [("sequential", true), ("random", false)] {
        for depth in [1, 32] {
            for policy in [None, Some(WritePolicy::Around), Some(WritePolicy::Back)] {
                let layers: Vec<Box<dyn Layer>> = match policy {
                    None => Vec::new(),
                    Some(policy) => {
                        let options = WriteCacheOptions { policy, ..WriteCacheOptions::default() };
                        vec![Box::new(WriteCache::new(options))]
                    }
                };
                let row = measure(layers, sequential, depth);
                let name = policy.map_or("none".to_owned(), |p| format!("{p:?}").to_lowercase());
                println!(
                    "{:<30}{:>14.3}{:>14.1}{:>12.0}",
                    format!("{pattern}, {depth} in flight, {name}"),
                    row.requests as f64 / WRITES as f64,
                    row.virtual_us,
                    row.cpu_ns,
                );
            }
        }
    }
}
