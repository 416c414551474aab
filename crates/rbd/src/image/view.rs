//! What reads and writes need to know of an image, at one time: a *view*. A change of the header
//! makes a new view; requests in flight keep the one with which they began.
//!
//! A view can read: from the image's objects, and where an object does not exist, from the parent,
//! whose view hangs below. A chain of clones is a chain of views.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use fieldstone_block::Piece;
use fieldstone_rados::cluster::{Operation, SnapContext, SnapId};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::results::SparseData;
use fieldstone_rados::op::{ObjectOps, Reply};
use fieldstone_rados::settings::ReadPolicy;
use smallvec::SmallVec;

use crate::error::RbdError;
use crate::format::class::ParentSpec;
use crate::format::{Features, Layout, ObjectExtent, names};
use crate::header::Header;
use crate::store::{Store, first_answer};

/// The longest chain of parents.
pub const PARENTS_MAX: usize = 64;
/// Reads of this length and more ask for the holes of an object (Ceph:
/// `rbd_sparse_read_threshold`).
const SPARSE_READ_BYTES: u64 = 64 << 10;

/// The bytes of a read.
pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// A future in a box: reads of parents call themselves.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// An image at one time, or a snapshot of it.
pub(crate) struct View {
    /// What is read.
    pub(crate) snapshot: SnapId,
    /// The size.
    pub(crate) size_bytes: u64,
    /// The layout.
    pub(crate) layout: Layout,
    /// What names of data objects begin with.
    prefix: String,
    /// The place of the data objects.
    pub(crate) data: Store,
    /// The snapshots that writes keep.
    pub(crate) snap_context: SnapContext,
    /// The features.
    pub(crate) features: Features,
    /// The parent.
    pub(crate) parent: Option<Parent>,
}

/// The parent of a view.
pub(crate) struct Parent {
    spec: ParentSpec,
    /// Bytes in common: behind them, the child has zeroes.
    overlap_bytes: u64,
    view: Rc<View>,
}

/// An answer to the read of an object, or that there is none.
pub(crate) enum ObjectData {
    /// Bytes, up to the end of the object.
    Bytes(Bytes),
    /// Bytes without holes; the offset of the read.
    Sparse(SparseData, u64),
    /// The object does not exist.
    Missing,
}

impl View {
    /// The view of an image or a snapshot. The parent's view is taken from `old` if it is the same.
    pub(crate) fn open<'a>(
        store: &'a Store,
        header: &'a Header,
        snapshot: SnapId,
        old: Option<&'a View>,
        depth: usize,
    ) -> Boxed<'a, Result<Rc<View>, RbdError>> {
        Box::pin(async move {
            let parent = match header.parent_at(snapshot) {
                None => None,
                Some((spec, overlap_bytes)) => {
                    let known = old.and_then(|old| old.parent.as_ref());
                    let view = match known.filter(|known| known.spec == *spec) {
                        Some(known) => Rc::clone(&known.view),
                        None => Self::open_parent(store, header, spec, depth).await?,
                    };
                    Some(Parent { spec: spec.clone(), overlap_bytes, view })
                }
            };
            let size_bytes = header.size_at(snapshot).ok_or_else(|| RbdError::NoSnapshot {
                image: header.name.clone(),
                snapshot: snapshot.0.to_string(),
            })?;
            let data = header.data_pool.map_or_else(|| store.clone(), |pool| store.with_pool(pool));
            Ok(Rc::new(View {
                snapshot,
                size_bytes,
                layout: header.layout,
                prefix: header.prefix.clone(),
                data,
                snap_context: header.snap_context.clone(),
                features: header.features,
                parent,
            }))
        })
    }

    async fn open_parent(
        store: &Store,
        child: &Header,
        spec: &ParentSpec,
        depth: usize,
    ) -> Result<Rc<View>, RbdError> {
        if depth >= PARENTS_MAX {
            let fault = format!("the chain of its parents is longer than {PARENTS_MAX}");
            return Err(RbdError::Damaged { image: child.name.clone(), fault });
        }
        let store = store.with_pool(spec.pool).with_namespace(&spec.namespace);
        let name = format!("{} (parent of {})", spec.image, child.name);
        let header = Header::load(&store, &spec.image, &name).await?;
        header.check_features(false)?;
        Self::open(&store, &header, spec.snapshot, None, depth + 1).await
    }

    /// The name of a data object.
    pub(crate) fn object(&self, number: u64) -> String {
        names::data(&self.prefix, number)
    }

    /// How many bytes of an object, from its start, the parent may have. 0 without a parent.
    pub(crate) fn object_overlap(&self, object: u64) -> u64 {
        let Some(parent) = &self.parent else { return 0 };
        let mut covered = 0;
        let mut at = 0;
        for part in self.layout.unmap(object, 0, self.layout.object_bytes()) {
            let common = parent.overlap_bytes.saturating_sub(part.offset_bytes).min(part.len_bytes);
            if common > 0 {
                covered = at + common;
            }
            at += part.len_bytes;
        }
        covered
    }

    /// Sends a read of a part of an object.
    pub(crate) fn read_object(
        &self,
        extent: &ObjectExtent,
    ) -> impl Future<Output = Result<ObjectData, Errno>> + use<> {
        let is_sparse = extent.len_bytes >= SPARSE_READ_BYTES;
        let mut ops = ObjectOps::new();
        if is_sparse {
            ops.sparse_read(extent.offset_bytes, extent.len_bytes);
        } else {
            ops.read(extent.offset_bytes, extent.len_bytes);
        }
        let mut operation = Operation::new(self.data.object(&self.object(extent.object)), ops);
        operation.snapshot = self.snapshot;
        operation.flags.balance_reads = self.data.reads == ReadPolicy::Balance;
        operation.flags.localize_reads = self.data.reads == ReadPolicy::Localize;
        let sent = self.data.cluster.operate(operation);
        let offset = extent.offset_bytes;
        async move { object_data(sent.await, is_sparse, offset) }
    }

    /// Reads a range into `pieces`. Objects that `may_exist` excludes are not asked.
    pub(crate) async fn read(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        may_exist: impl Fn(u64) -> bool,
        pieces: &mut Pieces,
    ) -> Result<(), Errno> {
        let extents = self.layout.map(offset_bytes, len_bytes);
        // All reads are on their way before the first answer is awaited.
        let sent: SmallVec<[_; 2]> = extents
            .iter()
            .map(|extent| may_exist(extent.object).then(|| self.read_object(extent)))
            .collect();
        for (extent, sent) in extents.iter().zip(sent) {
            let data = match sent {
                Some(sent) => sent.await?,
                None => ObjectData::Missing,
            };
            if !data.append_to(pieces, extent.len_bytes)? {
                let (object, offset) = (extent.object, extent.offset_bytes);
                self.read_parent(object, offset, extent.len_bytes, pieces).await?;
            }
        }
        Ok(())
    }

    /// Reads from the parent what a part of an object has in common with it; zeroes for the rest.
    pub(crate) fn read_parent<'a>(
        &'a self,
        object: u64,
        offset_bytes: u64,
        len_bytes: u64,
        pieces: &'a mut Pieces,
    ) -> Boxed<'a, Result<(), Errno>> {
        Box::pin(async move {
            let Some(parent) = &self.parent else {
                push_zeroes(pieces, len_bytes);
                return Ok(());
            };
            let limit = parent.overlap_bytes.min(parent.view.size_bytes);
            for part in self.layout.unmap(object, offset_bytes, len_bytes) {
                let common = limit.saturating_sub(part.offset_bytes).min(part.len_bytes);
                if common > 0 {
                    parent.view.read(part.offset_bytes, common, |_| true, pieces).await?;
                }
                push_zeroes(pieces, part.len_bytes - common);
            }
            Ok(())
        })
    }
}

fn object_data(
    reply: Result<Reply, Errno>,
    is_sparse: bool,
    offset: u64,
) -> Result<ObjectData, Errno> {
    let data = match reply.and_then(first_answer) {
        Ok(data) => data,
        Err(Errno::ENOENT) => return Ok(ObjectData::Missing),
        Err(other) => return Err(other),
    };
    if is_sparse {
        let sparse = SparseData::decode(&data).map_err(|_| Errno::EIO)?;
        return Ok(ObjectData::Sparse(sparse, offset));
    }
    Ok(ObjectData::Bytes(data))
}

impl ObjectData {
    /// Appends exactly `len_bytes` bytes, with zeroes for what the object does not have. False if
    /// there is no object; then nothing is appended.
    pub(super) fn append_to(self, pieces: &mut Pieces, len_bytes: u64) -> Result<bool, Errno> {
        match self {
            ObjectData::Missing => return Ok(false),
            ObjectData::Bytes(bytes) => {
                let have = bytes.len() as u64;
                if have > len_bytes {
                    return Err(Errno::EIO);
                }
                push_data(pieces, bytes);
                push_zeroes(pieces, len_bytes - have);
            }
            ObjectData::Sparse(sparse, offset) => {
                let mut data = sparse.data;
                let mut done = 0;
                for (at, len) in sparse.extents {
                    // The extents must be in order, inside the range, and backed by data.
                    let start = at.checked_sub(offset).ok_or(Errno::EIO)?;
                    let end = start.checked_add(len).ok_or(Errno::EIO)?;
                    if start < done || end > len_bytes || len > data.len() as u64 {
                        return Err(Errno::EIO);
                    }
                    push_zeroes(pieces, start - done);
                    push_data(pieces, data.split_to(len as usize));
                    done = end;
                }
                push_zeroes(pieces, len_bytes - done);
            }
        }
        Ok(true)
    }
}

fn push_data(pieces: &mut Pieces, data: Bytes) {
    if !data.is_empty() {
        pieces.push(Piece::Data(data));
    }
}

/// Appends zeroes. A request has at most 4 GiB.
pub(crate) fn push_zeroes(pieces: &mut Pieces, len_bytes: u64) {
    let len = u32::try_from(len_bytes).expect("a request is shorter than 4 GiB");
    match pieces.last_mut() {
        _ if len == 0 => {}
        Some(Piece::Zeroes(last)) => *last += len,
        _ => pieces.push(Piece::Zeroes(len)),
    }
}

/// The bytes of pieces, without zeroes at the end.
pub(crate) fn trimmed(pieces: &[Piece]) -> Bytes {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeroes(len) => bytes.resize(bytes.len() + *len as usize, 0),
        }
    }
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(used);
    bytes.into()
}
