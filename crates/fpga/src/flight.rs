//! The work of a queue set that is on the device.

use std::collections::VecDeque;

use fieldstone_accel::{Job, JobId, QueueId};

use crate::card::Shared;
use crate::extents::Extent;
use crate::maps::Use;
use crate::plan::Plan;
use crate::regs::ReconfigurableModule;

/// The operations whose cycles the device counts.
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
    /// True if the operation's descriptor is in the C2H ring.
    #[must_use]
    pub fn is_c2h(self) -> bool {
        self == Self::Return
    }
}

/// Descriptors that belong together.
pub struct Flight {
    /// Their purpose.
    pub purpose: Purpose,
    /// The completions that are still to come, in order.
    pub to_come: VecDeque<Operation>,
    /// The memory that the descriptors use; the first extents are the job's.
    pub claim: Claim,
}

/// Memory of the host and of the card.
#[derive(Debug, Default)]
pub struct Claim {
    /// Host memory.
    pub host: Vec<Extent>,
    /// Card memory.
    pub card: Vec<Extent>,
}

impl Claim {
    /// Claims `bytes` on each side.
    pub(crate) fn new(bytes: usize, shared: &mut Shared) -> Option<Self> {
        let host = shared.host.allocate(bytes)?;
        let Some(card) = shared.card.allocate(bytes) else {
            shared.host.release(host);
            return None;
        };
        Some(Self { host: vec![host], card: vec![card] })
    }

    /// Gives the memory back. The device must have stopped using it.
    pub(crate) fn release(self, shared: &mut Shared) {
        self.host.into_iter().for_each(|extent| shared.host.release(extent));
        self.card.into_iter().for_each(|extent| shared.card.release(extent));
    }
}

/// The purpose of a flight.
pub enum Purpose {
    /// A job.
    Job {
        /// The submitter's queue.
        queue: QueueId,
        /// The submitter's number.
        id: JobId,
        /// The job.
        job: Job,
        /// The layout of its bytes.
        plan: Plan,
        /// The loaded map and module that it uses.
        uses: Option<Use>,
    },
    /// A change of the partition to this module.
    Swap(ReconfigurableModule),
}

impl Flight {
    /// The next completion has come. Returns its operation, if it came on the expected ring.
    pub fn advance(&mut self, is_c2h: bool) -> Option<Operation> {
        let next = *self.to_come.front()?;
        (next.is_c2h() == is_c2h).then(|| self.to_come.pop_front())?
    }
}
