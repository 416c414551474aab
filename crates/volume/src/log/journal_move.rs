//! Whether the journal stays on its nodes.
//!
//! | from | step | to |
//! |---|---|---|
//! | `Settled` | `request`, `request_anew` | `Due` |
//! | `Due` | `begin_mover` | `Moving` |
//! | `Moving` | `request_anew` | `Moving`, in vain |
//! | `Moving` | `begin_try`: the task tries again | `Moving` |
//! | `Moving` | `succeed` | `Tidying` |
//! | `Tidying` | `request`, `request_anew` | `Tidying`, due |
//! | `Moving`, or `Tidying` that is due | `end_mover` | `Due` |
//! | `Tidying` that is not due | `end_mover` | `Settled` |
//!
//! # Invariants
//! - The log appends and acknowledges only while the journal does not have to move: in `Settled`,
//!   and in `Tidying` unless it has become due. In the other states some node of the journal may
//!   lack a record, and recovery would find a hole.
//! - At most one task moves the journal. It runs in `Moving` and `Tidying`.
//! - A try succeeds only if no `request_anew` has come since it began. A plain `request` does not
//!   stop a try, because the try writes every record whole.

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
        /// Something has changed since the try began that it cannot take into account.
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
    pub fn has_to_move(self) -> bool {
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

    /// The journal has to move. A try that is under way cannot take the reason into account.
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
        *self = if self.has_to_move() { Self::Due } else { Self::Settled };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_during_a_try_asks_for_another_one() {
        let mut state = JournalMove::default();
        state.request();
        assert!(state.has_to_move() && state.begin_mover());
        state.begin_try();
        state.request();
        assert!(!state.is_in_vain(), "the try makes this loss good");
        state.request_anew();
        assert!(state.is_in_vain() && !state.begin_mover(), "the same task tries again");
        state.begin_try();
        assert!(!state.is_in_vain());
        state.succeed();
        assert!(!state.has_to_move() && state.mover_runs());
        state.end_mover();
        assert_eq!(state, JournalMove::Settled);
    }

    #[test]
    fn a_loss_after_the_move_waits_for_the_task_to_end() {
        let mut state = JournalMove::Moving { in_vain: false };
        state.succeed();
        state.request_anew();
        assert!(state.has_to_move() && !state.begin_mover());
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
