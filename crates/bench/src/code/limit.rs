//! The limit of memory: the loads and stores of a code, with only XOR between them.
//!
//! The skeleton reads every input once and writes the XOR of all inputs to every output. With
//! AVX-512, it uses the order and the prefetches that were best for our kernels. An encoder that
//! reads and writes the same bytes cannot be expected to be faster. An encoder that reaches this
//! limit gains nothing from better arithmetic.

use std::ops::Range;

/// The kind of the skeleton's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Plain stores.
    Plain,
    /// Plain stores. The old contents of the outputs are read and added.
    Add,
    /// Non-temporal stores.
    Streaming,
}

/// Reads `len_bytes` bytes (a multiple of 64) of every input and writes as many to every output.
/// Outputs are aligned to 64 bytes.
///
/// # Safety
/// All inputs are valid for reading, and all outputs for reading and writing, `len_bytes` bytes.
pub unsafe fn skeleton(inputs: &[*mut u8], outputs: &[*mut u8], len_bytes: usize, writes: Writes) {
    debug_assert!(len_bytes.is_multiple_of(64), "whole lines");
    let columns = 0..len_bytes;
    // SAFETY: the caller's contract; the condition finds the instruction set.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return wide::skeleton(inputs, outputs, columns, writes);
        }
        portable(inputs, outputs, columns, writes);
    }
}

/// # Safety
/// As [`skeleton`].
unsafe fn portable(inputs: &[*mut u8], outputs: &[*mut u8], columns: Range<usize>, writes: Writes) {
    type Line = [u64; 8];
    for at in columns.step_by(64) {
        let mut sum: Line = [0; 8];
        let add = |sum: &mut Line, from: *mut u8| {
            // SAFETY: one line inside the buffer.
            let line = unsafe { from.add(at).cast::<Line>().read_unaligned() };
            sum.iter_mut().zip(line).for_each(|(sum, word)| *sum ^= word);
        };
        inputs.iter().for_each(|input| add(&mut sum, *input));
        for output in outputs {
            let mut sum = sum;
            if writes == Writes::Add {
                add(&mut sum, *output);
            }
            // SAFETY: one line inside the buffer.
            unsafe { output.add(at).cast::<Line>().write_unaligned(sum) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m512i, _MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm512_loadu_si512,
        _mm512_setzero_si512, _mm512_storeu_si512, _mm512_stream_si512, _mm512_xor_si512,
    };
    use std::ops::Range;

    use super::Writes;

    /// Buffers that fit into the first-level cache together need no prefetch.
    const NEAR_BYTES: usize = 32 << 10;
    const AHEAD_BYTES: usize = 512;
    const SOURCES_AHEAD_BYTES: usize = 1024;

    /// # Safety
    /// As [`super::skeleton`]; the CPU has AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn skeleton(
        inputs: &[*mut u8],
        outputs: &[*mut u8],
        columns: Range<usize>,
        writes: Writes,
    ) {
        let far = (inputs.len() + outputs.len()) * columns.len() > NEAR_BYTES;
        let Range { start: mut at, end } = columns;
        // SAFETY: the caller's contract; blocks end at or before the end.
        unsafe {
            match (writes, far) {
                (Writes::Streaming, _) => {
                    while at < end {
                        block::<1, true, true, false>(inputs, outputs, at);
                        at += 64;
                    }
                    _mm_sfence();
                }
                (Writes::Plain, true) => {
                    while at + 256 <= end {
                        block::<4, false, true, false>(inputs, outputs, at);
                        at += 256;
                    }
                }
                (Writes::Plain, false) => {
                    while at + 256 <= end {
                        block::<4, false, false, false>(inputs, outputs, at);
                        at += 256;
                    }
                }
                (Writes::Add, _) => {}
            }
            while at < end {
                if writes == Writes::Add {
                    block::<1, false, false, true>(inputs, outputs, at);
                } else {
                    block::<1, false, false, false>(inputs, outputs, at);
                }
                at += 64;
            }
        }
    }

    /// # Safety
    /// `VECTORS` lines at `at` are inside all buffers.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn block<
        const VECTORS: usize,
        const STREAM: bool,
        const AHEAD: bool,
        const ADD: bool,
    >(
        inputs: &[*mut u8],
        outputs: &[*mut u8],
        at: usize,
    ) {
        let mut sums = [_mm512_setzero_si512(); VECTORS];
        // SAFETY: the caller's contract; prefetches do not fault.
        unsafe {
            let add = |sums: &mut [__m512i; VECTORS], from: *mut u8| {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    let from = from.wrapping_add(at + vector * 64);
                    if STREAM && AHEAD {
                        let ahead = from.wrapping_add(SOURCES_AHEAD_BYTES);
                        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    }
                    *sum = _mm512_xor_si512(*sum, _mm512_loadu_si512(from.cast()));
                }
            };
            inputs.iter().for_each(|input| add(&mut sums, *input));
            for output in outputs {
                let mut sums = sums;
                if ADD {
                    add(&mut sums, *output);
                }
                for (vector, sum) in sums.into_iter().enumerate() {
                    let to = output.wrapping_add(at + vector * 64);
                    if STREAM {
                        _mm512_stream_si512(to.cast(), sum);
                    } else {
                        if AHEAD {
                            _mm_prefetch::<_MM_HINT_ET0>(to.wrapping_add(AHEAD_BYTES).cast());
                        }
                        _mm512_storeu_si512(to.cast(), sum);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Buffer([u8; 1088]);

    #[test]
    fn outputs_are_the_xor_of_the_inputs_in_every_way() {
        let shard = |seed: usize| Buffer(std::array::from_fn(|at| (at * seed) as u8));
        for writes in [Writes::Plain, Writes::Add, Writes::Streaming] {
            let (mut a, mut b) = (shard(3), shard(7));
            let run = |way: fn(&[*mut u8], &[*mut u8], Writes), a: &mut Buffer, b: &mut Buffer| {
                let mut outputs = [shard(1), shard(2)];
                let pointers = outputs.each_mut().map(|output| output.0.as_mut_ptr());
                way(&[a.0.as_mut_ptr(), b.0.as_mut_ptr()], &pointers, writes);
                outputs
            };
            let best = run(
                // SAFETY: all buffers have this length.
                |inputs, outputs, writes| unsafe { skeleton(inputs, outputs, 1088, writes) },
                &mut a,
                &mut b,
            );
            let plain = run(
                // SAFETY: all buffers have this length.
                |inputs, outputs, writes| unsafe { portable(inputs, outputs, 0..1088, writes) },
                &mut a,
                &mut b,
            );
            for (place, (best, plain)) in best.iter().zip(&plain).enumerate() {
                let old = shard(place + 1);
                for at in 0..1088 {
                    let sum = a.0[at] ^ b.0[at] ^ if writes == Writes::Add { old.0[at] } else { 0 };
                    assert_eq!((best.0[at], plain.0[at]), (sum, sum), "{writes:?} {at}");
                }
            }
        }
    }
}
