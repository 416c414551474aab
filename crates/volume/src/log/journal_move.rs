//! Whether the journal stays on its nodes.
//!
//! | from               | when                                  | to                             |
//! |--------------------|---------------------------------------|--------------------------------|
//! | `Settled`          | a node is lost, or lacks a record     | `Due`                          |
//! | `Due`              | a task begins to move it              | `Moving`                       |
//! | `Moving`           | something is lost that the try needs  | `Moving` in vain, until        |
//! |                    |                                       | the task tries again           |
//! | `Moving`           | a try succeeds                        | `Tidying`                      |
//! | `Tidying`          | a node is lost, or lacks a record     | `Tidying`, and due             |
//! | `Tidying`          | the task ends                         | `Settled`, or `Due` if due     |
//! | `Moving`           | the volume is over, and the task ends | `Due`                          |
//!
//! # Invariants
//! - The log appends and acknowledges only in `Settled` and `Tidying`. In the other states some
//!   node of the journal may lack a record, and recovery would find a hole.
//! - At most one task moves the journal. It runs in `Moving` and `Tidying`.
//! - A try to move succeeds only if nothing has been lost since it began that it counts with. A
//!   loss that a try makes good anyway, because it writes every record whole, does not stop it.

/// Whether the journal stays on its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalMove {
    /// It stays.
    #[default]
    Settled,
    /// It has to move, and no task moves it yet.
    Due,
    /// A task moves it.
    Moving {
        /// The present try does not count with what has happened since it began.
        in_vain: bool,
    },
    /// The journal has moved. The task deletes what is left in the old place.
    Tidying {
        /// Meanwhile it has become due again.
        due: bool,
    },
}

impl JournalMove {
    /// The journal has to move.
    #[must_use]
    pub fn is_due(self) -> bool {
        !matches!(self, Self::Settled | Self::Tidying { due: false })
    }

    /// The task runs that moves the journal.
    #[must_use]
    pub fn mover_runs(self) -> bool {
        matches!(self, Self::Moving { .. } | Self::Tidying { .. })
    }

    /// The journal has to move. A try that is under way is enough.
    pub fn request(&mut self) {
        match self {
            Self::Settled => *self = Self::Due,
            Self::Tidying { due } => *due = true,
            Self::Due | Self::Moving { .. } => {}
        }
    }

    /// The journal has to move. A try that is under way does not count with the reason.
    pub fn request_anew(&mut self) {
        self.request();
        if let Self::Moving { in_vain } = self {
            *in_vain = true;
        }
    }

    /// The journal is due. True if the caller has to start the task that moves it.
    #[must_use]
    pub fn begin_mover(&mut self) -> bool {
        let starts = !self.mover_runs();
        if starts {
            *self = Self::Moving { in_vain: false };
        }
        starts
    }

    /// The task begins a try: it chooses nodes among those that are there now.
    pub fn begin_try(&mut self) {
        debug_assert!(matches!(self, Self::Moving { .. }), "{self:?}");
        *self = Self::Moving { in_vain: false };
    }

    /// The present try cannot succeed any more.
    #[must_use]
    pub fn is_in_vain(self) -> bool {
        self == Self::Moving { in_vain: true }
    }

    /// The try has succeeded: every record is stable in the new place.
    pub fn succeed(&mut self) {
        debug_assert_eq!(*self, Self::Moving { in_vain: false });
        *self = Self::Tidying { due: false };
    }

    /// The task ends.
    pub fn end_mover(&mut self) {
        *self = if self.is_due() { Self::Due } else { Self::Settled };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_during_a_try_asks_for_another_one() {
        let mut state = JournalMove::default();
        state.request();
        assert!(state.is_due() && state.begin_mover());
        state.begin_try();
        state.request();
        assert!(!state.is_in_vain(), "the try makes this loss good");
        state.request_anew();
        assert!(state.is_in_vain() && !state.begin_mover(), "the same task tries again");
        state.begin_try();
        assert!(!state.is_in_vain());
        state.succeed();
        assert!(!state.is_due() && state.mover_runs());
        state.end_mover();
        assert_eq!(state, JournalMove::Settled);
    }

    #[test]
    fn a_loss_after_the_move_waits_for_the_task_to_end() {
        let mut state = JournalMove::Moving { in_vain: false };
        state.succeed();
        state.request_anew();
        assert!(state.is_due() && !state.begin_mover());
        state.end_mover();
        assert_eq!(state, JournalMove::Due);
        assert!(state.begin_mover());
    }

    #[test]
    fn a_volume_that_is_over_leaves_its_journal_due() {
        let mut state = JournalMove::Moving { in_vain: true };
        state.end_mover();
        assert_eq!(state, JournalMove::Due);
    }
}
