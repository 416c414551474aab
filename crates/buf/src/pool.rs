//! Freed buffers, kept for the next allocation of their size.
//!
//! The data path allocates and frees page-aligned buffers for every request. The general allocator
//! is slow at that (it splits and merges chunks to find the alignment). It also returns large
//! buffers to the system, which then clears fresh pages for the next one. So each thread keeps some
//! freed buffers in lists by size class. A buffer that is freed on a different thread joins that
//! thread's lists. A thread keeps at most [`LISTS_BYTES_MAX`]: a volume holds its written data
//! until a segment is durable, so buffers come back by the megabyte. At the limit, the class that
//! holds the most bytes frees a buffer.
//!
//! All of this memory is always initialised: it is cleared once, when it comes from the allocator,
//! and holds an earlier buffer's bytes after that. So memory that will be overwritten need not be
//! cleared again ([`AlignedBuf::stale`](crate::AlignedBuf::stale)), and that is sound.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

use crate::ALIGN_BYTES;

/// The largest kept size. Kept sizes are [`ALIGN_BYTES`] times powers of two.
const KEPT_BYTES_MAX: usize = 2 << 20;
/// The largest number of bytes that a thread keeps.
const LISTS_BYTES_MAX: usize = 64 << 20;
const CLASSES: usize = (KEPT_BYTES_MAX / ALIGN_BYTES).ilog2() as usize + 1;

#[derive(Default)]
struct Lists {
    /// Buffers that were allocated with the class's layout.
    of_class: [Vec<NonNull<u8>>; CLASSES],
    bytes: usize,
}

impl Lists {
    fn take(&mut self, class: usize) -> Option<NonNull<u8>> {
        let pointer = self.of_class[class].pop()?;
        self.bytes -= ALIGN_BYTES << class;
        Some(pointer)
    }

    fn give(&mut self, class: usize, pointer: NonNull<u8>) {
        self.of_class[class].push(pointer);
        self.bytes += ALIGN_BYTES << class;
        while self.bytes > LISTS_BYTES_MAX {
            let fullest = (0..CLASSES).max_by_key(|class| self.of_class[*class].len() << class);
            self.free_one(fullest.expect("there are classes"));
        }
    }

    fn free_one(&mut self, class: usize) {
        if let Some(pointer) = self.take(class) {
            // SAFETY: allocated with this layout, and no buffer uses it.
            unsafe { dealloc(pointer.as_ptr(), layout(ALIGN_BYTES << class)) }
        }
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        for class in 0..CLASSES {
            while !self.of_class[class].is_empty() {
                self.free_one(class);
            }
        }
    }
}

thread_local! {
    static LISTS: RefCell<Lists> = RefCell::default();
}

fn layout(capacity_bytes: usize) -> Layout {
    Layout::from_size_align(capacity_bytes, ALIGN_BYTES).expect("buffer sizes fit in isize")
}

/// The allocated capacity of a buffer of `len_bytes`.
pub fn capacity_for(len_bytes: usize) -> usize {
    let pages = len_bytes.next_multiple_of(ALIGN_BYTES).max(ALIGN_BYTES);
    if pages <= KEPT_BYTES_MAX { pages.next_power_of_two() } else { pages }
}

fn class_of(capacity_bytes: usize) -> Option<usize> {
    (capacity_bytes <= KEPT_BYTES_MAX).then(|| (capacity_bytes / ALIGN_BYTES).ilog2() as usize)
}

/// Initialised memory with a capacity from [`capacity_for`]. Its content is arbitrary.
pub fn take(capacity_bytes: usize) -> NonNull<u8> {
    let kept = class_of(capacity_bytes)
        .and_then(|class| LISTS.try_with(|lists| lists.borrow_mut().take(class)).ok().flatten());
    kept.unwrap_or_else(|| {
        let layout = layout(capacity_bytes);
        // SAFETY: the layout's size is never zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout))
    })
}

/// Gives memory back.
///
/// # Safety
/// `pointer` came from [`take`] with this capacity, and no code uses it any more.
pub unsafe fn give(pointer: NonNull<u8>, capacity_bytes: usize) {
    // A thread that is ending no longer has lists.
    let kept = class_of(capacity_bytes).is_some_and(|class| {
        LISTS.try_with(|lists| lists.borrow_mut().give(class, pointer)).is_ok()
    });
    if !kept {
        // SAFETY: allocated with this layout in `take`, which the caller vouches for.
        unsafe { dealloc(pointer.as_ptr(), layout(capacity_bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    #[test]
    fn reused_memory_never_shows_through_zeroed_buffers() {
        for len in [1usize, 4096, 5000, 70_000, 1 << 20, (2 << 20) + 1, 5 << 20] {
            for round in 0..3u8 {
                let mut buffer = AlignedBuf::zeroed(len);
                assert!(buffer.iter().all(|byte| *byte == 0), "{len} bytes, round {round}");
                buffer.fill(0xa5);
            }
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_no_class_starves_another() {
        let kept = |len: usize| {
            let class = class_of(capacity_for(len)).expect("kept");
            LISTS.with(|lists| lists.borrow().of_class[class].len() * capacity_for(len))
        };
        for len in [4096, 1 << 20] {
            let many = (0..2 * LISTS_BYTES_MAX / len).map(|_| AlignedBuf::stale(len));
            drop(many.collect::<Vec<_>>());
            LISTS.with(|lists| assert!(lists.borrow().bytes <= LISTS_BYTES_MAX));
            assert!(kept(len) >= LISTS_BYTES_MAX / 2);
        }
        assert!(kept(4096) >= LISTS_BYTES_MAX / 4);
    }

    #[test]
    fn buffers_may_be_freed_on_another_thread() {
        let buffers: Vec<_> =
            (0..100).map(|i| AlignedBuf::copy_from(&[i; 9000]).freeze()).collect();
        std::thread::spawn(move || {
            for (i, buffer) in buffers.iter().enumerate() {
                assert!(buffer.iter().all(|byte| usize::from(*byte) == i));
            }
        })
        .join()
        .expect("the thread ends well");
    }
}
