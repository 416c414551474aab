//! The segments that collection can free: the dead ones, and the one to move next.
//!
//! Collection takes the segment with the fewest live blocks, because its move costs the least and
//! gains the most. A segment that is nearly full stays where it is: its move would gain too little.

use fieldstone_proto::{SegmentId, SegmentKind};

use crate::core::VolumeCore;
use crate::segment::{Segment, SegmentIndex, State};

/// Collection moves a segment only if at least this part of its blocks is dead: one in so many.
const DEAD_ONE_IN: u32 = 16;

impl VolumeCore {
    /// The durable segments without live blocks. The next checkpoint frees them.
    pub(super) fn dead_segments(&self) -> Vec<SegmentIndex> {
        self.segments
            .iter()
            .filter(|(_, s)| s.kind == SegmentKind::Data && s.live_blocks == 0)
            .filter(|(_, s)| s.state == State::Durable)
            .map(|(handle, _)| handle)
            .collect()
    }

    /// The durable segment with the fewest live blocks, if moving them gains space and there is
    /// room for the move.
    pub(super) fn victim(&self, tried: &[SegmentId]) -> Option<SegmentIndex> {
        self.victim_of(tried, |_| true)
    }

    /// The same of the segments that pass `test`.
    pub(super) fn victim_of(
        &self,
        tried: &[SegmentId],
        test: impl Fn(&Segment) -> bool,
    ) -> Option<SegmentIndex> {
        let full = self.layout.segment_blocks();
        self.segments
            .iter()
            .filter(|(_, s)| s.kind == SegmentKind::Data && s.state == State::Durable)
            .filter(|(_, s)| s.live_blocks > 0 && !tried.contains(&s.id) && test(s))
            .min_by_key(|(_, s)| s.live_blocks)
            .filter(|(_, s)| {
                s.live_blocks < full - full / DEAD_ONE_IN && self.room_to_move(s.live_blocks)
            })
            .map(|(handle, _)| handle)
    }
}
