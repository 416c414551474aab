//! The device on a model of the card: random jobs, late events, a lost card, wrong bytes, and too
//! little memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_accel::{
    Device, Engine, Job, JobCompletion, JobError, JobId, SubmissionQueueId, execute,
};
use fieldstone_codes::Profile;
use fieldstone_crush::{
    AlgorithmKind, BucketId, ItemId, Map, MapBuilder, RuleId, RuleStep, TypeId, WEIGHT_ONE,
};
use fieldstone_gf::LinearMap;
use fieldstone_gpu::driver::Driver;
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
    let options = Options {
        seed: 5,
        count: 400,
        jobs_per_map: 10,
        threads: 2,
        element_bytes_max: 6000,
        jobs_per_placement: 8,
    };
    let card = card(Faults { delay: 2, ..Faults::default() });
    let report = selftest::run(&card, &options, |_| true).expect("a model works");
    assert!(report.is_good() && report.done == 400 && report.placements == 50, "{report:?}");
}

#[test]
fn the_selftest_finds_one_wrong_bit() {
    let options = Options {
        seed: 5,
        count: 40,
        jobs_per_map: 10,
        threads: 1,
        element_bytes_max: 2000,
        jobs_per_placement: 0,
    };
    let card = card(Faults { corrupt_at_launch: Some(17), ..Faults::default() });
    let report = selftest::run(&card, &options, |_| true).expect("a model works");
    assert_eq!((report.wrong, report.failed), (1, 0), "{report:?}");
}

#[test]
fn a_job_larger_than_a_slice_is_cut() {
    let card = card(Faults { delay: 3, ..Faults::default() });
    let mut device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    let map = encoder("zigzag:4+2");
    let counts = map.shape().input_elements.iter().chain(&map.shape().output_elements);
    let elements: u32 = counts.sum();
    // A slice has at most 16 MiB.
    let job = job(&map, (16 << 20) / elements as usize + 100);
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
    let small = job(&map, 64);
    let job = job(&map, 64 << 10);
    let started = Instant::now();
    assert!(!device.takes(&small), "the preparer is not asked for small jobs");
    while policy.threshold(&map).is_none() {
        assert!(!device.takes(&job));
        assert!(started.elapsed() < Duration::from_secs(100), "the preparer does not answer");
        std::thread::sleep(Duration::from_millis(5));
    }
    let threshold = policy.threshold(&map).expect("it is measured");
    assert_eq!((threshold.direct_bytes, threshold.staged_bytes), (u64::MAX, u64::MAX));
    assert!(!device.takes(&job));
}

const RULE: RuleId = RuleId(0);

/// Hosts of two devices each below a root of this algorithm. Device 0 is half in, device 1 is out.
fn cluster(hosts: i32, algorithm: AlgorithmKind, step: RuleStep) -> (Arc<Map>, Arc<[u32]>) {
    let mut builder = MapBuilder::new();
    for host in 0..hosts {
        let devices = [2 * host, 2 * host + 1].map(|osd| (ItemId(osd), WEIGHT_ONE));
        builder.straw2(BucketId(-2 - host), TypeId(1), devices);
    }
    let items = (0..hosts).map(|host| (ItemId(-2 - host), (2 + host as u32 % 3) * WEIGHT_ONE));
    builder.bucket(BucketId(-1), TypeId(2), algorithm, items);
    builder.rule(RULE, [RuleStep::Take(ItemId(-1)), step, RuleStep::Emit]);
    let mut weights = vec![WEIGHT_ONE; 2 * hosts as usize];
    weights[0] /= 2;
    weights[1] = 0;
    (Arc::new(builder.build().expect("a map")), weights.into())
}

const FIRSTN: RuleStep = RuleStep::ChooseleafFirstn { count: 0, kind: TypeId(1) };
const INDEP: RuleStep = RuleStep::ChooseleafIndep { count: 0, kind: TypeId(1) };

fn placement(cluster: &(Arc<Map>, Arc<[u32]>), width: usize, inputs: u32) -> Job {
    let (map, weights) = (Arc::clone(&cluster.0), Arc::clone(&cluster.1));
    let xs = (0..inputs).map(|x| x.wrapping_mul(0x9e37_79b9)).collect();
    Job::Place { map, rule: RULE, width, xs, weights }
}

#[test]
fn placements_are_those_of_software() {
    let card = card(Faults { delay: 2, ..Faults::default() });
    let mut device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    device.poison_outputs();
    for step in [FIRSTN, INDEP] {
        let cluster = cluster(5, AlgorithmKind::Straw2, step);
        // Results of a width above 5 are short, or have holes.
        for (width, inputs) in [(1, 1), (3, 300), (7, 129), (16, 50), (4, 0)] {
            let job = placement(&cluster, width, inputs);
            assert!(device.takes(&job));
            device.submit(QUEUE, JobId(1), job.clone()).expect("there is room");
            let completions = collect(&mut device, 1);
            assert!(completions[0].result == execute(&job), "{step:?} {width} {inputs}");
        }
    }
}

#[test]
fn a_placement_of_many_inputs_is_cut() {
    let card = card(Faults { delay: 3, ..Faults::default() });
    let mut device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    let job = placement(&cluster(2, AlgorithmKind::Straw2, INDEP), 1, 2 * (1 << 16) + 77);
    device.submit(QUEUE, JobId(1), job.clone()).expect("there is room");
    let completions = collect(&mut device, 1);
    assert!(completions[0].result == execute(&job));
}

/// More sources than a card keeps images of.
#[test]
fn images_that_are_forgotten_are_made_again() {
    let model = Arc::new(Model::default());
    let card = Card::with_driver(model.clone()).expect("a model works");
    let mut device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    let clusters: Vec<_> =
        (2..14).map(|hosts| cluster(hosts, AlgorithmKind::Straw2, FIRSTN)).collect();
    let mut in_use = Vec::new();
    for cluster in clusters.iter().chain(&clusters) {
        let job = placement(cluster, 2, 20);
        device.submit(QUEUE, JobId(1), job.clone()).expect("there is room");
        assert!(collect(&mut device, 1)[0].result == execute(&job));
        in_use.push(model.memory_in_use());
    }
    assert_eq!(in_use[11], in_use[23]);
}

#[test]
fn placements_that_the_kernel_does_not_take_come_back() {
    let card = card(Faults::default());
    let mut device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    let good = cluster(4, AlgorithmKind::Straw2, FIRSTN);
    let with_tree = cluster(4, AlgorithmKind::Tree, FIRSTN);
    let mut no_rule = placement(&good, 3, 10);
    if let Job::Place { rule, .. } = &mut no_rule {
        *rule = RuleId(7);
    }
    let bad = [placement(&good, 0, 10), placement(&good, 17, 10), no_rule];
    for job in bad.into_iter().chain([placement(&with_tree, 3, 10)]) {
        assert!(!device.takes(&job), "{job:?}");
        assert!(device.submit(QUEUE, JobId(1), job).is_err());
    }
    assert!(device.takes(&placement(&good, 16, 10)));
}

#[test]
fn an_engine_hides_a_card_that_is_lost_during_placements() {
    let job = placement(&cluster(4, AlgorithmKind::Straw2, INDEP), 3, 100);
    let faults = [
        Faults { lose_at_launch: Some(3), delay: 1, ..Faults::default() },
        Faults { refuse_programs: true, ..Faults::default() },
        Faults { memory_bytes: Some(4096), ..Faults::default() },
    ];
    for faults in faults {
        let card = card(faults);
        let device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
        let mut engine = Engine::with_device(Box::new(device));
        let mut completions = Vec::new();
        for id in 0..8 {
            engine.submit(0, QUEUE, JobId(id), job.clone()).expect("there is room");
            engine.poll(0, QUEUE, &mut completions);
        }
        for _ in 0..1000 {
            engine.poll(0, QUEUE, &mut completions);
        }
        assert_eq!(completions.len(), 8, "{faults:?}");
        let expected = execute(&job);
        assert!(completions.iter().all(|completion| completion.result == expected), "{faults:?}");
    }
}

#[test]
fn lanes_grow_when_a_slice_needs_it() {
    let model = Arc::new(Model::default());
    let card = Card::with_driver(model.clone()).expect("a model works");
    let map = encoder("rs:4+2");
    let mut device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    assert_eq!(model.memory_in_use(), 0);
    let mut in_use = Vec::new();
    // 6 elements: 1, 4 and again 1 MiB.
    for element_bytes in [1000, 400_000, 170_000] {
        let job = job(&map, element_bytes);
        device.submit(QUEUE, JobId(1), job.clone()).expect("there is room");
        assert!(collect(&mut device, 1)[0].result == execute(&job));
        in_use.push(model.memory_in_use());
    }
    assert_eq!([in_use[1] - in_use[0], in_use[2] - in_use[1]], [3 << 20, 0]);
    drop(device);
    assert_eq!(model.memory_in_use(), in_use[0] - (1 << 20));
}

#[test]
fn a_job_without_memory_ends_with_an_error_and_others_go_on() {
    let card = card(Faults { delay: 2, memory_bytes: Some(5 << 19), ..Faults::default() });
    let mut device = GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    let map = encoder("rs:4+2");
    let (small, large) = (job(&map, 1000), job(&map, 600_000));
    // Two lanes get 1 MiB each, and the third one nothing, while the other two work.
    let many = placement(&cluster(2, AlgorithmKind::Straw2, INDEP), 1, 3 << 16);
    for (job, fits) in [(&small, true), (&large, false), (&small, true), (&many, false)] {
        device.submit(QUEUE, JobId(1), job.clone()).expect("there is room");
        let completions = collect(&mut device, 1);
        match &completions[0].result {
            Err(JobError::Device(why)) => assert!(!fits && why.contains("memory"), "{why}"),
            result => assert!(fits && *result == execute(job)),
        }
        assert!(device.takes(job));
    }
}

#[test]
fn the_measured_policy_leaves_placements_to_faster_software() {
    let card = card(Faults::default());
    let policy = Policy::measured(&card);
    let device = GpuDevice::with_policy(&card, policy.clone()).expect("memory");
    let cluster = cluster(2, AlgorithmKind::Straw2, FIRSTN);
    let (few, many) = (placement(&cluster, 1, 20), placement(&cluster, 1, 100));
    let threshold = || policy.placement_threshold(&cluster.0, RULE, &cluster.1);
    let started = Instant::now();
    while threshold().is_none() {
        assert!(!device.takes(&few) && !device.takes(&many));
        assert!(started.elapsed() < Duration::from_secs(100), "the preparer does not answer");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(threshold(), Some(u64::MAX));
    assert!(!device.takes(&many));
}

/// A server opens and closes volumes for ever; the driver keeps what it made.
#[test]
fn devices_use_the_streams_of_earlier_ones() {
    let model = Arc::new(Model::default());
    let card = Card::with_driver(Arc::clone(&model) as Arc<dyn Driver>).expect("a model works");
    let open = || GpuDevice::with_policy(&card, Policy::everything(&card)).expect("memory");
    drop(open());
    let made = model.handles();
    for _ in 0..3 {
        drop(open());
    }
    assert_eq!(model.handles(), made);
}
