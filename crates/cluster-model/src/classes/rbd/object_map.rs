//! Methods of `rbd_object_map` objects: two bits for each object of an image.
//!
//! ```text
//!   u32 14, u8 1, u8 1, u32 8, u64 number of objects    header, 18 bytes
//!   four objects a byte, the first in the highest bits   data
//!   u32 length of the rest, u32 CRC-32C of the 14 bytes of the header,
//!   u32 number of blocks, u32 CRC-32C of each block of 4096 bytes of data
//! ```
//!
//! The answer of `object_map_load` has an empty footer: its reader gets no checksums.

use bytes::Bytes;
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder, Fault};
use fieldstone_rados::errno::Errno;

use super::{Entry, encoded, input, nothing};
use crate::classes::checksum::crc32c;
use crate::objects::Execution;

/// Most objects that a map has (Ceph: `MAX_OBJECT_MAP_OBJECT_COUNT`).
const MAX_OBJECTS: u64 = 256_000_000;
const HEADER_BYTES: usize = 18;
const BLOCK_BYTES: usize = 4096;
const EXISTS: u8 = 1;
const EXISTS_CLEAN: u8 = 3;

pub(super) const METHODS: &[Entry] = &[
    ("object_map_load", false, load),
    ("object_map_save", true, save),
    ("object_map_resize", true, resize),
    ("object_map_update", true, update),
    ("object_map_snap_add", true, snap_add),
    ("object_map_snap_remove", true, snap_remove),
];

/// The states of an image's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMap {
    objects: u64,
    data: Vec<u8>,
}

impl ObjectMap {
    /// Number of objects.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.objects
    }

    /// True if there is no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects == 0
    }

    /// The state of an object: 0 absent, 1 exists, 2 pending, 3 exists and is clean.
    #[must_use]
    pub fn get(&self, object: u64) -> u8 {
        self.data[(object / 4) as usize] >> (6 - object % 4 * 2) & 3
    }

    fn set(&mut self, object: u64, state: u8) {
        let shift = 6 - object % 4 * 2;
        let byte = &mut self.data[(object / 4) as usize];
        *byte = *byte & !(3 << shift) | (state & 3) << shift;
    }

    fn resize(&mut self, objects: u64) {
        self.data.resize(objects.div_ceil(4) as usize, 0);
        self.objects = objects;
    }

    /// Reads a map, with or without checksums.
    ///
    /// # Errors
    /// The bytes end, or a checksum is wrong.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let offset = from.offset();
        let header = from.blob("the header of an object map")?;
        let objects = Decoder::new(header.clone())
            .section(1, "the header of an object map")?
            .fields
            .u64("a number of objects")?;
        let len = usize::try_from(objects.div_ceil(4)).unwrap_or(usize::MAX);
        let data = from.bytes(len, "the states of objects")?.to_vec();
        let map = Self { objects, data };
        let footer = from.blob("the checksums of an object map")?;
        if !footer.is_empty() && footer != map.footer(&header) {
            let fault = Fault::Value(u64::from(crc32c(0, &header)));
            return Err(DecodeError { what: "the checksums of an object map", offset, fault });
        }
        Ok(map)
    }

    fn header(&self) -> Bytes {
        encoded(|into| {
            into.section(1, 1, |into| {
                into.u64(self.objects);
            });
        })
    }

    fn footer(&self, header: &[u8]) -> Bytes {
        encoded(|into| {
            into.u32(crc32c(0, header));
            into.list(self.data.chunks(BLOCK_BYTES), |into, block| {
                into.u32(crc32c(0, block));
            });
        })
    }

    /// Writes the map.
    pub fn encode(&self, with_checksums: bool, into: &mut Encoder) {
        let header = self.header();
        into.blob(&header).bytes(&self.data);
        into.blob(&if with_checksums { self.footer(&header) } else { Bytes::new() });
    }
}

fn read(object: &Execution<'_>) -> Result<ObjectMap, Errno> {
    let (size, _) = object.stat()?;
    if size == 0 {
        return Err(Errno::ENOENT);
    }
    ObjectMap::decode(&mut Decoder::new(object.bytes(0, size))).map_err(|_| Errno::EINVAL)
}

fn write(object: &mut Execution<'_>, map: &ObjectMap) -> Result<Bytes, Errno> {
    object.write_full(encoded(|into| map.encode(true, into)))?;
    nothing()
}

fn load(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    let map = read(object)?;
    Ok(encoded(|into| map.encode(false, into)))
}

fn save(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let map = input(bytes, ObjectMap::decode)?;
    write(object, &map)
}

fn resize(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (objects, state) = input(bytes, |from| Ok((from.u64("a number")?, from.u8("a state")?)))?;
    if objects > MAX_OBJECTS {
        return Err(Errno::EINVAL);
    }
    let mut map = match read(object) {
        Err(Errno::ENOENT) => ObjectMap::default(),
        other => other?,
    };
    let before = map.len();
    if (objects..before).any(|number| map.get(number) != state) {
        return Err(Errno::ESTALE);
    }
    map.resize(objects);
    for number in before..objects {
        map.set(number, state);
    }
    write(object, &map)
}

fn update(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let (start, end, state, only) = input(bytes, |from| {
        let (start, end) = (from.u64("an object")?, from.u64("an object")?);
        let state = from.u8("a state")?;
        let only =
            if from.bool("whether a state is given")? { Some(from.u8("a state")?) } else { None };
        Ok((start, end, state, only))
    })?;
    object.stat()?;
    let mut map = read(object).map_err(|error| match error {
        Errno::ENOENT => Errno::EINVAL,
        other => other,
    })?;
    if start >= end || end > map.len() {
        return Err(Errno::ERANGE);
    }
    let mut changed = false;
    for number in start..end {
        let present = map.get(number);
        let is_meant =
            only.is_none_or(|only| present == only || (only == EXISTS && present == EXISTS_CLEAN));
        if is_meant && present != state {
            map.set(number, state);
            changed = true;
        }
    }
    if changed {
        write_blocks(object, &map, start, end)?;
    }
    nothing()
}

/// Writes the blocks that have these objects, and their checksums, as an OSD does: the rest of a
/// large map is not written again.
fn write_blocks(
    object: &mut Execution<'_>,
    map: &ObjectMap,
    start: u64,
    end: u64,
) -> Result<(), Errno> {
    let blocks = start as usize / 4 / BLOCK_BYTES..=(end - 1) as usize / 4 / BLOCK_BYTES;
    let first = blocks.start() * BLOCK_BYTES;
    let last = ((blocks.end() + 1) * BLOCK_BYTES).min(map.data.len());
    let data = Bytes::copy_from_slice(&map.data[first..last]);
    let checksums = encoded(|into| {
        for block in data.chunks(BLOCK_BYTES) {
            into.u32(crc32c(0, block));
        }
    });
    object.write((HEADER_BYTES + first) as u64, data)?;
    // In front of the blocks' checksums: length, checksum of the header, number of blocks.
    let footer = HEADER_BYTES + map.data.len() + 12;
    object.write((footer + blocks.start() * 4) as u64, checksums)
}

fn snap_add(object: &mut Execution<'_>, _: Bytes) -> Result<Bytes, Errno> {
    let mut map = read(object)?;
    change(object, &mut map, |_, present| match present {
        EXISTS => EXISTS_CLEAN,
        other => other,
    })
}

fn snap_remove(object: &mut Execution<'_>, bytes: Bytes) -> Result<Bytes, Errno> {
    let removed = input(bytes, ObjectMap::decode)?;
    let mut map = read(object)?;
    change(object, &mut map, |number, present| {
        let is_needed = number >= removed.len() || removed.get(number) == EXISTS;
        if present == EXISTS_CLEAN && is_needed { EXISTS } else { present }
    })
}

fn change(
    object: &mut Execution<'_>,
    map: &mut ObjectMap,
    state: impl Fn(u64, u8) -> u8,
) -> Result<Bytes, Errno> {
    let mut changed = false;
    for number in 0..map.len() {
        let present = map.get(number);
        let wanted = state(number, present);
        if wanted != present {
            map.set(number, wanted);
            changed = true;
        }
    }
    if changed { write(object, map) } else { nothing() }
}
