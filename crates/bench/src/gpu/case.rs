//! The cases, and the maps and sizes behind them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use fieldstone_codes::Profile;
use fieldstone_gf::LinearMap;
use fieldstone_gpu::program::PITCH_ALIGN_BYTES;
use fieldstone_units as units;

/// Codes whose objects lie on the card.
const CARD_CODES: [&str; 6] = ["rs:4+2", "rs:8+4", "rs:12+4", "zigzag:4+2", "clay:4+2", "clay:8+4"];
/// Codes whose objects lie in the host's memory.
const HOST_CODES: [&str; 3] = ["rs:4+2", "rs:8+4", "clay:4+2"];
/// Codes that each method encodes.
const METHOD_CODES: [&str; 3] = ["rs:4+2", "rs:8+4", "rs:12+4"];
/// Bytes of data of an object: 64 KiB to 1 GiB.
const OBJECT_BYTES: [u64; 8] =
    [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];
/// The object of the cases with one method each.
const METHOD_OBJECT_BYTES: u64 = 256 << 20;
/// Smaller objects have no target: the start of the work takes a large part of their time.
pub const TARGET_BYTES_MIN: u64 = 16 << 20;

/// What a case measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Objects in the card's memory.
    Card,
    /// Objects in the host's memory, through the queue of jobs.
    Host,
    /// The methods of a program, on objects in the card's memory.
    Method,
}

/// The work on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// All parities from all data.
    Encode,
    /// Data shard 0 from the others.
    Rebuild,
    /// Data shards 0 and 1 from the others.
    Decode,
}

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The part of the benchmark.
    pub part: Part,
    /// The work.
    pub work: Work,
    /// The code.
    pub code: &'static str,
    /// Bytes of data of an object, before elements are rounded up.
    pub object_bytes: u64,
}

impl Part {
    /// The first part of a case's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Host => "host",
            Self::Method => "method",
        }
    }
}

impl Work {
    /// Part of a case's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Encode => "encode",
            Self::Rebuild => "rebuild",
            Self::Decode => "decode",
        }
    }

    fn lost(self) -> &'static [usize] {
        match self {
            Self::Encode => &[],
            Self::Rebuild => &[0],
            Self::Decode => &[0, 1],
        }
    }
}

impl Case {
    /// The name, for example `card-encode-rs:4+2-64K`.
    pub fn name(&self) -> String {
        let size = units::size_argument(self.object_bytes);
        format!("{}-{}-{}-{size}", self.part.name(), self.work.name(), self.code)
    }
}

/// All cases. Those of one table are adjacent.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |part, works: &[Work], codes: &[&'static str], sizes: &[u64]| {
        for &work in works {
            for &code in codes {
                cases.extend(sizes.iter().map(|&object_bytes| Case {
                    part,
                    work,
                    code,
                    object_bytes,
                }));
            }
        }
    };
    let works = [Work::Encode, Work::Rebuild, Work::Decode];
    add(Part::Card, &works, &CARD_CODES, &OBJECT_BYTES);
    add(Part::Host, &works[..2], &HOST_CODES, &OBJECT_BYTES);
    add(Part::Method, &works[..1], &METHOD_CODES, &[METHOD_OBJECT_BYTES]);
    cases
}

/// The map of a work, with the shape of its code.
#[derive(Clone, Debug)]
pub struct Coding {
    /// The map.
    pub map: Arc<LinearMap>,
    /// Data shards.
    k: u64,
    /// Elements of a shard.
    elements: u64,
}

/// Bytes of one execution of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of an element: a multiple of the alignment on the card.
    pub element_bytes: u64,
    /// Bytes of data of the object.
    pub object_bytes: u64,
    /// Bytes of each input.
    pub inputs: Vec<u64>,
    /// Bytes of each output.
    pub outputs: Vec<u64>,
}

impl Coding {
    /// The map of a work with a code.
    fn new(code: &str, work: Work) -> anyhow::Result<Self> {
        let profile: Profile = code.parse().map_err(|error| anyhow::anyhow!("{code}: {error}"))?;
        let built = profile.code();
        let lost = work.lost();
        let map = if lost.is_empty() {
            Arc::clone(built.encode())
        } else {
            let left: Vec<usize> = (0..profile.shards()).filter(|s| !lost.contains(s)).collect();
            let plan = built.repair(lost, &left).with_context(|| code.to_owned())?;
            Arc::clone(&plan.map)
        };
        Ok(Self { map, k: profile.k() as u64, elements: u64::from(profile.elements()) })
    }

    /// The sizes for an object of about this many bytes of data. The length of an element is
    /// rounded up.
    pub fn sizes(&self, object_bytes: u64) -> Sizes {
        let elements = self.k * self.elements;
        let element_bytes =
            object_bytes.div_ceil(elements).max(1).next_multiple_of(PITCH_ALIGN_BYTES);
        let shape = self.map.shape();
        let lengths = |counts: &[u32]| -> Vec<u64> {
            counts.iter().map(|&count| u64::from(count) * element_bytes).collect()
        };
        Sizes {
            element_bytes,
            object_bytes: element_bytes * elements,
            inputs: lengths(&shape.input_elements),
            outputs: lengths(&shape.output_elements),
        }
    }
}

impl Sizes {
    /// Bytes of all inputs.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().sum()
    }

    /// Bytes of all outputs.
    pub fn output_bytes(&self) -> u64 {
        self.outputs.iter().sum()
    }

    /// Bytes read and written.
    pub fn moved_bytes(&self) -> u64 {
        self.input_bytes() + self.output_bytes()
    }
}

/// The maps of a run. A card finds the program of a map again by its address, so each map is made
/// once.
#[derive(Debug, Default)]
pub struct Codings(BTreeMap<(&'static str, Work), Coding>);

impl Codings {
    /// The map of a case.
    ///
    /// # Errors
    /// The code does not do this work.
    pub fn get(&mut self, case: &Case) -> anyhow::Result<Coding> {
        if let Some(coding) = self.0.get(&(case.code, case.work)) {
            return Ok(coding.clone());
        }
        let coding = Coding::new(case.code, case.work)?;
        self.0.insert((case.code, case.work), coding.clone());
        Ok(coding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_read_well() {
        let cases = all();
        assert_eq!(cases.len(), 6 * 3 * 8 + 3 * 2 * 8 + 3);
        let mut names: Vec<String> = cases.iter().map(Case::name).collect();
        assert_eq!(names[0], "card-encode-rs:4+2-64K");
        assert!(names.contains(&"host-rebuild-clay:4+2-1G".to_owned()));
        assert!(names.contains(&"method-encode-rs:12+4-256M".to_owned()));
        assert!(names.iter().all(|name| !name.contains('/')), "choices split at slashes");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cases.len());
    }

    #[test]
    fn sizes_follow_the_shape_of_the_map() {
        let coding = Coding::new("rs:12+4", Work::Encode).expect("a code");
        let sizes = coding.sizes(64 << 10);
        // 65536 / 12 is 5461.3, and the next multiple of 16 is 5472.
        assert_eq!((sizes.element_bytes, sizes.object_bytes), (5472, 12 * 5472));
        assert_eq!((sizes.input_bytes(), sizes.output_bytes()), (12 * 5472, 4 * 5472));
        // Clay reads a half of each of five shards to rebuild one.
        let coding = Coding::new("clay:4+2", Work::Rebuild).expect("a code");
        let sizes = coding.sizes(1 << 20);
        assert_eq!(sizes.object_bytes, 1 << 20);
        assert_eq!(sizes.inputs, [1 << 17; 5]);
        assert_eq!(sizes.outputs, [1 << 18]);
        assert_eq!(sizes.moved_bytes(), 5 * (1 << 17) + (1 << 18));
    }

    #[test]
    fn every_case_has_a_map_and_a_pitch_that_a_launch_takes() {
        let mut codings = Codings::default();
        for case in all() {
            let coding = codings.get(&case).expect("a map");
            let again = codings.get(&case).expect("a map");
            assert!(Arc::ptr_eq(&coding.map, &again.map), "each map is made once");
            let sizes = coding.sizes(case.object_bytes);
            assert!(u32::try_from(sizes.element_bytes).is_ok(), "{}", case.name());
            assert!(sizes.object_bytes >= case.object_bytes);
            assert!(sizes.element_bytes.is_multiple_of(PITCH_ALIGN_BYTES));
        }
    }
}
