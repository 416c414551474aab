//! Memory for parity that nodes make of what they get (`stream`).
//!
//! The nodes of a process share it. One half is for *sums*: a parity node takes memory with the
//! first contribution to a sum and gives it back when the sum is in the file, or is given up. The
//! other half is for *products*: a data node takes memory before it multiplies. A product leaves
//! over a link, and may wait there for longer than the node waits for an answer. So the memory of a
//! product comes back when the last reference to its bytes is gone, wherever that is.
//!
//! The halves are apart, because they fill for different reasons. Products pile up before a node
//! that takes nothing. If they could take all memory, a single such node would keep all others from
//! adding up.
//!
//! One volume may use a part of each half on each node ([`PARITY_VOLUMES`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fieldstone_buf::{Budget, Lease};
use fieldstone_proto::VolumeId;

use crate::limits::PARITY_VOLUMES;

/// Memory for parity that nodes make. Clones share it.
#[derive(Clone, Debug)]
pub struct ParityMemory {
    sums: Arc<Budget>,
    products: Arc<Budget>,
    denied: Arc<AtomicU64>,
}

/// What is in use of a [`ParityMemory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParityMemoryUse {
    /// Size of the memory, in bytes.
    pub total_bytes: usize,
    /// Bytes of sums; at most half of the total.
    pub sums_bytes: usize,
    /// Bytes of products; at most half of the total.
    pub products_bytes: usize,
    /// Sums and products since the start that found no memory.
    pub denied: u64,
}

impl ParityMemory {
    /// Memory of `total_bytes`, all of it unused. Half of it is for sums, half for products.
    #[must_use]
    pub fn new(total_bytes: usize) -> Self {
        let half = || Budget::new(total_bytes / 2);
        Self { sums: half(), products: half(), denied: Arc::default() }
    }

    /// What is in use.
    #[must_use]
    pub fn usage(&self) -> ParityMemoryUse {
        ParityMemoryUse {
            total_bytes: self.sums.total_bytes() + self.products.total_bytes(),
            sums_bytes: self.sums.used_bytes(),
            products_bytes: self.products.used_bytes(),
            denied: self.denied.load(Ordering::Relaxed),
        }
    }

    /// Memory for a sum of a volume that has `of_volume` bytes of sums on this node.
    pub(crate) fn lease_sum(&self, of_volume: usize, len_bytes: usize) -> Option<Lease> {
        let share = self.sums.total_bytes() / PARITY_VOLUMES;
        let fits = of_volume.checked_add(len_bytes).is_some_and(|sum| sum <= share);
        fits.then(|| self.sums.lease(len_bytes)).flatten()
    }

    /// Counts a sum or a product without memory.
    pub(crate) fn count_denial(&self) {
        self.denied.fetch_add(1, Ordering::Relaxed);
    }
}

/// The memory of a product: of all volumes and of one. It comes back when this is dropped.
#[derive(Debug)]
pub(crate) struct ProductLease {
    _of_volume: Lease,
    _of_all: Lease,
}

/// The memory for products as one node uses it.
#[derive(Debug)]
pub(crate) struct ProductMemory {
    memory: ParityMemory,
    /// The shares of volumes that have products, and of some that had.
    of_volumes: BTreeMap<VolumeId, Arc<Budget>>,
}

impl ProductMemory {
    pub(crate) fn new(memory: ParityMemory) -> Self {
        Self { memory, of_volumes: BTreeMap::new() }
    }

    /// Memory for a product of this volume. Counts if there is none.
    pub(crate) fn lease(&mut self, volume: VolumeId, len_bytes: usize) -> Option<ProductLease> {
        if !self.of_volumes.contains_key(&volume) {
            self.of_volumes.retain(|_, share| share.used_bytes() > 0);
            let share = Budget::new(self.memory.products.total_bytes() / PARITY_VOLUMES);
            self.of_volumes.insert(volume, share);
        }
        let lease = || {
            let of_volume = self.of_volumes.get(&volume)?.lease(len_bytes)?;
            let of_all = self.memory.products.lease(len_bytes)?;
            Some(ProductLease { _of_volume: of_volume, _of_all: of_all })
        };
        let lease = lease();
        if lease.is_none() {
            self.memory.count_denial();
        }
        lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_volumes_that_have_none_are_forgotten() {
        let memory = ParityMemory::new(2 * PARITY_VOLUMES * 100);
        let mut products = ProductMemory::new(memory.clone());
        let held = products.lease(VolumeId(0), 100).expect("room");
        assert!(products.lease(VolumeId(0), 1).is_none(), "its share is used up");
        for volume in 1..1000 {
            assert!(products.lease(VolumeId(volume), 100).is_some());
        }
        assert_eq!(products.of_volumes.len(), 2);
        let others: Vec<_> =
            (1..).map_while(|volume| products.lease(VolumeId(volume), 100)).collect();
        assert_eq!((others.len(), memory.usage().denied), (PARITY_VOLUMES - 1, 2));
        assert_eq!(memory.usage().products_bytes, PARITY_VOLUMES * 100);
        drop((held, others));
        assert_eq!(memory.usage().products_bytes, 0);
        assert!(products.lease(VolumeId(0), usize::MAX).is_none());
    }
}
