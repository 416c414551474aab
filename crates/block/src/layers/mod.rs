//! The kinds of layers, and the list that a device gets.
//!
//! Each kind is one file and one line of [`KINDS`]. A device's list has the default layers, in the
//! order of [`KINDS`], and the layers that options add or change:
//!
//! ```text
//!   front-ends
//!      │ bytes, any range
//!   meter       counts, times the stages
//!   limit       bounds the rate, if options say so
//!   scheduler   merges neighbours; above the cache, so that one look-up serves the merged request
//!   cache       answers what was read before
//!   readahead   reads ahead of sequential readers, for what the cache could not answer
//!   align       whole blocks only below here; after merging, so that few edges are left to it
//!   write-cache answers writes from memory; only where options or the store ask for it
//!   luks        encrypts whole sectors; only where options ask for it
//!   error       fails requests, for tests; only where options ask for it
//!   delay       holds requests back, for tests; only where options ask for it
//!      │ whole blocks
//!   store
//! ```

mod align;
mod cache;
mod delay;
mod error;
mod flights;
mod latency;
mod limit;
mod lru;
mod luks;
mod meter;
mod readahead;
mod scheduler;
mod streams;
mod versions;
mod write_cache;

pub use align::{Align, AlignStats};
pub use cache::{Cache, CacheOptions, CacheStats, LINE_BYTES};
pub use delay::{Delay, DelayOptions};
pub use error::{ErrorInject, ErrorOptions};
pub use latency::{ROLLING_WINDOW, RollingLatency};
pub use limit::{Limit, LimitOptions};
pub use luks::{Luks, LuksOptions, TrimPolicy, ZEROES_BYTES, ZEROES_IN_FLIGHT};
pub use meter::{Counts, Meter, OpCount};
pub use readahead::{ReadAhead, ReadAheadOptions, ReadAheadStats};
pub use scheduler::{Policy, Scheduler, SchedulerOptions, SchedulerStats};
pub use write_cache::{WriteCache, WriteCacheOptions, WriteCacheStats, WritePolicy};

use crate::layer::Layer;
use crate::settings::{SettingError, Settings};

/// A kind of layer.
pub struct Kind {
    /// Its name on the command line and in `status`.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Every device has one, unless options leave it out.
    pub default: bool,
    /// Makes a layer with options. Options that the kind does not know stay in the settings.
    pub make: fn(&mut Settings) -> Result<Box<dyn Layer>, SettingError>,
}

/// The kinds, in the order of a device's list.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "meter",
        summary: "counts requests, bytes and errors, and times the stages",
        default: true,
        make: |_| Ok(Box::new(Meter::new())),
    },
    Kind {
        name: "limit",
        summary: "bounds requests and bytes per second, shared fairly among connections",
        default: true,
        make: |settings| {
            let mut options = LimitOptions::default();
            options.set(settings)?;
            Ok(Box::new(Limit::new(options)))
        },
    },
    Kind {
        name: "scheduler",
        summary: "merges neighbouring requests while others are under way",
        default: true,
        make: |settings| {
            let mut options = SchedulerOptions::default();
            options.set(settings)?;
            Ok(Box::new(Scheduler::new(options)))
        },
    },
    Kind {
        name: "cache",
        summary: "keeps what was read in memory; writes go through",
        default: true,
        make: |settings| {
            let mut options = CacheOptions::default();
            options.set(settings)?;
            Ok(Box::new(Cache::new(options)))
        },
    },
    Kind {
        name: "readahead",
        summary: "reads what a sequential reader will ask for next, in long reads",
        default: true,
        make: |settings| {
            let mut options = ReadAheadOptions::default();
            options.set(settings)?;
            Ok(Box::new(ReadAhead::new(options)))
        },
    },
    Kind {
        name: "align",
        summary: "makes whole blocks of requests that start or end within one",
        default: true,
        make: |_| Ok(Box::new(Align::new())),
    },
    Kind {
        name: "write-cache",
        summary: "answers writes from memory, and writes them to the store later",
        default: false,
        make: |settings| {
            let mut options = WriteCacheOptions::default();
            options.set(settings)?;
            Ok(Box::new(WriteCache::new(options)))
        },
    },
    Kind {
        name: "luks",
        summary: "encrypts and decrypts a device that begins with a LUKS header",
        default: false,
        make: |settings| {
            let mut options = LuksOptions::default();
            options.set(settings)?;
            Ok(Box::new(Luks::new(options)))
        },
    },
    Kind {
        name: "error",
        summary: "fails requests, for tests",
        default: false,
        make: |settings| {
            let mut options = ErrorOptions::default();
            options.set(settings)?;
            Ok(Box::new(ErrorInject::new(options)))
        },
    },
    Kind {
        name: "delay",
        summary: "holds requests back, for tests",
        default: false,
        make: |settings| {
            let mut options = DelayOptions::default();
            options.set(settings)?;
            Ok(Box::new(Delay::new(options)))
        },
    },
];

/// The options of a device's layers: the layers in addition to the defaults, and their options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerOptions {
    /// Options of layers, in the order of [`KINDS`]. The device has each of these layers, unless
    /// its kind is left out.
    chosen: Vec<Settings>,
    /// Default layers that the device does not have.
    left_out: Vec<&'static str>,
}

fn kind_of(name: &str) -> Result<&'static Kind, SettingError> {
    let unknown = || {
        let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        SettingError::UnknownLayer { layer: name.to_owned(), known: known.join(", ") }
    };
    KINDS.iter().find(|kind| kind.name == name).ok_or_else(unknown)
}

impl LayerOptions {
    /// Adds a layer, or options for one that the device has, from text such as
    /// `cache:capacity=64M`. The text `cache:off` leaves a default layer out.
    ///
    /// # Errors
    /// There is no such layer, it has no such option, or a value cannot be read.
    pub fn add(&mut self, text: &str) -> Result<(), SettingError> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let kind = kind_of(name.trim())?;
        if options.trim() == "off" {
            self.leave_out(kind.name);
            return Ok(());
        }
        self.add_settings(Settings::parse(text)?)
    }

    /// As [`LayerOptions::add`], with parsed options.
    ///
    /// # Errors
    /// As there.
    pub fn add_settings(&mut self, settings: Settings) -> Result<(), SettingError> {
        let kind = kind_of(settings.layer())?;
        let mut trial = settings.clone();
        (kind.make)(&mut trial)?;
        trial.finish()?;
        self.left_out.retain(|name| *name != kind.name);
        match self.chosen.iter_mut().find(|other| other.layer() == kind.name) {
            Some(other) => other.merge(settings),
            None => self.chosen.push(settings),
        }
        Ok(())
    }

    /// Leaves a layer out.
    pub fn leave_out(&mut self, name: &'static str) {
        self.chosen.retain(|settings| settings.layer() != name);
        self.left_out.push(name);
    }

    /// Adds the layers and the options of `other`, and leaves out what `other` leaves out. If both
    /// give an option, the value of `other` counts.
    pub fn merge(&mut self, other: &LayerOptions) {
        for name in &other.left_out {
            self.leave_out(name);
        }
        for settings in &other.chosen {
            self.left_out.retain(|name| *name != settings.layer());
            match self.chosen.iter_mut().find(|own| own.layer() == settings.layer()) {
                Some(own) => own.merge(settings.clone()),
                None => self.chosen.push(settings.clone()),
            }
        }
    }

    /// True if the layer of this name is left out.
    #[must_use]
    pub fn leaves_out(&self, name: &str) -> bool {
        self.left_out.contains(&name)
    }

    /// Makes the layers.
    ///
    /// # Errors
    /// As [`LayerOptions::add`], which has already tried the same options.
    pub fn make(&self) -> Result<Vec<Box<dyn Layer>>, SettingError> {
        let mut layers = Vec::new();
        for kind in KINDS {
            let chosen = self.chosen.iter().find(|settings| settings.layer() == kind.name);
            let there = chosen.is_some() || kind.default;
            if !there || self.left_out.contains(&kind.name) {
                continue;
            }
            let mut settings = chosen.cloned().unwrap_or_else(|| Settings::none(kind.name));
            layers.push((kind.make)(&mut settings)?);
            settings.finish()?;
        }
        Ok(layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(options: &LayerOptions) -> Vec<&'static str> {
        options.make().unwrap().iter().map(|layer| layer.name()).collect()
    }

    #[test]
    fn a_device_has_the_defaults_and_what_options_add() {
        let mut options = LayerOptions::default();
        assert_eq!(names(&options), ["meter", "limit", "scheduler", "cache", "readahead", "align"]);
        options.add("delay:read=10ms").unwrap();
        options.add("limit:iops=100").unwrap();
        options.add("limit:bytes=1M").unwrap();
        options.add("cache:off").unwrap();
        assert_eq!(names(&options), ["meter", "limit", "scheduler", "readahead", "align", "delay"]);
        let limit = options.make().unwrap().remove(1);
        let expected = [("iops", "100"), ("bytes", "1M"), ("burst", "0")];
        assert_eq!(limit.options(), expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn merged_options_win_and_the_others_stay() {
        let make = |texts: &[&str]| {
            let mut options = LayerOptions::default();
            texts.iter().for_each(|text| options.add(text).unwrap());
            options
        };
        let mut options = make(&["limit:iops=100,bytes=1M", "cache:off", "readahead:window=1M"]);
        options.merge(&make(&["limit:iops=200", "cache:capacity=64M", "readahead:off"]));
        assert_eq!(names(&options), ["meter", "limit", "scheduler", "cache", "align"]);
        assert!(options.leaves_out("readahead") && !options.leaves_out("cache"));
        let limit = options.make().unwrap().remove(1);
        assert_eq!(limit.options()[..2], [("iops", "200".to_owned()), ("bytes", "1M".to_owned())]);
    }

    #[test]
    fn the_largest_bypass_of_the_cache_is_in_force_as_given() {
        let mut options = LayerOptions::default();
        options.add("cache:bypass=256K").unwrap();
        let cache = options.make().unwrap().remove(3);
        assert_eq!((cache.name(), &cache.options()[1]), ("cache", &("bypass", "256K".to_owned())));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut options = LayerOptions::default();
        let mut error = |text: &str| options.add(text).unwrap_err().to_string();
        assert!(error("crypt").contains("there is no layer \"crypt\"; there are meter, limit"));
        assert!(error("cache:size=1M").contains("it has capacity, bypass, stream"));
        assert!(error("cache:capacity=x").contains("cache: capacity: "));
        assert_eq!(error("cache:bypass=512K"), "cache: bypass: \"512K\" is more than 256 KiB");
        assert_eq!(error("cache:bypass=8G"), "cache: bypass: \"8G\" is more than 256 KiB");
        assert_eq!(error("readahead:window=4M"), "readahead: window: \"4M\" is more than 2 MiB");
        assert!(error("off:off").contains("there is no layer"));
        assert_eq!(options, LayerOptions::default());
    }
}
