//! Timers of tasks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fieldstone_block::Nanos;
use slab::Slab;

use fieldstone_tasks::{Awaited, Filler, oneshot};

/// The tasks that sleep. Tasks that wake at the same time wake in the order of their keys, so a run
/// with the same events is the same run.
#[derive(Default)]
pub struct Timers {
    due: BinaryHeap<Reverse<(Nanos, usize)>>,
    fillers: Slab<Filler<()>>,
}

impl Timers {
    /// Completes at the time `at`.
    pub fn sleep_until(&mut self, at: Nanos) -> Awaited<()> {
        let (filler, awaited) = oneshot();
        let key = self.fillers.insert(filler);
        self.due.push(Reverse((at, key)));
        awaited
    }

    /// When the next sleeper wakes.
    pub fn next(&self) -> Option<Nanos> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Wakes the sleepers whose time has come.
    pub fn fire(&mut self, now: Nanos) {
        while self.next().is_some_and(|at| at <= now) {
            let Reverse((_, key)) = self.due.pop().expect("it was there");
            self.fillers.remove(key).fill(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::Timers;
    use fieldstone_block::Nanos;
    use fieldstone_tasks::Executor;

    #[test]
    fn sleepers_wake_in_the_order_of_their_times() {
        let (mut timers, mut tasks) = (Timers::default(), Executor::default());
        let awake = Rc::new(RefCell::new(Vec::new()));
        for at in [30, 10, 20] {
            let (sleep, awake) = (timers.sleep_until(Nanos(at)), Rc::clone(&awake));
            tasks.spawn(Box::pin(async move {
                sleep.await;
                awake.borrow_mut().push(at);
            }));
        }
        tasks.run();
        for (now, awakened, next) in
            [(9, &[][..], Some(10)), (20, &[10, 20], Some(30)), (40, &[10, 20, 30], None)]
        {
            timers.fire(Nanos(now));
            tasks.run();
            assert_eq!((&awake.borrow()[..], timers.next()), (awakened, next.map(Nanos)));
        }
    }
}
