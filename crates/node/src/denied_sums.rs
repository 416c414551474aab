//! Sums that the node has denied for want of memory, and of which contributions may still come.
//!
//! Without this memory the next contribution to a denied sum could find room, and would then wait
//! in vain for the one that was denied. With it, all contributions to a denied sum come back at
//! once, and nothing else of the volume changes. The memory of a sum ends with its last
//! contribution, after some time, or with the volume's pass.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_proto::VolumeId;

use crate::limits::{DENIED_SUMS_MAX, DENIED_SUMS_PER_VOLUME_MAX};
use crate::stream::Piece;

/// A sum that was denied.
#[derive(Debug)]
struct Denied {
    /// The columns that have come.
    columns: Vec<u8>,
    /// Number of columns.
    count: u8,
    /// When the node forgets the sum, in nanoseconds of its clock.
    until_ns: u64,
}

/// The sums that were denied.
#[derive(Debug, Default)]
pub(crate) struct DeniedSums {
    by_piece: BTreeMap<Piece, Denied>,
    /// When the node forgets each of them.
    until: BTreeSet<(u64, Piece)>,
    /// Their number for each volume that has any.
    of_volume: BTreeMap<VolumeId, usize>,
}

impl DeniedSums {
    /// Whether this column comes to a sum that was denied.
    pub(crate) fn denies(&mut self, now_ns: u64, piece: Piece, column: u8) -> bool {
        let Some(denied) = self.by_piece.get_mut(&piece) else { return false };
        if denied.until_ns <= now_ns {
            self.remove(piece);
            return false;
        }
        if !denied.columns.contains(&column) {
            denied.columns.push(column);
        }
        if denied.columns.len() >= usize::from(denied.count) {
            self.remove(piece);
        }
        true
    }

    /// Notes that a sum of `count` columns is denied until then, of which these have come. False if
    /// there is no room for it.
    pub(crate) fn note(
        &mut self,
        now_ns: u64,
        piece: Piece,
        (mut columns, count): (Vec<u8>, u8),
        until_ns: u64,
    ) -> bool {
        columns.sort_unstable();
        columns.dedup();
        if columns.len() >= usize::from(count) {
            return true;
        }
        while let Some(&(until_ns, over)) = self.until.first()
            && until_ns <= now_ns
        {
            self.remove(over);
        }
        if self.is_full_for(piece.key.volume) {
            return false;
        }
        self.remove(piece);
        if self.by_piece.insert(piece, Denied { columns, count, until_ns }).is_none() {
            self.until.insert((until_ns, piece));
            *self.of_volume.entry(piece.key.volume).or_default() += 1;
        }
        true
    }

    fn is_full_for(&self, volume: VolumeId) -> bool {
        let of_volume = self.of_volume.get(&volume).copied().unwrap_or_default();
        self.by_piece.len() >= DENIED_SUMS_MAX || of_volume >= DENIED_SUMS_PER_VOLUME_MAX
    }

    /// Forgets the sums of a volume: its contributions have another pass from now on.
    pub(crate) fn forget(&mut self, volume: VolumeId) {
        if self.of_volume.remove(&volume).is_some() {
            self.by_piece.retain(|piece, _| piece.key.volume != volume);
            self.until.retain(|(_, piece)| piece.key.volume != volume);
        }
    }

    fn remove(&mut self, piece: Piece) {
        let Some(removed) = self.by_piece.remove(&piece) else { return };
        self.until.remove(&(removed.until_ns, piece));
        if let Some(count) = self.of_volume.get_mut(&piece.key.volume) {
            *count -= 1;
            if *count == 0 {
                self.of_volume.remove(&piece.key.volume);
            }
        }
    }

    /// For tests: the counts agree.
    pub(crate) fn is_consistent(&self) -> bool {
        self.of_volume.values().sum::<usize>() == self.by_piece.len()
            && self.until.len() == self.by_piece.len()
            && self.of_volume.values().all(|count| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::{SegmentId, ShardIndex};

    use super::*;
    use crate::store::ShardKey;

    fn piece(volume: u128, segment: u64) -> Piece {
        let (segment, shard) = (SegmentId(segment), ShardIndex(4));
        let key = ShardKey { volume: VolumeId(volume), segment, shard };
        Piece { key, offset_bytes: 0 }
    }

    #[test]
    fn a_denied_sum_is_remembered_until_all_columns_have_come_or_time_is_over() {
        let mut sums = DeniedSums::default();
        assert!(sums.note(5, piece(1, 1), (vec![2], 3), 10));
        assert!(!sums.denies(5, piece(1, 2), 0));
        assert!(sums.denies(6, piece(1, 1), 0) && sums.denies(7, piece(1, 1), 0));
        assert!(sums.denies(8, piece(1, 1), 1), "the last one");
        assert!(!sums.denies(8, piece(1, 1), 1));
        assert!(sums.note(5, piece(1, 1), (vec![2], 3), 10));
        assert!(!sums.denies(10, piece(1, 1), 0));
        assert!(sums.note(5, piece(1, 1), (vec![0, 2, 0, 1], 3), 10), "no column is missing");
        assert!(sums.by_piece.is_empty() && sums.is_consistent());
    }

    #[test]
    fn their_number_is_bounded_for_each_volume_and_in_all() {
        let mut sums = DeniedSums::default();
        let most = DENIED_SUMS_PER_VOLUME_MAX as u64;
        let volumes = (DENIED_SUMS_MAX / DENIED_SUMS_PER_VOLUME_MAX) as u128;
        for volume in 0..volumes {
            for segment in 0..most {
                assert!(sums.note(5, piece(volume, segment), (vec![0], 2), 10 + segment));
            }
            assert!(!sums.note(5, piece(volume, most), (vec![0], 2), 10));
        }
        assert!(!sums.note(5, piece(volumes, 0), (vec![0], 2), 10), "all volumes have too many");
        assert!(sums.note(10, piece(volumes, 0), (vec![0], 2), 11), "time is over for some");
        assert!(sums.is_consistent());
        for volume in 0..=volumes {
            sums.forget(VolumeId(volume));
        }
        assert!(sums.by_piece.is_empty() && sums.of_volume.is_empty());
    }
}
