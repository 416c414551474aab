//! A device takes the maps, some of them, or none; it fails, gives wrong bytes and comes late. The
//! files are those of software in every case.

use fieldstone_accel::{
    Device, Engine, Job, JobCompletion, JobError, JobId, JobKind, JobOutput, SubmissionQueueId,
    execute,
};
use fieldstone_files::{CoderCounts, Coders, Folder, Output, Progress, Scope};
use proptest::prelude::*;
use proptest::sample::select;

use crate::support::{CODES, Encoded, noise, striping};

/// What a device does wrong, each with some of its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// Nothing.
    Good,
    /// It has no room.
    Refuses,
    /// It has no room, and jobs may wait for room.
    Delays,
    /// It ends jobs with an error.
    Fails,
    /// It changes a bit of a result.
    Lies,
    /// It never answers.
    Forgets,
}

const MOODS: [Mood; 6] =
    [Mood::Good, Mood::Refuses, Mood::Delays, Mood::Fails, Mood::Lies, Mood::Forgets];

/// A device that computes in software, and has a mood in two of three jobs.
struct Moody {
    mood: Mood,
    seed: u64,
    steps: u64,
    waiting: Vec<JobCompletion>,
}

impl Moody {
    fn random(&mut self) -> usize {
        self.steps += 1;
        usize::from(noise(1, self.seed.wrapping_add(self.steps))[0])
    }
}

impl Device for Moody {
    fn name(&self) -> &str {
        "moody"
    }

    fn takes(&self, job: &Job) -> bool {
        job.kind() == JobKind::Code
    }

    fn submit(&mut self, _: SubmissionQueueId, job: JobId, given: Job) -> Result<(), Job> {
        let moody = !self.random().is_multiple_of(3);
        let mut result = execute(&given);
        match self.mood {
            Mood::Refuses | Mood::Delays if moody => return Err(given),
            Mood::Fails if moody => result = Err(JobError::Device("out of sorts".to_owned())),
            Mood::Forgets if moody => return Ok(()),
            Mood::Lies if moody => {
                let Ok(JobOutput::Code(shards)) = &mut result else { panic!("the job is right") };
                let shard = self.random() % shards.len();
                let mut bytes = shards[shard].data.to_vec();
                let at = self.random() % bytes.len();
                bytes[at] ^= 1 << (self.random() % 8);
                shards[shard].data = bytes.into();
            }
            _ => {}
        }
        self.waiting.push(JobCompletion { job, result });
        Ok(())
    }

    fn limit_ns(&self) -> u64 {
        if self.mood == Mood::Forgets { 1_000_000 } else { 20_000_000_000 }
    }

    fn backlog(&self) -> usize {
        usize::from(self.mood == Mood::Delays)
    }

    fn poll(&mut self, _: SubmissionQueueId, completions: &mut Vec<JobCompletion>) {
        if self.random().is_multiple_of(2) {
            completions.append(&mut self.waiting);
        }
    }
}

/// Three coders, each with a device.
fn coders(mood: Mood, seed: u64) -> Coders {
    Coders::new((0..3).map(|number| {
        let seed = seed.wrapping_mul(3).wrapping_add(number);
        Engine::with_device(Box::new(Moody { mood, seed, steps: 0, waiting: Vec::new() }))
    }))
}

/// The units of a shard file, without its header and the records, which have a random id.
fn units(encoded: &Encoded, shard: usize) -> Vec<u8> {
    let (encoding, bytes) = (&encoded.encoding, &encoded.originals[shard]);
    let unit = |stripe: u64| {
        let record_at = encoding.striping.offset(stripe) as usize;
        &bytes[record_at + encoding.striping.record_bytes()..][..encoding.unit_len(stripe)]
    };
    (0..encoding.stripes()).map(unit).collect::<Vec<_>>().concat()
}

/// Repairs with the coders, and compares with the original files.
fn repair(encoded: &Encoded, scope: Scope, coders: &mut Coders) {
    let folder = Folder::open_to_change(&encoded.folder()).expect("the encoding is found");
    fieldstone_files::repair_with(&folder, scope, coders, &Progress::default())
        .expect("enough is left");
    drop(folder);
    encoded.assert_as_at_first();
}

/// Decodes to a stream with the coders, and compares with the file.
fn decode(encoded: &Encoded, coders: &mut Coders) {
    let mut bytes = Vec::new();
    let output = Output::Stream { bytes: Box::new(&mut bytes), name: "stream".into() };
    let folder = encoded.open().expect("the encoding is found");
    fieldstone_files::decode_with(&folder, output, coders, &Progress::default())
        .expect("enough is left");
    assert!(bytes == encoded.data, "other bytes than were encoded");
}

fn is_clean(encoded: &Encoded, coders: &mut Coders) -> bool {
    let folder = encoded.open().expect("the encoding is found");
    let findings = fieldstone_files::verify_with(&folder, coders, &Progress::default());
    findings.expect("damage is no error").is_clean()
}

/// Encodes, decodes, repairs and verifies with the coders, and compares with software.
fn every_job(code: &str, granules: u64, rest: usize, seed: u64, coders: &mut Coders) {
    let striping = striping(code, granules);
    let len_bytes = 4 * striping.stripe_bytes() + rest;
    let software = Encoded::new(&striping, len_bytes, seed);
    let encoded = Encoded::with(&striping, len_bytes, seed, coders);
    for shard in 0..striping.shards() {
        assert!(units(&encoded, shard) == units(&software, shard), "{code}: shard {shard}");
    }
    assert!(encoded.is_clean() && is_clean(&encoded, coders), "{code}");
    let m = striping.profile().m();
    for first in [0, 1, striping.shards() - m] {
        let lost = first..striping.shards().min(first + m);
        lost.clone().for_each(|shard| encoded.remove(shard));
        decode(&encoded, coders);
        repair(&encoded, Scope::Lost, coders);
    }
    if m == 0 {
        return;
    }
    // One loss: codes that read less than whole units.
    encoded.remove(0);
    repair(&encoded, Scope::Lost, coders);
    encoded.change(1, |bytes| *bytes.last_mut().expect("it has a header") ^= 1);
    assert!(!is_clean(&encoded, coders), "{code}");
    repair(&encoded, Scope::All, coders);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_device_in_any_mood_gives_the_files_of_software(
        code in select(&CODES[..]),
        mood in select(&MOODS[..]),
        granules in 1u64..5,
        rest in 0usize..500,
        seed: u64,
    ) {
        every_job(code, granules, rest, seed, &mut coders(mood, seed));
    }
}

#[test]
fn a_good_device_does_every_map_whose_elements_are_bytes() {
    for code in CODES {
        let mut coders = coders(Mood::Good, 1);
        every_job(code, 3, 77, 1, &mut coders);
        let CoderCounts { maps, device_jobs, device_failures } = coders.counts();
        let takes = !code.contains("w=") && code != "copies:1";
        assert_eq!((device_jobs, device_failures), (if takes { maps } else { 0 }, 0), "{code}");
        assert!(maps > 0 || code == "copies:1", "{code}");
    }
}

#[test]
fn what_a_device_does_wrong_is_counted() {
    for (mood, failures) in
        [(Mood::Refuses, false), (Mood::Fails, true), (Mood::Lies, true), (Mood::Forgets, true)]
    {
        let mut coders = coders(mood, 5);
        every_job("rs:4+2", 64, 5, 2, &mut coders);
        let counts = coders.counts();
        assert!(counts.device_jobs > 0, "{mood:?} {counts:?}");
        // An error costs the device nothing but the job.
        let all = counts.device_jobs == counts.maps;
        assert_eq!(all, mood == Mood::Fails, "{mood:?} {counts:?}");
        assert_eq!(counts.device_failures > 0, failures, "{mood:?} {counts:?}");
    }
}

#[test]
fn software_has_no_device_jobs() {
    let mut coders = Coders::software(2);
    every_job("clay:4+2", 2, 3, 4, &mut coders);
    let counts = coders.counts();
    assert!(counts.maps > 0);
    assert_eq!((counts.device_jobs, counts.device_failures), (0, 0));
}
