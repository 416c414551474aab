//! Lays what is in memory over the answers of the store.

use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::extents::push_extent;
use crate::pieces::{Pieces, Splitter, push_piece};
use crate::{Extent, ExtentKind, Piece};

/// Lays bytes over the answer of a read that began at `offset`.
pub(super) fn lay_over(pieces: Pieces, offset: u64, over: SmallVec<[(u64, Bytes); 2]>) -> Pieces {
    let total: u64 = pieces.iter().map(|piece| u64::from(piece.len_bytes())).sum();
    let len = |bytes: u64| u32::try_from(bytes).expect("within one request");
    let mut below = Splitter::new(pieces);
    let mut result = Pieces::new();
    let mut at = offset;
    for (start, data) in over {
        below.take(len(start - at)).into_iter().for_each(|piece| push_piece(&mut result, piece));
        at = start + data.len() as u64;
        below.take(len(at - start));
        push_piece(&mut result, Piece::Data(data));
    }
    let rest = len((offset + total).saturating_sub(at));
    below.take(rest).into_iter().for_each(|piece| push_piece(&mut result, piece));
    result
}

/// The extents with the ranges as data. The list may end before the range does.
pub(super) fn with_data(extents: &[Extent], offset: u64, data: &[Range<u64>]) -> Vec<Extent> {
    let mut result = Vec::with_capacity(extents.len() + data.len());
    let mut at = offset;
    let mut data = data.iter().peekable();
    for extent in extents {
        let end = at + extent.len_bytes;
        while at < end {
            while data.next_if(|range| range.end <= at).is_some() {}
            let (to, kind) = match data.peek() {
                Some(range) if range.start <= at => (range.end.min(end), ExtentKind::Data),
                Some(range) => (range.start.min(end), extent.kind),
                None => (end, extent.kind),
            };
            push_extent(&mut result, to - at, kind);
            at = to;
        }
    }
    result.truncate(crate::EXTENTS_MAX);
    result
}
