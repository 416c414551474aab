//! Freed buffers, kept for the next allocation of their size.
//!
//! The data path allocates and frees page-aligned buffers for every request. The general allocator
//! is slow at that (it splits and merges chunks to find the alignment). It also returns large
//! buffers to the system, which then clears fresh pages for the next one. So each thread keeps some
//! freed buffers in lists by size class. A thread keeps at most [`LISTS_BYTES_MAX`]: a volume holds
//! its written data until a segment is durable, so buffers come back by the megabyte. At the limit,
//! the class that holds the most bytes frees a buffer.
//!
//! A buffer belongs to the thread that took it, its *home*. Often one thread takes the buffers and
//! another one frees them: a core reads from a disk, and a thread of the caller drops the data. If
//! the second thread kept them, the first would clear fresh pages for each read. So a thread hands
//! a buffer of another one back, under a lock that no other pair of threads shares. The home takes
//! these buffers when its own lists are empty.
//!
//! All of this memory is always initialised: it is cleared once, when it comes from the allocator,
//! and holds an earlier buffer's bytes after that. So memory that will be overwritten need not be
//! cleared again ([`AlignedBuf::stale`](crate::AlignedBuf::stale)), and that is sound.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ALIGN_BYTES;

/// The largest kept size. Kept sizes are [`ALIGN_BYTES`] times powers of two.
const KEPT_BYTES_MAX: usize = 2 << 20;
/// The largest number of bytes that a thread keeps, and that others may hand back to it.
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

// SAFETY: the lists own their buffers.
unsafe impl Send for Lists {}

/// The thread to which buffers belong. Threads that begin use the homes of threads that have ended.
pub struct Home {
    /// Buffers that other threads have handed back. `None` if the thread has ended.
    returned: Mutex<Option<Lists>>,
    /// Bytes in `returned`, to find out without the lock whether there are any.
    returned_bytes: AtomicUsize,
}

/// Homes of threads that have ended.
static VACANT: Mutex<Vec<&'static Home>> = Mutex::new(Vec::new());

impl Home {
    fn new() -> &'static Self {
        let vacant = VACANT.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let home = vacant.unwrap_or_else(|| {
            let (returned, returned_bytes) = (Mutex::new(None), AtomicUsize::new(0));
            Box::leak(Box::new(Self { returned, returned_bytes }))
        });
        *home.lock() = Some(Lists::default());
        home
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lists>> {
        // No code under the lock can panic with the lists half changed.
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another thread hands a buffer back. False if the thread has ended.
    fn give(&self, class: usize, pointer: NonNull<u8>) -> bool {
        let mut returned = self.lock();
        let Some(lists) = &mut *returned else { return false };
        lists.give(class, pointer);
        self.returned_bytes.store(lists.bytes, Ordering::Relaxed);
        true
    }

    /// Moves the buffers that were handed back to the thread's own lists.
    fn collect(&self, to: &mut Lists) {
        if self.returned_bytes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut returned = self.lock();
        let Some(lists) = &mut *returned else { return };
        for (class, from) in lists.of_class.iter_mut().enumerate() {
            from.drain(..).for_each(|pointer| to.give(class, pointer));
        }
        lists.bytes = 0;
        self.returned_bytes.store(0, Ordering::Relaxed);
    }
}

/// The lists of a thread.
struct Local {
    lists: Lists,
    home: &'static Home,
}

impl Drop for Local {
    fn drop(&mut self) {
        // Frees the buffers that were handed back. From now on a thread keeps the buffers that it
        // frees.
        drop(self.home.lock().take());
        self.home.returned_bytes.store(0, Ordering::Relaxed);
        VACANT.lock().unwrap_or_else(PoisonError::into_inner).push(self.home);
    }
}

thread_local! {
    static LOCAL: RefCell<Local> =
        RefCell::new(Local { lists: Lists::default(), home: Home::new() });
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

/// Initialised memory with a capacity from [`capacity_for`], and its home. Its content is
/// arbitrary. A thread that is ending has no home.
pub fn take(capacity_bytes: usize) -> (NonNull<u8>, Option<&'static Home>) {
    let class = class_of(capacity_bytes);
    let local = |local: &RefCell<Local>| {
        let Local { lists, home } = &mut *local.borrow_mut();
        let kept = class.and_then(|class| {
            lists.take(class).or_else(|| {
                home.collect(lists);
                lists.take(class)
            })
        });
        (kept, Some(*home))
    };
    let (kept, home) = LOCAL.try_with(local).unwrap_or((None, None));
    let pointer = kept.unwrap_or_else(|| {
        let layout = layout(capacity_bytes);
        // SAFETY: the layout's size is never zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout))
    });
    (pointer, home)
}

/// Gives memory back.
///
/// # Safety
/// `pointer` came from [`take`] with this capacity and this home, and no code uses it any more.
pub unsafe fn give(pointer: NonNull<u8>, capacity_bytes: usize, home: Option<&'static Home>) {
    let kept = class_of(capacity_bytes).is_some_and(|class| {
        // A thread that is ending no longer has lists.
        LOCAL
            .try_with(|local| {
                let local = &mut *local.borrow_mut();
                let foreign = home.filter(|home| !ptr::eq(*home, local.home));
                if !foreign.is_some_and(|home| home.give(class, pointer)) {
                    local.lists.give(class, pointer);
                }
            })
            .is_ok()
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
            LOCAL.with(|local| local.borrow().lists.of_class[class].len() * capacity_for(len))
        };
        for len in [4096, 1 << 20] {
            let many = (0..2 * LISTS_BYTES_MAX / len).map(|_| AlignedBuf::stale(len));
            drop(many.collect::<Vec<_>>());
            LOCAL.with(|local| assert!(local.borrow().lists.bytes <= LISTS_BYTES_MAX));
            assert!(kept(len) >= LISTS_BYTES_MAX / 2);
        }
        assert!(kept(4096) >= LISTS_BYTES_MAX / 4);
    }

    #[test]
    fn a_buffer_that_another_thread_frees_comes_home() {
        let home = std::thread::spawn(|| {
            let buffers: Vec<_> = (0..10).map(|_| AlignedBuf::stale(9000)).collect();
            let addresses = |buffers: &[AlignedBuf]| {
                let addresses = buffers.iter().map(|buffer| buffer.as_ptr().addr());
                addresses.collect::<std::collections::BTreeSet<_>>()
            };
            let first = addresses(&buffers);
            std::thread::spawn(|| drop(buffers)).join().expect("the thread ends well");
            let again: Vec<_> = (0..10).map(|_| AlignedBuf::stale(9000)).collect();
            assert_eq!(addresses(&again), first);
            again
        });
        // This thread frees them when their home has ended.
        drop(home.join().expect("the thread ends well"));
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
