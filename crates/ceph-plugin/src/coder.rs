//! What Ceph asks of an erasure code, answered by a code of this project.
//!
//! Ceph calls a shard of a stripe a *chunk*, an element of it a *sub-chunk*, and the stripe of a
//! pool is small: 4 KiB of each chunk unless the pool says otherwise. The OSD calls once for each
//! stripe, so the fixed cost of a call matters as much as the speed of the arithmetic.
//!
//! # Repair from parts of chunks
//!
//! A regenerating code repairs one chunk from parts of the others. The OSD supports that, with
//! three conditions:
//!
//! 1. [`Coder::minimum`] names ranges of sub-chunks for every chunk that is read, and the OSD reads
//!    just these from each stripe. It then assumes that *every chunk gives equally many bytes*.
//! 2. Before it decodes, the OSD asks again which chunks are needed, now with the chunks that it
//!    read as the only ones available. *The second answer must be the first.*
//! 3. Nothing but the lost chunks is wanted: a wanted chunk that is there is read whole.
//!
//! If a plan does not fulfil one of them, [`Coder::minimum`] names k whole chunks, which is always
//! correct. A repair is recognised in [`Coder::decode`] by inputs that are shorter than the chunk.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use fieldstone_codes::{
    Code, CodeError, Layout, Profile, RepairPlan, ShardRead, StripeError, stripe,
};

use crate::request::Request;
use crate::{EINVAL, EIO, Refusal};

/// The sub-chunks of one chunk that are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The chunk.
    pub chunk: usize,
    /// Sub-chunks, in ascending order.
    pub sub_chunks: Range<u32>,
}

/// A code with Ceph's rules for lengths. It does not change after it was made.
pub struct Coder {
    code: Arc<dyn Code>,
    profile: Profile,
    aligned_per_chunk: bool,
    sub_chunks: u32,
}

impl Coder {
    /// The coder of a profile. Coders of the same code share it: an OSD makes one for each
    /// placement group.
    #[must_use]
    pub fn new(request: &Request) -> Self {
        let profile = request.profile;
        let code = shared(profile);
        // In the other layouts, elements are bits of words: repairs read whole chunks.
        let parts = matches!(code.layout(), Layout::Contiguous);
        let sub_chunks = if parts { code.elements() } else { 1 };
        Self { code, profile, aligned_per_chunk: request.aligned_per_chunk, sub_chunks }
    }

    /// Data chunks.
    #[must_use]
    pub fn k(&self) -> usize {
        self.code.k()
    }

    /// Coding chunks.
    #[must_use]
    pub fn m(&self) -> usize {
        self.code.m()
    }

    /// All chunks.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.k() + self.m()
    }

    /// Sub-chunks of a chunk: 1 if repairs read whole chunks.
    #[must_use]
    pub fn sub_chunks(&self) -> u32 {
        self.sub_chunks
    }

    /// Bytes of each chunk of an object, or of a stripe, of `object_bytes` bytes.
    #[must_use]
    pub fn chunk_bytes(&self, object_bytes: u32) -> u32 {
        let object_bytes = u64::from(object_bytes);
        let bytes = if self.aligned_per_chunk {
            self.profile.chunk_bytes_aligned_per_chunk(object_bytes)
        } else {
            self.profile.chunk_bytes(object_bytes)
        };
        // Chunks of 4 GiB do not exist: there are at least two, of an object below 4 GiB.
        bytes.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(u32::MAX)
    }

    /// What to read to have the chunks `wanted`. `available` is in the order of preference.
    ///
    /// # Errors
    /// Fewer than k chunks are available and one of the wanted is lost; or a number is no chunk, or
    /// is named twice.
    pub fn minimum(&self, wanted: &[usize], available: &[usize]) -> Result<Vec<Read>, Refusal> {
        let there = self.flags("available", available)?;
        let is_wanted = self.flags("wanted", wanted)?;
        let lost: Vec<usize> = wanted.iter().copied().filter(|&chunk| !there[chunk]).collect();
        if lost.is_empty() {
            let mut chunks = wanted.to_vec();
            chunks.sort_unstable();
            return Ok(self.whole(chunks));
        }
        if available.len() < self.k() {
            return Err(Refusal::lost(format!(
                "{} needs {} chunks to restore a lost one, and {} are available",
                self.profile,
                self.k(),
                available.len()
            )));
        }
        if self.sub_chunks > 1
            && lost.len() == wanted.len()
            && let Some(reads) = self.parts(&lost, available)?
        {
            return Ok(reads);
        }
        let mut chunks: Vec<usize> = wanted.iter().copied().filter(|&chunk| there[chunk]).collect();
        let more = available.iter().copied().filter(|&chunk| !is_wanted[chunk]);
        chunks.extend(more.take(self.k().saturating_sub(chunks.len())));
        chunks.sort_unstable();
        Ok(self.whole(chunks))
    }

    fn whole(&self, chunks: Vec<usize>) -> Vec<Read> {
        let sub_chunks = 0..self.sub_chunks;
        chunks.into_iter().map(|chunk| Read { chunk, sub_chunks: sub_chunks.clone() }).collect()
    }

    /// The reads of a repair from parts, if there is one that fulfils the OSD's conditions.
    fn parts(&self, lost: &[usize], available: &[usize]) -> Result<Option<Vec<Read>>, Refusal> {
        let plan = self.plan(lost, available)?;
        let count = plan.reads[0].element_count();
        let equal = plan.reads.iter().all(|read| read.element_count() == count);
        let fewer = plan.reads.len() as u64 * u64::from(count)
            < self.k() as u64 * u64::from(self.sub_chunks);
        if !equal || !fewer {
            return Ok(None);
        }
        // No code has a plan that changes with the chunks that it does not read, today.
        let chunks: Vec<usize> = plan.reads.iter().map(|read| read.shard).collect();
        if self.plan(lost, &chunks)?.reads != plan.reads {
            return Ok(None);
        }
        let of = |read: &ShardRead| {
            let chunk = read.shard;
            let ranges = read.elements.clone();
            ranges.into_iter().map(move |sub_chunks| Read { chunk, sub_chunks })
        };
        Ok(Some(plan.reads.iter().flat_map(of).collect()))
    }

    fn plan(&self, lost: &[usize], available: &[usize]) -> Result<Arc<RepairPlan>, Refusal> {
        Ok(self.code.repair(lost, available).map_err(StripeError::from)?)
    }

    /// For each chunk, whether the list has it.
    fn flags(&self, what: &str, chunks: &[usize]) -> Result<Vec<bool>, Refusal> {
        let mut flags = vec![false; self.chunks()];
        for &chunk in chunks {
            let flag = flags.get_mut(chunk).ok_or_else(|| {
                Refusal::invalid(format!("{what} chunk {chunk} is none of {}", self.profile))
            })?;
            if std::mem::replace(flag, true) {
                return Err(Refusal::invalid(format!("{what} chunk {chunk} is named twice")));
            }
        }
        Ok(flags)
    }

    /// Computes the m coding chunks of the k data chunks.
    ///
    /// # Errors
    /// Numbers or lengths do not fit the code. Then nothing is written.
    pub fn encode(&self, data: &[&[u8]], coding: &mut [&mut [u8]]) -> Result<(), Refusal> {
        Ok(stripe::encode(&*self.code, data, coding)?)
    }

    /// Restores the chunks `lost` into `outputs`. `given` has an entry for each chunk: whole
    /// chunks, or all of them only the parts that [`Coder::minimum`] named.
    ///
    /// # Errors
    /// Too few chunks are given, or numbers or lengths do not fit. Then nothing is written.
    pub fn decode(
        &self,
        given: &[Option<&[u8]>],
        lost: &[usize],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), Refusal> {
        let Some(output) = outputs.first() else { return Ok(()) };
        let chunk_bytes = output.len();
        let parts = given.iter().flatten().any(|given| given.len() < chunk_bytes);
        if !parts {
            return Ok(stripe::decode(&*self.code, given, lost, outputs)?);
        }
        let available: Vec<usize> = (0..given.len()).filter(|&at| given[at].is_some()).collect();
        let plan = self.plan(lost, &available)?;
        // Plans read only what is available.
        let inputs: Vec<&[u8]> =
            plan.reads.iter().filter_map(|read| *given.get(read.shard)?).collect();
        Ok(stripe::repair(&*self.code, &plan, &inputs, outputs)?)
    }
}

impl From<StripeError> for Refusal {
    fn from(error: StripeError) -> Self {
        let errno = match &error {
            StripeError::Code(CodeError::TooFewShards { .. }) => EIO,
            _ => EINVAL,
        };
        Self { errno, message: error.to_string() }
    }
}

/// The codes in use. A code holds tables and a cache of repair plans, which are worth sharing.
static CODES: Mutex<Vec<(Profile, Weak<dyn Code>)>> = Mutex::new(Vec::new());

/// The code of a profile: the one in use, if there is one.
fn shared(profile: Profile) -> Arc<dyn Code> {
    // A panic of another thread cannot leave a half-made entry behind.
    let mut codes = CODES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = codes.iter().find(|(known, _)| *known == profile);
    if let Some(code) = known.and_then(|(_, code)| code.upgrade()) {
        return code;
    }
    let code = profile.code();
    // The list is as long as there are codes in use, at most.
    codes.retain(|(_, code)| code.strong_count() > 0);
    codes.push((profile, Arc::downgrade(&code)));
    code
}
