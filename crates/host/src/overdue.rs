//! Reports of devices with requests that have no answer for too long.
//!
//! A request may have to wait for nodes or for room. Then the layers and the store give the reason.
//! The log reports the wait first when the oldest request has waited for [`OVERDUE_MS`], and then
//! every [`AGAIN_MS`]. The status and the metrics show the wait at any time.
//!
//! The reason may pass in the very moment of the report: the volume gives a node up that has not
//! answered for 10 s, which is also when the log first reports. So the core notes the reason at
//! every look, and the report then names the last one.
//!
//! A device may also have missed an event. So the device runs once more before the report. If that
//! alone answers requests, the log says that the device answered only when it was looked after.

use fieldstone_block::{Nanos, Unanswered};

/// How long a request may take before the device reports it.
const OVERDUE_MS: u64 = 10_000;
/// The pause between two reports.
const AGAIN_MS: u64 = 60_000;
/// How often the core checks a device with requests.
pub const CHECK_MS: u64 = 1_000;

/// The state of a device's reports.
#[derive(Debug, Default)]
pub struct Overdue {
    reported_at: Option<Nanos>,
    /// The oldest request at the last look with a reason, that reason, and the time.
    noted: Option<(Unanswered, String, Nanos)>,
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
    /// Notes what the device waits for (empty if there is no reason) while this is its oldest
    /// request.
    pub fn note(&mut self, oldest: Option<&Unanswered>, waits_for: String, now: Nanos) {
        if let Some(oldest) = oldest.filter(|_| !waits_for.is_empty()) {
            self.noted = Some((*oldest, waits_for, now));
        }
    }

    /// The words of a report about `count` requests. `waits_for` is what the device waits for now.
    #[must_use]
    pub fn words(&self, count: usize, oldest: &Unanswered, waits_for: &str, now: Nanos) -> String {
        let seconds = now.since(oldest.since).0 / 1_000_000_000;
        let (op, offset) = (oldest.op, oldest.offset_bytes);
        let requests = match count {
            1 => "1 request is unanswered,".to_owned(),
            count => format!("{count} requests are unanswered, the oldest"),
        };
        let reason = match &self.noted {
            _ if !waits_for.is_empty() => format!("waits for {waits_for}"),
            Some((noted, last, at))
                if noted == oldest && now.since(*at) <= Nanos::from_ms(2 * CHECK_MS) =>
            {
                format!("waited until now for {last}")
            }
            _ => "the reason is not known".to_owned(),
        };
        format!("{requests} for {seconds} s ({op:?} at {offset}); {reason}")
    }

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

    #[test]
    fn a_report_names_what_is_waited_for_or_was_a_moment_ago() {
        let oldest = Unanswered { op: Op::Read, offset_bytes: 0, since: Nanos::from_ms(5) };
        let other = Unanswered { offset_bytes: 4096, ..oldest };
        let now = Nanos::from_ms(OVERDUE_MS + 5);
        let mut overdue = Overdue::default();
        let begin = "1 request is unanswered, for 10 s (Read at 0); ";
        let words = |overdue: &Overdue, waits_for| overdue.words(1, &oldest, waits_for, now);
        assert_eq!(words(&overdue, ""), format!("{begin}the reason is not known"));
        let before = Nanos(now.0 - 2 * CHECK_MS * 1_000_000);
        overdue.note(Some(&oldest), "answers of node.4".to_owned(), before);
        overdue.note(Some(&oldest), String::new(), now);
        assert_eq!(words(&overdue, ""), format!("{begin}waited until now for answers of node.4"));
        assert_eq!(words(&overdue, "room"), format!("{begin}waits for room"));
        // The reason is too old.
        overdue.note(Some(&oldest), "answers of node.4".to_owned(), Nanos(before.0 - 1));
        assert_eq!(words(&overdue, ""), format!("{begin}the reason is not known"));
        // The reason was that of another request.
        overdue.note(Some(&other), "answers of node.4".to_owned(), now);
        assert_eq!(words(&overdue, ""), format!("{begin}the reason is not known"));
        let three = overdue.words(3, &oldest, "room", now);
        assert!(three.starts_with("3 requests are unanswered, the oldest for 10 s "), "{three}");
    }
}
