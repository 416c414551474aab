//! What instructions cost on RI5CY, in cycles.
//!
//! The core has four stages, issues in order, and starts one instruction per cycle unless something
//! stalls it. The constants are the stalls. They are those of CV32E40P, RI5CY's descendant with the
//! same pipeline: `tests/rtl` runs random programs and the firmware's handlers on its RTL and on
//! this model, and both take the same cycles.
//!
//! | instruction | cycles |
//! |---|---|
//! | arithmetic, `mul`, store, load, Xpulp | 1 |
//! | the instruction after a load that uses its register, or computes a value for it | +1 |
//! | branch not taken, taken | 1, 3 |
//! | jump | 2 |
//! | target is a 32-bit instruction that is not at a multiple of 4 | +1 |
//! | load or store that crosses a word | +1 |
//! | `mulh`, `mulhsu`, `mulhu` | 5 |
//! | `div`, `divu`, `rem`, `remu` | 3 to 35, by the leading zeros or ones of the divisor |
//! | hardware loop: setup, each turn | 1, 0 |
//!
//! `jalr` waits one cycle more for a register that the instruction before it writes, or that a load
//! two instructions before it loads: the controller compares the register with the write ports of
//! both stages behind the decoder (`jr_stall`). A jump that waits in the decoder, because the
//! instruction before it takes several cycles, fetches its target meanwhile. Then it takes 1 cycle.
//!
//! A memory that answers later than in the next cycle stalls the model until it does: see
//! [`Access`](crate::riscv::memory::Access). CV32E40P goes on until an instruction needs the answer
//! or two answers are open, so the model is slower there. CV32E40P has no atomic operations. They
//! cost what loads cost, and what the bus adds.

/// Stalls of the core, in cycles beside the one that each instruction takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The instruction after a load uses the loaded register.
    pub load_use: u64,
    /// A branch is taken.
    pub branch_taken: u64,
    /// A jump.
    pub jump: u64,
    /// `jalr` through a register that the instruction before wrote, or the load before that one.
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

    /// The stall of a division by `divisor`: the divider takes as many steps as it shifts the
    /// divisor to the left.
    #[must_use]
    pub fn division(&self, signed: bool, divisor: u32) -> u64 {
        let steps = if signed && divisor >> 31 == 1 {
            divisor.leading_ones() - 1
        } else {
            divisor.leading_zeros()
        };
        self.divide + u64::from(steps)
    }
}
