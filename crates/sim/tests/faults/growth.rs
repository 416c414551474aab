//! A thick volume grows: its reservation, and whether it still opens.

use bytes::Bytes;
use fieldstone_block::Op;
use fieldstone_codes::Profile;
use fieldstone_node::FileId;
use fieldstone_proto::VolumeId;
use fieldstone_proto::disk::{VOLUME_FILE_BYTES, VolumeRecord};
use fieldstone_sim::disk::NodeFileKind;
use fieldstone_volume::{Geometry, VolumePhase, slots_whole};

use crate::bench::{BLOCKS, Bench, M, NODES};
use crate::verify::prepared;

const BLOCK_BYTES: u64 = 4096;
const SETTLE_NS: u64 = 5_000_000_000;
const OPEN_NS_MAX: u64 = 60_000_000_000;
const REQUEST_NS_MAX: u64 = 8_000_000_000;

fn grow(bench: &mut Bench, blocks: u64) {
    bench.volume().request_grow(blocks * BLOCK_BYTES, false);
    bench.pump_volume();
}

/// Slots that a volume of this size takes on each node.
fn whole(blocks: u64) -> u32 {
    let geometry = Geometry { size_bytes: blocks * BLOCK_BYTES, ..Bench::geometry() };
    let profile = Profile::Rs { k: 4, m: usize::from(M) };
    u32::try_from(slots_whole(&geometry, profile, NODES)).expect("few")
}

fn opens_again(bench: &mut Bench) {
    bench.kill_volume();
    bench.start_volume();
    assert!(bench.until(OPEN_NS_MAX, |bench| bench.phase() != VolumePhase::Opening));
    assert_eq!(bench.phase(), VolumePhase::Serving);
    bench.sweep(Op::Read, 0..BLOCKS, 16, REQUEST_NS_MAX).expect("reads");
}

/// A volume that holds garbage has reserved more slots than its size takes. It keeps them when it
/// grows. Otherwise it could not store the next checkpoint.
#[test]
fn a_volume_that_grows_keeps_what_it_holds() {
    let mut bench = prepared().expect("a volume");
    for _ in 0..8 {
        bench.sweep(Op::Write, 0..BLOCKS, 16, REQUEST_NS_MAX).expect("writes");
    }
    let before = bench.status().slots_reserved;
    assert!(before > whole(BLOCKS + 1), "{before} slots: this test shows nothing");
    grow(&mut bench, BLOCKS + 1);
    let grown = |bench: &Bench| bench.status().size_bytes > BLOCKS * BLOCK_BYTES;
    assert!(bench.until(SETTLE_NS, grown), "not larger");
    let after = bench.status();
    assert!(after.slots_reserved >= before, "{} of {before} slots", after.slots_reserved);
    opens_again(&mut bench);
}

/// The request to grow comes while the volume still reserves the slots that it has wanted so far.
#[test]
fn a_volume_that_grows_at_once_has_reserved_its_new_size() {
    let mut bench = prepared().expect("a volume");
    bench.kill_volume();
    bench.start_volume();
    assert!(bench.until(OPEN_NS_MAX, |bench| bench.phase() == VolumePhase::Serving));
    grow(&mut bench, 3 * BLOCKS);
    bench.pass(SETTLE_NS);
    let status = bench.status();
    assert_eq!(status.size_bytes, 3 * BLOCKS * BLOCK_BYTES, "{:?}", status.grow_refused);
    assert!(status.slots_reserved >= whole(3 * BLOCKS), "{} slots", status.slots_reserved);
    for node in &status.nodes {
        assert!(node.slots_reserved >= whole(3 * BLOCKS), "{node:?}");
    }
    opens_again(&mut bench);
}

/// Too few nodes have disk room for a larger volume: the volume keeps its size.
#[test]
fn a_volume_does_not_grow_on_full_disks() {
    let mut bench = prepared().expect("a volume");
    bench.sweep(Op::Write, 0..BLOCKS, 16, REQUEST_NS_MAX).expect("writes");
    for node in 0..usize::from(NODES) {
        bench.set_room(node, 0);
    }
    grow(&mut bench, 3 * BLOCKS);
    bench.pass(SETTLE_NS);
    let status = bench.status();
    assert_eq!(status.size_bytes, BLOCKS * BLOCK_BYTES, "it grew without room");
    let why = status.grow_refused.expect("refused");
    assert!(why.contains("its disk has less room"), "{why}");
    for node in 0..usize::from(NODES) {
        bench.set_room(node, u64::MAX);
    }
    opens_again(&mut bench);
}

/// More than m nodes have reserved only the slots that the volume holds, as if they had come back
/// empty before the writer died. The opening needs slots for its checkpoint.
#[test]
fn an_opening_reserves_the_slots_of_its_checkpoint() {
    let mut bench = prepared().expect("a volume");
    bench.kill_volume();
    for node in 0..usize::from(NODES) {
        bench.stop_node(node);
        if node <= usize::from(M) {
            let FileId::Volume(volume) = bench.file(node, NodeFileKind::Volume) else {
                unreachable!()
            };
            bench.change(node, NodeFileKind::Volume, |file| reserve_one_slot(file, volume));
        }
        bench.start_node(node);
    }
    opens_again(&mut bench);
    let wanted = bench.status().slots_reserved;
    let equal = |bench: &Bench| bench.status().nodes.iter().all(|n| n.slots_reserved >= wanted);
    assert!(bench.until(SETTLE_NS, equal), "{}", bench.describe());
}

fn reserve_one_slot(file: &mut Vec<u8>, volume: VolumeId) {
    // The disk of the bench does not keep the zeroes behind the written bytes.
    file.resize(VOLUME_FILE_BYTES, 0);
    let bytes = Bytes::copy_from_slice(file);
    let mut record = VolumeRecord::decode_file(&bytes, volume).expect("a sound record");
    record.slots_reserved = 1;
    *file = record.encode_file().to_vec();
}
