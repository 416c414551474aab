//! What the volume does about missing and bad shards.
//!
//! Rules that concern more than one of the three parts:
//! - A shard that a read or a scrub finds bad leaves its segment at once. [`Scrub`] counts it for
//!   the operator, once, however often it is read. If the node still has the bad copy, [`Damage`]
//!   knows where it lies.
//! - The volume deletes a bad copy when its segment has all shards again. If the new shard goes to
//!   the node of the bad copy, the volume deletes the copy first: a node deletes all shards of a
//!   segment together.
//! - At most one rebuild and one scrub run. A scrub ends after the rebuild of what it found.

use crate::damage::Damage;
use crate::rebuild::Rebuild;
use crate::scrub::Scrub;

/// The state of rebuild and scrub.
#[derive(Default)]
pub struct Repair {
    /// Makes missing shards again.
    pub rebuild: Rebuild,
    /// Checks all shards.
    pub scrub: Scrub,
    /// Where bad shards still lie.
    pub damage: Damage,
}
