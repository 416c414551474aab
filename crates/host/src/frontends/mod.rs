//! The front-ends that there are, each in a file or folder of its own.
//!
//! A front-end is a [`FrontendKind`], and its line in [`KINDS`] registers it: every core of a host
//! that is started with this list has one of each.

pub mod nbd;

use crate::frontend::FrontendKind;

/// All kinds of front-ends of this crate.
pub const KINDS: &[&FrontendKind] = &[&nbd::KIND];
