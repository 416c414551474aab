//! The state that all cores share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fieldstone_cluster_model::wire::{SessionId, WireCluster};

use crate::maps::Maps;

/// The number of the first client, as Ceph's monitors count.
const FIRST_CLIENT: u64 = 4100;

/// The model with its maps.
pub(crate) struct Cluster {
    pub(crate) wire: WireCluster,
    pub(crate) maps: Maps,
    /// The core of each session.
    pub(crate) core_of: HashMap<SessionId, usize>,
}

/// The state that all cores share. Copies are the same state.
#[derive(Clone)]
pub(crate) struct Shared {
    cluster: Arc<Mutex<Cluster>>,
    newest_client: Arc<AtomicU64>,
}

impl Shared {
    pub(crate) fn new(mut wire: WireCluster, maps: Maps) -> Self {
        maps.publish_first(&mut wire);
        let cluster = Cluster { wire, maps, core_of: HashMap::new() };
        Self {
            cluster: Arc::new(Mutex::new(cluster)),
            newest_client: Arc::new(AtomicU64::new(FIRST_CLIENT)),
        }
    }

    /// The model, for one turn of a core.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Cluster> {
        // A core that panics ends; the others go on with the model as it is.
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a client that has none.
    pub(crate) fn new_client(&self) -> u64 {
        self.newest_client.fetch_add(1, Ordering::Relaxed)
    }
}
