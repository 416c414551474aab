//! The engine that every machine has: the CPU. It defines the bits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum};
use fieldstone_buf::AlignedBuf;
use fieldstone_gf::{LinearMap, Options, ShapeError, StoreMode};

use crate::{Device, Job, JobCompletion, JobError, JobId, JobOutput, Shard, SubmissionQueueId};

/// The largest number of finished jobs that one queue holds until its next poll.
pub const MAX_WAITING_COMPLETIONS: usize = 1024;

/// CRC32C (iSCSI polynomial), the checksum of all formats of this project.
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    // The library returns every width as 64 bits.
    checksum(CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// Executes a job now, on this core.
pub fn execute(job: &Job) -> Result<JobOutput, JobError> {
    match job {
        Job::Code { checksum_block_bytes: Some(0), .. } => Err(JobError::ZeroBlock),
        Job::Code { map, inputs, checksum_block_bytes } => {
            let shards = code(map, inputs)?.into_iter().map(|data| Shard {
                checksums: checksum_block_bytes.map_or_else(Vec::new, |len| sums(&data, len)),
                data,
            });
            Ok(JobOutput::Code(shards.collect()))
        }
        Job::Place { map, rule, width, xs, weights } => {
            Ok(JobOutput::Place(map.rule(*rule)?.map_batch(xs, *width, weights)))
        }
        Job::Checksum { block_bytes: 0, .. } => Err(JobError::ZeroBlock),
        Job::Checksum { data, block_bytes } => Ok(JobOutput::Checksum(sums(data, *block_bytes))),
    }
}

/// CRC32C of each block.
pub(crate) fn sums(data: &[u8], block_bytes: usize) -> Vec<u32> {
    data.chunks(block_bytes).map(crc32c).collect()
}

fn code(map: &Arc<LinearMap>, inputs: &[Bytes]) -> Result<Vec<Bytes>, ShapeError> {
    let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
    let element_bytes = map.element_bytes(&inputs)?;
    let lengths = map.shape().output_elements.iter().map(|&n| n as usize * element_bytes);
    let mut outputs: Vec<AlignedBuf> = lengths.map(AlignedBuf::stale).collect();
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(|output| &mut output[..]).collect();
    // The outputs are used soon: for checksums, for a reply or on the way to a node.
    let options = Options { stores: StoreMode::Plain, ..Options::default() };
    map.execute_with(options, &inputs, &mut slices)?;
    Ok(outputs.into_iter().map(AlignedBuf::freeze).collect())
}

/// Executes each job at its submission, and completes it when its queue is polled.
#[derive(Debug, Default)]
pub struct SoftwareEngine {
    finished: BTreeMap<SubmissionQueueId, VecDeque<JobCompletion>>,
}

impl SoftwareEngine {
    /// An engine with empty queues.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a result for the next poll of its queue, regardless of the queue's bound.
    pub(crate) fn keep(&mut self, queue: SubmissionQueueId, completion: JobCompletion) {
        self.finished.entry(queue).or_default().push_back(completion);
    }
}

impl Device for SoftwareEngine {
    fn name(&self) -> &str {
        "software"
    }

    fn takes(&self, _job: &Job) -> bool {
        true
    }

    fn submit(&mut self, queue: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
        let waiting = self.finished.get(&queue).map_or(0, VecDeque::len);
        if waiting >= MAX_WAITING_COMPLETIONS {
            return Err(job);
        }
        self.keep(queue, JobCompletion { job: id, result: execute(&job) });
        Ok(())
    }

    fn poll(&mut self, queue: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
        if let Some(finished) = self.finished.get_mut(&queue) {
            completions.extend(finished.drain(..));
        }
    }
}
