//! Options and counters of the write cache.

use crate::Nanos;
use crate::layer::Counter;
use crate::settings::{SettingError, Settings};

/// What happens to a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritePolicy {
    /// It is answered when the store has it.
    Through,
    /// It is answered at once, and sent to the store at once.
    #[default]
    Around,
    /// It is answered at once, and sent to the store later.
    Back,
}

const POLICIES: [(&str, WritePolicy); 3] = [
    ("through", WritePolicy::Through),
    ("around", WritePolicy::Around),
    ("back", WritePolicy::Back),
];

/// The options of the write cache. The defaults of the numbers are those of librbd's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCacheOptions {
    /// What happens to a write.
    pub policy: WritePolicy,
    /// The most bytes that are in memory and not in the store.
    pub max_dirty_bytes: u64,
    /// With policy `back`: the oldest bytes go out while more than this are idle.
    pub target_dirty_bytes: u64,
    /// With policy `back`: bytes of this age go out.
    pub max_age: Nanos,
    /// The longest request that neighbours are merged to. Longer writes leave as they are.
    pub max_merge_bytes: u64,
    /// Writes go through until the first flush has come.
    pub until_flush: bool,
}

impl Default for WriteCacheOptions {
    fn default() -> Self {
        WriteCacheOptions {
            policy: WritePolicy::default(),
            max_dirty_bytes: 24 << 20,
            target_dirty_bytes: 16 << 20,
            max_age: Nanos::from_ms(1000),
            max_merge_bytes: 1 << 20,
            until_flush: true,
        }
    }
}

impl WriteCacheOptions {
    /// Takes the options that `settings` names. The others keep their values.
    ///
    /// # Errors
    /// A value cannot be read, or is out of its bounds.
    pub fn set(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        settings.choice("policy", &mut self.policy, &POLICIES)?;
        settings.size("max-dirty", &mut self.max_dirty_bytes)?;
        settings.size("target-dirty", &mut self.target_dirty_bytes)?;
        settings.duration("max-age", &mut self.max_age)?;
        settings.read("max-merge", &mut self.max_merge_bytes, |text| {
            let bytes = fieldstone_units::parse_size(text)?;
            let bounds = 4096..=32 << 20;
            match bounds.contains(&bytes) {
                true => Ok(bytes),
                false => Err(format!("{text:?} is not between 4 KiB and 32 MiB")),
            }
        })?;
        settings.choice("until-flush", &mut self.until_flush, &[("on", true), ("off", false)])
    }

    /// The options as they are written on the command line.
    pub(super) fn list(&self) -> Vec<(&'static str, String)> {
        let size = fieldstone_units::size_argument;
        let policy = POLICIES.iter().find(|(_, policy)| *policy == self.policy);
        vec![
            ("policy", policy.map_or("", |(word, _)| word).to_owned()),
            ("max-dirty", size(self.max_dirty_bytes)),
            ("target-dirty", size(self.target_dirty_bytes)),
            ("max-age", fieldstone_units::duration_argument(self.max_age.0)),
            ("max-merge", size(self.max_merge_bytes)),
            ("until-flush", if self.until_flush { "on" } else { "off" }.to_owned()),
        ]
    }
}

/// The write cache's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCacheStats {
    /// Writes that were answered from memory.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Changes that went through.
    pub through: u64,
    /// Writes that waited for room.
    pub waited: u64,
    /// Requests with kept bytes that the cache has sent to the store.
    pub write_outs: u64,
    /// Their bytes.
    pub write_out_bytes: u64,
    /// Kept bytes that were overwritten before they left.
    pub overwritten_bytes: u64,
    /// Reads that memory has answered completely.
    pub read_hits: u64,
    /// Reads that found some of their bytes in memory.
    pub read_overlays: u64,
    /// How often the store has refused bytes.
    pub failed: u64,
    /// Bytes that the store does not have, and that are not on their way.
    pub dirty_bytes: u64,
    /// Bytes on their way to the store.
    pub out_bytes: u64,
}

impl WriteCacheStats {
    /// The counters by name.
    pub(super) fn list(&self) -> Vec<Counter> {
        let counter = |name, value| Counter { name, value };
        vec![
            counter("kept", self.kept),
            counter("kept_bytes", self.kept_bytes),
            counter("through", self.through),
            counter("waited", self.waited),
            counter("write_outs", self.write_outs),
            counter("write_out_bytes", self.write_out_bytes),
            counter("overwritten_bytes", self.overwritten_bytes),
            counter("read_hits", self.read_hits),
            counter("read_overlays", self.read_overlays),
            counter("failed", self.failed),
            counter("dirty_bytes", self.dirty_bytes),
            counter("out_bytes", self.out_bytes),
        ]
    }
}
