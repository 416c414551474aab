//! Frames from bytes.

use bytes::{Bytes, BytesMut};

use super::checksum;
use super::cipher::{Cipher, SEAL_BYTES};
use super::input::Input;
use super::layout::{
    CRC_BYTES, CRC_EPILOGUE_BYTES, INLINE_BYTES, LATE_ABORTED, LATE_COMPLETE, LATE_MASK,
    SECURE_EPILOGUE_BYTES, padded,
};
use super::preamble::{PREAMBLE_BYTES, Preamble};
use super::tag::Tag;
use super::{ConnectionError, MAX_HANDSHAKE_FRAME_BYTES, MAX_SEGMENTS};

/// A frame whose checksums or seals are right.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) tag: Tag,
    /// Segments that it has not are empty.
    pub(super) segments: [Bytes; MAX_SEGMENTS],
}

/// Reads frames from the bytes of a transport.
pub(super) struct FrameReader {
    pub(super) input: Input,
    /// Opens frames, in secure mode.
    pub(super) cipher: Option<Cipher>,
    /// The longest frame that is accepted.
    pub(super) limit: u64,
    part: FramePart,
}

/// What comes next.
enum FramePart {
    Preamble,
    First {
        preamble: Preamble,
        /// In secure mode, the segment's start.
        inline: Bytes,
    },
    /// The segments behind the first, one by one; in secure mode all in one.
    Rest {
        preamble: Preamble,
        segments: [Bytes; MAX_SEGMENTS],
        /// The segment that comes next.
        next: usize,
    },
}

impl FrameReader {
    pub(super) fn new() -> Self {
        let mut input = Input::default();
        input.record = Some(Vec::new());
        let limit = MAX_HANDSHAKE_FRAME_BYTES;
        Self { input, cipher: None, limit, part: FramePart::Preamble }
    }

    /// The next frame, if all of it is there. A frame that its sender aborted is passed over.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, ConnectionError> {
        loop {
            let part = std::mem::replace(&mut self.part, FramePart::Preamble);
            let step = match part {
                FramePart::Preamble => self.preamble()?,
                FramePart::First { preamble, inline } => self.first(preamble, inline)?,
                FramePart::Rest { preamble, segments, next } => {
                    self.rest(preamble, segments, next)?
                }
            };
            match step {
                Step::Wait(part) => {
                    self.part = part;
                    return Ok(None);
                }
                Step::Go(part) => self.part = part,
                Step::Done(frame) => return Ok(Some(frame)),
            }
        }
    }

    fn preamble(&mut self) -> Result<Step, ConnectionError> {
        let Some(cipher) = &mut self.cipher else {
            let Some(bytes) = self.input.take_array::<PREAMBLE_BYTES>() else {
                return Ok(Step::Wait(FramePart::Preamble));
            };
            let preamble = Preamble::decode(&bytes, self.limit)?;
            return Ok(Step::Go(FramePart::First { preamble, inline: Bytes::new() }));
        };
        const BLOCK_BYTES: usize = PREAMBLE_BYTES + INLINE_BYTES;
        let Some(sealed) = self.input.take_array::<{ BLOCK_BYTES + SEAL_BYTES }>() else {
            return Ok(Step::Wait(FramePart::Preamble));
        };
        let mut block = [0; BLOCK_BYTES];
        let mut seal = [0; SEAL_BYTES];
        block.copy_from_slice(&sealed[..BLOCK_BYTES]);
        seal.copy_from_slice(&sealed[BLOCK_BYTES..]);
        if !cipher.open(&mut block, seal) {
            return Err(wrong("the seal of a preamble"));
        }
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes.copy_from_slice(&block[..PREAMBLE_BYTES]);
        let preamble = Preamble::decode(&bytes, self.limit)?;
        let inline = Bytes::copy_from_slice(&block[PREAMBLE_BYTES..]);
        Ok(Step::Go(FramePart::First { preamble, inline }))
    }

    fn first(&mut self, preamble: Preamble, mut inline: Bytes) -> Result<Step, ConnectionError> {
        let len = preamble.lens[0] as usize;
        let segment = if let Some(cipher) = &mut self.cipher {
            let more = padded(len).saturating_sub(INLINE_BYTES);
            if more > 0 {
                let Some(sealed) = self.input.take(more + SEAL_BYTES) else {
                    return Ok(Step::Wait(FramePart::First { preamble, inline }));
                };
                let block = open(cipher, sealed).ok_or_else(|| wrong("the seal of a segment"))?;
                let mut whole = BytesMut::with_capacity(INLINE_BYTES + block.len());
                whole.extend_from_slice(&inline);
                whole.extend_from_slice(&block);
                inline = whole.freeze();
            }
            inline.truncate(len);
            inline
        } else if len > 0 {
            let Some(mut segment) = self.input.take(len + CRC_BYTES) else {
                return Ok(Step::Wait(FramePart::First { preamble, inline }));
            };
            let sum = segment.split_off(len);
            if sum[..] != checksum::segment(&segment).to_le_bytes() {
                return Err(wrong("the checksum of a segment"));
            }
            segment
        } else {
            Bytes::new()
        };
        let segments = [segment, Bytes::new(), Bytes::new(), Bytes::new()];
        if preamble.segments == 1 {
            return Ok(Step::Done(Frame { tag: preamble.tag, segments }));
        }
        Ok(Step::Go(FramePart::Rest { preamble, segments, next: 1 }))
    }

    fn rest(
        &mut self,
        preamble: Preamble,
        mut segments: [Bytes; MAX_SEGMENTS],
        mut next: usize,
    ) -> Result<Step, ConnectionError> {
        let late = if let Some(cipher) = &mut self.cipher {
            let lens = preamble.lens.map(|len| len as usize);
            let len: usize = lens[1..].iter().map(|&len| padded(len)).sum();
            let Some(sealed) = self.input.take(len + SECURE_EPILOGUE_BYTES + SEAL_BYTES) else {
                return Ok(Step::Wait(FramePart::Rest { preamble, segments, next }));
            };
            let mut block = open(cipher, sealed).ok_or_else(|| wrong("the seal of segments"))?;
            for index in 1..MAX_SEGMENTS {
                let mut segment = block.split_to(padded(lens[index]));
                segment.truncate(lens[index]);
                segments[index] = segment;
            }
            block[0]
        } else {
            while next < preamble.segments {
                let Some(segment) = self.input.take(preamble.lens[next] as usize) else {
                    return Ok(Step::Wait(FramePart::Rest { preamble, segments, next }));
                };
                segments[next] = segment;
                next += 1;
            }
            let Some(epilogue) = self.input.take_array::<CRC_EPILOGUE_BYTES>() else {
                return Ok(Step::Wait(FramePart::Rest { preamble, segments, next }));
            };
            let sums = epilogue[1..].chunks_exact(CRC_BYTES);
            for (segment, sum) in segments[1..preamble.segments].iter().zip(sums) {
                if sum != checksum::segment(segment).to_le_bytes() {
                    return Err(wrong("the checksum of a segment"));
                }
            }
            epilogue[0]
        };
        match late & LATE_MASK {
            LATE_COMPLETE => Ok(Step::Done(Frame { tag: preamble.tag, segments })),
            LATE_ABORTED => Ok(Step::Go(FramePart::Preamble)),
            _ => Err(wrong("the status at the end of a frame")),
        }
    }
}

enum Step {
    Wait(FramePart),
    Go(FramePart),
    Done(Frame),
}

/// Opens a block that has its seal behind it: in place if the memory has no other holder.
fn open(cipher: &mut Cipher, mut sealed: Bytes) -> Option<Bytes> {
    let mut seal = [0; SEAL_BYTES];
    seal.copy_from_slice(&sealed.split_off(sealed.len() - SEAL_BYTES));
    let mut block = sealed.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    cipher.open(&mut block, seal).then(|| block.freeze())
}

fn wrong(what: &str) -> ConnectionError {
    ConnectionError::Protocol(format!("{what} is wrong"))
}
