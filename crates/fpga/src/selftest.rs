//! Random jobs of every kind, on the device and on the CPU, compared bit by bit.
//!
//! Everything follows from a seed. The jobs use codes of every family, for encoding and for repair.
//! Often several stripes follow each other, as in a volume, so that the driver can merge them into
//! one operation. The maps have buckets of every algorithm. As in a cluster, many jobs use one map
//! before the next comes, so the partition's module changes only now and then. The checksums have
//! blocks of every length that the device takes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_accel::{
    Device, Job, JobCompletion, JobError, JobId, JobKind, SubmissionQueueId, execute,
};
use fieldstone_codes::{Code, Profile};
use fieldstone_crush::{
    AlgorithmKind, BucketId, ItemId, Map, MapBuilder, RuleId, RuleStep, TypeId, WEIGHT_ONE,
};
use fieldstone_gf::LinearMap;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The codes of the jobs.
const PROFILES: [&str; 7] =
    ["rs:4+2", "rs:8+4", "rs:2+1", "rs-van:6+3", "zigzag:4+2", "clay:4+2", "copies:3"];
/// Jobs that place with one map before another comes, on average.
const JOBS_PER_MAP: u32 = 60;

/// How random jobs are made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed decides every job.
    pub seed: u64,
    /// Number of jobs.
    pub count: u64,
    /// Jobs in flight.
    pub depth: usize,
    /// Largest input of a job, about.
    pub max_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, count: 200, depth: 8, max_bytes: 64 << 10 }
    }
}

/// The results of the jobs of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindReport {
    /// Jobs.
    pub jobs: u64,
    /// Jobs that the device does not do.
    pub not_taken: u64,
    /// Jobs that the device gave back: it had no room, or another map or module.
    pub given_back: u64,
    /// Jobs that the device took, and that failed.
    pub failed: u64,
    /// Jobs that the device did.
    pub done: u64,
    /// Jobs among `done` with other bits than the CPU's.
    pub wrong: u64,
}

/// The results of all jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Linear maps.
    pub code: KindReport,
    /// CRUSH mappings.
    pub place: KindReport,
    /// Checksums.
    pub checksum: KindReport,
    /// The first wrong result, and the first failure, for people.
    pub first: Vec<String>,
}

impl Report {
    /// The kinds, with names.
    #[must_use]
    pub fn kinds(&self) -> [(&'static str, KindReport); 3] {
        [("code", self.code), ("place", self.place), ("checksum", self.checksum)]
    }

    /// True without a wrong result and without a failure, if at least one job of every kind was
    /// done.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let good = |kind: &KindReport| kind.wrong == 0 && kind.failed == 0 && kind.done > 0;
        [self.code, self.place, self.checksum].iter().all(good)
    }

    fn kind(&mut self, kind: JobKind) -> &mut KindReport {
        match kind {
            JobKind::Code => &mut self.code,
            JobKind::Place => &mut self.place,
            JobKind::Checksum => &mut self.checksum,
        }
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        if self.first.len() < 4 {
            self.first.push(what());
        }
    }
}

/// Runs random jobs on a device. `progress` gets the number of finished jobs, and ends the run by
/// returning false.
pub fn run(
    device: &mut dyn Device,
    options: &Options,
    mut progress: impl FnMut(u64) -> bool,
) -> Report {
    const QUEUE: SubmissionQueueId = SubmissionQueueId(0);
    let mut jobs = JobGenerator::new(options.seed, options.max_bytes);
    let mut report = Report::default();
    let mut under_way: BTreeMap<JobId, Job> = BTreeMap::new();
    let mut completions: Vec<JobCompletion> = Vec::new();
    let (mut made, mut done) = (0, 0);
    while done < options.count && progress(done) {
        while made < options.count && under_way.len() < options.depth.max(1) {
            let job = jobs.next();
            made += 1;
            let kind = job.kind();
            report.kind(kind).jobs += 1;
            if !device.takes(&job) {
                report.kind(kind).not_taken += 1;
            } else if device.submit(QUEUE, JobId(made), job.clone()).is_err() {
                report.kind(kind).given_back += 1;
            } else {
                under_way.insert(JobId(made), job);
                continue;
            }
            done += 1;
        }
        device.poll(QUEUE, &mut completions);
        for completion in completions.drain(..) {
            let Some(job) = under_way.remove(&completion.job) else { continue };
            done += 1;
            judge(&mut report, &job, &completion);
        }
    }
    report
}

fn judge(report: &mut Report, job: &Job, completion: &JobCompletion) {
    let number = completion.job.0;
    let counts = report.kind(job.kind());
    match &completion.result {
        Err(JobError::Device(reason)) => {
            counts.failed += 1;
            report.say(|| format!("job {number} failed: {reason}; {}", describe(job)));
        }
        result => {
            counts.done += 1;
            if *result != execute(job) {
                counts.wrong += 1;
                report.say(|| format!("job {number} has wrong bits: {}", describe(job)));
            }
        }
    }
}

/// A job in one line.
fn describe(job: &Job) -> String {
    match job {
        Job::Code { map, inputs, checksum_block_bytes } => {
            let (n, m, len) = (map.inputs(), map.outputs(), inputs.first().map_or(0, Bytes::len));
            let sums = match checksum_block_bytes {
                None => String::new(),
                Some(len) => format!(" with checksums of blocks of {len}"),
            };
            format!("{n} inputs of {len} bytes to {m} outputs{sums}")
        }
        Job::Place { rule, width, xs, .. } => {
            format!("rule {}, {} inputs of width {width}, first {:?}", rule.0, xs.len(), xs.first())
        }
        Job::Checksum { data, block_bytes } => {
            format!("{} bytes in blocks of {block_bytes}", data.len())
        }
    }
}

/// An endless series of random jobs, all of a form that the device may take.
pub struct JobGenerator {
    rng: ChaCha8Rng,
    max_bytes: usize,
    codes: Vec<Arc<dyn Code>>,
    /// The last coding job: its map and the lengths of its inputs.
    stripe: Option<(Arc<LinearMap>, Vec<usize>)>,
    maps: Vec<Arc<Map>>,
    /// The map in use, its reweights, and its rule for distinct devices.
    cluster: (usize, Arc<[u32]>),
}

impl JobGenerator {
    /// The series of this seed, with inputs of about `max_bytes` at most.
    ///
    /// # Panics
    /// Never: codes and maps are constants.
    #[must_use]
    pub fn new(seed: u64, max_bytes: usize) -> Self {
        let profile = |name: &str| name.parse::<Profile>().expect("a profile of a known code");
        let codes = PROFILES.iter().map(|name| profile(name).code()).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        use AlgorithmKind::{List, Straw, Straw2, Tree, Uniform};
        let maps = [Straw2, List, Straw, Tree, Uniform].map(|kind| Arc::new(map(&mut rng, kind)));
        let cluster = (0, reweights(&mut rng, &maps[0]));
        let (max_bytes, maps) = (max_bytes.max(4096), maps.to_vec());
        Self { rng, max_bytes, codes, stripe: None, maps, cluster }
    }

    /// The next job.
    #[expect(clippy::should_implement_trait, reason = "the row has no end")]
    pub fn next(&mut self) -> Job {
        match self.rng.random_range(0..3) {
            0 => self.code(),
            1 => self.place(),
            _ => self.checksum(),
        }
    }

    /// A coding job.
    pub fn code(&mut self) -> Job {
        let again = self.stripe.take().filter(|_| self.rng.random_bool(0.7));
        let (map, lengths) = again.unwrap_or_else(|| self.another_code());
        self.stripe = Some((Arc::clone(&map), lengths.clone()));
        let checksum_block_bytes = self.checksum_block(&map, &lengths);
        let inputs = lengths.into_iter().map(|len| self.bytes(len)).collect();
        Job::Code { map, inputs, checksum_block_bytes }
    }

    /// The block of a coding job's checksums, if the job asks for them: one that the device takes.
    fn checksum_block(&mut self, map: &LinearMap, input_bytes: &[usize]) -> Option<usize> {
        let shape = map.shape();
        let element_bytes = input_bytes[0] / shape.input_elements[0] as usize;
        let (first, rest) = shape.output_elements.split_first()?;
        let output_bytes = *first as usize * element_bytes;
        let block_bytes = 64 << self.rng.random_range(0..=6);
        let fits = output_bytes.is_multiple_of(block_bytes) && rest.iter().all(|n| n == first);
        (fits && self.rng.random_bool(0.5)).then_some(block_bytes)
    }

    /// A map, and lengths of its inputs in bytes.
    fn another_code(&mut self) -> (Arc<LinearMap>, Vec<usize>) {
        let code = Arc::clone(self.codes.choose(&mut self.rng).expect("there are codes"));
        let total = code.k() + code.m();
        let per_shard = self.max_bytes / code.k();
        let beats = (per_shard / code.elements() as usize / 64).max(1);
        let element_bytes = 64 * self.rng.random_range(1..=beats);
        let map = if self.rng.random_bool(0.5) {
            Arc::clone(code.encode())
        } else {
            let mut shards: Vec<usize> = (0..total).collect();
            shards.shuffle(&mut self.rng);
            let lost = self.rng.random_range(1..=code.m());
            let (lost, left) = shards.split_at(lost);
            let plan = code.repair(lost, left).expect("no more than m shards are lost");
            Arc::clone(&plan.map)
        };
        let elements = map.shape().input_elements.iter();
        let lengths = elements.map(|&count| count as usize * element_bytes).collect();
        (map, lengths)
    }

    /// A placement job.
    pub fn place(&mut self) -> Job {
        if self.rng.random_ratio(1, JOBS_PER_MAP) {
            let index = self.rng.random_range(0..self.maps.len());
            self.cluster = (index, reweights(&mut self.rng, &self.maps[index]));
        }
        let (index, weights) = &self.cluster;
        let (map, weights) = (Arc::clone(&self.maps[*index]), Arc::clone(weights));
        self.place_with(map, weights)
    }

    /// A placement job with a map whose buckets are of this kind, all devices in.
    pub fn place_by(&mut self, kind: AlgorithmKind) -> Job {
        let of_kind = |map: &&Arc<Map>| {
            map.buckets().next().is_some_and(|bucket| bucket.algorithm.kind() == kind)
        };
        let map = Arc::clone(self.maps.iter().find(of_kind).expect("there is a map of every kind"));
        let weights = vec![WEIGHT_ONE; map.max_devices() as usize].into();
        self.place_with(map, weights)
    }

    fn place_with(&mut self, map: Arc<Map>, weights: Arc<[u32]>) -> Job {
        let count = self.rng.random_range(1..=self.max_bytes.min(16 << 10) / 256);
        let xs = (0..count).map(|_| self.rng.random()).collect();
        let (rule, width) = (RuleId(self.rng.random_range(0..2)), self.rng.random_range(1..=6));
        Job::Place { map, rule, width, xs, weights }
    }

    /// A checksum job.
    pub fn checksum(&mut self) -> Job {
        let len = self.rng.random_range(1..=self.max_bytes);
        let data = self.bytes(len);
        let block_bytes = if self.rng.random_bool(0.2) {
            len + self.rng.random_range(0..100)
        } else {
            64 << self.rng.random_range(0..=8)
        };
        Job::Checksum { data, block_bytes }
    }

    fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes[..]);
        bytes.into()
    }
}

/// Ten hosts of up to four devices below one root, all buckets of one kind: rule 0 takes distinct
/// hosts by `firstn`, rule 1 by `indep`.
fn map(rng: &mut ChaCha8Rng, algorithm: AlgorithmKind) -> Map {
    const HOSTS: i32 = 10;
    const HOST: TypeId = TypeId(1);
    const ROOT: TypeId = TypeId(2);
    let mut builder = MapBuilder::new();
    let mut hosts = Vec::new();
    let mut device = 0;
    for host in 0..HOSTS {
        let count = rng.random_range(1..=4);
        let alike = algorithm == AlgorithmKind::Uniform;
        let mut weight = || if alike { WEIGHT_ONE } else { rng.random_range(1..3 * WEIGHT_ONE) };
        let items: Vec<_> = (device..device + count).map(|id| (ItemId(id), weight())).collect();
        device += count;
        let id = BucketId(-2 - host);
        hosts.push((id.into(), items.iter().map(|(_, weight)| weight).sum()));
        builder.bucket(id, HOST, algorithm, items);
    }
    let root = BucketId(-1);
    builder.bucket(root, ROOT, algorithm, hosts);
    let take = RuleStep::Take(root.into());
    let firstn = RuleStep::ChooseleafFirstn { count: 0, kind: HOST };
    let indep = RuleStep::ChooseleafIndep { count: 0, kind: HOST };
    builder.rule(RuleId(0), [take, firstn, RuleStep::Emit]);
    builder.rule(RuleId(1), [take, indep, RuleStep::Emit]);
    builder.build().expect("a map of hosts and devices")
}

/// Most devices are in, some are half in, some are out.
fn reweights(rng: &mut ChaCha8Rng, map: &Map) -> Arc<[u32]> {
    let weight =
        |_| [WEIGHT_ONE, WEIGHT_ONE, WEIGHT_ONE, WEIGHT_ONE / 2, 0][rng.random_range(0..5)];
    (0..map.max_devices()).map(weight).collect()
}
