//! Several threads, each of which does one step after the other until all steps are done or one
//! fails.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::coder::{Coder, Coders};
use crate::error::Error;

/// Most threads of a job. Each has one stripe in memory.
pub const MAX_JOBS: usize = 64;

/// Default number of threads of a job: one for each CPU, within bounds.
#[must_use]
pub fn default_jobs() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get).min(8)
}

/// The progress of a job, for the code that shows it.
#[derive(Debug, Default)]
pub struct Progress {
    done_bytes: AtomicU64,
}

impl Progress {
    /// Bytes of the file that are done.
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.done_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Runs steps in a thread for each coder. Each thread first makes its own state, with its coder. A
/// step returns whether there may be another one.
///
/// # Errors
/// The first error of a step. The other threads end after their current step.
pub(crate) fn run<'c, S>(
    coders: &'c mut Coders,
    state: impl Fn(&'c mut Coder) -> S + Sync,
    step: impl Fn(&mut S) -> Result<bool, Error> + Sync,
) -> Result<(), Error> {
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let work = |coder: &'c mut Coder| {
        let mut state = state(coder);
        while !stop.load(Ordering::Relaxed) {
            match step(&mut state) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    lock(&failure).get_or_insert(error);
                }
            }
        }
    };
    let (own, others) = coders.split();
    thread::scope(|scope| {
        let work = &work;
        for coder in others {
            scope.spawn(move || work(coder));
        }
        work(own);
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// A panic of another thread ends the whole job in any case, in the scope that waits for the
/// threads.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands out the numbers of stripes.
pub(crate) struct Stripes {
    next: AtomicU64,
    end: u64,
}

impl Stripes {
    /// The numbers from 0 up to, but not including, `end`.
    pub(crate) fn new(end: u64) -> Self {
        Self { next: AtomicU64::new(0), end }
    }

    /// The next number.
    pub(crate) fn next(&self) -> Option<u64> {
        let stripe = self.next.fetch_add(1, Ordering::Relaxed);
        (stripe < self.end).then_some(stripe)
    }
}

/// A value that threads use in the order of stripes: first the thread with stripe 0, then the
/// thread with stripe 1, and so on.
pub(crate) struct Sequencer<T> {
    state: Mutex<SequencerState<T>>,
    changed: Condvar,
}

struct SequencerState<T> {
    /// The stripe whose thread uses the value next. `None` after a failure.
    next: Option<u64>,
    value: T,
}

impl<T> Sequencer<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { state: Mutex::new(SequencerState { next: Some(0), value }), changed: Condvar::new() }
    }

    /// Waits until the thread of `stripe` is next, and uses the value. If that fails, no other
    /// thread uses the value. `None` if an earlier use failed, or after [`Sequencer::end`].
    pub(crate) fn take<R, E>(
        &self,
        stripe: u64,
        with: impl FnOnce(&mut T) -> Result<R, E>,
    ) -> Option<Result<R, E>> {
        let mut state = lock(&self.state);
        while state.next? != stripe {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let result = with(&mut state.value);
        state.next = result.is_ok().then_some(stripe + 1);
        self.changed.notify_all();
        Some(result)
    }

    /// Ends the sequence: waiting threads stop waiting.
    pub(crate) fn end(&self) {
        lock(&self.state).next = None;
        self.changed.notify_all();
    }

    pub(crate) fn into_inner(self) -> T {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stripe_is_done_once_and_uses_are_in_order() {
        let (stripes, seen) = (Stripes::new(1000), Sequencer::new(Vec::new()));
        let step = |_: &mut &mut Coder| match stripes.next() {
            Some(stripe) => {
                let push = |seen: &mut Vec<u64>| {
                    seen.push(stripe);
                    Ok::<_, Error>(())
                };
                Ok(seen.take(stripe, push).is_some())
            }
            None => Ok(false),
        };
        run(&mut Coders::software(4), |coder| coder, step).unwrap();
        assert_eq!(seen.into_inner(), (0..1000).collect::<Vec<u64>>());
    }

    #[test]
    fn the_first_error_ends_all() {
        let (stripes, sequencer) = (Stripes::new(u64::MAX), Sequencer::new(()));
        let step = |_: &mut &mut Coder| {
            let Some(stripe) = stripes.next() else { return Ok(false) };
            if stripe == 50 {
                sequencer.end();
                return Err(Error::TooLong);
            }
            Ok(sequencer.take(stripe, |()| Ok::<_, Error>(())).is_some())
        };
        let result = run(&mut Coders::software(4), |coder| coder, step);
        assert!(matches!(result, Err(Error::TooLong)));
    }
}
