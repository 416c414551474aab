//! The reasons why users' requests wait, in words for the operator of a volume that does not
//! answer.

use fieldstone_block::Nanos;
use fieldstone_proto::NodeIndex;

use crate::core::VolumeCore;
use crate::segment::State;

/// The text names a node that has not answered for this long.
const SLOW_MS: u64 = 1_000;

impl VolumeCore {
    /// The reasons why requests wait at the time `now`; empty if no request waits longer than
    /// usual.
    #[must_use]
    pub fn what_is_waited_for(&self, now: Nanos) -> String {
        if !self.attempts.waits_for.is_empty() || !self.life.serves() {
            return self.attempts.waits_for.clone();
        }
        let mut reasons = Vec::new();
        if self.has_lapsed() {
            reasons.push("a capability from the metadata service".to_owned());
        }
        if !self.writable() {
            let (up, all) = (self.nodes_up(), self.nodes.len());
            reasons.push(format!("nodes: {up} of {all} serve, {} are needed", self.nodes_needed()));
        }
        if self.log.waits() {
            reasons.extend(self.what_the_log_waits_for());
        }
        let slow = self.slow_nodes(now.max(self.now));
        if !slow.is_empty() {
            let names: Vec<String> = slow.iter().map(ToString::to_string).collect();
            reasons.push(format!("answers of {}", names.join(", ")));
        }
        reasons.join("; ")
    }

    fn what_the_log_waits_for(&self) -> Option<String> {
        if self.log.journal_move.has_to_move() {
            return Some("the journal to move to other nodes".to_owned());
        }
        if !self.ring_has_room() {
            let without_room = self.segments_without_room();
            if let Some(first) = without_room.first() {
                let nodes = self.lacks_room_on(*first);
                let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
                let (count, nodes) = (without_room.len(), nodes.join(", "));
                return Some(format!("room for {count} segments on {nodes}"));
            }
            let young = self.segments.iter().filter(|(_, s)| s.state < State::Durable).count();
            return Some(format!("room in the journal: {young} segments are not stored yet"));
        }
        if self.reservation_changes() {
            return Some("nodes to grant more room".to_owned());
        }
        if self.starved() || !self.room_for_blocks() || self.log.starved_since.is_some() {
            let free = self.segments_free();
            return Some(format!("collection to make room: {free} segments are free"));
        }
        None
    }

    /// Nodes that have not answered a call for a while.
    fn slow_nodes(&self, now: Nanos) -> Vec<NodeIndex> {
        self.nodes_that(|node| {
            let oldest = node.in_flight.front();
            oldest.is_some_and(|(at, _)| now.since(*at) >= Nanos::from_ms(SLOW_MS))
        })
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_block::Op;

    use super::*;
    use crate::map::Location;
    use crate::script::Script;

    /// The volume need not have run since it sent the request.
    #[test]
    fn a_node_that_does_not_answer_is_named_while_nothing_else_happens() {
        let mut script = Script::serving(8);
        let handle = script.add_segment(&[4, 1, 2, 3, 0, 5].map(Some));
        script.core(|core| core.map.set(0, Location::at(handle, 0)));
        script.submit(Op::Read, 0, 1);
        assert_eq!(script.sent_one().node, NodeIndex(4));
        assert_eq!(script.volume.waits_for(Nanos::from_ms(SLOW_MS - 1)), "");
        assert_eq!(script.volume.waits_for(Nanos::from_ms(SLOW_MS)), "answers of node.4");
    }
}
