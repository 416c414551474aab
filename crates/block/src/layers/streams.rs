//! Recognizes sequential streams: a request that continues a run of contiguous ones.
//!
//! A small table holds the ends of recent requests of one direction. A request that starts at such
//! an end continues that stream. Otherwise it opens a new stream in the place of an idle one. A
//! clock hand chooses that place. The hand spares a stream once if a request has continued it since
//! the hand last passed, so random traffic does not evict a sequential stream between two of its
//! requests.
//!
//! A layer may keep something of its own with each stream, of a type `T`.

/// Number of streams of one direction in the table.
pub(crate) const STREAMS: usize = 8;

/// A stream counts as sequential after this many continuations in a row. On a small device one
/// adjacency can be an accident; two hardly can.
const SEQUENTIAL_RUN: u32 = 2;

struct Stream<T> {
    end_bytes: u64,
    run: u32,
    spared: bool,
    /// What the layer keeps with the stream.
    state: T,
}

impl<T: Default> Stream<T> {
    fn ending_at(end_bytes: u64) -> Self {
        Stream { end_bytes, run: 0, spared: false, state: T::default() }
    }
}

/// The recent streams of one direction.
pub(crate) struct Streams<T = ()> {
    table: [Stream<T>; STREAMS],
    hand: usize,
    /// A request continues a stream even if it starts so many bytes before the stream's end.
    slack_bytes: u64,
}

impl<T: Default> Default for Streams<T> {
    fn default() -> Self {
        Streams::with_slack(0)
    }
}

impl<T: Default> Streams<T> {
    /// An empty table. A request continues a stream if it ends behind the stream's end, and starts
    /// there or up to `slack_bytes` before.
    pub(crate) fn with_slack(slack_bytes: u64) -> Self {
        // No request with an effect can start at the last possible byte.
        let table = std::array::from_fn(|_| Stream::ending_at(u64::MAX));
        Streams { table, hand: 0, slack_bytes }
    }

    /// Notes the request `start..end`. If it continues a sequential stream, returns what the layer
    /// keeps with that stream.
    pub(crate) fn follow(&mut self, start_bytes: u64, end_bytes: u64) -> Option<&mut T> {
        let slack_bytes = self.slack_bytes;
        let continues = |stream: &Stream<T>| {
            let behind = stream.end_bytes.checked_sub(start_bytes);
            behind.is_some_and(|bytes| bytes <= slack_bytes) && end_bytes > stream.end_bytes
        };
        let found = self.table.iter().position(continues);
        if let Some(index) = found {
            let stream = &mut self.table[index];
            stream.end_bytes = end_bytes;
            stream.run += 1;
            stream.spared = true;
            return (stream.run >= SEQUENTIAL_RUN).then_some(&mut stream.state);
        }
        while std::mem::take(&mut self.table[self.hand].spared) {
            self.hand = (self.hand + 1) % STREAMS;
        }
        self.table[self.hand] = Stream::ending_at(end_bytes);
        self.hand = (self.hand + 1) % STREAMS;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn a_stream_is_known_after_two_continuations_and_survives_random_traffic() {
        let mut streams = Streams::<()>::default();
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut known = Vec::new();
        for step in 0..20u64 {
            let at = (1 << 50) + step * 4096;
            known.push(streams.follow(at, at + 4096).is_some());
            for _ in 0..4 {
                let at = random.random_range(0..1u64 << 40) * 8192;
                assert!(streams.follow(at, at + 4096).is_none());
            }
        }
        assert_eq!(known[..3], [false, false, true]);
        assert!(known[2..].iter().all(|known| *known));
    }

    #[test]
    fn several_streams_are_told_apart() {
        let mut streams = Streams::<u64>::default();
        for step in 0..10u64 {
            for stream in 0..STREAMS as u64 {
                let at = (stream + 1) * (1 << 30) + step * 4096;
                let state = streams.follow(at, at + 4096);
                assert_eq!(state.is_some(), step >= 2);
                let Some(state) = state else { continue };
                assert_eq!(*state, if step == 2 { 0 } else { stream });
                *state = stream;
            }
        }
    }
}
