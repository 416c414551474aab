//! Names of the objects of images.
//!
//! | Object | Content |
//! |---|---|
//! | `rbd_id.NAME` | the id of the image with this name |
//! | `rbd_header.ID` | the metadata, as key-value pairs; clients watch and lock it |
//! | `rbd_object_map.ID` | two bits for each object of the present state |
//! | `rbd_object_map.ID.SNAP` | the same, frozen at a snapshot |
//! | `PREFIX.NUMBER` | data; the prefix is in the header |
//! | `rbd_directory` | names and ids of all images of a namespace |
//! | `rbd_children` | children of snapshots, for clones of format 1 |
//! | `rbd_trash`, `rbd_info`, `rbd_mirroring` | deleted images, settings of the pool, mirrored images |

use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::SnapId;

/// The list of images.
pub const DIRECTORY: &str = "rbd_directory";
/// The list of children of clones of format 1.
pub const CHILDREN: &str = "rbd_children";
/// Settings of the pool.
pub const INFO: &str = "rbd_info";
/// Images in the trash.
pub const TRASH: &str = "rbd_trash";
/// Mirrored images.
pub const MIRRORING: &str = "rbd_mirroring";

/// The longest name of an image that is accepted, in bytes.
pub const NAME_BYTES_MAX: usize = 96;
/// The longest id of an image, in characters. Longer ones would not fit into the prefix of data
/// objects everywhere.
pub const ID_CHARS_MAX: usize = 14;

/// The object that has the id of the image `name`.
#[must_use]
pub fn id_object(name: &str) -> String {
    format!("rbd_id.{name}")
}

/// The header.
#[must_use]
pub fn header(id: &str) -> String {
    format!("rbd_header.{id}")
}

/// The object map of the present state or of a snapshot.
#[must_use]
pub fn object_map(id: &str, snapshot: SnapId) -> String {
    if snapshot == SnapId::HEAD {
        format!("rbd_object_map.{id}")
    } else {
        format!("rbd_object_map.{id}.{:016x}", snapshot.0)
    }
}

/// The prefix of data objects. With a pool of their own, it names the pool of the header.
#[must_use]
pub fn data_prefix(id: &str, metadata_pool: Option<PoolId>) -> String {
    match metadata_pool {
        Some(pool) => format!("rbd_data.{}.{id}", pool.0),
        None => format!("rbd_data.{id}"),
    }
}

/// A data object.
#[must_use]
pub fn data(prefix: &str, number: u64) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    // Each request makes a name, and formatting would be a good part of its work.
    let mut name = String::with_capacity(prefix.len() + 17);
    name.push_str(prefix);
    name.push('.');
    let digit = |at: u32| char::from(DIGITS[(number >> (4 * at)) as usize & 15]);
    name.extend((0..16).rev().map(digit));
    name
}

/// The id of a new image: the number of the client, then random digits, as hexadecimal digits.
#[must_use]
pub fn new_id(client: u64, random: u64) -> String {
    let mut id = format!("{client:x}{:08x}", random & 0xffff_ffff);
    if id.len() > ID_CHARS_MAX {
        id.drain(..id.len() - ID_CHARS_MAX);
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_a_pool_of_a_real_cluster() {
        assert_eq!(id_object("vm"), "rbd_id.vm");
        assert_eq!(header("106fa2a17024"), "rbd_header.106fa2a17024");
        assert_eq!(object_map("12", SnapId::HEAD), "rbd_object_map.12");
        assert_eq!(object_map("12", SnapId(18)), "rbd_object_map.12.0000000000000012");
        assert_eq!(data_prefix("106fa2a17024", Some(PoolId(6))), "rbd_data.6.106fa2a17024");
        assert_eq!(data("rbd_data.1", 255), "rbd_data.1.00000000000000ff");
    }

    #[test]
    fn a_new_id_is_short() {
        assert_eq!(new_id(0x10, 0x1_0000_0002), "1000000002");
        assert_eq!(new_id(u64::MAX, 7).len(), ID_CHARS_MAX);
    }
}
