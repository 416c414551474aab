//! The inner loops, and the choice among them.
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

use std::fmt;
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
    /// all valid for `len_bytes` (reads, or writes and reads). Targets overlap nothing else.
    pub(crate) unsafe fn run(
        self,
        pass: &Pass,
        sources: &[*const u8],
        targets: &[*mut u8],
        len_bytes: usize,
    ) {
        // SAFETY: the caller's contract is passed on.
        unsafe {
            match (pass.kind, self) {
                (PassKind::Zero, _) => {
                    for target in targets {
                        target.write_bytes(0, len_bytes);
                    }
                }
                (PassKind::Copy, _) => {
                    targets[0].copy_from_nonoverlapping(sources[0], len_bytes);
                }
                (_, Self::Scalar) => scalar::run(pass, sources, targets, 0, len_bytes),
                #[cfg(target_arch = "x86_64")]
                (_, Self::Avx2) => avx2::run(pass, sources, targets, len_bytes),
                #[cfg(target_arch = "x86_64")]
                (_, Self::Gfni256) => gfni256::run(pass, sources, targets, len_bytes),
                #[cfg(target_arch = "x86_64")]
                (_, Self::Gfni512) => gfni512::run(pass, sources, targets, len_bytes),
                #[cfg(not(target_arch = "x86_64"))]
                _ => unreachable!("only the scalar kernel is available here"),
            }
        }
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
