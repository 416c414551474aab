//! The stores that there are, each in a file or folder of its own.
//!
//! A store that needs nothing but its argument is a [`StoreKind`], and is registered by its line in
//! [`KINDS`]: then `fieldstone serve SCHEME:ARGUMENT` serves it. Volumes need a pool, which the
//! server has, so they are not in the list.

pub mod file;
pub mod ram;
pub mod volume;

use std::str::FromStr;

use fieldstone_uring::Caching;

use crate::store::StoreSpec;

pub use file::{FileSpec, FileStatus};
pub use ram::RamSpec;
pub use volume::{NodePlace, VolumeCall, VolumeSpec};

/// All kinds of stores that a target can name.
pub const KINDS: &[&StoreKind] = &[&ram::KIND, &file::KIND];

/// Reads an argument. An error says why the argument is refused.
pub type MakeSpec = fn(argument: &str, StoreOptions) -> Result<Box<dyn StoreSpec>, String>;

/// A kind of store that a target names as `SCHEME:ARGUMENT`.
#[derive(Debug)]
pub struct StoreKind {
    /// What a target begins with, without the colon.
    pub scheme: &'static str,
    /// What the argument is, for the help: `SIZE`.
    pub argument: &'static str,
    /// What it is, for the help.
    pub about: &'static str,
    /// What it holds is in memory already: a read cache in front of it would only copy.
    pub is_cached: fn(StoreOptions) -> bool,
    /// The name of its export, as the target in this place of the command line.
    pub name: fn(argument: &str, place: usize) -> String,
    /// Reads the argument.
    pub spec: MakeSpec,
}

/// How the stores of a server are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// Whether the page cache takes part.
    pub caching: Caching,
    /// Refuse writes.
    pub read_only: bool,
}

/// A store that was named.
#[derive(Clone, Debug)]
pub struct StoreTarget {
    kind: &'static StoreKind,
    argument: String,
}

impl StoreTarget {
    /// What the store is made from.
    ///
    /// # Errors
    /// Why the argument is refused.
    pub fn spec(&self, options: StoreOptions) -> Result<Box<dyn StoreSpec>, String> {
        (self.kind.spec)(&self.argument, options)
    }

    /// The name of its export, as the target in this place of the command line.
    #[must_use]
    pub fn name(&self, place: usize) -> String {
        (self.kind.name)(&self.argument, place)
    }

    /// A read cache in front of it would only copy.
    #[must_use]
    pub fn is_cached(&self, options: StoreOptions) -> bool {
        (self.kind.is_cached)(options)
    }
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
    /// It begins with no known scheme.
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
        // A bad argument shows before anything is opened.
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
