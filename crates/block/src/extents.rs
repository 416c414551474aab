//! Builds and cuts extent lists. The contract asks for merged lists: adjacent extents differ in
//! kind.

use crate::{Extent, ExtentKind};

/// Appends a run. Merges it with the last extent if both have the same kind.
pub(crate) fn push_extent(extents: &mut Vec<Extent>, len_bytes: u64, kind: ExtentKind) {
    if len_bytes == 0 {
        return;
    }
    match extents.last_mut() {
        Some(last) if last.kind == kind => last.len_bytes += len_bytes,
        _ => extents.push(Extent { len_bytes, kind }),
    }
}

/// Drops `skip_bytes` from the front, and everything more than `len_bytes` behind that.
pub(crate) fn cut_extents(extents: &[Extent], skip_bytes: u64, len_bytes: u64) -> Vec<Extent> {
    let mut result = Vec::with_capacity(extents.len());
    let (mut skip, mut left) = (skip_bytes, len_bytes);
    for extent in extents {
        let skipped = skip.min(extent.len_bytes);
        skip -= skipped;
        let kept = (extent.len_bytes - skipped).min(left);
        left -= kept;
        push_extent(&mut result, kept, extent.kind);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_keeps_the_window_and_merges() {
        let mut list = Vec::new();
        push_extent(&mut list, 10, ExtentKind::Data);
        push_extent(&mut list, 0, ExtentKind::Hole);
        push_extent(&mut list, 5, ExtentKind::Data);
        push_extent(&mut list, 7, ExtentKind::Hole);
        assert_eq!(list.len(), 2);
        let cut = cut_extents(&list, 14, 3);
        assert_eq!(
            cut,
            vec![
                Extent { len_bytes: 1, kind: ExtentKind::Data },
                Extent { len_bytes: 2, kind: ExtentKind::Hole }
            ]
        );
        assert_eq!(cut_extents(&list, 30, 3), vec![]);
    }
}
