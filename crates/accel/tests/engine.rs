//! A device may take only some kinds, be full, fail, give wrong bits, answer late and out of order,
//! or die. Whatever it does, every job completes once, on its queue, with the bits of software.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use fieldstone_accel::{
    Device, Engine, Job, JobCompletion, JobError, JobId, JobKind, JobOutput, MAX_DEVICE_FAULTS,
    MAX_WAITING_COMPLETIONS, POLL_SOFTWARE_BYTES, Shard, SoftwareEngine, SubmissionQueueId, crc32c,
    execute,
};
use fieldstone_codes::{Code, Profile};
use fieldstone_crush::{CrushError, NodeWeight, OsdId, Osds, PoolMap, RuleId, WEIGHT_ONE};
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A device whose seed decides its behaviour.
struct Moody {
    rng: ChaCha8Rng,
    /// Some of its results are wrong.
    lies: bool,
    waiting: BTreeMap<SubmissionQueueId, Vec<JobCompletion>>,
}

impl Device for Moody {
    fn name(&self) -> &str {
        "moody"
    }

    fn takes(&self, job: &Job) -> bool {
        job.kind() != JobKind::Place || self.lies
    }

    fn submit(&mut self, queue: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
        if self.rng.random_bool(0.2) {
            return Err(job);
        }
        let broken = self.rng.random_bool(0.2);
        let error = || Err(JobError::Device("out of sorts".to_owned()));
        let mut result = if broken { error() } else { execute(&job) };
        if let Ok(output) = &mut result
            && self.lies
            && self.rng.random_bool(0.2)
        {
            distort(output, &mut self.rng);
        }
        self.waiting.entry(queue).or_default().push(JobCompletion { job: id, result });
        Ok(())
    }

    fn poll(&mut self, queue: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
        let waiting = self.waiting.entry(queue).or_default();
        waiting.shuffle(&mut self.rng);
        let ready = self.rng.random_range(0..=waiting.len());
        completions.extend(waiting.drain(..ready));
    }
}

/// Makes a result wrong, if it has anything in it.
fn distort(output: &mut JobOutput, rng: &mut ChaCha8Rng) {
    match output {
        JobOutput::Code(shards) => {
            let index = rng.random_range(0..shards.len());
            let Shard { data, checksums } = &mut shards[index];
            if !checksums.is_empty() && rng.random_bool(0.5) {
                let at = rng.random_range(0..checksums.len());
                checksums[at] ^= 1 << rng.random_range(0..32);
            } else if !data.is_empty() {
                let mut bytes = data.to_vec();
                let at = rng.random_range(0..bytes.len());
                bytes[at] ^= 1 << rng.random_range(0..8);
                *data = bytes.into();
            }
        }
        // Twice the same node, or a node that does not exist.
        JobOutput::Place(placements) => {
            let Some(Osds(osds)) = placements.first_mut() else { return };
            match &mut osds[..] {
                [first, .., last] if rng.random_bool(0.5) => *last = *first,
                [first, ..] => *first = Some(OsdId(6)),
                [] => {}
            }
        }
        JobOutput::Checksum(sums) => sums.iter_mut().for_each(|sum| *sum ^= 1),
    }
}

fn random_bytes(rng: &mut ChaCha8Rng, len: usize) -> Bytes {
    (0..len).map(|_| rng.random::<u8>()).collect()
}

/// A job of any kind; some jobs give an error.
fn random_job(rng: &mut ChaCha8Rng, code: &dyn Code, pool: &PoolMap) -> Job {
    match rng.random_range(0..3) {
        0 => {
            let len = rng.random_range(0..300);
            let inputs = (0..code.k()).map(|_| random_bytes(rng, len)).collect();
            let wrong = vec![Bytes::new()];
            let inputs = if rng.random_bool(0.1) { wrong } else { inputs };
            let checksum_block_bytes = [None, Some(0), Some(64)][rng.random_range(0..3)];
            Job::Code { map: Arc::clone(code.encode()), inputs, checksum_block_bytes }
        }
        1 => Job::Place {
            map: Arc::clone(pool.map()),
            rule: RuleId(rng.random_range(0..3)),
            width: rng.random_range(0..8),
            xs: (0..rng.random_range(0..9)).map(|_| rng.random()).collect(),
            weights: vec![WEIGHT_ONE; 6].into(),
        },
        _ => {
            let len = rng.random_range(0..10_000);
            let data = random_bytes(rng, len);
            Job::Checksum { data, block_bytes: [0, 1, 512, 4096][rng.random_range(0..4)] }
        }
    }
}

fn code_and_pool() -> (Arc<dyn Code>, PoolMap) {
    let code = Profile::rs(4, 2).expect("in bounds").code();
    (code, PoolMap::new(&[NodeWeight::ONE; 6]).expect("a valid pool"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn every_job_completes_once_with_the_bits_of_software(seed: u64, dies: bool, lies: bool) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (code, pool) = code_and_pool();
        let (rng_of_device, waiting) = (ChaCha8Rng::seed_from_u64(!seed), BTreeMap::new());
        let device = Moody { rng: rng_of_device, lies, waiting };
        let mut engine = Engine::with_device(Box::new(device));
        let mut expected = BTreeMap::new();
        let mut done = Vec::new();
        for number in 0..60u64 {
            let queue = SubmissionQueueId(rng.random_range(0..3));
            let job = random_job(&mut rng, &*code, &pool);
            // Equal numbers on different queues are different jobs.
            let id = JobId(number / 2);
            if expected.contains_key(&(queue, id)) {
                continue;
            }
            expected.insert((queue, id), execute(&job));
            engine.submit(0, queue, id, job).expect("the queues are far from full");
            collect(&mut engine, SubmissionQueueId(rng.random_range(0..3)), &mut done);
        }
        if dies {
            engine.abandon_device();
        }
        for _ in 0..1000 {
            (0..3).for_each(|queue| collect(&mut engine, SubmissionQueueId(queue), &mut done));
        }
        prop_assert_eq!(done.len(), expected.len());
        for (key, result) in done {
            prop_assert_eq!(Some(result), expected.remove(&key), "{:?} came twice or wrong", key);
        }
    }
}

type Done = ((SubmissionQueueId, JobId), Result<JobOutput, JobError>);

fn collect(engine: &mut Engine, queue: SubmissionQueueId, done: &mut Vec<Done>) {
    let mut completions = Vec::new();
    engine.poll(0, queue, &mut completions);
    done.extend(completions.into_iter().map(|one| ((queue, one.job), one.result)));
}

/// Does a job to its end.
fn run(engine: &mut Engine, job: Job) -> Result<JobOutput, JobError> {
    let mut completions = Vec::new();
    engine.submit(0, SubmissionQueueId(0), JobId(0), job).expect("no other job waits");
    loop {
        engine.poll(0, SubmissionQueueId(0), &mut completions);
        if let Some(done) = completions.pop() {
            return done.result;
        }
    }
}

/// A device that keeps its jobs until the test takes their results.
#[derive(Clone, Default)]
struct Keeper(Arc<std::sync::Mutex<Vec<JobCompletion>>>, Arc<std::sync::atomic::AtomicBool>);

impl Device for Keeper {
    fn name(&self) -> &str {
        "keeper"
    }

    fn takes(&self, _: &Job) -> bool {
        true
    }

    fn submit(&mut self, _: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
        let completion = JobCompletion { job: id, result: execute(&job) };
        self.0.lock().expect("no panic").push(completion);
        Ok(())
    }

    fn limit_ns(&self) -> u64 {
        100
    }

    fn poll(&mut self, _: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
        if self.1.load(std::sync::atomic::Ordering::Relaxed) {
            completions.append(&mut self.0.lock().expect("no panic"));
        }
    }
}

#[test]
fn software_does_a_late_job_and_the_late_result_is_dropped() {
    let job = || Job::Checksum { data: Bytes::from_static(b"123456789"), block_bytes: 9 };
    let (queue, device) = (SubmissionQueueId(3), Keeper::default());
    let mut engine = Engine::with_device(Box::new(device.clone()));
    let mut completions = Vec::new();
    let mut poll = |engine: &mut Engine, now_ns| {
        engine.poll(now_ns, queue, &mut completions);
        completions.drain(..).map(|done| (done.job.0, done.result)).collect::<Vec<_>>()
    };
    let right = Ok(JobOutput::Checksum(vec![0xe306_9283]));
    engine.submit(0, queue, JobId(1), job()).expect("room");
    engine.submit(50, queue, JobId(2), job()).expect("room");
    assert_eq!((engine.unfinished(), engine.deadline_ns()), (2, Some(100)));
    assert_eq!(poll(&mut engine, 99), []);
    assert_eq!(poll(&mut engine, 100), [(1, right.clone())]);
    assert_eq!((engine.unfinished(), engine.deadline_ns()), (1, Some(150)));
    device.1.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(
        poll(&mut engine, 200),
        [(2, right.clone())],
        "a result counts as long as it is awaited"
    );
    let totals = engine.counters().checksum;
    assert_eq!((totals.device_jobs, totals.device_failures, totals.device_late), (2, 1, 1));
    // Two more polls that find late jobs, and the engine gives the device up.
    device.1.store(false, std::sync::atomic::Ordering::Relaxed);
    for number in [3, 4, 5, 6] {
        engine.submit(300 + number, queue, JobId(number), job()).expect("room");
    }
    for now_ns in 400..410 {
        poll(&mut engine, now_ns);
    }
    assert_eq!(
        (engine.unfinished(), engine.name()),
        (0, "keeper"),
        "one cause may delay many jobs"
    );
    engine.submit(410, queue, JobId(7), job()).expect("room");
    engine.submit(450, queue, JobId(8), job()).expect("room");
    assert_eq!(poll(&mut engine, 510), [(7, right.clone()), (8, right)]);
    assert_eq!(engine.name(), "keeper (given up)");
    assert_eq!((engine.unfinished(), engine.deadline_ns()), (0, None));
    assert!(engine.take_given_up().is_some() && engine.take_given_up().is_none());
}

/// A device with room for one job, and a backlog of two.
#[derive(Default)]
struct Narrow(Option<JobCompletion>);

impl Device for Narrow {
    fn name(&self) -> &str {
        "narrow"
    }

    fn takes(&self, _: &Job) -> bool {
        true
    }

    fn submit(&mut self, _: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
        match self.0 {
            Some(_) => Err(job),
            None => {
                self.0 = Some(JobCompletion { job: id, result: execute(&job) });
                Ok(())
            }
        }
    }

    fn limit_ns(&self) -> u64 {
        100
    }

    fn backlog(&self) -> usize {
        2
    }

    fn poll(&mut self, _: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
        completions.extend(self.0.take());
    }
}

#[test]
fn coding_jobs_wait_for_room_and_other_jobs_do_not() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let (code, _) = code_and_pool();
    let mut engine = Engine::with_device(Box::new(Narrow::default()));
    let queue = SubmissionQueueId(0);
    let coding = |rng: &mut ChaCha8Rng| {
        let inputs = (0..4).map(|_| random_bytes(rng, 512)).collect();
        Job::code(Arc::clone(code.encode()), inputs)
    };
    for number in 0..4 {
        engine.submit(0, queue, JobId(number), coding(&mut rng)).expect("room");
    }
    let sums = Job::Checksum { data: Bytes::from_static(b"x"), block_bytes: 1 };
    engine.submit(0, queue, JobId(9), sums).expect("room");
    assert_eq!(engine.unfinished(), 3, "one works, two wait");
    let poll = |engine: &mut Engine, now_ns| {
        let mut completions = Vec::new();
        engine.poll(now_ns, queue, &mut completions);
        assert!(completions.iter().all(|done| done.result.is_ok()));
        completions.iter().map(|done| done.job.0).collect::<Vec<_>>()
    };
    assert_eq!(poll(&mut engine, 1), [3, 9, 0], "software did the fourth, and the checksum");
    assert_eq!(poll(&mut engine, 2), [1]);
    assert_eq!(poll(&mut engine, 3), [2]);
    let totals = engine.counters();
    assert_eq!((totals.code.device_jobs, totals.code.device_full), (3, 1));
    assert_eq!((totals.checksum.device_jobs, totals.checksum.device_full), (0, 1));
    // Jobs that have waited for too long are done in software.
    for number in 10..13 {
        engine.submit(10, queue, JobId(number), coding(&mut rng)).expect("room");
    }
    assert_eq!(poll(&mut engine, 200), [10, 11, 12]);
    assert_eq!(engine.unfinished(), 0);
}

/// A device with a memory for inputs. It finishes one job at each poll, the oldest first.
struct Memory {
    free_bytes: u64,
    jobs: Vec<(JobId, Job)>,
    tries: Arc<AtomicU64>,
}

impl Device for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn takes(&self, _: &Job) -> bool {
        true
    }

    fn submit(&mut self, _: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
        self.tries.fetch_add(1, Ordering::Relaxed);
        if job.input_bytes() > self.free_bytes {
            return Err(job);
        }
        self.free_bytes -= job.input_bytes();
        self.jobs.push((id, job));
        Ok(())
    }

    fn limit_ns(&self) -> u64 {
        1000
    }

    fn backlog(&self) -> usize {
        100
    }

    fn poll(&mut self, _: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
        if !self.jobs.is_empty() {
            let (id, job) = self.jobs.remove(0);
            self.free_bytes += job.input_bytes();
            completions.push(JobCompletion { job: id, result: execute(&job) });
        }
    }
}

fn with_memory(free_bytes: u64) -> (Engine, Arc<AtomicU64>) {
    let tries = Arc::new(AtomicU64::new(0));
    let device = Memory { free_bytes, jobs: Vec::new(), tries: Arc::clone(&tries) };
    (Engine::with_device(Box::new(device)), tries)
}

fn coding(input_bytes: usize) -> Job {
    let (code, _) = code_and_pool();
    let inputs = (0..4).map(|_| vec![7; input_bytes / 4].into()).collect();
    Job::code(Arc::clone(code.encode()), inputs)
}

fn finished(engine: &mut Engine, now_ns: u64) -> Vec<u64> {
    let mut completions = Vec::new();
    engine.poll(now_ns, SubmissionQueueId(0), &mut completions);
    completions.iter().map(|done| done.job.0).collect()
}

#[test]
fn a_job_that_fits_overtakes_one_that_waits_for_memory_but_not_for_ever() {
    let (mut engine, tries) = with_memory(1000);
    let submit = |engine: &mut Engine, id, bytes| {
        engine.submit(0, SubmissionQueueId(0), JobId(id), coding(bytes)).expect("room");
        tries.load(Ordering::Relaxed)
    };
    assert_eq!(submit(&mut engine, 0, 800), 1);
    assert_eq!(submit(&mut engine, 1, 800), 2, "refused: it waits");
    assert_eq!(submit(&mut engine, 2, 800), 2, "one as large is not tried");
    assert_eq!(submit(&mut engine, 3, 100), 3, "a small one fits");
    assert_eq!(submit(&mut engine, 4, 400), 4, "refused");
    assert_eq!(submit(&mut engine, 5, 600), 4);
    assert_eq!(submit(&mut engine, 6, 100), 5);
    assert_eq!(engine.unfinished(), 7);
    assert_eq!(finished(&mut engine, 1), [0], "then the first of those that wait has room");
    assert_eq!(finished(&mut engine, 2), [3]);
    assert_eq!(finished(&mut engine, 3), [6]);
    assert_eq!(finished(&mut engine, 4), [1]);
    assert_eq!(finished(&mut engine, 5), [2]);
    assert_eq!(finished(&mut engine, 6), [4]);
    assert_eq!(finished(&mut engine, 7), [5]);

    // Small jobs that come all the time do not keep a large one waiting for ever.
    submit(&mut engine, 100, 400);
    submit(&mut engine, 101, 1000);
    for small in 0..100 {
        submit(&mut engine, 200 + small, 400);
        let done = finished(&mut engine, 8 + small);
        if done == [101] {
            assert!(small <= 40, "after {small} others");
            return;
        }
    }
    panic!("the large job never ran");
}

#[test]
fn software_does_the_jobs_of_a_device_that_stays_full() {
    let (mut engine, tries) = with_memory(100);
    let queue = SubmissionQueueId(0);
    let rounds = 2 * MAX_DEVICE_FAULTS;
    for round in 0..rounds {
        let since_ns = 10_000 * round;
        for number in 0..5 {
            engine.submit(since_ns, queue, JobId(10 * round + number), coding(400)).expect("room");
        }
        assert_eq!(engine.name(), "memory", "{round}");
        assert_eq!(finished(&mut engine, since_ns + 999), [0; 0]);
        assert_eq!(finished(&mut engine, since_ns + 1000).len(), 5);
    }
    assert_eq!(engine.name(), "memory", "other engines may have its room");
    assert_eq!(engine.counters().code.device_full, 5 * rounds);
    assert!(tries.load(Ordering::Relaxed) <= 3 * rounds, "few tries are made in vain");
}

#[test]
fn a_stripe_is_encoded_lost_and_rebuilt_through_jobs() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let (code, _) = code_and_pool();
    let mut engine = Engine::software();
    let mut shards: Vec<Bytes> = (0..4).map(|_| random_bytes(&mut rng, 12_288)).collect();
    let (map, inputs) = (Arc::clone(code.encode()), shards.clone());
    let encode = Job::Code { map, inputs, checksum_block_bytes: Some(4096) };
    let parities = run(&mut engine, encode).expect("the shape fits").into_shards().expect("shards");
    for Shard { data, checksums } in parities {
        assert!(fieldstone_buf::is_aligned(&data));
        assert_eq!(checksums, data.chunks(4096).map(crc32c).collect::<Vec<_>>());
        shards.push(data);
    }
    let plan = code.repair(&[1, 4], &[0, 2, 3, 5]).expect("four are left");
    let inputs = plan.reads.iter().map(|read| shards[read.shard].clone()).collect();
    let job = Job::code(Arc::clone(&plan.map), inputs);
    let rebuilt = run(&mut engine, job).expect("the shape fits").into_shards();
    let shard = |index: usize| Shard { data: shards[index].clone(), checksums: Vec::new() };
    assert_eq!(rebuilt, Some(vec![shard(1), shard(4)]));
    let counters = engine.counters();
    assert_eq!((counters.code.jobs, counters.code.bytes), (2, 8 * 12_288));
    assert_eq!((counters.code.device_jobs, counters.place.jobs), (0, 0));
}

#[test]
fn checksums_are_crc32c_per_block() {
    // The check value of the algorithm's definition.
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    let data = Bytes::from_static(b"123456789123456789123");
    let job = Job::Checksum { data, block_bytes: 9 };
    let sums = execute(&job).expect("blocks are not empty").into_checksums();
    assert_eq!(sums, Some(vec![0xe306_9283, 0xe306_9283, crc32c(b"123")]));
    let job = Job::Checksum { data: Bytes::from_static(b"x"), block_bytes: 0 };
    assert_eq!(execute(&job), Err(JobError::ZeroBlock));
}

#[test]
fn placements_are_those_of_the_map_and_unknown_rules_are_errors() {
    let (_, pool) = code_and_pool();
    let job = |rule| Job::Place {
        map: Arc::clone(pool.map()),
        rule,
        width: 6,
        xs: (0..50).collect(),
        weights: vec![WEIGHT_ONE; 6].into(),
    };
    let placed = execute(&job(PoolMap::SHARDS)).expect("the rule exists").into_placements();
    let rule = pool.map().rule(PoolMap::SHARDS).expect("the rule exists");
    let expected: Vec<_> = (0..50).map(|x| rule.map(x, 6, &[WEIGHT_ONE; 6])).collect();
    assert_eq!(placed, Some(expected));
    let error = JobError::Crush(CrushError::NoSuchRule(RuleId(9)));
    assert_eq!(execute(&job(RuleId(9))), Err(error));
}

#[test]
fn a_full_queue_gives_the_job_back_and_polling_makes_room() {
    let job = || Job::Checksum { data: Bytes::from_static(b"abc"), block_bytes: 3 };
    let mut engine = SoftwareEngine::new();
    let queue = SubmissionQueueId(1);
    for number in 0..MAX_WAITING_COMPLETIONS as u64 {
        assert!(engine.submit(queue, JobId(number), job()).is_ok());
    }
    assert!(engine.submit(queue, JobId(7777), job()).is_err());
    assert!(engine.submit(SubmissionQueueId(2), JobId(7777), job()).is_ok());
    let mut completions = Vec::new();
    engine.poll(queue, &mut completions);
    let ids: Vec<u64> = completions.iter().map(|done| done.job.0).collect();
    assert_eq!(ids, (0..MAX_WAITING_COMPLETIONS as u64).collect::<Vec<_>>());
    assert!(engine.submit(queue, JobId(7777), job()).is_ok());
}

#[test]
fn counters_tell_where_jobs_went() {
    /// A device that takes everything, is full on every third job, and fails every third.
    struct Thirds(u64, Vec<JobCompletion>);
    impl Device for Thirds {
        fn name(&self) -> &str {
            "thirds"
        }
        fn takes(&self, _: &Job) -> bool {
            true
        }
        fn submit(&mut self, _: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
            self.0 += 1;
            let result = match self.0 % 3 {
                0 => return Err(job),
                1 => Err(JobError::Device("no".to_owned())),
                _ => execute(&job),
            };
            self.1.push(JobCompletion { job: id, result });
            Ok(())
        }
        fn poll(&mut self, _: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
            completions.append(&mut self.1);
        }
    }
    let mut engine = Engine::with_device(Box::new(Thirds(0, Vec::new())));
    assert_eq!(engine.name(), "thirds");
    for _ in 0..9 {
        let job = Job::Checksum { data: Bytes::from_static(b"123456789"), block_bytes: 9 };
        assert_eq!(run(&mut engine, job), Ok(JobOutput::Checksum(vec![0xe306_9283])));
    }
    let totals = engine.counters().checksum;
    assert_eq!((totals.jobs, totals.bytes), (9, 81));
    assert_eq!((totals.device_jobs, totals.device_failures, totals.device_full), (6, 3, 3));
    assert_eq!(engine.counters().kind(JobKind::Checksum), &totals);
}

#[test]
fn a_device_with_wrong_results_is_given_up() {
    /// Flips a bit of each shard.
    struct Liar(Vec<JobCompletion>);
    impl Device for Liar {
        fn name(&self) -> &str {
            "liar"
        }
        fn takes(&self, _: &Job) -> bool {
            true
        }
        fn submit(&mut self, _: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
            let mut result = execute(&job);
            if let Ok(JobOutput::Code(shards)) = &mut result {
                for shard in shards {
                    let mut bytes = shard.data.to_vec();
                    bytes[1000] ^= 4;
                    shard.data = bytes.into();
                }
            }
            self.0.push(JobCompletion { job: id, result });
            Ok(())
        }
        fn poll(&mut self, _: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
            completions.append(&mut self.0);
        }
    }
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let (code, _) = code_and_pool();
    let mut engine = Engine::with_device(Box::new(Liar(Vec::new())));
    for number in 1..=MAX_DEVICE_FAULTS + 2 {
        let inputs = (0..4).map(|_| random_bytes(&mut rng, 4096)).collect();
        let job = Job::code(Arc::clone(code.encode()), inputs);
        assert_eq!(run(&mut engine, job.clone()), execute(&job));
        let wrong = number.min(MAX_DEVICE_FAULTS);
        let counted = engine.counters().code;
        assert_eq!((counted.device_wrong, counted.device_failures), (wrong, wrong));
        assert_eq!((counted.device_jobs, counted.jobs), (wrong, number));
        assert_eq!(engine.name() == "liar", number < MAX_DEVICE_FAULTS);
    }
    assert_eq!(engine.name(), "liar (given up)");
}

/// A device that returns nothing until the test says how: wrong results, or right ones.
struct Script {
    room: usize,
    jobs: Vec<(SubmissionQueueId, JobId, Job)>,
    answer: Arc<std::sync::Mutex<Option<Answer>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Right,
    Wrong,
}

impl Device for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn takes(&self, _: &Job) -> bool {
        true
    }

    fn submit(&mut self, queue: SubmissionQueueId, id: JobId, job: Job) -> Result<(), Job> {
        if self.jobs.len() == self.room {
            return Err(job);
        }
        self.jobs.push((queue, id, job));
        Ok(())
    }

    fn limit_ns(&self) -> u64 {
        1000
    }

    fn backlog(&self) -> usize {
        usize::MAX
    }

    fn poll(&mut self, queue: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
        let Some(answer) = *self.answer.lock().expect("no panic") else { return };
        for (_, id, job) in self.jobs.extract_if(.., |(of, ..)| *of == queue) {
            let mut result = execute(&job);
            if answer == Answer::Wrong
                && let Ok(JobOutput::Code(shards)) = &mut result
            {
                let mut bytes = shards[0].data.to_vec();
                bytes[0] ^= 1;
                shards[0].data = bytes.into();
            }
            completions.push(JobCompletion { job: id, result });
        }
    }
}

/// How a device leaves its jobs to software.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// The caller abandons the device.
    Abandoned,
    /// The jobs are late on the device, or have waited too long for room there.
    Late,
    /// All results are wrong, and then the engine gives the device up.
    Wrong,
    /// All results are right: software verifies them.
    Right,
}

#[test]
fn no_poll_does_more_than_its_budget_and_all_jobs_complete() {
    const JOBS: u64 = 1000;
    const INPUT_BYTES: usize = 64 << 10;
    let other = SubmissionQueueId(1);
    for left in [Left::Abandoned, Left::Late, Left::Wrong, Left::Right] {
        let answer = Arc::default();
        // Half of the jobs wait for room.
        let room = usize::try_from(JOBS / 2).expect("few");
        let device = Script { room, jobs: Vec::new(), answer: Arc::clone(&answer) };
        let mut engine = Engine::with_device(Box::new(device));
        let job = coding(INPUT_BYTES);
        let expected = execute(&job);
        for number in 0..JOBS {
            // One job of another queue does not get lost behind those of the first queue.
            let queue = if number == JOBS / 2 { other } else { SubmissionQueueId(0) };
            engine.submit(0, queue, JobId(number), job.clone()).expect("room");
        }
        let total = usize::try_from(JOBS).expect("few");
        assert_eq!((engine.unfinished(), engine.pending()), (total, 0));
        let now_ns = match left {
            Left::Abandoned => {
                engine.abandon_device();
                assert_eq!(engine.pending(), total);
                0
            }
            Left::Late => 1000,
            Left::Wrong => {
                *answer.lock().expect("no panic") = Some(Answer::Wrong);
                0
            }
            Left::Right => {
                *answer.lock().expect("no panic") = Some(Answer::Right);
                1000
            }
        };
        let per_poll = usize::try_from(POLL_SOFTWARE_BYTES / job.software_cost_bytes());
        let per_poll = per_poll.expect("few");
        assert!((2..total / 10).contains(&per_poll), "{per_poll} jobs fit in a poll");
        let (mut seen, mut polls) = (Vec::new(), 0);
        let mut poll = |engine: &mut Engine, queue| {
            let (before, mut completions) = (engine.unfinished(), Vec::new());
            engine.poll(now_ns, queue, &mut completions);
            let done = before - engine.unfinished();
            assert!(done <= per_poll, "{left:?}: {done} jobs in a poll");
            assert!(
                engine.pending() == 0 || engine.deadline_ns() == Some(0),
                "{left:?}: the caller has to poll again at once"
            );
            assert!(completions.iter().all(|done| done.result == expected), "{left:?}");
            seen.extend(completions.iter().map(|done| done.job.0));
        };
        while engine.unfinished() > 0 {
            poll(&mut engine, SubmissionQueueId(0));
            poll(&mut engine, other);
            polls += 2;
            assert!(polls <= total, "{left:?}: {} jobs are left", engine.unfinished());
        }
        poll(&mut engine, SubmissionQueueId(0));
        poll(&mut engine, other);
        assert!(polls >= total / per_poll, "{left:?}: {polls} polls");
        seen.sort_unstable();
        assert_eq!(seen, (0..JOBS).collect::<Vec<_>>(), "{left:?}");
    }
}

#[test]
fn software_takes_the_jobs_in_order_and_new_jobs_do_not_starve_them() {
    let device = Script { room: 3, jobs: Vec::new(), answer: Arc::default() };
    let mut engine = Engine::with_device(Box::new(device));
    let queue = SubmissionQueueId(0);
    // Larger than the budget: one in each poll.
    let large = coding(2 << 20);
    for number in 0..6 {
        engine.submit(0, queue, JobId(number), large.clone()).expect("room");
    }
    engine.abandon_device();
    for (number, next) in (100..).zip(0..6) {
        let sums = Job::Checksum { data: Bytes::from_static(b"x"), block_bytes: 1 };
        engine.submit(0, queue, JobId(number), sums).expect("room");
        assert_eq!(finished(&mut engine, 0), [number, next]);
    }
    assert_eq!((engine.unfinished(), engine.deadline_ns()), (0, None));
}
