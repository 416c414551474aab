//! A completion queue: it keeps answers until a thread of the caller takes them.
//!
//! Its eventfd is readable while the queue has answers. [`CompletionQueue::take`] resets the
//! eventfd when the queue becomes empty. So an event loop polls the descriptor, level-triggered or
//! edge-triggered. When the descriptor is readable, the loop calls `take` until the queue is empty.
//!
//! The core makes a system call only if a thread needs it: once for the answers of a turn if a
//! thread waits that was not woken before, and if the queue was empty and the caller uses the
//! descriptor. It wakes one thread. A thread that leaves answers in the queue wakes the next one,
//! so no thread sleeps beside an answer, however many the core makes at once.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::answer::{Answer, Complete, OnComplete};

/// A request that was answered.
#[derive(Debug)]
pub struct Done {
    /// The tag that [`CompletionQueue::on_complete`] got.
    pub tag: u64,
    /// The answer.
    pub answer: Answer,
}

/// Answers that no thread has taken, and reserved places for further answers.
pub struct CompletionQueue {
    state: Mutex<State>,
    filled: Condvar,
    eventfd: OwnedFd,
    capacity: usize,
}

struct State {
    done: VecDeque<Done>,
    /// Places in `done` that have an answer or are reserved for one.
    reserved: usize,
    /// Threads that wait, without those that an answer has woken.
    waiting: usize,
    /// Threads that an answer has woken, and that have not noticed yet.
    woken: usize,
    /// The caller has asked for the eventfd.
    polled: bool,
}

impl State {
    /// A thread has stopped to wait, whatever the reason.
    fn awake(&mut self) {
        if self.woken > 0 {
            self.woken -= 1;
        } else {
            self.waiting -= 1;
        }
    }
}

impl CompletionQueue {
    /// Makes a queue with places for `capacity` requests. A request has a place from its submission
    /// until a thread takes its answer. A request without a place is refused with
    /// [`Error::NoPlace`](crate::Error::NoPlace). The answer to a read holds its data, so
    /// `capacity` also bounds that memory.
    ///
    /// # Errors
    /// The system cannot make an eventfd: for example, the process has no descriptor left.
    pub fn new(capacity: usize) -> io::Result<Arc<Self>> {
        // SAFETY: eventfd() takes no pointers.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let eventfd = unsafe { OwnedFd::from_raw_fd(raw) };
        let done = VecDeque::new();
        let state = Mutex::new(State { done, reserved: 0, waiting: 0, woken: 0, polled: false });
        Ok(Arc::new(Self { state, filled: Condvar::new(), eventfd, capacity }))
    }

    /// The receiver that puts the answer into this queue, with `tag`.
    #[must_use]
    pub fn on_complete(self: &Arc<Self>, tag: u64) -> OnComplete {
        let to: Arc<dyn Complete> = Arc::<Self>::clone(self);
        OnComplete::new(to, tag)
    }

    /// Moves up to `max` answers to the end of `out`. Returns their number. Does not wait.
    pub fn take(&self, max: usize, out: &mut Vec<Done>) -> usize {
        self.take_from(self.lock(), max, out)
    }

    /// As [`CompletionQueue::take`], but waits up to `timeout` for the first answer; for ever with
    /// [`Duration::MAX`].
    pub fn wait(&self, timeout: Duration, max: usize, out: &mut Vec<Done>) -> usize {
        // A timeout that no clock can reach is no deadline.
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        while state.done.is_empty() {
            let rest = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if rest.is_some_and(|rest| rest.is_zero()) {
                return 0;
            }
            state.waiting += 1;
            state = match rest {
                Some(rest) => {
                    let waited = self.filled.wait_timeout(state, rest);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.awake();
        }
        self.take_from(state, max, out)
    }

    fn take_from(
        &self,
        mut state: MutexGuard<'_, State>,
        max: usize,
        out: &mut Vec<Done>,
    ) -> usize {
        let count = state.done.len().min(max);
        out.extend(state.done.drain(..count));
        state.reserved -= count;
        if count > 0 && state.done.is_empty() && state.polled {
            let mut sum = [0u8; 8];
            // The read does not fail: the eventfd is readable, because it was written to under the
            // lock when the queue got its first answer, or when the caller asked for it.
            // SAFETY: `sum` is eight writable bytes.
            unsafe { libc::read(self.eventfd.as_raw_fd(), sum.as_mut_ptr().cast(), sum.len()) };
        }
        self.wake_next(state);
        count
    }

    /// Wakes one thread that waits, if there are more answers than threads that were woken and have
    /// not noticed yet.
    fn wake_next(&self, mut state: MutexGuard<'_, State>) {
        if state.waiting > 0 && state.woken < state.done.len() {
            state.waiting -= 1;
            state.woken += 1;
            drop(state);
            self.filled.notify_one();
        }
    }

    /// Makes the eventfd readable. Its counter is zero.
    fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        // The write does not fail, because the counter does not overflow.
        // SAFETY: `one` is eight readable bytes.
        unsafe { libc::write(self.eventfd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock can panic with the queue half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for CompletionQueue {
    /// The eventfd. The caller may only poll it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        let mut state = self.lock();
        if !state.polled && !state.done.is_empty() {
            self.raise();
        }
        state.polled = true;
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
        if was_empty && state.polled {
            self.raise();
        }
    }

    fn end_of_batch(&self) {
        // One thread: it wakes the next one if it leaves answers.
        self.wake_next(self.lock());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread::{spawn, yield_now};

    use super::*;
    use crate::answer::Data;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Returns when this number of threads waits for answers.
    fn until_waiting(queue: &CompletionQueue, threads: usize) {
        let began = Instant::now();
        while queue.lock().waiting < threads {
            assert!(began.elapsed() < TIMEOUT, "the threads have started");
            yield_now();
        }
    }

    #[test]
    fn a_batch_wakes_as_many_threads_as_it_has_answers_for() {
        let queue = CompletionQueue::new(3).expect("descriptors");
        let (to, from) = channel();
        for _ in 0..3 {
            let (queue, to) = (Arc::clone(&queue), to.clone());
            spawn(move || {
                let mut done = Vec::new();
                queue.wait(TIMEOUT, 1, &mut done);
                to.send(done.first().map(|done| done.tag)).expect("the test listens");
            });
        }
        until_waiting(&queue, 3);
        for tag in 0..3 {
            assert!(queue.reserve());
            queue.complete(tag, Ok(Data::default()));
        }
        queue.end_of_batch();
        let mut tags: Vec<_> = (0..3)
            .map(|_| from.recv_timeout(TIMEOUT / 3).expect("a thread sleeps beside answers"))
            .collect();
        tags.sort_unstable();
        assert_eq!(tags, [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn a_wait_may_have_no_end() {
        let queue = CompletionQueue::new(1).expect("descriptors");
        let waits = spawn({
            let queue = Arc::clone(&queue);
            move || queue.wait(Duration::MAX, 1, &mut Vec::new())
        });
        while queue.lock().waiting == 0 {
            assert!(!waits.is_finished(), "it waits");
            yield_now();
        }
        assert!(queue.reserve());
        queue.complete(0, Ok(Data::default()));
        queue.end_of_batch();
        assert_eq!(waits.join().expect("it has waited"), 1);
    }
}
