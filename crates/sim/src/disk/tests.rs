//! The disk keeps synced data, and keeps nothing that it should lose.

use bytes::Bytes;
use fieldstone_node::{DiskError, DiskId, DiskOp, DiskOutput, FileId};

use super::{DiskFaults, DiskKind, FailedOps, NodeFileKind, SimDisk};
use crate::random::RandomStream;

const FILE: FileId = FileId::Data;

struct Bench {
    disk: SimDisk,
    next: u64,
}

impl Bench {
    fn new(seed: u64, capacity_bytes: u64) -> Self {
        let kind = DiskKind { read_ns: 10, write_ns: 10, sync_ns: 10, sector_bytes: 512 };
        let disk = SimDisk::new(RandomStream::new(seed, "disk", 0), kind, capacity_bytes);
        let mut bench = Self { disk, next: 0 };
        bench
            .run(DiskOp::Create { file: FILE, len_bytes: 1 << 16, allocate: true })
            .expect("the disk has room");
        bench
    }

    fn submit(&mut self, op: DiskOp) -> DiskId {
        self.next += 1;
        self.disk.submit(DiskId(self.next), op);
        DiskId(self.next)
    }

    fn run(&mut self, op: DiskOp) -> Result<DiskOutput, DiskError> {
        let id = self.submit(op);
        self.disk.complete(id).expect("nothing crashed")
    }

    fn write(&mut self, page: u64, fill: u8) -> Result<DiskOutput, DiskError> {
        self.run(write_op(page, fill))
    }

    fn page(&mut self, page: u64) -> Bytes {
        let op = DiskOp::Read { file: FILE, offset_bytes: page * 4096, len_bytes: 4096 };
        match self.run(op) {
            Ok(DiskOutput::Data(data)) => data,
            other => panic!("read gave {other:?}"),
        }
    }
}

fn write_op(page: u64, fill: u8) -> DiskOp {
    // Parts that are not whole pages, to test the cutting.
    let data = vec![Bytes::from(vec![fill; 100]), Bytes::from(vec![fill; 8192 - 100])];
    DiskOp::Write { file: FILE, offset_bytes: page * 4096, data }
}

#[test]
fn synced_writes_survive_and_later_ones_are_kept_lost_or_torn() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..300 {
        let mut bench = Bench::new(seed, u64::MAX);
        bench.write(0, 1).expect("no fault is set");
        bench.run(DiskOp::Sync { file: FILE }).expect("no fault is set");
        bench.write(0, 2).expect("no fault is set");
        bench.write(4, 3).expect("no fault is set");
        bench.submit(write_op(6, 4));
        bench.disk.power_loss();
        let page = bench.page(0);
        assert!(page.iter().all(|byte| *byte == 1 || *byte == 2), "a value from nowhere");
        for sector in page.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "torn inside a sector");
        }
        match (page.contains(&1), page.contains(&2)) {
            (false, true) => kept += 1,
            (true, false) => lost += 1,
            _ => torn += 1,
        }
        assert!(bench.page(4).iter().all(|byte| *byte == 3 || *byte == 0));
        assert!(bench.page(6).iter().all(|byte| *byte == 4 || *byte == 0));
    }
    assert!(kept > 50 && lost > 50 && torn > 20, "kept {kept} lost {lost} torn {torn}");
}

#[test]
fn a_sync_covers_only_what_completed_before_it_started() {
    let mut survivors = 0;
    for seed in 0..200 {
        let mut bench = Bench::new(seed, u64::MAX);
        let late = bench.submit(write_op(0, 7));
        let sync = bench.submit(DiskOp::Sync { file: FILE });
        bench.disk.complete(late).expect("in flight").expect("no fault is set");
        bench.disk.complete(sync).expect("in flight").expect("no fault is set");
        bench.disk.power_loss();
        survivors += u32::from(bench.page(0)[0] == 7);
    }
    assert!((20..180).contains(&survivors), "{survivors}");
}

#[test]
fn a_killed_process_leaves_its_page_cache() {
    for seed in 0..50 {
        let mut bench = Bench::new(seed, u64::MAX);
        bench.write(0, 5).expect("no fault is set");
        let in_flight = bench.submit(write_op(2, 6));
        bench.disk.kill();
        assert!(bench.disk.complete(in_flight).is_none());
        assert_eq!(bench.page(0), vec![5u8; 4096]);
        let page = bench.page(2);
        assert!(page == vec![6u8; 4096] || page == vec![0u8; 4096], "pages are written whole");
    }
}

#[test]
fn a_failed_sync_is_never_made_good() {
    let mut lost = 0;
    for seed in 0..100 {
        let mut bench = Bench::new(seed, u64::MAX);
        bench.write(0, 9).expect("no fault is set");
        bench.disk.faults = DiskFaults { sync_error_per_mille: 1000, ..DiskFaults::default() };
        assert!(matches!(bench.run(DiskOp::Sync { file: FILE }), Err(DiskError::Io(_))));
        bench.disk.faults = DiskFaults::default();
        bench.run(DiskOp::Sync { file: FILE }).expect("no fault is set");
        assert_eq!(bench.page(0)[0], 9, "reads see it until the power fails");
        bench.disk.power_loss();
        lost += u32::from(bench.page(0)[0] == 0);
    }
    assert!(lost > 20, "{lost}");
}

#[test]
fn what_a_failed_sync_left_does_not_replace_what_is_stable_since() {
    for seed in 0..300 {
        let mut bench = Bench::new(seed, 1 << 20);
        bench.write(0, 1).expect("a write");
        bench.disk.faults = DiskFaults { sync_error_per_mille: 1000, ..DiskFaults::default() };
        bench.run(DiskOp::Sync { file: FILE }).expect_err("injected");
        bench.disk.faults = DiskFaults::default();
        bench.write(1, 2).expect("a write"); // pages 1 and 2; page 0 still has the failed write
        bench.run(DiskOp::Sync { file: FILE }).expect("a sync");
        bench.disk.power_loss();
        assert_eq!(bench.page(1)[..], [2; 4096]);
    }
}

#[test]
fn errors_full_devices_and_flipped_bits_show() {
    let mut bench = Bench::new(3, 1 << 17);
    bench.write(0, 1).expect("reserved");
    let big = FileId::Slots;
    let create = DiskOp::Create { file: big, len_bytes: 1 << 17, allocate: true };
    assert_eq!(bench.run(create).expect_err("too big"), DiskError::NoSpace);
    bench.disk.faults.full = true;
    bench.write(2, 1).expect("reserved space needs no new space");
    assert_eq!(bench.write(16, 1).expect_err("behind the reserved end"), DiskError::NoSpace);
    bench.disk.faults = DiskFaults { write_error_per_mille: 1000, ..DiskFaults::default() };
    assert!(matches!(bench.write(2, 8), Err(DiskError::Io(_))));
    bench.disk.faults = DiskFaults::default();
    bench.run(DiskOp::Sync { file: FILE }).expect("no fault is set");
    let at = bench.disk.flip_bit(FILE, 4096).expect("something is stable");
    let page = bench.page(at / 4096);
    let off = at as usize % 4096;
    let neighbour = page[(off + 1) % 4096];
    assert_eq!((page[off] ^ neighbour).count_ones(), 1);
}

#[test]
fn what_is_out_of_bounds_is_refused() {
    let mut bench = Bench::new(3, u64::MAX);
    let read = |offset_bytes, len_bytes| DiskOp::Read { file: FILE, offset_bytes, len_bytes };
    assert!(bench.run(read(1, 4096)).is_err());
    assert!(bench.run(read(u64::MAX - 4095, 4096)).is_err());
    assert!(bench.run(read(1 << 40, 4096)).is_err());
    let missing = DiskOp::Sync { file: FileId::Slots };
    assert_eq!(bench.run(missing).expect_err("no such file"), DiskError::NotFound);
}

#[test]
fn what_is_broken_fails_for_good_and_nothing_else() {
    let read = || DiskOp::Read { file: FILE, offset_bytes: 0, len_bytes: 4096 };
    let sync = || DiskOp::Sync { file: FILE };
    let cases = [
        (FailedOps::All, [false, false, false, false]),
        (FailedOps::Reads, [false, true, true, false]),
        (FailedOps::Writes, [true, false, true, true]),
        (FailedOps::ReadOnly, [true, false, true, true]),
        (FailedOps::Syncs, [true, true, false, true]),
        (FailedOps::File(NodeFileKind::Data), [false, false, false, true]),
        (FailedOps::File(NodeFileKind::Slots), [true, true, true, true]),
    ];
    for (broken, works) in cases {
        let mut bench = Bench::new(5, 1 << 20);
        bench.write(0, 1).expect("nothing is wrong yet");
        bench.disk.faults.broken = Some(broken);
        let ops = [read(), write_op(0, 2), sync(), DiskOp::List];
        for (op, works) in ops.into_iter().zip(works) {
            let text = format!("{broken:?} {op:?}");
            assert_eq!(bench.run(op).is_ok(), works, "{text}");
        }
    }
}

#[test]
fn a_read_only_disk_changes_nothing() {
    let mut bench = Bench::new(6, 1 << 20);
    bench.write(0, 1).expect("nothing is wrong yet");
    bench.disk.faults.broken = Some(FailedOps::ReadOnly);
    bench.write(0, 2).expect_err("read-only");
    bench.disk.faults.broken = None;
    assert_eq!(bench.page(0)[0], 1);
}

#[test]
fn a_copy_brings_back_what_was_stable() {
    let mut bench = Bench::new(7, 1 << 20);
    bench.write(0, 1).expect("room");
    bench.run(DiskOp::Sync { file: FILE }).expect("nothing fails");
    bench.write(2, 1).expect("room");
    let copy = bench.disk.snapshot();
    bench.write(0, 2).expect("room");
    bench.run(DiskOp::Sync { file: FILE }).expect("nothing fails");
    bench.disk.restore(copy);
    assert_eq!((bench.page(0)[0], bench.page(2)[0]), (1, 0), "the second write was not stable");
}
