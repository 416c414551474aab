//! LUKS1 and LUKS2: headers, key slots, and the cipher of sectors. No I/O.
//!
//! An encrypted device begins with a header, and its data follow at an offset that the header
//! names:
//!
//! ```text
//!  LUKS1   | header  | key material of slots 0..7      | free | data, sectors of 512 bytes
//!          0         4 KiB                                    payload offset
//!
//!  LUKS2   | header | JSON | header | JSON | key material | free | data, sectors of 512 to 4096
//!          0 first copy    second copy                           offset of the segment
//! ```
//!
//! The data is encrypted with a random *volume key*. Each key slot has a copy of the volume key:
//! split into 4000 stripes ([`split`]) and encrypted with a key that is derived from a passphrase
//! ([`kdf`]). A digest of the volume key shows whether a passphrase was the right one.
//!
//! The caller reads bytes and gives them in, in three steps:
//!
//! 1. [`probe`] says, from the first 4 KiB, how many bytes of the device the header has.
//! 2. [`Header::parse`] checks these bytes. [`Header::materials`] names the ranges of key material.
//! 3. [`Header::unlock`] tries the slots. It takes seconds, and up to [`kdf::MEMORY_MAX_KIB`] of
//!    memory, because deriving keys is made expensive on purpose.
//!
//! [`format`](mod@format) makes a header. The layouts are those of the LUKS1 specification 1.2.3
//! and the LUKS2 specification 1.1 (both of the cryptsetup project), restricted to what Ceph's
//! librbd writes and reads: AES in XTS mode with `plain64` sector numbers.
//!
//! # Hostile bytes
//!
//! The party that stores the device chooses the header. So lengths, counts and the cost of deriving
//! keys have bounds. What is beyond them is refused with its name. A header gives no secret away,
//! and a changed header can do no more than keep the owner out: the passphrase opens the slots only
//! with the volume key that they were made for.
//!
//! # Secrets
//!
//! Passphrases, derived keys and volume keys are wiped when they are dropped. No type of this crate
//! prints one.

pub mod error;
pub mod format;
pub mod fuzz;
pub mod header;
pub mod kdf;
mod luks1;
mod luks2;
mod metadata;
mod passphrase;
mod sectors;
pub mod split;

pub use error::LuksError;
pub use header::{Header, Material, PREFIX_BYTES, Probe, Segment, Unlocked, probe};
pub use passphrase::{PASSPHRASE_BYTES_MAX, Passphrase};
pub use sectors::SectorCipher;
