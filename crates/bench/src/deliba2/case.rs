//! The points of the paper's figures: how the data is protected, and the load.

use crate::case::Case;
use crate::fio::Pattern;

/// The sizes of the paper's bar charts, in bytes. The paper writes "kB"; here they are KiB.
pub const BAR_SIZES: [u64; 5] = [4 << 10, 8 << 10, 64 << 10, 128 << 10, 512 << 10];
/// The "other" sizes, which the paper prints in tables.
pub const OTHER_SIZES: [u64; 3] = [16 << 10, 32 << 10, 256 << 10];
/// All sizes, in order.
pub const ALL_SIZES: [u64; 8] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];

/// The patterns in the order of a round: the sequential ones first, so that they read the data in
/// the order of the filling, and random writes last, because they leave it in disorder.
pub const PATTERNS: [Pattern; 4] =
    [Pattern::SequentialWrite, Pattern::SequentialRead, Pattern::RandomRead, Pattern::RandomWrite];

/// How the data is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Three copies.
    Replication,
    /// Reed-Solomon.
    Ec,
}

impl Mode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Replication, Self::Ec];

    /// The beginning of the names of cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replication => "rep",
            Self::Ec => "ec",
        }
    }

    /// The title in reports.
    pub fn title(self) -> &'static str {
        match self {
            Self::Replication => "replication",
            Self::Ec => "erasure coding",
        }
    }
}

/// The name that the paper gives a pattern.
pub fn paper_name(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::SequentialRead => "seq-read",
        Pattern::SequentialWrite => "seq-write",
        Pattern::RandomRead => "rand-read",
        Pattern::RandomWrite => "rand-write",
    }
}

/// The cases of these sizes, in the order of a round.
pub fn cases(sizes: &[u64], depth: u32) -> Vec<Case> {
    let of = |pattern| sizes.iter().map(move |bytes| Case::new(pattern, *bytes, depth));
    PATTERNS.into_iter().flat_map(of).collect()
}

/// The name of a case in one mode, for example `rep-4k-randread-qd1`.
pub fn name(mode: Mode, case: &Case) -> String {
    format!("{}-{}", mode.name(), case.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_are_those_of_the_paper() {
        let mut both = [BAR_SIZES.as_slice(), &OTHER_SIZES].concat();
        both.sort_unstable();
        assert_eq!(both, ALL_SIZES);
        assert!(ALL_SIZES.is_sorted());
        let cases = cases(&BAR_SIZES, 1);
        assert_eq!(cases.len(), 20);
        assert_eq!(name(Mode::Ec, &cases[0]), "ec-4k-write-qd1");
        assert_eq!(name(Mode::Replication, &cases[19]), "rep-512k-randwrite-qd1");
    }
}
