//! The life of a volume: what it does at present, and whether it was asked to close.
//!
//! | from | step | to |
//! |---|---|---|
//! | `Opening` | `begin_serving` | `Serving` |
//! | `Opening` | `end_inspection` | `Inspected` |
//! | `Serving` | `begin_closing` | `Closing` |
//! | `Opening`, `Inspected`, `Closing` | `close` | `Closed` |
//! | all but `Closed` and `Failed` | `fail` | `Failed` |
//!
//! # Invariants
//! - The phase takes only these steps. In `Closed` and `Failed` the volume is over: it answers all
//!   requests with errors, and each of its tasks ends at the task's next check. A request of a task
//!   that has not checked yet may still reach a node.
//! - The wish to close is a flag beside the phase: it may come in any phase, and it stays. A volume
//!   that serves then takes no more requests, but is `Serving` until it has finished those that it
//!   took. One that opens may even begin to serve before the task that closes it runs.

use crate::failure::VolumeFailure;
use crate::status::VolumePhase;

/// The life of a volume.
#[derive(Debug)]
pub struct Life {
    phase: VolumePhase,
    asked_to_close: bool,
}

impl Life {
    /// A volume that begins to open.
    #[must_use]
    pub fn new() -> Self {
        Self { phase: VolumePhase::Opening, asked_to_close: false }
    }

    /// What the volume does.
    #[must_use]
    pub fn phase(&self) -> &VolumePhase {
        &self.phase
    }

    /// The volume opens, or an inspection reads it.
    #[must_use]
    pub fn is_opening(&self) -> bool {
        self.phase == VolumePhase::Opening
    }

    /// The volume serves. It may be about to close: then it finishes the requests that it took.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.phase == VolumePhase::Serving
    }

    /// The volume writes its last checkpoint.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.phase == VolumePhase::Closing
    }

    /// Nodes that come back take part, and the journal moves where it has to.
    #[must_use]
    pub fn serves_or_closes(&self) -> bool {
        self.serves() || self.is_closing()
    }

    /// The volume takes new requests.
    #[must_use]
    pub fn takes_requests(&self) -> bool {
        self.serves() && !self.asked_to_close
    }

    /// Someone has asked the volume to close.
    #[must_use]
    pub fn is_asked_to_close(&self) -> bool {
        self.asked_to_close
    }

    /// The volume is closed or has failed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, VolumePhase::Closed | VolumePhase::Failed(_))
    }

    /// Someone asks the volume to close. True the first time.
    pub fn ask_to_close(&mut self) -> bool {
        !std::mem::replace(&mut self.asked_to_close, true)
    }

    /// The opening is done. False if the volume has closed or failed meanwhile.
    pub fn begin_serving(&mut self) -> bool {
        let opening = self.is_opening();
        if opening {
            self.phase = VolumePhase::Serving;
        }
        opening
    }

    /// The inspection is done. A volume that was closed meanwhile stays closed.
    pub fn end_inspection(&mut self) {
        if self.is_opening() {
            self.phase = VolumePhase::Inspected;
        }
    }

    /// A volume that serves has finished its requests, and writes its last checkpoint.
    pub fn begin_closing(&mut self) {
        debug_assert!(self.serves(), "{self:?}");
        self.phase = VolumePhase::Closing;
    }

    /// The volume writes nothing any more. A failure stays the last word.
    pub fn close(&mut self) {
        if !matches!(self.phase, VolumePhase::Failed(_)) {
            self.phase = VolumePhase::Closed;
        }
    }

    /// The volume cannot go on. False if it is over already: the first reason stays.
    pub fn fail(&mut self, why: VolumeFailure) -> bool {
        let first = !self.is_over();
        if first {
            self.phase = VolumePhase::Failed(why);
        }
        first
    }

    /// A test puts the volume into a phase.
    #[cfg(test)]
    pub fn put_in(&mut self, phase: VolumePhase) {
        self.phase = phase;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_is_asked_to_close_serves_on_without_new_requests() {
        let mut life = Life::new();
        assert!(life.ask_to_close(), "the first wish starts the task that closes");
        assert!(life.begin_serving() && life.serves(), "its opening may end before that task runs");
        assert!(!life.takes_requests());
        assert!(!life.ask_to_close(), "one such task is enough");
        life.begin_closing();
        assert!(!life.serves() && life.serves_or_closes());
        life.close();
        assert!(life.is_over() && !life.begin_serving());
    }

    #[test]
    fn an_inspection_that_was_closed_stays_closed() {
        let mut life = Life::new();
        life.close();
        life.end_inspection();
        assert_eq!(*life.phase(), VolumePhase::Closed);
    }

    #[test]
    fn the_first_failure_stays_the_reason() {
        let mut life = Life::new();
        let why = VolumeFailure::NewCheckpointGone;
        assert!(life.fail(why.clone()));
        assert!(!life.fail(VolumeFailure::JournalNotStable));
        life.close();
        assert_eq!(*life.phase(), VolumePhase::Failed(why));
        let mut life = Life::new();
        life.close();
        assert!(!life.fail(VolumeFailure::JournalNotStable), "a closed volume does not fail");
        assert_eq!(*life.phase(), VolumePhase::Closed);
    }
}
