//! A device. Any number of threads may use it. The caller closes it once.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::time::Duration;

use fieldstone_c_abi::{Error, array, reference, write};
use fieldstone_embed::{
    Bounds, CompletionQueue, Device, Error as EmbedError, Options, Queue, is_in_callback,
};

use crate::aio::Aio;
use crate::status::{Failure, Status, guarded};

/// Largest number of layers in the options.
const LAYERS_MAX: usize = 64;
/// Largest number of cores in the options.
const CORES_MAX: usize = 64;
/// Largest number of requests in the options.
const REQUESTS_MAX: usize = 1 << 16;

/// `fieldstone_block` of the header.
pub struct Block {
    pub(crate) device: Device,
    pub(crate) aio: Aio,
}

/// `fieldstone_block_options` of the header.
#[repr(C)]
pub struct BlockOptions {
    read_only: c_int,
    direct: c_int,
    layers: *const *const c_char,
    layer_count: usize,
    requests: usize,
    bytes: usize,
    open_timeout_ms: c_uint,
    cores: c_uint,
}

impl BlockOptions {
    /// # Safety
    /// The layers are as the header demands.
    unsafe fn read(&self) -> Result<Options, Failure> {
        let mut bounds = Bounds::default();
        if self.requests > REQUESTS_MAX {
            let message = format!("{} requests are more than {REQUESTS_MAX}", self.requests);
            return Err(Failure::new(Status::OutOfRange, message));
        }
        let cores = self.cores as usize;
        if cores > CORES_MAX {
            let message = format!("{cores} cores are more than {CORES_MAX}");
            return Err(Failure::new(Status::OutOfRange, message));
        }
        if self.requests > 0 {
            bounds.requests = self.requests;
        }
        if self.bytes > 0 {
            bounds.bytes = self.bytes;
        }
        let mut layers = Vec::new();
        // SAFETY: the header demands the array.
        for &text in unsafe { array("layers", self.layers, self.layer_count, LAYERS_MAX) }? {
            // SAFETY: the header demands the texts.
            layers.push(unsafe { text_of("layers", text) }?);
        }
        let (read_only, direct) = (self.read_only != 0, self.direct != 0);
        let timeout = Duration::from_millis(u64::from(self.open_timeout_ms));
        let open_timeout = (!timeout.is_zero()).then_some(timeout);
        Ok(Options { read_only, direct, cores, layers, bounds, open_timeout })
    }
}

/// # Safety
/// The pointer is null, or points to a text that ends with a zero byte.
unsafe fn text_of(name: &str, text: *const c_char) -> Result<String, Failure> {
    // SAFETY: the caller guarantees the pointer.
    unsafe { reference(name, text) }?;
    // SAFETY: the caller guarantees the text, and the pointer is not null.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Failure::new(Status::BadTarget, format!("{name} is not UTF-8: {text:?}"))),
    }
}

/// Opens a device.
///
/// # Safety
/// `target` is null or ends with a zero byte. The other pointers are as the header demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_open(
    target: *const c_char,
    options: *const BlockOptions,
    device: *mut *mut Block,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header demands these pointers. After a failure, `*device` is null.
        unsafe { write("device", device, ptr::null_mut()) }?;
        // SAFETY: as above.
        let target = unsafe { text_of("target", target) }?;
        // SAFETY: as above. Null stands for the default options.
        let options = match unsafe { options.as_ref() } {
            // SAFETY: as above.
            Some(options) => unsafe { options.read() }?,
            None => Options::default(),
        };
        let completions = CompletionQueue::new(options.bounds.requests);
        let completions =
            completions.map_err(|error| Failure::new(Status::CannotOpen, error.to_string()))?;
        let opened = Device::open(&target, &options)?;
        let made = Box::into_raw(Box::new(Block { device: opened, aio: Aio::new(completions) }));
        // SAFETY: as above.
        Ok(unsafe { write("device", device, made) }?)
    };
    // SAFETY: the header demands null or room for an error.
    unsafe { guarded(error, body) }
}

/// Closes a device and frees it.
///
/// # Safety
/// Null, or a device that is not closed and that no other call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_close(device: *mut Block, error: *mut Error) -> c_int {
    let body = || {
        if device.is_null() {
            return Ok(());
        }
        // The device is unchanged, so the caller can close it later.
        if is_in_callback() {
            return Err(EmbedError::OnCore.into());
        }
        {
            // Callbacks of requests under way may make aio calls, and those use the device by the
            // same pointer. So this call shares the device with them until they have returned.
            // SAFETY: the header demands a device, and this call frees it only below.
            let shared = unsafe { &*device };
            Queue::close(&shared.device)?;
        }
        // SAFETY: the pointer came from Box::into_raw, and the caller returns the ownership. No
        // callback runs any more, and no other call uses the device.
        let block = unsafe { Box::from_raw(device) };
        Ok(block.device.close()?)
    };
    // SAFETY: the header demands null or room for an error.
    unsafe { guarded(error, body) }
}

/// The present size in bytes; 0 for null.
///
/// # Safety
/// Null, or a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_size(device: *const Block) -> u64 {
    // SAFETY: the header demands a device or null.
    unsafe { device.as_ref() }.map_or(0, |block| block.device.size_bytes())
}

/// The eventfd of the completion queue; -1 for null.
///
/// # Safety
/// Null, or a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_eventfd(device: *const Block) -> c_int {
    // SAFETY: the header demands a device or null.
    unsafe { device.as_ref() }.map_or(-1, |block| block.aio.completions.as_fd().as_raw_fd())
}

/// `fieldstone_block_completion` of the header.
#[repr(C)]
pub struct Completion {
    arg: *mut c_void,
    status: c_int,
}

/// Takes answers from the completion queue.
///
/// # Safety
/// `device` is null or a device. `completions` is null or has room for `max` completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_block_completions(
    device: *mut Block,
    completions: *mut Completion,
    max: usize,
    timeout_ms: c_uint,
) -> usize {
    let mut count = 0;
    let body = || {
        // SAFETY: the header demands a device or null.
        let block = unsafe { reference("device", device) }?;
        if completions.is_null() {
            return Ok(());
        }
        let mut done = Vec::new();
        // A callback runs on the core, which makes the answers.
        let timeout_ms = if is_in_callback() { 0 } else { timeout_ms };
        let timeout = Duration::from_millis(u64::from(timeout_ms));
        block.aio.completions.wait(timeout, max, &mut done);
        for (at, done) in done.into_iter().enumerate() {
            let status = done.answer.err().map_or(Status::Ok, |error| Status::of(&error));
            // The tag is the address in the caller's `arg`.
            let arg = ptr::with_exposed_provenance_mut(done.tag as usize);
            // SAFETY: the header demands room for `max` completions, and `at` is less.
            unsafe { completions.add(at).write(Completion { arg, status: status as c_int }) };
            count += 1;
        }
        Ok(())
    };
    // SAFETY: a null pointer is allowed.
    unsafe { guarded(ptr::null_mut(), body) };
    count
}
