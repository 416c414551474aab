//! The inner loops, and the selection of one.
//!
//! All kernels compute the same bits; [`Kernel::Scalar`] is the definition and the others are
//! tested against it. A kernel runs one [`Pass`] over a run of columns given by raw pointers.
//! The contract of every `run` in the submodules is that of [`Kernel::run`].

mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod gfni256;
#[cfg(target_arch = "x86_64")]
mod gfni512;
#[cfg(target_arch = "x86_64")]
mod vector256;

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

use crate::compile::{Pass, PassKind};

/// A way to execute a map on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Portable table look-ups: the reference, and the tail of the others.
    Scalar,
    /// AVX2 byte shuffles on split nibble tables, 64 columns at a time.
    Avx2,
    /// AVX2 with GFNI affine instructions, 64 columns at a time.
    Gfni256,
    /// AVX-512 with GFNI affine instructions, 128 to 256 columns at a time, masked tail.
    Gfni512,
}

impl Kernel {
    /// Every kernel, slowest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Avx2, Self::Gfni256, Self::Gfni512];

    /// True when this CPU can run the kernel.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::Scalar => true,
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Gfni256 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni"),
            Self::Gfni512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("gfni")
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Scalar
        }
    }

    /// The fastest kernel that this CPU can run, detected once.
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| {
            let best = Self::ALL.into_iter().rev().find(|kernel| kernel.is_available());
            best.expect("the scalar kernel is always available")
        })
    }

    /// Runs one pass.
    ///
    /// # Safety
    /// The kernel is available. There are as many pointers as the pass has sources and targets,
    /// all valid at `sweep.columns` (reads, or writes and reads), though perhaps not at column 0.
    /// Targets overlap nothing else.
    pub(crate) unsafe fn run(
        self,
        pass: &Pass,
        sources: &[*const u8],
        targets: &[*mut u8],
        sweep: &Sweep,
    ) {
        let Range { start, end } = sweep.columns;
        // SAFETY: the caller's contract is passed on.
        unsafe {
            match (pass.kind, self) {
                (PassKind::Zero, _) => {
                    if !sweep.accumulate {
                        for target in targets {
                            target.wrapping_add(start).write_bytes(0, end - start);
                        }
                    }
                }
                (PassKind::Copy, _) if !sweep.accumulate => {
                    let source = sources[0].wrapping_add(start);
                    targets[0].wrapping_add(start).copy_from_nonoverlapping(source, end - start);
                }
                (_, Self::Scalar) => scalar::run(pass, sources, targets, sweep),
                #[cfg(target_arch = "x86_64")]
                (_, Self::Avx2) => avx2::run(pass, sources, targets, sweep),
                #[cfg(target_arch = "x86_64")]
                (_, Self::Gfni256) => gfni256::run(pass, sources, targets, sweep),
                #[cfg(target_arch = "x86_64")]
                (_, Self::Gfni512) => gfni512::run(pass, sources, targets, sweep),
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("only the scalar kernel is available here"),
            }
        }
    }
}

/// The parameters of a sweep: what a kernel does with one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// The bytes of the elements to compute.
    pub(crate) columns: Range<usize>,
    /// Add to the targets' current content instead of replacing it.
    pub(crate) accumulate: bool,
    /// How vectors are written.
    pub(crate) write: Write,
}

/// How a kernel writes whole vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// Plain stores to lines that are expected in the first-level cache.
    Near,
    /// Plain stores. The AVX-512 kernel prefetches the targets' lines.
    Far,
    /// Non-temporal stores; the sources' lines are prefetched. The caller fences.
    Streaming,
}

impl Sweep {
    /// The sweep over the columns from `start` on.
    #[cfg(target_arch = "x86_64")]
    fn from(&self, start: usize) -> Self {
        Self { columns: start..self.columns.end, ..self.clone() }
    }

    /// Bytes up to the first boundary of `vector_bytes` in all targets. `None` if there is no
    /// common boundary, so aligned stores cannot be used.
    #[cfg(target_arch = "x86_64")]
    fn unaligned_head(&self, targets: &[*mut u8], vector_bytes: usize) -> Option<usize> {
        let past = |target: &*mut u8| (target.addr() + self.columns.start) % vector_bytes;
        let first = past(targets.first()?);
        let common = targets.iter().all(|target| past(target) == first);
        common.then(|| (vector_bytes - first) % vector_bytes)
    }
}

/// Prefetches lines that will be read soon. This is a hint without any other effect, for any
/// address.
pub(crate) fn prefetch(from: *const u8, len_bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..len_bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch does not fault for any address, and changes no memory.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, len_bytes);
}

/// Makes streaming stores visible in order with everything that this thread stores later.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and the instruction has no operands.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "AVX2",
            Self::Gfni256 => "AVX2+GFNI",
            Self::Gfni512 => "AVX-512+GFNI",
        })
    }
}
