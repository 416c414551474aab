//! The coder for C++: what `cxx/coder.h` declares.
//!
//! Each function returns 0, or a negative number of `errno.h`; then it has written a message into
//! the caller's `fieldstone_ec_error`, if there is one. No function unwinds: a panic becomes EIO.
//! The caller keeps all memory; only a coder itself is made here, and given back to
//! [`fieldstone_ec_free`]. A coder may be used by any number of threads at once.

use std::ffi::{c_char, c_int};

use fieldstone_c_abi::{Error, Failure, PointerError, array, guarded, reference, write};
use fieldstone_codes::MAX_SHARDS;
use fieldstone_codes::foreign_buffers::{BufferError, ForeignBuffers};

use crate::coder::{Coder, Read};
use crate::request::{self, Keys};
use crate::{EINVAL, EIO, ERANGE, Refusal};

/// Most keys of a profile.
const MAX_KEYS: usize = 1024;
/// Most bytes of a key or value. Longer ones make no sense, and are refused.
const MAX_TEXT_BYTES: usize = 1 << 16;

/// `fieldstone_ec` of the header: a coder, and the keys that its profile did not have.
pub struct Handle {
    coder: Coder,
    defaults: Vec<(String, String)>,
}

/// `fieldstone_ec_text`: bytes without a zero at their end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Text {
    data: *const c_char,
    len_bytes: usize,
}

impl Text {
    fn of(text: &str) -> Self {
        Self { data: text.as_ptr().cast(), len_bytes: text.len() }
    }

    /// # Safety
    /// `data` is null or has `len_bytes` bytes.
    unsafe fn read(&self, name: &str) -> Result<String, Refusal> {
        // SAFETY: the caller guarantees the bytes.
        let bytes = unsafe { array(name, self.data.cast::<u8>(), self.len_bytes, MAX_TEXT_BYTES) }?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// `fieldstone_ec_pair`: a key and its value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pair {
    key: Text,
    value: Text,
}

/// `fieldstone_ec_buffer`: a chunk or a part of one; `data` is null if there is none.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Buffer {
    data: *mut u8,
    len_bytes: usize,
}

/// `fieldstone_ec_read`: sub-chunks of a chunk that are to be read.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubChunks {
    /// The chunk.
    pub chunk: u32,
    /// The first sub-chunk.
    pub first: u32,
    /// Their number.
    pub count: u32,
}

impl Failure for Refusal {
    fn internal(message: String) -> Self {
        Self { errno: EIO, message }
    }
    fn status(&self) -> c_int {
        -self.errno
    }
    fn message(&self) -> &str {
        &self.message
    }
}

impl From<PointerError> for Refusal {
    fn from(error: PointerError) -> Self {
        Self { errno: EINVAL, message: error.to_string() }
    }
}

impl From<BufferError> for Refusal {
    fn from(error: BufferError) -> Self {
        Self { errno: EINVAL, message: error.to_string() }
    }
}

/// Makes the coder of a profile. `most_chunks`: the largest k + m that the daemon can place.
///
/// # Safety
/// `pairs` has `count` pairs, and their texts have their bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_ec_new(
    pairs: *const Pair,
    count: usize,
    most_chunks: usize,
    handle: *mut *mut Handle,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers; after a failure the pointer is null.
        unsafe { write("handle", handle, std::ptr::null_mut()) }?;
        // SAFETY: as above.
        let pairs = unsafe { array("pairs", pairs, count, MAX_KEYS) }?;
        let mut keys = Keys::new();
        for pair in pairs {
            // SAFETY: the header requires the bytes of each text.
            let (key, value) = unsafe { (pair.key.read("key")?, pair.value.read("value")?) };
            keys.insert(key, value);
        }
        let request = request::read(&keys, most_chunks)?;
        let defaults = request.defaults.clone().into_iter().collect();
        let made = Box::into_raw(Box::new(Handle { coder: Coder::new(&request), defaults }));
        // SAFETY: as above.
        Ok(unsafe { write("handle", handle, made) }?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded::<Refusal>(error, body) }
}

/// Frees a coder.
///
/// # Safety
/// Null, or a coder that was not freed yet, and that no other call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_ec_free(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: the pointer came from Box::into_raw, and the caller gives it back.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Key and value number `at` of those that the plug-in adds to the profile. False beyond the last.
/// The texts live as long as the coder.
///
/// # Safety
/// Null or a coder; null or room for a pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_ec_default(
    handle: *const Handle,
    at: usize,
    pair: *mut Pair,
) -> bool {
    // SAFETY: the header requires a coder or null.
    let Some(handle) = (unsafe { handle.as_ref() }) else { return false };
    let Some((key, value)) = handle.defaults.get(at) else { return false };
    let found = Pair { key: Text::of(key), value: Text::of(value) };
    // SAFETY: the header requires room for a pair or null.
    unsafe { write("pair", pair, found) }.is_ok()
}

/// Data chunks; 0 for null.
///
/// # Safety
/// Null or a coder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_ec_k(handle: *const Handle) -> u32 {
    // SAFETY: the header requires a coder or null.
    unsafe { handle.as_ref() }.map_or(0, |handle| handle.coder.k() as u32)
}

/// Coding chunks; 0 for null.
///
/// # Safety
/// Null or a coder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_ec_m(handle: *const Handle) -> u32 {
    // SAFETY: the header requires a coder or null.
    unsafe { handle.as_ref() }.map_or(0, |handle| handle.coder.m() as u32)
}

/// Sub-chunks of each chunk; 0 for null.
///
/// # Safety
/// Null or a coder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_ec_sub_chunks(handle: *const Handle) -> u32 {
    // SAFETY: the header requires a coder or null.
    unsafe { handle.as_ref() }.map_or(0, |handle| handle.coder.sub_chunks())
}

/// Bytes of each chunk of an object of `object_bytes` bytes; 0 for null.
///
/// # Safety
/// Null or a coder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_ec_chunk_bytes(
    handle: *const Handle,
    object_bytes: u32,
) -> u32 {
    // SAFETY: the header requires a coder or null.
    unsafe { handle.as_ref() }.map_or(0, |handle| handle.coder.chunk_bytes(object_bytes))
}

/// What to read. `available` is in the order of preference. Writes at most `room` reads, and their
/// number in any case; if they have no room, the result is ERANGE.
///
/// # Safety
/// `wanted` and `available` have their numbers of entries; `reads` has room for `room` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_ec_minimum(
    handle: *const Handle,
    wanted: *const u32,
    wanted_count: usize,
    available: *const u32,
    available_count: usize,
    reads: *mut SubChunks,
    room: usize,
    count: *mut usize,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let coder = &unsafe { reference("handle", handle) }?.coder;
        // SAFETY: as above.
        let (wanted, available) = unsafe {
            (
                array("wanted", wanted, wanted_count, MAX_SHARDS)?,
                array("available", available, available_count, MAX_SHARDS)?,
            )
        };
        let numbers = |list: &[u32]| list.iter().map(|&at| at as usize).collect::<Vec<_>>();
        let found = coder.minimum(&numbers(wanted), &numbers(available))?;
        // SAFETY: as above.
        unsafe { write("count", count, found.len()) }?;
        if found.len() > room {
            let message = format!("{} reads have no room", found.len());
            return Err(Refusal { errno: ERANGE, message });
        }
        for (at, Read { chunk, sub_chunks }) in found.iter().enumerate() {
            let (first, count) = (sub_chunks.start, sub_chunks.end - sub_chunks.start);
            let read = SubChunks { chunk: *chunk as u32, first, count };
            // SAFETY: the header requires room, and `at` is below its number.
            unsafe { write("reads", reads.wrapping_add(at), read) }?;
        }
        Ok(())
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded::<Refusal>(error, body) }
}

/// Computes the coding chunks: `chunks` are all k + m; the first k are read, the others written.
///
/// # Safety
/// `chunks` has `count` entries, and each buffer has its bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_ec_encode(
    handle: *const Handle,
    chunks: *const Buffer,
    count: usize,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let coder = &unsafe { reference("handle", handle) }?.coder;
        // SAFETY: as above.
        let chunks = unsafe { array("chunks", chunks, count, MAX_SHARDS) }?;
        if count != coder.chunks() {
            let expected = coder.chunks();
            return Err(Refusal::invalid(format!("{count} chunks instead of {expected}")));
        }
        let mut buffers = ForeignBuffers::default();
        for (at, chunk) in chunks.iter().enumerate() {
            if at < coder.k() {
                buffers.read("chunks", Some(at), chunk.data, chunk.len_bytes)?;
            } else {
                buffers.write("chunks", Some(at), chunk.data, chunk.len_bytes)?;
            }
        }
        // SAFETY: the header requires buffers of these lengths that no other thread writes.
        let (data, mut coding) = unsafe { buffers.slices() }?;
        coder.encode(&data, &mut coding)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded::<Refusal>(error, body) }
}

/// Restores chunks. Entry i of `given` and `outputs` is that of chunk i, with null for none.
///
/// # Safety
/// Both arrays have `count` entries, and each buffer has its bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_ec_decode(
    handle: *const Handle,
    given: *const Buffer,
    outputs: *const Buffer,
    count: usize,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let coder = &unsafe { reference("handle", handle) }?.coder;
        // SAFETY: as above.
        let (given, outputs) = unsafe {
            (
                array("given", given, count, MAX_SHARDS)?,
                array("outputs", outputs, count, MAX_SHARDS)?,
            )
        };
        if count != coder.chunks() {
            let expected = coder.chunks();
            return Err(Refusal::invalid(format!("{count} chunks instead of {expected}")));
        }
        let mut buffers = ForeignBuffers::default();
        let mut lost = Vec::new();
        for (at, (given, output)) in given.iter().zip(outputs).enumerate() {
            if !given.data.is_null() {
                buffers.read("given", Some(at), given.data, given.len_bytes)?;
            }
            if !output.data.is_null() {
                buffers.write("outputs", Some(at), output.data, output.len_bytes)?;
                lost.push(at);
            }
        }
        // SAFETY: the header requires buffers of these lengths that no other thread writes.
        let (inputs, mut outputs) = unsafe { buffers.slices() }?;
        let mut inputs = inputs.into_iter();
        let take = |given: &Buffer| if given.data.is_null() { None } else { inputs.next() };
        let given: Vec<Option<&[u8]>> = given.iter().map(take).collect();
        coder.decode(&given, &lost, &mut outputs)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded::<Refusal>(error, body) }
}
