//! The errors of OSDMaps.

use thiserror::Error;

use super::{Fsid, PgId, PoolId};
use crate::{OsdId, binary};

/// Why bytes are no usable OSDMap. Offsets are in bytes from the start of the file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes or a structure end before the last field.
    #[error(
        "{what} at byte {offset} needs {needed} bytes, but only {left} are there: \
         the file is cut short, damaged, or no OSDMap"
    )]
    Truncated {
        /// The field.
        what: &'static str,
        /// Its offset.
        offset: usize,
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes until the end of the structure around it.
        left: usize,
    },
    /// A structure written before Ceph had the fields that placement needs.
    #[error(
        "{what} at byte {offset} has version {version}; {oldest} is the oldest that can be read. \
         Is this an OSDMap (`ceph osd getmap -o FILE`)?"
    )]
    TooOld {
        /// The structure.
        what: &'static str,
        /// Offset of its fields.
        offset: usize,
        /// Its version.
        version: u8,
        /// The oldest version known here.
        oldest: u8,
    },
    /// A structure that requires its readers to know a newer version than this crate does.
    #[error(
        "{what} at byte {offset} wants a reader of version {min_version}, but this one knows \
         {known}: the map is from a later Ceph, or no OSDMap"
    )]
    TooNew {
        /// The structure.
        what: &'static str,
        /// Its offset.
        offset: usize,
        /// The version that a reader must know.
        min_version: u8,
        /// The newest version known here.
        known: u8,
    },
    /// A number of variable length with too many bytes.
    #[error("{what} before byte {offset} is a number of more than 64 bits: the file is damaged")]
    BadVarint {
        /// The field.
        what: &'static str,
        /// Where reading stopped.
        offset: usize,
    },
    /// A number that no real map has.
    #[error("{what} before byte {offset} is {value}; it must be from {min} to {max}")]
    OutOfBounds {
        /// The field.
        what: &'static str,
        /// Where reading stopped.
        offset: usize,
        /// Its value.
        value: u64,
        /// The smallest allowed value.
        min: u64,
        /// The greatest allowed value.
        max: u64,
    },
    /// A list with one entry per device has a wrong length.
    #[error("the list of {what} has {len} entries, but the map has {osds} OSDs")]
    BadLength {
        /// The list.
        what: &'static str,
        /// Its length.
        len: usize,
        /// OSDs of the map.
        osds: usize,
    },
    /// The checksum at the end is not that of the bytes.
    #[error(
        "the checksum of the OSDMap is {computed:#010x}, but the file says {stored:#010x}: \
         the file is damaged; get it again"
    )]
    BadChecksum {
        /// The checksum in the file.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// The checksum of an increment is not that of its bytes.
    #[error(
        "the checksum of the increment is {computed:#010x}, but it says {stored:#010x}: \
         it is damaged; get it again"
    )]
    BadIncrementChecksum {
        /// The checksum in the increment.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// The full map inside an increment cannot be used.
    #[error("the full map at byte {offset} of the increment: {error}")]
    FullMap {
        /// Its offset; offsets in `error` count from there.
        offset: usize,
        /// The error.
        error: Box<DecodeError>,
    },
    /// The CRUSH map inside cannot be used.
    #[error("the CRUSH map at byte {offset} of the OSDMap: {error}")]
    Crush {
        /// Its offset; offsets in `error` count from there.
        offset: usize,
        /// The error.
        error: binary::DecodeError,
    },
    /// A map cannot be written back because its version has no room for a table.
    #[error("this OSDMap has version {version}, which has no room for {what}")]
    NoRoom {
        /// The table.
        what: &'static str,
        /// The version of the map's client part.
        version: u8,
    },
}

/// Why an increment cannot be applied to a map. The map stays as it was.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ApplyError {
    /// The increment is of another cluster.
    #[error("the increment is of cluster {increment}, the OSDMap of {map}")]
    WrongFsid {
        /// The cluster of the map.
        map: Fsid,
        /// The cluster of the increment.
        increment: Fsid,
    },
    /// The increment does not follow the map: increments between are missing, or it is old.
    #[error("the increment leads to epoch {increment}, but the OSDMap has epoch {map}")]
    WrongEpoch {
        /// The epoch of the map.
        map: u32,
        /// The epoch to which the increment leads.
        increment: u32,
    },
    /// The full map inside the increment has another epoch or is of another cluster.
    #[error("the full map in the increment to epoch {increment} is epoch {full} of cluster {fsid}")]
    WrongFullMap {
        /// The epoch to which the increment leads.
        increment: u32,
        /// The epoch of the full map in it.
        full: u32,
        /// The cluster of the full map.
        fsid: Fsid,
    },
    /// The increment changes an OSD beyond the end of the map.
    #[error("the increment changes osd.{}, but the OSDMap has room for {osds} OSDs", .osd.0)]
    NoSuchOsd {
        /// The OSD.
        osd: OsdId,
        /// OSDs that the map has room for, after the increment.
        osds: usize,
    },
}

/// An error of a look-up in an OSDMap.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlaceError {
    /// No pool of that number.
    #[error("the OSDMap has no pool {}", .0.0)]
    NoSuchPool(PoolId),
    /// No placement group of that number.
    #[error("pool {} has {pg_num} placement groups; there is no {pg}", .pg.pool.0)]
    NoSuchPg {
        /// The group.
        pg: PgId,
        /// Groups of its pool.
        pg_num: u32,
    },
}
