//! A read cache in front of a backend: least recently used lines of 4 KiB, 32 MiB by default.
//!
//! DeLiBA-2 §3.1: block I/O in user space cannot use the kernel's page cache, so it gets its own
//! cache: LRU, 32 MiB, the size of the kernel's RBD driver. This cache is write-through, so the
//! backend is always at least as new as the cache, and losing the cache loses nothing.
//!
//! # Look-ups and kept lines
//!
//! A read is a hit if the cache has every line that it touches. Otherwise the whole read goes to
//! the backend, widened to whole lines, so that small reads fill lines for later ones. The cache
//! also looks up reads of 64 KiB and more (a stream, or a stream's small reads that the scheduler
//! merged), but does not keep their lines: these would evict more useful lines, and keeping them
//! costs more than reading them again. Reads and writes longer than 256 KiB bypass the cache.
//!
//! A write updates the lines that the cache has (all lines, with [`CacheOptions::write_allocate`]).
//! Lines hold [`Bytes`]. The cache keeps the bytes of a read of one line without a copy. It copies
//! each line of a longer read: otherwise one kept line would keep the whole read in memory. It
//! also copies the bytes of a write, because a front-end may have received many requests into one
//! buffer. A backend whose small reads are slices of much larger memory (`Ram`) should have no
//! cache.
//!
//! # Never stale
//!
//! The promise: a hit is never older than a completed change, and reads never go back in time. So a
//! change drops its lines when it is *submitted*. Until it completes, the cache does not keep these
//! lines, and only the backend answers reads of them. The cache keeps the lines of a read only if
//! no change of that line was in flight at any time since the read was sent. It keeps the lines of
//! a write only if no other change was in flight at the same time (`versions`). After a change that
//! fails, the cache keeps none of its lines.
//!
//! If others may change the store's data, the cache drops all lines, and keeps none until the store
//! is this client's alone again. It follows changes in the meantime: a change may still be in
//! flight when the cache begins to keep lines.

use bytes::Bytes;
use slab::Slab;

use super::flights::Flights;
use super::lru::Lru;
use super::versions::{Moment, Versions};
use crate::layer::{Counter, Flow, Layer};
use crate::pieces::{Pieces, Splitter, cut_pieces, push_piece, to_bytes};
use crate::settings::{SettingError, Settings};
use crate::{Completion, Op, Payload, Piece, Request, RequestId, Stage};

/// The unit of the cache, in bytes.
pub const LINE_BYTES: u32 = 4096;

const LINE: u64 = LINE_BYTES as u64;

/// Lines that a request of at most [`CacheOptions::bypass_bytes`] can cover completely.
const MAX_LINES: u64 = 64;

/// The most bytes of a request that does not bypass the cache.
const BYPASS_BYTES_MAX: u32 = LINE_BYTES * MAX_LINES as u32;

/// The cache's options.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// Bytes that the cache may hold. Zero switches it off.
    pub capacity_bytes: u64,
    /// Longer requests bypass the cache. At most 256 KiB.
    pub bypass_bytes: u32,
    /// Reads of at least this length insert nothing.
    pub stream_bytes: u32,
    /// A write also inserts lines that the cache does not have.
    pub write_allocate: bool,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions {
            capacity_bytes: 32 * 1024 * 1024,
            bypass_bytes: 256 * 1024,
            stream_bytes: 64 * 1024,
            write_allocate: false,
        }
    }
}

impl CacheOptions {
    /// Takes the options that `settings` names. The others keep their values.
    ///
    /// # Errors
    /// A value cannot be read, or is out of its bounds.
    pub fn set(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        settings.size("capacity", &mut self.capacity_bytes)?;
        settings.read("bypass", &mut self.bypass_bytes, |text| {
            let bytes = fieldstone_units::parse_size(text)?;
            let most = u64::from(BYPASS_BYTES_MAX);
            match u32::try_from(bytes) {
                Ok(bytes) if bytes <= BYPASS_BYTES_MAX => Ok(bytes),
                _ => Err(format!("{text:?} is more than {}", fieldstone_units::size(most))),
            }
        })?;
        settings.small_size("stream", &mut self.stream_bytes)?;
        let choices = [("on", true), ("off", false)];
        settings.choice("write-allocate", &mut self.write_allocate, &choices)
    }
}

/// The cache's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads answered from the cache.
    pub hits: u64,
    /// Reads that went to the backend, except those that bypassed the cache.
    pub misses: u64,
    /// Bytes of the reads that hit.
    pub hit_bytes: u64,
    /// Bytes of the reads that missed.
    pub miss_bytes: u64,
    /// Reads too long for a look-up, or while others may change the data.
    pub bypassed: u64,
    /// Lines inserted.
    pub inserted: u64,
    /// Lines evicted for newer ones.
    pub evicted: u64,
    /// Lines dropped because a change touched them.
    pub invalidated: u64,
    /// Lines of reads that the cache did not keep, because a change touched them meanwhile.
    pub refused: u64,
    /// Bytes held now.
    pub held_bytes: u64,
    /// Bytes that the cache may hold.
    pub capacity_bytes: u64,
}

impl CacheStats {
    /// The share of hits among the looked-up reads; zero before the first one.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

/// A read of whole lines, which the cache may keep.
#[derive(Clone, Copy)]
struct ReadFlight {
    offset: u64,
    began: Moment,
}

/// A read of the cache's own, in place of one that starts or ends within a line.
#[derive(Clone, Copy)]
struct WidenedRead {
    id: RequestId,
    asked_bytes: u32,
    /// Bytes to cut off the front.
    skip: u32,
    lines: ReadFlight,
}

struct ChangeFlight {
    offset: u64,
    len: u32,
    began: Moment,
    /// The written bytes; empty if the cache does not keep them.
    data: Bytes,
    /// One bit for each completely covered line, from the first on: keep this line.
    keep: u64,
}

/// The lines that a range touches.
fn touched(offset: u64, len: u32) -> std::ops::Range<u64> {
    offset / LINE..(offset + u64::from(len)).div_ceil(LINE)
}

/// The lines that a range covers completely.
fn covered(offset: u64, len: u32) -> std::ops::Range<u64> {
    let start = offset.div_ceil(LINE);
    start..((offset + u64::from(len)) / LINE).max(start)
}

/// Caches reads; see the module's text.
pub struct Cache {
    options: CacheOptions,
    lines: Lru,
    versions: Versions,
    reads: Flights<ReadFlight>,
    changes: Flights<ChangeFlight>,
    widened: Slab<WidenedRead>,
    /// Others may change the store's data.
    shared: bool,
    /// Lines of requests that were sent before are not kept.
    dropped: Moment,
    stats: CacheStats,
}

impl Cache {
    /// An empty cache.
    #[must_use]
    pub fn new(mut options: CacheOptions) -> Self {
        options.bypass_bytes = options.bypass_bytes.min(BYPASS_BYTES_MAX);
        let capacity = usize::try_from(options.capacity_bytes / LINE).unwrap_or(usize::MAX);
        Cache {
            options,
            lines: Lru::new(capacity),
            versions: Versions::new(),
            reads: Flights::default(),
            changes: Flights::default(),
            widened: Slab::new(),
            shared: false,
            dropped: Moment::default(),
            stats: CacheStats::default(),
        }
    }

    /// The cache's counters so far, and its fill level.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            held_bytes: self.lines.len() as u64 * LINE,
            capacity_bytes: self.lines.capacity() as u64 * LINE,
            ..self.stats
        }
    }

    /// The pieces of the range, if the cache has every line.
    fn look_up(&mut self, offset: u64, len: u32) -> Option<Pieces> {
        let lines = touched(offset, len);
        // The first line decides most misses. A read that misses changes no line's age.
        if !lines.clone().all(|line| self.lines.contains(line)) {
            return None;
        }
        let mut pieces = Pieces::new();
        let end = offset + u64::from(len);
        for line in lines {
            let data = self.lines.get(line)?;
            let from = offset.max(line * LINE) - line * LINE;
            let to = end.min((line + 1) * LINE) - line * LINE;
            let piece = if data.is_empty() {
                Piece::Zeroes(u32::try_from(to - from).expect("at most one line"))
            } else {
                Piece::Data(data.slice(from as usize..to as usize))
            };
            push_piece(&mut pieces, piece);
        }
        Some(pieces)
    }

    fn read(&mut self, mut request: Request, flow: &mut Flow<'_>) {
        if request.len_bytes > self.options.bypass_bytes || self.shared {
            self.stats.bypassed += 1;
            return flow.pass(request);
        }
        let (offset, len) = (request.offset_bytes, request.len_bytes);
        if let Some(pieces) = self.look_up(offset, len) {
            self.stats.hits += 1;
            self.stats.hit_bytes += u64::from(len);
            // Memory answered, so the backend's stages took no time.
            for stage in [Stage::Submitted, Stage::Sent, Stage::Replied] {
                request.stamps.stamp(stage, flow.now());
            }
            return flow.answer(Completion::of(&request, Ok(Payload::Data(pieces))));
        }
        self.stats.misses += 1;
        self.stats.miss_bytes += u64::from(len);
        if len >= self.options.stream_bytes {
            return flow.pass(request);
        }
        let start = offset - offset % LINE;
        let end = (offset + u64::from(len)).next_multiple_of(LINE).min(flow.size_bytes());
        let skip = u32::try_from(offset - start).expect("less than a line");
        // The cache keeps the bytes, so they must not be in the front-end's memory.
        request.destination.clear();
        let lines = ReadFlight { offset: start, began: self.versions.begin_read() };
        if (start, end) == (offset, request.end_bytes()) {
            self.reads.insert(request.id, lines);
            return flow.pass(request);
        }
        request.offset_bytes = start;
        request.len_bytes = u32::try_from(end - start).expect("at most two lines more than asked");
        let widened = WidenedRead { id: request.id, asked_bytes: len, skip, lines };
        flow.pass_own(self.widened.insert(widened), request);
    }

    fn change_lines(&mut self, request: Request, flow: &mut Flow<'_>) {
        let (offset, len) = (request.offset_bytes, request.len_bytes);
        let whole = covered(offset, len);
        let short = len <= self.options.bypass_bytes;
        let updates = request.op == Op::Write && short && !self.shared;
        let mut keep = 0;
        if updates {
            for (bit, line) in whole.clone().enumerate() {
                let wanted = self.options.write_allocate || self.lines.contains(line);
                keep |= u64::from(wanted) << bit;
            }
        }
        let lines = touched(offset, len);
        self.stats.invalidated += self.lines.remove_range(lines.clone()) as u64;
        let began = self.versions.begin_change(&lines);
        let data = if keep != 0 { request.data.clone() } else { Bytes::new() };
        self.changes.insert(request.id, ChangeFlight { offset, len, began, data, keep });
        flow.pass(request);
    }

    fn insert(&mut self, line: u64, data: Bytes) {
        self.stats.inserted += 1;
        self.stats.evicted += u64::from(self.lines.insert(line, data));
    }

    /// Keeps the lines of a read.
    fn fill(&mut self, read: &ReadFlight, pieces: &Pieces) {
        let total: u32 = pieces.iter().map(Piece::len_bytes).sum();
        let lines = covered(read.offset, total);
        if read.began < self.dropped {
            self.stats.refused += lines.end - lines.start;
            return;
        }
        if let [Piece::Data(data)] = &pieces[..]
            && total == LINE_BYTES
        {
            // The common case, with fewer steps.
            if self.versions.read_is_current(lines.start, read.began) {
                self.insert(lines.start, data.clone());
            } else {
                self.stats.refused += 1;
            }
            return;
        }
        let mut splitter = Splitter::new(pieces.clone());
        for line in lines {
            let part = splitter.take(LINE_BYTES);
            if !self.versions.read_is_current(line, read.began) {
                self.stats.refused += 1;
                continue;
            }
            let data = match &part[..] {
                [Piece::Zeroes(_)] => Bytes::new(),
                [Piece::Data(data)] => Bytes::copy_from_slice(data),
                // Here `to_bytes` copies several pieces into one line.
                parts => to_bytes(parts),
            };
            self.insert(line, data);
        }
    }

    /// Keeps the lines of a write.
    fn update(&mut self, change: &ChangeFlight) {
        for (bit, line) in covered(change.offset, change.len).enumerate() {
            let keep = bit < MAX_LINES as usize && change.keep >> bit & 1 == 1;
            if keep && self.versions.change_is_current(line, change.began) {
                let from = (line * LINE - change.offset) as usize;
                let line_data = &change.data[from..from + LINE_BYTES as usize];
                self.insert(line, Bytes::copy_from_slice(line_data));
            }
        }
    }

    fn change_done(&mut self, change: &ChangeFlight, completion: &Completion) {
        if completion.result.is_ok() && change.keep != 0 && change.began >= self.dropped {
            self.update(change);
        }
        self.versions.end_change(&touched(change.offset, change.len));
    }
}

impl Layer for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        if self.options.capacity_bytes < LINE {
            return flow.pass(request);
        }
        match request.op {
            Op::Read if request.len_bytes > 0 => self.read(request, flow),
            Op::Write | Op::Trim | Op::WriteZeroes if request.len_bytes > 0 => {
                self.change_lines(request, flow);
            }
            _ => flow.pass(request),
        }
    }

    fn complete(&mut self, completion: Completion, flow: &mut Flow<'_>) {
        if completion.op.changes_data() {
            if let Some(change) = self.changes.remove(completion.id) {
                self.change_done(&change, &completion);
            }
        } else if let Some(read) = self.reads.remove(completion.id)
            && let Ok(Payload::Data(pieces)) = &completion.result
        {
            self.fill(&read, pieces);
        }
        flow.answer(completion);
    }

    fn complete_own(&mut self, index: usize, mut completion: Completion, flow: &mut Flow<'_>) {
        let read = self.widened.remove(index);
        (completion.id, completion.len_bytes) = (read.id, read.asked_bytes);
        if let Ok(Payload::Data(pieces)) = &mut completion.result {
            self.fill(&read.lines, pieces);
            cut_pieces(pieces, read.skip, read.asked_bytes);
        }
        flow.answer(completion);
    }

    fn share(&mut self, why: Option<&'static str>) {
        self.shared = why.is_some();
        self.stats.invalidated += self.lines.remove_range(0..u64::MAX) as u64;
        self.dropped = self.versions.begin_read();
    }

    fn keeps_data(&self) -> bool {
        self.options.capacity_bytes >= LINE
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let options = &self.options;
        let size = fieldstone_units::size_argument;
        vec![
            ("capacity", size(options.capacity_bytes)),
            ("bypass", size(u64::from(options.bypass_bytes))),
            ("stream", size(u64::from(options.stream_bytes))),
            ("write-allocate", if options.write_allocate { "on" } else { "off" }.to_owned()),
        ]
    }

    fn counters(&self) -> Vec<Counter> {
        let stats = self.stats();
        vec![
            Counter { name: "hits", value: stats.hits },
            Counter { name: "misses", value: stats.misses },
            Counter { name: "hit_bytes", value: stats.hit_bytes },
            Counter { name: "miss_bytes", value: stats.miss_bytes },
            Counter { name: "bypassed", value: stats.bypassed },
            Counter { name: "inserted", value: stats.inserted },
            Counter { name: "evicted", value: stats.evicted },
            Counter { name: "invalidated", value: stats.invalidated },
            Counter { name: "refused", value: stats.refused },
            Counter { name: "held_bytes", value: stats.held_bytes },
        ]
    }
}
