//! Counts the bytes that are allocated while the code of the client runs, and times.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with counters.
pub struct Counting;

fn note(bytes: isize, allocations: usize) {
    if IS_COUNTING.get() {
        LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
        ALLOCATIONS.set(ALLOCATIONS.get() + allocations);
    }
}

// SAFETY: every method passes its arguments on to the system's allocator, whose contract is the
// same. The counters are plain cells of the thread, and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize, 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(-(layout.size() as isize), 0);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size as isize - layout.size() as isize, 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// What a piece of code allocated.
#[derive(Clone, Copy, Default)]
pub struct Memory {
    /// Bytes allocated and not freed; below zero if it freed more.
    pub live_bytes: isize,
    /// The number of allocations.
    pub allocations: usize,
}

impl Memory {
    /// Adds what another piece of code allocated.
    pub fn add(&mut self, more: Memory) {
        self.live_bytes += more.live_bytes;
        self.allocations += more.allocations;
    }
}

/// Runs code, and counts what it allocates. Calls do not nest.
pub fn counted<T>(code: impl FnOnce() -> T) -> (T, Memory) {
    let (bytes, allocations) = (LIVE_BYTES.get(), ALLOCATIONS.get());
    IS_COUNTING.set(true);
    let value = code();
    IS_COUNTING.set(false);
    let live_bytes = LIVE_BYTES.get() - bytes;
    (value, Memory { live_bytes, allocations: ALLOCATIONS.get() - allocations })
}

/// The median time of some runs. Each run gets what `prepare` gives, and its result is dropped
/// outside of the time.
pub fn median<A, B>(runs: usize, prepare: impl Fn() -> A, run: impl Fn(A) -> B) -> Duration {
    let mut times: Vec<Duration> = (0..runs)
        .map(|_| {
            let input = prepare();
            let start = Instant::now();
            let output = std::hint::black_box(run(std::hint::black_box(input)));
            let time = start.elapsed();
            drop(output);
            time
        })
        .collect();
    times.sort_unstable();
    times[runs / 2]
}
