//! A tiny executor, so that long procedures read top to bottom and still do no I/O.
//!
//! A volume that recovers, or a client that opens an image, waits for many answers, one after
//! another. As callbacks such procedures are hard to read; as `async fn`s they read like the
//! procedure itself. The futures here wait only for answers and for time, and the owner of the
//! [`Executor`] delivers both. The executor polls the tasks in a fixed order; they touch no thread
//! and no clock. So a run remains a function of its events, and the seeded world relies on that.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use slab::Slab;

/// A task: a procedure that runs until it has to wait.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Tasks that can go on, in the order in which they were woken.
#[derive(Default)]
struct ReadyQueue(Mutex<VecDeque<usize>>);

impl ReadyQueue {
    fn push(&self, key: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(key);
    }

    fn pop(&self) -> Option<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

struct TaskWaker {
    key: usize,
    ready: Arc<ReadyQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.key);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.push(self.key);
    }
}

/// Runs tasks until all of them wait.
#[derive(Default)]
pub struct Executor {
    /// `None` while the task runs.
    tasks: Slab<Option<Task>>,
    /// The waker of each key. It serves all tasks that ever have the key.
    wakers: Vec<Waker>,
    ready: Arc<ReadyQueue>,
}

impl Executor {
    /// Adds a task; it first runs at the next [`Executor::run`].
    pub fn spawn(&mut self, task: Task) {
        let key = self.tasks.insert(Some(task));
        if key == self.wakers.len() {
            let ready = Arc::clone(&self.ready);
            self.wakers.push(Waker::from(Arc::new(TaskWaker { key, ready })));
        }
        self.ready.push(key);
    }

    /// Polls every task that was woken. Returns whether any ran.
    pub fn run(&mut self) -> bool {
        let mut ran = false;
        while let Some(key) = self.ready.pop() {
            // A wake may arrive for a task that has ended, or for a key that a newer task has now.
            // One more poll of that task does no harm.
            let Some(mut task) = self.tasks.get_mut(key).and_then(Option::take) else { continue };
            ran = true;
            match task.as_mut().poll(&mut Context::from_waker(&self.wakers[key])) {
                Poll::Ready(()) => {
                    self.tasks.remove(key);
                }
                Poll::Pending => {
                    if let Some(place) = self.tasks.get_mut(key) {
                        *place = Some(task);
                    }
                }
            }
        }
        ran
    }

    /// Number of tasks that have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// True if every task has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

struct OneshotState<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// The filling side of a value that a task waits for.
pub struct Filler<T>(Rc<RefCell<OneshotState<T>>>);

/// The waiting side: a future of the value.
pub struct Awaited<T>(Rc<RefCell<OneshotState<T>>>);

/// A value that arrives later: one side fills it, the other side awaits it.
pub fn oneshot<T>() -> (Filler<T>, Awaited<T>) {
    let state = Rc::new(RefCell::new(OneshotState { value: None, waker: None }));
    (Filler(Rc::clone(&state)), Awaited(state))
}

impl<T> Filler<T> {
    /// Provides the value and wakes the task that waits for it.
    pub fn fill(self, value: T) {
        let mut state = self.0.borrow_mut();
        state.value = Some(value);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// True if no task waits for the value any more.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

impl<T> Future for Awaited<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.borrow_mut();
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Runs all futures of a list at once, and gives their results in the list's order.
pub async fn concurrently<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|one| (Some(Box::pin(one)), None)).collect();
    std::future::poll_fn(|context| {
        let mut waits = false;
        for (future, result) in &mut running {
            let Some(pending) = future else { continue };
            match pending.as_mut().poll(context) {
                Poll::Ready(value) => (*future, *result) = (None, Some(value)),
                Poll::Pending => waits = true,
            }
        }
        if waits { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    running.into_iter().map(|(_, result)| result.expect("all have ended")).collect()
}

/// Awaits all futures of a list and gives their results in the list's order. A future that has work
/// to do starts only when those before it have ended; see [`concurrently`].
pub async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    // Every request is already on its way, so it costs nothing to await the replies one after
    // another.
    let mut results = Vec::with_capacity(futures.len());
    for future in futures {
        results.push(future.await);
    }
    results
}

/// Lets one task at a time into a critical section that spans waits, first come, first served.
#[derive(Clone, Default)]
pub struct Lock(Rc<RefCell<LockState>>);

#[derive(Default)]
struct LockState {
    held: bool,
    waiting: VecDeque<Filler<()>>,
}

/// Holds a [`Lock`] until dropped.
pub struct LockGuard(Lock);

impl Lock {
    /// Waits for the lock.
    pub async fn acquire(&self) -> LockGuard {
        let awaited = {
            let mut state = self.0.borrow_mut();
            if state.held {
                let (filler, awaited) = oneshot();
                state.waiting.push_back(filler);
                Some(awaited)
            } else {
                state.held = true;
                None
            }
        };
        if let Some(awaited) = awaited {
            awaited.await;
        }
        LockGuard(self.clone())
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let mut state = self.0.0.borrow_mut();
        match state.waiting.pop_front() {
            Some(next) => next.fill(()),
            None => state.held = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_in_order_and_wait_for_slots() {
        let mut executor = Executor::default();
        let log = Rc::new(RefCell::new(Vec::new()));
        let (fill, wait) = oneshot::<u32>();
        let seen = Rc::clone(&log);
        executor.spawn(Box::pin(async move {
            seen.borrow_mut().push(1);
            let value = wait.await;
            seen.borrow_mut().push(value);
        }));
        let seen = Rc::clone(&log);
        executor.spawn(Box::pin(async move { seen.borrow_mut().push(2) }));
        assert!(executor.run());
        assert_eq!(*log.borrow(), [1, 2]);
        assert_eq!(executor.len(), 1);
        fill.fill(3);
        executor.run();
        assert_eq!(*log.borrow(), [1, 2, 3]);
        assert_eq!(executor.len(), 0);
    }

    #[test]
    fn futures_of_a_list_run_at_once_and_keep_their_order() {
        let mut executor = Executor::default();
        let log = Rc::new(RefCell::new(Vec::new()));
        let (fillers, waits): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::<u32>()).unzip();
        let seen = Rc::clone(&log);
        executor.spawn(Box::pin(async move {
            let one = |(at, wait): (u32, Awaited<u32>)| {
                let seen = Rc::clone(&seen);
                async move {
                    seen.borrow_mut().push(at);
                    wait.await
                }
            };
            let results = concurrently((0..).zip(waits).map(one).collect()).await;
            seen.borrow_mut().extend(results);
        }));
        executor.run();
        assert_eq!(*log.borrow(), [0, 1, 2], "all have begun");
        for (at, filler) in (10..).zip(fillers).collect::<Vec<_>>().into_iter().rev() {
            assert_eq!(log.borrow().len(), 3);
            filler.fill(at);
            executor.run();
        }
        assert_eq!(*log.borrow(), [0, 1, 2, 10, 11, 12]);
        assert!(executor.is_empty());
    }

    #[test]
    fn a_lock_admits_one_at_a_time_in_order() {
        let mut executor = Executor::default();
        let lock = Lock::default();
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut fillers = Vec::new();
        for name in 0..3 {
            let (fill, wait) = oneshot::<()>();
            fillers.push(fill);
            let (lock, log) = (lock.clone(), Rc::clone(&log));
            executor.spawn(Box::pin(async move {
                let _guard = lock.acquire().await;
                log.borrow_mut().push((name, "in"));
                wait.await;
                log.borrow_mut().push((name, "out"));
            }));
        }
        executor.run();
        for fill in fillers.into_iter().rev() {
            fill.fill(());
            executor.run();
        }
        let expected: Vec<_> = (0..3).flat_map(|n| [(n, "in"), (n, "out")]).collect();
        assert_eq!(*log.borrow(), expected);
    }
}
