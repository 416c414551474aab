//! The checker accepts every history of a correct device and refuses histories of broken ones.

use smallvec::smallvec;

use fieldstone_block::{Extent, ExtentKind, Payload, Piece};

use super::*;
use crate::random::RandomStream;

const A: ClientId = ClientId(0);
const B: ClientId = ClientId(1);
const SPAN: Span = Span { first: 3, cells: 1 };

fn data(value: Value) -> Payload {
    let written = || Checker::new(8, 4096, A).content(value, SPAN);
    let content = if value == 0 { Bytes::from(vec![0; 4096]) } else { written() };
    Payload::Data(smallvec![Piece::Data(content)])
}

struct Bench {
    checker: Checker,
    next_read: u32,
}

impl Bench {
    fn new() -> Self {
        Self { checker: Checker::new(8, 4096, A), next_read: 1000 }
    }
    fn begin(&mut self, write: u32) {
        self.checker.write_submitted(A, write, SPAN, false, false);
    }
    fn ack(&mut self, write: u32) {
        self.checker.write_ended(write, true).expect("the write may be acknowledged");
    }
    fn write(&mut self, write: u32) {
        self.begin(write);
        self.ack(write);
    }
    fn read(&mut self, value: Value) -> Result<(), Finding> {
        self.read_by(A, value)
    }
    fn read_by(&mut self, client: ClientId, value: Value) -> Result<(), Finding> {
        self.next_read += 1;
        self.checker.read_submitted(client, self.next_read, SPAN);
        self.checker.read_returned(self.next_read, &data(value))
    }
    /// The members of `values` that a read could return, without drawing conclusions.
    fn possible(&self, values: &[Value]) -> Vec<Value> {
        let cell = &self.checker.cells[3];
        values.iter().copied().filter(|value| cell.possible().contains(value)).collect()
    }
    fn flush(&mut self) {
        self.checker.flush_submitted(A, 1);
        self.checker.flush_ended(1, true);
    }
}

#[test]
fn a_read_sees_the_last_acknowledged_write() {
    let mut bench = Bench::new();
    bench.read(0).expect("nothing was written");
    bench.write(1);
    bench.read(1).expect("it was written");
    bench.write(2);
    assert!(bench.read(1).is_err(), "stale");
    assert!(bench.read(0).is_err(), "lost");
    assert!(bench.read(9).is_err(), "never written here");
}

#[test]
fn a_write_in_flight_may_be_seen_and_not_unseen() {
    let mut bench = Bench::new();
    bench.write(1);
    bench.begin(2);
    bench.read(1).expect("not yet there");
    bench.read(2).expect("already there");
    assert!(bench.read(1).is_err(), "it was there already");
}

#[test]
fn concurrent_writes_take_effect_in_one_order() {
    let mut bench = Bench::new();
    bench.begin(1);
    bench.begin(2);
    bench.ack(1);
    bench.ack(2);
    assert_eq!(bench.possible(&[0, 1, 2]), [1, 2]);
    bench.read(1).expect("either may be last");
    assert!(bench.read(2).is_err(), "1 was last");
}

#[test]
fn a_read_overlapping_a_write_may_return_what_was_there_at_its_start() {
    let mut bench = Bench::new();
    bench.write(1);
    bench.checker.read_submitted(A, 7, SPAN);
    bench.write(2);
    bench.flush();
    bench.checker.read_returned(7, &data(1)).expect("it was there when the read began");
    assert!(bench.read(1).is_err());
}

#[test]
fn a_failed_write_may_come_true_until_overwritten() {
    let mut bench = Bench::new();
    bench.write(1);
    bench.begin(2);
    bench.checker.write_ended(2, false).expect("failing is allowed");
    bench.read(1).expect("it may not have happened");
    bench.read(2).expect("it may happen late");
    assert!(bench.read(1).is_err(), "it happened only once");
    bench.begin(3);
    bench.checker.write_ended(3, false).expect("failing is allowed");
    bench.write(4);
    assert!(bench.read(3).is_err(), "4 was submitted after 3 had failed");
}

#[test]
fn acknowledged_writes_survive_the_process_and_flights_are_decided() {
    let mut bench = Bench::new();
    bench.write(1);
    bench.begin(2);
    bench.checker.process_died(A);
    bench.checker.succeeded_by(B);
    assert_eq!(bench.possible(&[0, 1, 2]), [1, 2]);
    bench.read_by(B, 1).expect("2 did not happen");
    assert!(bench.read_by(B, 2).is_err(), "and never will");
}

#[test]
fn a_write_seen_in_flight_may_be_gone_with_the_process() {
    let mut bench = Bench::new();
    bench.write(1);
    bench.begin(2);
    bench.read(2).expect("already there");
    assert_eq!(bench.possible(&[0, 1, 2]), [2]);
    bench.checker.process_died(A);
    bench.checker.succeeded_by(B);
    assert_eq!(bench.possible(&[0, 1, 2]), [1, 2]);
    bench.read_by(B, 1).expect("it was never acknowledged");
    assert!(bench.read_by(B, 2).is_err(), "now it is decided");
}

#[test]
fn flushed_writes_survive_a_power_failure() {
    let mut bench = Bench::new();
    bench.write(1);
    bench.write(2);
    bench.flush();
    bench.write(3);
    bench.begin(4);
    bench.checker.power_lost();
    assert_eq!(bench.possible(&[0, 1, 2, 3, 4]), [2, 3, 4]);
    bench.read(3).expect("it was written since");
    bench.flush();
    bench.checker.power_lost();
    assert_eq!(bench.possible(&[0, 1, 2, 3, 4]), [3]);
}

#[test]
fn a_flush_covers_only_what_was_acknowledged_before_it() {
    let mut bench = Bench::new();
    bench.write(1);
    bench.begin(2);
    bench.read(2).expect("already there");
    bench.checker.flush_submitted(A, 5);
    bench.ack(2);
    bench.checker.flush_ended(5, true);
    bench.checker.power_lost();
    assert_eq!(bench.possible(&[0, 1, 2]), [1, 2], "0 was overwritten before the flush");
}

#[test]
fn a_write_that_is_seen_in_flight_overwrites_nothing_for_a_flush() {
    let mut bench = Bench::new();
    bench.begin(1);
    bench.begin(2);
    bench.read(2).expect("2 is in flight");
    bench.begin(3);
    bench.read(3).expect("3 is in flight");
    bench.ack(1);
    bench.checker.flush_submitted(A, 1);
    bench.ack(2);
    bench.ack(3);
    bench.checker.flush_ended(1, true);
    bench.checker.power_lost();
    // The flush covers only 1: 3 may be lost, and 2 is the value that 3 had overwritten.
    assert_eq!(bench.possible(&[0, 1, 2, 3]), [1, 2, 3]);
}

#[test]
fn fua_is_a_flush_of_its_blocks() {
    let mut bench = Bench::new();
    bench.write(1);
    bench.checker.write_submitted(A, 2, SPAN, false, true);
    bench.ack(2);
    bench.write(3);
    bench.checker.power_lost();
    assert_eq!(bench.possible(&[0, 1, 2, 3]), [2, 3]);
}

#[test]
fn a_fenced_writer_is_held_to_what_its_successor_has() {
    let mut bench = Bench::new();
    bench.write(1);
    bench.begin(2);
    bench.begin(3);
    bench.checker.succeeded_by(B);
    bench.read_by(B, 2).expect("2 happened before the fence");
    bench.ack(2);
    let lost = bench.checker.write_ended(3, true);
    // 3 may have happened before 2.
    lost.expect("3 then 2 explains it");
    bench.checker.write_submitted(A, 4, SPAN, false, false);
    let finding = bench.checker.write_ended(4, true).expect_err("it was fenced");
    assert_eq!(finding.violation, Violation::FencedAcknowledged { write: 4 });
}

#[test]
fn a_fenced_writer_may_not_acknowledge_what_its_successor_lacks() {
    let mut bench = Bench::new();
    bench.write(1);
    bench.begin(2);
    bench.checker.succeeded_by(B);
    bench.read_by(B, 1).expect("2 did not happen before the fence");
    assert!(bench.checker.write_ended(2, true).is_err());
}

#[test]
fn zeroes_garbage_and_extents_are_judged() {
    let mut bench = Bench::new();
    bench.write(1);
    let extents = |kind| Payload::Extents(vec![Extent { len_bytes: 4096, kind }]);
    bench.checker.read_submitted(A, 1, SPAN);
    bench.checker.read_returned(1, &extents(ExtentKind::Data)).expect("it is data");
    bench.checker.read_submitted(A, 2, SPAN);
    assert!(bench.checker.read_returned(2, &extents(ExtentKind::Hole)).is_err());
    bench.checker.write_submitted(A, 2, SPAN, true, false);
    bench.ack(2);
    bench.read(0).expect("zeroed");
    assert!(bench.read(1).is_err());
    bench.checker.read_submitted(A, 3, SPAN);
    let short = Payload::Data(smallvec![Piece::Zeroes(512)]);
    assert!(bench.checker.read_returned(3, &short).is_err());
    bench.checker.read_submitted(A, 4, SPAN);
    let split = Payload::Data(smallvec![Piece::Zeroes(512), Piece::Zeroes(3584)]);
    bench.checker.read_returned(4, &split).expect("pieces may be of any length");
}

/// A correct block device of one cell: a log of values, with a stable prefix.
struct OneCellDevice {
    log: Vec<Value>,
    stable: usize,
    /// Submitted writes: number, FUA, position in the log once it took effect.
    writes: Vec<(u32, bool, Option<usize>)>,
    /// Failed writes that have not taken effect yet.
    zombies: Vec<u32>,
    /// Reads in flight, each with its value once it has one.
    reads: Vec<(u32, Option<Value>)>,
    flushes: Vec<(u32, usize)>,
}

impl OneCellDevice {
    fn new() -> Self {
        Self {
            log: vec![0],
            stable: 1,
            writes: vec![],
            zombies: vec![],
            reads: vec![],
            flushes: vec![],
        }
    }

    fn apply(&mut self, index: usize) {
        let (number, _, place) = &mut self.writes[index];
        if place.is_none() {
            self.log.push(*number);
            *place = Some(self.log.len());
        }
    }

    fn forget_flights(&mut self) {
        self.writes.clear();
        self.zombies.clear();
        self.reads.clear();
        self.flushes.clear();
    }
}

/// Makes one random step of a correct device, and reports it to the checker.
fn random_step(
    rng: &mut RandomStream,
    number: u32,
    device: &mut OneCellDevice,
    checker: &mut Checker,
) {
    let pick = |rng: &mut RandomStream, count: usize| (count > 0).then(|| rng.index(count));
    match rng.index(20) {
        0..=3 if device.writes.len() < cell::LIVE_MAX => {
            let fua = rng.chance(200);
            checker.write_submitted(A, number, SPAN, false, fua);
            device.writes.push((number, fua, None));
        }
        4..=6 => {
            if let Some(index) = pick(rng, device.writes.len()) {
                device.apply(index);
                // Writes that failed before this write was submitted come before it in the log.
                device.zombies.clear();
            }
        }
        7..=9 => {
            if let Some(index) = device.writes.iter().position(|write| write.2.is_some()) {
                let (write, fua, place) = device.writes.swap_remove(index);
                if fua {
                    device.stable = device.stable.max(place.expect("chosen above"));
                }
                checker.write_ended(write, true).expect("the device is right");
            }
        }
        10 => {
            if let Some(index) = pick(rng, device.writes.len()) {
                let (write, _, place) = device.writes.swap_remove(index);
                checker.write_ended(write, false).expect("failing is allowed");
                // Only if no other write is in flight, to keep the order of the log simple.
                if place.is_none() && device.writes.is_empty() {
                    device.zombies.push(write);
                }
            }
        }
        11 => {
            if let Some(zombie) = device.zombies.pop() {
                device.log.push(zombie);
            }
        }
        12..=13 => {
            checker.read_submitted(A, number, SPAN);
            device.reads.push((number, None));
        }
        14..=15 => {
            let now = device.log.last().copied();
            if let Some(read) = device.reads.iter_mut().find(|read| read.1.is_none()) {
                read.1 = now;
            }
        }
        16 => {
            if let Some(index) = device.reads.iter().position(|read| read.1.is_some()) {
                let (read, value) = device.reads.swap_remove(index);
                let payload = data(value.expect("chosen above"));
                checker.read_returned(read, &payload).expect("the device is right");
            }
        }
        17 => {
            checker.flush_submitted(A, number);
            device.flushes.push((number, device.log.len()));
        }
        18 => {
            if let Some(index) = pick(rng, device.flushes.len()) {
                let (flush, covered) = device.flushes.swap_remove(index);
                device.stable = device.stable.max(covered);
                checker.flush_ended(flush, true);
            }
        }
        _ if rng.chance(100) => {
            for index in 0..device.writes.len() {
                if rng.chance(500) {
                    device.apply(index);
                }
            }
            if rng.chance(500) {
                let kept = rng.between(device.stable as u64, device.log.len() as u64) as usize;
                device.log.truncate(kept);
                checker.power_lost();
            } else {
                checker.process_died(A);
            }
            device.forget_flights();
            checker.succeeded_by(A);
        }
        _ => {}
    }
}

#[test]
fn random_histories_of_a_correct_device_pass() {
    for seed in 0..400 {
        let mut rng = RandomStream::new(seed, "checker", 0);
        let (mut device, mut bench) = (OneCellDevice::new(), Bench::new());
        for number in 1..400u32 {
            random_step(&mut rng, number, &mut device, &mut bench.checker);
        }
    }
}

#[test]
fn after_any_history_a_lost_write_is_found() {
    let mut tried = 0;
    for seed in 0..400 {
        let mut rng = RandomStream::new(seed, "checker", 0);
        let (mut device, mut bench) = (OneCellDevice::new(), Bench::new());
        for number in 1..200u32 {
            random_step(&mut rng, number, &mut device, &mut bench.checker);
        }
        if !device.writes.is_empty() {
            continue;
        }
        tried += 1;
        bench.write(9000);
        for old in device.log {
            assert!(bench.read(old).is_err(), "seed {seed}: {old} was overwritten");
        }
        bench.read(9000).expect("it was acknowledged last");
        bench.flush();
        bench.checker.power_lost();
        assert_eq!(bench.checker.cells[3].possible().as_slice(), [9000], "seed {seed}");
    }
    assert!(tried > 50, "{tried}");
}

#[test]
fn only_cells_that_are_not_clean_are_visited() {
    let mut bench = Bench::new();
    bench.write(1);
    assert_eq!(bench.checker.unclean, [3]);
    bench.flush();
    assert!(bench.checker.unclean.is_empty());
    bench.checker.process_died(A);
    bench.checker.power_lost();
    bench.read(1).expect("it was flushed");
    bench.read(0).expect_err("it was overwritten");
    // A failed write may still come, and a write in flight too.
    bench.begin(2);
    bench.checker.write_ended(2, false).expect("it may fail");
    bench.flush();
    assert_eq!(bench.checker.unclean, [3]);
    bench.checker.process_died(A);
    bench.read(1).expect("the failed write has not happened");
    bench.flush();
    assert!(bench.checker.unclean.is_empty());
}
