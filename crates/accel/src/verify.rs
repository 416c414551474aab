//! Verifies the results of a device before the engine hands them out.
//!
//! A device may give wrong bits without an error: after a flip in its memory, with a defective
//! chip, or with a faulty design. A shard with wrong bytes gets a checksum that fits, so no node
//! and no scrub finds it, and a client gets wrong data once other shards are lost. So the engine
//! verifies each result:
//!
//! - *Code*: the check of [`OutputCheck`], whose essay says which errors it finds, and every
//!   checksum of the outputs. A node that shares the volume's server does not check them. With a
//!   wrong checksum, a good block counts as damaged, and the segment survives one loss less.
//! - *Place*: a placement is any choice of nodes, and the volume notes it. It does harm only if it
//!   names a node twice, a node without weight, or a node that does not exist.
//! - *Checksum*: the number of sums, and one of the sums, another one in each job. A node checks
//!   the sums of a shard before it takes the shard.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use fieldstone_crush::Osds;
use fieldstone_gf::{LinearMap, OutputCheck};

use crate::software::sums;
use crate::{Job, JobOutput, Shard, crc32c};

/// Checks that a verifier keeps, of the maps that were used last. A volume encodes with one map,
/// and decodes with one for each pattern of losses.
const CHECKS_MAX: usize = 16;

/// Verifies the results of one device.
#[derive(Debug, Default)]
pub(crate) struct Verifier {
    /// The map that was used last is at the front.
    checks: VecDeque<(Arc<LinearMap>, OutputCheck)>,
    checks_made: u64,
    checksum_jobs: usize,
}

impl Verifier {
    /// Whether `output` can be the result of `job`. False also for some results that are right:
    /// only software can say more.
    pub(crate) fn trusts(&mut self, job: &Job, output: &JobOutput) -> bool {
        match (job, output) {
            (Job::Code { map, inputs, checksum_block_bytes }, JobOutput::Code(shards)) => {
                let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[..]).collect();
                let data: Vec<&[u8]> = shards.iter().map(|shard| &shard.data[..]).collect();
                self.check_of(map).passes(&inputs, &data)
                    && shards.iter().all(|shard| has_its_sums(shard, *checksum_block_bytes))
            }
            (Job::Place { width, xs, weights, .. }, JobOutput::Place(placements)) => {
                let sound = |placement| is_sound(placement, *width, weights);
                placements.len() == xs.len() && placements.iter().all(sound)
            }
            (Job::Checksum { data, block_bytes }, JobOutput::Checksum(sums)) => {
                let blocks = data.chunks((*block_bytes).max(1));
                if *block_bytes == 0 || blocks.len() != sums.len() {
                    return false;
                }
                self.checksum_jobs += 1;
                let at = self.checksum_jobs % sums.len().max(1);
                blocks.zip(sums).nth(at).is_none_or(|(block, sum)| crc32c(block) == *sum)
            }
            _ => false,
        }
    }

    /// The check for a map. Its weights follow from the number of checks before it: a device knows
    /// nothing of them, so they need not be secret.
    fn check_of(&mut self, map: &Arc<LinearMap>) -> &OutputCheck {
        let known = self.checks.iter().position(|(known, _)| Arc::ptr_eq(known, map));
        let entry = known.and_then(|at| self.checks.remove(at)).unwrap_or_else(|| {
            self.checks_made += 1;
            (Arc::clone(map), OutputCheck::new(map, self.checks_made))
        });
        self.checks.truncate(CHECKS_MAX - 1);
        self.checks.push_front(entry);
        &self.checks[0].1
    }
}

/// The checksums are those that the job asked for.
fn has_its_sums(shard: &Shard, block_bytes: Option<usize>) -> bool {
    match block_bytes {
        None => shard.checksums.is_empty(),
        Some(0) => false,
        Some(block_bytes) => shard.checksums == sums(&shard.data, block_bytes),
    }
}

fn is_sound(placement: &Osds, width: usize, weights: &[u32]) -> bool {
    let mut seen = BTreeSet::new();
    placement.len() <= width
        && placement.iter().flatten().all(|osd| {
            let weight = usize::try_from(osd.0).ok().and_then(|osd| weights.get(osd));
            weight.is_some_and(|weight| *weight > 0) && seen.insert(osd.0)
        })
}
