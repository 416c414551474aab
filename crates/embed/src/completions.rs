//! A completion queue: answers wait in it until a thread of the caller's takes them.
//!
//! Its eventfd is readable while answers wait. [`CompletionQueue::take`] clears it, so an event
//! loop polls the descriptor, level-triggered or edge-triggered, and calls `take`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::answer::{Answer, Complete, Then};

/// A request that was answered.
#[derive(Debug)]
pub struct Done {
    /// What was given to [`CompletionQueue::then`].
    pub tag: u64,
    /// The answer.
    pub answer: Answer,
}

/// Answers that wait to be taken, and the places of those to come.
pub struct CompletionQueue {
    state: Mutex<State>,
    filled: Condvar,
    eventfd: OwnedFd,
    capacity: usize,
}

struct State {
    done: VecDeque<Done>,
    /// Places of `done` that are taken or spoken for.
    reserved: usize,
}

impl CompletionQueue {
    /// A queue for `capacity` requests, under way or answered and not yet taken. A request that
    /// finds no place is refused with [`Error::Full`](crate::Error::Full). The answer to a read
    /// holds its data, so `capacity` bounds that memory too.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new(capacity: usize) -> io::Result<Arc<Self>> {
        // SAFETY: eventfd() takes no pointers.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let eventfd = unsafe { OwnedFd::from_raw_fd(raw) };
        let state = Mutex::new(State { done: VecDeque::new(), reserved: 0 });
        Ok(Arc::new(Self { state, filled: Condvar::new(), eventfd, capacity }))
    }

    /// Has an answer put into this queue, with `tag`.
    #[must_use]
    pub fn then(self: &Arc<Self>, tag: u64) -> Then {
        let to: Arc<dyn Complete> = Arc::<Self>::clone(self);
        Then::new(to, tag)
    }

    /// Moves up to `max` answers to the end of `out`. Returns how many; does not wait.
    pub fn take(&self, max: usize, out: &mut Vec<Done>) -> usize {
        self.take_from(&mut self.lock(), max, out)
    }

    /// As [`CompletionQueue::take`], and waits up to `patience` until there is one.
    pub fn wait(&self, patience: Duration, max: usize, out: &mut Vec<Done>) -> usize {
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        while state.done.is_empty() {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return 0;
            }
            let waited = self.filled.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.take_from(&mut state, max, out)
    }

    fn take_from(&self, state: &mut State, max: usize, out: &mut Vec<Done>) -> usize {
        let count = state.done.len().min(max);
        out.extend(state.done.drain(..count));
        state.reserved -= count;
        if count > 0 && state.done.is_empty() {
            let mut sum = [0u8; 8];
            // It is readable: whoever made the queue non-empty wrote to it, under the lock.
            // SAFETY: `sum` is eight writable bytes.
            unsafe { libc::read(self.eventfd.as_raw_fd(), sum.as_mut_ptr().cast(), sum.len()) };
        }
        count
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that runs under the lock can leave the queue half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for CompletionQueue {
    /// The eventfd. Only to be polled.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

impl Complete for CompletionQueue {
    fn reserve(&self) -> bool {
        let mut state = self.lock();
        let there_is_room = state.reserved < self.capacity;
        state.reserved += usize::from(there_is_room);
        there_is_room
    }

    fn complete(&self, tag: u64, answer: Answer) {
        let mut state = self.lock();
        let was_empty = state.done.is_empty();
        state.done.push_back(Done { tag, answer });
        if was_empty {
            let one = 1u64.to_ne_bytes();
            // The sum is zero before, so the write cannot be refused.
            // SAFETY: `one` is eight readable bytes.
            unsafe { libc::write(self.eventfd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
        drop(state);
        self.filled.notify_one();
    }
}
