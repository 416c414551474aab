//! Properties of the machine that a reader needs to judge a measurement.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

/// Memory that is touched to measure the cost of a fresh page.
const TOUCHED_BYTES: usize = 128 << 20;
const PAGE_BYTES: usize = 4096;

/// The machine, in lines. This measures the cost of a fresh page, so call it before the load
/// starts.
pub fn describe() -> Vec<String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let page_us = fresh_page_ns() / 1e3;
    let mut lines = vec![
        format!("machine: {cpus} CPUs{}, Linux {}", model(), kernel.trim()),
        format!("a fresh page of memory costs {page_us:.2} us"),
    ];
    if page_us > 1.0 {
        lines.push(
            "  (dear: this system gets its memory back page by page, so servers whose page cache \
             grows look slow; compare the direct ones)"
                .to_owned(),
        );
    }
    lines
}

/// The load averages of the last 1, 5 and 15 minutes.
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_ascii_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    name.map_or(String::new(), |name| format!(" ({name})"))
}

/// Mean time of the first write to a page that the process has not used before, in nanoseconds.
fn fresh_page_ns() -> f64 {
    // The system gives zeroed memory of this size as addresses without pages.
    let mut memory = vec![0u8; TOUCHED_BYTES];
    let start = Instant::now();
    for page in memory.chunks_mut(PAGE_BYTES) {
        if let Some(byte) = page.first_mut() {
            *byte = 1;
        }
    }
    let elapsed = start.elapsed();
    black_box(&memory);
    elapsed.as_nanos() as f64 / (TOUCHED_BYTES / PAGE_BYTES) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let lines = describe();
        assert!(lines[0].starts_with("machine: ") && lines[0].contains("Linux "), "{lines:?}");
        assert!(lines[1].contains(" us"), "{lines:?}");
        assert_eq!(load().split(' ').count(), 3);
    }

    #[test]
    fn a_page_costs_something() {
        let ns = fresh_page_ns();
        assert!(ns > 1.0 && ns < 1e7, "{ns}");
    }
}
