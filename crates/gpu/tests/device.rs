//! The device on a model of the card: random jobs, late events, a lost card, wrong bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_accel::{
    Device, Engine, Job, JobCompletion, JobError, JobId, SubmissionQueueId, execute,
};
use fieldstone_codes::Profile;
use fieldstone_gf::LinearMap;
use fieldstone_gpu::model::{Faults, Model};
use fieldstone_gpu::selftest::{self, Options};
use fieldstone_gpu::{Card, GpuDevice, Policy};

const QUEUE: SubmissionQueueId = SubmissionQueueId(3);

fn card(faults: Faults) -> Arc<Card> {
    Card::with_driver(Arc::new(Model::new(faults))).expect("a model works")
}

fn encoder(name: &str) -> Arc<LinearMap> {
    Arc::clone(name.parse::<Profile>().expect("a code").code().encode())
}

fn job(map: &Arc<LinearMap>, element_bytes: usize) -> Job {
    let input = |&count: &u32| {
        let bytes = (0..count as usize * element_bytes).map(|at| (at * 7 + at / 251) as u8);
        Bytes::from(bytes.collect::<Vec<u8>>())
    };
    let inputs = map.shape().input_elements.iter().map(input).collect();
    Job::Code { map: Arc::clone(map), inputs, checksum_block_bytes: Some(512) }
}

fn collect(device: &mut dyn Device, count: usize) -> Vec<JobCompletion> {
    let mut completions = Vec::new();
    for _ in 0..10_000 {
        device.poll(QUEUE, &mut completions);
        if completions.len() >= count {
            break;
        }
    }
    completions
}

#[test]
fn random_jobs_give_the_bits_of_the_scalar_kernel() {
    let options =
        Options { seed: 5, count: 400, jobs_per_map: 10, threads: 2, element_bytes_max: 6000 };
    let card = card(Faults { delay: 2, ..Faults::default() });
    let report = selftest::run(&card, &options, |_| true).expect("a model works");
    assert!(report.is_good() && report.done == 400, "{report:?}");
}

#[test]
fn the_selftest_finds_one_wrong_bit() {
    let options =
        Options { seed: 5, count: 40, jobs_per_map: 10, threads: 1, element_bytes_max: 2000 };
    let card = card(Faults { corrupt_at_launch: Some(17), ..Faults::default() });
    let report = selftest::run(&card, &options, |_| true).expect("a model works");
    assert_eq!((report.wrong, report.failed), (1, 0), "{report:?}");
}

#[test]
fn a_job_larger_than_a_slice_is_cut() {
    let card = card(Faults { delay: 3, ..Faults::default() });
    let mut device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    // 768 elements: a slice has at most 21 KB of each.
    let map = encoder("clay:8+4");
    let job = job(&map, 21_850);
    device.submit(QUEUE, JobId(1), job.clone()).expect("there is room");
    let completions = collect(&mut device, 1);
    assert!(completions[0].result == execute(&job));
}

#[test]
fn a_lost_card_ends_all_jobs_and_software_repeats_them() {
    let card = card(Faults { delay: 5, lose_at_launch: Some(4), ..Faults::default() });
    let mut device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    let map = encoder("rs:4+2");
    for id in 0..6 {
        let _ = device.submit(QUEUE, JobId(id), job(&map, 1000));
    }
    let completions = collect(&mut device, 6);
    assert!(completions.len() >= 4, "{}", completions.len());
    let lost = |result: &Result<_, _>| matches!(result, Err(JobError::Device(_)));
    assert!(completions.iter().all(|completion| lost(&completion.result)));
    assert!(!device.takes(&job(&map, 1000)));
    assert!(device.submit(QUEUE, JobId(9), job(&map, 1000)).is_err());
}

#[test]
fn an_engine_hides_a_lost_card_and_wrong_bytes() {
    let map = encoder("zigzag:4+2");
    let faults = [
        Faults { lose_at_launch: Some(3), ..Faults::default() },
        Faults { corrupt_at_launch: Some(3), delay: 1, ..Faults::default() },
        Faults { refuse_programs: true, ..Faults::default() },
    ];
    for faults in faults {
        let card = card(faults);
        let device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
        let mut engine = Engine::with_device(Box::new(device));
        let expected = execute(&job(&map, 777));
        let mut completions = Vec::new();
        for id in 0..8 {
            engine.submit(0, QUEUE, JobId(id), job(&map, 777)).expect("there is room");
            engine.poll(0, QUEUE, &mut completions);
        }
        for _ in 0..1000 {
            engine.poll(0, QUEUE, &mut completions);
        }
        assert_eq!(completions.len(), 8, "{faults:?}");
        assert!(completions.iter().all(|completion| completion.result == expected), "{faults:?}");
    }
}

#[test]
fn jobs_that_the_device_cannot_do_come_back() {
    let card = card(Faults::default());
    let mut device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    let map = encoder("rs:4+2");
    let inputs = vec![Bytes::from_static(&[1; 10]); 3];
    assert!(device.submit(QUEUE, JobId(1), Job::code(Arc::clone(&map), inputs)).is_err());
    let checksum = Job::Checksum { data: Bytes::from_static(&[1; 10]), block_bytes: 5 };
    assert!(!device.takes(&checksum) && device.submit(QUEUE, JobId(2), checksum).is_err());
    let single = encoder("copies:1");
    assert!(device.submit(QUEUE, JobId(3), job(&single, 64)).is_err());
    // No bytes are a result, too.
    device.submit(QUEUE, JobId(4), job(&map, 0)).expect("there is room");
    assert_eq!(collect(&mut device, 1)[0].result, execute(&job(&map, 0)));
}

/// The interpreter is slower than software with every size, so no job is worth it.
#[test]
fn the_measured_policy_leaves_jobs_to_faster_software() {
    let card = card(Faults::default());
    let policy = Policy::measured(&card);
    let device = GpuDevice::with_policy(&card, policy.clone()).expect("memory");
    let map = encoder("copies:2");
    let job = job(&map, 64);
    let started = Instant::now();
    while policy.threshold(&map).is_none() {
        assert!(!device.takes(&job));
        assert!(started.elapsed() < Duration::from_secs(100), "the preparer does not answer");
        std::thread::sleep(Duration::from_millis(5));
    }
    let threshold = policy.threshold(&map).expect("it is measured");
    assert_eq!((threshold.direct_bytes, threshold.staged_bytes), (u64::MAX, u64::MAX));
    assert!(!device.takes(&job));
}
