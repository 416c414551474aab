//! `file:PATH`: a plain file or a block device as a store, through io_uring.
//!
//! | request | operation |
//! |---|---|
//! | read, write | the same, at the same offset; a read goes to its destination, if it has one |
//! | flush, FUA | `fdatasync`; requests that come while one is under way share the next one |
//! | trim | `fallocate(PUNCH_HOLE)` |
//! | write zeroes | `fallocate(PUNCH_HOLE)`; `ZERO_RANGE` if the space must stay allocated |
//! | extents | `SEEK_DATA` and `SEEK_HOLE`, in a thread, because they may wait for the disk |
//!
//! If the file system has no `PUNCH_HOLE`, write zeroes uses `ZERO_RANGE`. If it has neither, the
//! store writes zeroes, or fails the request if it must be fast.
//!
//! The store holds a lock (`flock`) on the file, so that no two servers write to one file. The lock
//! is exclusive unless the store is read-only. The store unlocks the file when it ends. To close
//! the file is not enough: a child process after `fork` has a descriptor of the same open file,
//! which would keep the lock.
//!
//! # When a sync fails
//!
//! After a failed `fdatasync` the kernel may have dropped written data, and the next call succeeds
//! without that data. So every later flush and FUA write fails too, until the file is opened again.

mod extents;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use bytes::Bytes;
use fieldstone_block::layers::LayerOptions;
use fieldstone_block::{
    Backend, BlockError, Completion, Counter, Extent, Info, Nanos, Op, Payload, Piece, Request,
    Stage,
};
use fieldstone_buf::{AlignedBuf, is_aligned, zeroes};
use fieldstone_uring::{
    Caching, Event, File, FileOptions, Inlined, Payload as EventPayload, Space, Unsure,
};
use slab::Slab;
use smallvec::smallvec;

use super::{StoreKind, StoreOptions, without_cache};
use crate::pace::{Group, Pace};
use crate::store::{Mail, Phase, Store, StoreIo, StoreSpec};
use crate::timed_call;
use extents::Question;

/// The kind `file:PATH`.
pub const KIND: StoreKind = StoreKind {
    scheme: "file",
    argument: "PATH",
    about: "a file or a block device",
    layers: |_, options| {
        Ok(match options.caching {
            Caching::Buffered => without_cache(),
            Caching::Direct => LayerOptions::default(),
        })
    },
    name: |argument, _| {
        let name = Path::new(argument).file_name();
        name.map_or_else(|| "file".to_owned(), |name| name.to_string_lossy().into_owned())
    },
    spec: |argument, options| {
        if argument.is_empty() {
            return Err("the path of a file is missing".to_owned());
        }
        let StoreOptions { caching, read_only } = options;
        Ok(Box::new(FileSpec { path: PathBuf::from(argument), caching, read_only }))
    },
};

/// The index of the sync under way. Jobs have the other indices.
const SYNC: u32 = u32::MAX;
/// The longest buffered write that the core makes itself. A copy of this length takes some
/// microseconds. Longer writes go to the ring.
const INLINE_BYTES: u32 = 32 << 10;
/// The most zeroes in one write, when the file system cannot zero a range.
const ZEROES_BYTES: u32 = 1 << 20;
/// The preferred unit of requests: a page.
const PREFERRED_BYTES: u32 = 4096;
/// The best length of a direct read ahead of a sequential reader.
const READ_AHEAD_BYTES: u32 = 1 << 20;
/// The largest logical block of a disk.
const BLOCK_BYTES_MAX: u32 = 4096;

/// A file or block device.
#[derive(Clone, Debug)]
pub struct FileSpec {
    /// The path.
    pub path: PathBuf,
    /// Whether transfers use the page cache.
    pub caching: Caching,
    /// The store refuses writes, and shares its lock with other readers.
    pub read_only: bool,
}

/// What the store has done since it was opened.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Operations on the file that requests have started, without syncs.
    operations: u64,
    /// Of these, writes that the core made itself.
    inline_writes: u64,
    /// Syncs of the file.
    syncs: u64,
}

impl StoreSpec for FileSpec {
    fn open(self: Box<Self>, io: &mut StoreIo<'_>) -> Box<dyn Store> {
        let (spec, mailer) = ((*self).clone(), io.mailer());
        let open = move || Opened::open(&spec);
        let answered =
            move |opened: Result<Opened, String>| mailer.send(Box::new(FileMail::Opened(opened)));
        let started = timed_call::begin(&self.path.to_string_lossy(), open, answered);
        let state = match started {
            Ok(()) => State::Opening,
            Err(error) => State::Failed(format!("{}: {error}", self.path.display())),
        };
        Box::new(FileStore { spec: *self, state, ..FileStore::default() })
    }
}

/// A message from a thread to the store.
enum FileMail {
    /// The open file, or the reason why it could not be opened.
    Opened(Result<Opened, String>),
    /// The extents for the request with this index.
    Extents(u32, io::Result<Vec<Extent>>),
}

/// An open file.
struct Opened {
    file: File,
    size_bytes: u64,
    block_bytes: u32,
    /// The file for questions for extents. It holds the lock.
    seeker: Locked,
}

impl Opened {
    fn open(spec: &FileSpec) -> Result<Self, String> {
        let named = |error: io::Error| format!("{}: {error}", spec.path.display());
        // Opening a FIFO would wait for the other end, so the type is checked first.
        let kind = fs::metadata(&spec.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let shown = spec.path.display();
                let may_be_made = spec.path.parent().is_some_and(|folder| {
                    folder.as_os_str().is_empty()
                        || (folder.is_dir() && !folder.starts_with("/dev"))
                });
                if may_be_made {
                    format!("{shown} is not there; make it first: truncate -s 1G {shown}")
                } else {
                    format!("{shown} is not there")
                }
            }
            _ => named(error),
        })?;
        let kind = kind.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(format!("{}: neither a file nor a block device", spec.path.display()));
        }
        let seeker = fs::File::open(&spec.path).map_err(named)?;
        let seeker = Locked::new(seeker, spec)?;
        let size_bytes = (&seeker.0).seek(SeekFrom::End(0)).map_err(named)?;
        let options =
            FileOptions { write: !spec.read_only, caching: spec.caching, ..FileOptions::default() };
        let file = File::open(&spec.path, options).map_err(|error| error.to_string())?;
        let block_bytes = match spec.caching {
            Caching::Direct => direct_block_bytes(&file, size_bytes, &spec.path)?,
            // A block device trims and zeroes only whole blocks.
            Caching::Buffered if kind.is_block_device() => {
                BLOCK_BYTES_MAX.min(1 << size_bytes.trailing_zeros().min(12))
            }
            Caching::Buffered => 1,
        };
        Ok(Self { file, size_bytes, block_bytes, seeker })
    }
}

/// An open file with the lock of a store. Dropping the value unlocks the file.
struct Locked(fs::File);

impl Locked {
    fn new(file: fs::File, spec: &FileSpec) -> Result<Self, String> {
        let locked = if spec.read_only { file.try_lock_shared() } else { file.try_lock() };
        match locked {
            Ok(()) => Ok(Self(file)),
            Err(fs::TryLockError::WouldBlock) => Err(format!(
                "{} is locked: another server, or this one, uses it",
                spec.path.display()
            )),
            Err(fs::TryLockError::Error(error)) => {
                Err(format!("{} cannot be locked: {error}", spec.path.display()))
            }
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!("a file cannot be unlocked: {error}");
        }
    }
}

/// The unit of transfers around the page cache.
fn direct_block_bytes(file: &File, size_bytes: u64, path: &Path) -> Result<u32, String> {
    let raw = file.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let raw = fs::File::from(raw);
    for block_bytes in [512, BLOCK_BYTES_MAX] {
        let mut buffer = AlignedBuf::zeroed(block_bytes as usize);
        if raw.read_at(&mut buffer, 0).is_ok() {
            if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(block_bytes)) {
                return Err(format!(
                    "{}: with --direct the size has to be a positive multiple of {block_bytes} \
                     bytes, and it is {size_bytes}",
                    path.display()
                ));
            }
            return Ok(block_bytes);
        }
    }
    Err(format!("{} cannot be read with --direct", path.display()))
}

#[derive(Default)]
enum State {
    #[default]
    Opening,
    Open(Opened),
    Closed,
    Failed(String),
}

/// A request in flight.
struct InFlight {
    request: Request,
    step: Step,
    group: Option<Group>,
}

/// The operation that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A read or write of the whole range.
    Transfer,
    /// `fallocate` with this mode.
    Space(Space),
    /// A write of zeroes up to this offset.
    Zeroes { end_bytes: u64 },
    /// The answer of the thread.
    Extents,
}

#[derive(Default)]
struct FileStore {
    spec: FileSpec,
    state: State,
    /// Requests that have not been started.
    arrived: VecDeque<Request>,
    in_flight: Slab<InFlight>,
    /// Requests that wait for the sync under way, and requests that wait for the next one.
    syncing: Vec<Request>,
    sync_next: Vec<Request>,
    sync_runs: bool,
    /// The reason why every flush fails: a sync has failed.
    lost: Option<String>,
    ready: Vec<Completion>,
    pace: Pace,
    counts: Counts,
    /// Questions for the thread that looks for extents. The first request for extents starts it.
    seeks: Option<mpsc::Sender<Question>>,
    closing: bool,
    /// The sync before closing was started.
    last_sync: bool,
}

impl Default for FileSpec {
    fn default() -> Self {
        Self { path: PathBuf::new(), caching: Caching::Buffered, read_only: false }
    }
}

impl FileStore {
    fn complete(&mut self, mut request: Request, result: Result<Payload, BlockError>, now: Nanos) {
        request.stamps.stamp(Stage::Replied, now);
        self.ready.push(Completion::of(&request, result));
    }

    fn start(&mut self, mut request: Request, io: &mut StoreIo<'_>) {
        let State::Open(open) = &self.state else {
            return self.complete(request, Err(BlockError::ShuttingDown), io.now);
        };
        request.stamps.stamp(Stage::Sent, io.now);
        let (offset_bytes, len_bytes) = (request.offset_bytes, request.len_bytes);
        if request.op == Op::Flush {
            self.sync_next.push(request);
            return self.start_sync(io);
        }
        if len_bytes == 0 {
            let payload = request.empty_payload();
            return self.complete(request, Ok(payload), io.now);
        }
        let file = open.file.clone();
        let data = std::mem::take(&mut request.data);
        let destination = request.destination.take(len_bytes);
        let step = match request.op {
            Op::Trim => Step::Space(Space::PunchHole),
            Op::WriteZeroes if request.flags.no_hole => Step::Space(Space::Zero),
            Op::WriteZeroes => Step::Space(Space::PunchHole),
            Op::Extents => Step::Extents,
            Op::Read | Op::Write | Op::Flush => Step::Transfer,
        };
        let op = request.op;
        let slot = self.in_flight.insert(InFlight { request, step, group: None });
        self.counts.operations += 1;
        let index = u32::try_from(slot).expect("requests are bounded by the front-ends");
        let token = io.token(index);
        let mut on_ring = true;
        match (step, op) {
            (Step::Transfer, Op::Read) => {
                let buffer = destination.unwrap_or_else(|| AlignedBuf::stale(len_bytes as usize));
                io.reactor.read(&file, offset_bytes, buffer, token);
            }
            (Step::Transfer, _) => on_ring = self.write(&file, offset_bytes, data, index, io),
            (Step::Space(space), _) => {
                io.reactor.fallocate(&file, space, offset_bytes, u64::from(len_bytes), token);
            }
            (Step::Extents | Step::Zeroes { .. }, _) => {
                on_ring = false;
                self.seek(index, offset_bytes, u64::from(len_bytes), io);
            }
        }
        if on_ring {
            self.in_flight[slot].group = Some(self.pace.begin(io.reactor.now()));
        }
    }

    /// Makes a short buffered write in this thread, if it cannot block or the disk keeps pace.
    /// Otherwise puts the write, or the rest of it, on the ring. True if a part is on the ring.
    fn write(
        &mut self,
        file: &File,
        offset_bytes: u64,
        data: Bytes,
        index: u32,
        io: &mut StoreIo<'_>,
    ) -> bool {
        let token = io.token(index);
        if self.spec.caching == Caching::Direct {
            let aligned =
                if is_aligned(&data) { data } else { AlignedBuf::copy_from(&data).freeze() };
            io.reactor.write(file, offset_bytes, vec![aligned], token);
            return true;
        }
        if data.len() > INLINE_BYTES as usize {
            io.reactor.write(file, offset_bytes, vec![data], token);
            return true;
        }
        let kept = self.pace.is_kept(io.reactor.now());
        let unsure = if kept { Unsure::Block } else { Unsure::Ring };
        let inlined = io.reactor.write_inline(file, offset_bytes, vec![data], unsure, token);
        if let Inlined::Blocking(took) = inlined {
            self.pace.blocked(took, io.reactor.now());
        }
        let on_ring = matches!(inlined, Inlined::Ring);
        self.counts.inline_writes += u64::from(!on_ring);
        on_ring
    }

    /// Asks the thread for extents.
    fn seek(&mut self, index: u32, offset_bytes: u64, len_bytes: u64, io: &StoreIo<'_>) {
        let State::Open(open) = &self.state else { return };
        if self.seeks.is_none() {
            let started =
                open.seeker.0.try_clone().and_then(|file| extents::start(file, io.mailer()));
            self.seeks = started.ok();
        }
        let asked = self
            .seeks
            .as_ref()
            .map(|seeks| seeks.send(Question { index, offset_bytes, len_bytes }));
        if !matches!(asked, Some(Ok(()))) {
            let flight = self.in_flight.remove(index as usize);
            let error = BlockError::Io("no thread is left to look for extents".to_owned());
            self.complete(flight.request, Err(error), io.now);
        }
    }

    fn start_sync(&mut self, io: &mut StoreIo<'_>) {
        let State::Open(open) = &self.state else { return };
        if self.sync_runs {
            return;
        }
        if let Some(reason) = self.lost.clone() {
            return self.end_sync(&Err(reason), io);
        }
        self.syncing = std::mem::take(&mut self.sync_next);
        self.sync_runs = true;
        self.counts.syncs += 1;
        io.reactor.fsync(&open.file, true, io.token(SYNC));
    }

    fn end_sync(&mut self, result: &Result<(), String>, io: &mut StoreIo<'_>) {
        self.sync_runs = false;
        let mut done = std::mem::take(&mut self.syncing);
        if let Err(reason) = result {
            self.lost = Some(reason.clone());
            done.append(&mut self.sync_next);
        }
        for request in done {
            let result = result.clone().map(|()| Payload::None).map_err(BlockError::Io);
            self.complete(request, result, io.now);
        }
        if !self.sync_next.is_empty() {
            self.start_sync(io);
        }
    }

    /// Takes the end of an operation of a request in flight.
    fn go_on(&mut self, slot: usize, event: Event, io: &mut StoreIo<'_>) {
        let State::Open(open) = &self.state else { return };
        let file = open.file.clone();
        let flight = &mut self.in_flight[slot];
        if let Some(group) = flight.group.take() {
            self.pace.end(group, io.now);
        }
        let request = &flight.request;
        let (offset_bytes, len_bytes) = (request.offset_bytes, request.len_bytes);
        let unsupported = event.result.as_ref().is_err_and(|error| {
            matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))
        });
        let index = u32::try_from(slot).expect("made from a u32");
        // Where the file system lacks one operation, it may have another.
        let next = match flight.step {
            Step::Space(_) if !unsupported || request.op == Op::Trim => None,
            Step::Space(Space::PunchHole) => Some(Step::Space(Space::Zero)),
            Step::Space(_) if request.flags.fast_zero => None,
            Step::Space(_) => Some(Step::Zeroes { end_bytes: offset_bytes }),
            Step::Zeroes { end_bytes } if event.result.is_ok() => {
                (end_bytes < request.end_bytes()).then_some(Step::Zeroes { end_bytes })
            }
            _ => None,
        };
        match next {
            Some(Step::Space(space)) => {
                flight.step = Step::Space(space);
                let token = io.token(index);
                io.reactor.fallocate(&file, space, offset_bytes, u64::from(len_bytes), token);
            }
            Some(Step::Zeroes { end_bytes: from }) => {
                let left = request.end_bytes() - from;
                let len = left.min(u64::from(ZEROES_BYTES));
                flight.step = Step::Zeroes { end_bytes: from + len };
                let data = zeroes(usize::try_from(len).expect("at most a MiB"));
                io.reactor.write(&file, from, vec![data], io.token(index));
            }
            _ => {
                let InFlight { request, step, .. } = self.in_flight.remove(slot);
                let result = match (unsupported, step) {
                    (true, Step::Space(_)) => {
                        Err(BlockError::NotSupported("the file system cannot do this"))
                    }
                    _ => payload(&request, event),
                };
                self.ended(request, result, io);
            }
        }
    }

    fn ended(
        &mut self,
        request: Request,
        result: Result<Payload, BlockError>,
        io: &mut StoreIo<'_>,
    ) {
        if result.is_ok() && request.flags.fua && request.op.changes_data() {
            self.sync_next.push(request);
            return self.start_sync(io);
        }
        self.complete(request, result, io.now);
    }

    /// Operations on the file that have not ended, with the sync.
    fn operations_in_flight(&self) -> usize {
        self.in_flight.len() + usize::from(self.sync_runs)
    }

    fn is_idle(&self) -> bool {
        self.arrived.is_empty() && self.operations_in_flight() == 0
    }

    /// While closing: once no operation is under way, makes written data stable and ends.
    fn finish(&mut self, io: &mut StoreIo<'_>) -> bool {
        if !self.closing
            || !self.is_idle()
            || matches!(self.state, State::Closed | State::Failed(_))
        {
            return false;
        }
        if matches!(self.state, State::Open(_)) && !self.spec.read_only && !self.last_sync {
            self.last_sync = true;
            self.start_sync(io);
            return true;
        }
        let lost = self.lost.take();
        self.state = lost.map_or(State::Closed, State::Failed);
        self.seeks = None;
        true
    }
}

/// The answer to a request, from the end of its operation.
fn payload(request: &Request, event: Event) -> Result<Payload, BlockError> {
    let count = event.result.map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => BlockError::NoSpace,
        _ => BlockError::Io(error.to_string()),
    })?;
    match (request.op, event.payload) {
        (Op::Read, EventPayload::Buffer(buffer)) => {
            if count < request.len_bytes {
                return Err(BlockError::Io("the file has become shorter".to_owned()));
            }
            Ok(Payload::Data(smallvec![Piece::Data(buffer.freeze())]))
        }
        _ => Ok(Payload::None),
    }
}

impl Backend for FileStore {
    fn info(&self) -> Info {
        let (size_bytes, block_bytes) = match &self.state {
            State::Open(open) => (open.size_bytes, open.block_bytes),
            _ => (0, 1),
        };
        let read_only = self.spec.read_only;
        // The kernel reads ahead for the page cache.
        let read_ahead_bytes =
            if self.spec.caching == Caching::Direct { READ_AHEAD_BYTES } else { 0 };
        Info {
            size_bytes,
            block_bytes,
            preferred_bytes: PREFERRED_BYTES,
            read_ahead_bytes,
            read_only,
        }
    }

    fn submit(&mut self, mut request: Request, now: Nanos) {
        request.stamps.stamp(Stage::Submitted, now);
        self.arrived.push_back(request);
    }

    fn poll(&mut self, _: Nanos, out: &mut Vec<Completion>) {
        out.append(&mut self.ready);
    }

    fn deadline(&self) -> Option<Nanos> {
        None
    }
}

impl Store for FileStore {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn phase(&self) -> Phase {
        match &self.state {
            State::Opening => Phase::Opening,
            State::Open(_) if self.closing => Phase::Closing,
            State::Open(_) => Phase::Serving,
            State::Closed => Phase::Closed,
            State::Failed(reason) => Phase::Failed(reason.clone()),
        }
    }

    fn close(&mut self) {
        self.closing = true;
    }

    fn event(&mut self, index: u32, event: Event, io: &mut StoreIo<'_>) {
        if index == SYNC {
            let result = event.result.map(drop);
            return self.end_sync(&result.map_err(|error| format!("fdatasync: {error}")), io);
        }
        if self.in_flight.contains(index as usize) {
            self.go_on(index as usize, event, io);
        }
    }

    fn mail(&mut self, mail: Mail, io: &mut StoreIo<'_>) {
        let Ok(mail) = mail.downcast::<FileMail>() else { return };
        match *mail {
            FileMail::Opened(opened) if matches!(self.state, State::Opening) => {
                self.state = opened.map_or_else(State::Failed, State::Open);
            }
            // The store was closed meanwhile.
            FileMail::Opened(_) => {}
            FileMail::Extents(index, found) => {
                let Some(flight) = self.in_flight.try_remove(index as usize) else { return };
                let result = found.map(Payload::Extents);
                let result = result.map_err(|error| BlockError::Io(error.to_string()));
                self.complete(flight.request, result, io.now);
            }
        }
    }

    fn act(&mut self, io: &mut StoreIo<'_>) -> bool {
        let mut busy = false;
        while let Some(request) = self.arrived.pop_front() {
            self.start(request, io);
            busy = true;
        }
        self.finish(io) || busy
    }

    fn waits_for(&self, _now: Nanos) -> String {
        match self.operations_in_flight() {
            0 => String::new(),
            count => format!("{count} operations on {}", self.spec.path.display()),
        }
    }

    fn counters(&self) -> Vec<Counter> {
        let Counts { operations, inline_writes, syncs } = self.counts;
        let in_flight = self.operations_in_flight() as u64;
        let counters = [
            ("operations", operations),
            ("inline_writes", inline_writes),
            ("syncs", syncs),
            ("in_flight", in_flight),
        ];
        counters.map(|(name, value)| Counter { name, value }).to_vec()
    }
}
