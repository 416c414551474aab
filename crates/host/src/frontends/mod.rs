//! The front-ends of this crate, each in its own file or folder.
//!
//! A front-end is a [`FrontendKind`]. Its line in [`KINDS`] registers it: every core of a host that
//! starts with this list has one of each, and `fieldstone serve --listen NAME:ADDR` listens for its
//! clients.

pub mod nbd;

use crate::frontend::FrontendKind;

/// All kinds of front-ends of this crate.
pub const KINDS: &[&FrontendKind] = &[&nbd::KIND];

/// The kind of an address that names none.
pub const DEFAULT: &FrontendKind = &nbd::KIND;
