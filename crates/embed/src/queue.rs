//! A queue of requests to one device: what the caller's threads and the core's thread share.
//!
//! A submitter takes a short lock, checks the bounds, names the request and leaves it here. The
//! first one after the core has looked wakes the core; later ones find it woken. So a burst costs
//! one message.
//!
//! A request holds its room until its answer is about to be told. So a callback finds room for the
//! next request, and no more is under way than the bounds allow.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_block::{
    BlockError, Completion, Info, Op, Request, RequestFlags, RequestId, Stamps,
};
use fieldstone_host::{
    DeviceId, FrontendId, FrontendMailer, Handle, NoFrontend, Submitter, WakeError,
};
use slab::Slab;

use crate::answer::{Data, Error, Then, is_in_callback, tell};
use crate::frontend::{KIND, Mail};

/// The longest read or write.
pub const REQUEST_BYTES_MAX: usize = 32 << 20;
/// The longest discard or write of zeroes.
pub const DISCARD_BYTES_MAX: u64 = 2 << 30;

/// What a queue may hold, under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Requests.
    pub requests: usize,
    /// Bytes that are read and written. A single request may exceed it if it is alone.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { requests: 256, bytes: 64 << 20 }
    }
}

/// What a request asks for. Offsets and lengths are in bytes, of any alignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read.
    Read {
        /// First byte.
        offset_bytes: u64,
        /// How many; [`REQUEST_BYTES_MAX`] at most.
        len_bytes: usize,
    },
    /// Write. The bytes are not copied; the device may keep them for longer than the request.
    Write {
        /// First byte.
        offset_bytes: u64,
        /// What; [`REQUEST_BYTES_MAX`] at most.
        data: Bytes,
        /// Answered only when the bytes are on stable storage.
        fua: bool,
    },
    /// Make every write stable that was answered before.
    Flush,
    /// Forget the content: whole blocks of the range read as zeroes afterwards.
    Discard {
        /// First byte.
        offset_bytes: u64,
        /// How many; [`DISCARD_BYTES_MAX`] at most.
        len_bytes: u64,
    },
    /// Every byte of the range reads as zero afterwards.
    WriteZeroes {
        /// First byte.
        offset_bytes: u64,
        /// How many; [`DISCARD_BYTES_MAX`] at most.
        len_bytes: u64,
        /// The space stays allocated.
        no_hole: bool,
        /// Answered only when the zeroes are on stable storage.
        fua: bool,
    },
}

impl Operation {
    /// What it counts for against [`Bounds::bytes`].
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Read { len_bytes, .. } => *len_bytes,
            Self::Write { data, .. } => data.len(),
            Self::Flush | Self::Discard { .. } | Self::WriteZeroes { .. } => 0,
        }
    }

    /// The request. Its name is not known yet.
    fn request(self) -> Result<Request, Error> {
        let read_max = REQUEST_BYTES_MAX as u64;
        let mut flags = RequestFlags::default();
        let mut data = Bytes::new();
        let (op, offset_bytes, len_bytes, max_bytes) = match self {
            Self::Read { offset_bytes, len_bytes } => {
                (Op::Read, offset_bytes, len_bytes as u64, read_max)
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
        Ok(Request { id, op, offset_bytes, len_bytes, flags, data, queue, stamps })
    }
}

/// A request under way.
struct Entry {
    then: Then,
    held_bytes: usize,
}

struct State {
    /// Those that the core has not taken yet.
    pending: Vec<Request>,
    /// All that are under way; their keys are their names.
    entries: Slab<Entry>,
    held_bytes: usize,
    /// Those whose answers have not been told to the end.
    untold: usize,
    /// The core was woken since it last looked.
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

/// A queue in the hands of a core. When the core lets go of it, however that comes about, nothing
/// is taken any more, and what is under way is answered.
pub(crate) struct Attached(pub(crate) Arc<Shared>);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What the caller's threads and the core's thread share.
pub(crate) struct Shared {
    pub(crate) device: DeviceId,
    pub(crate) submitter: Submitter,
    read_only: bool,
    bounds: Bounds,
    mailer: FrontendMailer,
    state: Mutex<State>,
    /// There is room, or everything is told.
    changed: Condvar,
}

/// Requests to one device. Any number of threads may use one; a program may have several of the
/// same device. Dropping it closes it.
pub struct Queue {
    shared: Arc<Shared>,
    handle: Handle,
    frontend: FrontendId,
    info: Info,
}

impl Queue {
    /// A queue for a device of a running host, which `info` describes. The host was started with
    /// [`KIND`] among its front-ends.
    ///
    /// # Errors
    /// The host has no such front-end, or its core hangs.
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
            bounds,
            mailer: handle.frontend_mailer(frontend, device),
            state: Mutex::new(State {
                pending: Vec::new(),
                entries: Slab::new(),
                held_bytes: 0,
                untold: 0,
                woken: false,
                closed: false,
                waiting: 0,
            }),
            changed: Condvar::new(),
        });
        let mail = Mail::Attach(Attached(Arc::clone(&shared)));
        if !handle.tell_frontend_of(frontend, device, Box::new(mail)) {
            return Err(AttachError::Silent);
        }
        Ok(Self { shared, handle: handle.clone(), frontend, info })
    }

    /// What the device was when the queue was attached.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The size of the device, when the queue was attached.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.info.size_bytes
    }

    /// Hands a request over, and returns at once. If it is taken, the answer is told exactly once.
    ///
    /// # Errors
    /// The request is not taken: the queue is full or closed, the request is too long, or it would
    /// change what was opened read-only. What the device refuses, such as a range past its end,
    /// comes as an answer.
    pub fn submit(&self, operation: Operation, then: Then) -> Result<(), Error> {
        let held_bytes = operation.held_bytes();
        self.shared.submit(operation.request()?, held_bytes, then)
    }

    /// Waits until `submit` of a request of `len_bytes` ([`Operation::held_bytes`]) does not find
    /// the queue full, or until `patience` is over. Another thread may be faster.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no room in time; the queue is closed; or the caller is a
    /// [`Complete`](crate::Complete).
    pub fn wait_for_room(&self, len_bytes: usize, patience: Duration) -> Result<(), Error> {
        self.shared.wait(Some(Instant::now() + patience), |shared, state| {
            if state.closed { Some(Err(Error::Closed)) } else { shared.room(state, len_bytes) }
        })
    }

    /// Refuses requests from now on, and waits until all are answered and told. Nothing is flushed.
    ///
    /// # Errors
    /// The caller is a [`Complete`](crate::Complete): then nothing has changed.
    pub fn close(&self) -> Result<(), Error> {
        if is_in_callback() {
            return Err(Error::OnCore);
        }
        self.shared.lock().closed = true;
        self.shared.wait(None, |_, state| (state.untold == 0).then_some(Ok(())))?;
        let mail = Mail::Detach(self.shared.submitter.place);
        self.handle.tell_frontend_of(self.frontend, self.shared.device, Box::new(mail));
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.close().is_err() {
            // A callback drops it: no one may wait here. What is under way is still answered.
            self.shared.lock().closed = true;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that runs under the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Some(Ok)` if there is room for one more request of this length.
    fn room(&self, state: &State, len_bytes: usize) -> Option<Result<(), Error>> {
        let fits = state.entries.is_empty() || state.held_bytes + len_bytes <= self.bounds.bytes;
        (fits && state.entries.len() < self.bounds.requests.max(1)).then_some(Ok(()))
    }

    fn submit(&self, mut request: Request, held_bytes: usize, then: Then) -> Result<(), Error> {
        if self.read_only && request.op.changes_data() {
            return Err(BlockError::ReadOnly.into());
        }
        let mut state = self.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        self.room(&state, held_bytes).ok_or(Error::Full)??;
        if !state.woken {
            // The core looks only after this lock is free again.
            self.mailer.wake(self.submitter.place).map_err(|error| match error {
                WakeError::Full => Error::Full,
                WakeError::Gone => Error::Closed,
            })?;
            state.woken = true;
        }
        if !then.to.reserve() {
            return Err(Error::Full);
        }
        request.id = RequestId(state.entries.insert(Entry { then, held_bytes }) as u64);
        state.held_bytes += held_bytes;
        state.untold += 1;
        state.pending.push(request);
        Ok(())
    }

    /// Waits until `is_so` gives something, or for [`Error::Full`] until the deadline.
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

    fn notify(&self, state: &State) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// The core takes what was submitted.
    pub(crate) fn take(&self, into: &mut Vec<Request>) {
        let mut state = self.lock();
        state.woken = false;
        into.append(&mut state.pending);
    }

    /// The core has an answer.
    pub(crate) fn answer(&self, completion: Completion) {
        let Ok(key) = usize::try_from(completion.id.0) else { return };
        let mut state = self.lock();
        let Some(entry) = state.entries.try_remove(key) else { return };
        state.held_bytes -= entry.held_bytes;
        self.notify(&state);
        drop(state);
        tell(entry.then, completion.result.map(Data::of).map_err(Error::from));
        self.told(1);
    }

    fn told(&self, count: usize) {
        let mut state = self.lock();
        state.untold -= count;
        self.notify(&state);
    }

    /// The core lets go: what is under way is answered here.
    fn end(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.pending.clear();
        state.held_bytes = 0;
        let entries = std::mem::take(&mut state.entries);
        self.notify(&state);
        drop(state);
        let count = entries.len();
        for (_, entry) in entries {
            tell(entry.then, Err(Error::Closed));
        }
        self.told(count);
    }
}
