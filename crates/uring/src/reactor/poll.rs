//! Polling before sleeping: whether it pays, and for how long.
//!
//! A client with one request in flight sends the next one some microseconds after the answer. If
//! the reactor sleeps meanwhile, its CPU halts, and the thread that brings the request has to wake
//! it. In a virtual machine both are calls to the hypervisor and take longer than the request. So
//! the reactor looks at the ring and at the bell for a while before it sleeps.
//!
//! Polling takes CPU time that other threads may need, the client among them. So the reactor polls
//! only while this pays:
//!
//! - It polls after [`SHORT_WAITS_MIN`] waits in a row that were shorter than
//!   [`SHORT_WAIT_NS_MAX`]. A reactor at rest, or one whose clients or disks take longer, never
//!   polls.
//! - After a poll without an event it sleeps at once for some waits: 2, and twice as many after
//!   each further poll in vain, up to [`REST_WAITS_MAX`]. A poll with an event begins anew.
//!
//! The state machine does no I/O and reads no clock.

use fieldstone_block::Nanos;

/// The longest poll. Waking a thread takes 5 to 50 us, so a longer poll saves little.
const POLL_NS_MAX: u64 = 50_000;
/// Short waits in a row after which polling begins.
const SHORT_WAITS_MIN: u32 = 4;
/// A wait below this is short. Two wake-ups are in it, the client's and the reactor's, and a poll
/// saves the second one. So a wait that a poll would cover may take several times as long.
const SHORT_WAIT_NS_MAX: u64 = 200_000;
/// The largest number of waits without a poll after polls in vain.
const REST_WAITS_MAX: u32 = 1024;

/// Decides whether the reactor polls before its next wait.
#[derive(Debug)]
pub(super) struct Polling {
    /// False on a machine with one CPU, where no other thread runs during a poll.
    allowed: bool,
    /// The longest poll.
    limit: Nanos,
    short_waits: u32,
    /// Waits that remain without a poll.
    rest_waits: u32,
    /// The number of waits without a poll after the next poll in vain.
    next_rest_waits: u32,
}

impl Polling {
    pub(super) fn new(allowed: bool) -> Self {
        Self {
            allowed,
            limit: Nanos(POLL_NS_MAX),
            short_waits: 0,
            rest_waits: 0,
            next_rest_waits: 2,
        }
    }

    /// Polls before the first wait, for at most `limit`.
    #[cfg(test)]
    pub(super) fn at_once(limit: Nanos) -> Self {
        Self { limit, short_waits: SHORT_WAITS_MIN, ..Self::new(true) }
    }

    /// How long the reactor polls before its next wait. `None` if it sleeps at once.
    pub(super) fn limit(&self) -> Option<Nanos> {
        let pays = self.allowed && self.rest_waits == 0 && self.short_waits >= SHORT_WAITS_MIN;
        pays.then_some(self.limit)
    }

    /// A poll found an event.
    pub(super) fn found(&mut self) {
        self.next_rest_waits = 2;
    }

    /// A poll found none.
    pub(super) fn in_vain(&mut self) {
        self.rest_waits = self.next_rest_waits;
        self.next_rest_waits = (2 * self.next_rest_waits).min(REST_WAITS_MAX);
    }

    /// The reactor slept for `waited`, without a poll before.
    pub(super) fn slept(&mut self, waited: Nanos) {
        self.rest_waits = self.rest_waits.saturating_sub(1);
        let is_short = waited.0 < SHORT_WAIT_NS_MAX;
        self.short_waits = if is_short { self.short_waits.saturating_add(1) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Nanos = Nanos(POLL_NS_MAX / 2);
    const LONG: Nanos = Nanos(SHORT_WAIT_NS_MAX);

    fn after(waits: impl IntoIterator<Item = Nanos>) -> Polling {
        let mut polling = Polling::new(true);
        waits.into_iter().for_each(|wait| polling.slept(wait));
        polling
    }

    #[test]
    fn only_short_waits_in_a_row_make_it_poll() {
        assert_eq!(Polling::new(true).limit(), None);
        assert_eq!(after([SHORT; 3]).limit(), None);
        assert_eq!(after([SHORT; 4]).limit(), Some(Nanos(POLL_NS_MAX)));
        assert_eq!(after([SHORT, SHORT, SHORT, LONG, SHORT]).limit(), None);
        let mut alone = Polling::new(false);
        (0..9).for_each(|_| alone.slept(SHORT));
        assert_eq!(alone.limit(), None, "one CPU");
    }

    #[test]
    fn polls_in_vain_become_rare_and_a_good_one_brings_them_back() {
        let mut polling = after([SHORT; 4]);
        let mut rests = Vec::new();
        for _ in 0..12 {
            assert!(polling.limit().is_some());
            polling.in_vain();
            let rest = (0..).take_while(|_| {
                let rests = polling.limit().is_none();
                polling.slept(SHORT);
                rests
            });
            rests.push(rest.count());
        }
        assert_eq!(rests, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        polling.found();
        polling.in_vain();
        assert_eq!(polling.rest_waits, 2);
    }
}
