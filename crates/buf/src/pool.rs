//! Freed buffers, kept for the next allocation of their size.
//!
//! The data path allocates and frees page-aligned buffers for every request. The general allocator
//! is slow at that (it splits and merges chunks to find the alignment) and hands large buffers back
//! to the system, which then clears fresh pages for the next one. So each thread keeps some freed
//! buffers in lists by size class; a buffer freed on another thread than it was made on simply joins
//! that thread's lists. Bounds: [`CLASS_BYTES_MAX`] per class, so a few dozen MiB per thread.
//!
//! All of this memory is initialised, always: it is cleared once, when it comes from the allocator,
//! and holds some earlier buffer's bytes after that. So what is about to be overwritten need not be
//! cleared again ([`AlignedBuf::stale`](crate::AlignedBuf::stale)), and that is sound.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

use crate::ALIGN_BYTES;

/// Sizes that are kept: [`ALIGN_BYTES`] times powers of two up to this.
const KEPT_BYTES_MAX: usize = 2 << 20;
/// Most bytes that a thread keeps of one class.
const CLASS_BYTES_MAX: usize = 8 << 20;
const CLASSES: usize = (KEPT_BYTES_MAX / ALIGN_BYTES).ilog2() as usize + 1;

#[derive(Default)]
struct Lists([Vec<NonNull<u8>>; CLASSES]);

impl Drop for Lists {
    fn drop(&mut self) {
        for (class, list) in self.0.iter_mut().enumerate() {
            for pointer in list.drain(..) {
                // SAFETY: buffers in this list were allocated with the class's layout.
                unsafe { dealloc(pointer.as_ptr(), layout(ALIGN_BYTES << class)) }
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

/// The capacity that a buffer of `len_bytes` is allocated with.
pub fn capacity_for(len_bytes: usize) -> usize {
    let pages = len_bytes.next_multiple_of(ALIGN_BYTES).max(ALIGN_BYTES);
    if pages <= KEPT_BYTES_MAX { pages.next_power_of_two() } else { pages }
}

fn class_of(capacity_bytes: usize) -> Option<usize> {
    (capacity_bytes <= KEPT_BYTES_MAX).then(|| (capacity_bytes / ALIGN_BYTES).ilog2() as usize)
}

/// Initialised memory of a capacity that [`capacity_for`] gave; its content is arbitrary.
pub fn take(capacity_bytes: usize) -> NonNull<u8> {
    let kept = class_of(capacity_bytes)
        .and_then(|class| LISTS.try_with(|lists| lists.borrow_mut().0[class].pop()).ok().flatten());
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
/// `pointer` came from [`take`] with this capacity, and nothing uses it any more.
pub unsafe fn give(pointer: NonNull<u8>, capacity_bytes: usize) {
    let kept = class_of(capacity_bytes).is_some_and(|class| {
        // A thread that is ending has no lists any more.
        LISTS
            .try_with(|lists| {
                let list = &mut lists.borrow_mut().0[class];
                let room = (list.len() + 1) * capacity_bytes <= CLASS_BYTES_MAX;
                if room {
                    list.push(pointer);
                }
                room
            })
            .unwrap_or(false)
    });
    if !kept {
        // SAFETY: allocated with this layout in `take`, which the caller vouches for.
        unsafe { dealloc(pointer.as_ptr(), layout(capacity_bytes)) }
    }
}

#[cfg(test)]
mod tests {
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
