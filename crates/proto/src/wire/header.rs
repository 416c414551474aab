//! The fixed start of a message.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::decoder::sealed::Parts;
use super::{
    WIRE_HEADER_BYTES, WIRE_VERSION, WIRE_VERSION_BASIC, WireError, WireErrorKind, check_len,
};
use crate::crc32c;

pub(super) const MAGIC: [u8; 4] = *b"FSTW";

/// The header as on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    pub(super) magic: [u8; 4],
    pub(super) version: U16,
    pub(super) direction: u8,
    pub(super) op: u8,
    pub(super) tag: U64,
    pub(super) slots_free: U32,
    pub(super) body_len: U32,
    pub(super) payload_len: U32,
    pub(super) body_crc: U32,
    pub(super) payload_crc: U32,
    pub(super) header_crc: U32,
}

/// Bytes of the header that its checksum covers.
pub(super) const COVERED_BYTES: usize = WIRE_HEADER_BYTES - 4;

impl Header {
    pub(super) fn body_len(&self) -> usize {
        self.body_len.get() as usize
    }

    pub(super) fn payload_len(&self) -> usize {
        self.payload_len.get() as usize
    }

    /// Checks that the message has a version that its operation may have, and a payload that it
    /// may have.
    pub(super) fn check_op<M: Parts>(&self) -> Result<(), WireError> {
        let version = self.version.get();
        if !M::has_version(self.op, version) {
            let value = u64::from(self.op);
            return Err(WireErrorKind::Value { what: "the operation in this version", value }.at(7));
        }
        let payload_max = M::payload_bytes_max(self.op, version);
        check_len("payload", self.payload_len(), payload_max).map_err(|kind| kind.at(24))
    }

    /// Runs every check that needs no body.
    pub(super) fn check(
        &self,
        direction: u8,
        body_max: usize,
        payload_max: usize,
    ) -> Result<(), WireError> {
        if self.magic != MAGIC {
            return Err(WireErrorKind::Magic(self.magic).at(0));
        }
        let (found, computed) = (self.header_crc.get(), crc32c(&self.as_bytes()[..COVERED_BYTES]));
        if found != computed {
            let what = "header";
            return Err(WireErrorKind::Checksum { what, found, computed }.at(COVERED_BYTES));
        }
        let version = self.version.get();
        if !(WIRE_VERSION_BASIC..=WIRE_VERSION).contains(&version) {
            return Err(WireErrorKind::Version { found: version, known: WIRE_VERSION }.at(4));
        }
        if self.direction != direction {
            let value = u64::from(self.direction);
            return Err(WireErrorKind::Value { what: "the direction", value }.at(6));
        }
        check_len("body", self.body_len(), body_max).map_err(|kind| kind.at(20))?;
        check_len("payload", self.payload_len(), payload_max).map_err(|kind| kind.at(24))
    }
}
