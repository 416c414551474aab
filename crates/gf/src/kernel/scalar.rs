//! The reference kernel: one table row per coefficient, one byte at a time. The vector kernels
//! use it for the columns that do not fill a vector.

use super::Sweep;
use crate::compile::Pass;
use crate::field::MUL;

/// # Safety
/// As [`super::Kernel::run`].
pub(super) unsafe fn run(pass: &Pass, sources: &[*const u8], targets: &[*mut u8], sweep: &Sweep) {
    let start = sweep.columns.start;
    let len = sweep.columns.len();
    for (row, target) in targets.iter().enumerate() {
        // SAFETY: the caller gives pointers that are valid for the columns, and targets overlap
        // neither each other nor a source, so exclusive and shared slices may coexist.
        let target = unsafe { std::slice::from_raw_parts_mut(target.wrapping_add(start), len) };
        if !sweep.accumulate {
            target.fill(0);
        }
        for (at, source) in sources.iter().enumerate() {
            // SAFETY: as above.
            let source = unsafe { std::slice::from_raw_parts(source.wrapping_add(start), len) };
            let products = &MUL[usize::from(pass.coefficients[at * targets.len() + row])];
            for (t, &s) in target.iter_mut().zip(source) {
                *t ^= products[usize::from(s)];
            }
        }
    }
}
