//! The cost of an operation through the ring, compared with the plain system call.
//!
//! ```text
//! cargo run --release -p fieldstone-uring --example batch_io -- FOLDER
//! ```
//!
//! Reads and writes 4 KiB at random places of a 64 MiB file in the page cache, in batches of 32:
//! through a reactor, and by `pread`/`pwrite` in a loop. The two contenders alternate. The output
//! has the medians per operation and their ratio. The plain calls are the limit: the ring cannot
//! copy a cached page faster, it can only save system calls.

use std::error::Error;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_uring::{
    Caching, File, Payload, Reactor, ReactorOptions, Token, Unsure, monotonic_now,
};

const FILE_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: u64 = 4096;
const BATCH: u64 = 32;
const BATCHES_PER_ROUND: u64 = 500;
const ROUNDS: usize = 21;

/// A cheap walk over the file's blocks that makes read-ahead useless.
struct Places(u64);

impl Places {
    fn next_bytes(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % (FILE_BYTES / BLOCK_BYTES) * BLOCK_BYTES
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or(".".to_owned());
    let plain = tempfile::tempfile_in(folder)?;
    let block = Bytes::from(vec![7u8; BLOCK_BYTES as usize]);
    for at in (0..FILE_BYTES).step_by(BLOCK_BYTES as usize) {
        plain.write_all_at(&block, at)?;
    }
    plain.sync_all()?;
    let file = File::from_descriptor(plain.try_clone()?.into(), Caching::Buffered);
    let mut bench = Bench {
        reactor: Reactor::new(ReactorOptions::default())?,
        plain,
        file,
        places: Places(1),
        buffers: (0..BATCH).map(|_| AlignedBuf::zeroed(BLOCK_BYTES as usize)).collect(),
        block,
    };
    bench.compare("read", Bench::ring_read, Bench::plain_read)?;
    bench.compare("write", Bench::ring_write, Bench::plain_write)?;
    bench.compare("write_inline", Bench::inline_write, Bench::plain_write)?;
    println!("{:?}", bench.reactor.counters());
    Ok(())
}

struct Bench {
    reactor: Reactor,
    plain: std::fs::File,
    file: File,
    places: Places,
    buffers: Vec<AlignedBuf>,
    block: Bytes,
}

type Contender = fn(&mut Bench) -> std::io::Result<()>;

impl Bench {
    fn compare(&mut self, what: &str, ring: Contender, plain: Contender) -> std::io::Result<()> {
        let mut nanos: [Vec<u64>; 2] = Default::default();
        for _ in 0..ROUNDS {
            for (contender, times) in [ring, plain].into_iter().zip(&mut nanos) {
                let start = monotonic_now();
                for _ in 0..BATCHES_PER_ROUND {
                    contender(self)?;
                }
                times.push(monotonic_now().since(start).0 / (BATCHES_PER_ROUND * BATCH));
            }
        }
        let [ring, plain] = nanos.map(|mut times| {
            times.sort_unstable();
            times[ROUNDS / 2]
        });
        let ratio = ring as f64 / plain as f64;
        println!("4 KiB {what}, batch {BATCH}: reactor {ring} ns, plain {plain} ns, {ratio:.2}x");
        Ok(())
    }

    fn ring_read(&mut self) -> std::io::Result<()> {
        for buffer in self.buffers.drain(..) {
            self.reactor.read(&self.file, self.places.next_bytes(), buffer, Token(0));
        }
        let mut events = Vec::with_capacity(BATCH as usize);
        while events.len() < BATCH as usize {
            self.reactor.turn(&mut events)?;
        }
        for event in events {
            assert_eq!(event.result?, BLOCK_BYTES as u32);
            if let Payload::Buffer(buffer) = event.payload {
                self.buffers.push(buffer);
            }
        }
        Ok(())
    }

    fn plain_read(&mut self) -> std::io::Result<()> {
        for buffer in &mut self.buffers {
            self.plain.read_exact_at(buffer, self.places.next_bytes())?;
        }
        Ok(())
    }

    fn ring_write(&mut self) -> std::io::Result<()> {
        for _ in 0..BATCH {
            let parts = vec![self.block.clone()];
            self.reactor.write(&self.file, self.places.next_bytes(), parts, Token(0));
        }
        self.collect_writes()
    }

    fn inline_write(&mut self) -> std::io::Result<()> {
        for _ in 0..BATCH {
            let parts = vec![self.block.clone()];
            let at = self.places.next_bytes();
            self.reactor.write_inline(&self.file, at, parts, Unsure::Block, Token(0));
        }
        self.collect_writes()
    }

    fn collect_writes(&mut self) -> std::io::Result<()> {
        let mut events = Vec::with_capacity(BATCH as usize);
        while events.len() < BATCH as usize {
            self.reactor.turn(&mut events)?;
        }
        for event in events {
            assert_eq!(event.result?, BLOCK_BYTES as u32);
        }
        Ok(())
    }

    fn plain_write(&mut self) -> std::io::Result<()> {
        for _ in 0..BATCH {
            self.plain.write_all_at(&self.block, self.places.next_bytes())?;
        }
        Ok(())
    }
}
