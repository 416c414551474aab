//! The object map: two bits for each data object of an image.
//!
//! ```text
//! u32 14 | section(1,1) { u64 objects }            the header
//! ceil(objects / 4) bytes                          four objects in a byte, the first on top
//! u32 length | u32 crc of the header's 14 bytes    the footer; empty in inputs of class calls
//!            | u32 count | a crc for each 4096 bytes of data
//! ```
//!
//! The checksums are CRC32C with a start of 0 and no inversion, as everywhere in Ceph.
//!
//! **The rule.** An object that exists is never marked nonexistent. So a client marks it before its
//! first write, and unmarks it after its removal. Only the owner of the image's lock changes a map.
//! If a change fails, a flag in the header says that the map is not to be trusted.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum};
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder};

/// The state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ObjectState {
    /// It does not exist.
    Nonexistent = 0,
    /// It may exist, and it may have changed since the last snapshot.
    Exists = 1,
    /// It is being removed: it may exist.
    Pending = 2,
    /// It exists, and it has not changed since the last snapshot.
    ExistsClean = 3,
}

impl ObjectState {
    /// The state of two bits.
    #[must_use]
    pub fn of(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Nonexistent,
            1 => Self::Exists,
            2 => Self::Pending,
            _ => Self::ExistsClean,
        }
    }

    /// False only if the object surely does not exist.
    #[must_use]
    pub fn may_exist(self) -> bool {
        self != Self::Nonexistent
    }
}

/// The largest number of objects that a map can have (Ceph: `MAX_OBJECT_MAP_OBJECT_COUNT`).
pub const OBJECTS_MAX: u64 = 256_000_000;

/// Data bytes that one checksum covers.
const BLOCK_BYTES: usize = 4096;
/// Length of the header behind its length field.
const HEADER_BYTES: u32 = 14;

/// The states of an image's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMap {
    objects: u64,
    data: Vec<u8>,
}

impl ObjectMap {
    /// A map of this many objects, none of which exists.
    ///
    /// # Panics
    /// There are more objects than [`OBJECTS_MAX`].
    #[must_use]
    pub fn new(objects: u64) -> Self {
        let mut map = Self::default();
        map.resize(objects, ObjectState::Nonexistent);
        map
    }

    /// The number of objects.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.objects
    }

    /// True if the map has no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects == 0
    }

    /// The state of an object; nonexistent behind the end.
    #[must_use]
    pub fn get(&self, object: u64) -> ObjectState {
        if object >= self.objects {
            return ObjectState::Nonexistent;
        }
        let (index, shift) = place(object);
        ObjectState::of(self.data[index] >> shift)
    }

    /// Changes the state of an object; behind the end nothing happens.
    pub fn set(&mut self, object: u64, state: ObjectState) {
        if object >= self.objects {
            return;
        }
        let (index, shift) = place(object);
        self.data[index] = self.data[index] & !(3 << shift) | (state as u8) << shift;
    }

    /// Cuts the map off, or appends objects in this state.
    ///
    /// # Panics
    /// There are more objects than [`OBJECTS_MAX`].
    pub fn resize(&mut self, objects: u64, state: ObjectState) {
        assert!(objects <= OBJECTS_MAX, "the caller has checked the number of objects");
        let old = self.objects;
        self.objects = objects;
        self.data.resize(data_bytes(objects), 0);
        for object in old..objects {
            self.set(object, state);
        }
        // Bits behind the last object are zero.
        for object in objects..objects.next_multiple_of(4) {
            let (index, shift) = place(object);
            self.data[index] &= !(3 << shift);
        }
    }

    /// The objects that may have changed since the last snapshot, by what the map says.
    pub fn changed(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.objects).filter(|&object| {
            matches!(self.get(object), ObjectState::Exists | ObjectState::Pending)
        })
    }

    /// Reads a map, and checks its checksums if it has any.
    ///
    /// # Errors
    /// The bytes are no map, or a checksum is wrong.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(bytes.clone());
        let offset = from.offset();
        let header = from.blob("the header of an object map")?;
        let mut fields =
            Decoder::new(header.clone()).section(1, "the header of an object map")?.fields;
        let objects = fields.u64("the number of objects")?;
        if objects > OBJECTS_MAX {
            return Err(Decoder::refused(offset, objects, "the number of objects"));
        }
        let data = from.bytes(data_bytes(objects), "the states of objects")?;
        let footer_offset = from.offset();
        let mut footer = Decoder::new(from.blob("the footer of an object map")?);
        if !footer.is_empty() {
            let expected = footer.u32("the checksum of an object map")?;
            if crc(&header) != expected {
                let what = "the checksum of the header of an object map";
                return Err(Decoder::refused(footer_offset, expected.into(), what));
            }
            let sums = footer.list(4, "checksums", |from| from.u32("a checksum"))?;
            let blocks = data.chunks(BLOCK_BYTES);
            if sums.len() != blocks.len() {
                let what = "the number of checksums of an object map";
                return Err(Decoder::refused(footer_offset, sums.len() as u64, what));
            }
            for (block, sum) in blocks.zip(sums) {
                if crc(block) != sum {
                    let what = "the checksum of an object map";
                    return Err(Decoder::refused(footer_offset, sum.into(), what));
                }
            }
        }
        let mut map = Self { objects: 0, data: data.to_vec() };
        map.objects = objects;
        Ok(map)
    }

    /// The bytes of the map, as the object has them.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.write(true)
    }

    /// The bytes of the map without checksums, as inputs of class calls have them.
    #[must_use]
    pub fn encode_input(&self) -> Bytes {
        self.write(false)
    }

    fn write(&self, checksums: bool) -> Bytes {
        let mut header = Encoder::new();
        header.section(1, 1, |fields| {
            fields.u64(self.objects);
        });
        let header = header.into_vec();
        debug_assert_eq!(header.len(), HEADER_BYTES as usize, "the format fixes the length");
        let mut footer = Encoder::new();
        if checksums {
            footer.u32(crc(&header));
            footer.list(self.data.chunks(BLOCK_BYTES), |into, block| {
                into.u32(crc(block));
            });
        }
        let mut into = Encoder::with_capacity(self.data.len() + 64);
        into.blob(&header).bytes(&self.data).blob(&footer.into_vec());
        into.finish()
    }
}

/// The byte of an object, and the shift in it.
fn place(object: u64) -> (usize, u32) {
    ((object / 4) as usize, 6 - 2 * (object % 4) as u32)
}

fn data_bytes(objects: u64) -> usize {
    objects.div_ceil(4) as usize
}

/// CRC32C with start 0 and no inversion of at most [`BLOCK_BYTES`] bytes. A CRC is linear, so the
/// inverted one of the bytes and that of as many zeroes differ by it.
fn crc(bytes: &[u8]) -> u32 {
    const ZEROES: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
    let of = |bytes: &[u8]| checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    of(bytes) ^ of(&ZEROES[..bytes.len().min(BLOCK_BYTES)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_map_of_four_objects_has_35_bytes_as_in_a_real_cluster() {
        let mut map = ObjectMap::new(4);
        map.set(0, ObjectState::Exists);
        map.set(3, ObjectState::ExistsClean);
        let bytes = map.encode();
        assert_eq!(bytes.len(), 35);
        assert_eq!(bytes[..18], *b"\x0e\0\0\0\x01\x01\x08\0\0\0\x04\0\0\0\0\0\0\0");
        assert_eq!(bytes[18], 0b0100_0011);
        assert_eq!(map.encode_input().len(), 23);
        assert_eq!(ObjectMap::decode(&map.encode_input()), Ok(map));
    }

    #[test]
    fn the_checksum_starts_at_zero() {
        // Bit by bit, from the polynomial.
        let slow = |bytes: &[u8]| {
            bytes.iter().fold(0u32, |crc, &byte| {
                (0..8).fold(crc ^ u32::from(byte), |crc, _| {
                    (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 }
                })
            })
        };
        assert_eq!(crc(b"foo bar baz"), 4_119_623_852);
        assert_eq!(slow(b"foo bar baz"), 4_119_623_852);
        assert_eq!(crc(&[]), 0);
    }

    #[test]
    fn hostile_bytes_give_an_error_or_a_map() {
        let mut map = ObjectMap::new(9);
        map.set(8, ObjectState::Exists);
        let bytes = map.encode();
        for len in 0..bytes.len() {
            assert!(ObjectMap::decode(&bytes.slice(..len)).is_err(), "{len} bytes");
        }
        for index in 0..bytes.len() {
            let mut flipped = bytes.to_vec();
            flipped[index] ^= 0x40;
            let _ = ObjectMap::decode(&flipped.into());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_map_is_a_list_of_states(
            sizes in proptest::collection::vec((0u64..40_000, 0u8..4), 1..4),
            sets in proptest::collection::vec((0u64..40_000, 0u8..4), 0..50),
        ) {
            let mut map = ObjectMap::default();
            let mut naive: Vec<ObjectState> = Vec::new();
            for (size, state) in sizes {
                map.resize(size, ObjectState::of(state));
                naive.resize(size as usize, ObjectState::of(state));
                for &(object, state) in &sets {
                    map.set(object, ObjectState::of(state));
                    if let Some(slot) = naive.get_mut(object as usize) {
                        *slot = ObjectState::of(state);
                    }
                }
            }
            let states: Vec<_> = (0..map.len()).map(|object| map.get(object)).collect();
            prop_assert_eq!(&states, &naive);
            prop_assert_eq!(ObjectMap::decode(&map.encode()), Ok(map));
        }
    }
}
