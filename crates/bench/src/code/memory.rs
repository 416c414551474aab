//! The buffers of a run, and the stripes in them.
//!
//! One region is mapped for the whole run, in huge pages if the system has free ones, and filled
//! with noise. A *hot* case uses the same stripe again and again. A *cold* case uses all stripes of
//! the region in turn, so that no stripe is still in a cache at its next turn.
//!
//! Shards begin at multiples of 64 bytes. The distance between two shards is their length, rounded
//! up to 64 bytes, plus 320 bytes: distances that are powers of two would put all shards of a
//! stripe into the same sets of a cache.

use std::ptr::NonNull;

use anyhow::bail;

/// Bytes between the end of a shard, rounded up to 64 bytes, and the start of the next one.
const GAP_BYTES: usize = 320;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A region of noise.
#[derive(Debug)]
pub struct Region {
    mapped: NonNull<libc::c_void>,
    mapped_bytes: usize,
    begin: usize,
    len_bytes: usize,
}

impl Region {
    /// Maps `len_bytes` bytes, a multiple of 2 MiB, and fills them.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn map(len_bytes: usize) -> anyhow::Result<Self> {
        let mapped_bytes = len_bytes + HUGE_PAGE_BYTES;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new private mapping at an address that the system chooses.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped_bytes, protection, flags, -1, 0) };
        let Some(mapped) = NonNull::new(mapped).filter(|_| mapped != libc::MAP_FAILED) else {
            bail!("cannot map {len_bytes} bytes: {}", std::io::Error::last_os_error());
        };
        let begin = mapped.as_ptr().addr().next_multiple_of(HUGE_PAGE_BYTES) - mapped.addr().get();
        let region = Self { mapped, mapped_bytes, begin, len_bytes };
        // SAFETY: the range is inside the mapping. If the system refuses, pages are smaller.
        unsafe { libc::madvise(region.base().cast(), len_bytes, libc::MADV_HUGEPAGE) };
        let mut word = 0x9e37_79b9_7f4a_7c15u64;
        for at in (0..len_bytes).step_by(8) {
            // Xorshift64: noise that is fast to make and is the same in every run.
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            // SAFETY: the address is inside the mapping and a multiple of 8.
            unsafe { region.base().add(at).cast::<u64>().write(word) };
        }
        Ok(region)
    }

    fn base(&self) -> *mut u8 {
        self.mapped.as_ptr().cast::<u8>().wrapping_add(self.begin)
    }

    /// The parts of `workers` workers. Each worker uses only its own part.
    pub fn parts(&self, workers: usize) -> Vec<WorkerRegion> {
        let len_bytes = self.len_bytes / workers / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let base = self.base();
        (0..workers)
            .map(|worker| WorkerRegion { base: base.wrapping_add(worker * len_bytes), len_bytes })
            .collect()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this region owns the mapping, and its stripes are no longer used.
        unsafe { libc::munmap(self.mapped.as_ptr(), self.mapped_bytes) };
    }
}

/// One worker's part of the region.
#[derive(Clone, Copy, Debug)]
pub struct WorkerRegion {
    base: *mut u8,
    len_bytes: usize,
}

// SAFETY: a part is only an address range, and only its own worker uses it.
unsafe impl Send for WorkerRegion {}

/// Buffers of one execution.
#[derive(Clone, Debug)]
pub struct Stripe {
    /// The addresses of the inputs.
    pub inputs: Vec<*mut u8>,
    /// The addresses of the outputs.
    pub outputs: Vec<*mut u8>,
    lengths: BufferLengths,
}

/// Lengths of the buffers of one execution, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferLengths {
    /// The length of each input.
    pub inputs: Vec<usize>,
    /// The length of each output.
    pub outputs: Vec<usize>,
}

impl BufferLengths {
    /// `inputs` and `outputs` buffers of `len_bytes`.
    pub fn uniform(inputs: usize, outputs: usize, len_bytes: usize) -> Self {
        Self { inputs: vec![len_bytes; inputs], outputs: vec![len_bytes; outputs] }
    }

    /// Bytes that a stripe takes in a region.
    pub fn stripe_bytes(&self) -> usize {
        let buffers = self.inputs.iter().chain(&self.outputs);
        buffers.map(|len_bytes| len_bytes.next_multiple_of(64) + GAP_BYTES).sum()
    }
}

impl WorkerRegion {
    /// As many stripes as fit, but at most `most`.
    pub fn stripes(&self, lengths: &BufferLengths, most: usize) -> Vec<Stripe> {
        let count = (self.len_bytes / lengths.stripe_bytes()).min(most);
        let mut at = 0;
        let mut place = |lengths: &[usize]| {
            let carve = |len_bytes: &usize| {
                let buffer = self.base.wrapping_add(at);
                at += len_bytes.next_multiple_of(64) + GAP_BYTES;
                buffer
            };
            lengths.iter().map(carve).collect::<Vec<_>>()
        };
        (0..count)
            .map(|_| Stripe {
                inputs: place(&lengths.inputs),
                outputs: place(&lengths.outputs),
                lengths: lengths.clone(),
            })
            .collect()
    }
}

impl Stripe {
    /// Length of an output.
    pub fn output_bytes(&self, output: usize) -> usize {
        self.lengths.outputs[output]
    }

    /// A copy of the outputs.
    pub fn copy_outputs(&self) -> Vec<Vec<u8>> {
        let buffers = self.outputs.iter().zip(&self.lengths.outputs);
        let copy = |(output, &len): (&*mut u8, &usize)| {
            // SAFETY: the buffers are inside the worker's part, and no thread writes to them now.
            unsafe { std::slice::from_raw_parts(*output, len) }.to_vec()
        };
        buffers.map(copy).collect()
    }

    /// Restores the outputs from a copy by [`Stripe::copy_outputs`].
    pub fn restore_outputs(&mut self, copy: &[Vec<u8>]) {
        for (output, copy) in self.outputs.iter().zip(copy) {
            // SAFETY: the buffer has the length of its copy.
            unsafe { output.copy_from_nonoverlapping(copy.as_ptr(), copy.len()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_lie_apart_inside_the_parts() {
        let region = Region::map(8 << 20).expect("8 MiB");
        let lengths = BufferLengths { inputs: vec![100, 5000], outputs: vec![64] };
        let mut ranges = Vec::new();
        for part in region.parts(2) {
            let stripes = part.stripes(&lengths, 10);
            assert_eq!(stripes.len(), 10);
            for stripe in &stripes {
                let starts = stripe.inputs.iter().chain(&stripe.outputs);
                let buffers = lengths.inputs.iter().chain(&lengths.outputs);
                ranges.extend(starts.zip(buffers).map(|(at, len)| (at.addr(), at.addr() + len)));
                assert!(stripe.inputs.iter().all(|input| input.addr().is_multiple_of(64)));
                assert!(stripe.copy_outputs()[0].iter().any(|&byte| byte != 0), "noise");
            }
            assert!(part.stripes(&lengths, usize::MAX).len() > 500);
            assert!(part.stripes(&BufferLengths::uniform(1, 0, 5 << 20), 10).is_empty(), "no room");
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "buffers overlap");
        let end = region.base().addr() + region.len_bytes;
        assert!(ranges.iter().all(|range| range.0 >= region.base().addr() && range.1 <= end));
    }

    #[test]
    fn outputs_can_be_put_back() {
        let region = Region::map(2 << 20).expect("2 MiB");
        let mut stripes = region.parts(1)[0].stripes(&BufferLengths::uniform(1, 2, 500), 1);
        let copy = stripes[0].copy_outputs();
        // SAFETY: the buffer has 500 bytes.
        unsafe { stripes[0].outputs[1].add(499).write(!copy[1][499]) };
        assert_ne!(stripes[0].copy_outputs(), copy);
        stripes[0].restore_outputs(&copy);
        assert_eq!(stripes[0].copy_outputs(), copy);
    }
}
