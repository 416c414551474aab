//! What is measured: the standard cases, the papers' grid, and the choice among them.

use crate::bench::fio::{Load, Pattern};

/// Accesses in flight in sequential cases: enough to hide the round trip, few enough that they
/// reach the disk in order.
const SEQUENTIAL_DEPTH: u32 = 8;

/// Accesses in flight in every case of the grid.
const GRID_DEPTH: u32 = 32;

/// One load, with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// What fio does.
    pub load: Load,
}

impl Case {
    const fn new(pattern: Pattern, block_bytes: u64, depth: u32) -> Self {
        Self { load: Load { pattern, block_bytes, depth } }
    }

    /// For example `4k-randread-qd32`.
    pub fn name(&self) -> String {
        let Load { pattern, block_bytes, depth } = self.load;
        format!("{}k-{}-qd{depth}", block_bytes >> 10, pattern.name())
    }

    /// True if bandwidth is what matters, false if it is the number of I/Os.
    pub fn is_bandwidth(&self) -> bool {
        self.load.pattern.is_sequential()
    }
}

/// The cases of a standard run, in the order they run: the sequential ones first, so that they find
/// the device as it was filled, in order; random writes last, since they leave it in disorder.
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

/// A choice such as `4k-randread*/rs:4+2`, `ram` or `*-qd1`: a case, a contender, or both with a
/// slash between. A star stands for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    text: String,
}

impl std::str::FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.matches('/').count() > 1 {
            return Err("write CASE, CONTENDER or CASE/CONTENDER, with * for anything".to_owned());
        }
        Ok(Self { text: text.to_owned() })
    }
}

impl Choice {
    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// True if a case run by a contender is meant.
    pub fn takes(&self, case: &str, contender: &str) -> bool {
        match self.text.split_once('/') {
            Some((cases, contenders)) => matches(cases, case) && matches(contenders, contender),
            None => matches(&self.text, case) || matches(&self.text, contender),
        }
    }
}

/// True if any choice takes it, or there is none.
pub fn chosen(choices: &[Choice], case: &str, contender: &str) -> bool {
    choices.is_empty() || choices.iter().any(|choice| choice.takes(case, contender))
}

/// Matches a pattern with stars. An empty pattern matches everything, so that `/ram` and `*/ram`
/// are the same.
fn matches(pattern: &str, text: &str) -> bool {
    if pattern.is_empty() {
        return true;
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        // The one before is not the last: it may match anywhere, and earliest is best.
        if let Some(part) = last.replace(part) {
            let part: &str = part;
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
    }
    match last {
        None => rest.is_empty(),
        Some(part) => rest.ends_with(part),
    }
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

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text) in [
            ("ram", "ram"),
            ("", "anything"),
            ("*", ""),
            ("*", "x"),
            ("rs*", "rs:4+2"),
            ("rs*", "rs"),
            ("*qd1", "4k-randread-qd1"),
            ("4k-*-qd32", "4k-randread-qd32"),
            ("*rand*", "4k-randread-qd32"),
            ("a*b*b", "abb"),
            ("**", "x"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("ram", "ramp"),
            ("ram", "cram"),
            ("*qd1", "4k-randread-qd32"),
            ("a*b*b", "ab"),
            ("ab*b", "ab"),
            ("4k*x*", "4k-randread"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn a_choice_names_a_case_or_a_contender_or_both() {
        let takes = |choice: &str, case: &str, contender: &str| {
            choice.parse::<Choice>().expect("a choice").takes(case, contender)
        };
        assert!(takes("ram", "4k-randread-qd1", "ram"));
        assert!(takes("4k-randread-qd1", "4k-randread-qd1", "nbdkit-file"));
        assert!(takes("4k-*/rs:4+2", "4k-randread-qd1", "rs:4+2"));
        assert!(!takes("4k-*/rs:4+2", "4k-randread-qd1", "rs:4+2-direct"));
        assert!(takes("/ram", "4k-randread-qd1", "ram"));
        assert!(!takes("/ram", "4k-randread-qd1", "raw-disk"));
        assert!("a/b/c".parse::<Choice>().is_err() && "".parse::<Choice>().is_err());
        assert!(chosen(&[], "x", "y"));
    }
}
