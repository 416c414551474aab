//! Frames of messenger 2.1 in mode crc, read in place and written without a message in between.
//!
//! A handshake goes through [`fieldstone_rados::msgr::Connection`]. When it has ended in mode crc,
//! and before the client has sent its first message, the connection of an OSD goes on here: a
//! client waits for the end of the handshake before it sends one. The module `msgr` of `rados`
//! describes the format of frames.
//!
//! Any fault in a frame ends the connection ([`Broken`]).

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use fieldstone_buf::AlignedBuf;
use fieldstone_cluster_model::objects::{BlockSums, PlainData};
use fieldstone_rados::message::Message;
use fieldstone_rados::msgr::MAX_FRAME_BYTES;

const PREAMBLE_BYTES: usize = 32;
/// What a preamble's sum covers.
const COVERED_BYTES: usize = 28;
const HEADER_BYTES: usize = 41;
const EPILOGUE_BYTES: usize = 13;
const SEGMENTS: usize = 4;

const MESSAGE: u8 = 17;
const KEEPALIVE: u8 = 18;
const KEEPALIVE_ANSWER: u8 = 19;
const ACK: u8 = 20;

/// The status of a whole frame, and the mask of its bits.
const COMPLETE: u8 = 0x0e;
const STATUS_MASK: u8 = 0x0f;

/// Size of an output buffer.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of an object from this length on are sent from where they are; fewer are copied.
const SHARE_BYTES_MIN: usize = 16 << 10;

/// The connection has to be closed, for this reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

/// A message, in the bytes that have come.
pub(crate) struct Incoming<'a> {
    pub(crate) tid: u64,
    pub(crate) kind: u16,
    pub(crate) priority: u16,
    pub(crate) version: u16,
    pub(crate) compat_version: u16,
    pub(crate) front: &'a [u8],
    pub(crate) data: &'a [u8],
    /// The sums of the data.
    pub(crate) sums: BlockSums,
}

impl Incoming<'_> {
    /// The message, with bytes of its own.
    pub(crate) fn to_message(&self) -> Message {
        let data = (!self.data.is_empty()).then(|| Bytes::copy_from_slice(self.data));
        Message {
            kind: self.kind,
            tid: self.tid,
            priority: self.priority,
            version: self.version,
            compat_version: self.compat_version,
            front: Bytes::copy_from_slice(self.front),
            middle: Bytes::new(),
            data: data.into_iter().collect(),
        }
    }
}

/// The sum of bytes, as a frame has it.
fn sum(bytes: &[u8]) -> u32 {
    !(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32)
}

fn preamble_sum(covered: &[u8]) -> u32 {
    // It begins with zero, and `sum` with ones: they differ by what becomes of ones.
    const ONES_MOVED_ON: u32 = ones_over_zeros(COVERED_BYTES);
    sum(covered) ^ ONES_MOVED_ON
}

const fn ones_over_zeros(bytes: usize) -> u32 {
    let (mut sum, mut bit) = (u32::MAX, 0);
    while bit < bytes * 8 {
        sum = sum >> 1 ^ (if sum & 1 == 1 { 0x82f6_3b78 } else { 0 });
        bit += 1;
    }
    sum
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The start of a frame.
#[derive(Clone, Copy)]
struct Preamble {
    tag: u8,
    segments: usize,
    lens: [usize; SEGMENTS],
}

impl Preamble {
    fn read(bytes: &[u8]) -> Result<Self, Broken> {
        if u32_at(bytes, COVERED_BYTES) != preamble_sum(&bytes[..COVERED_BYTES]) {
            return Err(Broken("the checksum of a preamble is wrong"));
        }
        let (tag, segments) = (bytes[0], usize::from(bytes[1]));
        let most = if tag == MESSAGE { SEGMENTS } else { 1 };
        if segments == 0 || segments > most || bytes[26] != 0 {
            return Err(Broken("a frame has a wrong number of segments"));
        }
        let mut lens = [0; SEGMENTS];
        for (index, len) in lens.iter_mut().enumerate().take(segments) {
            *len = u32_at(bytes, 2 + 6 * index) as usize;
        }
        if lens.iter().map(|&len| len as u64).sum::<u64>() > MAX_FRAME_BYTES {
            return Err(Broken("a frame is too long"));
        }
        Ok(Self { tag, segments, lens })
    }

    /// The length of the frame.
    fn frame_bytes(&self) -> usize {
        let first = if self.lens[0] > 0 { self.lens[0] + 4 } else { 0 };
        let rest: usize = self.lens[1..].iter().sum();
        let end = if self.segments > 1 { EPILOGUE_BYTES } else { 0 };
        PREAMBLE_BYTES + first + rest + end
    }
}

/// The reading side of a connection.
#[derive(Default)]
pub(crate) struct Reader {
    /// The start of a frame whose end has not come.
    carry: Vec<u8>,
    newest_seq: u64,
}

/// What a frame asks for.
pub(crate) enum Asked<'a> {
    Message(Incoming<'a>),
    /// A sign of life, with the client's time.
    Keepalive([u8; 8]),
}

impl Reader {
    /// Handles all frames that have come.
    pub(crate) fn read(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Asked<'_>),
    ) -> Result<(), Broken> {
        while !self.carry.is_empty() {
            if !self.complete(&mut bytes)? {
                return Ok(());
            }
            let frame = std::mem::take(&mut self.carry);
            let preamble = Preamble::read(&frame)?;
            self.frame(preamble, &frame, &mut each)?;
            // The memory is used again, unless it is large.
            if frame.capacity() <= CHUNK_BYTES {
                self.carry = frame;
                self.carry.clear();
            }
        }
        while bytes.len() >= PREAMBLE_BYTES {
            let preamble = Preamble::read(bytes)?;
            let Some((frame, rest)) = bytes.split_at_checked(preamble.frame_bytes()) else { break };
            self.frame(preamble, frame, &mut each)?;
            bytes = rest;
        }
        self.carry.extend_from_slice(bytes);
        Ok(())
    }

    /// Moves bytes to the frame that has begun. True if it is whole then.
    fn complete(&mut self, bytes: &mut &[u8]) -> Result<bool, Broken> {
        let mut wanted = PREAMBLE_BYTES;
        loop {
            let missing = wanted.saturating_sub(self.carry.len());
            let (now, later) = bytes.split_at(missing.min(bytes.len()));
            self.carry.extend_from_slice(now);
            *bytes = later;
            if self.carry.len() < wanted {
                return Ok(false);
            }
            let whole = Preamble::read(&self.carry)?.frame_bytes();
            if wanted == whole {
                return Ok(true);
            }
            wanted = whole;
        }
    }

    fn frame(
        &mut self,
        preamble: Preamble,
        frame: &[u8],
        each: &mut impl FnMut(Asked<'_>),
    ) -> Result<(), Broken> {
        let lens = preamble.lens;
        let (first, rest) = frame[PREAMBLE_BYTES..].split_at(lens[0]);
        if lens[0] > 0 && u32_at(rest, 0) != sum(first) {
            return Err(Broken("the checksum of a segment is wrong"));
        }
        match preamble.tag {
            MESSAGE => {}
            KEEPALIVE => {
                let time = first.try_into().map_err(|_| Broken("a sign of life has no time"))?;
                each(Asked::Keepalive(time));
                return Ok(());
            }
            KEEPALIVE_ANSWER | ACK => return Ok(()),
            _ => return Err(Broken("a frame comes at the wrong step")),
        }
        if first.len() != HEADER_BYTES || preamble.segments < 2 {
            return Err(Broken("the header of a message has a wrong length"));
        }
        let body = &rest[4..];
        let (front, body) = body.split_at(lens[1]);
        let (middle, body) = body.split_at(lens[2]);
        let (data, epilogue) = body.split_at(lens[3]);
        let sums = BlockSums::of(data);
        let is_right = u32_at(epilogue, 1) == sum(front)
            && (preamble.segments < 3 || u32_at(epilogue, 5) == sum(middle))
            && (preamble.segments < 4 || u32_at(epilogue, 9) == sums.whole);
        if !is_right {
            return Err(Broken("the checksum of a segment is wrong"));
        }
        if epilogue[0] & STATUS_MASK != COMPLETE {
            // The client has given this frame up.
            return Ok(());
        }
        let seq = u64_at(first, 0);
        if seq <= self.newest_seq {
            return Err(Broken("a message comes out of order"));
        }
        self.newest_seq = seq;
        each(Asked::Message(Incoming {
            tid: u64_at(first, 8),
            kind: u16_at(first, 16),
            priority: u16_at(first, 18),
            version: u16_at(first, 20),
            compat_version: u16_at(first, 37),
            front,
            data,
            sums,
        }));
        Ok(())
    }
}

/// The header of a message to a client.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) tid: u64,
    pub(crate) kind: u16,
    pub(crate) priority: u16,
    pub(crate) version: u16,
    pub(crate) compat_version: u16,
}

/// The writing side of a connection.
#[derive(Default)]
pub(crate) struct Writer {
    done: Vec<Bytes>,
    chunk: Option<AlignedBuf>,
    used: usize,
    newest_seq: u64,
}

impl Writer {
    /// Appends all output to `output`.
    pub(crate) fn take(&mut self, output: &mut Vec<Bytes>) {
        self.cut();
        output.append(&mut self.done);
    }

    fn cut(&mut self) {
        let used = std::mem::take(&mut self.used);
        if used > 0
            && let Some(mut chunk) = self.chunk.take()
        {
            chunk.truncate(used);
            self.done.push(chunk.freeze());
        }
    }

    /// Copies bytes.
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let chunk = self.chunk.get_or_insert_with(|| AlignedBuf::stale(CHUNK_BYTES));
            let room = &mut chunk[self.used..];
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.used += now.len();
            bytes = later;
            if self.used == CHUNK_BYTES {
                self.cut();
            }
        }
    }

    fn start(&mut self, header: Header, front: &[u8], data_bytes: usize) {
        self.newest_seq += 1;
        let lens = [HEADER_BYTES, front.len(), 0, data_bytes];
        let segments = if data_bytes > 0 { 4 } else { 2 };
        let mut start = [0; PREAMBLE_BYTES + HEADER_BYTES + 4];
        preamble(&mut start, MESSAGE, segments, lens);
        let at = PREAMBLE_BYTES;
        start[at..at + 8].copy_from_slice(&self.newest_seq.to_le_bytes());
        start[at + 8..at + 16].copy_from_slice(&header.tid.to_le_bytes());
        start[at + 16..at + 18].copy_from_slice(&header.kind.to_le_bytes());
        start[at + 18..at + 20].copy_from_slice(&header.priority.to_le_bytes());
        start[at + 20..at + 22].copy_from_slice(&header.version.to_le_bytes());
        start[at + 36] = 1;
        start[at + 37..at + 39].copy_from_slice(&header.compat_version.to_le_bytes());
        let sum = sum(&start[at..at + HEADER_BYTES]);
        start[at + HEADER_BYTES..].copy_from_slice(&sum.to_le_bytes());
        self.put(&start);
        self.put(front);
    }

    fn end(&mut self, front: &[u8], data_bytes: usize, data_sum: u32) {
        let mut end = [0; EPILOGUE_BYTES];
        end[0] = COMPLETE;
        end[1..5].copy_from_slice(&sum(front).to_le_bytes());
        if data_bytes > 0 {
            end[5..9].copy_from_slice(&sum(&[]).to_le_bytes());
            end[9..].copy_from_slice(&data_sum.to_le_bytes());
        }
        self.put(&end);
    }

    /// Writes a message whose data are those of the operations of a plain request.
    pub(crate) fn plain(&mut self, header: Header, front: &[u8], data: &[PlainData]) {
        let bytes: usize = data.iter().map(PlainData::len).sum();
        self.start(header, front, bytes);
        for one in data {
            self.put(&one.prefix);
            for part in &one.parts {
                if part.as_ref().len() < SHARE_BYTES_MIN {
                    self.put(part.as_ref());
                } else {
                    self.cut();
                    self.done.push(part.clone().into());
                }
            }
        }
        self.end(front, bytes, data_sum(data));
    }

    /// Writes any message.
    pub(crate) fn message(&mut self, message: &Message) {
        let Message { kind, tid, priority, version, compat_version, .. } = *message;
        let header = Header { tid, kind, priority, version, compat_version };
        let bytes = message.data_bytes();
        self.start(header, &message.front, bytes);
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        for part in &message.data {
            digest.update(part);
            if part.len() < SHARE_BYTES_MIN {
                self.put(part);
            } else {
                self.cut();
                self.done.push(part.clone());
            }
        }
        self.end(&message.front, bytes, !(digest.finalize() as u32));
    }

    /// Answers a sign of life.
    pub(crate) fn keepalive_answer(&mut self, time: [u8; 8]) {
        let mut frame = [0; PREAMBLE_BYTES + 12];
        preamble(&mut frame, KEEPALIVE_ANSWER, 1, [8, 0, 0, 0]);
        frame[PREAMBLE_BYTES..PREAMBLE_BYTES + 8].copy_from_slice(&time);
        frame[PREAMBLE_BYTES + 8..].copy_from_slice(&sum(&time).to_le_bytes());
        self.put(&frame);
    }
}

fn preamble(into: &mut [u8], tag: u8, segments: usize, lens: [usize; SEGMENTS]) {
    (into[0], into[1]) = (tag, segments as u8);
    for (index, len) in lens.into_iter().enumerate().take(segments) {
        let at = 2 + 6 * index;
        let align: u16 = if index + 1 == SEGMENTS { 4096 } else { 8 };
        into[at..at + 4].copy_from_slice(&(len as u32).to_le_bytes());
        into[at + 4..at + 6].copy_from_slice(&align.to_le_bytes());
    }
    let sum = preamble_sum(&into[..COVERED_BYTES]);
    into[COVERED_BYTES..PREAMBLE_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// The sum of the data of several operations.
fn data_sum(data: &[PlainData]) -> u32 {
    if let [PlainData { sum: Some(sum), .. }] = data {
        return *sum;
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for one in data {
        digest.update(&one.prefix);
        one.parts().for_each(|part| digest.update(part));
    }
    !(digest.finalize() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tid: u64, data: usize) -> Message {
        let data = (data > 0).then(|| Bytes::from(vec![tid as u8; data]));
        Message {
            kind: 42,
            tid,
            priority: 63,
            version: 8,
            compat_version: 3,
            front: Bytes::from(vec![7; 180]),
            middle: Bytes::new(),
            data: data.into_iter().collect(),
        }
    }

    fn written(messages: &[Message]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.keepalive_answer([1; 8]);
        messages.iter().for_each(|message| writer.message(message));
        let mut output = Vec::new();
        writer.take(&mut output);
        output.concat()
    }

    fn read_in(chunks: impl Iterator<Item = Vec<u8>>) -> Result<Vec<Message>, Broken> {
        let (mut reader, mut messages) = (Reader::default(), Vec::new());
        for chunk in chunks {
            reader.read(&chunk, |asked| {
                if let Asked::Message(message) = asked {
                    messages.push(message.to_message());
                }
            })?;
        }
        Ok(messages)
    }

    #[test]
    fn messages_are_read_however_they_are_cut() {
        let messages =
            [message(1, 0), message(2, 4096), message(3, 5), message(4, 100_000), message(5, 0)];
        let bytes = written(&messages);
        for len in [1, 31, 32, 33, 100, 4096, 70_000, bytes.len()] {
            let read = read_in(bytes.chunks(len).map(<[u8]>::to_vec));
            assert!(read.as_deref() == Ok(&messages), "in pieces of {len}");
        }
    }

    #[test]
    fn a_flipped_bit_never_becomes_a_message() {
        let messages = [message(1, 40), message(2, 0)];
        let bytes = written(&messages);
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The upper bits of a status say nothing, nor do sums of segments that are not there.
            if let Ok(read) = read_in(std::iter::once(bytes)) {
                let is_right = read.iter().all(|message| messages.contains(message));
                assert!(is_right, "bit {bit}");
            }
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_at_its_start() {
        let mut start = [0; PREAMBLE_BYTES];
        preamble(&mut start, MESSAGE, 4, [41, 10, 0, MAX_FRAME_BYTES as usize]);
        assert!(read_in(std::iter::once(start.to_vec())).is_err());
    }
}
