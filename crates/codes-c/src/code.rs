//! A code: it is made from its name, any number of threads use it, and it is freed once.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;

use fieldstone_c_abi::{Error, reference, write};
use fieldstone_codes::foreign_buffers::ForeignBuffers;
use fieldstone_codes::{Code as Codes, Profile, Verdict, stripe};

use crate::pointers::{array, read_all, write_all};
use crate::status::{Failure, Status, guarded};

/// `fieldstone_code` of the header.
pub struct Code {
    pub(crate) code: Arc<dyn Codes>,
    profile: Profile,
    name: CString,
}

impl Code {
    fn granule_bytes(&self) -> usize {
        self.code.layout().granule_bytes(self.code.elements())
    }
}

/// Makes a code from its name.
///
/// # Safety
/// `profile` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_new(
    profile: *const c_char,
    code: *mut *mut Code,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers; after a failure the pointer is null.
        unsafe { write("code", code, std::ptr::null_mut()) }?;
        // SAFETY: as above.
        unsafe { reference("profile", profile) }?;
        // SAFETY: as above; the text ends with a zero.
        let text = unsafe { CStr::from_ptr(profile) }.to_string_lossy();
        let profile: Profile = text.parse()?;
        let name = CString::new(profile.to_string()).expect("names have no zeros");
        let made = Box::into_raw(Box::new(Code { code: profile.code(), profile, name }));
        // SAFETY: as above.
        Ok(unsafe { write("code", code, made) }?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}

/// Frees a code. Plans made from it stay valid.
///
/// # Safety
/// Null, or a code that was not freed yet, and that no other call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_free(code: *mut Code) {
    if !code.is_null() {
        // SAFETY: the pointer came from Box::into_raw, and the caller gives it back.
        drop(unsafe { Box::from_raw(code) });
    }
}

/// The name of the code, without default options. It lives as long as the code.
///
/// # Safety
/// Null, or a code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_profile(code: *const Code) -> *const c_char {
    // SAFETY: the header requires a code or null.
    unsafe { code.as_ref() }.map_or(std::ptr::null(), |code| code.name.as_ptr())
}

/// Number of data shards; 0 for null.
///
/// # Safety
/// Null, or a code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_k(code: *const Code) -> usize {
    // SAFETY: the header requires a code or null.
    unsafe { code.as_ref() }.map_or(0, |code| code.code.k())
}

/// Number of parity shards; 0 for null.
///
/// # Safety
/// Null, or a code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_m(code: *const Code) -> usize {
    // SAFETY: the header requires a code or null.
    unsafe { code.as_ref() }.map_or(0, |code| code.code.m())
}

/// Elements per shard; 0 for null.
///
/// # Safety
/// Null, or a code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_elements(code: *const Code) -> u32 {
    // SAFETY: the header requires a code or null.
    unsafe { code.as_ref() }.map_or(0, |code| code.code.elements())
}

/// Lengths of shards are multiples of this number; 0 for null.
///
/// # Safety
/// Null, or a code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_granule_bytes(code: *const Code) -> usize {
    // SAFETY: the header requires a code or null.
    unsafe { code.as_ref() }.map_or(0, Code::granule_bytes)
}

/// Bytes of each shard of an object, by the rule of Ceph's plugin for the code.
///
/// # Safety
/// As the header requires for all functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_chunk_bytes(
    code: *const Code,
    object_bytes: u64,
    chunk_bytes: *mut u64,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let code = unsafe { reference("code", code) }?;
        let bytes = code.profile.chunk_bytes(object_bytes).ok_or_else(|| {
            let message = format!("shards of {object_bytes} bytes would be longer than 2^64");
            Failure::new(Status::OutOfRange, message)
        })?;
        // SAFETY: as above.
        Ok(unsafe { write("chunk_bytes", chunk_bytes, bytes) }?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}

/// Computes the parities of the data.
///
/// # Safety
/// `data` has k and `parity` m buffers of `shard_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_encode(
    code: *const Code,
    data: *const *const u8,
    parity: *const *mut u8,
    shard_bytes: usize,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let code = &unsafe { reference("code", code) }?.code;
        // SAFETY: as above.
        let (data, parity) =
            unsafe { (array("data", data, code.k())?, array("parity", parity, code.m())?) };
        let mut buffers = ForeignBuffers::default();
        read_all(&mut buffers, "data", data, shard_bytes)?;
        write_all(&mut buffers, "parity", parity, shard_bytes)?;
        // SAFETY: the header requires buffers of this length that no other thread writes.
        let (data, mut parity) = unsafe { buffers.slices() }?;
        Ok(stripe::encode(&**code, &data, &mut parity)?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}

/// Recomputes the shards that are not present and whose buffers are not null.
///
/// # Safety
/// `shards` has k + m entries, null or buffers of `shard_bytes` bytes; `present` has k + m bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_decode(
    code: *const Code,
    shards: *const *mut u8,
    present: *const u8,
    shard_bytes: usize,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let code = &unsafe { reference("code", code) }?.code;
        let count = code.k() + code.m();
        // SAFETY: as above.
        let (shards, present) =
            unsafe { (array("shards", shards, count)?, array("present", present, count)?) };
        let mut buffers = ForeignBuffers::default();
        let mut lost = Vec::new();
        for (at, (&shard, &present)) in shards.iter().zip(present).enumerate() {
            if present != 0 {
                buffers.read("shards", Some(at), shard, shard_bytes)?;
            } else if !shard.is_null() {
                buffers.write("shards", Some(at), shard, shard_bytes)?;
                lost.push(at);
            }
        }
        // SAFETY: the header requires buffers of this length that no other thread writes.
        let (given, mut outputs) = unsafe { buffers.slices() }?;
        let mut given = given.into_iter();
        let take = |&present: &u8| if present == 0 { None } else { given.next() };
        let there: Vec<Option<&[u8]>> = present.iter().map(take).collect();
        Ok(stripe::decode(&**code, &there, &lost, &mut outputs)?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}

/// `fieldstone_write` of the header: a write to a data shard.
#[repr(C)]
pub struct Write {
    shard: usize,
    offset_bytes: usize,
    len_bytes: usize,
    old_bytes: *const u8,
    new_bytes: *const u8,
}

/// Updates the parities for a write to one data shard.
///
/// # Safety
/// The old and new bytes of `change` have its length; `parity` has m buffers of `shard_bytes`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_update(
    code: *const Code,
    change: *const Write,
    parity: *const *mut u8,
    shard_bytes: usize,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let code = &unsafe { reference("code", code) }?.code;
        // SAFETY: as above.
        let change = unsafe { reference("change", change) }?;
        // SAFETY: as above.
        let parity = unsafe { array("parity", parity, code.m()) }?;
        let mut buffers = ForeignBuffers::default();
        buffers.read("old_bytes", None, change.old_bytes, change.len_bytes)?;
        buffers.read("new_bytes", None, change.new_bytes, change.len_bytes)?;
        write_all(&mut buffers, "parity", parity, shard_bytes)?;
        // SAFETY: the header requires buffers of this length that no other thread writes.
        let (contents, mut parity) = unsafe { buffers.slices() }?;
        let (shard, offset_bytes) = (change.shard, change.offset_bytes);
        let (old, new) = (contents[0], contents[1]);
        Ok(stripe::update(&**code, shard, offset_bytes, old, new, &mut parity)?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}

/// All shards of a stripe, for reading.
///
/// # Safety
/// `shards` has k + m buffers of `shard_bytes` bytes.
unsafe fn stripe_of<'a>(
    code: &dyn Codes,
    shards: *const *const u8,
    shard_bytes: usize,
) -> Result<Vec<&'a [u8]>, Failure> {
    // SAFETY: the header requires these pointers.
    let shards = unsafe { array("shards", shards, code.k() + code.m()) }?;
    let mut buffers = ForeignBuffers::default();
    read_all(&mut buffers, "shards", shards, shard_bytes)?;
    // SAFETY: the header requires buffers of this length that no thread writes.
    let (shards, _) = unsafe { buffers.slices() }?;
    Ok(shards)
}

/// Checks whether the parities belong to the data.
///
/// # Safety
/// `shards` has k + m buffers of `shard_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_verify(
    code: *const Code,
    shards: *const *const u8,
    shard_bytes: usize,
    consistent: *mut c_int,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let code = &unsafe { reference("code", code) }?.code;
        // SAFETY: as above.
        let shards = unsafe { stripe_of(&**code, shards, shard_bytes) }?;
        let verdict = stripe::verify(&**code, &shards)?;
        // SAFETY: as above.
        Ok(unsafe { write("consistent", consistent, c_int::from(verdict)) }?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}

/// Finds the wrong shard: `enum fieldstone_verdict` of the header.
///
/// # Safety
/// `shards` has k + m buffers of `shard_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fieldstone_code_locate(
    code: *const Code,
    shards: *const *const u8,
    shard_bytes: usize,
    verdict: *mut c_int,
    wrong: *mut usize,
    error: *mut Error,
) -> c_int {
    let body = || {
        // SAFETY: the header requires these pointers.
        let code = &unsafe { reference("code", code) }?.code;
        // SAFETY: as above.
        let shards = unsafe { stripe_of(&**code, shards, shard_bytes) }?;
        let (number, shard) = match stripe::locate(&**code, &shards)? {
            Verdict::Consistent => (0, None),
            Verdict::Wrong(shard) => (1, Some(shard)),
            Verdict::Unknown => (2, None),
        };
        if let Some(shard) = shard {
            // SAFETY: as above.
            unsafe { write("wrong", wrong, shard) }?;
        }
        // SAFETY: as above.
        Ok(unsafe { write("verdict", verdict, number) }?)
    };
    // SAFETY: the header requires null or room for an error.
    unsafe { guarded(error, body) }
}
