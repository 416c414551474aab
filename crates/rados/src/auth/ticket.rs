//! Tickets of services, and how long they are good.
//!
//! A monitor says how long a ticket is valid, not until when. So only the client's own clock
//! counts, from the moment when the ticket arrived, and clocks that differ do no harm. When three
//! quarters of the time have passed, the ticket is due for renewal.
//!
//! The clock is that of the [credentials](super::credentials), which only goes forwards. If the
//! wall clock jumps forwards, the ticket seems to have ended, and is renewed early.

use super::CryptoKey;
use super::wire::{ServiceTicket, TicketBlob};
use crate::encoding::Time;

/// A ticket for a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The key that client and service share.
    pub session_key: CryptoKey,
    /// What the client shows to the service.
    pub blob: TicketBlob,
    /// When it arrived, by the clock of the credentials.
    pub arrived: Time,
    /// How long it is good; zero is for ever.
    pub validity: Time,
}

/// The time `seconds` later.
#[must_use]
pub fn later(time: Time, seconds: u64) -> Time {
    let sum = u64::from(time.seconds).saturating_add(seconds);
    Time { seconds: u32::try_from(sum).unwrap_or(u32::MAX), nanos: time.nanos }
}

impl Ticket {
    /// A ticket that arrives now.
    #[must_use]
    pub fn new(service: ServiceTicket, blob: TicketBlob, now: Time) -> Self {
        let ServiceTicket { session_key, validity } = service;
        Self { session_key, blob, arrived: now, validity }
    }

    /// When it ends; `None` if never.
    #[must_use]
    pub fn expires(&self) -> Option<Time> {
        (self.validity != Time::default())
            .then(|| later(self.arrived, u64::from(self.validity.seconds)))
    }

    /// When to ask for the next one; `None` if never.
    #[must_use]
    pub fn renew_at(&self) -> Option<Time> {
        let seconds = u64::from(self.validity.seconds);
        self.expires().map(|_| later(self.arrived, seconds - seconds / 4))
    }

    /// True if it can be used at this time.
    #[must_use]
    pub fn is_valid(&self, now: Time) -> bool {
        self.expires().is_none_or(|end| now < end)
    }

    /// True if it is time to ask for the next one.
    #[must_use]
    pub fn is_due(&self, now: Time) -> bool {
        self.renew_at().is_some_and(|at| now >= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(arrived: u32, validity: u32) -> Ticket {
        let at = |seconds| Time { seconds, nanos: 0 };
        let session_key = CryptoKey::new([1; 16], at(0));
        let service = ServiceTicket { session_key, validity: at(validity) };
        Ticket::new(service, TicketBlob::default(), at(arrived))
    }

    #[test]
    fn is_due_after_three_quarters() {
        let ticket = ticket(1000, 400);
        let at = |seconds| Time { seconds, nanos: 0 };
        assert!(!ticket.is_due(at(1299)) && ticket.is_due(at(1300)));
        assert!(ticket.is_valid(at(1399)) && !ticket.is_valid(at(1400)));
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(ticket(1000, 0).expires(), None);
        assert!(ticket(1000, 0).is_valid(Time { seconds: u32::MAX, nanos: 0 }));
        let last = ticket(u32::MAX - 5, u32::MAX);
        assert_eq!(last.expires(), Some(Time { seconds: u32::MAX, nanos: 0 }));
    }
}
