//! Reads, writes and the other requests. Each has two calls: one waits for the answer, the `aio`
//! call returns at once.

use std::ffi::{c_int, c_void};

use fieldstone_c_abi::{Error, reference};
use fieldstone_embed::{CallerBuffer, Operation};
use libc::iovec;

use crate::aio::{Callback, Told};
use crate::device::Block;
use crate::memory::Buffers;
use crate::status::{Failure, Status, guarded};

/// `FIELDSTONE_BLOCK_FUA` of the header.
const FUA: c_int = 1;
/// `FIELDSTONE_BLOCK_NO_HOLE` of the header.
const NO_HOLE: c_int = 2;

/// The arguments of a call, as C passes them.
enum CallArgs {
    Read { offset: u64, iov: *const iovec, count: usize },
    Write { offset: u64, iov: *const iovec, count: usize, flags: c_int },
    Flush,
    Discard { offset: u64, len: u64 },
    WriteZeroes { offset: u64, len: u64, flags: c_int },
}

/// Refuses unknown flags.
fn check_flags(flags: c_int, known: c_int) -> Result<(), Failure> {
    if flags & !known == 0 {
        return Ok(());
    }
    Err(Failure::new(Status::OutOfRange, format!("flags {flags:#x} are not known here")))
}

impl CallArgs {
    /// The operation, and the buffers that the data of the answer to a read go to. The device may
    /// fill a single buffer itself; then the answer has no data.
    ///
    /// # Safety
    /// The buffers are as the header demands.
    unsafe fn operation(self) -> Result<(Operation, Buffers), Failure> {
        Ok(match self {
            Self::Read { offset, iov, count } => {
                // SAFETY: the caller guarantees the buffers.
                let buffers = unsafe { Buffers::of(iov, count) }?;
                if let Some((start, len_bytes)) = buffers.single() {
                    // SAFETY: the caller guarantees the buffer until the answer is reported.
                    let buffer = unsafe { CallerBuffer::new(start, len_bytes) };
                    let read = Operation::ReadInto { offset_bytes: offset, buffer };
                    return Ok((read, buffers));
                }
                let len_bytes = buffers.len_bytes();
                (Operation::Read { offset_bytes: offset, len_bytes }, buffers)
            }
            Self::Write { offset, iov, count, flags } => {
                check_flags(flags, FUA)?;
                // SAFETY: the caller guarantees the buffers.
                let data = unsafe { Buffers::of(iov, count)?.gather() }.freeze();
                let fua = flags & FUA != 0;
                (Operation::Write { offset_bytes: offset, data, fua }, Buffers::default())
            }
            Self::Flush => (Operation::Flush, Buffers::default()),
            Self::Discard { offset, len } => {
                let operation = Operation::Discard { offset_bytes: offset, len_bytes: len };
                (operation, Buffers::default())
            }
            Self::WriteZeroes { offset, len, flags } => {
                check_flags(flags, FUA | NO_HOLE)?;
                let (fua, no_hole) = (flags & FUA != 0, flags & NO_HOLE != 0);
                let (offset_bytes, len_bytes) = (offset, len);
                let zeroes = Operation::WriteZeroes { offset_bytes, len_bytes, no_hole, fua };
                (zeroes, Buffers::default())
            }
        })
    }
}

/// Submits a request, and waits for the answer.
///
/// # Safety
/// The pointers are as the header demands.
unsafe fn wait(device: *const Block, args: CallArgs, error: *mut Error) -> c_int {
    let body = || {
        // SAFETY: the caller guarantees the pointer.
        let block = unsafe { reference("device", device) }?;
        // SAFETY: the caller guarantees the buffers.
        let (operation, buffers) = unsafe { args.operation() }?;
        let data = block.device.ask(&operation)?;
        // SAFETY: the caller guarantees the buffers until this call returns.
        unsafe { buffers.scatter(&data) };
        Ok(())
    };
    // SAFETY: the header demands null or room for an error.
    unsafe { guarded(error, body) }
}

/// Submits a request. `told` receives the answer.
///
/// # Safety
/// The pointers are as the header demands.
unsafe fn submit(device: *const Block, args: CallArgs, told: Told, error: *mut Error) -> c_int {
    let body = || {
        // SAFETY: the caller guarantees the pointer.
        let block = unsafe { reference("device", device) }?;
        // SAFETY: the caller guarantees the buffers until the answer is reported.
        let (operation, buffers) = unsafe { args.operation() }?;
        let submit = |on_complete| block.device.submit(operation, on_complete);
        Ok(block.aio.submit(told, buffers, submit)?)
    };
    // SAFETY: the header demands null or room for an error.
    unsafe { guarded(error, body) }
}

/// The only entry of an array of buffers.
fn single(buffer: *const c_void, len: usize) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: len }
}

/// Reads, and waits.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_read(
    device: *mut Block,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
    error: *mut Error,
) -> c_int {
    let iov = single(buffer, len);
    // SAFETY: as the header says.
    unsafe { wait(device, CallArgs::Read { offset, iov: &raw const iov, count: 1 }, error) }
}

/// Reads into several buffers, and waits.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_readv(
    device: *mut Block,
    offset: u64,
    iov: *const iovec,
    iov_count: usize,
    error: *mut Error,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { wait(device, CallArgs::Read { offset, iov, count: iov_count }, error) }
}

/// Writes, and waits.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_write(
    device: *mut Block,
    offset: u64,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    error: *mut Error,
) -> c_int {
    let iov = single(buffer, len);
    // SAFETY: as the header says.
    unsafe { wait(device, CallArgs::Write { offset, iov: &raw const iov, count: 1, flags }, error) }
}

/// Writes several buffers, and waits.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_writev(
    device: *mut Block,
    offset: u64,
    iov: *const iovec,
    iov_count: usize,
    flags: c_int,
    error: *mut Error,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { wait(device, CallArgs::Write { offset, iov, count: iov_count, flags }, error) }
}

/// Makes the writes stable that were answered before, and waits.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_flush(device: *mut Block, error: *mut Error) -> c_int {
    // SAFETY: as the header says.
    unsafe { wait(device, CallArgs::Flush, error) }
}

/// Discards a range, and waits.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_discard(
    device: *mut Block,
    offset: u64,
    len: u64,
    error: *mut Error,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { wait(device, CallArgs::Discard { offset, len }, error) }
}

/// Writes zeroes to a range, and waits.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_write_zeroes(
    device: *mut Block,
    offset: u64,
    len: u64,
    flags: c_int,
    error: *mut Error,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { wait(device, CallArgs::WriteZeroes { offset, len, flags }, error) }
}

/// Reads.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_aio_read(
    device: *mut Block,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
    callback: Option<Callback>,
    arg: *mut c_void,
    error: *mut Error,
) -> c_int {
    let iov = single(buffer, len);
    let args = CallArgs::Read { offset, iov: &raw const iov, count: 1 };
    // SAFETY: as the header says.
    unsafe { submit(device, args, Told { callback, arg }, error) }
}

/// Reads into several buffers.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_aio_readv(
    device: *mut Block,
    offset: u64,
    iov: *const iovec,
    iov_count: usize,
    callback: Option<Callback>,
    arg: *mut c_void,
    error: *mut Error,
) -> c_int {
    let args = CallArgs::Read { offset, iov, count: iov_count };
    // SAFETY: as the header says.
    unsafe { submit(device, args, Told { callback, arg }, error) }
}

/// Writes.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_aio_write(
    device: *mut Block,
    offset: u64,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    callback: Option<Callback>,
    arg: *mut c_void,
    error: *mut Error,
) -> c_int {
    let iov = single(buffer, len);
    let args = CallArgs::Write { offset, iov: &raw const iov, count: 1, flags };
    // SAFETY: as the header says.
    unsafe { submit(device, args, Told { callback, arg }, error) }
}

/// Writes several buffers.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_aio_writev(
    device: *mut Block,
    offset: u64,
    iov: *const iovec,
    iov_count: usize,
    flags: c_int,
    callback: Option<Callback>,
    arg: *mut c_void,
    error: *mut Error,
) -> c_int {
    let args = CallArgs::Write { offset, iov, count: iov_count, flags };
    // SAFETY: as the header says.
    unsafe { submit(device, args, Told { callback, arg }, error) }
}

/// Makes the writes stable that were answered before.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_aio_flush(
    device: *mut Block,
    callback: Option<Callback>,
    arg: *mut c_void,
    error: *mut Error,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { submit(device, CallArgs::Flush, Told { callback, arg }, error) }
}

/// Discards a range.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_aio_discard(
    device: *mut Block,
    offset: u64,
    len: u64,
    callback: Option<Callback>,
    arg: *mut c_void,
    error: *mut Error,
) -> c_int {
    // SAFETY: as the header says.
    unsafe { submit(device, CallArgs::Discard { offset, len }, Told { callback, arg }, error) }
}

/// Writes zeroes to a range.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_aio_write_zeroes(
    device: *mut Block,
    offset: u64,
    len: u64,
    flags: c_int,
    callback: Option<Callback>,
    arg: *mut c_void,
    error: *mut Error,
) -> c_int {
    let args = CallArgs::WriteZeroes { offset, len, flags };
    // SAFETY: as the header says.
    unsafe { submit(device, args, Told { callback, arg }, error) }
}
