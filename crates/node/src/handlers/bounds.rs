//! Checks that need only the request: alignment, lengths, counts.

use bytes::Bytes;

use fieldstone_proto::{
    BLOCK_BYTES, ElementTable, FragmentRole, NodeError, PAYLOAD_BYTES_MAX, ROOT_BYTES_MAX, Request,
    RequestBody, SealMeta,
};

use crate::limits::{RING_BYTES_MAX, SEGMENTS_PER_DELETE};

fn invalid(what: &str) -> Result<(), NodeError> {
    Err(NodeError::Invalid(what.to_owned()))
}

fn is_aligned(bytes: u64) -> bool {
    bytes.is_multiple_of(BLOCK_BYTES as u64)
}

/// Total length of a gather list.
pub(crate) fn payload_len(payload: &[Bytes]) -> usize {
    payload.iter().map(Bytes::len).sum()
}

/// Checks that a payload consists of whole chunks of the elements of its column.
pub(super) fn whole_chunks(table: &ElementTable, len_bytes: usize) -> Result<(), NodeError> {
    match len_bytes.is_multiple_of(table.chunk_bytes as usize) {
        true => Ok(()),
        false => invalid("the payload of a column consists of whole chunks"),
    }
}

/// The payload of a request, which is here or follows in fragments.
pub(super) struct PayloadSize {
    pub(super) len_bytes: usize,
    /// It has this number of parts. The bounds of a write apply to each part.
    pub(super) parts: usize,
    /// It follows, with the checksums of its blocks.
    pub(super) follows: bool,
}

impl PayloadSize {
    pub(super) fn of(request: &Request) -> Self {
        let parts = request.route.as_ref().map_or(1, |route| route.parts());
        match request.fragment_role() {
            FragmentRole::Begins(len_bytes) => Self { len_bytes, parts, follows: true },
            _ => Self { len_bytes: payload_len(&request.payload), parts, follows: false },
        }
    }
}

/// Checks a request on its own.
pub(super) fn check(
    body: &RequestBody,
    PayloadSize { len_bytes, parts, follows }: PayloadSize,
    slot_bytes: u32,
) -> Result<(), NodeError> {
    match body {
        RequestBody::PutRoot { version } => {
            if *version == 0 {
                return invalid("root versions start at 1");
            }
            if len_bytes > ROOT_BYTES_MAX {
                return invalid("the root is longer than 60 KiB");
            }
            Ok(())
        }
        RequestBody::JournalAppend { lsn, .. } => {
            if len_bytes == 0 || len_bytes > PAYLOAD_BYTES_MAX || !is_aligned(len_bytes as u64) {
                return invalid("an append is a multiple of 4096 bytes, at least one, up to 4 MiB");
            }
            if !is_aligned(lsn.0) {
                return invalid("an append starts at a multiple of 4096");
            }
            Ok(())
        }
        RequestBody::ShardWrite { offset_bytes, checksums, seal, .. } => {
            if follows && !checksums.is_empty() {
                return invalid("the checksums of a payload in fragments come with the fragments");
            }
            let sums = if follows { len_bytes / BLOCK_BYTES } else { checksums.len() };
            if !len_bytes.is_multiple_of(parts) || !sums.is_multiple_of(parts) {
                return invalid("the parts of a payload have the same length");
            }
            // The connection of a writer in this process has no bound of its own.
            if parts > 1 && len_bytes > PAYLOAD_BYTES_MAX {
                return invalid("a payload in parts has up to 4 MiB");
            }
            let (len_bytes, sums) = (len_bytes / parts, sums / parts);
            shard_write(*offset_bytes, len_bytes, sums, seal.as_ref(), slot_bytes)
        }
        _ if len_bytes != 0 => invalid("this operation takes no payload"),
        RequestBody::JournalCreate { ring_bytes, .. } => {
            if *ring_bytes == 0 || *ring_bytes > RING_BYTES_MAX || !is_aligned(*ring_bytes) {
                return invalid("a ring is a multiple of 4096 bytes, at least one, up to 1 TiB");
            }
            Ok(())
        }
        RequestBody::JournalRead { len_bytes, .. } => read_len(*len_bytes),
        RequestBody::ShardRead { offset_bytes, len_bytes, .. } => {
            read_len(*len_bytes)?;
            let end = u64::from(*offset_bytes) + u64::from(*len_bytes);
            if !is_aligned(u64::from(*offset_bytes)) || end > u64::from(slot_bytes) {
                return invalid("the range is not aligned or past the end of a slot");
            }
            Ok(())
        }
        RequestBody::ShardDelete { segments } if segments.len() > SEGMENTS_PER_DELETE => {
            invalid("more than 4096 segments in one request")
        }
        _ => Ok(()),
    }
}

fn read_len(len_bytes: u32) -> Result<(), NodeError> {
    if len_bytes == 0 || len_bytes as usize > PAYLOAD_BYTES_MAX || !is_aligned(u64::from(len_bytes))
    {
        return invalid("a read is a multiple of 4096 bytes, at least one, up to 4 MiB");
    }
    Ok(())
}

fn shard_write(
    offset_bytes: u32,
    len_bytes: usize,
    checksums: usize,
    seal: Option<&SealMeta>,
    slot_bytes: u32,
) -> Result<(), NodeError> {
    if !is_aligned(u64::from(offset_bytes)) || !is_aligned(len_bytes as u64) || len_bytes == 0 {
        return invalid("a shard write is a multiple of 4096 bytes at a multiple of 4096");
    }
    if offset_bytes as usize + len_bytes > slot_bytes as usize {
        return invalid("the write is past the end of a slot");
    }
    if checksums != len_bytes / BLOCK_BYTES {
        return invalid("a shard write carries one checksum for each block");
    }
    let whole = |meta: &SealMeta| {
        meta.shard_bytes > 0
            && meta.shard_bytes <= slot_bytes
            && is_aligned(u64::from(meta.shard_bytes))
    };
    if seal.is_some_and(|meta| !whole(meta)) {
        return invalid("the length of the sealed shard does not fit a slot");
    }
    Ok(())
}
