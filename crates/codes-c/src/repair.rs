//! A plan for a repair: the ranges of shards to read, and the computation of the lost shards.

use std::ffi::c_int;
use std::sync::Arc;

use fieldstone_c_abi::{Error, reference, write};
use fieldstone_codes::foreign_buffers::ForeignBuffers;
use fieldstone_codes::{Code as Codes, RepairPlan, ShardRead, StripeError, stripe};

use crate::code::Code;
use crate::pointers::{array, write_all};
use crate::status::{Failure, Status, guarded};

/// `fieldstone_repair` of the header.
pub struct Repair {
    code: Arc<dyn Codes>,
    plan: Arc<RepairPlan>,
}

/// `fieldstone_read` of the header: the reads of one shard.
#[repr(C)]
pub struct Read {
    shard: usize,
    range_count: usize,
    len_bytes: usize,
}

/// `fieldstone_range` of the header: a range of a shard.
#[repr(C)]
pub struct Range {
    offset_bytes: usize,
    len_bytes: usize,
}

impl Repair {
    /// One of the reads, if the code allows this length of shards.
    fn read(&self, read: usize, shard_bytes: usize) -> Result<&ShardRead, Failure> {
        let granule_bytes = self.code.layout().granule_bytes(self.code.elements());
        if !shard_bytes.is_multiple_of(granule_bytes) {
            let profile = self.code.profile();
            return Err(StripeError::Granule { profile, granule_bytes, shard_bytes }.into());
        }
        self.plan.reads.get(read).ok_or_else(|| {
            let count = self.plan.reads.len();
            Failure::new(Status::OutOfRange, format!("there is no read {read}, but {count} reads"))
        })
    }
}

/// Plans the repair of `lost` from some of those `available`.
///
/// # Safety
/// The lists have the given numbers of entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_repair_new(
    code: *const Code,
    lost: *const usize,
    lost_count: usize,
    available: *const usize,
    available_count: usize,
    repair: *mut *mut Repair,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers; after a failure the pointer is null.
        unsafe { write("repair", repair, std::ptr::null_mut()) }?;
        // SAFETY: as above.
        let code = Arc::clone(&unsafe { reference("code", code) }?.code);
        // SAFETY: as above.
        let (lost, available) = unsafe {
            (array("lost", lost, lost_count)?, array("available", available, available_count)?)
        };
        let plan = code.repair(lost, available)?;
        let made = Box::into_raw(Box::new(Repair { code, plan }));
        // SAFETY: as above.
        Ok(unsafe { write("repair", repair, made) }?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}

/// Frees a plan.
///
/// # Safety
/// Null, or a plan that was not freed yet, and that no other call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_repair_free(repair: *mut Repair) {
    if !repair.is_null() {
        // SAFETY: the pointer came from Box::into_raw, and the caller gives it back.
        drop(unsafe { Box::from_raw(repair) });
    }
}

/// Number of shards that the plan reads; 0 for null.
///
/// # Safety
/// Null, or a plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_repair_read_count(repair: *const Repair) -> usize {
    // SAFETY: the header requires a plan or null.
    unsafe { repair.as_ref() }.map_or(0, |repair| repair.plan.reads.len())
}

/// The reads of the plan from one shard.
///
/// # Safety
/// As the header requires for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_repair_read(
    repair: *const Repair,
    read: usize,
    shard_bytes: usize,
    result: *mut Read,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let repair = unsafe { reference("repair", repair) }?;
        let read = repair.read(read, shard_bytes)?;
        let (shard, range_count) = (read.shard, read.elements.len());
        let len_bytes = stripe::read_bytes(&*repair.code, read, shard_bytes);
        // SAFETY: as above.
        Ok(unsafe { write("result", result, Read { shard, range_count, len_bytes }) }?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}

/// One of the ranges of a read.
///
/// # Safety
/// As the header requires for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_repair_range(
    repair: *const Repair,
    read: usize,
    range: usize,
    shard_bytes: usize,
    result: *mut Range,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let repair = unsafe { reference("repair", repair) }?;
        let read = repair.read(read, shard_bytes)?;
        let mut ranges = read.ranges_in(shard_bytes as u64, repair.code.elements());
        let bytes = ranges.nth(range).ok_or_else(|| {
            let count = read.elements.len();
            let message = format!("there is no range {range}, but {count} ranges");
            Failure::new(Status::OutOfRange, message)
        })?;
        // The range is inside a shard, whose length is a usize.
        let (offset_bytes, end) = (bytes.start as usize, bytes.end as usize);
        let found = Range { offset_bytes, len_bytes: end - offset_bytes };
        // SAFETY: as above.
        Ok(unsafe { write("result", result, found) }?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}

/// Computes the lost shards from the reads.
///
/// # Safety
/// `inputs` has a buffer for each read, of the read's length; `outputs` has a buffer of
/// `shard_bytes` bytes for each lost shard.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_repair_execute(
    repair: *const Repair,
    inputs: *const *const u8,
    outputs: *const *mut u8,
    shard_bytes: usize,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let Repair { code, plan } = unsafe { reference("repair", repair) }?;
        // SAFETY: as above.
        let (inputs, outputs) = unsafe {
            (
                array("inputs", inputs, plan.reads.len())?,
                array("outputs", outputs, plan.lost.len())?,
            )
        };
        let mut buffers = ForeignBuffers::default();
        for (at, (&input, read)) in inputs.iter().zip(&plan.reads).enumerate() {
            let len_bytes = stripe::read_bytes(&**code, read, shard_bytes);
            buffers.read("inputs", Some(at), input, len_bytes)?;
        }
        write_all(&mut buffers, "outputs", outputs, shard_bytes)?;
        // SAFETY: the header requires buffers of these lengths that no other thread writes.
        let (inputs, mut outputs) = unsafe { buffers.slices() }?;
        Ok(stripe::repair(&**code, plan, &inputs, &mut outputs)?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}
