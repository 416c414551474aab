//! The cases: the standard ones and the papers' grid.

pub use crate::case::Case;
use crate::fio::Pattern;

/// Accesses in flight in sequential cases: enough to hide the round trip, but so few that they
/// reach the disk in order.
const SEQUENTIAL_DEPTH: u32 = 8;

/// Accesses in flight in every case of the grid.
const GRID_DEPTH: u32 = 32;

/// The cases of a standard run, in the order in which they run. The sequential ones are first, so
/// that they read the data in the order of the filling. Random writes are last, because they leave
/// the data in disorder.
pub fn standard() -> Vec<Case> {
    use Pattern::{RandomRead, RandomWrite, SequentialRead, SequentialWrite};
    const SMALL: u64 = 4 << 10;
    const LARGE: u64 = 128 << 10;
    vec![
        Case::new(SequentialWrite, LARGE, SEQUENTIAL_DEPTH),
        Case::new(SequentialRead, LARGE, SEQUENTIAL_DEPTH),
        Case::new(RandomRead, SMALL, 1),
        Case::new(RandomRead, SMALL, 32),
        Case::new(RandomWrite, SMALL, 1),
        Case::new(RandomWrite, SMALL, 32),
    ]
}

/// The grid of the DeLiBA papers: 4 KiB to 512 KiB, sequential and random, read and write.
pub fn grid() -> Vec<Case> {
    let sizes = || (2..=9).map(|power| 1u64 << (power + 10));
    let patterns = [
        Pattern::SequentialWrite,
        Pattern::SequentialRead,
        Pattern::RandomRead,
        Pattern::RandomWrite,
    ];
    let of = |pattern| sizes().map(move |bytes| Case::new(pattern, bytes, GRID_DEPTH));
    patterns.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_read_well() {
        for cases in [standard(), grid()] {
            let mut names: Vec<String> = cases.iter().map(Case::name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), cases.len());
        }
        assert_eq!(standard()[3].name(), "4k-randread-qd32");
        assert_eq!(standard()[0].name(), "128k-write-qd8");
        assert_eq!(grid().len(), 32);
        assert_eq!(grid()[0].load.block_bytes, 4096);
        assert_eq!(grid()[7].load.block_bytes, 512 << 10);
    }
}
