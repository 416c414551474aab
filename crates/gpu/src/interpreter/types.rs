//! The types that instructions name.

/// A type of a value in a register or in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
}

use Type::{B8, B16, B32, B64, Pred, S8, S16, S32, S64, U8, U16, U32, U64};

/// All types, with their names.
const NAMES: [(&str, Type); 13] = [
    ("pred", Pred),
    ("b8", B8),
    ("b16", B16),
    ("b32", B32),
    ("b64", B64),
    ("u8", U8),
    ("u16", U16),
    ("u32", U32),
    ("u64", U64),
    ("s8", S8),
    ("s16", S16),
    ("s32", S32),
    ("s64", S64),
];

/// The types of arithmetic.
pub(super) const INTEGERS: &[Type] = &[U16, U32, U64, S16, S32, S64];
/// The types of a product of twice the width.
pub(super) const NARROW: &[Type] = &[U16, U32, S16, S32];
/// The types with a sign.
pub(super) const SIGNED: &[Type] = &[S16, S32, S64];
/// The types without arithmetic.
pub(super) const BITS: &[Type] = &[B16, B32, B64];
/// The types of logic.
pub(super) const LOGIC: &[Type] = &[Pred, B16, B32, B64];
/// The types of a choice, and of a comparison.
pub(super) const WORDS: &[Type] = &[B16, B32, B64, U16, U32, U64, S16, S32, S64];
/// The types in memory.
pub(super) const STORED: &[Type] = &[B8, B16, B32, B64, U8, U16, U32, U64, S8, S16, S32, S64];
/// The types of conversions.
pub(super) const CONVERTED: &[Type] = &[U8, U16, U32, U64, S8, S16, S32, S64];

impl Type {
    /// The type with a name, which is without its dot.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|&(_, found)| found)
    }

    /// Its name, without a dot.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, known)| *known == self).map_or("", |&(name, _)| name)
    }

    /// Its width in bits.
    pub fn bits(self) -> u32 {
        match self {
            Pred => 1,
            B8 | U8 | S8 => 8,
            B16 | U16 | S16 => 16,
            B32 | U32 | S32 => 32,
            B64 | U64 | S64 => 64,
        }
    }

    /// Its width in bytes, in memory.
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// Whether it has a sign.
    pub fn is_signed(self) -> bool {
        matches!(self, S8 | S16 | S32 | S64)
    }

    /// The type of a product of twice the width.
    pub fn widened(self) -> Self {
        match self {
            U16 => U32,
            S16 => S32,
            S32 => S64,
            _ => U64,
        }
    }
}

/// A value of all ones with a width in bits.
pub(super) fn ones(bits: u32) -> u64 {
    u64::MAX >> (64 - bits.clamp(1, 64))
}

/// Extends the low `from` bits of a value to `to` bits, by its sign or with zeros. The bits above
/// are zeros.
pub(super) fn extend(value: u64, from: u32, to: u32, signed: bool) -> u64 {
    let shift = 64 - from.clamp(1, 64);
    let high = value << shift;
    let wide = if signed { (high.cast_signed() >> shift).cast_unsigned() } else { high >> shift };
    wide & ones(to)
}
