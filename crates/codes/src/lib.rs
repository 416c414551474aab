//! Erasure codes, compiled to linear maps, with repair plans.
//!
//! A [`Profile`] names a code as the command line does (`rs:4+2`, `copies:3`). From it comes a
//! [`Code`]: numbers of data and parity shards, the [`LinearMap`](fieldstone_gf::LinearMap) that
//! encodes, and for any loss a [`RepairPlan`]: which byte ranges of which shards to read, and the
//! map that turns them into the lost shards. Whoever moves the bytes needs no algebra, and whoever
//! computes (CPU, RTL, GPU) needs no knowledge of codes.
//!
//! Shards are numbered 0..k for data and k..k+m for parity. Every shard is cut into
//! [`elements`](Code::elements) equal elements; Reed-Solomon and copies have one, regenerating codes
//! have many and read only some of them in a repair.
//!
//! | module      | idea |
//! |-------------|------|
//! | [`profile`] | names of codes: parse, print, bounds |
//! | [`plan`]    | what a repair reads and computes |
//! | `cache`     | plans are kept, up to a fixed number, because inverting costs more than coding |
//! | `rs`        | Reed-Solomon with ISA-L's Cauchy matrix |
//! | `copies`    | replication as the simplest code |

mod cache;
mod copies;
pub mod plan;
pub mod profile;
mod rs;

use std::sync::Arc;

use fieldstone_gf::LinearMap;
use thiserror::Error;

pub use cache::MAX_CACHED_PLANS;
pub use plan::{RepairPlan, ShardRead};
pub use profile::{MAX_COPIES, MAX_SHARDS, Profile, ProfileError};

/// Why no repair plan exists.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CodeError {
    /// The list of lost shards is empty.
    #[error("no shard to repair was named")]
    NothingLost,
    /// A shard number outside the code.
    #[error("shard {shard} does not exist: {profile} has shards 0 to {last}", last = profile.shards() - 1)]
    NoSuchShard {
        /// The number given.
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
    /// Too little is left: the data is gone until more shards come back.
    #[error("{profile} needs {needed} shards to repair, but only {available} are available")]
    TooFewShards {
        /// The code.
        profile: Profile,
        /// Shards that a repair must read.
        needed: usize,
        /// Shards that can be read.
        available: usize,
    },
}

/// An erasure code: everything that the rest of the system needs to know about it.
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

    /// Elements per shard; shard lengths are multiples of it.
    fn elements(&self) -> u32;

    /// The map from the k data shards to the m parity shards.
    fn encode(&self) -> &Arc<LinearMap>;

    /// How to recompute the shards `lost` (data or parity) from some of those `available`.
    ///
    /// `available` is in order of preference: where the code has a choice that costs the same,
    /// it takes the first ones. Shards in neither list are not touched.
    fn repair(&self, lost: &[usize], available: &[usize]) -> Result<Arc<RepairPlan>, CodeError>;
}

/// Checks two shard lists against a profile, as every code must before it plans.
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
