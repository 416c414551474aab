//! The request table of a node: one entry per write in progress, and a bound.

use std::collections::BTreeSet;

use crate::network::packet::MessageId;
use crate::network::time::Ps;

/// The writes that a node has in progress.
#[derive(Clone, Debug, Default)]
pub struct RequestTable {
    open: BTreeSet<MessageId>,
    /// Most entries at once.
    pub peak: usize,
    /// Requests denied because the table was full.
    pub denied: u64,
    /// Requests opened and closed.
    pub served: u64,
    /// Entries times picoseconds, up to `changed`.
    integral: u128,
    changed: Ps,
}

impl RequestTable {
    /// Opens an entry. False if the table has `capacity` entries.
    pub fn open(&mut self, now: Ps, message: MessageId, capacity: u64) -> bool {
        if self.open.len() as u64 >= capacity {
            self.denied += 1;
            return false;
        }
        self.advance(now);
        self.open.insert(message);
        self.peak = self.peak.max(self.open.len());
        true
    }

    /// True if the message has an entry.
    pub fn has(&self, message: MessageId) -> bool {
        self.open.contains(&message)
    }

    /// Closes an entry. False if there was none: the request was denied.
    pub fn close(&mut self, now: Ps, message: MessageId) -> bool {
        self.advance(now);
        let is_open = self.open.remove(&message);
        self.served += u64::from(is_open);
        is_open
    }

    /// Entries now.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Entries times picoseconds up to now: the mean over a time is a difference of two, over the
    /// time.
    pub fn occupancy(&mut self, now: Ps) -> u128 {
        self.advance(now);
        self.integral
    }

    fn advance(&mut self, now: Ps) {
        self.integral += self.open.len() as u128 * u128::from((now - self.changed).0);
        self.changed = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_denies() {
        let mut table = RequestTable::default();
        assert!(table.open(Ps(0), MessageId(1), 2));
        assert!(table.open(Ps(10), MessageId(2), 2));
        assert!(!table.open(Ps(20), MessageId(3), 2), "full");
        assert!(table.close(Ps(30), MessageId(1)));
        assert!(!table.close(Ps(30), MessageId(3)), "it was denied");
        assert!(table.open(Ps(40), MessageId(3), 2));
        assert_eq!((table.peak, table.denied, table.served), (2, 1, 1));
        // One entry for 10, two for 20, one for 10, two for 10.
        assert_eq!(table.occupancy(Ps(50)), 10 + 40 + 10 + 20);
    }
}
