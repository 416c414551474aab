//! The requests that wait for a link to open, and what they take of the memory.

use fieldstone_proto::route::{ADDRESS_BYTES_MAX, REPLICAS_MAX};
use fieldstone_proto::{Replica, Request, RequestBody, Route};

/// What a request that waits for a link takes at most beside its payload and its checksums, in
/// bytes: the request, the route with its most replicas, and their addresses of the longest length
/// with the coefficients of a column. A growing list has at most as many empty places as requests,
/// and each small allocation at most [`ALLOCATION_BYTES`] of the allocator's.
///
/// With the present types this is 4168 on a 64-bit machine, so at most 8,050 requests without
/// payload wait for a link. Of it, 576 are the allocator's. A test measures the others: 3594 bytes
/// for each of 1,025 such requests, as they come from the wire.
pub(super) const REQUEST_BYTES: usize = 2 * size_of::<Request>()
    + size_of::<Route>()
    + REPLICAS_MAX * (size_of::<Replica>() + ADDRESS_BYTES_MAX + SHARED_BYTES)
    + REPLICAS_MAX
    + SHARED_BYTES
    + (2 * REPLICAS_MAX + 4) * ALLOCATION_BYTES;

/// What shared bytes take beside themselves: their place, length and number of owners.
const SHARED_BYTES: usize = 3 * size_of::<usize>();

/// What the allocator takes for an allocation beside it: its own word, and the rounding to two.
const ALLOCATION_BYTES: usize = 2 * size_of::<usize>();

/// What the requests that wait for all links of a core may take beside their payloads, in bytes.
pub(super) const HELD_BYTES_MAX: usize = 64 << 20;

/// Requests that wait for a link to open.
#[derive(Default)]
pub(super) struct Waiting {
    requests: Vec<Request>,
    payload_bytes: usize,
    held_bytes: usize,
}

impl Waiting {
    /// Adds a request. Returns what it takes beside its payload, in bytes.
    pub(super) fn push(&mut self, request: Request) -> usize {
        // A list of checksums keeps its memory when it is emptied.
        let checksums = match &request.body {
            RequestBody::ShardWrite { checksums, .. } | RequestBody::Fragment { checksums, .. } => {
                checksums.capacity()
            }
            _ => 0,
        };
        let parts = request.payload.capacity() * size_of::<bytes::Bytes>();
        let held_bytes = REQUEST_BYTES + checksums * size_of::<u32>() + parts;
        self.payload_bytes += request.payload.iter().map(bytes::Bytes::len).sum::<usize>();
        self.held_bytes += held_bytes;
        self.requests.push(request);
        held_bytes
    }

    /// What the requests take beside their payloads, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// What the requests take in total, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.payload_bytes + self.held_bytes
    }

    pub(super) fn into_requests(self) -> Vec<Request> {
        self.requests
    }
}
