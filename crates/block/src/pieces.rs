//! Cuts, joins and flattens the pieces of reads, without copying where possible.

use bytes::Bytes;
use fieldstone_buf::{AlignedBuf, zeroes};
use smallvec::SmallVec;

use crate::Piece;

/// The pieces of one read.
pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// Appends `piece`, merging runs of zeroes.
pub(crate) fn push_piece(pieces: &mut Pieces, piece: Piece) {
    match (pieces.last_mut(), piece) {
        (_, piece) if piece.len_bytes() == 0 => {}
        (Some(Piece::Zeroes(last)), Piece::Zeroes(more)) => *last += more,
        (_, piece) => pieces.push(piece),
    }
}

/// Appends the window of `source` that starts at `skip` bytes and is `len` bytes long.
pub(crate) fn push_window(pieces: &mut Pieces, source: &[Piece], skip: u32, len: u32) {
    let (mut skip, mut left) = (skip, len);
    for piece in source {
        if left == 0 {
            break;
        }
        let skipped = skip.min(piece.len_bytes());
        skip -= skipped;
        let kept = (piece.len_bytes() - skipped).min(left);
        left -= kept;
        match piece {
            Piece::Data(data) if kept > 0 => {
                let from = skipped as usize;
                push_piece(pieces, Piece::Data(data.slice(from..from + kept as usize)));
            }
            Piece::Data(_) => {}
            Piece::Zeroes(_) => push_piece(pieces, Piece::Zeroes(kept)),
        }
    }
}

/// Keeps only the window of `pieces` that starts at `skip` bytes and is `len` bytes long.
pub(crate) fn cut_pieces(pieces: &mut Pieces, skip: u32, len: u32) {
    let source = std::mem::take(pieces);
    push_window(pieces, &source, skip, len);
}

/// Deals the pieces of one read out to the requests that share the read, in order, in one pass.
pub(crate) struct Splitter {
    rest: smallvec::IntoIter<[Piece; 1]>,
    /// The rest of the piece in which the last request ended.
    current: Option<Piece>,
}

impl Splitter {
    pub(crate) fn new(pieces: Pieces) -> Self {
        Splitter { rest: pieces.into_iter(), current: None }
    }

    /// The next `len` bytes. Fewer only if the pieces end.
    pub(crate) fn take(&mut self, len: u32) -> Pieces {
        let mut taken = Pieces::new();
        let mut left = len;
        while left > 0 {
            let Some(piece) = self.current.take().or_else(|| self.rest.next()) else { break };
            let kept = piece.len_bytes().min(left);
            left -= kept;
            match piece {
                Piece::Data(mut data) => {
                    push_piece(&mut taken, Piece::Data(data.split_to(kept as usize)));
                    if !data.is_empty() {
                        self.current = Some(Piece::Data(data));
                    }
                }
                Piece::Zeroes(all) => {
                    push_piece(&mut taken, Piece::Zeroes(kept));
                    if all > kept {
                        self.current = Some(Piece::Zeroes(all - kept));
                    }
                }
            }
        }
        taken
    }
}

/// The pieces as one run of bytes; copies unless there is only one.
pub(crate) fn to_bytes(pieces: &[Piece]) -> Bytes {
    match pieces {
        [] => Bytes::new(),
        [Piece::Data(data)] => data.clone(),
        [Piece::Zeroes(len)] => zeroes(*len as usize),
        many => {
            let flat: SmallVec<[Bytes; 8]> = many
                .iter()
                .map(|piece| match piece {
                    Piece::Data(data) => data.clone(),
                    Piece::Zeroes(len) => zeroes(*len as usize),
                })
                .collect();
            AlignedBuf::concat(flat.iter().map(|part| &part[..])).freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces_of(shape: &[(bool, u8)]) -> Pieces {
        let mut next = 0u8;
        let mut pieces = Pieces::new();
        for (is_data, len) in shape {
            if *is_data {
                let data: Vec<u8> = (0..*len)
                    .map(|_| {
                        next = next.wrapping_add(1);
                        next
                    })
                    .collect();
                push_piece(&mut pieces, Piece::Data(Bytes::from(data)));
            } else {
                push_piece(&mut pieces, Piece::Zeroes(u32::from(*len)));
            }
        }
        pieces
    }

    proptest! {
        #[test]
        fn a_window_of_pieces_is_the_window_of_their_bytes(
            shape in proptest::collection::vec((any::<bool>(), 0u8..20), 0..12),
            a in 0usize..120, b in 0usize..120,
        ) {
            let pieces = pieces_of(&shape);
            let flat = to_bytes(&pieces);
            let len: usize = shape.iter().map(|(_, len)| usize::from(*len)).sum();
            prop_assert_eq!(flat.len(), len);
            let (from, to) = (a.min(b).min(flat.len()), a.max(b).min(flat.len()));
            let mut cut = pieces.clone();
            cut_pieces(&mut cut, from as u32, (to - from) as u32);
            prop_assert_eq!(&to_bytes(&cut)[..], &flat[from..to]);
            prop_assert!(cut.iter().all(|piece| piece.len_bytes() > 0));
        }

        #[test]
        fn splitting_deals_out_every_byte_once(
            shape in proptest::collection::vec((any::<bool>(), 0u8..20), 0..12),
            lens in proptest::collection::vec(0u32..30, 0..20),
        ) {
            let pieces = pieces_of(&shape);
            let flat = to_bytes(&pieces);
            let mut splitter = Splitter::new(pieces);
            let mut at = 0;
            for len in lens {
                let part = splitter.take(len);
                let end = flat.len().min(at + len as usize);
                prop_assert_eq!(&to_bytes(&part)[..], &flat[at..end]);
                at = end;
            }
        }
    }
}
