//! Valid inputs with random changes, and plain random bytes: a bounded replacement for the fuzzer.
//! The allocator counts what each input makes the client take.
//!
//! `RADOS_FUZZ_RUNS=1000000` runs more inputs of each kind, `RADOS_FUZZ_SEED=7` others.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fieldstone_rados::fuzz;

thread_local! {
    /// Bytes in use by this thread, and the most since it was last set back. A thread may free what
    /// another took, so the numbers are signed.
    static USED: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(bytes: isize) {
    // A thread that ends has no counter any more.
    let _ = USED.try_with(|used| {
        let (now, most) = used.get();
        used.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: each call goes to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The value of a call, and the most memory that it takes beyond what was in use before it.
fn memory_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = USED.with(|used| {
        let (now, _) = used.get();
        used.set((now, now));
        now
    });
    let value = work();
    let most = USED.with(|used| used.get().1);
    (value, usize::try_from(most - before).unwrap_or(0))
}

/// What an input of this length may make the client take: the input in a few forms, and tables of
/// what it names.
fn bound(input_bytes: usize) -> usize {
    (256 << 10) + 64 * input_bytes
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }
}

/// Numbers that lengths and counts must survive.
const NUMBERS: [u32; 8] = [0, 1, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, u32::MAX];

/// One to four changes behind the first `kept` bytes.
fn mutate(input: &mut Vec<u8>, other: &[u8], kept: usize, random: &mut Random) {
    for _ in 0..=random.below(4) {
        if input.len() <= kept || other.is_empty() {
            return;
        }
        let at = kept + random.below(input.len() - kept);
        let end = (at + 1 + random.below(24)).min(input.len());
        match random.below(8) {
            0 => input[at] = random.word() as u8,
            1 => input[at] ^= 1 << random.below(8),
            2 => drop(input.drain(at..end)),
            3 => {
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            4 => {
                let from = random.below(other.len());
                let piece = &other[from..(from + 48).min(other.len())];
                input.splice(at..at, piece.iter().copied());
            }
            5 => {
                let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                let len = number.len().min(input.len() - at);
                input[at..at + len].copy_from_slice(&number[..len]);
            }
            6 => input.truncate(end),
            _ => input[at] = input[at].wrapping_add(1),
        }
    }
}

fn number(name: &str, default: usize) -> usize {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// Runs that many mutated seeds. Returns how many inputs were understood.
fn smoke(seeds: &[Vec<u8>], runs: usize, kept: usize, feed: impl Fn(&[u8]) -> bool) -> usize {
    let mut random = Random(number("RADOS_FUZZ_SEED", 20_261_127) as u64);
    let mut understood = 0;
    for _ in 0..runs {
        let mut input = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        // Sometimes the first bytes too, which say what the input is.
        let kept = if random.below(4) == 0 { 0 } else { kept };
        mutate(&mut input, other, kept, &mut random);
        let (was_understood, used) = memory_of(|| feed(&input));
        understood += usize::from(was_understood);
        assert!(used <= bound(input.len()), "{used} bytes for an input of {}", input.len());
    }
    understood
}

#[test]
fn smoke_frames() {
    let runs = number("RADOS_FUZZ_RUNS", 2_000);
    let ready = smoke(&fuzz::frame_seeds(), runs, 2, |input| fuzz::frames(input).ready);
    assert!(ready > runs / 20 && ready < runs, "{ready} of {runs}");
}

#[test]
fn smoke_payloads() {
    let runs = number("RADOS_FUZZ_RUNS", 40_000);
    let understood = smoke(&fuzz::payload_seeds(), runs, 3, fuzz::payload);
    assert!(understood > runs / 20 && understood < runs, "{understood} of {runs}");
}

#[test]
fn smoke_texts() {
    let runs = number("RADOS_FUZZ_RUNS", 10_000);
    let understood = smoke(&fuzz::text_seeds(), runs, 1, fuzz::text);
    assert!(understood > runs / 20 && understood < runs, "{understood} of {runs}");
}

#[test]
fn smoke_noise() {
    let mut random = Random(7);
    for len in 0..2_000 {
        let noise: Vec<u8> = (0..len % 300).map(|_| random.word() as u8).collect();
        assert!(!fuzz::frames(&noise).ready);
        fuzz::payload(&noise);
        fuzz::text(&noise);
    }
}

#[test]
fn seeds_are_understood() {
    for (index, seed) in fuzz::payload_seeds().iter().enumerate() {
        assert!(fuzz::payload(seed), "payload {index}");
    }
    for (index, seed) in fuzz::text_seeds().iter().enumerate() {
        assert!(fuzz::text(seed), "text {index}");
    }
}
