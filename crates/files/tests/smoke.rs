//! Valid headers and manifests with random changes, and plain random bytes: a bounded replacement
//! for the fuzzer.

use fieldstone_files::fuzz::{self, Coverage, MEND};
use tempfile::TempDir;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Offsets and lengths of a header's fields in an input.
const FIELDS: [(usize, usize); 9] =
    [(2, 8), (14, 4), (18, 16), (34, 8), (42, 8), (50, 4), (54, 4), (58, 4), (62, 10)];
/// Offset of the manifest.
const MANIFEST_AT: usize = 2 + 512;

/// One to three changes: of the options, of a field of the header, of a number in the manifest, or
/// of any byte.
fn mutate(input: &mut [u8], other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(3) {
        match random.below(6) {
            0 => input[1] = random.next() as u8,
            1 => {
                let (at, len) = FIELDS[random.below(FIELDS.len())];
                let value = random.next() >> random.below(64);
                let bytes = value.to_le_bytes();
                input[at..at + len.min(8)].copy_from_slice(&bytes[..len.min(8)]);
            }
            2 => {
                let (at, len) = FIELDS[random.below(FIELDS.len())];
                input[at..at + len].copy_from_slice(&other[at..at + len]);
            }
            3 => {
                let digits: Vec<usize> =
                    (62..input.len()).filter(|&at| input[at].is_ascii_digit()).collect();
                if !digits.is_empty() {
                    input[digits[random.below(digits.len())]] = b'0' + random.below(10) as u8;
                }
            }
            4 => {
                let at = random.below(input.len());
                input[at] ^= 1 << random.below(8);
            }
            _ => {
                let at = random.below(input.len());
                input[at] = random.next() as u8;
            }
        }
    }
}

fn scratch() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a folder is made")
}

#[test]
fn seeds_are_folders_that_jobs_are_done_on() {
    let scratch = scratch();
    for seed in fuzz::seeds() {
        let all = Coverage { header: true, manifest: true, jobs: true };
        assert_eq!(fuzz::folder(&seed, scratch.path()), all);
        assert!(seed.len() > MANIFEST_AT && seed[0] == MEND);
    }
}

#[test]
fn smoke() {
    let (scratch, seeds, mut random) = (scratch(), fuzz::seeds(), Random(20_261_122));
    let (mut headers, mut manifests, mut jobs) = (0, 0, 0);
    for _ in 0..2_000 {
        let mut input = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        mutate(&mut input, other, &mut random);
        let coverage = fuzz::folder(&input, scratch.path());
        headers += usize::from(coverage.header);
        manifests += usize::from(coverage.manifest);
        jobs += usize::from(coverage.jobs);
    }
    let counts = format!("{headers} headers, {manifests} manifests, {jobs} folders");
    assert!(headers > 800 && manifests > 800 && jobs > 800, "{counts}");
}

#[test]
fn noise() {
    let (scratch, mut random) = (scratch(), Random(14));
    for len in 0..2_000 {
        let noise: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        assert!(!fuzz::folder(&noise, scratch.path()).header);
    }
}
