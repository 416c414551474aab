//! Writes the fields of maps, little-endian; the counterpart of the module `cursor`.

use std::collections::BTreeMap;

use super::{ErasureProfile, PgId};
use crate::{ItemId, WEIGHT_ONE};

/// The bytes of a map so far.
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn i32(&mut self, value: i32) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn i64(&mut self, value: i64) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn f32(&mut self, value: f32) {
        self.raw(&value.to_le_bytes());
    }

    pub(super) fn zeros(&mut self, len: usize) {
        self.bytes.resize(self.bytes.len() + len, 0);
    }

    /// The count of a list. Lists in memory are far shorter than 2^32.
    pub(super) fn count(&mut self, count: usize) {
        self.u32(count as u32);
    }

    pub(super) fn blob(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    pub(super) fn string(&mut self, text: &str) {
        self.blob(text.as_bytes());
    }

    /// A versioned structure: version, least version of a reader, length, fields.
    pub(super) fn versioned(
        &mut self,
        version: u8,
        min_version: u8,
        fields: impl FnOnce(&mut Self),
    ) {
        self.u8(version);
        self.u8(min_version);
        self.u32(0);
        let start = self.bytes.len();
        fields(self);
        let len = (self.bytes.len() - start) as u32;
        self.patch(start, len);
    }

    /// Overwrites the four bytes before `end`; a length is the last field of a header.
    pub(super) fn patch(&mut self, end: usize, value: u32) {
        self.bytes[end - 4..end].copy_from_slice(&value.to_le_bytes());
    }

    /// Seven bits per byte, the lowest first; a set top bit means that more bytes follow.
    pub(super) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8);
    }

    pub(super) fn pg(&mut self, pg: PgId) {
        self.u8(1);
        self.i64(pg.pool.0);
        self.u32(pg.seed);
        self.i32(-1);
    }

    pub(super) fn items(&mut self, items: &[ItemId]) {
        self.count(items.len());
        items.iter().for_each(|item| self.i32(item.0));
    }

    pub(super) fn pairs(&mut self, pairs: &[(ItemId, ItemId)]) {
        self.count(pairs.len());
        for (from, to) in pairs {
            self.i32(from.0);
            self.i32(to.0);
        }
    }

    pub(super) fn u32s(&mut self, values: &[u32]) {
        self.count(values.len());
        values.iter().for_each(|&value| self.u32(value));
    }

    pub(super) fn list<T>(
        &mut self,
        values: impl ExactSizeIterator<Item = T>,
        mut value: impl FnMut(&mut Self, T),
    ) {
        self.count(values.len());
        values.for_each(|entry| value(self, entry));
    }

    pub(super) fn table<T>(
        &mut self,
        table: &BTreeMap<PgId, T>,
        mut value: impl FnMut(&mut Self, &T),
    ) {
        self.list(table.iter(), |out, (&pg, entry)| {
            out.pg(pg);
            value(out, entry);
        });
    }

    /// A table of strings.
    pub(super) fn strings(&mut self, table: &BTreeMap<String, String>) {
        self.list(table.iter(), |out, (key, value)| {
            out.string(key);
            out.string(value);
        });
    }

    /// A table of tables of strings: erasure code profiles, applications.
    pub(super) fn profiles(&mut self, profiles: &BTreeMap<String, ErasureProfile>) {
        self.list(profiles.iter(), |out, (name, profile)| {
            out.string(name);
            out.strings(profile);
        });
    }

    /// Primary affinities. Writes no list if all are 1.0, as Ceph does.
    pub(super) fn affinities(&mut self, affinities: &[u32]) {
        match affinities.iter().all(|&affinity| affinity == WEIGHT_ONE) {
            true => self.u32(0),
            false => self.u32s(affinities),
        }
    }
}
