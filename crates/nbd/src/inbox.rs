//! The place for received bytes: one fixed buffer, or the payload of a large write itself.
//!
//! A socket layer on io_uring holds a raw pointer into its receive space until the receive
//! completes. So from [`Inbox::space`] until [`Inbox::received`] that space stays in its place. The
//! session may parse and consume the bytes before it, but it moves, resets and frees nothing.
//!
//! After a large write, the inbox cuts the space to the missing bytes of one request header. So a
//! stream of large writes arrives alternately as header and payload, each payload straight in its
//! place. Otherwise the head of every payload would land in the buffer behind the header, and would
//! have to be copied. Any other request widens the space again.

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;

use crate::wire::REQUEST_HEADER_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Buffer,
    Payload,
}

#[derive(Debug)]
struct Payload {
    buffer: AlignedBuf,
    filled: usize,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    buffer: AlignedBuf,
    head: usize,
    tail: usize,
    payload: Option<Payload>,
    armed: Armed,
    header_only: bool,
    /// The future size of the buffer: it gets this size as soon as no receive writes to it.
    capacity_bytes: usize,
}

impl Inbox {
    pub fn new(capacity_bytes: usize) -> Self {
        Self {
            buffer: AlignedBuf::stale(capacity_bytes),
            head: 0,
            tail: 0,
            payload: None,
            armed: Armed::No,
            header_only: false,
            capacity_bytes,
        }
    }

    /// Makes the buffer this large from the next [`Inbox::space`] on; it never shrinks.
    pub fn widen(&mut self, capacity_bytes: usize) {
        self.capacity_bytes = capacity_bytes;
    }

    /// The space for the next bytes. Empty only when the buffer is full of unconsumed bytes.
    pub fn space(&mut self) -> &mut [u8] {
        if self.armed == Armed::No {
            let payload_open = self.payload.as_ref().is_some_and(|p| p.filled < p.buffer.len());
            self.armed = if payload_open { Armed::Payload } else { Armed::Buffer };
            if !payload_open {
                self.compact();
                if self.buffer.len() < self.capacity_bytes {
                    self.grow();
                }
            }
        }
        let end = self.window_end();
        match (&mut self.payload, self.armed) {
            (Some(payload), Armed::Payload) => &mut payload.buffer[payload.filled..],
            _ => &mut self.buffer[self.tail..end],
        }
    }

    pub fn has_space(&self) -> bool {
        self.head > 0
            || self.tail < self.buffer.len().max(self.capacity_bytes)
            || self.payload.is_some()
    }

    /// Notes that `len_bytes` bytes were written to the start of the space.
    pub fn received(&mut self, len_bytes: usize) {
        match (std::mem::replace(&mut self.armed, Armed::No), &mut self.payload) {
            (Armed::Payload, Some(payload)) => {
                payload.filled += len_bytes;
                assert!(payload.filled <= payload.buffer.len(), "more received than space given");
            }
            _ => {
                self.tail += len_bytes;
                assert!(self.tail <= self.buffer.len(), "more received than space given");
            }
        }
    }

    /// The bytes received and not yet consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.head..self.tail]
    }

    pub fn consume(&mut self, len_bytes: usize) {
        self.head += len_bytes;
        debug_assert!(self.head <= self.tail, "consumed more than received");
    }

    /// Consumes up to `len_bytes` bytes. Returns their number.
    pub fn discard(&mut self, len_bytes: usize) -> usize {
        let len_bytes = len_bytes.min(self.tail - self.head);
        self.head += len_bytes;
        len_bytes
    }

    /// Makes the next `len_bytes` bytes the payload of a large write.
    ///
    /// [`Inbox::take_payload`] must be called before the next [`Inbox::space`].
    pub fn open_payload(&mut self, len_bytes: usize) {
        self.payload = Some(Payload { buffer: AlignedBuf::stale(len_bytes), filled: 0 });
    }

    /// The payload opened, once it is complete.
    pub fn take_payload(&mut self) -> Option<Bytes> {
        let payload = self.payload.as_mut()?;
        // Bytes in the buffer belong to the payload: they arrived with the header, or in a receive
        // that was under way when the header was decoded. This empties the buffer before it gives
        // out the payload's own space, so the two never mix.
        let have = (payload.buffer.len() - payload.filled).min(self.tail - self.head);
        payload.buffer[payload.filled..payload.filled + have]
            .copy_from_slice(&self.buffer[self.head..self.head + have]);
        payload.filled += have;
        self.head += have;
        if payload.filled < payload.buffer.len() {
            return None;
        }
        let payload = self.payload.take()?;
        Some(payload.buffer.freeze())
    }

    /// Whether the next request is likely another large write.
    pub fn expect_large_write(&mut self, likely: bool) {
        self.header_only = likely;
    }

    fn window_end(&self) -> usize {
        let buffered = self.tail - self.head;
        if self.header_only && buffered < REQUEST_HEADER_BYTES {
            (self.tail + REQUEST_HEADER_BYTES - buffered).min(self.buffer.len())
        } else {
            self.buffer.len()
        }
    }

    fn grow(&mut self) {
        let mut buffer = AlignedBuf::stale(self.capacity_bytes);
        buffer[..self.tail].copy_from_slice(&self.buffer[..self.tail]);
        self.buffer = buffer;
    }

    fn compact(&mut self) {
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        } else if self.head > 0 && self.buffer.len() - self.tail < self.buffer.len() / 2 {
            self.buffer.copy_within(self.head..self.tail, 0);
            (self.head, self.tail) = (0, self.tail - self.head);
        }
    }
}
