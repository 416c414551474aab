//! Reports of devices with requests that have no answer for too long.
//!
//! A request may have to wait for nodes or for room. Then the layers and the store give the reason.
//! The log reports the wait first when the oldest request has waited for [`OVERDUE_MS`], and then
//! every [`AGAIN_MS`]. The status and the metrics show the wait at any time.
//!
//! A device may also have missed an event. So the device runs once more before the report. If that
//! alone answers requests, the log says that the device answered only when it was looked after.

use fieldstone_block::{Nanos, Unanswered};

/// How long a request may take before the device reports it.
const OVERDUE_MS: u64 = 10_000;
/// The pause between two reports.
const AGAIN_MS: u64 = 60_000;
/// How often the core looks at a device with requests.
pub const LOOK_MS: u64 = 1_000;

/// The state of a device's reports.
#[derive(Debug, Default)]
pub struct Overdue {
    reported_at: Option<Nanos>,
}

/// The report to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The oldest request is overdue.
    Overdue,
    /// No request is overdue any more.
    Over,
}

impl Overdue {
    /// Checks the oldest request, if there is one.
    pub fn check(&mut self, oldest: Option<&Unanswered>, now: Nanos) -> Option<Report> {
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

/// True if the request has waited for too long.
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
        assert_eq!(overdue.check(None, at(1)), None);
        assert_eq!(overdue.check(Some(&oldest), at(OVERDUE_MS)), None);
        assert_eq!(overdue.check(Some(&oldest), at(OVERDUE_MS + 5)), Some(Report::Overdue));
        assert_eq!(overdue.check(Some(&oldest), at(OVERDUE_MS + 1_000)), None);
        let again = OVERDUE_MS + AGAIN_MS + 5;
        assert_eq!(overdue.check(Some(&oldest), at(again)), Some(Report::Overdue));
        let young = Unanswered { since: at(again), ..oldest };
        assert_eq!(overdue.check(Some(&young), at(again + 1)), Some(Report::Over));
        assert_eq!(overdue.check(None, at(again + 2)), None);
    }
}
