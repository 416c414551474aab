//! Fuzzing of what peers and users give to the client: any bytes as input, and the properties that
//! must hold for all of them.
//!
//! - [`frames()`]: the bytes of a monitor or an OSD, on a client's connection: the banner, the
//!   handshake with and without keys, and what comes behind it.
//! - [`payload()`]: the payload of each message that a monitor or an OSD sends, and the result of
//!   each operation.
//! - [`text()`]: `ceph.conf`, a keyring, a list of monitors, and options.
//!
//! For all of them: no panic, no loop without end, and no memory beyond a small multiple of the
//! input. The last one is checked by the test `smoke`, whose allocator counts.
//!
//! The cargo-fuzz targets in the repository's `fuzz/` folder and a seeded smoke test use these
//! functions. [`frame_seeds`], [`payload_seeds`] and [`text_seeds`] give valid inputs to start
//! from.

mod payload;
mod seeds;
mod text;

pub use crate::msgr::fuzz::{Coverage, frame_seeds, frames};
pub use payload::payload;
pub use seeds::payload_seeds;
pub use text::{text, text_seeds};
