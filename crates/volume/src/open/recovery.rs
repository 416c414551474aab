//! What the attempts of an opening have in common.

use fieldstone_block::Nanos;
use fieldstone_proto::Epoch;

/// The opening of a volume: its attempts, one after another.
#[derive(Debug)]
pub struct Recovery {
    /// When the first attempt began.
    pub began: Nanos,
    /// When the present attempt began.
    pub attempt_began: Nanos,
    /// The highest epoch of the attempts so far.
    pub epoch_tried: Epoch,
    /// An attempt to create the volume began, so this volume itself wrote the roots on the nodes.
    pub creating: bool,
    /// The opening failed because another writer took the volume over.
    pub fenced_out: bool,
    /// The reason why the opening, or a closing, waits, as text for people; empty if it makes
    /// progress.
    pub waits_for: String,
}

impl Recovery {
    /// An opening that begins.
    #[must_use]
    pub fn new(now: Nanos) -> Self {
        Self {
            began: now,
            attempt_began: now,
            epoch_tried: Epoch(0),
            creating: false,
            fenced_out: false,
            waits_for: String::new(),
        }
    }
}
