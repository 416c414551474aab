//! The answer to a request, and the receiver of the answer.

use std::cell::Cell;
use std::io::IoSliceMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use fieldstone_block::{BlockError, Payload, Piece};
use smallvec::SmallVec;

/// Why a request was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The queue is at its bound of requests or bytes: [`Queue::wait_for_room`] waits for room. Or,
    /// seldom, the core has too much mail although the queue has room: try again after a pause.
    ///
    /// [`Queue::wait_for_room`]: crate::Queue::wait_for_room
    #[error("the queue is full")]
    Full,
    /// The receiver has no place for the answer ([`Complete::reserve`]): the [`CompletionQueue`] is
    /// full. Take answers, and try again. Waiting for room in the queue does not help.
    ///
    /// [`CompletionQueue`]: crate::CompletionQueue
    #[error("there is no place for the answer: take earlier answers first")]
    NoPlace,
    /// The queue is closed, or its host has ended.
    #[error("the device is closed")]
    Closed,
    /// The request is longer than the limit.
    #[error("{len_bytes} bytes are more than a request may have: {max_bytes}")]
    TooLong {
        /// The length of the request.
        len_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// A [`Complete`] called a function that waits. It runs on the thread for which the function
    /// waits.
    #[error("a callback must not wait for its own device")]
    OnCore,
    /// The device refused the request, or the request failed.
    #[error(transparent)]
    Device(#[from] BlockError),
}

/// The answer to a request. Only the answer to a read has data. The answer to a read into the
/// caller's memory has none if the bytes are there already.
pub type Answer = Result<Data, Error>;

/// The data of a read: pieces in the order of the device. [`Data::scatter`] copies them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data {
    pieces: SmallVec<[Piece; 1]>,
}

impl Data {
    pub(crate) fn of(payload: Payload) -> Self {
        match payload {
            Payload::Data(pieces) => Self { pieces },
            Payload::None | Payload::Extents(_) => Self::default(),
        }
    }

    /// The pieces.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The number of bytes in all pieces.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len_bytes() as usize).sum()
    }

    /// Copies the bytes to the buffers, one buffer after the other, until the bytes or the buffers
    /// end. Returns the number of bytes copied.
    pub fn scatter(&self, buffers: &mut [IoSliceMut<'_>]) -> usize {
        let mut room = buffers.iter_mut().map(|buffer| &mut buffer[..]);
        let mut to: &mut [u8] = &mut [];
        let mut copied = 0;
        for piece in &self.pieces {
            let mut from = 0;
            while from < piece.len_bytes() as usize {
                if to.is_empty() {
                    match room.next() {
                        Some(next) => to = next,
                        None => return copied,
                    }
                    continue;
                }
                let len = to.len().min(piece.len_bytes() as usize - from);
                let (now, rest) = to.split_at_mut(len);
                match piece {
                    Piece::Data(data) => now.copy_from_slice(&data[from..from + len]),
                    Piece::Zeroes(_) => now.fill(0),
                }
                to = rest;
                from += len;
                copied += len;
            }
        }
        copied
    }
}

/// Receives answers.
pub trait Complete: Send + Sync {
    /// Reserves a place for one more answer. False if there is no place: then the request is
    /// refused with [`Error::NoPlace`]. The submitting thread calls this under the lock of the
    /// queue, so this must not use the queue.
    fn reserve(&self) -> bool {
        true
    }

    /// The request that was submitted with this `tag` has its answer. The core's thread calls this.
    /// Only the answer to a read into the caller's memory may come on another thread: the one that
    /// drops the last use of that memory. `complete` must not block, but it may submit.
    fn complete(&self, tag: u64, answer: Answer);

    /// One or more answers have come by [`Complete::complete`], and no more come in this turn of
    /// the core. A receiver that wakes a thread does it here: once for all answers of the turn. A
    /// receiver that passes answers to another one passes this on, too. The rules of `complete`
    /// hold.
    fn end_of_batch(&self) {}
}

/// The receiver of a request's answer.
#[derive(Clone)]
pub struct OnComplete {
    pub(crate) to: Arc<dyn Complete>,
    pub(crate) tag: u64,
}

impl OnComplete {
    /// `to` receives the answer, with this `tag`. Allocates nothing.
    #[must_use]
    pub fn new(to: Arc<dyn Complete>, tag: u64) -> Self {
        Self { to, tag }
    }

    /// The core's thread calls the closure with the answer. Allocates memory.
    #[must_use]
    pub fn call(call: impl FnOnce(Answer) + Send + 'static) -> Self {
        Self { to: Arc::new(Call(Mutex::new(Some(call)))), tag: 0 }
    }
}

struct Call<F>(Mutex<Option<F>>);

impl<F: FnOnce(Answer) + Send> Complete for Call<F> {
    fn complete(&self, _: u64, answer: Answer) {
        let call = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(call) = call {
            call(answer);
        }
    }
}

thread_local! {
    static ON_CORE: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread is a core that is passing an answer to its receiver. Calls that wait are
/// refused then.
#[must_use]
pub fn is_in_callback() -> bool {
    ON_CORE.get()
}

/// Passes an answer to its receiver. A panic of the receiver does not end the core. The receiver
/// may be the last owner of the device. So it is dropped here, where closing the device does not
/// wait.
pub(crate) fn complete(on_complete: OnComplete, answer: Answer) {
    call_receiver(move || {
        on_complete.to.complete(on_complete.tag, answer);
        drop(on_complete);
    });
}

/// Tells a receiver that it has all answers of this turn, as [`complete`] passes an answer.
pub(crate) fn end_batch(receiver: Arc<dyn Complete>) {
    call_receiver(move || {
        receiver.end_of_batch();
        drop(receiver);
    });
}

fn call_receiver(call: impl FnOnce()) {
    let before = ON_CORE.replace(true);
    // The closure holds only values of the caller, so a panic leaves nothing of this crate half
    // changed.
    let called = catch_unwind(AssertUnwindSafe(call));
    ON_CORE.set(before);
    if called.is_err() {
        tracing::error!("a callback of an embedded device panicked");
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn pieces_are_scattered_over_buffers_of_any_length() {
        let pieces = [Piece::Data(Bytes::from_static(b"abcdef")), Piece::Zeroes(3)];
        let tail = Piece::Data(Bytes::from_static(b"xyz"));
        let data = Data { pieces: pieces.into_iter().chain([tail]).collect() };
        assert_eq!(data.len_bytes(), 12);
        for cut in 0..=12 {
            let mut all = [7u8; 14];
            let (head, rest) = all.split_at_mut(cut);
            let mut none = [];
            let mut buffers =
                [IoSliceMut::new(head), IoSliceMut::new(&mut none), IoSliceMut::new(rest)];
            assert_eq!(data.scatter(&mut buffers), 12);
            assert_eq!(&all, b"abcdef\0\0\0xyz\x07\x07", "{cut}");
        }
        let mut short = [7u8; 8];
        assert_eq!(data.scatter(&mut [IoSliceMut::new(&mut short)]), 8);
        assert_eq!(&short, b"abcdef\0\0");
    }
}
