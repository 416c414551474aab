//! Coding jobs that become one operation.
//!
//! One operation on many stripes costs less than many operations: the engine reads its program
//! once, and loads the next stripe's inputs while it works on this one. So the driver does not
//! write the operation of a coding job at once. Jobs that come before the next poll join the batch
//! under two conditions. They have the same map and shards of the same lengths. They lie at equal
//! distances in card memory, as consecutive free extents do. The poll, a job that does not fit, or
//! the last place closes the batch. A job alone is a batch of one.

use std::sync::Arc;

use fieldstone_gf::LinearMap;

use super::FpgaDevice;
use crate::bounds::{MAX_BATCH_BYTES, MAX_BATCH_JOBS};
use crate::extent_layout::ExtentLayout;
use crate::flight::DeviceOperation;

/// Jobs whose operation is still to be written.
pub(super) struct Batch {
    /// Their flights, in the order of their memory.
    slots: Vec<usize>,
    map: Arc<LinearMap>,
    /// The layout of each job.
    layout: ExtentLayout,
    /// The program's address and length.
    program: (u64, u64),
    /// The first job's card address.
    base: u64,
    /// Distance from one job to the next; 0 for a batch of one.
    stride: u64,
}

impl Batch {
    /// Adds a job at this card address, if it fits.
    fn join(
        &mut self,
        slot: usize,
        map: &Arc<LinearMap>,
        layout: &ExtentLayout,
        base: u64,
    ) -> bool {
        let count = self.slots.len();
        let behind = base.checked_sub(self.base).filter(|&distance| distance > 0);
        let stride = if count == 1 { behind.unwrap_or(0) } else { self.stride };
        let fits = behind == Some(stride * count as u64)
            && Arc::ptr_eq(&self.map, map)
            && self.layout == *layout
            && count < MAX_BATCH_JOBS
            && (count + 1) * layout.bytes <= MAX_BATCH_BYTES;
        if fits {
            self.stride = stride;
            self.slots.push(slot);
        }
        fits
    }
}

impl FpgaDevice {
    /// Adds a job whose inputs are copied to the batch, or to a new one.
    pub(super) fn join_batch(
        &mut self,
        slot: usize,
        map: &Arc<LinearMap>,
        layout: ExtentLayout,
        program: (u64, u64),
        base: u64,
    ) {
        if self.batch.as_mut().is_some_and(|batch| batch.join(slot, map, &layout, base)) {
            return;
        }
        self.close_batch();
        let (slots, map) = (vec![slot], Arc::clone(map));
        self.batch = Some(Batch { slots, map, layout, program, base, stride: 0 });
    }

    /// Writes the operation of the batch.
    pub(super) fn close_batch(&mut self) {
        let Some(Batch { slots, layout, program, base, stride, .. }) = self.batch.take() else {
            return;
        };
        let code = layout.code(base, program, (slots.len(), stride));
        self.operate(&slots, DeviceOperation::Code, &code);
    }

    /// Descriptors that the rings have room for, besides those that the batch will take.
    pub(super) fn room(&self) -> (u32, u32) {
        let (h2c, c2h) = self.set.room();
        let Some(Batch { slots, layout, .. }) = &self.batch else { return (h2c, c2h) };
        // One operation for all jobs, checksums for each job, and copies of its outputs.
        let checksums = if layout.has_checksums() { slots.len() } else { 0 };
        let outputs = slots.len() * layout.outputs.len();
        (h2c.saturating_sub(1 + checksums as u32), c2h.saturating_sub(outputs as u32))
    }
}
