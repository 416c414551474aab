//! A task of which there is at most one.

/// Whether the task runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OneTask {
    /// It does not run.
    #[default]
    Idle,
    /// It runs.
    Running,
}

impl OneTask {
    /// The task is wanted. True if the caller has to start it.
    #[must_use]
    pub fn begin(&mut self) -> bool {
        std::mem::replace(self, Self::Running) == Self::Idle
    }

    /// The task ends.
    pub fn end(&mut self) {
        *self = Self::Idle;
    }
}
