//! The work of a queue set that is on the device.

use std::collections::VecDeque;

use fieldstone_accel::{Job, JobId, SubmissionQueueId};

use crate::allocator::Allocation;
use crate::card::Shared;
use crate::extent_layout::ExtentLayout;
use crate::maps::MapPin;
use crate::regs::ReconfigurableModule;

/// The operations whose cycles the device counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceOperation {
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

impl DeviceOperation {
    /// True if the operation's descriptor is in the C2H ring.
    #[must_use]
    pub fn is_c2h(self) -> bool {
        self == Self::Return
    }
}

/// Descriptors that belong together.
pub struct Flight {
    /// The kind of the flight.
    pub kind: FlightKind,
    /// The completions that are still to come, in order.
    pub to_come: VecDeque<DeviceOperation>,
    /// The memory that the descriptors use; the first extents are the job's.
    pub claim: Claim,
}

/// Memory of the host and of the card.
#[derive(Debug, Default)]
pub struct Claim {
    /// Host memory.
    pub host: Vec<Allocation>,
    /// Card memory.
    pub card: Vec<Allocation>,
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

/// The kind of a flight.
pub enum FlightKind {
    /// A job.
    Job {
        /// The submitter's queue.
        queue: SubmissionQueueId,
        /// The submitter's number.
        id: JobId,
        /// The job.
        job: Job,
        /// The layout of its bytes.
        layout: ExtentLayout,
        /// The loaded map and module that the job uses.
        pin: Option<MapPin>,
    },
    /// A change of the partition to this module.
    Swap(ReconfigurableModule),
}

impl Flight {
    /// The next completion has come. Returns its operation, if it came on the expected ring.
    pub fn advance(&mut self, is_c2h: bool) -> Option<DeviceOperation> {
        let next = *self.to_come.front()?;
        (next.is_c2h() == is_c2h).then(|| self.to_come.pop_front())?
    }
}
