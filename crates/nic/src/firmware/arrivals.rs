//! Which packets of a message have come: each counts once, and a message is complete when all are
//! there.
//!
//! The network may send a packet again, and nodes that forward from several cores let packets
//! overtake each other. The paper assumes that the NIC has sorted out packets that were sent again,
//! before a handler runs (section VII). [`Arrivals`] does it: packets have numbers from 0 on, and a
//! window of [`WINDOW`] bits says which of those behind the first missing one have come. A packet
//! that came before, that is beyond the window, or that contradicts the message's end is none of
//! the message. So the packets that count are those from 0 to the last, each once, whatever comes.
//!
//! Numbers have 16 bits in a packet, and go on from 0 after 65,535.

/// Packets from the first missing one on that a message notes. A sender that is further ahead than
/// that sends them again.
pub const WINDOW: u32 = 64;

/// The packets of a message so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// The first packet that is missing. All before it are there.
    missing: u32,
    /// Bit i: packet `missing + i` is there. Bit 0 is never set between two packets.
    window: u64,
    /// The last packet of the message, once it has come.
    last: Option<u32>,
}

impl Arrivals {
    /// Counts a packet with the low 16 bits of its number; `ends` if it says that it is the last.
    /// False if it is none of the message: then nothing changes.
    pub fn take(&mut self, number: u16, ends: bool) -> bool {
        let ahead = u32::from(number.wrapping_sub(self.missing as u16));
        if ahead >= WINDOW || self.window >> ahead & 1 != 0 {
            return false;
        }
        let number = self.missing.wrapping_add(ahead);
        let is_beyond_end = self.last.is_some_and(|last| number > last);
        let is_end_of_less = ends && (self.last.is_some() || self.window >> ahead != 0);
        if is_beyond_end || is_end_of_less {
            return false;
        }
        if ends {
            self.last = Some(number);
        }
        self.window |= 1 << ahead;
        let there = self.window.trailing_ones();
        self.window = self.window.checked_shr(there).unwrap_or(0);
        self.missing = self.missing.wrapping_add(there);
        true
    }

    /// Whether every packet from the first to the last has come.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.last.is_some_and(|last| self.missing > last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn took(packets: &[(u16, bool)]) -> (Vec<bool>, bool) {
        let mut arrivals = Arrivals::default();
        let taken = packets.iter().map(|&(number, ends)| arrivals.take(number, ends)).collect();
        (taken, arrivals.is_complete())
    }

    #[test]
    fn each_packet_counts_once() {
        let (taken, complete) = took(&[(0, false), (1, false), (1, false), (3, true), (3, true)]);
        assert_eq!((taken, complete), (vec![true, true, false, true, false], false));
        let (taken, complete) = took(&[(0, false), (3, true), (1, false), (0, false), (2, false)]);
        assert_eq!((taken, complete), (vec![true, true, true, false, true], true));
        assert_eq!(took(&[(0, true)]), (vec![true], true));
        assert_eq!(took(&[]), (vec![], false));
    }

    #[test]
    fn what_contradicts_the_end_is_none_of_the_message() {
        let (taken, complete) = took(&[(0, false), (2, true), (3, false), (1, true), (1, false)]);
        assert_eq!((taken, complete), (vec![true, true, false, false, true], true));
        let (taken, complete) = took(&[(0, false), (2, false), (1, true), (2, true), (1, false)]);
        assert_eq!((taken, complete), (vec![true, true, false, false, true], false));
        let (taken, complete) = took(&[(64, false), (63, false), (0, false), (64, true)]);
        assert_eq!((taken, complete), (vec![false, true, true, true], false));
    }

    #[test]
    fn numbers_go_on_after_sixteen_bits() {
        let mut arrivals = Arrivals::default();
        for number in 0..70_000u32 {
            assert!(arrivals.take(number as u16, number == 69_999), "{number}");
            assert!(!arrivals.take(number as u16, false), "{number} again");
            assert_eq!(arrivals.is_complete(), number == 69_999);
        }
    }

    proptest! {
        /// Whatever comes in whatever order: the message is complete exactly when each of its
        /// packets was taken once.
        #[test]
        fn complete_is_every_packet_once(
            count in 1u16..100,
            packets in proptest::collection::vec(0u16..110, 0..600),
        ) {
            let mut arrivals = Arrivals::default();
            let mut taken = std::collections::BTreeSet::new();
            for number in packets {
                let number = number % count.saturating_add(3);
                if arrivals.take(number, number + 1 == count) {
                    prop_assert!(taken.insert(number), "{number} counts twice");
                }
                let all = (0..count).all(|number| taken.contains(&number));
                let beyond = taken.iter().any(|&number| number >= count);
                prop_assert_eq!(arrivals.is_complete(), all && !beyond);
            }
        }
    }
}
