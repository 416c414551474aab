//! Tests of the space that a volume counts.

use super::capacity::slack;
use super::*;
use crate::script::{SLOTS, Script};
use crate::segment::State;

const RS42: CapacityParams =
    CapacityParams { nodes: 6, missing_max: 2, width: 6, segment_blocks: 1024 };

#[test]
fn free_slots_become_segments_as_far_as_each_finds_enough_nodes() {
    let fit = |free: &[u64]| segments_fitting(free, RS42.width);
    assert_eq!(fit(&[5; 6]), 5);
    assert_eq!(fit(&[5, 5, 5, 5, 5, 100]), 5);
    assert_eq!(fit(&[0, 5, 5, 5, 5, 5]), 0);
    assert_eq!(fit(&[5; 4]), 5, "with nodes lost segments are narrower");
    assert_eq!(fit(&[10; 12]), 20, "twice the nodes hold twice the segments");
    assert_eq!(fit(&[]), 0);
}

#[test]
fn a_node_that_came_back_empty_makes_room() {
    let copies = CapacityParams { nodes: 5, missing_max: 2, width: 3, segment_blocks: 256 };
    let fit = |free: &[u64]| copies.segments_fitting_after_losses(free.into(), 1);
    assert_eq!(fit(&[3, 3, 0, 3]), 3, "one node is lost");
    assert_eq!(fit(&[3, 3, 0, 3, 30]), 4);
    assert_eq!(fit(&[0, 0, 0, 0, 30]), 0, "one node alone is no room");
    assert_eq!(fit(&[9, 9, 9]), 9, "two nodes are lost");
    let strict = |free: &[u64]| copies.segments_fitting_after_losses(free.into(), 0);
    assert_eq!(strict(&[3, 3, 0, 3, 30]), 0, "users wait until collection has moved data");
    assert_eq!(strict(&[6, 6, 6, 6, 6]), 6);
    // If a segment has a shard on every node, every node has to have room.
    for free in [&[5, 5, 5, 5, 5, 2][..], &[5, 5, 5, 2]] {
        assert_eq!(RS42.segments_fitting_after_losses(free.into(), 0), 2);
        assert_eq!(RS42.segments_fitting_after_losses(free.into(), 1), 2);
    }
}

#[test]
fn a_node_that_granted_less_still_holds_what_a_volume_needs() {
    let copies = CapacityParams { nodes: 4, missing_max: 2, width: 3, segment_blocks: 256 };
    let blocks = 2304;
    let slots = copies.slots_for(blocks);
    let (_, checkpoint) = copies.segments_for(blocks);
    assert!(copies.capacity_blocks(&[slots, slots, slots, slots - 1], checkpoint) >= blocks);
    assert!(copies.capacity_blocks(&[slots; 3], checkpoint) < blocks, "it is not left out");
}

#[test]
fn a_root_names_the_checkpoint_of_every_size_that_is_taken() {
    Script::serving(8).core(|core| {
        assert_eq!(core.too_large(1 << 30), None);
        let why = core.too_large(1 << 50).expect("a checkpoint of millions of segments");
        let most = why.fit_bytes;
        assert!(most > 1 << 30 && core.too_large(most).is_none(), "{why}");
    });
}

#[test]
fn marks_are_in_order() {
    for total in [1, 10, 100, 1000, 100_000] {
        let marks = CapacityParams::marks(total);
        assert!(marks.reserve >= 3, "two moves and what a user opens");
        assert!(marks.reserve < marks.low && marks.low < marks.high);
        assert!(marks.high <= marks.reserve + slack(total), "collection can end");
    }
}

#[test]
fn what_is_reserved_for_a_size_holds_that_size() {
    for nodes in [6, 7, 9, 12] {
        for blocks in [1, 1000, 6144, 16384, 262_144, 1 << 28] {
            let params = CapacityParams { nodes, ..RS42 };
            let (total, checkpoint) = params.segments_for(blocks);
            let slots = params.slots_for(blocks);
            let all = vec![slots; usize::try_from(nodes).expect("few")];
            assert!(params.capacity_blocks(&all, checkpoint) >= blocks, "{nodes} {blocks}");
            // When the volume is full, the reserve is left, even after m losses.
            let used = params.slots(total) + checkpoint;
            let left = vec![slots - used; usize::try_from(params.nodes_left()).expect("few")];
            let fitting = segments_fitting(&left, params.width);
            assert!(fitting >= RESERVE_SEGMENTS, "{nodes} {blocks}");
        }
    }
    // Two volumes of 24 MiB fit on six nodes of 28 slots of 1 MiB.
    assert_eq!(RS42.slots_for(6144), 14);
}

#[test]
fn every_size_fits_into_the_slots_that_are_reserved_for_it() {
    for (nodes, missing_max, width) in
        [(3, 1, 3), (4, 2, 3), (5, 2, 3), (4, 1, 2), (6, 2, 6), (7, 2, 6), (9, 2, 6), (12, 4, 12)]
    {
        for (segment_blocks, step) in [(8, 1), (64, 7), (1024, 97)] {
            let params = CapacityParams { nodes, missing_max, width, segment_blocks };
            for blocks in (1..300 * step).step_by(step as usize) {
                let slots = params.slots_for(blocks);
                let all = vec![slots; usize::try_from(nodes).expect("few")];
                // The volume may have as many segments as fit into the slots.
                let checkpoint = params.checkpoint_segments(blocks, slots * nodes / width);
                let capacity = params.capacity_blocks(&all, checkpoint);
                assert!(capacity >= blocks, "{blocks} blocks, but {capacity} fit: {params:?}");
            }
        }
    }
}

#[test]
fn rebuild_leaves_the_room_of_segments_that_have_begun() {
    let mut script = Script::serving(6);
    let handle = script.add_segment(&[None; 6]);
    script.core(|core| {
        let node = NodeIndex(3);
        let data = core.slots_for_data(node);
        let most = (0..data).find(|taken| {
            core.node_mut(node).slots.free = SLOTS - u32::try_from(*taken).expect("small");
            !core.has_room_for_rebuild(node)
        });
        let most = u32::try_from(most.expect("it has no room at last")).expect("small");
        core.node_mut(node).slots.free = SLOTS - (most - 1);
        assert!(core.has_room_for_rebuild(node));
        core.segments.set_state(handle, State::Closed);
        assert!(!core.has_room_for_rebuild(node));
        core.segments.set_state(handle, State::Open);
        core.log.open = Some(handle);
        assert!(core.has_room_for_rebuild(node), "it has no blocks, and needs no slot");
    });
}
