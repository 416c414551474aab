//! What a request comes to, and who is told.

use std::cell::Cell;
use std::io::IoSliceMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use fieldstone_block::{BlockError, Payload, Piece};
use smallvec::SmallVec;

/// Why a request was not taken, or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// As many requests, or bytes, are under way as the queue or the completion queue allows.
    #[error("the queue is full")]
    Full,
    /// The queue was closed, or its host has ended.
    #[error("the device is closed")]
    Closed,
    /// The request is longer than a request may be.
    #[error("{len_bytes} bytes are more than a request may have: {max_bytes}")]
    TooLong {
        /// The length asked for.
        len_bytes: u64,
        /// The longest that is taken.
        max_bytes: u64,
    },
    /// A call that waits was made by a [`Complete`], on the thread that it would wait for.
    #[error("a callback must not wait for its own device")]
    OnCore,
    /// The device refuses the request, or failed at it.
    #[error(transparent)]
    Device(#[from] BlockError),
}

/// The answer to a request. Only reads bring data.
pub type Answer = Result<Data, Error>;

/// What was read: pieces in the order of the device, which no one has copied yet.
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

    /// All bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len_bytes() as usize).sum()
    }

    /// Copies the bytes to the buffers, one after the other, until either ends. Returns how many
    /// were copied.
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

/// Takes answers, on the core's thread. It must not block; it may submit.
pub trait Complete: Send + Sync {
    /// Sets a place for one more answer aside. False if there is none: then the request is not
    /// taken ([`Error::Full`]).
    fn reserve(&self) -> bool {
        true
    }

    /// The request that was submitted with this `tag` is answered.
    fn complete(&self, tag: u64, answer: Answer);
}

/// Who is told of a request's answer.
#[derive(Clone)]
pub struct Then {
    pub(crate) to: Arc<dyn Complete>,
    pub(crate) tag: u64,
}

impl Then {
    /// Calls `to` with this `tag`. Costs no allocation.
    #[must_use]
    pub fn new(to: Arc<dyn Complete>, tag: u64) -> Self {
        Self { to, tag }
    }

    /// Calls a closure, on the core's thread. Costs an allocation.
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

/// Whether this thread is a core that tells an answer: then calls that wait are refused.
#[must_use]
pub fn is_in_callback() -> bool {
    ON_CORE.get()
}

/// Tells an answer. A panic of the caller's code does not end the core. What the caller gave may be
/// the last owner of the device, so it is dropped here, where closing does not wait.
pub(crate) fn tell(then: Then, answer: Answer) {
    let before = ON_CORE.replace(true);
    let tell = move || {
        then.to.complete(then.tag, answer);
        drop(then);
    };
    // What the closure leaves half done is the caller's; nothing of ours is in its hands.
    let told = catch_unwind(AssertUnwindSafe(tell));
    ON_CORE.set(before);
    if told.is_err() {
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
