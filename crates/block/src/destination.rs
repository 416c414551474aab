//! The memory in which a front-end wants the bytes of a read.

use std::ops::Range;

use fieldstone_buf::AlignedBuf;

use crate::Piece;

/// The destination of a read: memory of the front-end, or none.
///
/// A store that reads from a disk or a socket may take the memory, and read straight into it. The
/// answer is then a [`Piece::Data`] over this memory, and the front-end copies nothing. Any other
/// store leaves the destination in the request, and answers with memory of its own.
///
/// A layer that keeps the bytes of the answer clears the destination: the front-end waits until all
/// of these bytes are dropped. A layer that changes the range of a request clears the destination,
/// too, because the memory fits the old range.
///
/// A copy of a request has no destination, because only one transfer may fill the memory.
#[derive(Debug, Default)]
pub struct ReadDestination(Option<AlignedBuf>);

impl ReadDestination {
    /// The memory of `buffer`. Its old bytes need not be kept.
    #[must_use]
    pub fn of(buffer: AlignedBuf) -> Self {
        Self(Some(buffer))
    }

    /// Takes the memory for a transfer of `len_bytes`. `None` if there is none of this length.
    pub fn take(&mut self, len_bytes: u32) -> Option<AlignedBuf> {
        self.0.take_if(|buffer| buffer.len() == len_bytes as usize)
    }

    /// Drops the memory.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// True if there is no memory.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl Clone for ReadDestination {
    fn clone(&self) -> Self {
        Self(None)
    }
}

/// The place of an answer's bytes, relative to the destination of the read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// All bytes are in the destination.
    InPlace,
    /// No byte is in the destination.
    Elsewhere,
    /// Some bytes are in the destination, for example because a layer has cut the answer.
    InParts,
}

/// Finds out where the bytes of an answer are. `destination` is the range of addresses of the
/// destination.
#[must_use]
pub fn landed(pieces: &[Piece], destination: &Range<usize>) -> Landed {
    let range_of = |piece: &Piece| match piece {
        Piece::Data(data) => {
            let start = data.as_ptr().addr();
            start..start + data.len()
        }
        Piece::Zeroes(_) => 0..0,
    };
    if let [only] = pieces
        && range_of(only) == *destination
    {
        return Landed::InPlace;
    }
    let overlaps = |piece: &Piece| {
        let range = range_of(piece);
        range.start < destination.end && destination.start < range.end
    };
    if pieces.iter().any(overlaps) { Landed::InParts } else { Landed::Elsewhere }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_transfer_of_its_length_takes_the_memory_and_only_once() {
        let mut destination = ReadDestination::of(AlignedBuf::zeroed(4096));
        assert!(destination.clone().is_none());
        assert!(destination.take(512).is_none());
        assert!(destination.take(4096).is_some());
        assert!(destination.take(4096).is_none());
    }

    #[test]
    fn the_addresses_of_an_answer_tell_where_its_bytes_are() {
        let bytes = AlignedBuf::zeroed(8192).freeze();
        let start = bytes.as_ptr().addr();
        let destination = start..start + 4096;
        let whole = Piece::Data(bytes.slice(..4096));
        assert_eq!(landed(std::slice::from_ref(&whole), &destination), Landed::InPlace);
        assert_eq!(landed(&[whole, Piece::Zeroes(1)], &destination), Landed::InParts);
        assert_eq!(landed(&[Piece::Data(bytes.slice(4095..))], &destination), Landed::InParts);
        let behind = [Piece::Data(bytes.slice(4096..)), Piece::Zeroes(4096)];
        assert_eq!(landed(&behind, &destination), Landed::Elsewhere);
        assert_eq!(landed(&[], &(0..0)), Landed::Elsewhere);
    }
}
