//! The objects of a namespace of a pool.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::{Cluster, ObjectName, Operation, PoolInfo, SnapContext};
use fieldstone_rados::encoding::DecodeError;
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::{ObjectOps, Reply};
use fieldstone_rados::settings::ReadPolicy;

use crate::error::RbdError;

/// A namespace of a pool. Copies are cheap.
#[derive(Clone)]
pub struct Store {
    /// The cluster.
    pub cluster: Cluster,
    /// The pool.
    pub pool: PoolId,
    /// The namespace; empty for the default one.
    pub namespace: Arc<str>,
    /// The members of a placement group that may answer reads of data.
    pub reads: ReadPolicy,
}

impl Store {
    /// A namespace of a pool, whose reads go to the primaries.
    #[must_use]
    pub fn new(cluster: &Cluster, pool: PoolId, namespace: &str) -> Self {
        let cluster = cluster.clone();
        Self { cluster, pool, namespace: namespace.into(), reads: ReadPolicy::Primary }
    }

    /// The name of an object.
    #[must_use]
    pub fn object(&self, name: &str) -> ObjectName {
        ObjectName {
            pool: self.pool,
            namespace: Arc::clone(&self.namespace),
            key: Arc::clone(empty()),
            name: name.into(),
        }
    }

    /// Sends a request for the present state of an object, which keeps no snapshots.
    pub fn send(
        &self,
        object: &str,
        ops: ObjectOps,
    ) -> impl Future<Output = Result<Reply, Errno>> + use<> {
        self.cluster.operate(Operation::new(self.object(object), ops))
    }

    /// As [`Store::send`], and an object that exists not is no error.
    ///
    /// # Errors
    /// Any other error of the OSD.
    pub async fn send_if_exists(&self, object: &str, ops: ObjectOps) -> Result<bool, Errno> {
        match self.send(object, ops).await {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Sends a write that keeps snapshots.
    pub fn send_keeping(
        &self,
        object: &str,
        ops: ObjectOps,
        snapshots: &SnapContext,
    ) -> impl Future<Output = Result<Reply, Errno>> + use<> {
        let mut operation = Operation::new(self.object(object), ops);
        operation.snap_context = snapshots.clone();
        self.cluster.operate(operation)
    }

    /// The same pool's other namespace.
    #[must_use]
    pub fn with_namespace(&self, namespace: &str) -> Self {
        Self { namespace: namespace.into(), ..self.clone() }
    }

    /// Another pool's namespace of the same name.
    #[must_use]
    pub fn with_pool(&self, pool: PoolId) -> Self {
        Self { pool, ..self.clone() }
    }
}

fn empty() -> &'static Arc<str> {
    static EMPTY: std::sync::OnceLock<Arc<str>> = std::sync::OnceLock::new();
    EMPTY.get_or_init(|| "".into())
}

/// Finds a pool by its name.
///
/// # Errors
/// There is no such pool, or the client has ended.
pub async fn find_pool(cluster: &Cluster, name: &str) -> Result<PoolInfo, RbdError> {
    let pools = cluster.pools().await;
    let pools = pools.map_err(|errno| RbdError::cluster(name, "the list of pools", errno))?;
    pools
        .into_iter()
        .find(|pool| pool.name == name)
        .ok_or_else(|| RbdError::NoPool(name.to_owned()))
}

/// The data of the answer to one operation of a request.
///
/// # Errors
/// The operation failed, or there is no answer to it.
pub(crate) fn answer(reply: &Reply, index: usize) -> Result<&Bytes, Errno> {
    let result = reply.ops.get(index).ok_or(Errno::EIO)?;
    Errno::check(result.result)?;
    Ok(&result.data)
}

/// As [`answer`] to the first operation, for a caller that needs no other.
///
/// # Errors
/// As [`answer`].
pub(crate) fn first_answer(reply: Reply) -> Result<Bytes, Errno> {
    let result = reply.ops.into_iter().next().ok_or(Errno::EIO)?;
    Errno::check(result.result)?;
    Ok(result.data)
}

/// Reads the answers to the operations of a request, one after another.
pub(crate) struct Answers {
    reply: Reply,
    next: usize,
    image: Rc<str>,
    action: &'static str,
}

impl Answers {
    /// The answers to a request about an image.
    pub(crate) fn new(reply: Reply, image: &str, action: &'static str) -> Self {
        Self { reply, next: 0, image: image.into(), action }
    }

    /// The next answer, which must be good.
    pub(crate) fn next<T>(
        &mut self,
        decode: impl FnOnce(&Bytes) -> Result<T, DecodeError>,
    ) -> Result<T, RbdError> {
        self.optional(decode)?.map_err(|errno| RbdError::cluster(&self.image, self.action, errno))
    }

    /// The next answer, which may be an error.
    pub(crate) fn optional<T>(
        &mut self,
        decode: impl FnOnce(&Bytes) -> Result<T, DecodeError>,
    ) -> Result<Result<T, Errno>, RbdError> {
        let index = self.next;
        self.next += 1;
        match answer(&self.reply, index) {
            Ok(data) => {
                decode(data).map(Ok).map_err(|fault| RbdError::damaged(&self.image, &fault))
            }
            Err(errno) => Ok(Err(errno)),
        }
    }
}
