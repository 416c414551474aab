//! The data that the quickstart writes, and the check of the data that it reads.
//!
//! The number and the version of a block determine its content. So only one version per block is
//! kept, and the check finds a block at a wrong place or of an old version.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use fieldstone_console::signals::Signals;

use crate::nbd_disk::{NbdDisk, done};

/// The size of a block. Each block has a version.
pub const BLOCK_BYTES: u64 = 4096;
/// Largest length of a sequential request.
const CHUNK_BYTES: u64 = 512 << 10;
/// Sequential requests in flight.
const CHUNKS_IN_FLIGHT: usize = 8;

/// The expected data on the device.
pub struct Pattern {
    versions: Vec<u32>,
    random: u64,
}

/// The amount of data that a phase moved, and the time that it took.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Bytes.
    pub bytes: u64,
    /// Requests.
    pub requests: u64,
    /// Time.
    pub took: Duration,
}

/// A fast mixer of 64 bits (SplitMix64, Steele et al. 2014).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Pattern {
    /// The expected data of a new device of `size_bytes`: all zeros.
    pub fn new(size_bytes: u64) -> Self {
        let blocks = usize::try_from(size_bytes / BLOCK_BYTES).unwrap_or(usize::MAX);
        Self { versions: vec![0; blocks], random: 0x5eed }
    }

    fn blocks(&self) -> u64 {
        self.versions.len() as u64
    }

    fn fill(&self, block: u64, out: &mut [u8]) {
        let version = self.versions[block as usize];
        if version == 0 {
            out.fill(0);
            return;
        }
        let seed = mix(block << 32 ^ u64::from(version));
        for (word, place) in out.chunks_exact_mut(8).enumerate() {
            place.copy_from_slice(&mix(seed ^ word as u64).to_le_bytes());
        }
    }

    fn content(&self, first: u64, blocks: u64) -> Vec<u8> {
        let mut bytes = vec![0; (blocks * BLOCK_BYTES) as usize];
        for (at, place) in bytes.chunks_exact_mut(BLOCK_BYTES as usize).enumerate() {
            self.fill(first + at as u64, place);
        }
        bytes
    }

    fn next_random_block(&mut self) -> u64 {
        self.random = mix(self.random);
        self.random % self.blocks()
    }

    /// Writes the whole device in order, then flushes.
    pub fn write_all(&mut self, disk: &mut NbdDisk, signals: &Signals) -> anyhow::Result<Moved> {
        let start = Instant::now();
        let chunk = CHUNK_BYTES / BLOCK_BYTES;
        let mut requests = 0;
        let mut first = 0;
        while first < self.blocks() || disk.client().in_flight() > 0 {
            check_signal(signals)?;
            while first < self.blocks() && disk.client().in_flight() < CHUNKS_IN_FLIGHT {
                let blocks = chunk.min(self.blocks() - first);
                for block in first..first + blocks {
                    self.versions[block as usize] += 1;
                }
                let data = Bytes::from(self.content(first, blocks));
                disk.client().write(first * BLOCK_BYTES, data, 0);
                first += blocks;
                requests += 1;
            }
            done(disk.next_reply()?, "write", first * BLOCK_BYTES)?;
        }
        disk.flush()?;
        Ok(Moved { bytes: self.blocks() * BLOCK_BYTES, requests, took: start.elapsed() })
    }

    /// Reads the whole device in order and compares every byte.
    pub fn check_all(&self, disk: &mut NbdDisk, signals: &Signals) -> anyhow::Result<Moved> {
        let start = Instant::now();
        let chunk = CHUNK_BYTES / BLOCK_BYTES;
        let mut asked = std::collections::HashMap::new();
        let mut requests = 0;
        let mut first = 0;
        while first < self.blocks() || !asked.is_empty() {
            check_signal(signals)?;
            while first < self.blocks() && asked.len() < CHUNKS_IN_FLIGHT {
                let blocks = chunk.min(self.blocks() - first);
                let len = u32::try_from(blocks * BLOCK_BYTES).context("a chunk is small")?;
                asked.insert(disk.client().read(first * BLOCK_BYTES, len, 0), (first, blocks));
                first += blocks;
                requests += 1;
            }
            let reply = disk.next_reply()?;
            let (at, blocks) =
                asked.remove(&reply.cookie).context("a reply to a read that was not made")?;
            let data = done(reply, "read", at * BLOCK_BYTES)?;
            self.compare(at, blocks, &data)?;
        }
        Ok(Moved { bytes: self.blocks() * BLOCK_BYTES, requests, took: start.elapsed() })
    }

    fn compare(&self, first: u64, blocks: u64, data: &[u8]) -> anyhow::Result<()> {
        if data.len() as u64 != blocks * BLOCK_BYTES {
            bail!("a read of {blocks} blocks brought {} bytes", data.len());
        }
        let mut expected = vec![0; BLOCK_BYTES as usize];
        for (at, found) in data.chunks_exact(BLOCK_BYTES as usize).enumerate() {
            let block = first + at as u64;
            self.fill(block, &mut expected);
            if found != expected {
                bail!("block {block} differs from what was written");
            }
        }
        Ok(())
    }

    /// Writes `count` blocks at random places with `depth` requests in flight, then flushes.
    pub fn write_random(
        &mut self,
        disk: &mut NbdDisk,
        count: u64,
        depth: usize,
        signals: &Signals,
    ) -> anyhow::Result<Moved> {
        let start = Instant::now();
        let mut sent = 0;
        // A block is written again only when the reply to its last write has arrived: the device
        // may carry out two writes in flight in either order.
        let mut busy = std::collections::HashMap::new();
        while sent < count || !busy.is_empty() {
            check_signal(signals)?;
            while sent < count && busy.len() < depth {
                let block = self.next_random_block();
                if busy.values().any(|other| *other == block) {
                    continue;
                }
                self.versions[block as usize] += 1;
                let data = Bytes::from(self.content(block, 1));
                busy.insert(disk.client().write(block * BLOCK_BYTES, data, 0), block);
                sent += 1;
            }
            let reply = disk.next_reply()?;
            let block = busy.remove(&reply.cookie).context("a reply to nothing")?;
            done(reply, "write", block * BLOCK_BYTES)?;
        }
        disk.flush()?;
        Ok(Moved { bytes: count * BLOCK_BYTES, requests: count, took: start.elapsed() })
    }

    /// Reads `count` blocks at random places with `depth` requests in flight and compares them.
    pub fn check_random(
        &mut self,
        disk: &mut NbdDisk,
        count: u64,
        depth: usize,
        signals: &Signals,
    ) -> anyhow::Result<Moved> {
        let start = Instant::now();
        let mut sent = 0;
        let mut busy = std::collections::HashMap::new();
        while sent < count || !busy.is_empty() {
            check_signal(signals)?;
            while sent < count && busy.len() < depth {
                let block = self.next_random_block();
                let cookie = disk.client().read(block * BLOCK_BYTES, BLOCK_BYTES as u32, 0);
                busy.insert(cookie, block);
                sent += 1;
            }
            let reply = disk.next_reply()?;
            let block = busy.remove(&reply.cookie).context("a reply to nothing")?;
            let data = done(reply, "read", block * BLOCK_BYTES)?;
            self.compare(block, 1, &data)?;
        }
        Ok(Moved { bytes: count * BLOCK_BYTES, requests: count, took: start.elapsed() })
    }
}

/// Fails if a signal has arrived.
pub fn check_signal(signals: &Signals) -> anyhow::Result<()> {
    if signals.arrived() {
        bail!("interrupted");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_tells_place_and_version() {
        let mut pattern = Pattern::new(64 * BLOCK_BYTES);
        assert_eq!(pattern.content(3, 1), vec![0; 4096]);
        pattern.versions[3] = 1;
        pattern.versions[4] = 1;
        let old = pattern.content(3, 1);
        assert_ne!(old, pattern.content(4, 1));
        assert!(pattern.compare(3, 1, &old).is_ok());
        pattern.versions[3] = 2;
        assert!(pattern.compare(3, 1, &old).is_err());
        assert!(pattern.compare(4, 1, &old).is_err());
        assert!(pattern.compare(3, 1, &old[1..]).is_err());
    }
}
