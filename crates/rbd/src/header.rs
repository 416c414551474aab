//! The header of an image: one request reads all but the snapshots; the snapshots come in requests
//! of [`SNAPSHOTS_IN_REQUEST`].

use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::{SnapContext, SnapId};
use fieldstone_rados::encoding::Time;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::{FAIL_OK, ObjectOps};

use crate::error::RbdError;
use crate::format::class::{self, ParentSpec, Protection, SnapshotInfo, SnapshotKind};
use crate::format::lock::{self, LockInfo};
use crate::format::{Features, Layout, features, names};
use crate::store::{Answers, Store};

/// Snapshots that one request reads.
const SNAPSHOTS_IN_REQUEST: usize = 16;
/// How often the header is read again, because a snapshot was removed meanwhile.
const ATTEMPTS: usize = 8;

/// A snapshot of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Number, name, size.
    pub info: SnapshotInfo,
    /// Whether it may be removed.
    pub protection: Protection,
    /// Flags of its object map.
    pub flags: u64,
    /// Bytes that it has in common with the parent.
    pub overlap_bytes: Option<u64>,
}

/// The metadata of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The id.
    pub id: String,
    /// The name by which it was opened.
    pub name: String,
    /// How it is cut into objects.
    pub layout: Layout,
    /// What the names of its data objects begin with.
    pub prefix: String,
    /// The features.
    pub features: Features,
    /// The features of operations.
    pub op_features: u64,
    /// The pool of data objects, if it is another.
    pub data_pool: Option<PoolId>,
    /// The size.
    pub size_bytes: u64,
    /// Flags of the object map.
    pub flags: u64,
    /// The snapshots that writes keep.
    pub snap_context: SnapContext,
    /// The snapshots, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Who holds the lock.
    pub lock: LockInfo,
    /// The parent of the present state or of a snapshot.
    pub parent: Option<ParentSpec>,
    /// Bytes that the present state has in common with the parent.
    pub overlap_bytes: Option<u64>,
    /// When it was made; zero if the cluster does not know.
    pub created: Time,
    /// When it was last changed, roughly; zero if the cluster does not know.
    pub modified: Time,
}

impl Header {
    /// Reads the header of an image.
    ///
    /// # Errors
    /// There is no such image, its data makes no sense, or the cluster answers with an error.
    pub async fn load(store: &Store, id: &str, name: &str) -> Result<Self, RbdError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut header = Self::load_without_snapshots(store, id, name).await?;
            match header.load_snapshots(store).await {
                // A snapshot was removed between the requests.
                Err(error) if error.errno() == Some(Errno::ENOENT) && attempt < ATTEMPTS => {}
                other => return other.map(|()| header),
            }
        }
    }

    async fn load_without_snapshots(store: &Store, id: &str, name: &str) -> Result<Self, RbdError> {
        let mut ops = ObjectOps::new();
        class::get_size(&mut ops, SnapId::HEAD);
        class::get_object_prefix(&mut ops);
        class::get_features(&mut ops, SnapId::HEAD, false);
        class::get_flags(&mut ops, SnapId::HEAD);
        class::get_snapcontext(&mut ops);
        lock::get_info(&mut ops);
        class::get_data_pool(&mut ops);
        class::parent_get(&mut ops);
        class::parent_overlap_get(&mut ops, SnapId::HEAD);
        // These fail if the image has not what they ask for.
        class::get_stripe_unit_count(&mut ops);
        ops.with_flags(FAIL_OK);
        class::op_features_get(&mut ops);
        ops.with_flags(FAIL_OK);
        class::get_create_timestamp(&mut ops);
        ops.with_flags(FAIL_OK);
        class::get_modify_timestamp(&mut ops);
        ops.with_flags(FAIL_OK);

        let action = "reading its header";
        let reply = match store.send(&names::header(id), ops).await {
            Ok(reply) => reply,
            Err(Errno::ENOENT) => return Err(RbdError::NoImage(name.to_owned())),
            Err(errno) => return Err(RbdError::cluster(name, action, errno)),
        };
        let mut answers = Answers::new(reply, name, action);
        let (order, size_bytes) = answers.next(class::decode_size)?;
        let prefix = answers.next(class::decode_text)?;
        let (features, _) = answers.next(class::decode_features)?;
        let flags = answers.next(class::decode_u64)?;
        let snap_context = answers.next(class::decode_snap_context)?;
        let lock = answers.next(LockInfo::decode)?;
        let data_pool = answers.next(class::decode_i64)?;
        let parent = answers.next(class::decode_parent)?;
        let overlap_bytes = answers.next(class::decode_overlap)?;
        let stripes = answers.optional(class::decode_stripes)?;
        let op_features = answers.optional(class::decode_u64)?;
        let created = answers.optional(class::decode_time)?;
        let modified = answers.optional(class::decode_time)?;

        let (unit, count) = match stripes {
            Ok(stripes) if features.has(Features::STRIPING) => stripes,
            _ => (0, 0),
        };
        let layout =
            Layout::new(order, unit, count).map_err(|fault| RbdError::layout(name, fault))?;
        Ok(Self {
            id: id.to_owned(),
            name: name.to_owned(),
            layout,
            prefix,
            features,
            op_features: op_features.unwrap_or(0),
            data_pool: (data_pool >= 0).then_some(PoolId(data_pool)),
            size_bytes,
            flags,
            snap_context,
            snapshots: Vec::new(),
            lock,
            parent,
            overlap_bytes,
            created: created.unwrap_or_default(),
            modified: modified.unwrap_or_default(),
        })
    }

    async fn load_snapshots(&mut self, store: &Store) -> Result<(), RbdError> {
        let object = names::header(&self.id);
        let action = "reading its snapshots";
        let mut oldest_first = self.snap_context.snaps.clone();
        oldest_first.reverse();
        let requests = oldest_first.chunks(SNAPSHOTS_IN_REQUEST).map(|part| {
            let mut ops = ObjectOps::new();
            for &snap in part {
                class::snapshot_get(&mut ops, snap);
                class::get_protection_status(&mut ops, snap);
                class::get_flags(&mut ops, snap);
                class::parent_overlap_get(&mut ops, snap);
            }
            (part.len(), store.send(&object, ops))
        });
        // All requests are on their way before the first answer is awaited.
        let requests: Vec<_> = requests.collect();
        for (snapshots, request) in requests {
            let reply = request.await;
            let reply = reply.map_err(|errno| RbdError::cluster(&self.name, action, errno))?;
            let mut answers = Answers::new(reply, &self.name, action);
            for _ in 0..snapshots {
                let snapshot = Snapshot {
                    info: answers.next(class::decode_snapshot)?,
                    protection: answers.next(class::decode_protection)?,
                    flags: answers.next(class::decode_u64)?,
                    overlap_bytes: answers.next(class::decode_overlap)?,
                };
                self.snapshots.push(snapshot);
            }
        }
        Ok(())
    }

    /// The snapshot of a user with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn snapshot_named(&self, name: &str) -> Result<&Snapshot, RbdError> {
        let of_user = |snapshot: &&Snapshot| {
            snapshot.info.name == name && snapshot.info.kind == SnapshotKind::User
        };
        self.snapshots.iter().find(of_user).ok_or_else(|| RbdError::NoSnapshot {
            image: self.name.clone(),
            snapshot: name.to_owned(),
        })
    }

    /// The snapshot with this number.
    #[must_use]
    pub fn snapshot(&self, id: SnapId) -> Option<&Snapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.info.id == id)
    }

    /// The size of the present state or of a snapshot.
    #[must_use]
    pub fn size_at(&self, snapshot: SnapId) -> Option<u64> {
        if snapshot == SnapId::HEAD {
            return Some(self.size_bytes);
        }
        self.snapshot(snapshot).map(|snapshot| snapshot.info.size_bytes)
    }

    /// The parent of the present state or of a snapshot, and the bytes in common with it.
    #[must_use]
    pub fn parent_at(&self, snapshot: SnapId) -> Option<(&ParentSpec, u64)> {
        let overlap = if snapshot == SnapId::HEAD {
            self.overlap_bytes
        } else {
            self.snapshot(snapshot)?.overlap_bytes
        };
        let overlap = overlap.filter(|&bytes| bytes > 0)?;
        Some((self.parent.as_ref()?, overlap))
    }

    /// True if the object map of the present state or of a snapshot can be trusted.
    #[must_use]
    pub fn has_valid_object_map(&self, snapshot: SnapId) -> bool {
        let flags = if snapshot == SnapId::HEAD {
            Some(self.flags)
        } else {
            self.snapshot(snapshot).map(|snapshot| snapshot.flags)
        };
        let valid = flags.is_some_and(|flags| flags & features::FLAG_OBJECT_MAP_INVALID == 0);
        self.features.has(Features::OBJECT_MAP) && valid
    }

    /// The number of objects of the present state.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.layout.objects(self.size_bytes)
    }

    /// Refuses an image whose features this client does not work with.
    ///
    /// # Errors
    /// The feature, and what helps.
    pub fn check_features(&self, for_writing: bool) -> Result<(), RbdError> {
        let unknown = self.op_features & !features::OP_FEATURES_KNOWN;
        let (feature, reason) = match self.features.refusal(for_writing) {
            Some(refusal) => refusal,
            None if unknown == 0 => return Ok(()),
            None => (
                format!("unknown operation features {unknown:#x}"),
                "this client does not know the feature, so it could damage the image",
            ),
        };
        Err(RbdError::Feature { image: self.name.clone(), feature, reason })
    }
}
