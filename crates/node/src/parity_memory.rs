//! Memory for parity that nodes make of what they get (`stream`).
//!
//! The nodes of a process share it. One half is for *sums*: a parity node takes memory with the
//! first contribution to a sum. The other half is for *products*: a data node takes memory before
//! it multiplies. A sum may still be with the disk when the node has ended, and a product leaves
//! over a link, where it may wait for longer than the node waits for an answer. So their memory
//! comes back when the last reference to their bytes is gone, wherever that is.
//!
//! The halves are apart, because they fill for different reasons. Products pile up before a node
//! that takes nothing. If they could take all memory, a single such node would keep all others from
//! adding up.
//!
//! For the same reason there are shares, of the process and not of each node:
//!
//! - One volume may use a part of each half ([`PARITY_VOLUMES`]). So volumes that use up their
//!   shares leave something to the others.
//! - Products of one volume for one parity node may use half of the volume's share. So a parity
//!   node that takes nothing leaves something to the volume's other parity nodes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fieldstone_buf::{Budget, Lease};
use fieldstone_proto::VolumeId;

use crate::interface::LinkTarget;
use crate::limits::PARITY_VOLUMES;

/// Memory for parity that nodes make. Clones share it.
#[derive(Clone, Debug)]
pub struct ParityMemory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    sums: Arc<Budget>,
    products: Arc<Budget>,
    denied: AtomicU64,
    /// The shares of volumes that use memory, and of some that did.
    shares: Mutex<BTreeMap<VolumeId, Share>>,
}

/// What one volume may use.
#[derive(Debug)]
struct Share {
    sums: Arc<Budget>,
    products: Arc<Budget>,
    /// What its products for each parity node may use.
    by_target: BTreeMap<LinkTarget, Arc<Budget>>,
}

/// Memory of a sum or a product. It comes back when this is dropped.
#[derive(Debug)]
pub(crate) struct ParityLease {
    _of_target: Option<Lease>,
    _of_volume: Lease,
    _of_all: Lease,
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
        let (denied, shares) = (AtomicU64::new(0), Mutex::default());
        Self(Arc::new(Shared { sums: half(), products: half(), denied, shares }))
    }

    /// What is in use.
    #[must_use]
    pub fn usage(&self) -> ParityMemoryUse {
        let Shared { sums, products, denied, .. } = &*self.0;
        ParityMemoryUse {
            total_bytes: sums.total_bytes() + products.total_bytes(),
            sums_bytes: sums.used_bytes(),
            products_bytes: products.used_bytes(),
            denied: denied.load(Ordering::Relaxed),
        }
    }

    /// Memory for a sum of the volume. Counts if there is none.
    pub(crate) fn lease_sum(&self, volume: VolumeId, len_bytes: usize) -> Option<ParityLease> {
        self.lease(&self.0.sums, len_bytes, |shares| {
            (None, Arc::clone(&share_of(shares, volume, &self.0).sums))
        })
    }

    /// Memory for a product of the volume for a parity node. Counts if there is none.
    pub(crate) fn lease_product(
        &self,
        (volume, to): (VolumeId, &LinkTarget),
        len_bytes: usize,
    ) -> Option<ParityLease> {
        self.lease(&self.0.products, len_bytes, |shares| {
            let share = share_of(shares, volume, &self.0);
            let target = share.target(to);
            (Some(target), Arc::clone(&share.products))
        })
    }

    fn lease(
        &self,
        all: &Arc<Budget>,
        len_bytes: usize,
        budgets: impl FnOnce(&mut BTreeMap<VolumeId, Share>) -> (Option<Arc<Budget>>, Arc<Budget>),
    ) -> Option<ParityLease> {
        // The lock is held until the lease stands: an unused share may be forgotten.
        let mut shares = self.0.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let (target, volume) = budgets(&mut shares);
        let lease = || {
            let of_target = match target {
                Some(target) => Some(target.lease(len_bytes)?),
                None => None,
            };
            let of_volume = volume.lease(len_bytes)?;
            let of_all = all.lease(len_bytes)?;
            Some(ParityLease { _of_target: of_target, _of_volume: of_volume, _of_all: of_all })
        };
        let lease = lease();
        if lease.is_none() {
            self.0.denied.fetch_add(1, Ordering::Relaxed);
        }
        lease
    }
}

/// The share of a volume. Forgets the shares that are not in use if it is a new one.
fn share_of<'a>(
    shares: &'a mut BTreeMap<VolumeId, Share>,
    volume: VolumeId,
    shared: &Shared,
) -> &'a mut Share {
    if !shares.contains_key(&volume) {
        shares.retain(|_, share| share.is_in_use());
    }
    shares.entry(volume).or_insert_with(|| Share {
        sums: Budget::new(shared.sums.total_bytes() / PARITY_VOLUMES),
        products: Budget::new(shared.products.total_bytes() / PARITY_VOLUMES),
        by_target: BTreeMap::new(),
    })
}

impl Share {
    fn is_in_use(&self) -> bool {
        self.sums.used_bytes() > 0 || self.products.used_bytes() > 0
    }

    /// The part for products to this parity node. Forgets those that are not in use if it is a new
    /// one.
    fn target(&mut self, to: &LinkTarget) -> Arc<Budget> {
        if let Some(target) = self.by_target.get(to) {
            return Arc::clone(target);
        }
        self.by_target.retain(|_, target| target.used_bytes() > 0);
        let target = Budget::new(self.products.total_bytes() / 2);
        self.by_target.insert(to.clone(), Arc::clone(&target));
        target
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fieldstone_proto::NodeIndex;

    use super::*;

    const SHARE_BYTES: usize = 200;

    fn memory() -> ParityMemory {
        ParityMemory::new(2 * PARITY_VOLUMES * SHARE_BYTES)
    }

    fn target(node: u16) -> LinkTarget {
        LinkTarget { node: NodeIndex(node), address: Bytes::new() }
    }

    fn known(memory: &ParityMemory) -> usize {
        memory.0.shares.lock().expect("no panic").len()
    }

    #[test]
    fn shares_that_are_not_in_use_are_forgotten() {
        let memory = memory();
        let product = |volume, node, len_bytes| {
            memory.lease_product((VolumeId(volume), &target(node)), len_bytes)
        };
        let held = [product(0, 1, 100), product(0, 2, 100)];
        assert!(held.iter().all(Option::is_some));
        assert!(product(0, 3, 1).is_none(), "its share is used up");
        for volume in 1..1000 {
            assert!(product(volume, 1, 100).is_some());
        }
        assert_eq!(known(&memory), 2);
        let others: Vec<_> = (1..)
            .map_while(|volume| Some([product(volume, 1, 100)?, product(volume, 2, 100)?]))
            .collect();
        assert_eq!((others.len(), memory.usage().denied), (PARITY_VOLUMES - 1, 2));
        assert_eq!(memory.usage().products_bytes, PARITY_VOLUMES * SHARE_BYTES);
        drop((held, others));
        assert_eq!(memory.usage().products_bytes, 0);
        assert!(product(0, 1, usize::MAX).is_none());
    }

    #[test]
    fn a_parity_node_that_takes_nothing_leaves_memory_to_the_others() {
        let memory = memory();
        let product = |node| memory.lease_product((VolumeId(1), &target(node)), 50);
        let silent: Vec<_> = std::iter::from_fn(|| product(1)).collect();
        assert_eq!(silent.len(), 2, "half of the share of the volume");
        for _ in 0..1000 {
            assert!(product(2).is_some());
        }
        for node in 2..1000 {
            assert!(product(node).is_some());
        }
        let shares = memory.0.shares.lock().expect("no panic");
        assert_eq!(shares[&VolumeId(1)].by_target.len(), 2);
    }

    #[test]
    fn sums_and_products_of_one_volume_have_shares_of_their_own() {
        let memory = memory();
        let sums: Vec<_> =
            std::iter::from_fn(|| memory.lease_sum(VolumeId(1), SHARE_BYTES / 2)).collect();
        assert_eq!(sums.len(), 2);
        assert!(memory.lease_product((VolumeId(1), &target(1)), SHARE_BYTES / 2).is_some());
        assert!(memory.lease_sum(VolumeId(2), SHARE_BYTES).is_some());
        drop(sums);
        assert!(memory.lease_sum(VolumeId(1), SHARE_BYTES).is_some());
        assert_eq!((memory.usage().sums_bytes, memory.usage().denied), (0, 1));
    }
}
