//! Recognizes sequential streams: a request that continues a run of contiguous ones.
//!
//! A small table holds the ends of recent requests of one direction. A request that starts at such
//! an end continues that stream. Otherwise it opens a new stream in the place of an idle one. A
//! clock hand chooses that place. The hand spares a stream once if a request has continued it since
//! the hand last passed, so random traffic does not evict a sequential stream between two of its
//! requests.

/// Number of streams of one direction in the table.
const STREAMS: usize = 8;

/// A stream counts as sequential after this many continuations in a row. On a small device one
/// adjacency can be an accident; two hardly can.
const SEQUENTIAL_RUN: u32 = 2;

#[derive(Clone, Copy)]
struct Stream {
    end_bytes: u64,
    run: u32,
    spared: bool,
}

impl Stream {
    /// No request with an effect can start at the last possible byte.
    const EMPTY: Stream = Stream { end_bytes: u64::MAX, run: 0, spared: false };
}

/// The recent streams of one direction.
pub(crate) struct Streams {
    table: [Stream; STREAMS],
    hand: usize,
}

impl Default for Streams {
    fn default() -> Self {
        Streams { table: [Stream::EMPTY; STREAMS], hand: 0 }
    }
}

impl Streams {
    /// Notes the request `start..end`. Returns whether it continues a sequential stream.
    pub(crate) fn follow(&mut self, start_bytes: u64, end_bytes: u64) -> bool {
        let found = self.table.iter_mut().find(|stream| stream.end_bytes == start_bytes);
        if let Some(stream) = found {
            stream.end_bytes = end_bytes;
            stream.run += 1;
            stream.spared = true;
            return stream.run >= SEQUENTIAL_RUN;
        }
        while std::mem::take(&mut self.table[self.hand].spared) {
            self.hand = (self.hand + 1) % STREAMS;
        }
        self.table[self.hand] = Stream { end_bytes, run: 0, spared: false };
        self.hand = (self.hand + 1) % STREAMS;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn a_stream_is_known_after_two_continuations_and_survives_random_traffic() {
        let mut streams = Streams::default();
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut known = Vec::new();
        for step in 0..20u64 {
            known.push(streams.follow((1 << 50) + step * 4096, (1 << 50) + (step + 1) * 4096));
            for _ in 0..4 {
                let at = random.random_range(0..1u64 << 40) * 8192;
                assert!(!streams.follow(at, at + 4096));
            }
        }
        assert_eq!(known[..3], [false, false, true]);
        assert!(known[2..].iter().all(|known| *known));
    }

    #[test]
    fn several_streams_are_told_apart() {
        let mut streams = Streams::default();
        for step in 0..10u64 {
            for stream in 0..STREAMS as u64 {
                let at = (stream + 1) * (1 << 30) + step * 4096;
                assert_eq!(streams.follow(at, at + 4096), step >= 2);
            }
        }
    }
}
