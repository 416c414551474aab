//! The sweep of the kernels with vectors of 256 bits: two vectors of 32 columns, one cache line,
//! per iteration, with all rows of the pass in registers. The kernels differ only in the
//! multiplication of a vector by a factor.
//!
//! A first row of ones is only added. With one source, as in a parity update, all operands of the
//! multiplications stay in registers.
//!
//! [`Write::Streaming`] prefetches the lines of the sources. The hardware's prefetchers follow only
//! a few streams, and stop at the boundaries of pages.
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
            _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm256_setzero_si256,
            _mm256_storeu_si256, _mm256_stream_si256, _mm256_xor_si256,
        };
        use std::ops::Range;

        use super::{Sweep, Write};
        use crate::compile::{Pass, PassKind};

        /// Bytes of one vector.
        const VECTOR_BYTES: usize = 32;
        /// Distance of the prefetches of sources in a streaming sweep.
        const SOURCES_AHEAD_BYTES: usize = 1024;

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
                match (targets.len(), sources.len(), first_row_ones(pass)) {
                    (1, 1, _) => products::<1>(pass, sources[0], targets, sweep),
                    (2, 1, _) => products::<2>(pass, sources[0], targets, sweep),
                    (3, 1, _) => products::<3>(pass, sources[0], targets, sweep),
                    (4, 1, _) => products::<4>(pass, sources[0], targets, sweep),
                    (1, _, false) => rows::<1, false>(pass, sources, targets, sweep),
                    (1, _, true) => rows::<1, true>(pass, sources, targets, sweep),
                    (2, _, false) => rows::<2, false>(pass, sources, targets, sweep),
                    (2, _, true) => rows::<2, true>(pass, sources, targets, sweep),
                    (3, _, false) => rows::<3, false>(pass, sources, targets, sweep),
                    (3, _, true) => rows::<3, true>(pass, sources, targets, sweep),
                    (4, _, false) => rows::<4, false>(pass, sources, targets, sweep),
                    (4, _, true) => rows::<4, true>(pass, sources, targets, sweep),
                    _ => super::scalar::run(pass, sources, targets, sweep),
                }
            }
        }

        fn first_row_ones(pass: &Pass) -> bool {
            match pass.kind {
                PassKind::Sum { first_row_ones, .. } => first_row_ones,
                PassKind::Zero | PassKind::Copy | PassKind::Dyadic { .. } => false,
            }
        }

        /// One source. [`rows`] handles streaming.
        ///
        /// # Safety
        /// As [`run`].
        #[target_feature(enable = $features)]
        unsafe fn products<const ROWS: usize>(
            pass: &Pass,
            source: *const u8,
            targets: &[*mut u8],
            sweep: &Sweep,
        ) {
            const VECTORS: usize = 2;
            const BLOCK_BYTES: usize = VECTORS * VECTOR_BYTES;
            let Ok(pointers) = <&[*mut u8; ROWS]>::try_from(targets) else { return };
            let Ok(factors) = <&[_; ROWS]>::try_from(&pass.$factors[..]) else { return };
            // A loop instead of `map`, because closures in `map` would not be compiled for these
            // instructions.
            let mut operands = [$prepare(&factors[0]); ROWS];
            for (operand, factor) in operands.iter_mut().zip(factors) {
                *operand = $prepare(factor);
            }
            let Range { start: mut at, end } = sweep.columns;
            // SAFETY: the caller's contract; every block ends at or before the end.
            unsafe {
                while sweep.write != Write::Streaming && at + BLOCK_BYTES <= end {
                    let source = load::<VECTORS>(source.wrapping_add(at));
                    for (target, &operand) in pointers.iter().zip(&operands) {
                        let target = target.wrapping_add(at);
                        let mut sums = [_mm256_setzero_si256(); VECTORS];
                        if sweep.accumulate {
                            sums = load::<VECTORS>(target);
                        }
                        for (vector, (sum, x)) in sums.into_iter().zip(source).enumerate() {
                            let sum = _mm256_xor_si256(sum, $product(x, operand));
                            _mm256_storeu_si256(target.add(vector * VECTOR_BYTES).cast(), sum);
                        }
                    }
                    at += BLOCK_BYTES;
                }
                if at < end {
                    rows::<ROWS, false>(pass, &[source], targets, &sweep.from(at));
                }
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn rows<const ROWS: usize, const ONES: bool>(
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
                        block::<ROWS, ONES, 2, true>(pass, sources, targets, at, add);
                        at += 2 * VECTOR_BYTES;
                    }
                }
                while at + 2 * VECTOR_BYTES <= end {
                    block::<ROWS, ONES, 2, false>(pass, sources, targets, at, add);
                    at += 2 * VECTOR_BYTES;
                }
                if at + VECTOR_BYTES <= end {
                    block::<ROWS, ONES, 1, false>(pass, sources, targets, at, add);
                    at += VECTOR_BYTES;
                }
                super::scalar::run(pass, sources, targets, &sweep.from(at));
            }
        }

        /// The columns `at .. at + VECTORS * VECTOR_BYTES`. With `STREAM`, the targets are aligned
        /// there. With `ONES`, the first row's coefficients are ones.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn block<
            const ROWS: usize,
            const ONES: bool,
            const VECTORS: usize,
            const STREAM: bool,
        >(
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
                    let source = source.wrapping_add(at);
                    if STREAM {
                        let ahead = source.wrapping_add(SOURCES_AHEAD_BYTES);
                        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    }
                    let x = load::<VECTORS>(source);
                    for sums in &mut sums {
                        for (sum, &x) in sums.iter_mut().zip(&x) {
                            *sum = _mm256_xor_si256(*sum, x);
                        }
                    }
                }
                let factors = pass.$factors[ones * ROWS..].chunks_exact(ROWS);
                for (source, factors) in sources[ones..].iter().zip(factors) {
                    let source = source.wrapping_add(at);
                    if STREAM {
                        let ahead = source.wrapping_add(SOURCES_AHEAD_BYTES);
                        _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    }
                    let x = load::<VECTORS>(source);
                    let mut rows = sums.iter_mut().zip(factors);
                    if ONES && let Some((sums, _)) = rows.next() {
                        for (sum, &x) in sums.iter_mut().zip(&x) {
                            *sum = _mm256_xor_si256(*sum, x);
                        }
                    }
                    for (sums, factor) in rows {
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
