//! The first segment of a message's frame.

use super::ConnectionError;
use crate::message::Message;

/// The length of a header.
pub(super) const HEADER_BYTES: usize = 41;

/// The flag of a message that is whole.
const COMPLETE: u8 = 1;

/// A header: u64 sequence number, u64 tid, u16 kind, u16 priority, u16 version, u32 padding in
/// front of the data, u16 offset of the data, u64 acknowledged sequence number, u8 flags, u16
/// lowest version of readers, u16 zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) seq: u64,
    pub(super) tid: u64,
    pub(super) kind: u16,
    pub(super) priority: u16,
    pub(super) version: u16,
    pub(super) ack_seq: u64,
    pub(super) compat_version: u16,
}

impl Header {
    /// The header of a message.
    pub(super) fn of(message: &Message, seq: u64, ack_seq: u64) -> Self {
        let Message { kind, tid, priority, version, compat_version, .. } = *message;
        Self { seq, tid, kind, priority, version, ack_seq, compat_version }
    }

    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tid.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&self.priority.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.version.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.ack_seq.to_le_bytes());
        bytes[36] = COMPLETE;
        bytes[37..39].copy_from_slice(&self.compat_version.to_le_bytes());
        bytes
    }

    pub(super) fn decode(segment: &[u8]) -> Result<Self, ConnectionError> {
        let Ok(bytes) = <&[u8; HEADER_BYTES]>::try_from(segment) else {
            let what = format!("the header of a message has {} bytes", segment.len());
            return Err(ConnectionError::Protocol(what));
        };
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| {
            let mut long = [0; 8];
            long.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(long)
        };
        if bytes[22..26] != [0; 4] {
            return Err(ConnectionError::Protocol("the data of a message has padding".into()));
        }
        Ok(Self {
            seq: long(0),
            tid: long(8),
            kind: short(16),
            priority: short(18),
            version: short(20),
            ack_seq: long(28),
            compat_version: short(37),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_its_place() {
        let header = Header {
            seq: 0x0807_0605_0403_0201,
            tid: 0x1817_1615_1413_1211,
            kind: 0x2221,
            priority: 0x2423,
            version: 0x2625,
            ack_seq: 0x3837_3635_3433_3231,
            compat_version: 0x4241,
        };
        let bytes = header.encode();
        let golden = b"\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x18\
            \x21\x22\x23\x24\x25\x26\0\0\0\0\0\0\x31\x32\x33\x34\x35\x36\x37\x38\x01\x41\x42\0\0";
        assert_eq!(&bytes, golden);
        assert_eq!(Header::decode(&bytes), Ok(header));
        assert!(Header::decode(&bytes[..40]).is_err());
        assert!(Header::decode(&[bytes.as_slice(), &[0]].concat()).is_err());
        let mut padding = bytes;
        padding[25] = 1;
        assert!(Header::decode(&padding).is_err());
    }
}
