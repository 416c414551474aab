//! What a layer keeps about requests that it has passed on under their own names.
//!
//! A layer that needs more than the completion to end a request (the lines that a change touches,
//! say) passes the request on under its present name, and finds its note by that name. Names are
//! unique among the requests in flight. Only a request with another range or another operation gets
//! a name of the layer's own.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::RequestId;

/// Hashes one 64-bit number with one folded multiplication.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(value ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15;
        // The fold keeps the high half, where every input bit arrives.
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

/// A note for each of some requests in flight, by the request's name.
pub(crate) struct Flights<T>(HashMap<RequestId, T, BuildHasherDefault<NumberHasher>>);

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Flights(HashMap::default())
    }
}

impl<T> Flights<T> {
    /// The layer passes the request `id` on.
    pub(crate) fn insert(&mut self, id: RequestId, note: T) {
        let other = self.0.insert(id, note);
        debug_assert!(other.is_none(), "two requests in flight are named {id:?}");
    }

    /// The request `id` has ended. `None` if the layer has no note about it.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<T> {
        if self.0.is_empty() { None } else { self.0.remove(&id) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of notes that fit without more memory.
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// The notes, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }

    /// The notes, in no order, to change.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut()
    }
}
