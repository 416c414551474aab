//! Why something about an image cannot be done: what happened, to which image, and what helps.

use fieldstone_block::BlockError;
use fieldstone_rados::encoding::DecodeError;
use fieldstone_rados::errno::Errno;

use crate::format::striping::LayoutError;

/// An error of an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RbdError {
    /// There is no such pool.
    #[error("there is no pool {0}; `ceph osd pool ls` lists them")]
    NoPool(String),
    /// There is no such image.
    #[error("there is no image {0}")]
    NoImage(String),
    /// There is no such snapshot.
    #[error("image {image} has no snapshot {snapshot}")]
    NoSnapshot {
        /// The image.
        image: String,
        /// The snapshot.
        snapshot: String,
    },
    /// The name is taken.
    #[error("{0} exists already")]
    Exists(String),
    /// The image has a feature with which this client does not work.
    #[error("image {image} has the feature {feature}: {reason}")]
    Feature {
        /// The image.
        image: String,
        /// The feature.
        feature: String,
        /// Why it is refused, and what helps.
        reason: &'static str,
    },
    /// Another client has the lock, and does not give it up.
    #[error("image {image} is locked by {owner}: {reason}")]
    Locked {
        /// The image.
        image: String,
        /// The owner.
        owner: String,
        /// Why it keeps the lock.
        reason: &'static str,
    },
    /// This client was shut out of the cluster.
    #[error(
        "image {0}: the cluster has blocked this client (blocklist), because another client took \
         the image over; open the image again with a new client"
    )]
    Blocklisted(String),
    /// The image is used, or something belongs to it that must go first.
    #[error("image {image}: {reason}")]
    InUse {
        /// The image.
        image: String,
        /// What uses it.
        reason: String,
    },
    /// The caller asks for something that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The cluster's data makes no sense.
    #[error("image {image}: {fault}")]
    Damaged {
        /// The image.
        image: String,
        /// What is wrong.
        fault: String,
    },
    /// The cluster answered with an error.
    #[error("image {image}: {action} failed: {errno}")]
    Cluster {
        /// The image.
        image: String,
        /// What was tried.
        action: &'static str,
        /// The error.
        errno: Errno,
    },
    /// The image is closed.
    #[error("image {0} is closed")]
    Closed(String),
}

impl RbdError {
    /// The error of an action on an image. A blocked client is told apart.
    #[must_use]
    pub fn cluster(image: &str, action: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::ESHUTDOWN => Self::Blocklisted(image.to_owned()),
            errno => Self::Cluster { image: image.to_owned(), action, errno },
        }
    }

    /// Bytes of the cluster that cannot be read.
    #[must_use]
    pub fn damaged(image: &str, fault: &DecodeError) -> Self {
        Self::Damaged { image: image.to_owned(), fault: fault.to_string() }
    }

    /// A layout that fits no image.
    #[must_use]
    pub fn layout(image: &str, fault: LayoutError) -> Self {
        Self::Damaged { image: image.to_owned(), fault: fault.to_string() }
    }

    /// The error with the path of its image (`pool/image`), if it has only the name.
    #[must_use]
    pub fn with_path(mut self, path: &str) -> Self {
        match &mut self {
            Self::NoImage(image)
            | Self::Blocklisted(image)
            | Self::Closed(image)
            | Self::NoSnapshot { image, .. }
            | Self::Feature { image, .. }
            | Self::Locked { image, .. }
            | Self::InUse { image, .. }
            | Self::Damaged { image, .. }
            | Self::Cluster { image, .. } => {
                if !image.contains('/') {
                    path.clone_into(image);
                }
            }
            Self::NoPool(_) | Self::Exists(_) | Self::Invalid(_) => {}
        }
        self
    }

    /// The error number, if the cluster answered with one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Cluster { errno, .. } => Some(*errno),
            Self::Blocklisted(_) => Some(Errno::ESHUTDOWN),
            _ => None,
        }
    }

    /// As a block device reports it.
    #[must_use]
    pub fn to_block_error(&self) -> BlockError {
        match self {
            Self::Blocklisted(_) | Self::Locked { .. } => BlockError::Fenced(self.to_string()),
            Self::Closed(_) => BlockError::ShuttingDown,
            Self::Cluster { errno: Errno::ENOSPC | Errno::EDQUOT, .. } => BlockError::NoSpace,
            Self::Cluster { errno: Errno::EROFS, .. } => BlockError::ReadOnly,
            other => BlockError::Io(other.to_string()),
        }
    }
}
