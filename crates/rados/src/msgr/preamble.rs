//! The first 32 bytes of a frame: its tag, and the lengths of its segments.

use super::checksum::{self, PREAMBLE_COVERED_BYTES};
use super::tag::Tag;
use super::{ConnectionError, MAX_SEGMENTS};

/// The length of a preamble.
pub(super) const PREAMBLE_BYTES: usize = 32;

/// The alignments that Ceph writes: of an object's bytes, and of all else. A reader may ignore
/// them.
const ALIGN: u16 = 8;
const ALIGN_DATA: u16 = 4096;

/// A preamble: u8 tag, u8 number of segments, four times u32 length and u16 alignment, u8 flags, u8
/// zero, u32 checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preamble {
    pub(super) tag: Tag,
    /// Segments that the frame has: up to the last that is not empty, and the first in any case.
    pub(super) segments: usize,
    /// Their lengths; 0 for those that it has not.
    pub(super) lens: [u32; MAX_SEGMENTS],
}

impl Preamble {
    /// The preamble of a frame with segments of these lengths.
    pub(super) fn new(tag: Tag, lens: [u32; MAX_SEGMENTS]) -> Self {
        let segments = lens.iter().rposition(|&len| len > 0).map_or(1, |last| last + 1);
        Self { tag, segments, lens }
    }

    pub(super) fn encode(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[0] = self.tag as u8;
        bytes[1] = self.segments as u8;
        for index in 0..self.segments {
            let at = 2 + 6 * index;
            let align = if index + 1 == MAX_SEGMENTS { ALIGN_DATA } else { ALIGN };
            bytes[at..at + 4].copy_from_slice(&self.lens[index].to_le_bytes());
            bytes[at + 4..at + 6].copy_from_slice(&align.to_le_bytes());
        }
        let sum = checksum::preamble(&covered(&bytes));
        bytes[PREAMBLE_COVERED_BYTES..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a preamble of a frame whose segments have at most `limit` bytes together.
    pub(super) fn decode(
        bytes: &[u8; PREAMBLE_BYTES],
        limit: u64,
    ) -> Result<Self, ConnectionError> {
        let broken = |what: String| Err(ConnectionError::Protocol(what));
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if word(PREAMBLE_COVERED_BYTES) != checksum::preamble(&covered(bytes)) {
            return broken("the checksum of a preamble is wrong".into());
        }
        let Some(tag) = Tag::of(bytes[0]) else {
            return broken(format!("there is no frame with tag {}", bytes[0]));
        };
        let segments = usize::from(bytes[1]);
        let most = if tag == Tag::Message { MAX_SEGMENTS } else { 1 };
        if segments == 0 || segments > most {
            return broken(format!("a frame {tag} has {segments} segments"));
        }
        if bytes[26] != 0 {
            return broken(format!("a frame {tag} has flags {:#x}", bytes[26]));
        }
        let mut lens = [0; MAX_SEGMENTS];
        (0..segments).for_each(|index| lens[index] = word(2 + 6 * index));
        if segments > 1 && lens[segments - 1] == 0 {
            return broken(format!("a frame {tag} has an empty last segment"));
        }
        let total: u64 = lens.iter().map(|&len| u64::from(len)).sum();
        if total > limit {
            return broken(format!("a frame {tag} has {total} bytes; at most {limit} are allowed"));
        }
        Ok(Self { tag, segments, lens })
    }
}

fn covered(bytes: &[u8; PREAMBLE_BYTES]) -> [u8; PREAMBLE_COVERED_BYTES] {
    let mut covered = [0; PREAMBLE_COVERED_BYTES];
    covered.copy_from_slice(&bytes[..PREAMBLE_COVERED_BYTES]);
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut [u8; PREAMBLE_BYTES])) -> String {
        let mut bytes = Preamble::new(Tag::Message, [41, 7, 0, 5]).encode();
        change(&mut bytes);
        let sum = checksum::preamble(&covered(&bytes));
        bytes[PREAMBLE_COVERED_BYTES..].copy_from_slice(&sum.to_le_bytes());
        Preamble::decode(&bytes, 1000).unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_read() {
        for lens in [[0; 4], [1, 0, 0, 0], [41, 7, 0, 0], [41, 0, 0, 9]] {
            let preamble = Preamble::new(Tag::Message, lens);
            assert_eq!(Preamble::decode(&preamble.encode(), 1000), Ok(preamble));
        }
        assert_eq!(Preamble::new(Tag::Message, [0; 4]).segments, 1);
        assert_eq!(Preamble::new(Tag::Message, [0, 1, 0, 0]).segments, 2);
    }

    #[test]
    fn hostile_values_are_refused() {
        assert!(refused(|bytes| bytes[0] = 0).contains("tag 0"));
        assert!(refused(|bytes| bytes[0] = 21).contains("tag 21"));
        assert!(refused(|bytes| bytes[0] = 1).contains("segments"));
        assert!(refused(|bytes| bytes[1] = 0).contains("segments"));
        assert!(refused(|bytes| bytes[1] = 5).contains("segments"));
        assert!(refused(|bytes| bytes[1] = 3).contains("empty last segment"));
        assert!(refused(|bytes| bytes[26] = 1).contains("flags"));
        assert!(refused(|bytes| bytes[5] = 0xff).contains("at most 1000"));
        let good = Preamble::new(Tag::Message, [41, 7, 0, 5]).encode();
        for bit in 0..8 * PREAMBLE_BYTES {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Preamble::decode(&bytes, 1000).is_err());
        }
    }
}
