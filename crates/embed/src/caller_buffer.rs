//! Reads into the caller's memory.
//!
//! The request of an [`Operation::ReadInto`](crate::Operation::ReadInto) lends that memory to the
//! device as its [`ReadDestination`], if the memory is aligned. A store that reads from a disk lets
//! the disk write there. If the bytes of the answer are elsewhere, the answer has them, and its
//! receiver copies them.
//!
//! The caller may use the memory again as soon as the answer is reported. So the answer waits for
//! the end of the loan: no layer and no operation of the kernel may use the memory any more.
//! Usually the loan ends when this module drops the bytes of the answer. If the core ends while the
//! kernel reads, the request is answered with an error after the kernel has given the memory back.
//! A kernel that never gives it back (a dead disk) leaves the request without an answer, because
//! the kernel may still write into the memory.
//!
//! ```text
//!              loan ends               answered
//!      Lent ──────────────> Returned ──────────────> reported
//!        │                                              ^
//!        │ answered                     loan ends       │
//!        └────────────────> Answered ───────────────────┘
//! ```

use std::mem;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use fieldstone_block::{Landed, Payload, Piece, ReadDestination, landed};
use fieldstone_buf::{ALIGN_BYTES, AlignedBuf};

use crate::answer::{Answer, Data, Error};

/// Memory of the caller for the bytes of a read.
///
/// If the memory begins at a multiple of 4096, a file or block device may read directly into it.
/// Then the answer has no data. The answer has the data in all other cases: from other stores, from
/// a cache, of reads that a layer merges or widens. [`Data::scatter`] copies the data that the
/// answer has, so a receiver calls it in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerBuffer {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: this is an address. The caller of `new` guarantees that any thread may use the memory.
unsafe impl Send for CallerBuffer {}
// SAFETY: as above.
unsafe impl Sync for CallerBuffer {}

impl CallerBuffer {
    /// The `len_bytes` bytes from `start` on.
    ///
    /// # Safety
    /// From the submission of a request with this buffer until its answer, the memory is
    /// initialised and valid for reads and writes on any thread. No other code uses it meanwhile,
    /// nor another request.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len_bytes: usize) -> Self {
        Self { start, len_bytes }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn is_aligned(&self) -> bool {
        self.start.addr().get().is_multiple_of(ALIGN_BYTES) && self.len_bytes > 0
    }
}

/// Reports an answer. It has no data if the bytes are in the caller's memory.
pub(crate) type Report = Box<dyn FnOnce(Answer) + Send>;

/// A request that reads into the caller's memory.
pub(crate) struct ReadInto {
    buffer: CallerBuffer,
    state: Mutex<State>,
}

/// See the picture in the module's text.
enum State {
    /// The device may use the memory.
    Lent,
    /// The device does not use the memory any more.
    Returned,
    /// The request is answered, but the device may still use the memory.
    Answered(Answer, Report),
}

impl ReadInto {
    /// A request, and its destination: the memory, if it is aligned.
    pub(crate) fn lend(buffer: CallerBuffer) -> (Arc<Self>, ReadDestination) {
        let lends = buffer.is_aligned();
        let state = Mutex::new(if lends { State::Lent } else { State::Returned });
        let request = Arc::new(Self { buffer, state });
        if !lends {
            return (request, ReadDestination::default());
        }
        let loan = Loan(Arc::clone(&request));
        // SAFETY: the caller of `CallerBuffer::new` guarantees the memory until the answer is
        // reported, and the answer waits for the end of the loan.
        let memory = unsafe { AlignedBuf::foreign(buffer.start, buffer.len_bytes, loan) };
        (request, ReadDestination::of(memory))
    }

    /// The device has answered. Calls `report` when the loan has ended: now, or later on the thread
    /// that ends the loan.
    pub(crate) fn answer(&self, result: Result<Payload, Error>, report: Report) {
        let start = self.buffer.start.addr().get();
        let memory = start..start + self.buffer.len_bytes;
        let result = result.map(|payload| {
            let data = Data::of(payload);
            match landed(data.pieces(), &memory) {
                // Dropping the piece ends the loan, unless a part of the device has a copy of it.
                Landed::InPlace => Data::default(),
                Landed::Elsewhere => data,
                Landed::InParts => Data::copied(&data),
            }
        });
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Lent) {
            *state = State::Answered(result, report);
            return;
        }
        drop(state);
        report(result);
    }

    fn end_loan(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = mem::replace(&mut *state, State::Returned);
        drop(state);
        if let State::Answered(result, report) = before {
            report(result);
        }
    }
}

/// The loan of a request's memory to the device.
struct Loan(Arc<ReadInto>);

impl Drop for Loan {
    fn drop(&mut self) {
        self.0.end_loan();
    }
}

impl Data {
    /// The same bytes in memory of their own.
    fn copied(data: &Self) -> Self {
        let copy = |piece: &Piece| match piece {
            Piece::Data(bytes) => Piece::Data(Bytes::copy_from_slice(bytes)),
            Piece::Zeroes(len_bytes) => Piece::Zeroes(*len_bytes),
        };
        Data::of(Payload::Data(data.pieces().iter().map(copy).collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// A read of `len_bytes` bytes into aligned memory.
    struct Rig {
        memory: AlignedBuf,
        request: Arc<ReadInto>,
        destination: ReadDestination,
        reported: Receiver<Answer>,
        report: Option<Report>,
    }

    impl Rig {
        fn new(skip: usize, len_bytes: usize) -> Self {
            let mut memory = AlignedBuf::zeroed(skip + len_bytes);
            let start = NonNull::new(memory[skip..].as_mut_ptr()).expect("allocated");
            // SAFETY: the rig keeps the memory, and reads it only after the report.
            let buffer = unsafe { CallerBuffer::new(start, len_bytes) };
            let (request, destination) = ReadInto::lend(buffer);
            let (sender, reported) = channel();
            let report: Report = Box::new(move |result| sender.send(result).expect("received"));
            Self { memory, request, destination, reported, report: Some(report) }
        }

        fn answer(&mut self, result: Result<Payload, Error>) {
            self.request.answer(result, self.report.take().expect("answered once"));
        }

        fn is_reported(&self) -> bool {
            self.report_of().is_some()
        }

        /// The reported bytes, if the answer is reported.
        fn report_of(&self) -> Option<Vec<u8>> {
            let data = self.reported.try_recv().ok()?.expect("a good answer");
            let mut bytes = vec![0; data.len_bytes()];
            data.scatter(&mut [IoSliceMut::new(&mut bytes)]);
            Some(bytes)
        }
    }

    fn data(pieces: impl IntoIterator<Item = Piece>) -> Payload {
        Payload::Data(pieces.into_iter().collect())
    }

    #[test]
    fn bytes_in_place_are_reported_when_the_last_copy_of_them_is_dropped() {
        for holds in [false, true] {
            let mut rig = Rig::new(0, 8192);
            let mut memory = rig.destination.take(8192).expect("aligned memory is lent");
            memory.fill(7);
            let bytes = memory.freeze();
            let held = holds.then(|| bytes.slice(..1));
            rig.answer(Ok(data([Piece::Data(bytes)])));
            assert_eq!(rig.is_reported(), !holds);
            drop(held);
            assert_eq!(rig.is_reported(), holds);
            assert!(rig.memory.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn bytes_elsewhere_are_reported_when_the_device_no_longer_has_the_memory() {
        let mut rig = Rig::new(0, 6);
        rig.answer(Ok(data([Piece::Data(Bytes::from_static(b"stone")), Piece::Zeroes(1)])));
        assert!(!rig.is_reported(), "a store that is late may still write into the memory");
        rig.destination.clear();
        assert_eq!(rig.report_of().as_deref(), Some(&b"stone\0"[..]));
    }

    #[test]
    fn parts_in_place_are_copied_before_the_loan_ends() {
        let mut rig = Rig::new(0, 4);
        let mut memory = rig.destination.take(4).expect("lent");
        memory.copy_from_slice(b"cdab");
        let bytes = memory.freeze();
        let parts = [Piece::Data(bytes.slice(2..)), Piece::Data(bytes.slice(..2))];
        drop(bytes);
        rig.answer(Ok(data(parts)));
        assert_eq!(rig.report_of().as_deref(), Some(&b"abcd"[..]));
    }

    #[test]
    fn memory_that_is_not_aligned_is_not_lent() {
        let mut rig = Rig::new(1, 3);
        assert!(rig.destination.is_none());
        rig.answer(Ok(data([Piece::Data(Bytes::from_static(b"abc"))])));
        assert_eq!(rig.report_of().as_deref(), Some(&b"abc"[..]));
    }

    #[test]
    fn an_error_is_reported_after_the_loan() {
        let mut rig = Rig::new(0, 4096);
        let memory = rig.destination.take(4096).expect("lent");
        rig.answer(Err(Error::Closed));
        assert!(!rig.is_reported(), "the disk may still write");
        drop(memory);
        assert_eq!(rig.reported.try_recv(), Ok(Err(Error::Closed)));
    }
}
