//! Binary maps: the form that Ceph's monitors store, and that `ceph osd getcrushmap` and crushtool
//! write.
//!
//! All numbers are little-endian. A string is its length (u32) and its bytes. A list or a map is
//! its count (u32) and its elements. The parts, in order:
//!
//! | part | layout |
//! |---|---|
//! | head | u32 magic 0x10000, s32 bucket slots, u32 rule slots, s32 devices |
//! | buckets | per slot: u32 algorithm, 0 for an empty slot; else s32 id (-1 - slot), u16 type, u8 algorithm, u8 hash, u32 weight, u32 size, s32 items\[size\], then by algorithm |
//! | – uniform | u32 weight of every item |
//! | – list | per item: u32 weight, u32 sum of the weights up to it |
//! | – tree | u8 nodes, u32 weight of each node |
//! | – straw | per item: u32 weight, u32 scale of its straw |
//! | – straw2 | per item: u32 weight |
//! | rules | per slot: u32 present; if so u32 steps, u8 ruleset, u8 kind, u8 smallest and u8 greatest size, per step u32 opcode and two s32 arguments |
//! | names | three maps of s32 number to string: types, items, rules |
//! | tunables | u32 local tries, local fallback tries, total tries; u32 descend once; u8 vary r; u8 straw version; u32 allowed algorithms; u8 stable |
//! | classes | map of s32 item to s32 class; map of s32 class to string; map of s32 bucket to a map of s32 class to s32 shadow bucket |
//! | choose_args | per set: s64 number, entries: u32 slot of the bucket, list of weight sets (lists of u32), list of s32 ids |
//! | MSR | u32 descents, u32 collision tries |
//!
//! Releases of Ceph have appended one part after another. A map may end after the names, within the
//! tunables at each semicolon, or after any later part. A missing part has the value from before
//! Ceph had the option; [`Tunables::LEGACY`](crate::Tunables::LEGACY) lists these values.
//!
//! Old maps have 64-bit keys in the maps of names. No name is empty, so a length of 0 shows such a
//! map: this 0 is the upper half of a key, and the length follows.
//!
//! **Decoding does not keep** parts without a meaning: empty slots past the last bucket and rule,
//! arguments that a step does not use, empty names, entries of choose_args that change nothing, and
//! values other than 1 of the two tunables that are switches. All maps that Ceph's own tools write
//! come back byte for byte.
//!
//! **Hostile bytes** give an error with the reason and the place. The decoder accepts a count only
//! if the bytes left can hold that many elements, so its memory is bounded by a small multiple of
//! the input's length. A decoded map passes the [checks](crate::check) like every other map.

mod cursor;
mod decode;
mod encode;
mod error;
mod opcode;

pub use decode::{decode, decode_prefix};
pub use encode::encode;
pub use error::{DecodeError, Problem};
pub use opcode::numbers as step_numbers;

use crate::map::Map;
use crate::rule::RuleStep;
use crate::tunables::Tunables;

/// The first four bytes of a map.
pub const MAGIC: u32 = 0x0001_0000;

/// The form of the format: the one that a release of Ceph writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Release {
    /// Ceph 12 to 16: up to choose_args. Later releases also read it.
    V16,
    /// Ceph 19 and later: with the MSR tunables at the end, and rules without sizes.
    V19,
}

impl Release {
    /// The older form, which every release reads, except if it would lose MSR rules, or MSR
    /// tunables other than their defaults.
    #[must_use]
    pub fn min_for(map: &Map) -> Self {
        let tunables = map.tunables();
        let msr_step = |step: &RuleStep| {
            matches!(
                step,
                RuleStep::ChooseMsr { .. }
                    | RuleStep::SetMsrDescents(_)
                    | RuleStep::SetMsrCollisionTries(_)
            )
        };
        let msr_rule = map.rules().any(|(_, r)| r.kind.is_msr() || r.steps.iter().any(msr_step));
        let defaults = tunables.msr_descents == Tunables::LEGACY.msr_descents
            && tunables.msr_collision_tries == Tunables::LEGACY.msr_collision_tries;
        if msr_rule || !defaults { Self::V19 } else { Self::V16 }
    }
}
