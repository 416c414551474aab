//! The state that the attempts of an opening share.

use fieldstone_block::Nanos;
use fieldstone_proto::Epoch;

/// The opening of a volume: its attempts, one after another.
#[derive(Debug)]
pub struct OpeningAttempts {
    /// When the first attempt began.
    pub began: Nanos,
    /// When the present attempt began.
    pub attempt_began: Nanos,
    /// The highest epoch of the attempts so far.
    pub epoch_tried: Epoch,
    /// An attempt to create the volume began, so this volume itself wrote the roots on the nodes.
    pub creating: bool,
    /// How often the time that a node has to answer was doubled.
    pub doublings: u32,
    /// The reason why the opening, or a closing, waits, as text for people; empty if it makes
    /// progress.
    pub waits_for: String,
}

impl OpeningAttempts {
    /// An opening that begins.
    #[must_use]
    pub fn new(now: Nanos) -> Self {
        Self {
            began: now,
            attempt_began: now,
            epoch_tried: Epoch(0),
            creating: false,
            doublings: 0,
            waits_for: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::{CapabilityError, NodeError, NodeIndex, ReplyBody, RequestBody};

    use crate::failure::VolumeFailure;
    use crate::interface::{OpenMode, VolumeEvent};
    use crate::script::Script;
    use crate::status::VolumePhase;

    #[test]
    fn a_later_attempt_to_open_takes_a_higher_epoch() {
        let mut script = Script::opening(4, OpenMode::Open { takeover: true });
        for node in 0..4 {
            script.volume.handle(VolumeEvent::NodeUp(NodeIndex(node)), Nanos(0));
        }
        let mut epochs: Vec<Epoch> = Vec::new();
        // The nodes report no epoch, and refuse each fence: each attempt fails.
        for _ in 0..200 {
            for sent in script.sent() {
                let answer = match sent.request.body {
                    RequestBody::ListVolumes => Ok(ReplyBody::Volumes(Vec::new())),
                    RequestBody::Fence { .. } => {
                        epochs.push(sent.request.capability.epoch);
                        Err(NodeError::Busy)
                    }
                    _ => Err(NodeError::NotFound),
                };
                script.answer(&sent, answer);
            }
            script.wait_ms(100);
        }
        epochs.dedup();
        assert!(epochs.len() > 2, "{epochs:?}");
        assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
    }

    /// The clock was set back just before the start. A node on another machine, whose clock is set
    /// up to a second later, refuses capabilities until then. The opening neither goes on without
    /// it nor gives up.
    #[test]
    fn an_opening_waits_for_a_node_whose_clock_is_late() {
        let mut script = Script::opening(4, OpenMode::Open { takeover: true });
        for node in 0..4 {
            script.volume.handle(VolumeEvent::NodeUp(NodeIndex(node)), Nanos(0));
        }
        let late = NodeIndex(2);
        let mut refused = 0;
        for _ in 0..20 {
            for sent in script.sent() {
                assert_eq!(sent.request.body, RequestBody::ListVolumes, "no node is fenced");
                refused += u32::from(sent.node == late);
                let answer = match sent.node == late {
                    true => Err(NodeError::Capability(CapabilityError::Expired)),
                    false => Ok(ReplyBody::Volumes(Vec::new())),
                };
                script.answer(&sent, answer);
            }
            script.wait_ms(50);
        }
        assert!(refused > 4, "{refused}");
        let left_out = script.core(|core| core.node(late).attempt.left_out.clone());
        assert_eq!(left_out, None);
    }

    /// The world tells by the variant that another writer lives, and that this is no fault.
    #[test]
    fn an_opening_that_finds_a_living_writer_says_which() {
        let mut script = Script::opening(4, OpenMode::Open { takeover: false });
        for node in 0..4 {
            script.volume.handle(VolumeEvent::NodeUp(NodeIndex(node)), Nanos(0));
        }
        for _ in 0..20 {
            for sent in script.sent() {
                let answer = match sent.request.body {
                    RequestBody::ListVolumes => Ok(ReplyBody::Volumes(Vec::new())),
                    RequestBody::Fence { .. } => Err(NodeError::InUse { current: Epoch(5) }),
                    _ => Err(NodeError::NotFound),
                };
                script.answer(&sent, answer);
            }
            script.wait_ms(100);
        }
        let in_use = VolumeFailure::InUse { current: Epoch(5) };
        assert_eq!(script.volume.phase(), VolumePhase::Failed(in_use));
    }
}
