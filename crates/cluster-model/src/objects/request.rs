//! Operations as an OSD reads them from a request.
//!
//! This is written from the layout of Ceph's `ceph_osd_op`, not from the client's builder, so that
//! a fault of the builder shows.

use bytes::Bytes;
use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::encoding::{DecodeError, Decoder};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::Op;

/// Flag of an operation: `create` fails if the object exists.
pub(crate) const FLAG_EXCLUSIVE: u32 = 1;
/// Flag of an operation: the request goes on if it fails.
pub(crate) const FLAG_FAIL_OK: u32 = 2;

/// Bit of an operation's code: it writes.
const MODE_WRITE: u16 = 0x2000;
const CALL: u16 = 0x1401;
const WATCH: u16 = 0x220f;

/// What a watch operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchStep {
    Unwatch,
    Watch,
    Reconnect,
    Ping,
}

/// An operation, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Read { offset: u64, len: u64 },
    SparseRead { offset: u64, len: u64 },
    Stat,
    Notify { cookie: u64, timeout_s: u32, payload: Bytes },
    NotifyAcknowledge { notify_id: u64, cookie: u64, payload: Bytes },
    AssertVersion(u64),
    ListWatchers,
    ListSnaps,
    CompareExtent { offset: u64, data: Bytes },
    OmapKeys { after: Bytes, max: u64 },
    OmapValues { after: Bytes, prefix: Bytes, max: u64 },
    OmapByKeys(Vec<Bytes>),
    OmapHeader,
    GetXattr(Bytes),
    GetXattrs,
    CompareXattr { name: Bytes, comparison: u8, as_numbers: bool, value: Bytes },
    Call { class: Bytes, method: Bytes, input: Bytes },
    Write { offset: u64, data: Bytes },
    WriteFull(Bytes),
    Append(Bytes),
    WriteSame { offset: u64, len: u64, data: Bytes },
    Truncate(u64),
    Zero { offset: u64, len: u64 },
    Delete,
    Create,
    Rollback(SnapId),
    Watch { cookie: u64, step: WatchStep, timeout_s: u32 },
    OmapSet(Vec<(Bytes, Bytes)>),
    OmapSetHeader(Bytes),
    OmapClear,
    OmapRemove(Vec<Bytes>),
    AllocationHint,
    SetXattr { name: Bytes, value: Bytes },
    RemoveXattr(Bytes),
}

/// True if an operation changes its object, apart from calls of classes.
pub(crate) fn writes(op: &Op) -> bool {
    // A ping of a watch is sent as a write but changes nothing; so it is one here as well.
    op.code & MODE_WRITE != 0
}

/// The class and method of a call.
pub(crate) fn called(op: &Op) -> Option<(Bytes, Bytes)> {
    match Step::read(op) {
        Ok(Step::Call { class, method, .. }) if op.code == CALL => Some((class, method)),
        _ => None,
    }
}

/// True if the operation is nothing but a ping of a watch.
pub(crate) fn is_ping(op: &Op) -> bool {
    op.code == WATCH && op.fields[16] == 7
}

fn u64_at(op: &Op, at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&op.fields[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn u32_at(op: &Op, at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&op.fields[at..at + 4]);
    u32::from_le_bytes(bytes)
}

/// Splits the data of an operation at the lengths of its parts.
fn split<const N: usize>(op: &Op, lens: [u32; N]) -> Result<[Bytes; N], DecodeError> {
    let mut data = Decoder::new(op.data.clone());
    let mut parts = [const { Bytes::new() }; N];
    for (part, len) in parts.iter_mut().zip(lens) {
        *part = data.bytes(len as usize, "a part of the data of an operation")?;
    }
    Ok(parts)
}

fn keys(data: &Bytes) -> Result<Vec<Bytes>, DecodeError> {
    Decoder::new(data.clone()).list(4, "keys", |from| from.blob("a key"))
}

fn pairs(data: &Bytes) -> Result<Vec<(Bytes, Bytes)>, DecodeError> {
    Decoder::new(data.clone())
        .list(8, "entries", |from| Ok((from.blob("a key")?, from.blob("a value")?)))
}

impl Step {
    /// Reads an operation. `EINVAL`: its data is wrong. `EOPNOTSUPP`: the model does not know it.
    pub(crate) fn read(op: &Op) -> Result<Self, Errno> {
        let step = match op.code & 0x0f00 {
            0x0300 => Self::of_attributes(op),
            0x0400 if op.code == CALL => {
                let lens = [op.fields[0].into(), op.fields[1].into(), u32_at(op, 3)];
                split(op, lens).map(|[class, method, input]| Step::Call { class, method, input })
            }
            _ if op.code & MODE_WRITE != 0 => return Self::of_data_writes(op),
            _ => return Self::of_data_reads(op),
        };
        step.map_err(|_| Errno::EINVAL)
    }

    fn of_attributes(op: &Op) -> Result<Self, DecodeError> {
        let (name_len, value_len) = (u32_at(op, 0), u32_at(op, 4));
        Ok(match op.code {
            0x1301 => Step::GetXattr(split(op, [name_len])?[0].clone()),
            0x1303 => {
                let [name, value] = split(op, [name_len, value_len])?;
                let (comparison, as_numbers) = (op.fields[8], op.fields[9] == 2);
                Step::CompareXattr { name, comparison, as_numbers, value }
            }
            0x2301 => {
                let [name, value] = split(op, [name_len, value_len])?;
                Step::SetXattr { name, value }
            }
            0x2304 => Step::RemoveXattr(split(op, [name_len])?[0].clone()),
            _ => Step::GetXattrs,
        })
    }

    fn of_data_reads(op: &Op) -> Result<Self, Errno> {
        let (offset, len) = (u64_at(op, 0), u64_at(op, 8));
        let mut data = Decoder::new(op.data.clone());
        let read = |step: Result<Self, DecodeError>| step.map_err(|_| Errno::EINVAL);
        Ok(match op.code {
            0x1201 | 0x120b => Step::Read { offset, len },
            0x1202 => Step::Stat,
            0x1205 => Step::SparseRead { offset, len },
            0x1206 => read((|| {
                data.u32("the version of a notification")?;
                let timeout_s = data.u32("a timeout")?;
                let payload = data.blob("a notification")?;
                Ok(Step::Notify { cookie: offset, timeout_s, payload })
            })())?,
            0x1207 => read((|| {
                let notify_id = data.u64("the number of a notification")?;
                let cookie = data.u64("a cookie")?;
                // Old clients send no answer.
                let payload = if data.is_empty() { Bytes::new() } else { data.blob("an answer")? };
                Ok(Step::NotifyAcknowledge { notify_id, cookie, payload })
            })())?,
            0x1208 => Step::AssertVersion(len),
            0x1209 => Step::ListWatchers,
            0x120a => Step::ListSnaps,
            0x1211 => read((|| {
                let after = data.blob("a key")?;
                Ok(Step::OmapKeys { after, max: data.u64("a number of keys")? })
            })())?,
            0x1212 => read((|| {
                let after = data.blob("a key")?;
                let max = data.u64("a number of entries")?;
                Ok(Step::OmapValues { after, prefix: data.blob("a prefix")?, max })
            })())?,
            0x1213 => Step::OmapHeader,
            0x1214 => read(keys(&op.data).map(Step::OmapByKeys))?,
            0x1220 => Step::CompareExtent { offset, data: op.data.clone() },
            _ => return Err(Errno::EOPNOTSUPP),
        })
    }

    fn of_data_writes(op: &Op) -> Result<Self, Errno> {
        let (offset, len) = (u64_at(op, 0), u64_at(op, 8));
        let data = op.data.clone();
        Ok(match op.code {
            0x2201 => Step::Write { offset, data },
            0x2202 => Step::WriteFull(data),
            0x2203 => Step::Truncate(offset),
            0x2204 => Step::Zero { offset, len },
            0x2205 => Step::Delete,
            0x2206 => Step::Append(data),
            0x220d => Step::Create,
            0x220e => Step::Rollback(SnapId(offset)),
            WATCH => {
                let step = match op.fields[16] {
                    0 => WatchStep::Unwatch,
                    1 | 3 => WatchStep::Watch,
                    5 => WatchStep::Reconnect,
                    7 => WatchStep::Ping,
                    _ => return Err(Errno::EINVAL),
                };
                Step::Watch { cookie: offset, step, timeout_s: u32_at(op, 21) }
            }
            0x2215 => Step::OmapSet(pairs(&data).map_err(|_| Errno::EINVAL)?),
            0x2216 => Step::OmapSetHeader(data),
            0x2217 => Step::OmapClear,
            0x2218 => Step::OmapRemove(keys(&data).map_err(|_| Errno::EINVAL)?),
            0x2223 => Step::AllocationHint,
            0x2226 => Step::WriteSame { offset, len, data },
            _ => return Err(Errno::EOPNOTSUPP),
        })
    }
}
