//! What the volume does about missing and bad shards.
//!
//! The three parts meet in these rules:
//! - A shard that a read or a scrub finds bad leaves its segment at once, and is noted in two
//!   places: [`Scrub`] counts it for the operator, [`Damage`] knows where the bad copy lies. The
//!   operator hears of each shard once, however often it is read.
//! - Once a segment is sealed, only [`Rebuild`] makes its shards again, and only after that does
//!   the volume delete the bad copy.
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
