//! What leaves the state: actions for the world, answers to users, and tasks.
//!
//! The methods of the state run inside a borrow of it, so they carry nothing out themselves. They
//! leave it here, and [`Volume`](crate::Volume) takes it when the borrow is over.
//!
//! # Invariants
//! - Actions, answers, and new tasks leave in the order in which they came.
//! - A task first runs after the borrow in which it was spawned has ended. Other methods and tasks
//!   may have changed the state since. `poll` returns only when no task can go on.
//! - Timers fire by the volume's clock, in the order of their times. Tasks of the same time wake in
//!   a fixed order, so a run with the same events is the same run.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Weak;

use fieldstone_block::{Completion, Nanos};

use crate::core::{Ctx, VolumeCore};
use crate::interface::VolumeAction;
use crate::jobs::Jobs;
use crate::timers::Timers;
use fieldstone_tasks::{Awaited, Task};

/// What waits to leave the state.
#[derive(Default)]
pub struct Outbox {
    actions: VecDeque<VolumeAction>,
    completions: Vec<Completion>,
    spawned: Vec<Task>,
    timers: Timers,
    /// Jobs that the world has not finished.
    pub jobs: Jobs,
    /// The state itself, for the tasks.
    state: Weak<RefCell<VolumeCore>>,
}

impl Outbox {
    /// From now on tasks can be spawned: they work on this state.
    pub fn connect(&mut self, state: Weak<RefCell<VolumeCore>>) {
        self.state = state;
    }

    /// The world is to do this.
    pub fn act(&mut self, action: VolumeAction) {
        self.actions.push_back(action);
    }

    /// The next action for the world.
    pub fn next_action(&mut self) -> Option<VolumeAction> {
        self.actions.pop_front()
    }

    /// A user's request is answered.
    pub fn complete(&mut self, completion: Completion) {
        self.completions.push(completion);
    }

    /// Moves the answers to `out`.
    pub fn take_completions(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.completions);
    }

    /// The answers that were not taken yet.
    #[cfg(test)]
    pub fn completions(&self) -> &[Completion] {
        &self.completions
    }

    /// The tasks that were spawned since the last call.
    pub fn take_spawned(&mut self) -> Vec<Task> {
        std::mem::take(&mut self.spawned)
    }

    /// When the next timer fires.
    #[must_use]
    pub fn next_timer(&self) -> Option<Nanos> {
        self.timers.next()
    }
}

impl VolumeCore {
    /// Starts a task. `make` runs now, inside the borrow of the state, so it must not use the
    /// [`Ctx`]; the task that it makes may.
    pub fn spawn_with<F, T>(&mut self, make: F)
    where
        F: FnOnce(Ctx) -> T + 'static,
        T: Future<Output = ()> + 'static,
    {
        let Some(state) = self.outbox.state.upgrade() else { return };
        self.outbox.spawned.push(Box::pin(make(Ctx(state))));
    }

    /// Completes after `duration`.
    pub fn sleep(&mut self, duration: Nanos) -> Awaited<()> {
        self.outbox.timers.sleep_until(self.now.plus(duration))
    }

    /// Wakes the sleepers whose time has come.
    pub fn fire_timers(&mut self) {
        self.outbox.timers.fire(self.now);
    }
}
