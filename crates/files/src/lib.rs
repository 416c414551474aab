//! Files kept as the shards of an erasure code: `shard.0` to `shard.N-1`, and a manifest.
//!
//! Any k of the shards are enough to decode the file. A repair of a lost or damaged shard reads
//! only what the code's repair plan names. The promises:
//!
//! - **No silent wrong bytes.** Every block that is read is compared with its checksum, which also
//!   covers the block's place. A bad block is rebuilt from other shards. If it cannot be rebuilt,
//!   there is an error with the place and the reason. A decoded file is also compared as a whole.
//! - **No shard is special, and neither is the manifest.** Each shard's header has all fields of
//!   the manifest. The manifest is for people, and decides when shards are mixed up.
//! - **An unfinished file never looks whole.** Names and headers come last, after the data is
//!   stable.
//! - **Memory is bounded**: one stripe per thread, for files of any length and for streams; twice
//!   that if a device codes.
//! - **The content of a folder is not trusted.** Links are not followed, only regular files are
//!   opened, and lengths in a header or manifest count only up to the lengths of the files.
//!
//! Each job exists twice. `encode`, `decode`, `repair` and `verify` take a number of threads, and
//! code on the CPU. `encode_with` and the others take [`Coders`]: an engine of
//! [`accel`](fieldstone_accel) for each thread, with or without a device. The bytes are the same.
//!
//! `docs/formats.md` shows the files byte by byte.
//!
//! | module     | idea |
//! |------------|------|
//! | `striping` | how a file is cut into stripes, units and blocks |
//! | `manifest`, `header`, `record` | the metadata that is stored with units |
//! | `folder`   | the files of a folder, and their state |
//! | `stripe`   | the memory of one stripe |
//! | `read`     | reads a stripe: checks, and plans that avoid bad units |
//! | `opening`  | opens files: no link is followed, and only regular files are opened |
//! | `output`   | files that get their name when they are complete |
//! | `coder`    | executes a stripe's linear map: in software, or as a job of an accelerator |
//! | `workers`  | threads, the order of stripes, progress |
//! | `encode`, `decode`, `repair`, `verify` | the jobs |
//! | [`fuzz`]   | the properties of folders for any content |

mod checksum;
mod coder;
mod decode;
mod encode;
mod error;
mod folder;
pub mod fuzz;
mod header;
mod manifest;
mod opening;
mod output;
mod read;
mod record;
mod repair;
mod stripe;
mod striping;
mod verify;
mod workers;

pub use coder::{CoderCounts, Coders};
pub use decode::{Decoded, Output, decode, decode_with};
pub use encode::{Input, encode, encode_with};
pub use error::Error;
pub use folder::{
    Folder, MANIFEST_FILE, MAX_MANIFEST_BYTES, ManifestState, Shard, ShardState, shard_name,
};
pub use opening::FileKind;
pub use read::UnitFlaw;
pub use repair::{Repaired, Scope, repair, repair_with};
pub use striping::{
    Encoding, EncodingId, EncodingParams, MAX_FILE_BYTES, MAX_STRIPE_BYTES, Striping,
};
pub use verify::{BadUnit, BadUnits, Findings, Inconsistent, MAX_NAMED, verify, verify_with};
pub use workers::{MAX_JOBS, Progress, default_jobs};
