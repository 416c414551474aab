//! The error numbers that monitors and OSDs answer.

use std::fmt;

/// An error number of Linux, positive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The caller may not do this.
    pub const EPERM: Errno = Errno(1);
    /// No such object, pool or key.
    pub const ENOENT: Errno = Errno(2);
    /// The pool does not exist, or no longer. OSDs do not answer this: an object that does not
    /// exist is [`Errno::ENOENT`].
    pub const ENXIO: Errno = Errno(6);
    /// A class, or a method of it, does not exist; or it failed to run.
    pub const ENOEXEC: Errno = Errno(8);
    /// The object cannot be read or written.
    pub const EIO: Errno = Errno(5);
    /// The caller's capabilities do not allow this.
    pub const EACCES: Errno = Errno(13);
    /// Another client holds it.
    pub const EBUSY: Errno = Errno(16);
    /// The object exists already.
    pub const EEXIST: Errno = Errno(17);
    /// The request has no meaning.
    pub const EINVAL: Errno = Errno(22);
    /// The pool or the cluster is full.
    pub const ENOSPC: Errno = Errno(28);
    /// The target cannot be written.
    pub const EROFS: Errno = Errno(30);
    /// The value is out of range, or not the expected one.
    pub const ERANGE: Errno = Errno(34);
    /// There is no such attribute.
    pub const ENODATA: Errno = Errno(61);
    /// The object's version is older than asserted.
    pub const EOVERFLOW: Errno = Errno(75);
    /// The request was broken off, and may be sent again.
    pub const ERESTART: Errno = Errno(85);
    /// The target does not support this.
    pub const EOPNOTSUPP: Errno = Errno(95);
    /// The watch is lost.
    pub const ENOTCONN: Errno = Errno(107);
    /// The client is blocklisted.
    pub const ESHUTDOWN: Errno = Errno(108);
    /// An answer did not come in time.
    pub const ETIMEDOUT: Errno = Errno(110);
    /// The same is under way.
    pub const EALREADY: Errno = Errno(114);
    /// The answer is in another place.
    pub const ESTALE: Errno = Errno(116);
    /// The quota of the pool is used up.
    pub const EDQUOT: Errno = Errno(122);
    /// The request was given up.
    pub const ECANCELED: Errno = Errno(125);

    /// The error of a result as the cluster gives it: negative is an error.
    ///
    /// # Errors
    /// The result is negative.
    pub fn check(result: i32) -> Result<u32, Errno> {
        u32::try_from(result).map_err(|_| Errno(result.saturating_neg()))
    }

    /// The symbol and its meaning, if this crate knows the number.
    fn known(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::EPERM => ("EPERM", "not permitted"),
            Self::ENOENT => ("ENOENT", "no such object or entry"),
            Self::ENXIO => ("ENXIO", "the pool does not exist"),
            Self::ENOEXEC => ("ENOEXEC", "the OSD has no such class or method"),
            Self::EIO => ("EIO", "input/output error"),
            Self::EACCES => ("EACCES", "permission denied"),
            Self::EBUSY => ("EBUSY", "it is in use"),
            Self::EEXIST => ("EEXIST", "it exists already"),
            Self::EINVAL => ("EINVAL", "invalid argument"),
            Self::ENOSPC => ("ENOSPC", "no space is left"),
            Self::EROFS => ("EROFS", "it is read-only"),
            Self::ERANGE => ("ERANGE", "out of range"),
            Self::ENODATA => ("ENODATA", "no such attribute"),
            Self::EOVERFLOW => ("EOVERFLOW", "the version is not the expected one"),
            Self::EOPNOTSUPP => ("EOPNOTSUPP", "not supported"),
            Self::ENOTCONN => ("ENOTCONN", "the watch is lost"),
            Self::ESHUTDOWN => ("ESHUTDOWN", "the client is blocklisted"),
            Self::ETIMEDOUT => ("ETIMEDOUT", "no answer in time"),
            Self::EALREADY => ("EALREADY", "it is under way already"),
            Self::ESTALE => ("ESTALE", "it is stale"),
            Self::EDQUOT => ("EDQUOT", "the quota of the pool is used up"),
            Self::ECANCELED => ("ECANCELED", "the request was given up"),
            Self(_) => return None,
        })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((symbol, meaning)) => write!(f, "{meaning} ({symbol})"),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((symbol, _)) => write!(f, "{symbol}"),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl std::error::Error for Errno {}
