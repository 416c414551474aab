//! The cases.
//!
//! Every work runs hot and cold, on one core and on all.

use std::fmt;

use fieldstone_units as units;

/// Data and parity shards of the Reed-Solomon cases.
pub const SHAPES: [(usize, usize); 5] = [(4, 2), (6, 3), (8, 3), (10, 4), (12, 4)];

/// Lengths of the shards of these cases, in bytes.
pub const SHARD_BYTES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

/// Sizes of the objects that Zigzag cuts into four nodes, in bytes.
pub const OBJECT_BYTES: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, 64 << 20];

/// The kind of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// ISA-L's Cauchy matrix. Adjacent rows and columns form pairs that share their coefficients.
    Cauchy,
    /// The Cauchy matrix with every column divided by its first coefficient, so that the first row
    /// is ones. Most published codes have such a row.
    Ones,
    /// Random coefficients from 2 to 255, without structure.
    Random,
}

/// The work of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// All parities from all data.
    Encode(Kind),
    /// The first data shard, from the others and a parity, with a Cauchy matrix.
    DecodeOne,
    /// m data shards: every second one, beginning with the first; with a Cauchy matrix.
    DecodeMany,
    /// The first m data shards, with a Cauchy matrix.
    DecodeRun,
    /// Adding the difference of one data shard to all parities.
    Update(Kind),
    /// Encode with Zigzag {6,4,8}.
    Zigzag,
    /// Rebuild of one Zigzag data node, compared with Reed-Solomon's rebuild of as many bytes.
    Rebuild,
}

/// Whether the data is in the caches before the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheState {
    /// The same stripe again and again: in the caches, if it fits.
    Hot,
    /// In memory: stripes that are no longer in the caches.
    Cold,
}

/// The cores that work at the same time, each on its own stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cores {
    /// One core, to which the worker is pinned.
    One,
    /// All cores. Each worker is pinned to its own core.
    All,
}

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The work.
    pub work: Workload,
    /// Data shards.
    pub k: usize,
    /// Parity shards.
    pub m: usize,
    /// Length of a shard, or of a Zigzag node.
    pub shard_bytes: usize,
    /// Whether the data is in the caches.
    pub cache: CacheState,
    /// The cores.
    pub cores: Cores,
}

impl Case {
    /// The name, for example `encode-cauchy-8+3-64K-hot-one`. Names of Zigzag cases have the size
    /// of the object.
    pub fn name(&self) -> String {
        let Self { work, k, m, .. } = self;
        let bytes = match work {
            Workload::Zigzag | Workload::Rebuild => self.shard_bytes * self.k,
            _ => self.shard_bytes,
        };
        let size = units::size_argument(bytes as u64);
        format!("{}-{k}+{m}-{size}-{}-{}", work.name(), self.cache.name(), self.cores.name())
    }
}

impl Workload {
    /// The first part of a case's name.
    pub fn name(self) -> String {
        match self {
            Self::Encode(kind) => format!("encode-{kind}"),
            Self::DecodeOne => "decode-one".to_owned(),
            Self::DecodeMany => "decode-m".to_owned(),
            Self::DecodeRun => "decode-run".to_owned(),
            Self::Update(kind) => format!("update-{kind}"),
            Self::Zigzag => "zigzag".to_owned(),
            Self::Rebuild => "rebuild".to_owned(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cauchy => "cauchy",
            Self::Ones => "ones",
            Self::Random => "random",
        })
    }
}

impl CacheState {
    /// Part of a case's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
        }
    }
}

impl Cores {
    /// Part of a case's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::All => "all",
        }
    }
}

/// All cases. Those of one table are adjacent.
pub fn all() -> Vec<Case> {
    let places = [
        (CacheState::Hot, Cores::One),
        (CacheState::Cold, Cores::One),
        (CacheState::Hot, Cores::All),
        (CacheState::Cold, Cores::All),
    ];
    let works = [
        Workload::Encode(Kind::Cauchy),
        Workload::Encode(Kind::Ones),
        Workload::Encode(Kind::Random),
        Workload::DecodeOne,
        Workload::DecodeMany,
        Workload::DecodeRun,
    ];
    let mut cases = Vec::new();
    for (cache, cores) in places {
        for work in works {
            for shard_bytes in SHARD_BYTES {
                let of = |(k, m)| Case { work, k, m, shard_bytes, cache, cores };
                cases.extend(SHAPES.map(of));
            }
        }
        for kind in [Kind::Cauchy, Kind::Ones] {
            let (work, shard_bytes) = (Workload::Update(kind), 4 << 10);
            cases.push(Case { work, k: 8, m: 3, shard_bytes, cache, cores });
        }
        for work in [Workload::Zigzag, Workload::Rebuild] {
            for object_bytes in OBJECT_BYTES {
                let shard_bytes = object_bytes / 4;
                cases.push(Case { work, k: 4, m: 2, shard_bytes, cache, cores });
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_read_well() {
        let cases = all();
        let mut names: Vec<String> = cases.iter().map(Case::name).collect();
        assert_eq!(names[0], "encode-cauchy-4+2-4K-hot-one");
        assert!(names.contains(&"zigzag-4+2-64M-cold-all".to_owned()));
        assert!(names.contains(&"update-ones-8+3-4K-cold-one".to_owned()));
        assert!(names.iter().all(|name| !name.contains('/')), "choices split at slashes");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cases.len());
    }
}
