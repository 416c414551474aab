//! Erasure codes, compiled to linear maps, with repair plans.
//!
//! A [`Profile`] names a code as the command line does (`rs:4+2`, `copies:3`). It gives a [`Code`]:
//! the numbers of data and parity shards, the [`LinearMap`](fieldstone_gf::LinearMap) that encodes,
//! and for any loss a [`RepairPlan`]. The plan says which byte ranges of which shards to read, and
//! has the map that turns them into the lost shards. So the program that moves the bytes needs no
//! algebra, and the unit that computes (CPU, RTL, GPU) needs no knowledge of codes.
//!
//! Shards are numbered 0..k for data and k..k+m for parity. Every shard is cut into
//! [`elements`](Code::elements) elements. Codes over bytes have one element; regenerating codes
//! have many, and a repair reads only some of them. The elements of a shard are its equal parts,
//! except in Jerasure's codes over bits: [`Layout`] knows the positions of elements and executes a
//! map on shards.
//!
//! | module      | idea |
//! |-------------|------|
//! | [`profile`] | names of codes: parse, print, bounds |
//! | [`layout`]  | the positions of elements in a shard |
//! | [`plan`]    | the reads and the map of a repair, and of an update |
//! | [`check`]   | is a stripe consistent, and which shard is wrong |
//! | [`stripe`]  | whole stripes in memory: encode, decode, update, with every argument checked |
//! | [`foreign_buffers`] | borrowed buffers of other languages, for bindings |
//! | `chunks`    | the lengths of an object's shards, by the rules of Ceph's plugins |
//! | `construction` | the common parts of all codes: checks, caches, updates |
//! | `cache`     | keeps a bounded number of plans, because inverting costs more than coding |
//! | `delta`     | the parity update of any code, computed from its encoder |
//! | `program`   | building maps of several steps |
//! | `isa`, `jerasure` | the matrices of two libraries, as Ceph uses them |
//! | `rs`        | Reed-Solomon over bytes |
//! | `words`     | Reed-Solomon over words of 8, 16 and 32 bits, as XORs of bits |
//! | `zigzag`    | regenerating codes with the encoding cost of Reed-Solomon |
//! | `clay`      | regenerating codes for every shard, layered |
//! | `copies`    | replication as the simplest code |

mod cache;
pub mod check;
mod chunks;
mod clay;
mod construction;
mod copies;
mod delta;
pub mod foreign_buffers;
mod isa;
mod jerasure;
pub mod layout;
pub mod plan;
pub mod profile;
mod program;
mod rs;
pub mod stripe;
#[cfg(test)]
mod test_support;
mod words;
mod zigzag;

use std::ops::Range;
use std::sync::Arc;

use fieldstone_gf::LinearMap;
use thiserror::Error;

pub use cache::{MAX_CACHED_PLANS, MAX_CACHED_TERMS};
pub use check::{Verdict, locate, verify};
pub use clay::CLAY_MAX_ELEMENTS;
pub use layout::Layout;
pub use plan::{DeltaPlan, RepairPlan, ShardRead};
pub use profile::{MAX_CODE_TERMS, MAX_COPIES, MAX_SHARDS, Profile, ProfileError, ScalarMds};
pub use stripe::StripeError;
pub use zigzag::{ZIGZAG_DEFAULT_MAX_ELEMENTS, ZIGZAG_MAX_ELEMENTS, ZIGZAG_MAX_ELEMENTS_OF_4};

/// The README's programs in Rust, which documentation tests compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Why no plan exists.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CodeError {
    /// The list of lost shards is empty.
    #[error("no shard to repair was named")]
    NothingLost,
    /// A shard number outside the code.
    #[error(
        "shard {shard} does not exist: {profile} has shards 0 to {last}",
        last = profile.shards() - 1
    )]
    NoSuchShard {
        /// The given number.
        shard: usize,
        /// The code.
        profile: Profile,
    },
    /// A shard named twice in one list.
    #[error("shard {shard} is named twice as {role}")]
    NamedTwice {
        /// The shard.
        shard: usize,
        /// "lost" or "available".
        role: &'static str,
    },
    /// A shard that is said to be both lost and available.
    #[error("shard {shard} is named both as lost and as available")]
    LostAndAvailable {
        /// The shard.
        shard: usize,
    },
    /// Too few shards are left: the data is lost until more shards come back.
    #[error("{profile} needs {needed} shards to repair, but only {available} are available")]
    TooFewShards {
        /// The code.
        profile: Profile,
        /// Shards that the repair must read.
        needed: usize,
        /// Shards that are available.
        available: usize,
    },
    /// An update of a shard that is not a data shard.
    #[error(
        "shard {shard} is no data shard: those of {profile} are 0 to {last}",
        last = profile.k() - 1
    )]
    NoSuchDataShard {
        /// The given number.
        shard: usize,
        /// The code.
        profile: Profile,
    },
    /// An update of no elements, or of elements that do not exist, or of single bits of words.
    #[error("elements {start}..{end} cannot be updated: {profile} has elements 0..{count}")]
    NoSuchElements {
        /// First given element.
        start: u32,
        /// Element after the last given one.
        end: u32,
        /// The code.
        profile: Profile,
        /// Elements of a shard.
        count: u32,
    },
}

/// An erasure code, as the rest of the system sees it.
pub trait Code: Send + Sync {
    /// The name of the code.
    fn profile(&self) -> Profile;

    /// Number of data shards.
    fn k(&self) -> usize {
        self.profile().k()
    }

    /// Number of parity shards: any `m` losses can be repaired.
    fn m(&self) -> usize {
        self.profile().m()
    }

    /// Elements per shard; shard lengths are multiples of
    /// [`granule_bytes`](Layout::granule_bytes).
    fn elements(&self) -> u32;

    /// The layout of a shard's elements. A program that uses one layout for all shards may also use
    /// [`Layout::Contiguous`] everywhere: it is the same code with the bytes of shards in another
    /// order.
    fn layout(&self) -> Layout;

    /// The map from the k data shards to the m parity shards.
    fn encode(&self) -> &Arc<LinearMap>;

    /// The plan that recomputes the shards `lost` (data or parity) from some of the shards
    /// `available`.
    ///
    /// `available` is in order of preference: where several choices cost the same, the code takes
    /// the first shards. The plan does not read shards that are in neither list.
    fn repair(&self, lost: &[usize], available: &[usize]) -> Result<Arc<RepairPlan>, CodeError>;

    /// As [`Code::repair`], but only for the elements `elements` of the lost shards: the plan reads
    /// only the elements on which these depend. Its outputs are those elements of each lost shard,
    /// one after the other. Elements are treated byte by byte. So any range within an element can
    /// be computed from the same range within the elements that the plan reads.
    fn repair_elements(
        &self,
        lost: &[usize],
        available: &[usize],
        elements: Range<u32>,
    ) -> Result<Arc<RepairPlan>, CodeError>;

    /// The change of the parities for a change of some elements of one data shard. With
    /// [`Layout::Words`] these must be all elements; but a shard of any whole number of words may
    /// be a range of a longer one.
    fn delta(&self, shard: usize, elements: Range<u32>) -> Result<Arc<DeltaPlan>, CodeError>;
}

/// Checks two shard lists against a profile. Every code does this before it plans.
fn check_shards(profile: Profile, lost: &[usize], available: &[usize]) -> Result<(), CodeError> {
    if lost.is_empty() {
        return Err(CodeError::NothingLost);
    }
    let mut roles = vec![None; profile.shards()];
    for (role, shards) in [("lost", lost), ("available", available)] {
        for &shard in shards {
            let seen = roles.get_mut(shard).ok_or(CodeError::NoSuchShard { shard, profile })?;
            match seen.replace(role) {
                None => {}
                Some(before) if before == role => {
                    return Err(CodeError::NamedTwice { shard, role });
                }
                Some(_) => return Err(CodeError::LostAndAvailable { shard }),
            }
        }
    }
    Ok(())
}
