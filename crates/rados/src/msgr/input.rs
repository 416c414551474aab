//! Bytes from the transport, cut into the pieces that frames have.
//!
//! A piece that lies whole within one chunk is a slice of the chunk. Any other is gathered: its
//! bytes are copied once, as they come. The memory for it grows with the bytes that are there, not
//! with the length that the peer announces.

use bytes::{Buf, Bytes, BytesMut};

/// Memory that a gathered piece may take before its bytes arrive.
const GATHER_BYTES: usize = 64 << 10;

/// Bytes that are not used yet.
#[derive(Default)]
pub(super) struct Input {
    chunk: Bytes,
    /// The start of a piece whose end is not there yet; comes before `chunk`.
    gathered: BytesMut,
    /// All used bytes, while the handshake needs them.
    pub(super) record: Option<Vec<u8>>,
}

impl Input {
    /// Adds bytes. Everything that was there before is used, or belongs to a piece under way.
    pub(super) fn push(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            let mut joined = BytesMut::from(&self.chunk[..]);
            joined.extend_from_slice(&chunk);
            self.chunk = joined.freeze();
        }
    }

    /// The next piece of `len` bytes. If its end is not there yet, a later call has to ask for the
    /// same length.
    pub(super) fn take(&mut self, len: usize) -> Option<Bytes> {
        let piece = if self.gathered.is_empty() && self.chunk.len() >= len {
            self.chunk.split_to(len)
        } else {
            self.gather(len)?
        };
        if let Some(record) = &mut self.record {
            record.extend_from_slice(&piece);
        }
        Some(piece)
    }

    /// The next `N` bytes, as [`Input::take`].
    pub(super) fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut array = [0; N];
        if self.gathered.is_empty() && self.chunk.len() >= N && self.record.is_none() {
            self.chunk.copy_to_slice(&mut array);
        } else {
            array.copy_from_slice(&self.take(N)?);
        }
        Some(array)
    }

    fn gather(&mut self, len: usize) -> Option<Bytes> {
        let have = self.gathered.len();
        let needed = len - have;
        let part = needed.min(self.chunk.len());
        if self.gathered.capacity() - have < part {
            self.gathered.reserve(needed.min(part.max(have).max(GATHER_BYTES)));
        }
        self.gathered.extend_from_slice(&self.chunk[..part]);
        self.chunk.advance(part);
        if self.chunk.is_empty() {
            // Gives the chunk's memory back.
            self.chunk = Bytes::new();
        }
        (part == needed).then(|| std::mem::take(&mut self.gathered).freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_within_a_chunk_is_a_slice() {
        let chunk = Bytes::from(vec![1; 100]);
        let mut input = Input::default();
        input.push(chunk.clone());
        assert_eq!(input.take_array(), Some([1; 10]));
        assert_eq!(input.take(90).unwrap().as_ptr(), chunk[10..].as_ptr());
        assert_eq!(input.take(0), Some(Bytes::new()));
        assert_eq!(input.take(1), None);
    }

    #[test]
    fn other_pieces_are_gathered_in_bounded_memory() {
        let mut input = Input::default();
        assert_eq!(input.take(64 << 20), None);
        assert_eq!(input.gathered.capacity(), 0);
        input.push(Bytes::from_static(&[1; 10]));
        assert_eq!(input.take(64 << 20), None);
        assert!(input.gathered.capacity() <= GATHER_BYTES);

        let mut input = Input::default();
        for at in 0_u8..20 {
            input.push(Bytes::from(vec![at]));
            let piece = input.take(20);
            assert_eq!(piece, (at == 19).then(|| (0_u8..20).collect()));
        }
    }
}
