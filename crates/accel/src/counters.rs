//! The counters of an engine, for status pages.

use crate::JobKind;

/// Totals of one kind of job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounters {
    /// Jobs accepted.
    pub jobs: u64,
    /// Bytes that they read.
    pub bytes: u64,
    /// Jobs given to the device.
    pub device_jobs: u64,
    /// Jobs that the device took and software had to repeat.
    pub device_failures: u64,
    /// Of these, jobs whose result was wrong.
    pub device_wrong: u64,
    /// Of these, jobs that the device had for too long.
    pub device_late: u64,
    /// Jobs that the device can do but had no room for.
    pub device_full: u64,
}

/// Totals of all kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Linear maps.
    pub code: KindCounters,
    /// CRUSH mappings.
    pub place: KindCounters,
    /// Checksums.
    pub checksum: KindCounters,
}

impl Counters {
    /// The totals of one kind.
    #[must_use]
    pub fn kind(&self, kind: JobKind) -> &KindCounters {
        match kind {
            JobKind::Code => &self.code,
            JobKind::Place => &self.place,
            JobKind::Checksum => &self.checksum,
        }
    }

    /// Wrong results of all kinds.
    pub(crate) fn device_wrong(&self) -> u64 {
        [self.code, self.place, self.checksum].iter().map(|kind| kind.device_wrong).sum()
    }

    pub(crate) fn kind_mut(&mut self, kind: JobKind) -> &mut KindCounters {
        match kind {
            JobKind::Code => &mut self.code,
            JobKind::Place => &mut self.place,
            JobKind::Checksum => &mut self.checksum,
        }
    }
}
