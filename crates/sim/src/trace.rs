//! The trace: the events of a run, in fixed columns, and their hash.
//!
//! The hash covers every line, whether or not the text is written. So two runs can be compared for
//! equality at the price of a few multiplications per event. Text is made only if there is a
//! writer.
//!
//! ```text
//!       time_us who  what       detail
//!       153.204 v0   send       node.2 JournalAppend tag 17
//! ```

use std::fmt;
use std::io::Write;

use fieldstone_block::Nanos;

/// The head of a trace.
pub const LEGEND: &str = "\
# who:  vN a volume process (N counts the starts), nN a node, w the workload, ! a fault, = the world
# what: send/reply a message leaves, recv it arrives, disk/done an operation starts/ends,
#       op/ack/err a block request starts/succeeds/fails, up/down a connection,
#       phase a change of life
#     time_us who  what     detail
";

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A volume process.
    Volume(u32),
    /// A node.
    Node(u16),
    /// The workload.
    Workload,
    /// A fault.
    Fault,
    /// The world.
    World,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Volume(index) => f.pad(&format!("v{index}")),
            Who::Node(index) => f.pad(&format!("n{index}")),
            Who::Workload => f.pad("w"),
            Who::Fault => f.pad("!"),
            Who::World => f.pad("="),
        }
    }
}

impl Who {
    fn code(self) -> u64 {
        match self {
            Who::Volume(index) => 1 << 32 | u64::from(index),
            Who::Node(index) => 2 << 32 | u64::from(index),
            Who::Workload => 3 << 32,
            Who::Fault => 4 << 32,
            Who::World => 5 << 32,
        }
    }
}

/// Collects the trace of one run.
pub struct Trace<'a> {
    writer: Option<&'a mut dyn Write>,
    hash: u64,
}

impl<'a> Trace<'a> {
    /// A trace. If `writer` is given, the legend and then the lines go to it.
    pub fn new(mut writer: Option<&'a mut dyn Write>) -> Self {
        if let Some(writer) = writer.as_mut() {
            // A failure to write the trace is no reason to fail the run.
            let _ = writer.write_all(LEGEND.as_bytes());
        }
        Self { writer, hash: 0x9e37_79b9_7f4a_7c15 }
    }

    /// The hash of all lines so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// True when a writer takes the text.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.writer.is_some()
    }

    /// Adds a line. The hash covers `key` instead of `detail`, so `key` should tell as much.
    pub fn line(
        &mut self,
        now: Nanos,
        who: Who,
        what: &'static str,
        key: u64,
        detail: fmt::Arguments<'_>,
    ) {
        for word in [now.0, who.code(), crate::random::fnv(what.as_bytes()), key] {
            self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        if let Some(writer) = self.writer.as_mut() {
            let (us, ns) = (now.0 / 1000, now.0 % 1000);
            let _ = writeln!(writer, "{us:>9}.{ns:03} {who:<4} {what:<8} {detail}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_the_hash_ignores_the_writer() {
        let mut text = Vec::new();
        let mut written = Trace::new(Some(&mut text));
        written.line(Nanos(1_234_567), Who::Node(3), "recv", 9, format_args!("hello"));
        let hash = written.hash();
        let mut silent = Trace::new(None);
        silent.line(Nanos(1_234_567), Who::Node(3), "recv", 9, format_args!("other words"));
        assert_eq!(hash, silent.hash());
        silent.line(Nanos(1_234_567), Who::Node(3), "recv", 10, format_args!(""));
        assert_ne!(hash, silent.hash());
        let text = String::from_utf8(text).expect("the trace is text");
        assert!(text.ends_with("     1234.567 n3   recv     hello\n"), "{text}");
    }
}
