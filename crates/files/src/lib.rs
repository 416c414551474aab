//! Files kept as the shards of an erasure code: `shard.0` to `shard.N-1`, and a manifest.
//!
//! Any k of the shards are enough to have the file back, and losing or damaging one is mended by
//! reading no more than the code's repair plan names. The promises:
//!
//! - **Never wrong bytes silently.** Every block that is read is compared with its checksum, which
//!   also says where the block belongs. What is bad is rebuilt from other shards, and what cannot
//!   be rebuilt is an error with the place and the reason. A decoded file is compared as a whole,
//!   too.
//! - **No shard is special, and neither is the manifest.** Each shard's header says all that the
//!   manifest says; the manifest is there for people, and to arbitrate when shards are mixed up.
//! - **Nothing looks whole that is not.** Names and headers come last, after the data is stable.
//! - **Memory is bounded**: one stripe for each thread, for files of any length and for streams.
//! - **Nothing that a folder holds is believed.** Links are not followed, only regular files are
//!   opened, and lengths that a header or manifest claims count as far as the files reach.
//!
//! `docs/formats.md` shows the files byte by byte.
//!
//! | module     | idea |
//! |------------|------|
//! | `striping` | how a file is cut into stripes, units and blocks |
//! | `manifest`, `header`, `record` | the three things that are stored beside units |
//! | `folder`   | which files are there, and what each of them is |
//! | `stripe`   | the memory of one stripe |
//! | `read`     | reading a stripe: checks, and plans around what is bad |
//! | `opening`  | no link is followed, and only regular files are opened |
//! | `output`   | files that appear when they are complete |
//! | `workers`  | threads, turns, progress |
//! | `encode`, `decode`, `repair`, `verify` | the jobs |
//! | [`fuzz`]   | what must hold of folders, whatever lies in them |

mod checksum;
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

pub use decode::{Decoded, Output, decode};
pub use encode::{Input, encode};
pub use error::Error;
pub use folder::{
    Folder, MANIFEST_FILE, MAX_MANIFEST_BYTES, ManifestState, Shard, ShardState, shard_name,
};
pub use opening::FileKind;
pub use read::UnitFlaw;
pub use repair::{Repaired, Scope, repair};
pub use striping::{Description, Encoding, EncodingId, MAX_FILE_BYTES, MAX_STRIPE_BYTES, Striping};
pub use verify::{BadUnit, BadUnits, Findings, Inconsistent, MAX_NAMED, verify};
pub use workers::{MAX_JOBS, Progress, default_jobs};
