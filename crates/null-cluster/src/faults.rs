//! What goes wrong on purpose.

use std::collections::VecDeque;

use bytes::Bytes;
use fieldstone_block::Nanos;

/// Faults of a cluster. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// OSDs whose answers come late, each with the delay in ms.
    pub slow_osds: Vec<(u32, u64)>,
    /// A connection of an OSD breaks when it has sent so many bytes.
    pub drop_every_bytes: Option<u64>,
    /// Of every so many sends of an OSD, the last ends in its middle, and so does the connection.
    pub truncate_every: Option<u64>,
    /// OSDs send each answer twice.
    pub duplicate_replies: bool,
    /// Of every so many sends of an OSD, the last has a wrong checksum.
    pub wrong_crc_every: Option<u64>,
    /// Every second another OSD leads each group, and the monitor tells it only to who asks.
    pub stale_maps: bool,
}

impl Faults {
    /// The faults of a connection of an OSD. `None` if there are none.
    pub(crate) fn of_osd(&self, osd: u32) -> Option<Harm> {
        let slow = self.slow_osds.iter().find(|&&(slow, _)| slow == osd);
        let delay = slow.map(|&(_, ms)| Nanos::from_ms(ms));
        let breaks = [self.drop_every_bytes, self.truncate_every, self.wrong_crc_every];
        let is_any = delay.is_some() || breaks.iter().any(Option::is_some);
        is_any.then(|| Harm {
            delay,
            drop_at: self.drop_every_bytes,
            truncate_every: self.truncate_every,
            wrong_crc_every: self.wrong_crc_every,
            ..Harm::default()
        })
    }
}

/// The faults of one connection.
#[derive(Debug, Default)]
pub(crate) struct Harm {
    delay: Option<Nanos>,
    drop_at: Option<u64>,
    truncate_every: Option<u64>,
    wrong_crc_every: Option<u64>,
    sent_bytes: u64,
    sends: u64,
    delayed: VecDeque<(Nanos, Vec<Bytes>)>,
}

/// The checksum of a message's front, before the end of its frame.
const SUM_FROM_END: usize = 12;

/// The first `len` bytes.
fn cut(parts: &mut Vec<Bytes>, len: u64) {
    let mut left = usize::try_from(len).unwrap_or(usize::MAX);
    parts.retain_mut(|part| {
        part.truncate(left);
        left -= part.len();
        !part.is_empty()
    });
}

fn total(parts: &[Bytes]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

/// Flips a bit of the last frame's checksum.
fn damage(parts: &mut [Bytes]) {
    if let Some(last) = parts.last_mut() {
        let mut bytes = last.to_vec();
        let at = bytes.len().saturating_sub(SUM_FROM_END);
        bytes[at] ^= 1;
        *last = bytes.into();
    }
}

impl Harm {
    /// Bytes to send now, of those that the connection has to send and of earlier ones that were
    /// held back.
    pub(crate) fn pass(&mut self, parts: &mut Vec<Bytes>, now: Nanos) {
        let Some(delay) = self.delay else { return };
        if !parts.is_empty() {
            self.delayed.push_back((now.plus(delay), std::mem::take(parts)));
        }
        while self.delayed.front().is_some_and(|&(due, _)| due <= now)
            && let Some((_, due)) = self.delayed.pop_front()
        {
            parts.extend(due);
        }
    }

    /// When there is something more to send.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.delayed.front().map(|&(due, _)| due)
    }

    /// Harms what is sent now. True if the connection ends behind it.
    pub(crate) fn send(&mut self, parts: &mut Vec<Bytes>) -> bool {
        self.sends += 1;
        let is_turn =
            |every: Option<u64>| every.is_some_and(|n| self.sends.is_multiple_of(n.max(1)));
        let (truncates, damages) = (is_turn(self.truncate_every), is_turn(self.wrong_crc_every));
        let bytes = total(parts);
        if damages {
            damage(parts);
        }
        if truncates {
            cut(parts, bytes / 2);
            return true;
        }
        if let Some(at) = self.drop_at
            && self.sent_bytes + bytes >= at
        {
            cut(parts, at - self.sent_bytes);
            return true;
        }
        self.sent_bytes += bytes;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<Bytes> {
        vec![Bytes::from(vec![1; 30]), Bytes::from(vec![2; 20])]
    }

    #[test]
    fn a_connection_ends_at_a_byte() {
        let faults = Faults { drop_every_bytes: Some(120), ..Faults::default() };
        let mut harm = faults.of_osd(3).expect("there is a fault");
        let mut sent = Vec::new();
        for is_last in [false, false, true] {
            let mut parts = parts();
            assert_eq!(harm.send(&mut parts), is_last);
            sent.extend(parts);
        }
        assert_eq!(total(&sent), 120);
    }

    #[test]
    fn the_last_of_some_sends_is_cut_or_damaged() {
        let faults = Faults { truncate_every: Some(2), ..Faults::default() };
        let mut harm = faults.of_osd(0).expect("there is a fault");
        let mut sent = parts();
        assert!(!harm.send(&mut sent));
        assert!(harm.send(&mut sent));
        assert_eq!(total(&sent), 25);
        let faults = Faults { wrong_crc_every: Some(1), ..Faults::default() };
        let mut sent = parts();
        assert!(!faults.of_osd(0).expect("there is a fault").send(&mut sent));
        assert_eq!((sent[1][8], total(&sent)), (3, 50));
    }

    #[test]
    fn a_slow_osd_holds_bytes_back_in_order() {
        let faults = Faults { slow_osds: vec![(1, 5)], ..Faults::default() };
        assert!(faults.of_osd(0).is_none());
        let mut harm = faults.of_osd(1).expect("there is a fault");
        let mut out = parts();
        harm.pass(&mut out, Nanos::from_ms(1));
        assert!(out.is_empty());
        assert_eq!(harm.deadline(), Some(Nanos::from_ms(6)));
        harm.pass(&mut out, Nanos::from_ms(6));
        assert_eq!(out, parts());
        assert_eq!(harm.deadline(), None);
    }
}
