//! The table of requests in flight: the data that makes a reply from a completion.
//!
//! A request id is a slot's index (low half) and its generation (high half). The generation grows
//! whenever a slot is freed, so a completion that arrives twice or too late finds no request.

use fieldstone_block::{EXTENTS_MAX, Extent, RequestId};

/// The part of the request that decides the form of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reply with data; `whole`: in one content chunk.
    Read { whole: bool },
    /// Reply with success only.
    Write,
    /// Reply with success only.
    Flush,
    /// Reply with success only.
    Trim,
    /// Reply with success only; `fast`: the client also accepts "not supported" as an answer.
    WriteZeroes { fast: bool },
    /// Read, and reply with success only.
    Cache,
    /// Reply with extents; `one`: only the first.
    BlockStatus { one: bool },
}

impl Kind {
    /// The size of a request of `len_bytes` in the memory bound: its payload, the bytes that it
    /// reads, or the extents of its answer.
    pub fn charge_bytes(self, len_bytes: u32) -> usize {
        match self {
            Kind::Read { .. } | Kind::Write | Kind::Cache => len_bytes as usize,
            Kind::BlockStatus { .. } => EXTENTS_MAX * size_of::<Extent>(),
            Kind::Flush | Kind::Trim | Kind::WriteZeroes { .. } => 0,
        }
    }
}

/// One request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightRequest {
    pub cookie: u64,
    pub offset_bytes: u64,
    pub len_bytes: u32,
    pub kind: Kind,
    /// The size of the request in the memory bound.
    pub charge_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    request: Option<InFlightRequest>,
}

/// The table. It grows up to the caller's bound and never shrinks.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Slots {
    pub fn in_flight(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn insert(&mut self, request: InFlightRequest) -> RequestId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, request: None });
            u32::try_from(self.entries.len() - 1).expect("max_in_flight is a u32")
        });
        let entry = &mut self.entries[index as usize];
        entry.request = Some(request);
        RequestId(u64::from(entry.generation) << 32 | u64::from(index))
    }

    pub fn remove(&mut self, id: RequestId) -> Option<InFlightRequest> {
        let index = (id.0 & u64::from(u32::MAX)) as usize;
        let entry = self.entries.get_mut(index)?;
        if u64::from(entry.generation) != id.0 >> 32 {
            return None;
        }
        let request = entry.request.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(u32::try_from(index).expect("masked to 32 bits"));
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(cookie: u64) -> InFlightRequest {
        InFlightRequest {
            cookie,
            offset_bytes: 0,
            len_bytes: 0,
            kind: Kind::Flush,
            charge_bytes: 0,
        }
    }

    #[test]
    fn a_freed_slot_is_reused_under_another_id() {
        let mut slots = Slots::default();
        let first = slots.insert(request(1));
        assert_eq!(slots.remove(first).unwrap().cookie, 1);
        let second = slots.insert(request(2));
        assert_ne!(first, second);
        assert!(slots.remove(first).is_none(), "a late completion must not answer a newer request");
        assert_eq!(slots.in_flight(), 1);
        assert_eq!(slots.remove(second).unwrap().cookie, 2);
        assert!(slots.remove(second).is_none());
        assert!(slots.remove(RequestId(77)).is_none());
        assert_eq!(slots.in_flight(), 0);
    }
}
