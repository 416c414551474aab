//! Valid headers with random changes, and plain random bytes: a bounded replacement for the fuzzer.
//!
//! `LUKS_FUZZ_RUNS=1000000` runs more inputs, `LUKS_FUZZ_SEED=7` others.

use fieldstone_luks::fuzz;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Numbers that lengths and counts must survive.
const NUMBERS: [u32; 8] = [0, 1, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, u32::MAX];
/// Texts of numbers, for the JSON.
const TEXTS: [&str; 8] =
    ["0", "-1", "18446744073709551615", "18446744073709551616", "1e9", "\"0\"", "null", "[]"];

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// A place near the beginning of a header or of its JSON, or anywhere.
fn place(input: &[u8], random: &mut ChaCha8Rng) -> usize {
    let json = 4097;
    match random.random_range(0..3) {
        0 => random.random_range(1..input.len().min(600)),
        1 if input.len() > json => random.random_range(json..input.len()),
        _ => random.random_range(1..input.len()),
    }
}

/// One to three changes.
fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut ChaCha8Rng) {
    for _ in 0..random.random_range(1..4) {
        if input.len() < 2 {
            return;
        }
        let at = place(input, random);
        match random.random_range(0..8) {
            0 => input[0] = random.random(),
            1 => input[at] = random.random(),
            2 => input[at] ^= 1 << random.random_range(0..8),
            3 => drop(input.remove(at)),
            4 => {
                let from = random.random_range(0..other.len());
                input.splice(at..at, other[from..].iter().copied().take(24));
            }
            5 => {
                let number = NUMBERS[random.random_range(0..NUMBERS.len())].to_be_bytes();
                let len = number.len().min(input.len() - at);
                input[at..at + len].copy_from_slice(&number[..len]);
            }
            6 => replace_number(input, at, random),
            _ => input.truncate(at),
        }
    }
}

/// Puts another text in the place of the next run of digits.
fn replace_number(input: &mut Vec<u8>, at: usize, random: &mut ChaCha8Rng) {
    let Some(start) = input[at..].iter().position(u8::is_ascii_digit) else { return };
    let start = at + start;
    let len = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = TEXTS[random.random_range(0..TEXTS.len())];
    input.splice(start..start + len, text.bytes());
}

#[test]
fn smoke() {
    let seeds = fuzz::seeds();
    assert!(seeds.iter().all(|seed| fuzz::header(seed)), "a seed is no header");
    let mut random = ChaCha8Rng::seed_from_u64(number("LUKS_FUZZ_SEED", 1));
    let runs = number("LUKS_FUZZ_RUNS", 2_000);
    let mut understood = 0;
    for _ in 0..runs {
        let mut input = seeds[random.random_range(0..seeds.len())].clone();
        let other = &seeds[random.random_range(0..seeds.len())];
        mutate(&mut input, other, &mut random);
        understood += u64::from(fuzz::header(&input));
    }
    assert!(understood > runs / 20 && understood < runs, "{understood} of {runs}");
}

#[test]
fn smoke_noise() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for len in 0..2_000 {
        let mut noise: Vec<u8> = (0..len % 700).map(|_| random.random()).collect();
        let magic = [1, b'L', b'U', b'K', b'S', 0xba, 0xbe, 0, 1 + (len % 2) as u8];
        let start = magic.len().min(noise.len());
        noise[..start].copy_from_slice(&magic[..start]);
        let _ = fuzz::header(&noise);
    }
}
