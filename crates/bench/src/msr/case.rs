//! The works, the sizes, the contenders, and the points that a run finds.

use fieldstone_units as units;
use serde_json::{Map, Value};

/// The code: the paper's {6,4,8}.
pub const PROFILE: &str = "zigzag:4+2";
/// The data shard that a rebuild makes again, as in `code bench`.
pub const LOST: [usize; 1] = [1];
/// The other shards.
pub const SURVIVORS: [usize; 5] = [0, 2, 3, 4, 5];
/// Data shards.
pub const K: usize = 4;
/// Elements of all data shards: the bytes of an object over those of an element.
pub const DATA_ELEMENTS: usize = 32;
/// Sizes of objects, in bytes.
pub const SIZES: [usize; 7] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Bytes of a batch of small objects: the caption of the paper's Fig. 5.
pub const BATCH_BYTES: usize = 4 << 20;

/// The work on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Two parities of four data shards.
    Encode,
    /// One data shard from half of each of the five others: the paper's decode.
    Rebuild,
}

impl Work {
    /// Both works.
    pub const ALL: [Self; 2] = [Self::Encode, Self::Rebuild];

    /// Part of a case's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Encode => "encode",
            Self::Rebuild => "rebuild",
        }
    }
}

/// The contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Our software on one core.
    CpuOne,
    /// Our software on all cores, each with its own objects.
    CpuAll,
    /// gf-complete, one call per term, on one core.
    GfOne,
    /// The same on all cores.
    GfAll,
    /// The GPU; small objects in batches.
    Gpu,
    /// The GPU with one launch per small object.
    GpuSingle,
    /// The device at the lower end of the estimate of its clock; small objects in batches.
    Fpga,
    /// The same at the paper's clock.
    FpgaPaperClock,
    /// The device with one operation per small object, at the lower end of the estimate.
    FpgaSingle,
    /// The same at the paper's clock.
    FpgaSinglePaperClock,
}

impl Who {
    /// All, in the order of the report.
    pub const ALL: [Self; 10] = [
        Self::CpuOne,
        Self::CpuAll,
        Self::GfOne,
        Self::GfAll,
        Self::Gpu,
        Self::GpuSingle,
        Self::Fpga,
        Self::FpgaPaperClock,
        Self::FpgaSingle,
        Self::FpgaSinglePaperClock,
    ];

    /// The name in rows and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuOne => "cpu-1",
            Self::CpuAll => "cpu-all",
            Self::GfOne => "gf-complete-1",
            Self::GfAll => "gf-complete-all",
            Self::Gpu => "gpu",
            Self::GpuSingle => "gpu-single",
            Self::Fpga => "fpga-151",
            Self::FpgaPaperClock => "fpga-300",
            Self::FpgaSingle => "fpga-151-single",
            Self::FpgaSinglePaperClock => "fpga-300-single",
        }
    }

    /// The contender with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|who| who.name() == name)
    }

    /// True if the device does the work.
    pub fn is_fpga(self) -> bool {
        self.name().starts_with("fpga")
    }
}

/// One point of a figure.
#[derive(Clone, Debug)]
pub struct Point {
    /// The work.
    pub work: Work,
    /// The size of the object.
    pub object_bytes: usize,
    /// The contender.
    pub who: Who,
    /// Bytes of objects per second, in 10^9.
    pub gb_per_second: f64,
    /// Time measured, in seconds; 0 if nothing was measured now.
    pub seconds: f64,
    /// More fields of the row.
    pub more: Map<String, Value>,
}

impl Point {
    /// The name of the point's row, such as `encode/16M/gpu`.
    pub fn name(&self) -> String {
        format!("{}/{}", case_name(self.work, self.object_bytes), self.who.name())
    }
}

/// The name of a work on an object, such as `encode/16M`.
pub fn case_name(work: Work, object_bytes: usize) -> String {
    format!("{}/{}", work.name(), units::size_argument(object_bytes as u64))
}

/// The work, the size and the contender of a name, if there are such.
pub fn parse_name(name: &str) -> Option<(Work, usize, Who)> {
    let (case, who) = name.rsplit_once('/')?;
    let all = Work::ALL.into_iter().flat_map(|work| SIZES.map(|size| (work, size)));
    let (work, size) = all.into_iter().find(|(work, size)| case_name(*work, *size) == case)?;
    Some((work, size, Who::named(who)?))
}

/// The points of a run, and the contenders that it lacks.
#[derive(Debug, Default)]
pub struct Findings {
    /// The points.
    pub points: Vec<Point>,
    /// What was not measured, and the reason.
    pub absent: Vec<(String, String)>,
    /// What a reader must know about the points: cards, recorded values.
    pub notes: Vec<String>,
}

impl Findings {
    /// The point of a work, a size and a contender.
    pub fn point(&self, work: Work, object_bytes: usize, who: Who) -> Option<&Point> {
        let mut points = self.points.iter();
        points.find(|p| p.work == work && p.object_bytes == object_bytes && p.who == who)
    }

    /// True if there is a point of this contender.
    pub fn has(&self, work: Work, who: Who) -> bool {
        self.points.iter().any(|point| point.work == work && point.who == who)
    }
}

/// Small objects of a batch, at least one.
pub fn objects_per_batch(object_bytes: usize) -> usize {
    (BATCH_BYTES / object_bytes.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for work in Work::ALL {
            for object_bytes in SIZES {
                for who in Who::ALL {
                    let name = format!("{}/{}", case_name(work, object_bytes), who.name());
                    assert_eq!(parse_name(&name), Some((work, object_bytes, who)), "{name}");
                }
            }
        }
        for name in ["", "encode/16M", "encode/17M/gpu", "encode/16M/tpu", "decode/16M/gpu"] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn sizes_are_whole_elements_and_whole_batches() {
        for object_bytes in SIZES {
            // The device reads 64 bytes at once.
            assert!(object_bytes.is_multiple_of(64 * DATA_ELEMENTS));
            let batch = objects_per_batch(object_bytes) * object_bytes;
            assert_eq!(batch, BATCH_BYTES.max(object_bytes));
        }
        assert_eq!(objects_per_batch(16 << 10), 256);
        assert_eq!(objects_per_batch(64 << 20), 1);
    }

    #[test]
    fn the_code_is_the_papers() {
        let profile: fieldstone_codes::Profile = PROFILE.parse().expect("a profile");
        let code = profile.code();
        assert_eq!((code.k(), code.m(), code.elements()), (K, 2, 8));
        assert_eq!(code.k() * code.elements() as usize, DATA_ELEMENTS);
        let plan = code.repair(&LOST, &SURVIVORS).expect("one is lost");
        assert!(plan.reads.iter().all(|read| read.element_count() == 4), "half of each");
        assert_eq!(plan.reads.len(), SURVIVORS.len());
    }
}
