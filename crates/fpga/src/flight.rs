//! What the device is working on for a queue set.

use std::collections::VecDeque;

use fieldstone_accel::{Job, JobId, QueueId};

use crate::card::Shared;
use crate::extents::Extent;
use crate::maps::Use;
use crate::plan::Plan;
use crate::regs::ReconfigurableModule;

/// The operations that the device counts cycles of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// `LOAD_MAP`.
    LoadMap,
    /// `PLACE`.
    Place,
    /// `CODE`.
    Code,
    /// `CHECKSUM`.
    Checksum,
    /// `RECONFIGURE`.
    Reconfigure,
    /// The last copy back to the host.
    Return,
}

impl Operation {
    /// True when its descriptor is in the C2H ring.
    #[must_use]
    pub fn is_c2h(self) -> bool {
        self == Self::Return
    }
}

/// Descriptors that belong together.
pub struct Flight {
    /// What for.
    pub purpose: Purpose,
    /// The completions that are still to come, in this order.
    pub to_come: VecDeque<Operation>,
    /// Memory that they use; the first extents are the job's.
    pub claim: Claim,
}

/// Memory on both sides.
#[derive(Debug, Default)]
pub struct Claim {
    /// Of the host.
    pub host: Vec<Extent>,
    /// Of the card.
    pub card: Vec<Extent>,
}

impl Claim {
    /// So many bytes on each side.
    pub(crate) fn new(bytes: usize, shared: &mut Shared) -> Option<Self> {
        let host = shared.host.allocate(bytes)?;
        let Some(card) = shared.card.allocate(bytes) else {
            shared.host.release(host);
            return None;
        };
        Some(Self { host: vec![host], card: vec![card] })
    }

    /// Gives it back. The device must have let go of it.
    pub(crate) fn release(self, shared: &mut Shared) {
        self.host.into_iter().for_each(|extent| shared.host.release(extent));
        self.card.into_iter().for_each(|extent| shared.card.release(extent));
    }
}

/// What a flight is for.
pub enum Purpose {
    /// A job.
    Job {
        /// The submitter's queue.
        queue: QueueId,
        /// The submitter's number.
        id: JobId,
        /// The job.
        job: Job,
        /// Where its bytes lie.
        plan: Plan,
        /// The map that it places with.
        uses: Option<Use>,
    },
    /// Another module for the partition.
    Swap(ReconfigurableModule),
}

impl Flight {
    /// The next completion comes: what it is of, if it is of the ring that it should be of.
    pub fn advance(&mut self, is_c2h: bool) -> Option<Operation> {
        let next = *self.to_come.front()?;
        (next.is_c2h() == is_c2h).then(|| self.to_come.pop_front())?
    }
}
