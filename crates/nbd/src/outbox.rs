//! Bytes to send, as a gather list: headers packed into one buffer, data by reference.
//!
//! Headers go to the end of a `BytesMut`, which is cut only where data must follow. The pieces
//! share its allocation, and the `BytesMut` gets the allocation back once they have been sent. So a
//! batch of replies allocates nothing, and one `writev` sends it.

use bytes::{Bytes, BytesMut};
use zerocopy::{Immutable, IntoBytes};

/// Data up to this length is copied between the headers: a copy is cheaper than one more gather
/// entry.
const INLINE_BYTES: usize = 256;
const HEADER_BUFFER_BYTES: usize = 16 << 10;
const ZERO_RUN_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    ready: Vec<Bytes>,
    headers: BytesMut,
    pending_bytes: usize,
}

impl Outbox {
    /// Bytes appended and not yet taken.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    pub fn push<T: IntoBytes + Immutable>(&mut self, header: &T) {
        self.copy(header.as_bytes());
    }

    pub fn copy(&mut self, bytes: &[u8]) {
        if self.headers.capacity() - self.headers.len() < bytes.len() {
            // `reserve` would move the bytes in the buffer. After the cut there are none to move.
            self.seal();
            self.headers.reserve(bytes.len().max(HEADER_BUFFER_BYTES));
        }
        self.headers.extend_from_slice(bytes);
        self.pending_bytes += bytes.len();
    }

    pub fn data(&mut self, data: Bytes) {
        if data.len() <= INLINE_BYTES {
            self.copy(&data);
            return;
        }
        self.seal();
        self.pending_bytes += data.len();
        self.ready.push(data);
    }

    pub fn zeroes(&mut self, len_bytes: u32) {
        let mut left = len_bytes as usize;
        while left > 0 {
            let run = left.min(ZERO_RUN_BYTES);
            self.data(fieldstone_buf::zeroes(run));
            left -= run;
        }
    }

    pub fn take_into(&mut self, out: &mut Vec<Bytes>) {
        self.seal();
        out.append(&mut self.ready);
        self.pending_bytes = 0;
    }

    fn seal(&mut self) {
        if !self.headers.is_empty() {
            self.ready.push(self.headers.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order(
            parts in proptest::collection::vec((0u8..3, 0usize..40_000), 0..40)
        ) {
            let mut outbox = Outbox::default();
            let (mut expected, mut out) = (Vec::new(), Vec::new());
            for (index, (how, len)) in parts.into_iter().enumerate() {
                let fill = vec![u8::try_from(index).unwrap() | 1; len];
                match how {
                    0 => outbox.copy(&fill),
                    1 => outbox.data(Bytes::from(fill.clone())),
                    _ => outbox.zeroes(u32::try_from(len).unwrap()),
                }
                expected.extend(if how == 2 { vec![0; len] } else { fill });
                if index % 7 == 6 {
                    outbox.take_into(&mut out);
                    prop_assert_eq!(outbox.pending_bytes(), 0);
                }
            }
            outbox.take_into(&mut out);
            prop_assert_eq!(out.concat(), expected);
        }
    }

    #[test]
    fn headers_are_packed_and_their_buffer_is_reused() {
        let mut outbox = Outbox::default();
        let mut addresses = std::collections::HashSet::new();
        for _ in 0..1000 {
            for _ in 0..32 {
                outbox.copy(&[7; 20]);
            }
            let mut out = Vec::new();
            outbox.take_into(&mut out);
            assert!(out.len() <= 2, "32 headers in {} pieces", out.len());
            addresses.insert(out[0].as_ptr().addr() & !(HEADER_BUFFER_BYTES - 1));
        }
        assert!(addresses.len() <= 4, "{} header buffers in 1000 batches", addresses.len());
    }
}
