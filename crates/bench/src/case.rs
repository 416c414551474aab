//! A case of a block benchmark: one load, with a name.

use crate::fio::{Load, Pattern};

/// One load, with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The load of the client.
    pub load: Load,
}

impl Case {
    /// The case of a load.
    pub const fn new(pattern: Pattern, block_bytes: u64, depth: u32) -> Self {
        Self { load: Load { pattern, block_bytes, depth } }
    }

    /// The name, for example `4k-randread-qd32`.
    pub fn name(&self) -> String {
        let Load { pattern, block_bytes, depth } = self.load;
        format!("{}k-{}-qd{depth}", block_bytes >> 10, pattern.name())
    }

    /// True if the case is about bandwidth, false if it is about I/Os per second.
    pub fn is_bandwidth(&self) -> bool {
        self.load.pattern.is_sequential()
    }
}
