//! What the node tells its control side, beside the answers to requests.
//!
//! The paper's handlers send events to the node's software, for example when a client has fallen
//! silent (network-accelerated DFS, section V). This node puts them into a queue, which its world
//! empties after each turn. The queue is bounded: clients cause events as often as they like.

use std::collections::VecDeque;

use fieldstone_proto::{SegmentId, VolumeId};

use crate::interface::PeerId;

/// Largest number of events that wait for the control side.
const EVENTS_MAX: usize = 64;

/// Something that the node's control side may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// A client sent a part of a write and then was silent for too long. The node has given the
    /// write up.
    WriteGivenUp {
        /// The connection.
        peer: PeerId,
        /// The volume.
        volume: VolumeId,
        /// Bytes that had come.
        arrived_bytes: u64,
        /// Bytes of the whole write.
        len_bytes: u64,
    },
    /// Some data nodes did not send their contributions to a parity in time. The node has given the
    /// sum up, and the volume makes this parity itself.
    SumGivenUp {
        /// The volume.
        volume: VolumeId,
        /// The segment.
        segment: SegmentId,
        /// Contributions that had come.
        arrived: usize,
        /// All contributions.
        count: usize,
    },
    /// The table of requests has no room for a request. The node tells this once, until half of the
    /// table is free again.
    TableFull,
}

/// The events that the control side has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct ControlEvents {
    waiting: VecDeque<ControlEvent>,
    lost: u64,
    table_is_full: bool,
}

impl ControlEvents {
    /// Adds an event. If the queue is full, the event only counts as lost.
    pub(crate) fn push(&mut self, event: ControlEvent) {
        match self.waiting.len() < EVENTS_MAX {
            true => self.waiting.push_back(event),
            false => self.lost += 1,
        }
    }

    /// The table has no room for a request.
    pub(crate) fn table_full(&mut self) {
        if !std::mem::replace(&mut self.table_is_full, true) {
            self.push(ControlEvent::TableFull);
        }
    }

    /// Half of the table is free.
    pub(crate) fn table_has_room(&mut self) {
        self.table_is_full = false;
    }

    /// The next event.
    pub(crate) fn take(&mut self) -> Option<ControlEvent> {
        self.waiting.pop_front()
    }

    /// Events since the start for which the queue had no room.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_bounded_and_a_full_table_is_told_once() {
        let mut events = ControlEvents::default();
        events.table_full();
        events.table_full();
        assert_eq!(events.take(), Some(ControlEvent::TableFull));
        assert_eq!(events.take(), None);
        events.table_has_room();
        events.table_full();
        assert_eq!(events.take(), Some(ControlEvent::TableFull));
        for _ in 0..EVENTS_MAX + 3 {
            events.push(ControlEvent::TableFull);
        }
        assert_eq!(events.lost(), 3);
        assert_eq!(std::iter::from_fn(|| events.take()).count(), EVENTS_MAX);
    }
}
