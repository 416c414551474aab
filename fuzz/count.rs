//! Counts the messages that a fuzz target understands. A campaign is measured in messages: most
//! inputs are refused at their first bytes, so the number of inputs says little.

use std::sync::atomic::{AtomicU64, Ordering};

/// The count is printed each time it passes a multiple of this.
const REPORT_MESSAGES: u64 = 1_000_000;

static MESSAGES: AtomicU64 = AtomicU64::new(0);

/// Adds the messages of one input.
pub fn add(messages: u32) {
    let before = MESSAGES.fetch_add(u64::from(messages), Ordering::Relaxed);
    let after = before + u64::from(messages);
    if before / REPORT_MESSAGES != after / REPORT_MESSAGES {
        eprintln!("understood {after} messages");
    }
}
