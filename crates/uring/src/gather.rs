//! The bytes of a write or send: a list of shared parts, and how many bytes the kernel has taken.
//!
//! The kernel may take any prefix of the offered bytes. A [`Gather`] remembers the prefix and
//! offers the rest, at most `IOV_MAX` parts at a time. It offers a single remaining part as a plain
//! pointer and length, and several parts as an I/O vector. The vector must stay in its place until
//! the kernel has read it, so it lives in an [`IoList`] on the heap. A [`ListPool`] recycles the
//! lists, so the steady state allocates nothing.

use bytes::Bytes;
use std::ptr;

/// The largest number of parts that the kernel takes in one vector (`UIO_MAXIOV`).
pub(crate) const IOV_MAX: usize = 1024;
/// The largest number of lists kept for reuse.
const POOLED_LISTS: usize = 256;

/// An I/O vector and the message header that points to it. Boxed, because the header must not move
/// while the kernel may read it.
struct IoList {
    header: Box<libc::msghdr>,
    vectors: Vec<libc::iovec>,
}

/// Lists for reuse.
#[derive(Default)]
pub(crate) struct ListPool(Vec<IoList>);

impl ListPool {
    fn take(&mut self) -> IoList {
        self.0.pop().unwrap_or_else(|| {
            // SAFETY: all zeroes is a valid, empty msghdr.
            let header = Box::new(unsafe { std::mem::zeroed() });
            IoList { header, vectors: Vec::new() }
        })
    }

    fn give_back(&mut self, list: IoList) {
        if self.0.len() < POOLED_LISTS {
            self.0.push(list);
        }
    }
}

/// The next bytes for the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// One run of bytes.
    Run(*const u8, u32),
    /// Several runs: the vector and its length.
    Vectors(*const libc::iovec, u32),
}

/// Parts on their way to the kernel.
pub(crate) struct Gather {
    parts: Vec<Bytes>,
    /// The first part that is not done.
    part: usize,
    /// Bytes of this part that are done.
    part_done_bytes: usize,
    done_bytes: u32,
    total_bytes: u32,
    list: Option<IoList>,
}

impl Gather {
    /// `total_bytes` is the sum of the parts' lengths. The caller has checked its bound.
    pub(crate) fn new(parts: Vec<Bytes>, total_bytes: u32, pool: &mut ListPool) -> Self {
        let list = if parts.len() > 1 { Some(pool.take()) } else { None };
        let mut gather =
            Self { parts, part: 0, part_done_bytes: 0, done_bytes: 0, total_bytes, list };
        gather.skip_finished_parts();
        gather
    }

    pub(crate) fn done_bytes(&self) -> u32 {
        self.done_bytes
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done_bytes == self.total_bytes
    }

    /// The bytes that the kernel has not taken.
    pub(crate) fn left_bytes(&self) -> u32 {
        self.total_bytes - self.done_bytes
    }

    /// True if one system call can take all the rest.
    pub(crate) fn fits_one_call(&self) -> bool {
        self.parts.len() - self.part <= IOV_MAX
    }

    /// The bytes that the kernel has not taken, as many as fit one system call. The pointers are
    /// valid until the gather is changed or dropped.
    pub(crate) fn window(&mut self) -> Window {
        let rest = &self.parts[self.part..];
        match (&mut self.list, rest) {
            (Some(list), [_, _, ..]) => {
                list.vectors.clear();
                let mut skip = self.part_done_bytes;
                list.vectors.extend(rest.iter().take(IOV_MAX).map(|part| {
                    let bytes = &part[std::mem::take(&mut skip)..];
                    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
                }));
                Window::Vectors(list.vectors.as_ptr(), list.vectors.len() as u32)
            }
            (_, [part, ..]) => {
                let bytes = &part[self.part_done_bytes..];
                Window::Run(bytes.as_ptr(), bytes.len() as u32)
            }
            (_, []) => Window::Run(ptr::NonNull::dangling().as_ptr(), 0),
        }
    }

    /// The message header for the vector from the last [`Gather::window`].
    pub(crate) fn header(&mut self) -> *const libc::msghdr {
        let list = self.list.as_mut().expect("only called for a window of vectors");
        list.header.msg_iov = list.vectors.as_mut_ptr();
        list.header.msg_iovlen = list.vectors.len() as _;
        &raw const *list.header
    }

    /// Notes that the kernel took the next `taken_bytes`.
    pub(crate) fn advance(&mut self, taken_bytes: u32) {
        assert!(taken_bytes <= self.total_bytes - self.done_bytes, "taken more than was offered");
        self.done_bytes += taken_bytes;
        self.part_done_bytes += taken_bytes as usize;
        self.skip_finished_parts();
    }

    fn skip_finished_parts(&mut self) {
        while let Some(part) = self.parts.get(self.part)
            && self.part_done_bytes >= part.len()
        {
            self.part_done_bytes -= part.len();
            self.part += 1;
        }
    }

    /// Returns the parts, and puts the list back into the pool.
    pub(crate) fn dissolve(self, pool: &mut ListPool) -> Vec<Bytes> {
        if let Some(list) = self.list {
            pool.give_back(list);
        }
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Copies the bytes of a window.
    fn offered(gather: &mut Gather) -> Vec<u8> {
        match gather.window() {
            // SAFETY: the window is valid until the gather changes.
            Window::Run(at, len) => unsafe {
                std::slice::from_raw_parts(at, len as usize).to_vec()
            },
            Window::Vectors(at, len) => {
                assert!(len as usize <= IOV_MAX);
                // SAFETY: as above.
                let header = unsafe { &*gather.header() };
                assert_eq!((header.msg_iov.cast_const(), header.msg_iovlen), (at, len as usize));
                // SAFETY: as above.
                let vectors = unsafe { std::slice::from_raw_parts(at, len as usize) };
                let mut bytes = Vec::new();
                for vector in vectors {
                    // SAFETY: each vector covers bytes of a part.
                    bytes.extend_from_slice(unsafe {
                        std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), vector.iov_len)
                    });
                }
                bytes
            }
        }
    }

    proptest! {
        /// However the kernel cuts the transfer, the bytes arrive whole and in order.
        #[test]
        fn any_sequence_of_short_transfers_delivers_all_bytes(
            lens in proptest::collection::vec(0usize..40, 0..3000),
            takes in proptest::collection::vec(1u32..6000, 1..50),
        ) {
            let mut byte = 0u8;
            let parts: Vec<Bytes> = lens.iter().map(|len| {
                (0..*len).map(|_| { byte = byte.wrapping_mul(31).wrapping_add(7); byte }).collect()
            }).collect();
            let whole = parts.concat();
            let mut pool = ListPool::default();
            let mut gather = Gather::new(parts.clone(), whole.len() as u32, &mut pool);
            let mut got = Vec::new();
            let mut takes = takes.into_iter().cycle();
            while !gather.is_done() {
                let window = offered(&mut gather);
                prop_assert!(!window.is_empty());
                let taken = window.len().min(takes.next().expect("endless") as usize);
                got.extend_from_slice(&window[..taken]);
                gather.advance(taken as u32);
                prop_assert_eq!(gather.done_bytes() as usize, got.len());
            }
            prop_assert_eq!(got, whole);
            prop_assert_eq!(gather.dissolve(&mut pool), parts);
        }
    }

    #[test]
    fn lists_are_recycled() {
        let mut pool = ListPool::default();
        let parts = || vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        let first = Gather::new(parts(), 2, &mut pool);
        let place = &raw const *first.list.as_ref().expect("two parts").header;
        first.dissolve(&mut pool);
        let second = Gather::new(parts(), 2, &mut pool);
        assert_eq!(&raw const *second.list.as_ref().expect("two parts").header, place);
    }
}
