//! Reads operations as an OSD does, for models of OSDs.

use bytes::Bytes;

use super::{CompareOp, EXCLUSIVE, Op, WatchStep, code};
use crate::cluster::SnapId;
use crate::encoding::{DecodeError, Decoder, Fault};
use crate::message::osd::ObjectPosition;

/// An operation with its fields. Each is described at the method of
/// [`ObjectOps`](super::ObjectOps) that builds it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the parameters of the method with that name")]
pub enum View<'a> {
    Read { offset: u64, len: u64 },
    SparseRead { offset: u64, len: u64 },
    Stat,
    AssertVersion { version: u64 },
    GetXattr { name: &'a str },
    GetXattrs,
    CompareXattr { name: &'a str, compare: CompareOp, value: Bytes },
    CompareExtent { offset: u64, data: &'a Bytes },
    OmapGetKeys { after: Bytes, max: u64 },
    OmapGetValues { after: Bytes, prefix: Bytes, max: u64 },
    OmapGetByKeys { keys: Vec<Bytes> },
    OmapGetHeader,
    ListSnaps,
    ListWatchers,
    Notify { cookie: u64, timeout_s: u32, payload: Bytes },
    NotifyAcknowledge { notify_id: u64, cookie: u64, payload: Bytes },
    ListGroup { max: u64, position: Box<ObjectPosition> },
    Call { class: &'a str, method: &'a str, input: Bytes },
    Create { exclusive: bool },
    Write { offset: u64, data: &'a Bytes },
    WriteFull { data: &'a Bytes },
    Append { data: &'a Bytes },
    WriteSame { offset: u64, len: u64, data: &'a Bytes },
    Zero { offset: u64, len: u64 },
    Truncate { len: u64 },
    Delete,
    SetXattr { name: &'a str, value: Bytes },
    RemoveXattr { name: &'a str },
    OmapSet { entries: Vec<(Bytes, Bytes)> },
    OmapRemoveKeys { keys: Vec<Bytes> },
    OmapClear,
    OmapSetHeader { data: &'a Bytes },
    SetAllocHint { object_bytes: u64, write_bytes: u64, flags: u32 },
    Rollback { snap: SnapId },
    Watch { cookie: u64, step: WatchStep, timeout_s: u32 },
}

impl Op {
    /// The operation with its fields.
    ///
    /// # Errors
    /// The operation is none that this crate builds, or its data do not fit its fields. An OSD
    /// answers `EOPNOTSUPP` to the former and `EINVAL` to the latter.
    pub fn view(&self) -> Result<View<'_>, DecodeError> {
        let (offset, len) = (self.field64(0), self.field64(8));
        Ok(match self.code {
            code::READ => View::Read { offset, len },
            code::SPARSE_READ => View::SparseRead { offset, len },
            code::STAT => View::Stat,
            code::ASSERT_VERSION => View::AssertVersion { version: len },
            code::COMPARE_EXTENT => View::CompareExtent { offset, data: self.whole(len)? },
            code::OMAP_GET_HEADER => View::OmapGetHeader,
            code::LIST_SNAPS => View::ListSnaps,
            code::LIST_WATCHERS => View::ListWatchers,
            code::CREATE => View::Create { exclusive: self.flags & EXCLUSIVE != 0 },
            code::WRITE => View::Write { offset, data: self.whole(len)? },
            code::WRITE_FULL => View::WriteFull { data: self.whole(len)? },
            code::APPEND => View::Append { data: self.whole(len)? },
            code::WRITE_SAME => {
                let data = self.whole(self.field64(16))?;
                if data.is_empty() || len % data.len() as u64 != 0 {
                    return Err(Decoder::refused(8, len, "the length of repeated data"));
                }
                View::WriteSame { offset, len, data }
            }
            code::ZERO => View::Zero { offset, len },
            code::TRUNCATE => View::Truncate { len: offset },
            code::DELETE => View::Delete,
            code::OMAP_CLEAR => View::OmapClear,
            code::OMAP_SET_HEADER => View::OmapSetHeader { data: self.whole(len)? },
            code::SET_ALLOC_HINT => View::SetAllocHint {
                object_bytes: offset,
                write_bytes: len,
                flags: self.field32(16),
            },
            code::ROLLBACK => View::Rollback { snap: SnapId(offset) },
            code::WATCH => View::Watch {
                cookie: offset,
                step: self.watch_step()?,
                timeout_s: self.field32(21),
            },
            _ => return self.view_of_data(),
        })
    }

    /// The operations whose fields are in the data.
    fn view_of_data(&self) -> Result<View<'_>, DecodeError> {
        let mut data = Decoder::new(self.data.clone());
        Ok(match self.code {
            code::GET_XATTR => View::GetXattr { name: self.xattr()?.0 },
            code::GET_XATTRS => View::GetXattrs,
            code::SET_XATTR => {
                let (name, value) = self.xattr()?;
                View::SetXattr { name, value }
            }
            code::REMOVE_XATTR => View::RemoveXattr { name: self.xattr()?.0 },
            code::COMPARE_XATTR => {
                let (name, value) = self.xattr()?;
                View::CompareXattr { name, compare: self.compare()?, value }
            }
            code::OMAP_GET_KEYS => {
                View::OmapGetKeys { after: data.blob("a key")?, max: data.u64("a limit")? }
            }
            code::OMAP_GET_VALUES => {
                let (after, max) = (data.blob("a key")?, data.u64("a limit")?);
                View::OmapGetValues { after, max, prefix: data.blob("a prefix")? }
            }
            code::OMAP_GET_BY_KEYS => View::OmapGetByKeys { keys: keys(&mut data)? },
            code::OMAP_REMOVE_KEYS => View::OmapRemoveKeys { keys: keys(&mut data)? },
            code::OMAP_SET => {
                let entries = data
                    .list(8, "entries", |data| Ok((data.blob("a key")?, data.blob("a value")?)))?;
                View::OmapSet { entries }
            }
            code::NOTIFY => {
                data.u32("the version of a notification")?;
                let timeout_s = data.u32("the time of a notification")?;
                let payload = data.blob("the bytes of a notification")?;
                View::Notify { cookie: self.field64(0), timeout_s, payload }
            }
            code::NOTIFY_ACK => {
                let (notify_id, cookie) = (data.u64("a notification")?, data.u64("a cookie")?);
                let payload = match data.is_empty() {
                    true => Bytes::new(),
                    false => data.blob("the bytes of an answer")?,
                };
                View::NotifyAcknowledge { notify_id, cookie, payload }
            }
            code::LIST_GROUP => {
                let position = Box::new(ObjectPosition::decode(&mut data)?);
                View::ListGroup { max: self.field64(0), position }
            }
            code::CALL => self.call()?,
            other => return Err(Decoder::refused(0, other.into(), "the number of an operation")),
        })
    }

    fn field64(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.fields[at..at + 8]);
        u64::from_le_bytes(bytes)
    }

    fn field32(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.fields[at..at + 4]);
        u32::from_le_bytes(bytes)
    }

    /// The data, of which the fields say that they are `len` bytes.
    fn whole(&self, len: u64) -> Result<&Bytes, DecodeError> {
        match self.data.len() as u64 == len {
            true => Ok(&self.data),
            false => Err(self.short(len)),
        }
    }

    fn short(&self, needed: u64) -> DecodeError {
        let fault = Fault::Short { needed, left: self.data.len() };
        DecodeError { what: "the data of an operation", offset: 0, fault }
    }

    /// Bytes of the data that are text.
    fn text(&self, at: usize, len: usize) -> Result<&str, DecodeError> {
        let bytes = self.data.get(at..at + len).ok_or_else(|| self.short((at + len) as u64))?;
        std::str::from_utf8(bytes).map_err(|_| DecodeError {
            what: "a name",
            offset: at,
            fault: Fault::Text,
        })
    }

    /// The bytes of the data from `at` on.
    fn bytes(&self, at: usize, len: usize) -> Result<Bytes, DecodeError> {
        match at + len <= self.data.len() {
            true => Ok(self.data.slice(at..at + len)),
            false => Err(self.short((at + len) as u64)),
        }
    }

    fn xattr(&self) -> Result<(&str, Bytes), DecodeError> {
        let (name, value) = (self.field32(0) as usize, self.field32(4) as usize);
        Ok((self.text(0, name)?, self.bytes(name, value)?))
    }

    fn compare(&self) -> Result<CompareOp, DecodeError> {
        if self.fields[9] != 1 {
            return Err(Decoder::refused(9, self.fields[9].into(), "the mode of a comparison"));
        }
        Ok(match self.fields[8] {
            1 => CompareOp::Equal,
            2 => CompareOp::NotEqual,
            3 => CompareOp::Greater,
            4 => CompareOp::GreaterOrEqual,
            5 => CompareOp::Less,
            6 => CompareOp::LessOrEqual,
            other => return Err(Decoder::refused(8, other.into(), "a comparison")),
        })
    }

    fn call(&self) -> Result<View<'_>, DecodeError> {
        let (class, method) = (usize::from(self.fields[0]), usize::from(self.fields[1]));
        let input = self.bytes(class + method, self.field32(3) as usize)?;
        let (class, method) = (self.text(0, class)?, self.text(class, method)?);
        Ok(View::Call { class, method, input })
    }

    fn watch_step(&self) -> Result<WatchStep, DecodeError> {
        let renewal = self.field32(17);
        Ok(match self.fields[16] {
            0 => WatchStep::Unwatch,
            3 => WatchStep::Watch,
            5 => WatchStep::Reconnect(renewal),
            7 => WatchStep::Ping(renewal),
            other => return Err(Decoder::refused(16, other.into(), "the step of a watch")),
        })
    }
}

fn keys(data: &mut Decoder) -> Result<Vec<Bytes>, DecodeError> {
    data.list(4, "keys", |data| data.blob("a key"))
}
