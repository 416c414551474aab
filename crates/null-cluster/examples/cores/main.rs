//! What a second core takes over from one busy image: the CPU time of each core for an I/O, the
//! connections on it, and the messages between the cores.
//!
//! ```sh
//! cargo run --release -p fieldstone-null-cluster --example cores          # a table
//! ```
//!
//! Cluster, load and cores are threads of this process, so operations per second say nothing unless
//! each of them has a CPU of its own. The CPU time of a core's thread is its own in any case. An
//! image cannot do more operations per second than one divided by the CPU time of the core that
//! needs most: the last column is this bound, over that of one core.

mod rig;

use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_embed::Operation;
use rig::{Rig, Work};

/// Bytes of the image that are used.
const SIZE_BYTES: u64 = 64 << 20;
/// Connections have found their cores after this.
const WARM_UP: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(3);

struct Case {
    name: &'static str,
    block_bytes: u64,
    depth: usize,
    reads: bool,
    mode: &'static str,
}

const fn case(name: &'static str, block_bytes: u64, depth: usize, reads: bool) -> Case {
    Case { name, block_bytes, depth, reads, mode: "crc" }
}

const CASES: [Case; 6] = [
    case("4k-randread-qd1", 4096, 1, true),
    case("4k-randread-qd32", 4096, 32, true),
    case("4k-randwrite-qd32", 4096, 32, false),
    case("128k-randread-qd16", 128 << 10, 16, true),
    case("128k-randwrite-qd16", 128 << 10, 16, false),
    Case { mode: "secure", ..case("4k-randread-qd32 secure", 4096, 32, true) },
];

impl Case {
    fn operation(&self, random: &mut u64, data: &Bytes) -> Operation {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let blocks = SIZE_BYTES / self.block_bytes;
        let offset_bytes = (*random >> 33) % blocks * self.block_bytes;
        match self.reads {
            true => Operation::Read { offset_bytes, len_bytes: self.block_bytes as usize },
            false => Operation::Write { offset_bytes, data: data.clone(), fua: false },
        }
    }

    fn run(&self, work: &mut Work, time: Duration) -> u64 {
        let data = Bytes::from(vec![0x5a; self.block_bytes as usize]);
        let (end, mut random) = (Instant::now() + time, 1);
        work.keep(self.depth, || (Instant::now() < end).then(|| self.operation(&mut random, &data)))
    }
}

/// Writes all bytes, so that all objects exist.
fn fill(work: &mut Work) {
    const BLOCK: u64 = 1 << 20;
    let mut offsets = (0..SIZE_BYTES / BLOCK).map(|block| block * BLOCK);
    let data = Bytes::from(vec![1; BLOCK as usize]);
    work.keep(4, || {
        let offset_bytes = offsets.next()?;
        Some(Operation::Write { offset_bytes, data: data.clone(), fua: false })
    });
}

fn main() {
    println!(
        "{:24} {:>5} {:>9} {:>22} {:>12} {:>10} {:>12} {:>7}",
        "case",
        "cores",
        "I/Os",
        "us of each core per I/O",
        "connections",
        "messages",
        "handed over",
        "bound"
    );
    for case in &CASES {
        let mut one_us = None;
        for cores in [1, 2] {
            let mode = format!("ms_client_mode = {}", case.mode);
            let rig = Rig::start(cores, &mode);
            let mut work = rig.work(64);
            fill(&mut work);
            case.run(&mut work, WARM_UP);
            let (before, used_before) = (rig.status(), rig.used());
            let ios = case.run(&mut work, MEASURED).max(1);
            let (after, used) = (rig.status(), rig.used());
            let per_io = |count: u64| count as f64 / ios as f64;
            let us: Vec<f64> = used
                .iter()
                .zip(&used_before)
                .map(|(after, before)| per_io(after.since(*before).0) / 1e3)
                .collect();
            let most = us.iter().copied().fold(0.0, f64::max);
            let one = *one_us.get_or_insert(most);
            let (now, then) = (after.handed, before.handed);
            let messages =
                now.messages_out + now.messages_in - then.messages_out - then.messages_in;
            let columns: Vec<String> = us.iter().map(|us| format!("{us:.2}")).collect();
            println!(
                "{:24} {cores:>5} {ios:>9} {:>22} {:>12} {:>10.3} {:>12.3} {:>7.2}",
                case.name,
                columns.join(" "),
                format!("{:?}", after.connections),
                per_io(messages),
                per_io(now.errands - then.errands),
                one / most,
            );
            work.close();
            rig.close();
        }
    }
}
