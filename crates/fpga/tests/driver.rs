//! The driver against the software model of the device. Whatever the device does, every job
//! completes once with the bits of software, memory is given back, and a queue set that can work
//! again does.

use std::sync::Arc;

use bytes::Bytes;
use fieldstone_accel::{
    Device, Engine, Job, JobError, JobId, JobKind, JobOutput, SubmissionQueueId, crc32c, execute,
};
use fieldstone_codes::Profile;
use fieldstone_crush::AlgorithmKind;
use fieldstone_fpga::allocator::Allocator;
use fieldstone_fpga::card::{Grant, OpenError};
use fieldstone_fpga::compilers::Compilers;
use fieldstone_fpga::flight::DeviceOperation;
use fieldstone_fpga::host::{DmaMemory, Mmio};
use fieldstone_fpga::maps::{Admission, Maps};
use fieldstone_fpga::model::{DeviceModel, Faults, ModelTables, Options};
use fieldstone_fpga::reconfigure_stress;
use fieldstone_fpga::regs::{H2cOp, ReconfigurableModule, function_table, queue, register};
use fieldstone_fpga::selftest::{self, JobGenerator};
use fieldstone_fpga::{Card, FpgaDevice, bounds};

fn model(seed: u64) -> (DeviceModel, Arc<Card>) {
    let model = DeviceModel::new(&Options { seed, ..Options::default() });
    let tables = Box::new(ModelTables::new(&model));
    let window = model.card_window();
    let card = Card::open(model.function(0), model.memory(), tables, window, 4);
    (model, card.expect("the device is one of ours"))
}

/// With the device's own compilers.
fn compiled(seed: u64) -> (DeviceModel, Arc<Card>) {
    let model = DeviceModel::new(&Options { seed, ..Options::default() });
    let tables = Box::new(ModelTables::around(&model, Box::new(Compilers)));
    let card = Card::open(model.function(0), model.memory(), tables, model.card_window(), 4);
    (model, card.expect("the device is one of ours"))
}

fn options(seed: u64, count: u64) -> selftest::Options {
    selftest::Options { seed, count, depth: 12, max_bytes: 16 << 10 }
}

#[test]
fn random_jobs_have_the_bits_of_software_and_memory_comes_back() {
    for (seed, interrupts, real) in [(1, false, true), (2, true, true), (3, false, false)] {
        let (model, card) = if real { compiled(seed) } else { model(seed) };
        let before = card.free();
        let mut device = FpgaDevice::open(&card, interrupts).expect("a queue set is free");
        let report = selftest::run(&mut device, &options(seed, 1500), |_| true);
        assert!(report.is_good(), "{report:?}");
        let place = report.place;
        assert!(place.done > place.jobs / 2, "maps change seldom: {place:?}");
        assert_eq!(report.code.not_taken + place.not_taken + report.checksum.not_taken, 0);
        assert!(card.partition().swaps > 0, "maps of three kinds need the partition");
        assert_eq!(model.done(H2cOp::Place), place.done);
        assert_eq!(device.cycles(DeviceOperation::Place).count, place.done);
        // Coding jobs of one burst by the same map are one operation.
        let codes = device.cycles(DeviceOperation::Code).count;
        assert_eq!(model.done(H2cOp::Code), codes);
        assert!((1..report.code.done).contains(&codes), "{codes} of {}", report.code.done);
        assert_eq!((device.resets(), card.take_errors()), (0, 0));
        let totals = card.totals();
        assert_eq!((totals.host_faults, totals.card_faults), (0, 0));
        drop(device);
        let after = card.free();
        // Images stay in card memory for the next queue set.
        assert_eq!((after.0, after.2), (before.0, before.2));
        assert!(after.1 >= before.1 - ((bounds::MAX_IMAGES * 16) << 10) as u64);
    }
}

#[test]
fn tables_are_copied_once_and_maps_loaded_when_they_change() {
    let (model, card) = model(4);
    let mut engine = Engine::with_device(Box::new(FpgaDevice::open(&card, false).expect("free")));
    let mut jobs = JobGenerator::new(4, 4096);
    let (first, second) = (jobs.place(), jobs.place());
    let Job::Place { map, .. } = &first else { unreachable!("a placement was asked for") };
    let weights: Arc<[u32]> = vec![0x1_0000; map.max_devices() as usize].into();
    let other = match &second {
        Job::Place { map, rule, width, xs, .. } => {
            Job::Place { map: Arc::clone(map), rule: *rule, width: *width, xs: xs.clone(), weights }
        }
        _ => unreachable!("a placement was asked for"),
    };
    for _ in 0..3 {
        assert_eq!(run(&mut engine, first.clone()), execute(&first));
    }
    // The copies of two runs: the image with the first run, then only inputs.
    assert_eq!((model.done(H2cOp::LoadMap), model.done(H2cOp::Copy)), (1, 4));
    assert_eq!(run(&mut engine, other.clone()), execute(&other));
    assert_eq!(run(&mut engine, first.clone()), execute(&first));
    assert_eq!((model.done(H2cOp::LoadMap), model.done(H2cOp::Copy)), (3, 7));
    let code = jobs.code();
    let inputs = if let Job::Code { inputs, .. } = &code { inputs.len() as u64 } else { 0 };
    assert_eq!(run(&mut engine, code.clone()), execute(&code));
    assert_eq!(run(&mut engine, code.clone()), execute(&code));
    assert_eq!(model.done(H2cOp::Copy), 7 + 1 + 2 * inputs);
    let counters = engine.counters();
    assert_eq!((counters.place.device_jobs, counters.code.device_jobs), (5, 2));
    assert_eq!(counters.place.device_failures + counters.code.device_failures, 0);
}

/// Coding jobs of the same form in one burst become one operation, up to the size of a batch, even
/// if other jobs come between them.
#[test]
fn coding_jobs_of_a_burst_are_one_operation() {
    const QUEUE: SubmissionQueueId = SubmissionQueueId(0);
    let (model, card) = compiled(9);
    let all = card.free();
    let mut device = FpgaDevice::open(&card, false).expect("a queue set is free");
    let code = "rs:4+2".parse::<Profile>().expect("a profile").code();
    let job = |len: usize, seed: u8| {
        let shard = |shard: u8| vec![seed.wrapping_mul(31) ^ shard; len].into();
        Job::code(Arc::clone(code.encode()), (0..4).map(shard).collect())
    };
    let checksum = Job::Checksum { data: Bytes::from_static(&[7; 100]), block_bytes: 4096 };
    let long = bounds::MAX_BATCH_BYTES / 6 / 2 / 64 * 64;
    let max = bounds::MAX_BATCH_JOBS as u8;
    let bursts: [(Vec<Job>, u64); 6] = [
        ((0..max).map(|seed| job(4096, seed)).collect(), 1),
        ((0..=max).map(|seed| job(4096, seed)).collect(), 2),
        (vec![job(64, 1)], 1),
        (vec![job(64, 1), checksum.clone(), job(64, 2), checksum, job(64, 3)], 1),
        (vec![job(64, 1), job(64, 2), job(128, 3), job(128, 4), job(64, 5)], 3),
        (vec![job(long, 1), job(long, 2), job(long, 3)], 2),
    ];
    for (jobs, operations) in bursts {
        let done = model.done(H2cOp::Code);
        for (id, job) in (0..).zip(&jobs) {
            assert!(device.submit(QUEUE, JobId(id), job.clone()).is_ok());
        }
        assert_eq!(model.done(H2cOp::Code), done, "nothing runs before the burst ends");
        let mut completions = Vec::new();
        while completions.len() < jobs.len() {
            device.poll(QUEUE, &mut completions);
        }
        for completion in completions {
            assert_eq!(completion.result, execute(&jobs[completion.job.0 as usize]));
        }
        assert_eq!(model.done(H2cOp::Code) - done, operations);
    }
    assert_eq!(device.resets(), 0);
    // A burst that is never polled ends when the driver is dropped.
    assert!(device.submit(QUEUE, JobId(0), job(4096, 1)).is_ok());
    drop(device);
    assert_eq!(card.free(), all);
}

/// The device makes the checksums of a coding job's outputs from its own memory: the host copies
/// nothing more to the device. A batch is one operation, with checksums for each of its jobs.
#[test]
fn checksums_of_outputs_are_made_beside_the_coding() {
    const QUEUE: SubmissionQueueId = SubmissionQueueId(0);
    let (model, card) = compiled(10);
    let mut device = FpgaDevice::open(&card, true).expect("a queue set is free");
    let code = "rs:4+2".parse::<Profile>().expect("a profile").code();
    let job = |seed: u8, len: usize, checksum_block_bytes: Option<usize>| {
        let shard = |shard: u8| vec![seed.wrapping_mul(31) ^ shard; len].into();
        let (map, inputs) = (Arc::clone(code.encode()), (0..4).map(shard).collect());
        Job::Code { map, inputs, checksum_block_bytes }
    };
    let jobs: Vec<Job> = (0..5).map(|seed| job(seed, 8192, Some(4096))).collect();
    let counts = || [H2cOp::Code, H2cOp::Checksum, H2cOp::Copy].map(|op| model.done(op));
    let before = counts();
    for (id, job) in (0..).zip(&jobs) {
        assert!(device.submit(QUEUE, JobId(id), job.clone()).is_ok());
    }
    let mut completions = Vec::new();
    while completions.len() < jobs.len() {
        device.poll(QUEUE, &mut completions);
    }
    for completion in completions {
        assert_eq!(completion.result, execute(&jobs[completion.job.0 as usize]));
    }
    let made: Vec<u64> =
        counts().iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(made, [1, 5, 1 + 5 * 4], "the copies are the program and the inputs");
    // The driver does not take blocks that are not whole beats, or that span two outputs.
    for (len, block_bytes) in [(8192, 0), (8192, 100), (8192, 12_288), (4096 + 64, 4096)] {
        assert!(!device.takes(&job(0, len, Some(block_bytes))), "{len} {block_bytes}");
        assert!(device.takes(&job(0, len, None)));
    }
    // As many jobs as the driver takes at once: the rings have room for all their descriptors.
    let mut sent = 0;
    while device.submit(QUEUE, JobId(sent), job(sent as u8, 4096, Some(64))).is_ok() {
        sent += 1;
    }
    assert!(sent > 16, "{sent} jobs at once");
    let mut completions = Vec::new();
    while (completions.len() as u64) < sent {
        device.poll(QUEUE, &mut completions);
    }
    for completion in completions {
        assert_eq!(completion.result, execute(&job(completion.job.0 as u8, 4096, Some(64))));
    }
    assert_eq!(device.resets(), 0);
}

/// Does a job to its end.
fn run(engine: &mut Engine, job: Job) -> Result<JobOutput, JobError> {
    let mut completions = Vec::new();
    engine
        .submit(0, SubmissionQueueId(0), JobId(0), job)
        .expect("no other job waits on this queue");
    loop {
        engine.poll(0, SubmissionQueueId(0), &mut completions);
        if let Some(done) = completions.pop() {
            return done.result;
        }
    }
}

/// Runs jobs under faults, through an engine; some run alone, and some jobs are in flight.
fn under_faults(
    seed: u64,
    faults: &Faults,
    count: u64,
) -> (fieldstone_accel::Counters, DeviceModel) {
    let (model, card) = model(seed);
    let device = FpgaDevice::open(&card, seed % 2 == 1).expect("a queue set is free");
    model.set_faults(faults.clone());
    let mut engine = Engine::with_device(Box::new(device));
    let mut jobs = JobGenerator::new(seed, 8192);
    let mut expected = std::collections::BTreeMap::new();
    let mut completions = Vec::new();
    for number in 0..count {
        let job = jobs.next();
        if number % 4 == 0 {
            assert_eq!(run(&mut engine, job.clone()), execute(&job));
            continue;
        }
        expected.insert(JobId(number), execute(&job));
        engine.submit(0, SubmissionQueueId(1), JobId(number), job).expect("the queue is not full");
        engine.poll(0, SubmissionQueueId(1), &mut completions);
        for done in completions.drain(..) {
            assert_eq!(Some(done.result), expected.remove(&done.job));
        }
    }
    for _ in 0..1_000_000 {
        if expected.is_empty() {
            break;
        }
        engine.poll(0, SubmissionQueueId(1), &mut completions);
        for done in completions.drain(..) {
            assert_eq!(Some(done.result), expected.remove(&done.job));
        }
    }
    assert!(expected.is_empty(), "{} jobs never completed", expected.len());
    (engine.counters(), model)
}

fn failures(counters: &fieldstone_accel::Counters) -> u64 {
    counters.code.device_failures
        + counters.place.device_failures
        + counters.checksum.device_failures
}

fn taken(counters: &fieldstone_accel::Counters) -> u64 {
    counters.code.device_jobs + counters.place.device_jobs + counters.checksum.device_jobs
}

#[test]
fn every_fault_is_survived_and_the_device_used_again() {
    let cases = [
        Faults { wrong_status: 0.01, ..Faults::default() },
        Faults { lost_completion: 0.01, ..Faults::default() },
        Faults { wrong_index: 0.01, ..Faults::default() },
        Faults {
            wrong_status: 0.01,
            lost_completion: 0.005,
            wrong_index: 0.005,
            ..Faults::default()
        },
    ];
    for (seed, faults) in (10..).zip(cases) {
        let (counters, _) = under_faults(seed, &faults, 400);
        let (failures, taken) = (failures(&counters), taken(&counters));
        assert!(failures > 0, "seed {seed}: the faults did nothing");
        assert!(taken - failures > 100, "seed {seed}: {taken} taken, {failures} failed");
    }
}

#[test]
fn lost_interrupts_only_cost_time() {
    let faults = Faults { lost_interrupt: 0.3, ..Faults::default() };
    let (counters, _) = under_faults(21, &faults, 300);
    assert_eq!(failures(&counters), 0);
    assert!(taken(&counters) > 200);
}

#[test]
fn damaged_bitstreams_leave_placements_to_software_until_a_good_one_comes() {
    let faults = Faults { bad_bitstream: 0.5, ..Faults::default() };
    let (counters, model) = under_faults(30, &faults, 1500);
    assert!(model.done(H2cOp::Reconfigure) > 0);
    assert!(counters.place.device_full > 0 && counters.place.device_jobs > 0);
}

/// A device that stops in the middle: its jobs end as errors within bounded polls, and the driver
/// takes no more.
fn dies(faults: Faults) {
    let (model, card) = model(40);
    let mut device = FpgaDevice::open(&card, false).expect("a queue set is free");
    let data: Bytes = vec![7; 5000].into();
    let job = Job::Checksum { data: data.clone(), block_bytes: 8192 };
    device.submit(SubmissionQueueId(0), JobId(1), job.clone()).expect("there is room");
    let mut completions = Vec::new();
    while completions.is_empty() {
        device.poll(SubmissionQueueId(0), &mut completions);
    }
    let good = execute(&job);
    assert_eq!(completions.pop().map(|done| done.result), Some(good));
    model.set_faults(faults);
    device
        .submit(SubmissionQueueId(0), JobId(2), job.clone())
        .expect("the driver does not know the fault yet");
    for _ in 0..10_000_000u64 {
        device.poll(SubmissionQueueId(0), &mut completions);
        if device.is_lost() {
            break;
        }
    }
    assert!(device.is_lost(), "it was never given up");
    assert!(device.name().ends_with(" (given up)"), "{}", device.name());
    assert!(
        matches!(completions[..], [ref done] if matches!(done.result, Err(JobError::Device(_))))
    );
    assert!(!device.takes(&job));
    assert!(device.submit(SubmissionQueueId(0), JobId(3), job).is_err());
    let before = card.free();
    drop(device);
    assert_eq!(card.free(), before, "memory that the device may write to is not used again");
    assert_eq!(crc32c(&data), crc32c(&[7; 5000]));
}

#[test]
fn a_device_that_stops_is_given_up() {
    dies(Faults { stuck: true, ..Faults::default() });
    dies(Faults { frozen: true, ..Faults::default() });
    dies(Faults { gone: true, ..Faults::default() });
}

#[test]
fn a_set_that_always_fails_is_given_up() {
    let (model, card) = model(41);
    let mut device = FpgaDevice::open(&card, false).expect("a queue set is free");
    model.set_faults(Faults { wrong_status: 1.0, ..Faults::default() });
    let job = Job::Checksum { data: vec![1; 100].into(), block_bytes: 128 };
    let mut completions = Vec::new();
    for number in 0..1_000_000 {
        let _ = device.submit(SubmissionQueueId(0), JobId(number), job.clone());
        device.poll(SubmissionQueueId(0), &mut completions);
        if device.is_lost() {
            break;
        }
    }
    assert!(device.is_lost());
    assert_eq!(device.resets(), u64::from(bounds::MAX_RESETS) + 1);
    assert!(completions.iter().all(|done| done.result.is_err()));
}

/// A map that takes longer than an operation may is not offered again; other maps are.
#[test]
fn what_takes_too_long_is_left_to_software() {
    let (model, card) = model(42);
    let device = FpgaDevice::open(&card, false).expect("a queue set is free");
    let mut engine = Engine::with_device(Box::new(device));
    let mut jobs = JobGenerator::new(42, 4096);
    let (coding, placement) = (jobs.code(), jobs.place_by(AlgorithmKind::Straw2));
    let other = Job::Checksum { data: vec![1; 100].into(), block_bytes: 128 };
    for (slow, kind) in [(&coding, JobKind::Code), (&placement, JobKind::Place)] {
        model.set_faults(Faults { too_long: 1.0, ..Faults::default() });
        assert_eq!(run(&mut engine, slow.clone()), execute(slow));
        model.set_faults(Faults::default());
        // The queue set is reset, and then works again.
        let before = engine.counters().checksum.device_jobs;
        while engine.counters().checksum.device_jobs == before {
            assert_eq!(run(&mut engine, other.clone()), execute(&other));
        }
        assert_eq!(run(&mut engine, slow.clone()), execute(slow));
        let counts = *engine.counters().kind(kind);
        assert_eq!((counts.jobs, counts.device_jobs, counts.device_failures), (2, 1, 1));
    }
}

#[test]
fn queue_sets_of_one_card_work_side_by_side() {
    let (model, card) = model(50);
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let mut device = FpgaDevice::open(&card, false).expect("a queue set is free");
            std::thread::spawn(move || selftest::run(&mut device, &options(seed, 300), |_| true))
        })
        .collect();
    assert_eq!(FpgaDevice::open(&card, false).err(), Some(OpenError::NoQueueSet(4)));
    for thread in threads {
        let report = thread.join().expect("no panic");
        // The queue sets compete for the one map, so the driver may give placements back, but none
        // fails.
        let failed = report.code.failed + report.place.failed + report.checksum.failed;
        let wrong = report.code.wrong + report.place.wrong + report.checksum.wrong;
        assert_eq!((failed, wrong), (0, 0), "{:?}", report.first);
        assert_eq!(report.code.done, report.code.jobs);
    }
    assert!(model.done(H2cOp::Place) > 0);
    assert_eq!(card.free().2, 4);
}

#[test]
fn a_tenant_has_what_it_was_granted_and_nothing_else() {
    let (model, card) = model(60);
    let memory = model.memory();
    let all = memory.window();
    let middle = all.start + (16 << 20);
    let mut own = FpgaDevice::open(&card, false).expect("a queue set is free");
    let window = middle..all.end;
    let grant =
        Grant { host: window.clone(), card: 16 << 20..32 << 20, queue_sets: 4..6, vector: 3 };
    card.grant(3, &grant).expect("function 0 grants");
    let tables = || Box::new(ModelTables::new(&model));
    let page = model.function(3);
    let part = model.memory_part(window.clone());
    let tenant = Card::open(page.clone(), part, tables(), grant.card.clone(), 2);
    let tenant = tenant.expect("the function has what it needs");
    assert_eq!((tenant.function(), tenant.queue_sets()), (3, 2));
    assert_eq!(tenant.grant(4, &grant).err(), Some(OpenError::NotPhysical(3)));
    let mut device = FpgaDevice::open(&tenant, true).expect("a queue set is free");
    assert_eq!(device.name(), "fpga 3.0");
    let report = selftest::run(&mut device, &options(60, 300), |_| true);
    assert_eq!((report.code.done, report.code.wrong), (report.code.jobs, 0), "{report:?}");
    // A tenant may not change the partition, so the driver does not take those maps.
    assert!(report.place.wrong == 0 && report.place.failed == 0, "{report:?}");
    assert_eq!(tenant.take_errors(), 0);
    // The device refuses accesses to registers of function 0, or of no function, and counts them.
    page.write64(function_table::BASE, 0);
    assert_eq!(page.read64(register::RM_STATE), 0);
    assert_eq!(tenant.take_errors(), register::FUNCTION_ERRORS_REGISTER_ACCESS.with(1));
    page.write64(queue::BASE + 2 * queue::STRIDE, 1);
    assert_eq!(tenant.take_errors(), register::FUNCTION_ERRORS_DOORBELL_RANGE.with(1));
    assert_eq!(tenant.take_errors(), 0);
    // A tenant that claims more memory than it was granted gets errors, on its own queue.
    drop(device);
    let greedy = model.memory_part(all.start..middle);
    let greedy = Card::open(page, greedy, tables(), grant.card, 2).expect("registers are its own");
    assert_eq!(FpgaDevice::open(&greedy, false).err(), Some(OpenError::NotReady(0)));
    assert!(card.totals().host_faults > 0);
    let report = selftest::run(&mut own, &options(61, 200), |_| true);
    assert!(report.is_good(), "{report:?}");
}

#[test]
fn the_partition_changes_when_another_kind_of_map_stays() {
    let (_, card) = model(70);
    let mut device = FpgaDevice::open(&card, false).expect("a queue set is free");
    assert_eq!(device.module(), Some(ReconfigurableModule::None));
    let mut jobs = JobGenerator::new(70, 4096);
    let needs = |job: &Job| {
        let Job::Place { map, .. } = job else { return None };
        let kind = map.buckets().next()?.algorithm.kind();
        Some(kind).filter(|kind| matches!(kind.word(), "list" | "tree" | "uniform"))
    };
    let job = std::iter::repeat_with(|| jobs.place()).find(|job| needs(job).is_some());
    let job = job.expect("the row has no end");
    let mut given_back = 0;
    while let Err(_job) = device.submit(SubmissionQueueId(0), JobId(1), job.clone()) {
        assert!(device.takes(&job), "it will, with the module");
        given_back += 1;
        assert!(given_back < 100_000);
    }
    assert!(given_back >= bounds::SWAP_PATIENCE);
    assert_eq!(card.partition().swaps, 1);
    let mut completions = Vec::new();
    while completions.is_empty() {
        device.poll(SubmissionQueueId(0), &mut completions);
    }
    assert_eq!(completions.pop().map(|done| done.result), Some(execute(&job)));
}

/// After `Admission::Swap` and before the change begins, another queue set's job may be admitted,
/// or another queue set may begin to change the partition.
#[test]
fn a_swap_begins_only_if_it_is_still_right() {
    let mut maps = Maps::new(Some(ReconfigurableModule::List), true);
    let mut card = Allocator::new(0..1 << 20);
    let mut jobs = JobGenerator::new(1, 4096);
    let (mut list, mut tree) =
        (jobs.place_by(AlgorithmKind::List), jobs.place_by(AlgorithmKind::Tree));
    let mut admit = |maps: &mut Maps, job: &mut Job, set: u16| {
        let Job::Place { map, rule, weights, .. } = job else { unreachable!("it places") };
        maps.admit(&Compilers, &mut card, (map, weights), *rule, set)
    };
    let mut until_due = |maps: &mut Maps| {
        for _ in 0..=bounds::SWAP_PATIENCE {
            if let Admission::Swap(module) = admit(maps, &mut tree, 0) {
                return module;
            }
        }
        panic!("a swap becomes due");
    };
    assert_eq!(until_due(&mut maps), ReconfigurableModule::Tree);
    assert_eq!(until_due(&mut maps), ReconfigurableModule::Tree);
    assert!(maps.swap_begins() && !maps.swap_begins(), "one of the two that were told to");
    maps.swap_ended(Some(ReconfigurableModule::List));
    assert_eq!(until_due(&mut maps), ReconfigurableModule::Tree);
    let mut card = Allocator::new(0..1 << 20);
    let let_in = (0..3).find_map(|_| {
        let Job::Place { map, rule, weights, .. } = &mut list else { unreachable!("it places") };
        match maps.admit(&Compilers, &mut card, (map, weights), *rule, 1) {
            Admission::Go(ticket) => Some(ticket),
            _ => None,
        }
    });
    let ticket = let_in.expect("a job of the module that is there gets in sooner or later");
    assert!(!maps.swap_begins(), "a placement uses the module");
    maps.release(ticket.pin);
    assert!(maps.swap_begins());
}

#[test]
fn the_partition_changes_under_the_feet_of_others() {
    let (_, card) = compiled(75);
    let mut other = FpgaDevice::open(&card, false).expect("a queue set is free");
    let others = std::thread::spawn(move || selftest::run(&mut other, &options(75, 600), |_| true));
    let mut device = FpgaDevice::open(&card, false).expect("a queue set is free");
    let stress = reconfigure_stress::run(&mut device, 76, 20, |_| true);
    assert_eq!((stress.swaps, stress.failed, stress.wrong), (20, 0, 0), "{stress:?}");
    assert!(stress.device_jobs > 19 && stress.given_back >= 20, "{stress:?}");
    assert!(card.partition().swaps >= 20);
    let report = others.join().expect("no panic");
    for (name, kind) in report.kinds() {
        // A placement of the other queue set may be in flight when its module is removed.
        assert_eq!(kind.wrong, 0, "{name}: {:?}", report.first);
        assert!(name == "place" || kind.done + kind.failed == kind.jobs, "{name}: {kind:?}");
    }
}

#[test]
fn what_is_not_ours_is_not_opened() {
    let (model, _) = model(80);
    model.set_faults(Faults { gone: true, ..Faults::default() });
    let tables = Box::new(ModelTables::new(&model));
    let opened = Card::open(model.function(0), model.memory(), tables, 0..64, 1);
    assert_eq!(opened.err(), Some(OpenError::NotOurs { found: u64::MAX }));
}

#[test]
fn jobs_out_of_bounds_are_not_taken() {
    let (_, card) = model(90);
    let device = FpgaDevice::open(&card, false).expect("a queue set is free");
    let checksum =
        |len: usize, block_bytes| Job::Checksum { data: vec![0; len].into(), block_bytes };
    assert!(device.takes(&checksum(100, 128)) && device.takes(&checksum(100, 1000)));
    assert!(device.takes(&checksum(1000, 64)) && !device.takes(&checksum(1000, 100)));
    assert!(!device.takes(&checksum(0, 64)) && !device.takes(&checksum(10, 0)));
    assert!(!device.takes(&checksum(bounds::MAX_JOB_BYTES + 1, 4096)));
    let place = |width, count, rule| match JobGenerator::new(1, 4096).place() {
        Job::Place { map, weights, .. } => Job::Place {
            map,
            rule: fieldstone_crush::RuleId(rule),
            width,
            xs: vec![1; count],
            weights,
        },
        other => other,
    };
    assert!(device.takes(&place(15, bounds::MAX_PLACEMENTS, 1)));
    for (width, count, rule) in
        [(0, 1, 0), (16, 1, 0), (3, 0, 0), (3, bounds::MAX_PLACEMENTS + 1, 0), (3, 1, 2)]
    {
        assert!(!device.takes(&place(width, count, rule)), "{width} {count} {rule}");
    }
    let code: Arc<dyn fieldstone_codes::Code> =
        "rs:4+2".parse::<fieldstone_codes::Profile>().expect("a code").code();
    let shards = |len: usize| Job::code(Arc::clone(code.encode()), vec![vec![0; len].into(); 4]);
    assert!(device.takes(&shards(64)) && !device.takes(&shards(63)) && !device.takes(&shards(0)));
    assert!(!device.takes(&shards(bounds::MAX_JOB_BYTES / 4 + 64)));
}
