//! A queue of requests to one device. The caller's threads and the core's thread share it.
//!
//! A submitter holds the lock for a short time: it checks the bounds, gives the request an id and
//! puts it into the queue. The first submitter after the core has taken the requests wakes the
//! core. Later submitters need not wake it again. So many requests cost one message. A thread
//! releases the lock before it wakes another one: that one would only wait for the lock.
//!
//! A request takes up room until just before its receiver gets the answer. So a callback finds room
//! for the next request, and no more requests are under way than the bounds allow. A read into the
//! caller's memory gives its room back when the device has answered; the report may be later (see
//! `caller_buffer`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_block::{
    BlockError, Completion, Info, Op, Payload, ReadDestination, Request, RequestFlags, RequestId,
    Stamps,
};
use fieldstone_host::{
    DeviceId, FrontendId, FrontendMailer, Handle, NoFrontend, Submitter, WakeError, WakeUp,
};
use slab::Slab;
use smallvec::SmallVec;

use crate::answer::{
    Answer, Complete, Data, Error, OnComplete, complete, end_batch, is_in_callback,
};
use crate::caller_buffer::{CallerBuffer, ReadInto};
use crate::frontend::{KIND, Mail};

/// The longest read or write.
pub const REQUEST_BYTES_MAX: usize = 32 << 20;
/// The longest discard or write of zeroes.
pub const DISCARD_BYTES_MAX: u64 = 2 << 30;

/// Bounds on the requests of a queue that are under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Number of requests. 0 counts as 1.
    pub requests: usize,
    /// Bytes of reads and writes. A request that is alone in the queue may exceed this bound.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { requests: 256, bytes: 64 << 20 }
    }
}

/// The operation of a request. Offsets and lengths are in bytes and need no alignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read.
    Read {
        /// First byte.
        offset_bytes: u64,
        /// Number of bytes, at most [`REQUEST_BYTES_MAX`].
        len_bytes: usize,
    },
    /// Read into memory of the caller. The answer has the data only if they are not in that memory
    /// ([`CallerBuffer`]).
    ReadInto {
        /// First byte.
        offset_bytes: u64,
        /// The memory, at most [`REQUEST_BYTES_MAX`]. After an error its content is undefined.
        buffer: CallerBuffer,
    },
    /// Write. The bytes are not copied; the device may keep them for longer than the request.
    Write {
        /// First byte.
        offset_bytes: u64,
        /// The bytes, at most [`REQUEST_BYTES_MAX`].
        data: Bytes,
        /// The answer comes only when the bytes are on stable storage.
        fua: bool,
    },
    /// Makes every write stable that was answered before.
    Flush,
    /// Forgets the content of a range: the whole blocks of the store in it read as zeroes
    /// afterwards, and the bytes of other blocks keep their content. A block has at most 4096
    /// bytes. It has 4096 bytes in a volume, one byte in memory, and one in a file that is not
    /// opened with [`Options::direct`](crate::Options::direct).
    Discard {
        /// First byte.
        offset_bytes: u64,
        /// Number of bytes, at most [`DISCARD_BYTES_MAX`].
        len_bytes: u64,
    },
    /// Writes zeroes to every byte of a range.
    WriteZeroes {
        /// First byte.
        offset_bytes: u64,
        /// Number of bytes, at most [`DISCARD_BYTES_MAX`].
        len_bytes: u64,
        /// The space stays allocated.
        no_hole: bool,
        /// The answer comes only when the zeroes are on stable storage.
        fua: bool,
    },
}

impl Operation {
    /// The bytes that count against [`Bounds::bytes`].
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Read { len_bytes, .. } => *len_bytes,
            Self::ReadInto { buffer, .. } => buffer.len_bytes(),
            Self::Write { data, .. } => data.len(),
            Self::Flush | Self::Discard { .. } | Self::WriteZeroes { .. } => 0,
        }
    }

    /// The request, and its part in this crate if it reads into the caller's memory.
    /// [`Shared::submit`] sets the id.
    fn request(self) -> Result<(Request, Option<Arc<ReadInto>>), Error> {
        let read_max = REQUEST_BYTES_MAX as u64;
        let mut flags = RequestFlags::default();
        let mut data = Bytes::new();
        let mut into = None;
        let (op, offset_bytes, len_bytes, max_bytes) = match self {
            Self::Read { offset_bytes, len_bytes } => {
                (Op::Read, offset_bytes, len_bytes as u64, read_max)
            }
            Self::ReadInto { offset_bytes, buffer } => {
                into = Some(buffer);
                (Op::Read, offset_bytes, buffer.len_bytes() as u64, read_max)
            }
            Self::Write { offset_bytes, data: bytes, fua } => {
                flags.fua = fua;
                data = bytes;
                (Op::Write, offset_bytes, data.len() as u64, read_max)
            }
            Self::Flush => (Op::Flush, 0, 0, 0),
            Self::Discard { offset_bytes, len_bytes } => {
                (Op::Trim, offset_bytes, len_bytes, DISCARD_BYTES_MAX)
            }
            Self::WriteZeroes { offset_bytes, len_bytes, no_hole, fua } => {
                (flags.no_hole, flags.fua) = (no_hole, fua);
                (Op::WriteZeroes, offset_bytes, len_bytes, DISCARD_BYTES_MAX)
            }
        };
        let short = u32::try_from(len_bytes).ok().filter(|_| len_bytes <= max_bytes);
        let Some(len_bytes) = short else { return Err(Error::TooLong { len_bytes, max_bytes }) };
        let (id, stamps) = (RequestId(0), Stamps::default());
        let queue = Default::default();
        let (read_into, destination) = match into.map(ReadInto::lend) {
            Some((read_into, destination)) => (Some(read_into), destination),
            None => (None, ReadDestination::default()),
        };
        let request =
            Request { id, op, offset_bytes, len_bytes, flags, data, destination, queue, stamps };
        Ok((request, read_into))
    }
}

/// A request under way.
struct Entry {
    on_complete: OnComplete,
    held_bytes: usize,
    /// The request reads into the caller's memory.
    read_into: Option<Arc<ReadInto>>,
}

struct State {
    /// Requests that the core has not taken yet.
    pending: Vec<Request>,
    /// All requests under way. The key of an entry is the id of its request.
    entries: Slab<Entry>,
    held_bytes: usize,
    /// Requests whose receivers have not finished with the answer.
    undelivered: usize,
    /// The core was woken, and has not taken the requests since.
    woken: bool,
    closed: bool,
    /// Threads that wait for [`Shared::changed`].
    waiting: usize,
}

/// Why a queue cannot be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The host was started without [`KIND`].
    #[error(transparent)]
    NoFrontend(#[from] NoFrontend),
    /// The core of the device does not answer.
    #[error("the core of the device does not answer")]
    Silent,
}

/// A queue that a core holds. When the core drops it, for any reason, the queue refuses further
/// requests, and the requests under way are answered.
pub(crate) struct Attached(pub(crate) Arc<Shared>);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The state that the caller's threads and the core's thread share.
pub(crate) struct Shared {
    pub(crate) device: DeviceId,
    pub(crate) submitter: Submitter,
    read_only: bool,
    /// The properties of the device. Only the core changes them.
    info: Mutex<Info>,
    bounds: Bounds,
    mailer: FrontendMailer,
    state: Mutex<State>,
    /// There is more room, the core dropped the queue, or a receiver has finished with its answer.
    changed: Condvar,
}

/// A queue of requests to one device. Any number of threads may use it. A device may have several
/// queues. Dropping the queue closes it.
pub struct Queue {
    shared: Arc<Shared>,
    handle: Handle,
    frontend: FrontendId,
}

impl Queue {
    /// Makes a queue for a device of a running host. `info` describes the device.
    ///
    /// # Errors
    /// The host was started without [`KIND`], or the core of the device does not answer.
    pub fn attach(
        handle: &Handle,
        device: DeviceId,
        info: Info,
        bounds: Bounds,
    ) -> Result<Self, AttachError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let frontend = handle.frontend(KIND.name)?;
        let place = NEXT.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared {
            device,
            submitter: Submitter { place, generation: 0 },
            read_only: info.read_only,
            info: Mutex::new(info),
            bounds,
            mailer: handle.frontend_mailer(frontend, device),
            state: Mutex::new(State {
                pending: Vec::new(),
                entries: Slab::new(),
                held_bytes: 0,
                undelivered: 0,
                woken: false,
                closed: false,
                waiting: 0,
            }),
            changed: Condvar::new(),
        });
        let mail = Mail::Attach(Attached(Arc::clone(&shared)));
        if !handle.mail_frontend_of(frontend, device, Box::new(mail)) {
            return Err(AttachError::Silent);
        }
        Ok(Self { shared, handle: handle.clone(), frontend })
    }

    /// The present properties of the device. They may change, for example when another client or
    /// `fieldstone volume grow` changes the size. After the core has dropped the queue, these are
    /// the last ones that it knew.
    #[must_use]
    pub fn info(&self) -> Info {
        self.shared.info.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The present size of the device in bytes: see [`Queue::info`]. The device checks each request
    /// against its size at that time.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.info().size_bytes
    }

    /// Submits a request, and returns at once. If the request is accepted, `on_complete` gets
    /// exactly one answer. The only exception is a read into the caller's memory that the kernel
    /// never gives back, because the disk is dead: it has no answer, also after the core has ended.
    ///
    /// # Errors
    /// The request is refused: the queue is full or closed, the receiver has no place for the
    /// answer, the request is too long, or it would change a device that was opened read-only. The
    /// device reports its own refusals in the answer, for example of a range past its end.
    pub fn submit(&self, operation: Operation, on_complete: OnComplete) -> Result<(), Error> {
        let held_bytes = operation.held_bytes();
        let (request, read_into) = operation.request()?;
        self.shared.submit(request, Entry { on_complete, held_bytes, read_into })
    }

    /// Submits requests, as [`Queue::submit`] does one after the other, but wakes the core once for
    /// all of them. Takes the accepted requests out of `batch`.
    ///
    /// # Errors
    /// The first request that is left in `batch` is refused; see [`Queue::submit`] for the reasons.
    pub fn submit_batch(&self, batch: &mut Vec<(Operation, OnComplete)>) -> Result<(), Error> {
        self.shared.submit_batch(batch)
    }

    /// Waits until the queue has room for a request that counts for `len_bytes`
    /// ([`Operation::held_bytes`]), at most for `timeout`; for ever with [`Duration::MAX`]. Another
    /// thread may take the room before the caller submits. This does not wait for a place in a
    /// [`CompletionQueue`](crate::CompletionQueue): see [`Error::NoPlace`].
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room in time. [`Error::Closed`] if the queue is closed.
    /// [`Error::OnCore`] if the caller is a [`Complete`](crate::Complete).
    pub fn wait_for_room(&self, len_bytes: usize, timeout: Duration) -> Result<(), Error> {
        // A timeout that no clock can reach is no deadline.
        self.shared.wait(Instant::now().checked_add(timeout), |shared, state| {
            if state.closed { Some(Err(Error::Closed)) } else { shared.room(state, len_bytes) }
        })
    }

    /// Refuses further requests, and waits until the receivers have finished with all answers. Does
    /// not flush. Never returns if a disk never answers.
    ///
    /// # Errors
    /// [`Error::OnCore`] if the caller is a [`Complete`](crate::Complete). Then nothing has
    /// changed.
    pub fn close(&self) -> Result<(), Error> {
        if is_in_callback() {
            return Err(Error::OnCore);
        }
        self.shared.lock().closed = true;
        self.shared.wait(None, |_, state| (state.undelivered == 0).then_some(Ok(())))?;
        let mail = Mail::Detach(self.shared.submitter.place);
        self.handle.mail_frontend_of(self.frontend, self.shared.device, Box::new(mail));
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.close().is_err() {
            // A callback drops the queue, and must not wait here. The requests under way are still
            // answered.
            self.shared.lock().closed = true;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock can panic with the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Some(Ok)` if there is room for one more request that counts for `len_bytes`.
    fn room(&self, state: &State, len_bytes: usize) -> Option<Result<(), Error>> {
        let fits = state.entries.is_empty() || state.held_bytes + len_bytes <= self.bounds.bytes;
        (fits && state.entries.len() < self.bounds.requests.max(1)).then_some(Ok(()))
    }

    fn submit(&self, request: Request, entry: Entry) -> Result<(), Error> {
        let mut state = self.lock();
        let put = self.put(&mut state, request, entry);
        drop(state);
        put.map(drop)
    }

    fn submit_batch(&self, batch: &mut Vec<(Operation, OnComplete)>) -> Result<(), Error> {
        let mut state = self.lock();
        let mut accepted = 0;
        // Only the first request wakes the core: after this thread has released the lock.
        let mut wake_up = None;
        let result = batch.iter().try_for_each(|(operation, on_complete)| {
            let held_bytes = operation.held_bytes();
            let (request, read_into) = operation.clone().request()?;
            let on_complete = on_complete.clone();
            let put =
                self.put(&mut state, request, Entry { on_complete, held_bytes, read_into })?;
            wake_up = wake_up.take().or(put);
            accepted += 1;
            Ok(())
        });
        drop(state);
        drop(wake_up);
        batch.drain(..accepted);
        result
    }

    /// Puts a request into the queue. The caller drops the [`WakeUp`] after it has released the
    /// lock: the core takes the lock as soon as it is awake.
    fn put(
        &self,
        state: &mut State,
        mut request: Request,
        entry: Entry,
    ) -> Result<Option<WakeUp<'_>>, Error> {
        let held_bytes = entry.held_bytes;
        if self.read_only && request.op.changes_data() {
            return Err(BlockError::ReadOnly.into());
        }
        if state.closed {
            return Err(Error::Closed);
        }
        self.room(state, held_bytes).ok_or(Error::Full)??;
        let mut wake_up = None;
        if !state.woken {
            let first = self.mailer.wake(self.submitter.place).map_err(|error| match error {
                WakeError::Full => Error::Full,
                WakeError::Gone => Error::Closed,
            })?;
            wake_up = Some(first);
            state.woken = true;
        }
        if !entry.on_complete.to.reserve() {
            return Err(Error::NoPlace);
        }
        request.id = RequestId(state.entries.insert(entry) as u64);
        state.held_bytes += held_bytes;
        state.undelivered += 1;
        state.pending.push(request);
        Ok(wake_up)
    }

    /// Waits until `is_so` returns a result. Returns [`Error::Full`] after the deadline.
    fn wait(
        &self,
        deadline: Option<Instant>,
        is_so: impl Fn(&Self, &State) -> Option<Result<(), Error>>,
    ) -> Result<(), Error> {
        if is_in_callback() {
            return Err(Error::OnCore);
        }
        let mut state = self.lock();
        loop {
            if let Some(result) = is_so(self, &state) {
                return result;
            }
            state.waiting += 1;
            state = match deadline {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let rest = deadline.saturating_duration_since(Instant::now());
                    if rest.is_zero() {
                        state.waiting -= 1;
                        return Err(Error::Full);
                    }
                    let waited = self.changed.wait_timeout(state, rest);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.waiting -= 1;
        }
    }

    /// Releases the lock, and then wakes the threads that wait for it.
    fn release(&self, state: MutexGuard<'_, State>) {
        let any_waits = state.waiting > 0;
        drop(state);
        if any_waits {
            self.changed.notify_all();
        }
    }

    /// The core knows the present properties of the device.
    pub(crate) fn set_info(&self, info: &Info) {
        let read_only = info.read_only || self.read_only;
        let mut present = self.info.lock().unwrap_or_else(PoisonError::into_inner);
        *present = Info { read_only, ..info.clone() };
    }

    /// The core takes the pending requests.
    pub(crate) fn take(&self, into: &mut Vec<Request>) {
        let mut state = self.lock();
        state.woken = false;
        into.append(&mut state.pending);
    }

    /// The core has answers to requests.
    pub(crate) fn answer(self: &Arc<Self>, completions: impl Iterator<Item = Completion>) {
        let mut state = self.lock();
        let mut answered: SmallVec<[_; 8]> = SmallVec::new();
        for completion in completions {
            let Ok(key) = usize::try_from(completion.id.0) else { continue };
            let Some(entry) = state.entries.try_remove(key) else { continue };
            state.held_bytes -= entry.held_bytes;
            answered.push((entry, completion.result.map_err(Error::from)));
        }
        self.release(state);
        self.deliver(answered);
    }

    /// Passes answers to their receivers: at once, or when the device no longer uses the caller's
    /// memory.
    fn deliver(
        self: &Arc<Self>,
        answered: impl IntoIterator<Item = (Entry, Result<Payload, Error>)>,
    ) {
        let mut receivers: SmallVec<[Arc<dyn Complete>; 2]> = SmallVec::new();
        let mut delivered = 0;
        for (Entry { on_complete, read_into, .. }, result) in answered {
            let Some(read_into) = read_into else {
                let receiver = &on_complete.to;
                if !receivers.last().is_some_and(|last| Arc::ptr_eq(last, receiver)) {
                    receivers.push(Arc::clone(receiver));
                }
                complete(on_complete, result.map(Data::of));
                delivered += 1;
                continue;
            };
            let shared = Arc::clone(self);
            let report = move |answer: Answer| {
                let receiver = Arc::clone(&on_complete.to);
                complete(on_complete, answer);
                end_batch(receiver);
                shared.delivered(1);
            };
            read_into.answer(result, Box::new(report));
        }
        receivers.into_iter().for_each(end_batch);
        if delivered > 0 {
            self.delivered(delivered);
        }
    }

    fn delivered(&self, count: usize) {
        let mut state = self.lock();
        state.undelivered -= count;
        self.release(state);
    }

    /// The core drops the queue: answers the requests under way with [`Error::Closed`].
    fn end(self: &Arc<Self>) {
        let mut state = self.lock();
        state.closed = true;
        let pending = std::mem::take(&mut state.pending);
        state.held_bytes = 0;
        let entries = std::mem::take(&mut state.entries);
        self.release(state);
        // Memory of the caller may have code of its own that runs when it is dropped.
        drop(pending);
        self.deliver(entries.into_iter().map(|(_, entry)| (entry, Err(Error::Closed))));
    }
}
