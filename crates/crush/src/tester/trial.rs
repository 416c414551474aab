//! One rule on a range of x: chunks, and the workers that map them.

use std::sync::mpsc::{self, Receiver, SyncSender};

use super::Tally;
use crate::hash::hash2;
use crate::{ItemId, Map, Rows, RuleRef, TriesHistogram};

/// Most mappings of a chunk. The batch mapper needs many at once. Output and progress advance by
/// chunks.
const CHUNK_MAPPINGS: usize = 4096;
/// Most positions of a chunk. This bounds its memory when mappings are very wide.
const CHUNK_POSITIONS: usize = 1 << 18;
/// Chunks by which a worker may be ahead of the receiver.
const CHUNKS_AHEAD: usize = 2;

/// One rule, one width, a range of x.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The map.
    pub map: &'a Map,
    /// A rule of the map, with its weight set.
    pub rule: RuleRef<'a>,
    /// Positions of a mapping.
    pub width: usize,
    /// Reweights of all devices of the map.
    pub weights: &'a [u32],
    /// The first x.
    pub first_x: i32,
    /// The last x; nothing is mapped if it is less than the first.
    pub last_x: i32,
    /// Maps `hash2(x, pool)` in place of x.
    pub pool: Option<u32>,
    /// Also counts failed attempts. Only the plain mapper can do that, so the trial is much slower.
    pub count_tries: bool,
}

/// Consecutive mappings.
#[derive(Clone, Debug, Default)]
pub struct MappingChunk {
    /// The x of the first row; the other rows follow by one.
    pub first_x: i32,
    /// The results.
    pub rows: Rows,
    /// The rendered text.
    pub text: Vec<u8>,
}

impl MappingChunk {
    /// The results, each with its x.
    pub fn iter(&self) -> impl Iterator<Item = (i32, &[ItemId])> {
        (self.first_x..=i32::MAX).zip(self.rows.iter())
    }
}

impl Trial<'_> {
    /// How many mappings there are.
    #[must_use]
    pub fn mappings(&self) -> u64 {
        u64::try_from(i64::from(self.last_x) - i64::from(self.first_x) + 1).unwrap_or(0)
    }

    /// Maps all inputs in up to `threads` threads. `render` gets every mapping, and may append to
    /// the text of its chunk. `receive` gets every chunk on the calling thread, in the order of x.
    /// Returns the counts.
    ///
    /// # Errors
    /// The error of `receive`, which ends the trial.
    pub fn run<E>(
        &self,
        threads: usize,
        render: impl Fn(&mut Vec<u8>, i32, &[ItemId]) + Sync,
        mut receive: impl FnMut(&MappingChunk) -> Result<(), E>,
    ) -> Result<Tally, E> {
        let chunks = self.mappings().div_ceil(self.chunk_mappings()) as usize;
        let workers = threads.min(chunks);
        if workers <= 1 {
            let mut worker = Worker::new(self, &render);
            for chunk in 0..chunks {
                receive(&worker.chunk(chunk))?;
            }
            return Ok(worker.tally);
        }
        std::thread::scope(|scope| {
            let mut receivers: Vec<Receiver<MappingChunk>> = Vec::with_capacity(workers);
            let mut handles = Vec::with_capacity(workers);
            for place in 0..workers {
                let (sender, receiver) = mpsc::sync_channel(CHUNKS_AHEAD);
                let mine = (place..chunks).step_by(workers);
                let worker = Worker::new(self, &render);
                receivers.push(receiver);
                handles.push(scope.spawn(move || worker.work(mine, &sender)));
            }
            // A channel closes too early only if its worker has panicked: see below.
            let mut arrived = (0..chunks).map_while(|chunk| receivers[chunk % workers].recv().ok());
            let received = arrived.try_for_each(|chunk| receive(&chunk));
            // Workers that wait for room then find their receivers dropped, and end.
            drop(receivers);
            let mut tally = Tally::new(self.weights.len());
            for handle in handles {
                match handle.join() {
                    Ok(part) => tally.merge(&part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            received.map(|()| tally)
        })
    }

    fn chunk_mappings(&self) -> u64 {
        (CHUNK_POSITIONS / self.width.max(1)).clamp(1, CHUNK_MAPPINGS) as u64
    }
}

/// The parameters of one thread.
struct Worker<'t, R> {
    trial: &'t Trial<'t>,
    render: &'t R,
    tally: Tally,
    /// The inputs of a chunk, hashed with the pool.
    inputs: Vec<u32>,
}

impl<'t, R: Fn(&mut Vec<u8>, i32, &[ItemId])> Worker<'t, R> {
    fn new(trial: &'t Trial<'t>, render: &'t R) -> Self {
        Self { trial, render, tally: Tally::new(trial.weights.len()), inputs: Vec::new() }
    }

    /// Maps these chunks until they are done or their receiver is dropped.
    fn work(
        mut self,
        chunks: impl Iterator<Item = usize>,
        sender: &SyncSender<MappingChunk>,
    ) -> Tally {
        for chunk in chunks {
            if sender.send(self.chunk(chunk)).is_err() {
                break;
            }
        }
        self.tally
    }

    /// The chunk at that index, mapped, counted and rendered.
    fn chunk(&mut self, place: usize) -> MappingChunk {
        let trial = self.trial;
        let skipped = place as u64 * trial.chunk_mappings();
        let mappings = trial.chunk_mappings().min(trial.mappings() - skipped);
        // The value is between the first and the last x, so it fits.
        let first_x = (i64::from(trial.first_x) + skipped as i64) as i32;
        let xs = (0..mappings as u32).map(|step| (first_x as u32).wrapping_add(step));
        self.inputs.clear();
        match trial.pool {
            None => self.inputs.extend(xs),
            Some(pool) => self.inputs.extend(xs.map(|x| hash2(x, pool))),
        }
        let rows = if trial.count_tries {
            let (rule, tries) = (trial.rule, TriesHistogram::new(trial.map));
            let rows = rule.map_rows_counting(&self.inputs, trial.width, trial.weights, &tries);
            self.tally.add_tries(&tries.counts());
            rows
        } else {
            trial.rule.map_rows(&self.inputs, trial.width, trial.weights)
        };
        let mut chunk = MappingChunk { first_x, rows, text: Vec::new() };
        let mut text = Vec::new();
        for (x, items) in chunk.iter() {
            self.tally.add(items, trial.width);
            (self.render)(&mut text, x, items);
        }
        chunk.text = text;
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tester::{default_weights, text};
    use crate::{MapBuilder, RuleId, RuleStep, TypeId};

    const ONE: u32 = 0x10000;

    fn map() -> Map {
        let hosts: &[&[u32]] = &[&[ONE, 2 * ONE], &[ONE, ONE, ONE], &[3 * ONE]];
        let mut builder = MapBuilder::new();
        builder.host_tree(TypeId(2), TypeId(1), hosts);
        builder.rule(
            RuleId(0),
            [
                RuleStep::Take(ItemId(-1)),
                RuleStep::ChooseleafFirstn { count: 0, kind: TypeId(1) },
                RuleStep::Emit,
            ],
        );
        builder.build().expect("a valid map")
    }

    fn outcome(trial: &Trial<'_>, threads: usize) -> (Tally, Vec<u8>) {
        let mut all = Vec::new();
        let render = |out: &mut Vec<u8>, x, items: &[ItemId]| text::mapping(out, 0, x, items);
        let tally = trial.run(threads, render, |chunk| {
            all.extend_from_slice(&chunk.text);
            Ok::<(), ()>(())
        });
        (tally.expect("nothing fails"), all)
    }

    #[test]
    fn threads_change_nothing() {
        let map = map();
        let weights = default_weights(&map);
        let rule = map.rule(RuleId(0)).expect("the rule");
        let trial = Trial {
            map: &map,
            rule,
            width: 3,
            weights: &weights,
            first_x: -5,
            last_x: 30_000,
            pool: Some(7),
            count_tries: false,
        };
        let one = outcome(&trial, 1);
        assert_eq!(one.0.mappings, 30_006);
        assert_eq!(one.0.stored.iter().sum::<u64>(), 3 * 30_006);
        for threads in [2, 3, 16] {
            assert!(outcome(&trial, threads) == one, "{threads} threads give something else");
        }
    }

    #[test]
    fn ranges_end_where_they_should() {
        let map = map();
        let weights = default_weights(&map);
        let rule = map.rule(RuleId(0)).expect("the rule");
        let trial = |first_x, last_x| Trial {
            map: &map,
            rule,
            width: 1,
            weights: &weights,
            first_x,
            last_x,
            pool: None,
            count_tries: false,
        };
        assert_eq!(outcome(&trial(5, 4), 4), (Tally::new(6), Vec::new()));
        assert_eq!(outcome(&trial(i32::MAX, i32::MIN), 4).0.mappings, 0);
        let last = outcome(&trial(i32::MAX - 1, i32::MAX), 4);
        assert_eq!(last.0.mappings, 2);
        let text = String::from_utf8(last.1).expect("lines are ASCII");
        assert!(text.contains(" x 2147483646 [") && text.contains(" x 2147483647 ["), "{text}");
    }

    #[test]
    fn an_error_of_the_receiver_ends_the_trial() {
        let map = map();
        let weights = default_weights(&map);
        let rule = map.rule(RuleId(0)).expect("the rule");
        let trial = Trial {
            map: &map,
            rule,
            width: 3,
            weights: &weights,
            first_x: 0,
            last_x: i32::MAX,
            pool: None,
            count_tries: false,
        };
        for threads in [1, 2, 5] {
            let mut chunks = 0;
            let end = trial.run(
                threads,
                |_, _, _| {},
                |_| {
                    chunks += 1;
                    if chunks == 3 { Err("full") } else { Ok(()) }
                },
            );
            assert_eq!((end, chunks), (Err("full"), 3));
        }
    }
}
