//! Builds the operations of a request.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{EXCLUSIVE, ObjectOps, Op, code};
use crate::cluster::SnapId;
use crate::encoding::Encoder;
use crate::message::osd::{ObjectPosition, flag};

/// How an attribute is compared. The given value stands on the **left**: [`CompareOp::Greater`]
/// holds if the given value is greater than the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CompareOp {
    /// The given value is the attribute.
    Equal = 1,
    /// It is not.
    NotEqual = 2,
    /// It is greater, byte by byte.
    Greater = 3,
    /// It is greater or equal.
    GreaterOrEqual = 4,
    /// It is less.
    Less = 5,
    /// It is less or equal.
    LessOrEqual = 6,
}

/// What a `watch` operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStep {
    /// Ends the watch.
    Unwatch,
    /// Begins it.
    Watch,
    /// Renews it on a new connection. The number grows with each renewal.
    Reconnect(u32),
    /// Tells that the client lives. The number is that of the last renewal.
    Ping(u32),
}

impl WatchStep {
    /// The number of the step, and of the renewal.
    pub(super) fn numbers(self) -> (u8, u32) {
        match self {
            WatchStep::Unwatch => (0, 0),
            WatchStep::Watch => (3, 0),
            WatchStep::Reconnect(renewal) => (5, renewal),
            WatchStep::Ping(renewal) => (7, renewal),
        }
    }
}

/// The fields of an operation on an extent: u64 offset, u64 length, u64 and u32 for truncation
/// (unused).
fn extent(offset: u64, len: u64) -> [u8; 28] {
    let mut fields = [0; 28];
    put(&mut fields, 0, &offset.to_le_bytes());
    put(&mut fields, 8, &len.to_le_bytes());
    fields
}

fn put(fields: &mut [u8; 28], at: usize, bytes: &[u8]) {
    fields[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A length that has 32 bits in the fields.
fn len32(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).expect("messages are shorter than 4 GiB").to_le_bytes()
}

impl ObjectOps {
    /// No operations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// True if there is no operation. Such a request must not be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// The operations.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// True if an operation changes the object, or may: a watch and a [`call`](Self::call) too.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.calls_write || self.ops.iter().any(|op| op.code & code::MODE_WRITE != 0)
    }

    /// True if an operation reads the object, or may.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.ops.iter().any(|op| op.code & code::MODE_READ != 0)
    }

    /// The flags of a request that its operations ask for: [`flag::WRITE`] if one writes, otherwise
    /// [`flag::READ`]; and [`flag::PGOP`] for the list of a group.
    #[must_use]
    pub fn request_flags(&self) -> u32 {
        let of_group = |op: &Op| op.code & code::TYPE_MASK == code::TYPE_GROUP;
        let mode = if self.is_write() { flag::WRITE } else { flag::READ };
        if self.ops.iter().any(of_group) { mode | flag::PGOP } else { mode }
    }

    /// The bytes of data that the operations carry.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        self.ops.iter().map(|op| op.data.len()).sum()
    }

    /// Adds flags of this module, such as [`FAIL_OK`](super::FAIL_OK), to the last operation.
    pub fn with_flags(&mut self, flags: u32) -> &mut Self {
        if !self.left_out
            && let Some(last) = self.ops.last_mut()
        {
            last.flags |= flags;
        }
        self
    }

    /// The operations of a request as it came; `writes` if its flags say that it writes.
    #[must_use]
    pub fn from_ops(ops: SmallVec<[Op; 2]>, writes: bool) -> Self {
        let calls = ops.iter().any(|op| op.code == code::CALL);
        Self { ops, calls_write: writes && calls, left_out: false }
    }

    fn push(&mut self, code: u16, fields: [u8; 28], data: Bytes) -> &mut Self {
        self.left_out = false;
        self.ops.push(Op { code, flags: 0, fields, data });
        self
    }

    /// An operation without fields and data.
    fn plain(&mut self, code: u16) -> &mut Self {
        self.push(code, [0; 28], Bytes::new())
    }

    /// An operation whose fields are the length of its data.
    fn with_data(&mut self, code: u16, offset: u64, data: Bytes) -> &mut Self {
        self.push(code, extent(offset, data.len() as u64), data)
    }
}

/// Operations that read.
impl ObjectOps {
    /// Reads an extent. Result data: its bytes, fewer at the end of the object. A length of 0 reads
    /// to the end of the object, so who wants no bytes must not ask.
    pub fn read(&mut self, offset: u64, len: u64) -> &mut Self {
        self.push(code::READ, extent(offset, len), Bytes::new())
    }

    /// Reads an extent without its holes. Result data:
    /// [`SparseData`](super::results::SparseData).
    pub fn sparse_read(&mut self, offset: u64, len: u64) -> &mut Self {
        self.push(code::SPARSE_READ, extent(offset, len), Bytes::new())
    }

    /// Size and time of change. Result data: [`Stat`](super::results::Stat). Fails with `ENOENT` if
    /// there is no object.
    pub fn stat(&mut self) -> &mut Self {
        self.plain(code::STAT)
    }

    /// Fails with `ENOENT` if there is no object. It is a `stat` whose data is not read.
    pub fn assert_exists(&mut self) -> &mut Self {
        self.stat()
    }

    /// Fails unless the object's user version is this: `ERANGE` if the object is newer,
    /// `EOVERFLOW` if it is older, `EINVAL` if the asserted version is 0.
    pub fn assert_version(&mut self, version: u64) -> &mut Self {
        let mut fields = [0; 28];
        put(&mut fields, 8, &version.to_le_bytes());
        self.push(code::ASSERT_VERSION, fields, Bytes::new())
    }

    /// One attribute. Result data: its value. `ENODATA` if it is not set.
    pub fn get_xattr(&mut self, name: &str) -> &mut Self {
        self.xattr(code::GET_XATTR, name, &[], None)
    }

    /// All attributes. Result data: [`decode_xattrs`](super::results::decode_xattrs).
    pub fn get_xattrs(&mut self) -> &mut Self {
        self.plain(code::GET_XATTRS)
    }

    /// Fails with `ECANCELED` unless `value` compares to the attribute as asked. An attribute that
    /// is not set is empty.
    pub fn compare_xattr(&mut self, name: &str, compare: CompareOp, value: &[u8]) -> &mut Self {
        self.xattr(code::COMPARE_XATTR, name, value, Some(compare))
    }

    /// Fails unless the extent has these bytes. What is behind the object's end counts as zeroes.
    /// The result is -4095 less the offset of the first difference
    /// ([`mismatch_offset`](super::results::mismatch_offset)).
    pub fn compare_extent(&mut self, offset: u64, data: Bytes) -> &mut Self {
        self.with_data(code::COMPARE_EXTENT, offset, data)
    }

    /// Keys of the omap behind `after`, in order, at most `max`; the OSD may give fewer. Result
    /// data: [`decode_keys`](super::results::decode_keys).
    pub fn omap_get_keys(&mut self, after: &[u8], max: u64) -> &mut Self {
        let mut data = Encoder::with_capacity(after.len() + 12);
        data.blob(after).u64(max);
        self.with_data(code::OMAP_GET_KEYS, 0, data.finish())
    }

    /// Keys of the omap behind `after` that begin with `prefix`, with their values, in order, at
    /// most `max`; the OSD may give fewer. Result data:
    /// [`decode_omap`](super::results::decode_omap).
    pub fn omap_get_values(&mut self, after: &[u8], prefix: &[u8], max: u64) -> &mut Self {
        let mut data = Encoder::with_capacity(after.len() + prefix.len() + 16);
        data.blob(after).u64(max).blob(prefix);
        self.with_data(code::OMAP_GET_VALUES, 0, data.finish())
    }

    /// The values of these keys of the omap; keys that are not set are left out. Result data:
    /// [`decode_values`](super::results::decode_values).
    pub fn omap_get_by_keys<K: AsRef<[u8]>>(
        &mut self,
        keys: impl IntoIterator<Item = K>,
    ) -> &mut Self {
        self.with_data(code::OMAP_GET_BY_KEYS, 0, list_of_keys(keys))
    }

    /// The header of the omap. Result data: its bytes.
    pub fn omap_get_header(&mut self) -> &mut Self {
        self.plain(code::OMAP_GET_HEADER)
    }

    /// The clones that keep snapshots. Result data: [`Snapshots`](super::results::Snapshots). The
    /// request has to read [`ALL_SNAPSHOTS`](super::ALL_SNAPSHOTS).
    pub fn list_snaps(&mut self) -> &mut Self {
        self.plain(code::LIST_SNAPS)
    }

    /// The watchers. Result data: [`Watchers`](super::results::Watchers).
    pub fn list_watchers(&mut self) -> &mut Self {
        self.plain(code::LIST_WATCHERS)
    }

    /// Notifies the watchers. The OSD answers at once with the number of the notification, and
    /// sends a [`WatchNotify`](crate::message::osd::WatchNotify) with this cookie at the end.
    pub fn notify(&mut self, cookie: u64, timeout_s: u32, payload: &[u8]) -> &mut Self {
        let mut data = Encoder::with_capacity(payload.len() + 12);
        data.u32(1).u32(timeout_s).blob(payload);
        self.push(code::NOTIFY, extent(cookie, 0), data.finish())
    }

    /// Acknowledges a notification of a watch, with an answer for the notifier.
    pub fn notify_acknowledge(&mut self, notify_id: u64, cookie: u64, payload: &[u8]) -> &mut Self {
        let mut data = Encoder::with_capacity(payload.len() + 20);
        data.u64(notify_id).u64(cookie).blob(payload);
        self.push(code::NOTIFY_ACK, [0; 28], data.finish())
    }

    /// Objects of a placement group from `position` on, at most `max`: a request of its own, whose
    /// object has no name and the namespace to list. Result data:
    /// [`GroupListing`](super::results::GroupListing); the namespace
    /// [`ALL_NAMESPACES`](super::ALL_NAMESPACES) lists all. An empty position begins at the start.
    pub fn list_group(&mut self, max: u64, position: &Bytes) -> &mut Self {
        let mut fields = [0; 28];
        put(&mut fields, 0, &max.to_le_bytes());
        let start = || ObjectPosition::first().to_bytes();
        let position = if position.is_empty() { start() } else { position.clone() };
        self.push(code::LIST_GROUP, fields, position)
    }
}

/// Operations that write.
impl ObjectOps {
    /// Creates the object. If it exists: `EEXIST` if `exclusive`, otherwise nothing.
    pub fn create(&mut self, exclusive: bool) -> &mut Self {
        self.plain(code::CREATE).with_flags(if exclusive { EXCLUSIVE } else { 0 })
    }

    /// Writes an extent. The object is created or grows as needed, even if there are no data.
    pub fn write(&mut self, offset: u64, data: Bytes) -> &mut Self {
        self.with_data(code::WRITE, offset, data)
    }

    /// Replaces all data of the object.
    pub fn write_full(&mut self, data: Bytes) -> &mut Self {
        self.with_data(code::WRITE_FULL, 0, data)
    }

    /// Writes behind the end.
    pub fn append(&mut self, data: Bytes) -> &mut Self {
        self.with_data(code::APPEND, 0, data)
    }

    /// Writes `data` again and again until `len` bytes are written. `EINVAL` if there are no data,
    /// or if `len` is not a multiple of their length. The OSD builds all `len` bytes in memory.
    pub fn write_same(&mut self, offset: u64, len: u64, data: Bytes) -> &mut Self {
        let mut fields = extent(offset, len);
        put(&mut fields, 16, &(data.len() as u64).to_le_bytes());
        self.push(code::WRITE_SAME, fields, data)
    }

    /// Zeroes an extent. The object does not grow, and none is created. If the extent reaches the
    /// end of the object, the OSD cuts the object at the start of the extent: its size shrinks.
    ///
    /// A length of 0 is left out: it has no effect, and an OSD of Ceph 16 stops on it. Then the
    /// reply has no result for it either.
    pub fn zero(&mut self, offset: u64, len: u64) -> &mut Self {
        if len == 0 {
            self.left_out = true;
            return self;
        }
        self.push(code::ZERO, extent(offset, len), Bytes::new())
    }

    /// Sets the size. Bytes that are new are zeroes. An object that is not there stays so.
    pub fn truncate(&mut self, len: u64) -> &mut Self {
        self.push(code::TRUNCATE, extent(len, 0), Bytes::new())
    }

    /// Deletes the object. `ENOENT` if there is none.
    pub fn delete(&mut self) -> &mut Self {
        self.plain(code::DELETE)
    }

    /// Sets an attribute.
    pub fn set_xattr(&mut self, name: &str, value: &[u8]) -> &mut Self {
        self.xattr(code::SET_XATTR, name, value, None)
    }

    /// Removes an attribute.
    pub fn remove_xattr(&mut self, name: &str) -> &mut Self {
        self.xattr(code::REMOVE_XATTR, name, &[], None)
    }

    /// Sets keys of the omap. The last of equal keys wins.
    pub fn omap_set<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> &mut Self {
        let (mut data, mut count) = (vec![0; 4], 0_u32);
        for (key, value) in entries {
            for part in [key.as_ref(), value.as_ref()] {
                data.extend_from_slice(&len32(part));
                data.extend_from_slice(part);
            }
            count += 1;
        }
        data[..4].copy_from_slice(&count.to_le_bytes());
        self.with_data(code::OMAP_SET, 0, data.into())
    }

    /// Removes keys of the omap. Keys that are not set do not matter.
    pub fn omap_remove_keys<K: AsRef<[u8]>>(
        &mut self,
        keys: impl IntoIterator<Item = K>,
    ) -> &mut Self {
        self.with_data(code::OMAP_REMOVE_KEYS, 0, list_of_keys(keys))
    }

    /// Removes the header and all keys of the omap.
    pub fn omap_clear(&mut self) -> &mut Self {
        self.plain(code::OMAP_CLEAR)
    }

    /// Sets the header of the omap.
    pub fn omap_set_header(&mut self, data: Bytes) -> &mut Self {
        self.with_data(code::OMAP_SET_HEADER, 0, data)
    }

    /// Says how large the object and its writes will be, and how it will be used (Ceph:
    /// `CEPH_OSD_ALLOC_HINT_FLAG_*`). Creates the object.
    pub fn set_alloc_hint(&mut self, object_bytes: u64, write_bytes: u64, flags: u32) -> &mut Self {
        let mut fields = extent(object_bytes, write_bytes);
        put(&mut fields, 16, &flags.to_le_bytes());
        self.push(code::SET_ALLOC_HINT, fields, Bytes::new())
    }

    /// Makes the present state that of a snapshot.
    pub fn rollback(&mut self, snap: SnapId) -> &mut Self {
        self.push(code::ROLLBACK, extent(snap.0, 0), Bytes::new())
    }

    /// Begins, renews or ends a watch. The OSD drops a watch of which it hears nothing for
    /// `timeout_s`; 0 is its default.
    pub fn watch(&mut self, cookie: u64, step: WatchStep, timeout_s: u32) -> &mut Self {
        let mut fields = extent(cookie, 0);
        let (number, renewal) = step.numbers();
        fields[16] = number;
        put(&mut fields, 17, &renewal.to_le_bytes());
        put(&mut fields, 21, &timeout_s.to_le_bytes());
        self.push(code::WATCH, fields, Bytes::new())
    }

    /// Calls a method of a class at the OSD that may change the object: the request counts as one
    /// that writes. The data of the answer comes only if the request asks for it
    /// ([`OperationFlags::wants_data`](crate::cluster::OperationFlags)), and then at most 64 bytes
    /// by default (`osd_max_write_op_reply_len`), else the request fails with `EOVERFLOW`.
    ///
    /// Use [`query`](Self::query) for methods that only read.
    ///
    /// # Panics
    /// The name of the class or the method has more than 255 bytes.
    #[allow(clippy::needless_pass_by_value, reason = "callers hand over what they encoded")]
    pub fn call(&mut self, class: &str, method: &str, input: Bytes) -> &mut Self {
        self.calls_write = true;
        self.call_class(class, method, &input)
    }

    /// Calls a method of a class at the OSD that only reads. Result data: the method's answer.
    ///
    /// # Panics
    /// The name of the class or the method has more than 255 bytes.
    #[allow(clippy::needless_pass_by_value, reason = "callers hand over what they encoded")]
    pub fn query(&mut self, class: &str, method: &str, input: Bytes) -> &mut Self {
        self.call_class(class, method, &input)
    }
}

impl ObjectOps {
    fn call_class(&mut self, class: &str, method: &str, input: &[u8]) -> &mut Self {
        let name_len = |name: &str| u8::try_from(name.len()).expect("names of classes are short");
        let mut fields = [0; 28];
        fields[0] = name_len(class);
        fields[1] = name_len(method);
        put(&mut fields, 3, &len32(input));
        let mut data = Encoder::with_capacity(class.len() + method.len() + input.len());
        data.bytes(class.as_bytes()).bytes(method.as_bytes()).bytes(input);
        self.push(code::CALL, fields, data.finish())
    }

    /// Fields: u32 length of the name, u32 length of the value, u8 comparison, u8 its mode (1: as
    /// bytes). Data: name and value.
    fn xattr(
        &mut self,
        code: u16,
        name: &str,
        value: &[u8],
        compare: Option<CompareOp>,
    ) -> &mut Self {
        let mut fields = [0; 28];
        put(&mut fields, 0, &len32(name.as_bytes()));
        put(&mut fields, 4, &len32(value));
        if let Some(compare) = compare {
            fields[8] = compare as u8;
            fields[9] = 1;
        }
        let mut data = Encoder::with_capacity(name.len() + value.len());
        data.bytes(name.as_bytes()).bytes(value);
        self.push(code, fields, data.finish())
    }
}

fn list_of_keys<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Bytes {
    let (mut data, mut count) = (vec![0; 4], 0_u32);
    for key in keys {
        data.extend_from_slice(&len32(key.as_ref()));
        data.extend_from_slice(key.as_ref());
        count += 1;
    }
    data[..4].copy_from_slice(&count.to_le_bytes());
    data.into()
}
