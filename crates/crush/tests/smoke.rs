//! Valid maps with random changes, and plain random bytes: a bounded replacement for the fuzzer.

use std::path::PathBuf;

use fieldstone_crush::fuzz::{self, Coverage};

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

/// One to three words replaced, moved, left out or changed.
fn mutate_words(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let words = |text: &[u8]| -> Vec<Vec<u8>> {
        text.split(u8::is_ascii_whitespace).map(<[u8]>::to_vec).collect()
    };
    let (mut changed, other) = (words(input), words(other));
    for _ in 0..=random.below(3) {
        let at = random.below(changed.len());
        match random.below(5) {
            0 => changed[at].clone_from(&other[random.below(other.len())]),
            1 => {
                let next = (at + 1) % changed.len();
                changed.swap(at, next);
            }
            2 if changed.len() > 1 => drop(changed.remove(at)),
            3 => {
                let number = [0, 1, -1, -2, 7, 65_535, 1 << 31, i64::MAX][random.below(8)];
                changed[at] = number.to_string().into_bytes();
            }
            _ => {
                if let Some(digit) = changed[at].iter_mut().find(|byte| byte.is_ascii_digit()) {
                    *digit = b"0123456789"[random.below(10)];
                }
            }
        }
    }
    *input = changed.join(&b"\n "[random.below(2)..][..1]);
}

type Mutation = fn(&mut Vec<u8>, &[u8], &mut Random);

/// One to four changes of a kind that keeps most of an input valid.
fn mutate_bytes(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        if input.is_empty() {
            return;
        }
        let at = random.below(input.len());
        let end = (at + 1 + random.below(16)).min(input.len());
        match random.below(7) {
            0 => input[at] = random.next() as u8,
            1 => input[at] ^= 1 << random.below(8),
            2 => drop(input.drain(at..end)),
            3 => {
                let piece = input[at..end].to_vec();
                let to = random.below(input.len());
                input.splice(to..to, piece);
            }
            4 => {
                let from = random.below(other.len());
                let piece = &other[from..(from + 24).min(other.len())];
                input.splice(at..at, piece.iter().copied());
            }
            5 => input[at] = b"\x00\xff\x7f\x80{}[] -9#"[random.below(12)],
            _ => input[at] = input[at].wrapping_add(1),
        }
    }
}

/// Runs that many mutated seeds. Returns the numbers of inputs that were maps, and of maps whose
/// text was read again.
fn smoke(
    seeds: &[Vec<u8>],
    runs: usize,
    mutate: Mutation,
    feed: fn(&[u8]) -> Coverage,
) -> (usize, usize) {
    let mut random = Random(20_251_122);
    let (mut maps, mut texts) = (0, 0);
    for _ in 0..runs {
        let mut input = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        mutate(&mut input, other, &mut random);
        let coverage = feed(&input);
        maps += usize::from(coverage.map);
        texts += usize::from(coverage.text);
    }
    (maps, texts)
}

#[test]
fn seeds_are_maps_whose_rules_run() {
    for seed in fuzz::binary_seeds() {
        let coverage = fuzz::binary(&seed);
        assert!(coverage.map && coverage.text && coverage.rules == 2, "{coverage:?}");
    }
    for seed in fuzz::text_seeds() {
        let coverage = fuzz::text(&seed);
        assert!(coverage.map && coverage.text && coverage.rules == 2, "{coverage:?}");
    }
}

#[test]
fn smoke_binary() {
    let (maps, texts) = smoke(&fuzz::binary_seeds(), 5_000, mutate_bytes, fuzz::binary);
    assert!(maps > 400 && texts > 300, "{maps} maps, {texts} texts");
}

#[test]
fn smoke_text() {
    let (maps, texts) = smoke(&fuzz::text_seeds(), 5_000, mutate_words, fuzz::text);
    assert!(maps > 200 && texts > 200, "{maps} maps, {texts} texts");
    smoke(&fuzz::text_seeds(), 3_000, mutate_bytes, fuzz::text);
}

#[test]
fn smoke_osdmap() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/osdmap");
    let seeds = ["om0", "om1"].map(|name| std::fs::read(folder.join(name)).unwrap());
    let feed = |input: &[u8]| Coverage { map: fuzz::osdmap(input), ..Coverage::default() };
    let (maps, _) = smoke(&seeds, 2_000, mutate_bytes, feed);
    assert!(maps > 200, "{maps} maps");
}

#[test]
fn smoke_increment() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/osdmap/chain16");
    let is_increment = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("inc."))
    };
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries.filter(is_increment).collect();
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let feed = |input: &[u8]| Coverage { map: fuzz::increment(input), ..Coverage::default() };
    let (maps, _) = smoke(&seeds, 5_000, mutate_bytes, feed);
    assert!(maps > 200, "{maps} increments");
}

#[test]
fn smoke_noise() {
    let mut random = Random(7);
    for len in 0..2_000 {
        let noise: Vec<u8> = (0..len % 200).map(|_| random.next() as u8).collect();
        assert!(!fuzz::binary(&noise).map && !fuzz::osdmap(&noise) && !fuzz::increment(&noise));
        fuzz::text(&noise);
    }
}
