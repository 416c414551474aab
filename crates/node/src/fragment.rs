//! A fragment of a payload.

use bytes::Bytes;
use fieldstone_buf::Cutter;
use fieldstone_proto::{BLOCK_BYTES, crc32c_of_parts};

use crate::handlers::payload_len;

/// A fragment, as the connection hands it in.
#[derive(Clone, Debug)]
pub(crate) struct Fragment {
    /// CRC-32C of each block, if the write is one of a shard.
    pub(crate) checksums: Vec<u32>,
    /// CRC-32C of the bytes, as their sender made it.
    pub(crate) payload_crc: u32,
    pub(crate) payload: Vec<Bytes>,
}

impl Fragment {
    pub(crate) fn new(checksums: Vec<u32>, payload: Vec<Bytes>) -> Self {
        let payload_crc = crc32c_of_parts(&payload);
        Self { checksums, payload_crc, payload }
    }

    /// Cuts a fragment that starts at byte `at_bytes` of the payload where a part ends. Gives each
    /// piece with the number of its part.
    pub(crate) fn parts(&self, mut at_bytes: usize, part_bytes: usize) -> Vec<(usize, Self)> {
        let end_bytes = at_bytes + payload_len(&self.payload);
        if at_bytes / part_bytes == (end_bytes - 1) / part_bytes {
            return vec![(at_bytes / part_bytes, self.clone())];
        }
        let mut cutter = Cutter::new(self.payload.clone());
        let mut checksums = &self.checksums[..];
        let mut parts = Vec::new();
        while at_bytes < end_bytes {
            let part = at_bytes / part_bytes;
            let len_bytes = end_bytes.min((part + 1) * part_bytes) - at_bytes;
            let (sums, rest) = checksums.split_at(len_bytes / BLOCK_BYTES);
            parts.push((part, Self::new(sums.to_vec(), cutter.next(len_bytes))));
            (checksums, at_bytes) = (rest, at_bytes + len_bytes);
        }
        parts
    }
}
