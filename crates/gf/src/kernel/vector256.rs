//! The sweep of the kernels with vectors of 256 bits: two vectors of 32 columns per iteration, with
//! all rows of the pass in registers. The kernels differ only in the multiplication of a vector by
//! a factor.
//!
//! The sweep is a macro because it is compiled once for each set of CPU features, so that the
//! product is inlined.

/// Defines `run`, a [kernel](super::Kernel) that needs `$features`. The factors of a pass are in
/// its field `$factors`. `$prepare` turns a factor into the operand of `$product`, which multiplies
/// a vector by it.
macro_rules! sweep256 {
    (
        features: $features:literal, factors: $factors:ident,
        prepare: $prepare:ident, product: $product:ident
    ) => {
        use std::arch::x86_64::{
            _mm256_loadu_si256, _mm256_setzero_si256, _mm256_storeu_si256, _mm256_stream_si256,
            _mm256_xor_si256,
        };
        use std::ops::Range;

        use super::{Sweep, Write};
        use crate::compile::Pass;

        /// Bytes of one vector.
        const VECTOR_BYTES: usize = 32;

        /// # Safety
        /// As [`super::Kernel::run`]; the CPU has these features.
        pub(super) unsafe fn run(
            pass: &Pass,
            sources: &[*const u8],
            targets: &[*mut u8],
            sweep: &Sweep,
        ) {
            // SAFETY: the caller's contract is passed on; the number of rows matches the instance.
            unsafe {
                match targets.len() {
                    1 => rows::<1>(pass, sources, targets, sweep),
                    2 => rows::<2>(pass, sources, targets, sweep),
                    3 => rows::<3>(pass, sources, targets, sweep),
                    4 => rows::<4>(pass, sources, targets, sweep),
                    _ => super::scalar::run(pass, sources, targets, sweep),
                }
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn rows<const ROWS: usize>(
            pass: &Pass,
            sources: &[*const u8],
            targets: &[*mut u8],
            sweep: &Sweep,
        ) {
            let Range { start: mut at, end } = sweep.columns;
            let add = sweep.accumulate;
            // SAFETY: the caller's contract; every block ends at or before the end.
            unsafe {
                let head = sweep.unaligned_head(targets, VECTOR_BYTES);
                if let (Write::Streaming, Some(head)) = (sweep.write, head) {
                    let head = head.min(end - at);
                    let columns = at..at + head;
                    super::scalar::run(pass, sources, targets, &Sweep { columns, ..sweep.clone() });
                    at += head;
                    while at + 2 * VECTOR_BYTES <= end {
                        block::<ROWS, 2, true>(pass, sources, targets, at, add);
                        at += 2 * VECTOR_BYTES;
                    }
                }
                while at + 2 * VECTOR_BYTES <= end {
                    block::<ROWS, 2, false>(pass, sources, targets, at, add);
                    at += 2 * VECTOR_BYTES;
                }
                if at + VECTOR_BYTES <= end {
                    block::<ROWS, 1, false>(pass, sources, targets, at, add);
                    at += VECTOR_BYTES;
                }
                super::scalar::run(pass, sources, targets, &sweep.from(at));
            }
        }

        /// The columns `at .. at + VECTORS * VECTOR_BYTES`. With `STREAM`, the targets are aligned
        /// there.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn block<const ROWS: usize, const VECTORS: usize, const STREAM: bool>(
            pass: &Pass,
            sources: &[*const u8],
            targets: &[*mut u8],
            at: usize,
            add: bool,
        ) {
            let mut sums = [[_mm256_setzero_si256(); VECTORS]; ROWS];
            let ones = pass.leading_ones();
            // SAFETY: pointers are valid for the columns of this block (contract of `rows`).
            unsafe {
                if add {
                    for (sums, target) in sums.iter_mut().zip(targets) {
                        *sums = load::<VECTORS>(target.wrapping_add(at));
                    }
                }
                for source in &sources[..ones] {
                    let x = load::<VECTORS>(source.wrapping_add(at));
                    for sums in &mut sums {
                        for (sum, &x) in sums.iter_mut().zip(&x) {
                            *sum = _mm256_xor_si256(*sum, x);
                        }
                    }
                }
                let factors = pass.$factors[ones * ROWS..].chunks_exact(ROWS);
                for (source, factors) in sources[ones..].iter().zip(factors) {
                    let x = load::<VECTORS>(source.wrapping_add(at));
                    for (sums, factor) in sums.iter_mut().zip(factors) {
                        let factor = $prepare(factor);
                        for (sum, &x) in sums.iter_mut().zip(&x) {
                            *sum = _mm256_xor_si256(*sum, $product(x, factor));
                        }
                    }
                }
                for (sums, target) in sums.iter().zip(targets) {
                    for (vector, &sum) in sums.iter().enumerate() {
                        let to = target.wrapping_add(at + vector * VECTOR_BYTES).cast();
                        if STREAM {
                            _mm256_stream_si256(to, sum);
                        } else {
                            _mm256_storeu_si256(to, sum);
                        }
                    }
                }
            }
        }

        /// # Safety
        /// `from` is valid for reading `VECTORS * VECTOR_BYTES` bytes.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load<const VECTORS: usize>(from: *const u8) -> [__m256i; VECTORS] {
            let mut vectors = [_mm256_setzero_si256(); VECTORS];
            for (vector, value) in vectors.iter_mut().enumerate() {
                // SAFETY: inside the bytes of the caller's contract.
                *value = unsafe { _mm256_loadu_si256(from.add(vector * VECTOR_BYTES).cast()) };
            }
            vectors
        }
    };
}

pub(super) use sweep256;
