//! What the procedures of an image wait for: events, time, locks of objects, and a gate that
//! holds writes back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use fieldstone_block::Nanos;
use fieldstone_tasks::{Awaited, Filler, Lock, LockGuard, Task, oneshot};

/// Something that happens again and again. Those who wait are woken the next time.
#[derive(Default)]
pub(crate) struct Event(RefCell<Vec<Filler<()>>>);

impl Event {
    /// A future of the next time.
    pub(crate) fn next(&self) -> Awaited<()> {
        let (filler, awaited) = oneshot();
        let mut waiting = self.0.borrow_mut();
        let room = waiting.capacity();
        if waiting.len() == room {
            // Those who gave up are forgotten, so the list is as long as there are waiters.
            waiting.retain(|filler| !filler.is_cancelled());
            if waiting.len() > room / 2 {
                waiting.reserve(room);
            }
        }
        waiting.push(filler);
        awaited
    }

    /// It happens.
    pub(crate) fn happen(&self) {
        let waiting = std::mem::take(&mut *self.0.borrow_mut());
        for filler in waiting {
            filler.fill(());
        }
    }
}

#[derive(Default)]
struct Clock {
    now: Nanos,
    next: u64,
    sleepers: BTreeMap<(Nanos, u64), Filler<()>>,
}

/// The time for procedures: its owner moves it on. Copies are the same timer.
#[derive(Clone, Default)]
pub struct Timer(Rc<RefCell<Clock>>);

impl Timer {
    /// A timer at time 0, with no sleeper.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time, and wakes those who slept until then.
    pub fn advance(&self, now: Nanos) {
        let due = {
            let mut clock = self.0.borrow_mut();
            clock.now = clock.now.max(now);
            let behind = (Nanos(clock.now.0.saturating_add(1)), 0);
            let later = clock.sleepers.split_off(&behind);
            std::mem::replace(&mut clock.sleepers, later)
        };
        for (_, filler) in due {
            filler.fill(());
        }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.0.borrow().now
    }

    /// When the next sleeper wakes.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.0.borrow().sleepers.keys().next().map(|&(at, _)| at)
    }

    /// Sleeps for this long.
    pub(crate) fn sleep(&self, duration: Nanos) -> Awaited<()> {
        let (filler, awaited) = oneshot();
        let mut clock = self.0.borrow_mut();
        let at = clock.now.plus(duration);
        clock.next += 1;
        let key = (at, clock.next);
        clock.sleepers.insert(key, filler);
        awaited
    }

    /// Waits for a future, but not longer than this.
    pub(crate) async fn within<F: Future>(&self, duration: Nanos, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut sleep = pin!(self.sleep(duration));
        poll_fn(|context| {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                return Poll::Ready(Some(value));
            }
            sleep.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

/// Tasks that wait for an executor. Copies are the same list.
#[derive(Clone, Default)]
pub(crate) struct Spawner(Rc<RefCell<Vec<Task>>>);

impl Spawner {
    /// Adds a task.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.borrow_mut().push(Box::pin(task));
    }

    /// Takes the tasks that were added.
    pub(crate) fn take(&self) -> Vec<Task> {
        std::mem::take(&mut *self.0.borrow_mut())
    }

    /// Runs the tasks concurrently with `future`, until that is done. Then they are dropped.
    pub(crate) async fn run_with<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut tasks: Vec<Task> = Vec::new();
        poll_fn(|context| {
            loop {
                if let Poll::Ready(value) = future.as_mut().poll(context) {
                    return Poll::Ready(value);
                }
                tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
                let added = self.take();
                if added.is_empty() {
                    return Poll::Pending;
                }
                tasks.extend(added);
            }
        })
        .await
    }
}

/// Lets writes in, until a task closes it and waits for those inside.
#[derive(Default)]
pub(crate) struct Gate {
    inside: Cell<usize>,
    closed: Cell<usize>,
    changed: Event,
}

/// A write is inside until it drops this.
pub(crate) struct Pass<T: AsRef<Gate>>(T);

/// A procedure is inside alone until it drops this.
pub(crate) struct Alone<T: AsRef<Gate>>(Pass<T>);

impl Gate {
    /// Waits until the gate is open, and goes in.
    pub(crate) async fn enter<T: AsRef<Gate>>(gate: T) -> Pass<T> {
        loop {
            let inner = gate.as_ref();
            if inner.closed.get() == 0 {
                inner.inside.set(inner.inside.get() + 1);
                return Pass(gate);
            }
            inner.changed.next().await;
        }
    }

    /// Waits until the gate is open and no other write is inside, and goes in. All others wait
    /// outside until the procedure is done.
    pub(crate) async fn enter_alone<T: AsRef<Gate>>(gate: T) -> Alone<T> {
        loop {
            let inner = gate.as_ref();
            if inner.closed.get() == 0 {
                inner.closed.set(1);
                inner.inside.set(inner.inside.get() + 1);
                // From here on, a future that is dropped leaves the gate as it was.
                let alone = Alone(Pass(gate));
                let inner = alone.0.0.as_ref();
                while inner.inside.get() > 1 {
                    inner.changed.next().await;
                }
                return alone;
            }
            inner.changed.next().await;
        }
    }

    /// Closes the gate, and waits until no write is inside. Each call needs a call of
    /// [`Gate::open`].
    pub(crate) async fn close(&self) {
        self.closed.set(self.closed.get() + 1);
        while self.inside.get() > 0 {
            self.changed.next().await;
        }
    }

    /// True if no write is inside.
    pub(crate) fn is_empty(&self) -> bool {
        self.inside.get() == 0
    }

    /// Opens the gate again.
    pub(crate) fn open(&self) {
        self.closed.set(self.closed.get().saturating_sub(1));
        self.changed.happen();
    }
}

impl<T: AsRef<Gate>> Drop for Pass<T> {
    fn drop(&mut self) {
        let gate = self.0.as_ref();
        gate.inside.set(gate.inside.get() - 1);
        gate.changed.happen();
    }
}

impl<T: AsRef<Gate>> Drop for Alone<T> {
    fn drop(&mut self) {
        self.0.0.as_ref().open();
    }
}

/// The locks of objects: while a procedure of several steps has the lock of an object, others wait
/// for it, first come, first served. These locks are in this client's memory alone; the lock of the
/// image is another one (`owner`).
#[derive(Default)]
pub(crate) struct ObjectLocks(RefCell<BTreeMap<u64, (Lock, usize)>>);

/// Holds the lock of an object until it is dropped.
pub(crate) struct ObjectLockGuard<T: AsRef<ObjectLocks>> {
    locks: T,
    object: u64,
    guard: Option<LockGuard>,
}

impl ObjectLocks {
    /// True if a task has the lock of the object, or waits for it.
    pub(crate) fn is_locked(&self, object: u64) -> bool {
        let locks = self.0.borrow();
        !locks.is_empty() && locks.contains_key(&object)
    }

    /// Waits for the lock of an object.
    pub(crate) async fn acquire<T: AsRef<ObjectLocks>>(
        locks: T,
        object: u64,
    ) -> ObjectLockGuard<T> {
        let lock = {
            let mut all = locks.as_ref().0.borrow_mut();
            let (lock, users) = all.entry(object).or_default();
            *users += 1;
            lock.clone()
        };
        // The guard exists before the wait: if the procedure is dropped, the count stays right.
        let mut held = ObjectLockGuard { locks, object, guard: None };
        held.guard = Some(lock.acquire().await);
        held
    }
}

impl<T: AsRef<ObjectLocks>> Drop for ObjectLockGuard<T> {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut all = self.locks.as_ref().0.borrow_mut();
        if let Some((_, users)) = all.get_mut(&self.object) {
            *users -= 1;
            if *users == 0 {
                all.remove(&self.object);
            }
        }
    }
}
