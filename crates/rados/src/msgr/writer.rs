//! Bytes from frames.
//!
//! The small parts of all frames that leave together share one buffer. In mode crc a part longer
//! than [`COPY_BYTES_MAX`] is passed on as it is, and the shared buffer is cut there.

use bytes::{BufMut, Bytes, BytesMut};

use super::checksum;
use super::cipher::{Cipher, SEAL_BYTES};
use super::header::HEADER_BYTES;
use super::layout::{
    CRC_EPILOGUE_BYTES, INLINE_BYTES, LATE_COMPLETE, SECURE_EPILOGUE_BYTES, padded,
};
use super::preamble::{PREAMBLE_BYTES, Preamble};
use super::tag::Tag;
use crate::message::Message;

/// Parts up to this length are copied: that costs less than one more element of a gathering write.
pub(super) const COPY_BYTES_MAX: usize = 512;

/// The size of the shared buffer. It is used again once the transport has let go of its parts.
const SMALL_BYTES: usize = 8 << 10;

/// Writes frames.
#[derive(Default)]
pub(super) struct FrameWriter {
    /// Whole output before `small`.
    done: Vec<Bytes>,
    small: BytesMut,
    /// Seals frames, in secure mode.
    pub(super) cipher: Option<Cipher>,
    /// All bytes so far, while the handshake needs them.
    pub(super) record: Option<Vec<u8>>,
}

impl FrameWriter {
    pub(super) fn new() -> Self {
        Self { record: Some(Vec::new()), ..Self::default() }
    }

    /// Bytes outside frames: the banner.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        let start = self.small.len();
        self.small.extend_from_slice(bytes);
        self.note(start);
    }

    /// A frame with one segment.
    pub(super) fn control(&mut self, tag: Tag, payload: &[u8]) {
        let len = u32::try_from(payload.len()).expect("payloads of the handshake are short");
        let preamble = Preamble::new(tag, [len, 0, 0, 0]);
        if self.cipher.is_some() {
            self.reserve(secure_first_bytes(payload.len()));
            self.secure_first(preamble, payload);
            return;
        }
        self.reserve(PREAMBLE_BYTES + payload.len() + 4);
        let start = self.small.len();
        self.crc_first(preamble, payload);
        self.note(start);
    }

    /// A frame with a message. Its length is within the limit of frames.
    pub(super) fn message(&mut self, header: &[u8; HEADER_BYTES], message: &Message) {
        let len = |bytes: usize| u32::try_from(bytes).expect("the sender checked the length");
        let lens = [
            HEADER_BYTES as u32,
            len(message.front.len()),
            len(message.middle.len()),
            len(message.data_bytes()),
        ];
        let preamble = Preamble::new(Tag::Message, lens);
        if self.cipher.is_some() {
            self.secure_message(preamble, header, message);
        } else {
            self.crc_message(preamble, header, message);
        }
    }

    /// Appends all output to `output`.
    pub(super) fn take(&mut self, output: &mut Vec<Bytes>) {
        self.cut();
        output.append(&mut self.done);
    }

    /// True if there is no output.
    pub(super) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.small.is_empty()
    }

    /// Forgets all output.
    pub(super) fn clear(&mut self) {
        self.done.clear();
        self.small.clear();
    }

    fn note(&mut self, start: usize) {
        if let Some(record) = &mut self.record {
            record.extend_from_slice(&self.small[start..]);
        }
    }

    /// Ends the part of the shared buffer that is filled.
    fn cut(&mut self) {
        if !self.small.is_empty() {
            self.done.push(self.small.split().freeze());
        }
    }

    /// Makes room for `bytes` in the shared buffer, without a copy of what is there.
    fn reserve(&mut self, bytes: usize) {
        if self.small.capacity() - self.small.len() < bytes {
            self.cut();
            self.small.reserve(bytes.max(SMALL_BYTES));
        }
    }

    fn crc_first(&mut self, preamble: Preamble, first: &[u8]) {
        self.small.extend_from_slice(&preamble.encode());
        if !first.is_empty() {
            self.small.extend_from_slice(first);
            self.small.put_u32_le(checksum::segment(first));
        }
    }

    fn crc_message(&mut self, preamble: Preamble, header: &[u8], message: &Message) {
        self.reserve(PREAMBLE_BYTES + HEADER_BYTES + 4 + COPY_BYTES_MAX + CRC_EPILOGUE_BYTES);
        self.crc_first(preamble, header);
        if preamble.segments == 1 {
            return;
        }
        let sums = [
            checksum::segment(&message.front),
            checksum::segment(&message.middle),
            checksum::pieces(&message.data),
        ];
        self.part(&message.front);
        self.part(&message.middle);
        message.data.iter().for_each(|part| self.part(part));
        self.reserve(CRC_EPILOGUE_BYTES);
        self.small.put_u8(LATE_COMPLETE);
        for (index, sum) in sums.into_iter().enumerate() {
            // Segments that a frame has not have a sum of zero.
            self.small.put_u32_le(if index + 1 < preamble.segments { sum } else { 0 });
        }
    }

    fn part(&mut self, bytes: &Bytes) {
        if bytes.len() > COPY_BYTES_MAX {
            self.cut();
            self.done.push(bytes.clone());
        } else {
            self.reserve(bytes.len());
            self.small.extend_from_slice(bytes);
        }
    }

    fn secure_first(&mut self, preamble: Preamble, first: &[u8]) {
        let (inline, more) = first.split_at(first.len().min(INLINE_BYTES));
        let start = self.small.len();
        self.small.extend_from_slice(&preamble.encode());
        self.small.extend_from_slice(inline);
        self.small.put_bytes(0, INLINE_BYTES - inline.len());
        self.seal(start);
        if !more.is_empty() {
            let start = self.small.len();
            self.padded(more);
            self.seal(start);
        }
    }

    fn secure_message(&mut self, preamble: Preamble, header: &[u8], message: &Message) {
        let rest: usize = preamble.lens[1..].iter().map(|&len| padded(len as usize)).sum();
        let rest = rest + SECURE_EPILOGUE_BYTES + SEAL_BYTES;
        self.reserve(secure_first_bytes(header.len()) + rest);
        self.secure_first(preamble, header);
        if preamble.segments == 1 {
            return;
        }
        let start = self.small.len();
        self.padded(&message.front);
        self.padded(&message.middle);
        message.data.iter().for_each(|part| self.small.extend_from_slice(part));
        let data = preamble.lens[3] as usize;
        self.small.put_bytes(0, padded(data) - data);
        self.small.put_u8(LATE_COMPLETE);
        self.small.put_bytes(0, SECURE_EPILOGUE_BYTES - 1);
        self.seal(start);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.small.extend_from_slice(bytes);
        self.small.put_bytes(0, padded(bytes.len()) - bytes.len());
    }

    fn seal(&mut self, start: usize) {
        if let Some(cipher) = &mut self.cipher {
            let seal = cipher.seal(&mut self.small[start..]);
            self.small.extend_from_slice(&seal);
        }
    }
}

/// The most that a preamble and a first segment take in secure mode.
fn secure_first_bytes(len: usize) -> usize {
    PREAMBLE_BYTES + INLINE_BYTES + padded(len) + 2 * SEAL_BYTES
}
