//! Calls that wait for the answer. Any thread but the core's may use them, and may also use
//! [`Queue::submit`].

use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use fieldstone_buf::AlignedBuf;

use crate::answer::{Answer, Complete, Error, OnComplete, is_in_callback};
use crate::caller_buffer::CallerBuffer;
use crate::queue::{Operation, Queue, REQUEST_BYTES_MAX};

/// A caller tries a full queue again after this time at the latest.
const RETRY: Duration = Duration::from_millis(10);
/// Pause before the next try when the queue has room, but the request was refused: the core has too
/// much mail.
const REST: Duration = Duration::from_millis(1);

impl Queue {
    /// Reads into `buffer`. After an error its content is undefined.
    ///
    /// # Errors
    /// The device refuses the request or fails, the queue is closed, the request is too long, or
    /// the caller is a [`Complete`].
    pub fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), Error> {
        // SAFETY: this function has the only reference to the memory, and does not use it before
        // the request is answered. A request that was refused uses no memory.
        let into = unsafe { CallerBuffer::new(NonNull::from(&mut *buffer).cast(), buffer.len()) };
        let data = self.ask(&Operation::ReadInto { offset_bytes, buffer: into })?;
        data.scatter(&mut [IoSliceMut::new(buffer)]);
        Ok(())
    }

    /// Reads a range into several buffers, one buffer after the other.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn read_vectored(
        &self,
        offset_bytes: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Result<(), Error> {
        let len_bytes = buffers.iter().map(|buffer| buffer.len()).sum();
        let data = self.ask(&Operation::Read { offset_bytes, len_bytes })?;
        data.scatter(buffers);
        Ok(())
    }

    /// Writes. Copies the bytes once.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<(), Error> {
        self.write_vectored(offset_bytes, &[IoSlice::new(data)])
    }

    /// Writes several buffers to a range, one buffer after the other.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn write_vectored(&self, offset_bytes: u64, data: &[IoSlice<'_>]) -> Result<(), Error> {
        let len_bytes: usize = data.iter().map(|part| part.len()).sum();
        if len_bytes > REQUEST_BYTES_MAX {
            let (len_bytes, max_bytes) = (len_bytes as u64, REQUEST_BYTES_MAX as u64);
            return Err(Error::TooLong { len_bytes, max_bytes });
        }
        let data = AlignedBuf::concat(data.iter().map(|part| &part[..])).freeze();
        self.ask(&Operation::Write { offset_bytes, data, fua: false }).map(drop)
    }

    /// Makes every write stable that was answered before.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn flush(&self) -> Result<(), Error> {
        self.ask(&Operation::Flush).map(drop)
    }

    /// Forgets the content of a range, as [`Operation::Discard`] does.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Error> {
        self.ask(&Operation::Discard { offset_bytes, len_bytes }).map(drop)
    }

    /// Writes zeroes to every byte of a range.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Error> {
        let (no_hole, fua) = (false, false);
        self.ask(&Operation::WriteZeroes { offset_bytes, len_bytes, no_hole, fua }).map(drop)
    }

    /// Submits the operation when there is room, and waits for the answer.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn ask(&self, operation: &Operation) -> Answer {
        thread_local! {
            static WAITER: Arc<Waiter> = Arc::default();
        }
        if is_in_callback() {
            return Err(Error::OnCore);
        }
        let waiter = WAITER.with(Arc::clone);
        let to: Arc<dyn Complete> = Arc::<Waiter>::clone(&waiter);
        let on_complete = OnComplete::new(to, 0);
        loop {
            match self.submit(operation.clone(), on_complete.clone()) {
                Ok(()) => return waiter.wait(),
                Err(Error::Full) => {}
                Err(error) => return Err(error),
            }
            match self.wait_for_room(operation.held_bytes(), RETRY) {
                Ok(()) => std::thread::sleep(REST),
                Err(Error::Full) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Receives the answer to the only request that a thread waits for.
#[derive(Default)]
struct Waiter {
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

impl Waiter {
    fn wait(&self) -> Answer {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match answer.take() {
                Some(answer) => return answer,
                None => {
                    answer = self.answered.wait(answer).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Complete for Waiter {
    fn complete(&self, _: u64, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.answered.notify_one();
    }
}
