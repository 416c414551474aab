//! Operations on an object. A request carries a list of them, and the OSD executes the list as one
//! transaction: all of the writes, or none.
//!
//! ```
//! use fieldstone_rados::op::ObjectOps;
//! let mut ops = ObjectOps::new();
//! ops.create(true).write(0, b"header".to_vec().into()).set_xattr("kind", b"volume");
//! assert!(ops.is_write());
//! ```
//!
//! **Layout.** An operation is 38 bytes in the request: u16 code, u32 flags, 28 bytes of fields
//! whose meaning depends on the code, u32 length of its data. The data of all operations follow
//! each other in the data part of the message. [`ObjectOps`] writes the fields, [`Op::view`] reads
//! them.
//!
//! **Order.** Operations run in the order of the list. The first that fails ends the request,
//! unless it has [`FAIL_OK`]. An operation that reads data, attributes or the omap sees what was
//! stored before the request. Size and existence are those after the operations before it: a `stat`
//! behind a `write` tells the new size.
//!
//! **What an OSD makes of odd inputs** (Ceph 16):
//!
//! | Input | What happens |
//! |---|---|
//! | `zero` of 0 bytes | the OSD stops (an assertion); the builder leaves it out |
//! | `zero` up to the end of the object or beyond | the object is cut there, so it becomes shorter; behind the end nothing happens |
//! | `read` of 0 bytes | the whole rest of the object comes |
//! | `write` of 0 bytes behind the end | the object grows to the offset |
//! | an extent beyond `osd_max_object_size` (128 MiB), or an offset at it | `EFBIG` (27), also from `truncate` |
//! | `truncate` of an object that is not there | nothing, and no error |
//! | `write_same` with no data, or with a length that is no multiple of the data's | `EINVAL` |
//! | `assert_version` of 0 | `EINVAL` |
//! | `zero`, `truncate`, `write` in an erasure-coded pool without overwrites | `EOPNOTSUPP`, but for a write at the end that is aligned |
//! | omap operations in an erasure-coded pool | `EOPNOTSUPP` |
//! | `list_snaps` of another state than [`ALL_SNAPSHOTS`] | `EINVAL` |
//! | an empty request | the builder cannot prevent it: do not send it |

mod build;
pub mod code;
pub mod results;
#[cfg(test)]
mod tests;
mod view;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::cluster::SnapId;

pub use build::{CompareOp, WatchStep};
pub use view::View;

/// The operations of one request, in order.
#[derive(Clone, Debug, Default)]
pub struct ObjectOps {
    ops: SmallVec<[Op; 2]>,
    /// A class is called that may write.
    calls_write: bool,
    /// The last operation was left out, so flags for it have no place.
    left_out: bool,
}

impl PartialEq for ObjectOps {
    fn eq(&self, other: &Self) -> bool {
        self.ops == other.ops && self.is_write() == other.is_write()
    }
}

impl Eq for ObjectOps {}

/// The namespace of a request that lists the objects of all namespaces.
pub const ALL_NAMESPACES: &str = "\u{1}";

/// The state that [`ObjectOps::list_snaps`] reads: all snapshots of the object (Ceph:
/// `CEPH_SNAPDIR`).
pub const ALL_SNAPSHOTS: SnapId = SnapId(u64::MAX);

/// Flag of an operation: `create` fails if the object exists.
pub const EXCLUSIVE: u32 = 0x01;
/// Flag of an operation: if it fails, the request goes on.
pub const FAIL_OK: u32 = 0x02;
/// Flag of an operation, a hint: accesses are random.
pub const FADVISE_RANDOM: u32 = 0x04;
/// Flag of an operation, a hint: accesses are sequential.
pub const FADVISE_SEQUENTIAL: u32 = 0x08;
/// Flag of an operation, a hint: the data will be used again soon.
pub const FADVISE_WILLNEED: u32 = 0x10;
/// Flag of an operation, a hint: the data will not be used again soon.
pub const FADVISE_DONTNEED: u32 = 0x20;
/// Flag of an operation, a hint: this client uses the data once.
pub const FADVISE_NOCACHE: u32 = 0x40;

/// One operation as it stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Ceph's number of the operation: one of [`code`]'s, or another.
    pub code: u16,
    /// Flags of the operation alone: [`FAIL_OK`] and hints.
    pub flags: u32,
    /// The fields, as they stand in the 28 bytes of the operation's union.
    pub fields: [u8; 28],
    /// The data of the operation.
    pub data: Bytes,
}

/// The answer to one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpResult {
    /// Negative: an error number. Otherwise the result of the operation.
    pub result: i32,
    /// The data that the operation gives.
    pub data: Bytes,
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Negative: the error number of the request. Otherwise the result of the last operation.
    pub result: i32,
    /// The version of the object after a write, or that a read saw.
    pub user_version: u64,
    /// The answers to the operations, in order. A write gives data only if the request asked for
    /// it ([`Operation::wants_data`](crate::cluster::Operation)).
    pub ops: SmallVec<[OpResult; 2]>,
}
