//! Ceph's encoding of values: little-endian integers, lengths in front of texts and lists, and
//! *sections*.
//!
//! A section is one byte of version, one byte with the lowest version that a reader must know, four
//! bytes of length, then the fields. A newer writer adds fields at the end. So a reader takes the
//! fields that it knows, and passes over the rest.
//!
//! **Hostile bytes** give a [`DecodeError`]. [`Decoder::count`] accepts a count only if the bytes
//! that are left can hold that many elements, so no length field of a peer commands an allocation.

mod decoder;
mod encoder;
mod types;

pub use decoder::{DecodeError, Decoder, Fault, Section};
pub use encoder::Encoder;
pub use types::{
    AddressKind, Addresses, EntityAddress, EntityKind, EntityName, Time, decode_pg, encode_pg,
};
