//! The secrets of a pool, shared by everything in this process that signs or checks capabilities.
//!
//! The process reads the secrets from the pool's folder, and reads them again when the file has
//! changed (`fieldstone pool rotate-key`). It stores the new ones here, and then calls
//! [`Handle::keys_changed`](crate::Handle::keys_changed): every core gives them to its nodes and
//! volumes. A node or volume that starts later takes them from here. So none of them misses a
//! change, whatever the order.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use fieldstone_proto::{MasterKey, PoolKeys, RotationError};

/// The secrets of a pool. Clones share them.
#[derive(Clone)]
pub struct SharedKeys(Arc<Mutex<PoolKeys>>);

impl fmt::Debug for SharedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKeys(secret)")
    }
}

impl From<PoolKeys> for SharedKeys {
    fn from(keys: PoolKeys) -> Self {
        Self(Arc::new(Mutex::new(keys)))
    }
}

impl From<MasterKey> for SharedKeys {
    /// The secret of a pool that never had another one.
    fn from(secret: MasterKey) -> Self {
        PoolKeys::from(secret).into()
    }
}

impl SharedKeys {
    /// The secrets as they are now.
    #[must_use]
    pub fn get(&self) -> PoolKeys {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes later secrets of the same pool. False if nothing changes.
    ///
    /// # Errors
    /// The secrets are older than the present ones, or another pool's. Nothing changes.
    pub fn advance(&self, keys: PoolKeys) -> Result<bool, RotationError> {
        let mut present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        present.check_successor(&keys)?;
        Ok(std::mem::replace(&mut *present, keys) != keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_secrets_and_never_go_back() {
        let first = PoolKeys::from(MasterKey([1; 16]));
        let staged = first.stage(MasterKey([2; 16])).expect("settled");
        let keys = SharedKeys::from(first);
        let other = keys.clone();
        assert_eq!(keys.advance(staged), Ok(true));
        assert_eq!(other.get(), staged);
        assert_eq!(other.advance(staged), Ok(false));
        assert_eq!(other.advance(first), Err(RotationError::Older));
        assert_eq!(keys.get(), staged);
        assert!(!format!("{keys:?}").contains('1'), "no secret in a log");
    }
}
