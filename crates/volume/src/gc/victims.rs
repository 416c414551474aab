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

    /// The same of the segments that pass `test`, also if none of their blocks is dead.
    pub(super) fn victim_even_full(
        &self,
        tried: &[SegmentId],
        test: impl Fn(&Segment) -> bool,
    ) -> Option<SegmentIndex> {
        self.segments
            .iter()
            .filter(|(_, s)| s.kind == SegmentKind::Data && s.state == State::Durable)
            .filter(|(_, s)| s.live_blocks > 0 && !tried.contains(&s.id) && test(s))
            .min_by_key(|(_, s)| s.live_blocks)
            .filter(|(_, s)| self.room_to_move(s.live_blocks))
            .map(|(handle, _)| handle)
    }

    /// The same as [`Self::victim`] of the segments that pass `test`.
    pub(super) fn victim_of(
        &self,
        tried: &[SegmentId],
        test: impl Fn(&Segment) -> bool,
    ) -> Option<SegmentIndex> {
        let full = self.shape.layout().segment_blocks();
        let next = self.victim_even_full(tried, test)?;
        let gains = |segment: &Segment| segment.live_blocks < full - full / DEAD_ONE_IN;
        self.segments.get(next).is_some_and(gains).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    /// A volume with durable segments of these numbers of live blocks.
    fn with_segments<const N: usize>(live_blocks: [u32; N]) -> (Script, [SegmentIndex; N]) {
        let mut script = Script::serving(8);
        let handles = live_blocks.map(|live_blocks| {
            let handle = script.add_segment(&[0, 1, 2, 3, 4, 5].map(Some));
            segment(&mut script, handle, |segment| segment.live_blocks = live_blocks);
            handle
        });
        (script, handles)
    }

    fn segment<R>(
        script: &mut Script,
        handle: SegmentIndex,
        work: impl FnOnce(&mut Segment) -> R,
    ) -> R {
        script.core(|core| work(core.segments.get_mut(handle).expect("it was added")))
    }

    #[test]
    fn the_segment_with_the_fewest_live_blocks_is_next() {
        let (mut script, [_, first, second, other]) = with_segments([9, 5, 5, 7]);
        let tried = segment(&mut script, first, |segment| segment.id);
        script.core(|core| {
            assert_eq!(core.victim(&[]), Some(first), "the oldest of those that are alike");
            assert_eq!(core.victim(&[tried]), Some(second));
            assert_eq!(core.victim_of(&[], |s| s.live_blocks > 5), Some(other));
            assert_eq!(core.victim_of(&[], |_| false), None);
        });
    }

    #[test]
    fn only_durable_segments_of_data_with_live_blocks_move() {
        let (mut script, [_, sealed, checkpoint, other]) = with_segments([0, 1, 2, 3]);
        segment(&mut script, checkpoint, |segment| segment.kind = SegmentKind::Checkpoint);
        script.core(|core| {
            core.segments.set_state(sealed, State::Sealed);
            assert_eq!(core.victim(&[]), Some(other));
            core.segments.set_state(other, State::Closed);
            assert_eq!(core.victim(&[]), None);
            core.segments.set_state(sealed, State::Durable);
            assert_eq!(core.victim(&[]), Some(sealed));
        });
    }

    #[test]
    fn a_segment_that_is_nearly_full_stays() {
        let (mut script, [handle]) = with_segments([60]);
        script.core(|core| {
            assert_eq!(core.shape.layout().segment_blocks(), 64);
            assert_eq!(core.victim(&[]), None);
        });
        segment(&mut script, handle, |segment| segment.live_blocks = 59);
        script.core(|core| assert_eq!(core.victim(&[]), Some(handle)));
    }

    #[test]
    fn nothing_moves_without_room_for_it() {
        let (mut script, [handle]) = with_segments([5]);
        script.core(|core| {
            assert_eq!(core.victim(&[]), Some(handle));
            core.nodes.iter_mut().for_each(|node| node.slots.free = 0);
            assert_eq!(core.victim(&[]), None);
        });
    }
}
