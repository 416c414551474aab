//! Writes in fragments: a long payload on the way through several nodes.
//!
//! A node passes a write on to other nodes ([`crate::route`]). If it waited for the whole payload,
//! each step of the way would take the time of the whole write. So whoever sends a long write with
//! a route over a connection may cut it into fragments, and a node passes each fragment on when the
//! fragment has arrived. These are the packets of the network-accelerated DFS paper (section V):
//! the first one has the headers of the write, the others only data, and the handler of the last
//! one completes the write.
//!
//! ```text
//!  the request without payload    tag 7, capability, route, operation; 100 KiB follow
//!  RequestBody::Fragment          tag 7, 32 KiB, and the checksums of their blocks
//!  RequestBody::Fragment          tag 7, the next 32 KiB
//!  ...
//! ```
//!
//! - The fragments come in order, on the connection of the request, and have its tag. Other
//!   messages may come between them: so a writer that stops within a write keeps no other writer of
//!   a link waiting.
//! - A fragment has whole blocks, at most [`FRAGMENT_BYTES_MAX`] bytes of them, and the checksums
//!   of these blocks if the write is one of a shard. The request itself has no checksums then.
//! - The node answers once, when it has carried the write out, or when it gives the write up. It
//!   ignores further fragments of a write that it has refused or given up.
//! - A sender that cannot go on ends the write with [`RequestBody::GiveUp`]. The node answers the
//!   write as given up; GiveUp itself gets no answer.

use bytes::Bytes;
use fieldstone_buf::Cutter;

use crate::capability::Capability;
use crate::message::{Request, RequestBody, Tag};
use crate::{BLOCK_BYTES, PAYLOAD_BYTES_MAX, crc32c_of_parts};

/// The longest fragment, in bytes.
pub const FRAGMENT_BYTES_MAX: usize = 64 << 10;

/// The length of fragments that writers choose, in bytes. A node spends time on each message, so
/// shorter fragments cost more. It passes on only whole fragments, so longer ones wait longer at
/// each node. `docs/network-model.md` compares lengths.
pub const FRAGMENT_BYTES: u32 = 32 << 10;

/// How the payload of a request with a route comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragments {
    /// With the request.
    #[default]
    Whole,
    /// With the request. Whoever sends the request over a connection may cut the payload into
    /// fragments of this length, in bytes. This is not on the wire.
    Allowed(u32),
    /// In fragments behind the request. The number is the length of the payload, in bytes.
    Follow(u32),
    /// It would come in fragments, but the receiver has no memory for it now. This is not on the
    /// wire.
    NoRoom,
}

/// What a request says about fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentRole {
    /// Nothing: it is a whole request.
    None,
    /// Fragments of so many bytes in total follow.
    Begins(usize),
    /// It is a fragment.
    Continues,
    /// The sender gives the write up: its other fragments do not come.
    Ends,
}

impl Request {
    /// What the request says about fragments.
    #[must_use]
    pub fn fragment_role(&self) -> FragmentRole {
        match (&self.body, self.route.as_ref().map(|route| route.fragments)) {
            (RequestBody::Fragment { .. }, _) => FragmentRole::Continues,
            (RequestBody::GiveUp, _) => FragmentRole::Ends,
            (_, Some(Fragments::Follow(bytes))) => FragmentRole::Begins(bytes as usize),
            _ => FragmentRole::None,
        }
    }

    /// The node answers this request. It does not answer fragments.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        !matches!(self.body, RequestBody::Fragment { .. } | RequestBody::GiveUp)
    }
}

/// Cuts a request as far as its route allows: gives the requests to send, in order. A request that
/// is not to be cut comes back with [`Fragments::Whole`] in place of `Allowed`.
pub fn cut(mut request: Request) -> impl Iterator<Item = Request> {
    let fragment_bytes = fragment_bytes(&request);
    let (mut checksums, mut payload) = (Vec::new(), Vec::new());
    if let Some(total_bytes) = fragment_bytes.and(u32::try_from(len_bytes(&request.payload)).ok()) {
        payload = std::mem::take(&mut request.payload);
        if let RequestBody::ShardWrite { checksums: of_blocks, .. } = &mut request.body {
            checksums = std::mem::take(of_blocks);
        }
        if let Some(route) = &mut request.route {
            route.fragments = Fragments::Follow(total_bytes);
        }
    } else if let Some(route) = &mut request.route
        && matches!(route.fragments, Fragments::Allowed(_))
    {
        route.fragments = Fragments::Whole;
    }
    let mut rest = Cutter::new(payload);
    let mut sums = checksums.into_iter();
    let tag = request.tag;
    let fragments = std::iter::from_fn(move || {
        let payload = rest.next(fragment_bytes?);
        let blocks = len_bytes(&payload) / BLOCK_BYTES;
        let checksums = sums.by_ref().take(blocks).collect();
        (!payload.is_empty()).then(|| fragment(tag, checksums, payload))
    });
    std::iter::once(request).chain(fragments)
}

/// A fragment of the write with this tag.
#[must_use]
pub fn fragment(tag: Tag, checksums: Vec<u32>, payload: Vec<Bytes>) -> Request {
    let payload_crc = crc32c_of_parts(&payload);
    passed_on(tag, checksums, payload_crc, payload)
}

/// A fragment with the same bytes as one that has come with this checksum.
#[must_use]
pub fn passed_on(tag: Tag, checksums: Vec<u32>, payload_crc: u32, payload: Vec<Bytes>) -> Request {
    let (body, route) = (RequestBody::Fragment { checksums, payload_crc }, None);
    Request { tag, capability: Capability::default(), body, route, payload }
}

/// The end of the write with this tag, whose other fragments do not come.
#[must_use]
pub fn give_up(tag: Tag) -> Request {
    let (capability, body) = (Capability::default(), RequestBody::GiveUp);
    Request { tag, capability, body, route: None, payload: Vec::new() }
}

/// The length of the fragments of a request; `None` if it must not be cut, or is too short for it.
fn fragment_bytes(request: &Request) -> Option<usize> {
    let Fragments::Allowed(fragment_bytes) = request.route.as_ref()?.fragments else { return None };
    let fragment_bytes =
        (fragment_bytes as usize).min(FRAGMENT_BYTES_MAX) / BLOCK_BYTES * BLOCK_BYTES;
    let len_bytes = len_bytes(&request.payload);
    let is_long =
        fragment_bytes > 0 && len_bytes > fragment_bytes && len_bytes <= PAYLOAD_BYTES_MAX;
    (is_long && len_bytes.is_multiple_of(BLOCK_BYTES)).then_some(fragment_bytes)
}

fn len_bytes(payload: &[Bytes]) -> usize {
    payload.iter().map(Bytes::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{JournalGen, Lsn, Route, SegmentId, ShardIndex};

    fn request(body: RequestBody, fragments: Fragments, payload: Vec<Bytes>) -> Request {
        let route = Some(Box::new(Route { fragments, ..Route::default() }));
        Request { tag: Tag(9), capability: Capability::default(), body, route, payload }
    }

    fn write(checksums: Vec<u32>) -> RequestBody {
        RequestBody::ShardWrite {
            segment: SegmentId(1),
            shard: ShardIndex(2),
            offset_bytes: 0,
            checksums,
            seal: None,
            data_first: false,
        }
    }

    #[test]
    fn a_long_write_is_cut_with_its_checksums() {
        let block = |byte: u8| Bytes::from(vec![byte; BLOCK_BYTES]);
        let long: Bytes = [block(1), block(2), block(3)].concat().into();
        let payload = vec![long.slice(..5000), long.slice(5000..), block(4), block(5)];
        let whole = payload.concat();
        let sums = vec![11, 12, 13, 14, 15];
        let requests: Vec<Request> =
            cut(request(write(sums), Fragments::Allowed(8192), payload)).collect();
        let roles: Vec<FragmentRole> = requests.iter().map(Request::fragment_role).collect();
        let fragment = FragmentRole::Continues;
        assert_eq!(roles, [FragmentRole::Begins(whole.len()), fragment, fragment, fragment]);
        assert_eq!(requests[0].body, write(Vec::new()));
        let (mut bytes, mut found) = (Vec::new(), Vec::new());
        for request in &requests[1..] {
            let RequestBody::Fragment { checksums, payload_crc } = &request.body else {
                panic!("a fragment")
            };
            assert_eq!(*payload_crc, crate::crc32c(&request.payload.concat()));
            assert_eq!((request.tag, request.has_answer()), (Tag(9), false));
            found.push(checksums.clone());
            bytes.extend(request.payload.concat());
        }
        assert_eq!(bytes, whole);
        assert_eq!(found, [vec![11, 12], vec![13, 14], vec![15]]);
    }

    #[test]
    fn what_is_short_or_not_allowed_stays_whole() {
        let append = || RequestBody::JournalAppend { generation: JournalGen(1), lsn: Lsn(0) };
        let two = vec![Bytes::from(vec![7; 2 * BLOCK_BYTES])];
        for (fragments, after) in [
            (Fragments::Whole, Fragments::Whole),
            (Fragments::Allowed(8192), Fragments::Whole),
            (Fragments::Allowed(0), Fragments::Whole),
            (Fragments::Allowed(4095), Fragments::Whole),
            (Fragments::Follow(8192), Fragments::Follow(8192)),
        ] {
            let sent: Vec<Request> = cut(request(append(), fragments, two.clone())).collect();
            assert_eq!(sent, [request(append(), after, two.clone())], "{fragments:?}");
        }
        let odd = vec![Bytes::from(vec![7; 3 * BLOCK_BYTES + 1])];
        assert_eq!(cut(request(append(), Fragments::Allowed(4096), odd)).count(), 1);
        let long = vec![Bytes::from(vec![7; 2 * FRAGMENT_BYTES_MAX])];
        assert_eq!(cut(request(append(), Fragments::Allowed(u32::MAX), long)).count(), 3);
        let mut flat = request(append(), Fragments::Whole, two);
        flat.route = None;
        assert_eq!(cut(flat).count(), 1);
    }
}
