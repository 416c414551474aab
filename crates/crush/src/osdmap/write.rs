//! Writes an OSDMap with other tables. The changed parts are written anew, the rest is copied, and
//! lengths and checksum are corrected. So a map can be changed by a writer that does not know all
//! of its fields.

use super::decode::{self, FieldRanges, HEADER_LEN, PRIMARIES_CLIENT};
use super::writer::Writer;
use super::{DecodeError, OsdMap};
use crate::binary::{self, Release};

pub(super) fn rewrite(map: &OsdMap, original: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let (old, ranges) = decode::decode(original)?;
    if ranges.client_version < PRIMARIES_CLIENT && !map.pg_upmap_primaries.is_empty() {
        let version = ranges.client_version;
        return Err(DecodeError::NoRoom { what: "pg_upmap_primaries", version });
    }
    let mut out = Writer { bytes: original[..ranges.osds.start].to_vec() };
    out.osds(map, ranges.narrow_states);
    out.bytes.extend_from_slice(&original[ranges.osds.end..ranges.temps.start]);
    out.table(&map.pg_temp, |out, items| out.items(items));
    out.table(&map.primary_temp, |out, &item| out.i32(item.0));
    out.affinities(&map.primary_affinities);
    if map.crush == old.crush {
        out.bytes.extend_from_slice(&original[ranges.crush.clone()]);
    } else {
        let crush = binary::encode(&map.crush, Release::min_for(&map.crush));
        out.blob(&crush);
    }
    out.bytes.extend_from_slice(&original[ranges.crush.end..ranges.upmaps.start]);
    out.table(&map.pg_upmap, |out, items| out.items(items));
    out.table(&map.pg_upmap_items, |out, pairs| out.pairs(pairs));
    out.bytes.extend_from_slice(&original[ranges.upmaps.end..ranges.primaries.start]);
    if !ranges.primaries.is_empty() {
        out.table(&map.pg_upmap_primaries, |out, &item| out.i32(item.0));
        out.bytes.extend_from_slice(&original[ranges.primaries.end..ranges.client.end]);
    }
    let client_len = out.bytes.len() - ranges.client.start - HEADER_LEN;
    out.bytes.extend_from_slice(&original[ranges.client.end..]);
    out.finish(&ranges, client_len);
    Ok(out.bytes)
}

/// The bytes with a corrected checksum; `None` if there is any other error.
pub(super) fn seal(bytes: &[u8]) -> Option<Vec<u8>> {
    let (_, ranges) = decode::decode_unchecked(bytes).ok()?;
    let mut out = Writer { bytes: bytes.to_vec() };
    out.finish(&ranges, ranges.client.len() - HEADER_LEN);
    Some(out.bytes)
}

impl Writer {
    fn osds(&mut self, map: &OsdMap, narrow: bool) {
        self.count(map.states.len());
        for state in &map.states {
            match narrow {
                true => self.u8(state.0 as u8),
                false => self.u32(state.0),
            }
        }
        self.u32s(&map.weights);
    }

    /// Writes the two lengths and the checksum. The bytes after the client part have moved by as
    /// much as that part grew.
    fn finish(&mut self, ranges: &FieldRanges, client_len: usize) {
        let old_client_len = ranges.client.len() - HEADER_LEN;
        let shift = |at: usize| at + client_len - old_client_len;
        self.patch(ranges.client.start + HEADER_LEN, client_len as u32);
        self.patch(HEADER_LEN, shift(ranges.whole.len() - HEADER_LEN) as u32);
        if let Some(checksum) = &ranges.checksum {
            let (start, end) = (shift(checksum.start), shift(checksum.end));
            let whole_end = shift(ranges.whole.end);
            let parts = [&self.bytes[..start], &self.bytes[end..whole_end]];
            let checksum = decode::checksum(&parts);
            self.patch(end, checksum);
        }
    }
}
