//! What instructions cost on RI5CY, in cycles.
//!
//! The core has four stages, issues in order, and starts one instruction per cycle unless something
//! stalls it. The constants are the stalls. They were measured on the RTL of CV32E40P, RI5CY's
//! descendant with the same pipeline, run by Verilator with a memory that answers in the next
//! cycle:
//!
//! | instruction | cycles |
//! |---|---|
//! | arithmetic, `mul`, store, load | 1 |
//! | the instruction after a load that uses its result | +1 |
//! | branch not taken, taken | 1, 3 |
//! | jump | 2 |
//! | target is a 32-bit instruction that is not at a multiple of 4 | +1 |
//! | load or store that crosses a word | +1 |
//! | `mulh`, `mulhsu`, `mulhu` | 5 |
//! | `div`, `divu`, `rem`, `remu` | 3 to 35, by the leading zeros of the divisor |
//! | hardware loop: setup, each turn | 1, 0 |
//!
//! `jalr` waits one cycle more for a register that the instruction before it writes (RI5CY's
//! controller, `jr_stall`). A memory that answers later than in the next cycle stalls the core
//! until it does: see [`Access`](crate::riscv::memory::Access).

/// Stalls of the core, in cycles beside the one that each instruction takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The instruction after a load uses the loaded register.
    pub load_use: u64,
    /// A branch is taken.
    pub branch_taken: u64,
    /// A jump.
    pub jump: u64,
    /// `jalr` through the register that the instruction before wrote.
    pub jump_register: u64,
    /// The target of a jump or branch is a 32-bit instruction across words.
    pub split_target: u64,
    /// A load or store crosses a word.
    pub split_access: u64,
    /// The upper half of a product.
    pub mul_high: u64,
    /// A division, beside one per leading zero of the divisor.
    pub divide: u64,
}

impl Costs {
    /// RI5CY as in PsPIN.
    pub const RI5CY: Costs = Costs {
        load_use: 1,
        branch_taken: 2,
        jump: 1,
        jump_register: 1,
        split_target: 1,
        split_access: 1,
        mul_high: 4,
        divide: 2,
    };

    /// The stall of a division of `dividend` by `divisor`. The divider takes as many steps as it
    /// shifts the divisor to the left; an unsigned or non-negative dividend takes one more.
    #[must_use]
    pub fn division(&self, signed: bool, dividend: u32, divisor: u32) -> u64 {
        let negative = signed && dividend >> 31 == 1;
        let same_bits = if signed && divisor >> 31 == 1 {
            divisor.leading_ones()
        } else {
            divisor.leading_zeros()
        };
        let shift = if divisor == 0 || (signed && divisor == u32::MAX) {
            31
        } else {
            same_bits.saturating_sub(1)
        };
        self.divide + u64::from(shift) + u64::from(!negative)
    }
}
