//! Jobs and their results.

use std::sync::Arc;

use bytes::Bytes;
use fieldstone_crush::{CrushError, Map, Osds, RuleId};
use fieldstone_gf::{LinearMap, ShapeError};
use thiserror::Error;

/// The submitter's number for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// The number of a submission queue with its own completions: usually one queue per core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubmissionQueueId(pub u16);

/// The overhead of a job in software, in [`Job::software_cost_bytes`].
const JOB_COST_BYTES: u64 = 4 << 10;
/// The work of one CRUSH mapping, in the same bytes: some microseconds, during which a core codes
/// some ten KiB.
const PLACEMENT_COST_BYTES: u64 = 32 << 10;

/// The kinds of jobs, for counters and for devices that do only some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// Executing a linear map: encode, decode, rebuild.
    Code,
    /// CRUSH mappings.
    Place,
    /// CRC32C of blocks.
    Checksum,
}

/// One heavy step. Cloning is cheap, because clones share all bulk data.
#[derive(Clone, Debug)]
pub enum Job {
    /// Compute all outputs of `map` from `inputs`, and the checksums of the outputs if the
    /// submitter wants them. A device then reads the bytes from its host once for both.
    Code {
        /// The linear map.
        map: Arc<LinearMap>,
        /// One buffer per input shard of the map, of lengths that fit its shape.
        inputs: Vec<Bytes>,
        /// Bytes per block of an output, not 0, for a CRC32C of each block; the last block of an
        /// output may be short. `None` if the submitter wants no checksums.
        checksum_block_bytes: Option<usize>,
    },
    /// Map every input through a CRUSH rule.
    Place {
        /// The map.
        map: Arc<Map>,
        /// One of its rules.
        rule: RuleId,
        /// Number of devices for each input.
        width: usize,
        /// The inputs.
        xs: Vec<u32>,
        /// 16.16 reweights of the devices.
        weights: Arc<[u32]>,
    },
    /// CRC32C of every block of `data`; the last block may be short.
    Checksum {
        /// The bytes to sum.
        data: Bytes,
        /// Bytes per block, not 0.
        block_bytes: usize,
    },
}

impl Job {
    /// A coding job without checksums.
    #[must_use]
    pub fn code(map: Arc<LinearMap>, inputs: Vec<Bytes>) -> Self {
        Self::Code { map, inputs, checksum_block_bytes: None }
    }

    /// The job's kind.
    #[must_use]
    pub fn kind(&self) -> JobKind {
        match self {
            Self::Code { .. } => JobKind::Code,
            Self::Place { .. } => JobKind::Place,
            Self::Checksum { .. } => JobKind::Checksum,
        }
    }

    /// Bytes that the job reads. A placement reads four per input.
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        match self {
            Self::Code { inputs, .. } => inputs.iter().map(|input| input.len() as u64).sum(),
            Self::Place { xs, .. } => 4 * xs.len() as u64,
            Self::Checksum { data, .. } => data.len() as u64,
        }
    }

    /// The work of one core with the job: the bytes that a coding reads and writes in the same
    /// time, roughly. Counts the overhead of a job, too.
    #[must_use]
    pub fn software_cost_bytes(&self) -> u64 {
        let work_bytes = match self {
            Self::Code { map, .. } => {
                let elements = |counts: &[u32]| counts.iter().map(|count| u64::from(*count)).sum();
                let inputs: u64 = elements(&map.shape().input_elements);
                let outputs: u64 = elements(&map.shape().output_elements);
                let read_bytes = self.input_bytes();
                read_bytes.saturating_add(read_bytes.saturating_mul(outputs) / inputs.max(1))
            }
            Self::Place { xs, .. } => PLACEMENT_COST_BYTES.saturating_mul(xs.len() as u64),
            Self::Checksum { .. } => self.input_bytes(),
        };
        JOB_COST_BYTES.saturating_add(work_bytes)
    }
}

/// An output of a [`Job::Code`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its bytes, aligned for direct I/O when made in software.
    pub data: Bytes,
    /// CRC32C of each block of the data. Empty if the job asked for no checksums.
    pub checksums: Vec<u32>,
}

/// The result of a job, of the same kind as the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOutput {
    /// One shard per output of the map.
    Code(Vec<Shard>),
    /// One list of devices per input.
    Place(Vec<Osds>),
    /// One CRC32C per block.
    Checksum(Vec<u32>),
}

impl JobOutput {
    /// The shards of a [`Job::Code`], `None` for other kinds.
    #[must_use]
    pub fn into_shards(self) -> Option<Vec<Shard>> {
        if let Self::Code(shards) = self { Some(shards) } else { None }
    }

    /// The placements of a [`Job::Place`], `None` for other kinds.
    #[must_use]
    pub fn into_placements(self) -> Option<Vec<Osds>> {
        if let Self::Place(placements) = self { Some(placements) } else { None }
    }

    /// The sums of a [`Job::Checksum`], `None` for other kinds.
    #[must_use]
    pub fn into_checksums(self) -> Option<Vec<u32>> {
        if let Self::Checksum(checksums) = self { Some(checksums) } else { None }
    }
}

/// Why a job has no result.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum JobError {
    /// The buffers do not fit the linear map.
    #[error("coding: {0}")]
    Shape(#[from] ShapeError),
    /// The map gave an error.
    #[error("placement: {0}")]
    Crush(#[from] CrushError),
    /// The block size of checksums is zero.
    #[error("checksum: a block must have at least one byte")]
    ZeroBlock,
    /// The device could not finish the job. An [`Engine`](crate::Engine) repeats it in software, so
    /// its users never see this error.
    #[error("device: {0}")]
    Device(String),
}
