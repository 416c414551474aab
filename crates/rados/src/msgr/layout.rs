//! Lengths and values that the reader and the writer of frames share.

/// The length of a segment's checksum.
pub(super) const CRC_BYTES: usize = 4;
/// The end of a frame with several segments, in mode crc: u8 status, three checksums.
pub(super) const CRC_EPILOGUE_BYTES: usize = 1 + 3 * CRC_BYTES;
/// The same in secure mode: u8 status, zeros.
pub(super) const SECURE_EPILOGUE_BYTES: usize = 16;
/// The part of the first segment that is sealed together with the preamble.
pub(super) const INLINE_BYTES: usize = 48;

/// The bits of the status that say whether the sender aborted the frame, and their two values.
pub(super) const LATE_MASK: u8 = 0x0f;
pub(super) const LATE_COMPLETE: u8 = 0x0e;
pub(super) const LATE_ABORTED: u8 = 0x01;

/// The length of a segment in secure mode: whole blocks of the cipher.
pub(super) fn padded(len: usize) -> usize {
    len.next_multiple_of(16)
}
