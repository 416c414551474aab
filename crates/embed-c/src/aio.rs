//! Requests under way, and who is told: a callback, or the completion queue.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fieldstone_embed::{Answer, Complete, CompletionQueue, Data, Then};
use slab::Slab;

use crate::memory::Buffers;
use crate::status::Status;

/// `fieldstone_block_callback` of the header.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void, c_int);

/// Who is told of an answer.
pub(crate) struct Told {
    /// The completion queue if `None`.
    pub(crate) callback: Option<Callback>,
    pub(crate) arg: *mut c_void,
}

// SAFETY: the library only hands the pointer back. The header says on which thread callbacks run.
unsafe impl Send for Told {}

struct Request {
    told: Told,
    /// What is read goes here.
    buffers: Buffers,
}

/// The requests of a device that are under way.
struct Requests(Mutex<Slab<Request>>);

impl Requests {
    fn lock(&self) -> MutexGuard<'_, Slab<Request>> {
        // Nothing that runs under the lock can leave the table half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what was read, and brings who is told of what.
    fn finish(&self, tag: u64, answer: &Answer) -> Option<(Told, Status)> {
        let request = self.lock().try_remove(usize::try_from(tag).ok()?)?;
        let status = match answer {
            Ok(data) => {
                // SAFETY: the header asks for the buffers until the answer is told.
                unsafe { request.buffers.scatter(data) };
                Status::Ok
            }
            Err(error) => Status::of(error),
        };
        Some((request.told, status))
    }
}

/// Tells callbacks.
struct Calls(Arc<Requests>);

impl Complete for Calls {
    fn complete(&self, tag: u64, answer: Answer) {
        if let Some((told, status)) = self.0.finish(tag, &answer)
            && let Some(callback) = told.callback
        {
            // SAFETY: the caller gave this function for this argument.
            unsafe { callback(told.arg, status as c_int) };
        }
    }
}

/// Puts answers into the completion queue. Their tags are the arguments.
struct Polled(Arc<Requests>, Arc<CompletionQueue>);

impl Complete for Polled {
    fn reserve(&self) -> bool {
        self.1.reserve()
    }

    fn complete(&self, tag: u64, answer: Answer) {
        if let Some((told, _)) = self.0.finish(tag, &answer) {
            // The data is where it belongs.
            self.1.complete(told.arg.expose_provenance() as u64, answer.map(|_| Data::default()));
        }
    }
}

/// The asynchronous side of a device.
pub(crate) struct Aio {
    requests: Arc<Requests>,
    calls: Arc<dyn Complete>,
    polled: Arc<dyn Complete>,
    pub(crate) completions: Arc<CompletionQueue>,
}

impl Aio {
    pub(crate) fn new(completions: Arc<CompletionQueue>) -> Self {
        let requests = Arc::new(Requests(Mutex::default()));
        let calls = Arc::new(Calls(Arc::clone(&requests)));
        let polled = Arc::new(Polled(Arc::clone(&requests), Arc::clone(&completions)));
        Self { requests, calls, polled, completions }
    }

    /// Notes a request, and hands it over by `submit`. One that is not taken is forgotten.
    pub(crate) fn submit<E>(
        &self,
        told: Told,
        buffers: Buffers,
        submit: impl FnOnce(Then) -> Result<(), E>,
    ) -> Result<(), E> {
        let to = if told.callback.is_some() { &self.calls } else { &self.polled };
        let key = self.requests.lock().insert(Request { told, buffers });
        submit(Then::new(Arc::clone(to), key as u64)).inspect_err(|_| {
            self.requests.lock().try_remove(key);
        })
    }
}
