//! Requests under way, and the receivers of their answers: callbacks, or the completion queue.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fieldstone_embed::{Answer, Complete, CompletionQueue, Data, OnComplete};
use slab::Slab;

use crate::memory::Buffers;
use crate::status::Status;

/// `fieldstone_block_callback` of the header.
pub(crate) type Callback = unsafe extern "C" fn(*mut c_void, c_int);

/// The receiver of an answer.
pub(crate) struct Told {
    /// `None` stands for the completion queue.
    pub(crate) callback: Option<Callback>,
    pub(crate) arg: *mut c_void,
}

// SAFETY: the library does not use the memory at `arg`. The header says on which thread callbacks
// run.
unsafe impl Send for Told {}

struct Request {
    told: Told,
    /// The data of a read goes here.
    buffers: Buffers,
}

/// The requests of a device that are under way.
struct Requests(Mutex<Slab<Request>>);

impl Requests {
    fn lock(&self) -> MutexGuard<'_, Slab<Request>> {
        // No code under the lock can panic with the table half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the data of a read into the caller's buffers. Returns the receiver and the status.
    fn finish(&self, tag: u64, answer: &Answer) -> Option<(Told, Status)> {
        let request = self.lock().try_remove(usize::try_from(tag).ok()?)?;
        let status = match answer {
            Ok(data) => {
                // SAFETY: the header demands that the buffers live until the answer is reported.
                unsafe { request.buffers.scatter(data) };
                Status::Ok
            }
            Err(error) => Status::of(error),
        };
        Some((request.told, status))
    }
}

/// Calls the callbacks.
struct Calls(Arc<Requests>);

impl Complete for Calls {
    fn complete(&self, tag: u64, answer: Answer) {
        if let Some((told, status)) = self.0.finish(tag, &answer)
            && let Some(callback) = told.callback
        {
            // SAFETY: the caller passed this callback for this argument.
            unsafe { callback(told.arg, status as c_int) };
        }
    }
}

/// Puts answers into the completion queue. The tag of an answer is the address in `arg`.
struct Polled(Arc<Requests>, Arc<CompletionQueue>);

impl Complete for Polled {
    fn reserve(&self) -> bool {
        self.1.reserve()
    }

    fn complete(&self, tag: u64, answer: Answer) {
        if let Some((told, _)) = self.0.finish(tag, &answer) {
            // `finish` has copied the data already.
            self.1.complete(told.arg.expose_provenance() as u64, answer.map(|_| Data::default()));
        }
    }

    fn end_of_batch(&self) {
        self.1.end_of_batch();
    }
}

/// The asynchronous requests of a device.
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

    /// Adds a request to the table, and passes it to `submit`. If `submit` refuses it, removes it
    /// again.
    pub(crate) fn submit<E>(
        &self,
        told: Told,
        buffers: Buffers,
        submit: impl FnOnce(OnComplete) -> Result<(), E>,
    ) -> Result<(), E> {
        let to = if told.callback.is_some() { &self.calls } else { &self.polled };
        let key = self.requests.lock().insert(Request { told, buffers });
        submit(OnComplete::new(Arc::clone(to), key as u64)).inspect_err(|_| {
            self.requests.lock().try_remove(key);
        })
    }
}
