//! Sets of byte ranges: what clones share, and what a request changes.

/// A set of bytes, as ranges that neither touch nor overlap, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals(Vec<(u64, u64)>);

impl Intervals {
    /// The range from 0 to `end`.
    #[must_use]
    pub fn below(end: u64) -> Self {
        let mut all = Self::default();
        all.insert(0, end);
        all
    }

    /// True if no byte is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges, as (offset, length).
    pub fn extents(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|&(start, end)| (start, end - start))
    }

    /// Adds the bytes from `start` up to `end`.
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|range| range.1 < start);
        let last = self.0.partition_point(|range| range.0 <= end);
        let merged = self.0[first..last]
            .iter()
            .fold((start, end), |merged, range| (merged.0.min(range.0), merged.1.max(range.1)));
        self.0.splice(first..last, [merged]);
    }

    /// Removes the bytes from `start` up to `end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|range| range.1 <= start);
        let last = self.0.partition_point(|range| range.0 < end);
        let mut kept = [None; 2];
        if let Some(range) = self.0[first..last].first() {
            kept[0] = Some((range.0, start)).filter(|range| range.0 < range.1);
        }
        if let Some(range) = self.0[first..last].last() {
            kept[1] = Some((end, range.1)).filter(|range| range.0 < range.1);
        }
        self.0.splice(first..last, kept.into_iter().flatten());
    }

    /// Removes the bytes of another set.
    pub fn subtract(&mut self, other: &Self) {
        for &(start, end) in &other.0 {
            self.remove(start, end);
        }
    }

    /// Adds the bytes of another set.
    pub fn unite(&mut self, other: &Self) {
        for &(start, end) in &other.0 {
            self.insert(start, end);
        }
    }

    /// The bytes that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut both = Vec::new();
        let (mut mine, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(&&left), Some(&&right)) = (mine.peek(), theirs.peek()) {
            let (start, end) = (left.0.max(right.0), left.1.min(right.1));
            if start < end {
                both.push((start, end));
            }
            if left.1 < right.1 {
                mine.next();
            } else {
                theirs.next();
            }
        }
        Self(both)
    }
}

#[cfg(test)]
mod tests {
    use super::Intervals;
    use proptest::prelude::*;

    const BYTES: u64 = 40;

    fn bits(set: &Intervals) -> u64 {
        set.extents().flat_map(|(start, len)| start..start + len).fold(0, |bits, at| bits | 1 << at)
    }

    fn mask(start: u64, end: u64) -> u64 {
        (start..end).fold(0, |bits, at| bits | 1 << at)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn equals_a_set_of_bits(
            steps in prop::collection::vec((any::<bool>(), 0..BYTES, 0..BYTES), 1..20),
        ) {
            let (mut set, mut model) = (Intervals::default(), 0_u64);
            let mut half = (Intervals::default(), 0);
            for (index, &(inserts, start, end)) in steps.iter().enumerate() {
                if inserts {
                    set.insert(start, end);
                    model |= mask(start, end);
                } else {
                    set.remove(start, end);
                    model &= !mask(start, end);
                }
                prop_assert_eq!(bits(&set), model);
                prop_assert!(set.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
                if index == steps.len() / 2 {
                    half = (set.clone(), model);
                }
            }
            prop_assert_eq!(bits(&set.intersection(&half.0)), model & half.1);
            let mut less = set.clone();
            less.subtract(&half.0);
            prop_assert_eq!(bits(&less), model & !half.1);
            set.unite(&half.0);
            prop_assert_eq!(bits(&set), model | half.1);
        }
    }
}
