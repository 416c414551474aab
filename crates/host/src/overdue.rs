//! Requests that stay unanswered: a device that owes an answer for too long says so.
//!
//! A request may have to wait for nodes, or for room; then it waits for a known reason, which the
//! volume tells. The operator learns of the wait here: from the log, when the oldest
//! request has waited for [`OVERDUE_MS`] and each [`AGAIN_MS`] from then on, and from the status
//! and the metrics at any time.
//!
//! A device that was only not told of an event is found as well. It is run once more before
//! anything is reported; if that alone answers requests, the log says that a wake-up was lost.

use fieldstone_block::{Nanos, Unanswered};

/// How long a request may take before it is reported.
const OVERDUE_MS: u64 = 10_000;
/// How often it is reported again.
const AGAIN_MS: u64 = 60_000;
/// How often a device with requests is looked at.
pub const LOOK_MS: u64 = 1_000;

/// What was reported of a device.
#[derive(Debug, Default)]
pub struct Overdue {
    reported_at: Option<Nanos>,
}

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The oldest request is overdue.
    Overdue,
    /// None is any more.
    Over,
}

impl Overdue {
    /// Looks at the oldest request, if there is one.
    pub fn look(&mut self, oldest: Option<&Unanswered>, now: Nanos) -> Option<Report> {
        if !oldest.is_some_and(|oldest| is_overdue(oldest, now)) {
            return self.reported_at.take().map(|_| Report::Over);
        }
        let due = self.reported_at.is_none_or(|at| now.since(at) >= Nanos::from_ms(AGAIN_MS));
        due.then(|| {
            self.reported_at = Some(now);
            Report::Overdue
        })
    }
}

/// The request has been waiting for longer than it may.
#[must_use]
pub fn is_overdue(oldest: &Unanswered, now: Nanos) -> bool {
    now.since(oldest.since) >= Nanos::from_ms(OVERDUE_MS)
}

#[cfg(test)]
mod tests {
    use fieldstone_block::Op;

    use super::*;

    #[test]
    fn an_old_request_is_reported_now_and_then_and_its_end_once() {
        let oldest = Unanswered { op: Op::Write, offset_bytes: 0, since: Nanos::from_ms(5) };
        let mut overdue = Overdue::default();
        let at = |ms: u64| Nanos::from_ms(ms);
        assert_eq!(overdue.look(None, at(1)), None);
        assert_eq!(overdue.look(Some(&oldest), at(OVERDUE_MS)), None);
        assert_eq!(overdue.look(Some(&oldest), at(OVERDUE_MS + 5)), Some(Report::Overdue));
        assert_eq!(overdue.look(Some(&oldest), at(OVERDUE_MS + 1_000)), None);
        let again = OVERDUE_MS + AGAIN_MS + 5;
        assert_eq!(overdue.look(Some(&oldest), at(again)), Some(Report::Overdue));
        let young = Unanswered { since: at(again), ..oldest };
        assert_eq!(overdue.look(Some(&young), at(again + 1)), Some(Report::Over));
        assert_eq!(overdue.look(None, at(again + 2)), None);
    }
}
