//! The stores of this crate, each in its own file or folder.
//!
//! A store that needs only its argument is a [`StoreKind`]. Its line in [`KINDS`] registers it:
//! then `fieldstone serve SCHEME:ARGUMENT` serves it. A volume needs a pool, which the server has,
//! so volumes are not in the list.

pub mod file;
pub mod ram;
pub mod rbd;
pub mod volume;

use std::str::FromStr;

use fieldstone_block::layers::LayerOptions;
use fieldstone_uring::Caching;

use crate::store::StoreSpec;

pub use file::FileSpec;
pub use ram::RamSpec;
pub use rbd::{HandedOver, RbdSpec, RbdStatus};
pub use volume::{VolumeCall, VolumeSpec, VolumeStatus};

/// All kinds of stores that a target can name.
pub const KINDS: &[&StoreKind] = &[&ram::KIND, &file::KIND, &rbd::KIND];

/// Makes a spec from an argument. An error says why the argument is refused.
pub type MakeSpec = fn(argument: &str, StoreOptions) -> Result<Box<dyn StoreSpec>, String>;

/// A kind of store that a target names as `SCHEME:ARGUMENT`.
#[derive(Debug)]
pub struct StoreKind {
    /// The start of a target, without the colon.
    pub scheme: &'static str,
    /// The name of the argument, for the help: `SIZE`.
    pub argument: &'static str,
    /// A description of the kind, for the help.
    pub about: &'static str,
    /// The layers that the store asks for; options of the user win over them. Without a cache if
    /// the data is in memory or in the page cache, and a cache would only keep second copies. May
    /// read files. An error says why the argument is refused.
    pub layers: fn(argument: &str, StoreOptions) -> Result<LayerOptions, String>,
    /// The name of the export, for the target at this position of the command line.
    pub name: fn(argument: &str, place: usize) -> String,
    /// Makes the spec from the argument.
    pub spec: MakeSpec,
}

/// How the stores of a server are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// Whether transfers use the page cache.
    pub caching: Caching,
    /// The store refuses writes.
    pub read_only: bool,
}

/// A store that a user named.
#[derive(Clone, Debug)]
pub struct StoreTarget {
    kind: &'static StoreKind,
    argument: String,
}

impl StoreTarget {
    /// The spec that makes the store.
    ///
    /// # Errors
    /// The reason why the argument is refused.
    pub fn spec(&self, options: StoreOptions) -> Result<Box<dyn StoreSpec>, String> {
        (self.kind.spec)(&self.argument, options)
    }

    /// The name of the export, for the target at this position of the command line.
    #[must_use]
    pub fn name(&self, place: usize) -> String {
        (self.kind.name)(&self.argument, place)
    }

    /// The layers that the store asks for: [`StoreKind::layers`].
    ///
    /// # Errors
    /// The reason why the target is refused.
    pub fn layers(&self, options: StoreOptions) -> Result<LayerOptions, String> {
        (self.kind.layers)(&self.argument, options)
    }
}

/// The defaults without the cache, for stores whose data is in memory or in the page cache.
fn without_cache() -> LayerOptions {
    let mut layers = LayerOptions::default();
    layers.leave_out("cache");
    layers
}

impl PartialEq for StoreTarget {
    fn eq(&self, other: &Self) -> bool {
        (self.kind.scheme, &self.argument) == (other.kind.scheme, &other.argument)
    }
}

impl Eq for StoreTarget {}

/// Why a target names no store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The target begins with no known scheme.
    #[error("it names no kind of store; there are {}", schemes())]
    NoScheme,
    /// The argument is refused.
    #[error("{0}")]
    Argument(String),
}

fn schemes() -> String {
    KINDS.iter().map(|kind| format!("{}:", kind.scheme)).collect::<Vec<_>>().join(", ")
}

impl FromStr for StoreTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (scheme, argument) = text.split_once(':').ok_or(TargetError::NoScheme)?;
        let kind = KINDS.iter().find(|kind| kind.scheme == scheme).ok_or(TargetError::NoScheme)?;
        let target = Self { kind, argument: argument.to_owned() };
        // A bad argument is reported before any store opens.
        target.spec(StoreOptions::default()).map_err(TargetError::Argument)?;
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        let name = |text: &str| text.parse::<StoreTarget>().map(|target| target.name(0));
        assert_eq!(name("ram:1G"), Ok("ram".to_owned()));
        assert_eq!(name("file:/tmp/disk.img"), Ok("disk.img".to_owned()));
        assert_eq!(name("pool/volume"), Err(TargetError::NoScheme));
        assert_eq!(name("rum:1G"), Err(TargetError::NoScheme));
        for bad in ["ram:", "ram:0", "ram:100", "file:"] {
            assert!(matches!(name(bad), Err(TargetError::Argument(_))), "{bad}");
        }
    }
}
