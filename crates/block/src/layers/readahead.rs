//! Read-ahead: reads what a sequential reader will ask for next, in long reads.
//!
//! A client that reads in order asks for a few requests at a time, each much shorter than what a
//! disk or a set of nodes reads best. So this layer follows the streams of reads (`streams`). For a
//! stream it keeps *windows*: long reads of the next bytes, which it sends before the client asks.
//! A request takes its bytes from the windows that have them, or waits until these windows have
//! loaded. If the windows do not have all of its bytes, the layer passes the request on as it is.
//!
//! The first window has twice the length of the stream's requests, and at least
//! [`FIRST_BYTES_MIN`]. Each further window is twice as long as the one before, up to the length
//! that the store asks for ([`Info::read_ahead_bytes`]) or the options give. When a request reaches
//! into the newest window of its stream, the layer sends the next one. So one window is on its way
//! while the client reads the one before. A reader that has overtaken its windows begins anew with
//! a short one.
//!
//! The layer stands below the cache, so it sees only reads that the cache could not answer. The
//! cache keeps the bytes of a read of one line as they are, so the layer copies those: otherwise a
//! line of the cache would keep a whole window in memory.
//!
//! # Never stale
//!
//! The layer promises what the cache promises: no request gets bytes from before a change that had
//! completed when the request came, and reads never go back in time. So no request takes bytes that
//! a change in flight overlaps: the layer sends no window over such a range, and a change cuts the
//! windows that it overlaps. A cut window keeps its larger part outside the change; requests take
//! no more of the rest. The requests that wait for the window came before the change, so they may
//! still get all of its bytes. If others may change the store's data, that counts as a change of
//! everything, and the layer sends no windows meanwhile.
//!
//! # Memory
//!
//! The windows of all streams hold or wait for at most [`HELD_BYTES_MAX`], without the bytes that
//! requests have taken. That is room for three of the longest windows of each stream that
//! [`Streams`] follows. The layer drops a window when requests have taken all of its bytes, and
//! [`IDLE`] after its stream was last read. For a new window it drops the window that was idle for
//! the longest time.

use std::ops::Range;

use bytes::Bytes;
use slab::Slab;
use smallvec::SmallVec;

use super::flights::Flights;
use super::streams::{STREAMS, Streams};
use crate::layer::{Counter, Flow, Layer};
use crate::pieces::{Pieces, push_window, to_bytes};
use crate::settings::{SettingError, Settings};
use crate::{
    Completion, Info, Nanos, Op, Payload, Piece, QueueId, ReadDestination, Request, RequestFlags,
    RequestId, Stage, Stamps,
};

/// Windows start and end at multiples of this, or at the device's end.
const LINE_BYTES: u64 = 4096;
/// The shortest first window of a stream.
const FIRST_BYTES_MIN: u64 = 64 << 10;
/// The longest window.
const WINDOW_BYTES_MAX: u32 = 2 << 20;
/// The most bytes that the windows of a device hold or wait for.
const HELD_BYTES_MAX: u64 = 3 * STREAMS as u64 * WINDOW_BYTES_MAX as u64;
/// The most windows of a device.
const WINDOWS_MAX: usize = 4 * STREAMS;
/// The layer drops a window whose stream was not read for so long.
const IDLE: Nanos = Nanos::from_ms(1000);
/// The layer looks for idle windows so often, so that a read does not move the deadline.
const IDLE_STEP: Nanos = Nanos::from_ms(100);

/// The options of read-ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAheadOptions {
    /// The length of the longest window in bytes. 0 switches read-ahead off. `None` takes the
    /// length that the store asks for.
    pub window_bytes: Option<u32>,
}

impl ReadAheadOptions {
    /// Takes the options that `settings` names. The others keep their values.
    ///
    /// # Errors
    /// A value cannot be read.
    pub fn set(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        settings.read("window", &mut self.window_bytes, |text| {
            if text == "auto" {
                return Ok(None);
            }
            let bytes = fieldstone_units::parse_size(text)?;
            let longest = u64::from(WINDOW_BYTES_MAX);
            match u32::try_from(bytes) {
                Ok(bytes) if bytes <= WINDOW_BYTES_MAX => Ok(Some(bytes)),
                _ => Err(format!("{text:?} is more than {}", fieldstone_units::size(longest))),
            }
        })
    }
}

/// The counters of read-ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAheadStats {
    /// Windows sent.
    pub windows: u64,
    /// Their bytes.
    pub window_bytes: u64,
    /// Requests that windows answered.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Of the hits, requests that waited for a window.
    pub waited: u64,
    /// How often a change overlapped a window.
    pub cut: u64,
    /// Windows whose read failed.
    pub failed: u64,
    /// Bytes that windows hold or wait for now.
    pub held_bytes: u64,
}

/// What the layer keeps with a stream: its newest window.
#[derive(Default)]
struct Ahead {
    start: u64,
    end: u64,
}

impl Ahead {
    fn len_bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// The part of a request for which a window is still on its way.
struct Waiter {
    joined: usize,
    part: usize,
}

enum WindowState {
    /// The window's read is on its way.
    Loading(SmallVec<[Waiter; 4]>),
    Ready(Pieces),
}

/// Bytes ahead of a stream.
struct Window {
    /// The range that the layer reads.
    range: Range<u64>,
    /// The part that requests may take: what no change has overlapped.
    open: Range<u64>,
    /// Bytes of the open part that requests have taken.
    taken_bytes: u64,
    state: WindowState,
    /// When a request last took bytes, or continued the stream of which this is the newest window.
    used: Nanos,
}

impl Window {
    fn new(range: Range<u64>, now: Nanos) -> Self {
        let state = WindowState::Loading(SmallVec::new());
        Window { open: range.clone(), range, taken_bytes: 0, state, used: now }
    }

    fn len_bytes(&self) -> u64 {
        len_bytes(&self.range)
    }

    fn is_ready(&self) -> bool {
        matches!(self.state, WindowState::Ready(_))
    }

    /// Requests have taken everything that they may take.
    fn is_used_up(&self) -> bool {
        self.taken_bytes >= len_bytes(&self.open)
    }

    /// Keeps requests from the bytes of `change`.
    fn cut(&mut self, change: &Range<u64>) {
        let before = self.open.start..change.start.clamp(self.open.start, self.open.end);
        let behind = change.end.clamp(self.open.start, self.open.end)..self.open.end;
        let keeps_before = len_bytes(&before) > len_bytes(&behind);
        self.open = if keeps_before { before } else { behind };
        self.taken_bytes = 0;
    }

    /// When the layer drops the window if nothing uses it: a multiple of [`IDLE_STEP`].
    fn expires_at(&self) -> Nanos {
        Nanos(self.used.plus(IDLE).0.next_multiple_of(IDLE_STEP.0))
    }
}

fn len_bytes(range: &Range<u64>) -> u64 {
    range.end - range.start
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The key of a window, and a range that requests may take from it.
type WindowPart = (usize, Range<u64>);

/// A part of a request that lies in one window.
enum Part {
    Ready(Pieces),
    /// These bytes of a window on its way.
    Loading {
        skip: u32,
        len: u32,
    },
}

/// A request that takes its bytes from windows.
struct Joined {
    request: Request,
    parts: SmallVec<[Part; 2]>,
    /// Parts whose window is on its way.
    loading: u32,
    /// A window's read failed.
    failed: bool,
}

/// Reads ahead; see the module's text.
pub struct ReadAhead {
    options: ReadAheadOptions,
    /// The length that the store asks for.
    store_bytes: u32,
    /// Others may change the store's data.
    shared: bool,
    streams: Streams<Ahead>,
    windows: Slab<Window>,
    joined: Slab<Joined>,
    /// The ranges of the changes in flight.
    changes: Flights<Range<u64>>,
    stats: ReadAheadStats,
}

impl ReadAhead {
    /// Read-ahead without windows.
    #[must_use]
    pub fn new(options: ReadAheadOptions) -> Self {
        ReadAhead {
            options,
            store_bytes: 0,
            shared: false,
            // The cache widens reads to whole lines, so the next may start within the last line.
            streams: Streams::with_slack(LINE_BYTES - 1),
            windows: Slab::new(),
            joined: Slab::new(),
            changes: Flights::default(),
            stats: ReadAheadStats::default(),
        }
    }

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> ReadAheadStats {
        self.stats
    }

    /// The length of the longest window; 0 if the layer does not read ahead.
    fn window_bytes(&self) -> u64 {
        if self.shared {
            return 0;
        }
        u64::from(self.options.window_bytes.unwrap_or(self.store_bytes).min(WINDOW_BYTES_MAX))
    }

    fn read(&mut self, request: Request, flow: &mut Flow<'_>) {
        if self.window_bytes() == 0 {
            return flow.pass(request);
        }
        let (start, end) = (request.offset_bytes, request.end_bytes());
        match self.find(start, end) {
            Some(found) => self.join(request, &found, flow),
            None => flow.pass(request),
        }
        self.go_ahead(start, end, flow);
    }

    /// Finds the windows that have all bytes of the range. Gives them in order, each with its part.
    fn find(&self, start: u64, end: u64) -> Option<SmallVec<[WindowPart; 2]>> {
        let mut found = SmallVec::new();
        let mut at = start;
        while at < end {
            let (key, window) =
                self.windows.iter().find(|(_, window)| window.open.contains(&at))?;
            found.push((key, at..end.min(window.open.end)));
            at = window.open.end;
        }
        Some(found)
    }

    /// Answers the request from the windows in `found`, or lets it wait until they have loaded.
    fn join(&mut self, request: Request, found: &[WindowPart], flow: &mut Flow<'_>) {
        let joined = self.joined.vacant_key();
        let mut parts = SmallVec::new();
        let mut loading = 0;
        for (key, range) in found {
            let window = &mut self.windows[*key];
            window.used = flow.now();
            window.taken_bytes += len_bytes(range);
            let skip = u32::try_from(range.start - window.range.start).expect("windows are short");
            let len = u32::try_from(len_bytes(range)).expect("windows are short");
            match &mut window.state {
                WindowState::Ready(pieces) => {
                    parts.push(Part::Ready(window_part(pieces, skip, len)));
                    if window.is_used_up() {
                        self.drop_window(*key);
                    }
                }
                WindowState::Loading(waiters) => {
                    waiters.push(Waiter { joined, part: parts.len() });
                    parts.push(Part::Loading { skip, len });
                    loading += 1;
                }
            }
        }
        let joined = Joined { request, parts, loading, failed: false };
        if loading > 0 {
            self.joined.insert(joined);
            return;
        }
        let mut stamps = joined.request.stamps;
        // Memory answered, so the backend's stages took no time.
        for stage in [Stage::Submitted, Stage::Sent, Stage::Replied] {
            stamps.stamp(stage, flow.now());
        }
        self.answer(joined, stamps, flow);
    }

    fn answer(&mut self, joined: Joined, stamps: Stamps, flow: &mut Flow<'_>) {
        self.stats.hits += 1;
        self.stats.hit_bytes += u64::from(joined.request.len_bytes);
        let mut pieces = Pieces::new();
        for part in joined.parts {
            let Part::Ready(part) = part else { unreachable!("no part is on its way") };
            push_window(&mut pieces, &part, 0, u32::MAX);
        }
        let result = Ok(Payload::Data(pieces));
        flow.answer(Completion { stamps, ..Completion::of(&joined.request, result) });
    }

    /// Sends the next window of the request's stream, if it is time for it.
    fn go_ahead(&mut self, start: u64, end: u64, flow: &mut Flow<'_>) {
        let longest = self.window_bytes();
        let Some(ahead) = self.streams.follow(start, end) else { return };
        let newest = self.windows.iter_mut().find(|(_, window)| window.range.start == ahead.start);
        if let Some((_, newest)) = newest {
            newest.used = flow.now();
        }
        // Requests of more than half a window are long enough by themselves.
        if 2 * (end - start) > longest || end <= ahead.start {
            return;
        }
        let (next, len) = match end <= ahead.end {
            true => (ahead.end, 2 * ahead.len_bytes()),
            // The stream's first window, or the reader has overtaken its windows.
            false => (end - end % LINE_BYTES, (2 * (end - start)).max(FIRST_BYTES_MIN)),
        };
        let len = len.next_multiple_of(LINE_BYTES).min(longest.next_multiple_of(LINE_BYTES));
        let range = next..(next + len).min(flow.size_bytes());
        if range.is_empty() || self.changes.values().any(|change| overlap(change, &range)) {
            return;
        }
        // Without room for the window, the requests that it would have answered pass.
        *ahead = Ahead { start: range.start, end: range.end };
        if self.make_room(len_bytes(&range)) {
            self.send_window(range, flow);
        }
    }

    fn send_window(&mut self, range: Range<u64>, flow: &mut Flow<'_>) {
        let len_bytes = len_bytes(&range);
        self.stats.windows += 1;
        self.stats.window_bytes += len_bytes;
        self.stats.held_bytes += len_bytes;
        let request = Request {
            id: RequestId(0),
            op: Op::Read,
            offset_bytes: range.start,
            len_bytes: u32::try_from(len_bytes).expect("windows are short"),
            flags: RequestFlags::default(),
            data: Bytes::new(),
            destination: ReadDestination::default(),
            queue: QueueId::default(),
            stamps: Stamps::default(),
        };
        // A window is read once and stays until it is loaded, so its key can name the read.
        let window = self.windows.insert(Window::new(range, flow.now()));
        flow.pass_own(window, request);
    }

    /// Drops the windows that were idle for the longest time, until there is room for one of
    /// `len_bytes`. False if the windows on their way leave no room.
    fn make_room(&mut self, len_bytes: u64) -> bool {
        let loading = self.windows.iter().filter(|(_, window)| !window.is_ready());
        let (count, loading_bytes) = loading
            .fold((0, 0), |(count, bytes), (_, window)| (count + 1, bytes + window.len_bytes()));
        if count >= WINDOWS_MAX || loading_bytes + len_bytes > HELD_BYTES_MAX {
            return false;
        }
        let full = |layer: &Self| {
            let held_bytes = layer.stats.held_bytes + len_bytes;
            layer.windows.len() >= WINDOWS_MAX || held_bytes > HELD_BYTES_MAX
        };
        while full(self) {
            let ready = self.windows.iter().filter(|(_, window)| window.is_ready());
            let Some((key, _)) = ready.min_by_key(|(_, window)| window.used) else { return false };
            self.drop_window(key);
        }
        true
    }

    fn drop_window(&mut self, key: usize) -> Window {
        let window = self.windows.remove(key);
        self.stats.held_bytes -= window.len_bytes();
        window
    }

    /// A window's read has ended.
    fn window_loaded(&mut self, key: usize, completion: Completion, flow: &mut Flow<'_>) {
        let window = &mut self.windows[key];
        let len_bytes = window.len_bytes();
        let pieces = match completion.result {
            Ok(Payload::Data(pieces)) if total_bytes(&pieces) == len_bytes => Some(pieces),
            _ => None,
        };
        let state = WindowState::Ready(pieces.clone().unwrap_or_default());
        let WindowState::Loading(waiters) = std::mem::replace(&mut window.state, state) else {
            unreachable!("a window is read once")
        };
        window.used = flow.now();
        let over = window.is_used_up() || pieces.is_none();
        self.stats.failed += u64::from(pieces.is_none());
        for waiter in waiters {
            let joined = &mut self.joined[waiter.joined];
            let Part::Loading { skip, len } = joined.parts[waiter.part] else {
                unreachable!("a part waits for one window")
            };
            match &pieces {
                Some(pieces) => {
                    joined.parts[waiter.part] = Part::Ready(window_part(pieces, skip, len));
                }
                None => joined.failed = true,
            }
            joined.loading -= 1;
            if joined.loading > 0 {
                continue;
            }
            let joined = self.joined.remove(waiter.joined);
            if joined.failed {
                // The read of the request's own bytes may succeed.
                flow.pass(joined.request);
            } else {
                let mut stamps = joined.request.stamps;
                stamps.adopt_backend(&completion.stamps);
                self.stats.waited += 1;
                self.answer(joined, stamps, flow);
            }
        }
        if over {
            self.drop_window(key);
        }
    }

    fn change(&mut self, request: Request, flow: &mut Flow<'_>) {
        let range = request.offset_bytes..request.end_bytes();
        if !self.windows.is_empty() {
            self.cut_windows(&range);
        }
        self.changes.insert(request.id, range);
        flow.pass(request);
    }

    fn cut_windows(&mut self, change: &Range<u64>) {
        let hit = self.windows.iter().filter(|(_, window)| overlap(&window.open, change));
        let hit: SmallVec<[usize; 4]> = hit.map(|(key, _)| key).collect();
        for key in hit {
            self.stats.cut += 1;
            let window = &mut self.windows[key];
            window.cut(change);
            if window.is_ready() && window.open.is_empty() {
                self.drop_window(key);
            }
        }
    }
}

fn total_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.len_bytes())).sum()
}

/// The bytes that a request takes from a window: `len` bytes behind the first `skip`.
fn window_part(pieces: &[Piece], skip: u32, len: u32) -> Pieces {
    let mut part = Pieces::new();
    push_window(&mut part, pieces, skip, len);
    if u64::from(len) > LINE_BYTES {
        return part;
    }
    match &part[..] {
        [Piece::Data(data)] => Pieces::from_buf([Piece::Data(Bytes::copy_from_slice(data))]),
        [Piece::Zeroes(_)] => part,
        // This copies several pieces into one.
        several => Pieces::from_buf([Piece::Data(to_bytes(several))]),
    }
}

impl Layer for ReadAhead {
    fn name(&self) -> &'static str {
        "readahead"
    }

    fn info(&mut self, below: Info) -> Info {
        self.store_bytes = below.read_ahead_bytes;
        // No layer above needs to read ahead as well.
        Info { read_ahead_bytes: 0, ..below }
    }

    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        match request.op {
            Op::Read if request.len_bytes > 0 => self.read(request, flow),
            Op::Write | Op::Trim | Op::WriteZeroes if request.len_bytes > 0 => {
                self.change(request, flow);
            }
            _ => flow.pass(request),
        }
    }

    fn complete(&mut self, completion: Completion, flow: &mut Flow<'_>) {
        if completion.op.changes_data() {
            self.changes.remove(completion.id);
        }
        flow.answer(completion);
    }

    fn complete_own(&mut self, index: usize, completion: Completion, flow: &mut Flow<'_>) {
        self.window_loaded(index, completion, flow);
    }

    fn turn(&mut self, flow: &mut Flow<'_>) {
        let idle = |window: &Window| window.is_ready() && window.expires_at() <= flow.now();
        while let Some((key, _)) = self.windows.iter().find(|(_, window)| idle(window)) {
            self.drop_window(key);
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        let ready = self.windows.iter().filter(|(_, window)| window.is_ready());
        ready.map(|(_, window)| window.expires_at()).min()
    }

    fn share(&mut self, why: Option<&'static str>) {
        self.shared = why.is_some();
        self.cut_windows(&(0..u64::MAX));
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let window = match self.options.window_bytes {
            Some(bytes) => fieldstone_units::size_argument(u64::from(bytes)),
            None => "auto".to_owned(),
        };
        vec![("window", window)]
    }

    fn counters(&self) -> Vec<Counter> {
        let stats = self.stats;
        vec![
            Counter { name: "windows", value: stats.windows },
            Counter { name: "window_bytes", value: stats.window_bytes },
            Counter { name: "hits", value: stats.hits },
            Counter { name: "hit_bytes", value: stats.hit_bytes },
            Counter { name: "waited", value: stats.waited },
            Counter { name: "cut", value: stats.cut },
            Counter { name: "failed", value: stats.failed },
            Counter { name: "held_bytes", value: stats.held_bytes },
        ]
    }
}
