//! The coder as C++ sees it: statuses, messages, and arguments that a correct caller never gives.

use std::ffi::{c_char, c_int};
use std::ptr::{null, null_mut};

use fieldstone_c_abi::Error;
use fieldstone_ceph_plugin::abi::*;

// The fields of these are private to the crate: C++ writes them by their layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawText(*const c_char, usize);
#[repr(C)]
struct RawPair(RawText, RawText);
#[repr(C)]
#[derive(Clone, Copy)]
struct RawBuffer(*mut u8, usize);

const NONE: RawBuffer = RawBuffer(null_mut(), 0);

fn text(text: &str) -> RawText {
    RawText(text.as_ptr().cast(), text.len())
}

fn message(error: &RawError) -> String {
    let bytes: Vec<u8> = error.1.iter().take_while(|&&byte| byte != 0).copied().collect();
    String::from_utf8(bytes).expect("a text")
}

#[repr(C)]
struct RawError(c_int, [u8; fieldstone_c_abi::MESSAGE_BYTES]);

fn error() -> RawError {
    RawError(-99, [7; fieldstone_c_abi::MESSAGE_BYTES])
}

fn new(pairs: &[(&str, &str)]) -> Result<*mut Handle, (c_int, String)> {
    let raw: Vec<RawPair> =
        pairs.iter().map(|(key, value)| RawPair(text(key), text(value))).collect();
    let (mut handle, mut error) = (null_mut(), error());
    let at: *mut Error = (&raw mut error).cast();
    // SAFETY: the pairs and the error have the layout of the header.
    let status =
        unsafe { fieldstone_ec_new(raw.as_ptr().cast(), raw.len(), 20, &raw mut handle, at) };
    assert_eq!(status, error.0);
    assert_eq!(handle.is_null(), status != 0);
    if status == 0 { Ok(handle) } else { Err((status, message(&error))) }
}

const ZIGZAG: [(&str, &str); 3] = [("technique", "zigzag"), ("k", "4"), ("m", "2")];

#[test]
fn a_coder_is_made_and_answers() {
    let handle = new(&ZIGZAG).expect("a profile");
    let mut keys = Vec::new();
    let mut pair = RawPair(text(""), text(""));
    // SAFETY: the handle is live, and the pair has the layout of the header.
    unsafe {
        assert_eq!((fieldstone_ec_k(handle), fieldstone_ec_m(handle)), (4, 2));
        assert_eq!(fieldstone_ec_sub_chunks(handle), 8);
        assert_eq!(fieldstone_ec_chunk_bytes(handle, 16_384), 4096);
        while fieldstone_ec_default(handle, keys.len(), (&raw mut pair).cast()) {
            keys.push(std::slice::from_raw_parts(pair.0.0.cast::<u8>(), pair.0.1).to_vec());
        }
        fieldstone_ec_free(handle);
        fieldstone_ec_free(null_mut());
    }
    let names = ["crush-device-class", "crush-failure-domain", "crush-root", "elements"];
    assert_eq!(keys, names.map(|name| name.as_bytes().to_vec()));
}

#[test]
fn refusals_reach_the_caller() {
    let (status, message) = new(&[("technique", "raid5")]).unwrap_err();
    assert_eq!(status, -22);
    assert!(message.starts_with("technique=raid5 is none of"), "{message}");
    let mut handle = null_mut();
    // SAFETY: null is checked.
    unsafe {
        assert_eq!(fieldstone_ec_new(null(), 1, 20, &raw mut handle, null_mut()), -22);
        assert_eq!(fieldstone_ec_new(null(), 0, 20, null_mut(), null_mut()), -22);
        assert_eq!((fieldstone_ec_k(null()), fieldstone_ec_m(null())), (0, 0));
        assert_eq!(fieldstone_ec_sub_chunks(null()), 0);
        assert_eq!(fieldstone_ec_chunk_bytes(null(), 5), 0);
        assert!(!fieldstone_ec_default(null(), 0, null_mut()));
        assert_eq!(fieldstone_ec_encode(null(), null(), 0, null_mut()), -22);
        assert_eq!(fieldstone_ec_decode(null(), null(), null(), 0, null_mut()), -22);
    }
}

#[test]
fn reads_are_written_where_they_have_room() {
    let handle = new(&ZIGZAG).expect("a profile");
    let none = SubChunks { chunk: 99, first: 99, count: 99 };
    let (mut reads, mut count) = ([none; 64], 0);
    let mut ask = |room: usize, wanted: &[u32]| {
        let there = [1u32, 2, 3, 4, 5];
        reads = [none; 64];
        // SAFETY: the arrays have these lengths.
        let status = unsafe {
            fieldstone_ec_minimum(
                handle,
                wanted.as_ptr(),
                wanted.len(),
                there.as_ptr(),
                there.len(),
                reads.as_mut_ptr(),
                room,
                &raw mut count,
                null_mut(),
            )
        };
        (status, count, reads)
    };
    let (status, needed, found) = ask(1, &[0]);
    assert_eq!((status, found[0]), (-34, none));
    assert!(needed > 5, "half of each chunk, in several ranges");
    let (status, written, found) = ask(needed, &[0]);
    assert_eq!((status, written), (0, needed));
    let read: u32 = found[..needed].iter().map(|read| read.count).sum();
    assert_eq!((read, found[needed]), (5 * 4, none));
    assert_eq!(ask(64, &[0, 6]).0, -22);
    // SAFETY: the handle is not used any more.
    unsafe { fieldstone_ec_free(handle) };
}

#[test]
fn chunks_are_encoded_and_restored_and_checked() {
    let handle = new(&ZIGZAG).expect("a profile");
    let mut chunks: Vec<Vec<u8>> =
        (0..6).map(|chunk| (0..256u32).map(|at| (at * 7 + chunk * 31) as u8).collect()).collect();
    let mut buffers: Vec<RawBuffer> =
        chunks.iter_mut().map(|chunk| RawBuffer(chunk.as_mut_ptr(), chunk.len())).collect();
    let encode = |buffers: &[RawBuffer]| {
        // SAFETY: the buffers are those of `chunks`, or are refused.
        unsafe { fieldstone_ec_encode(handle, buffers.as_ptr().cast(), buffers.len(), null_mut()) }
    };
    assert_eq!(encode(&buffers), 0);
    assert_eq!(encode(&buffers[..5]), -22);
    for wrong in [NONE, RawBuffer(buffers[0].0, 256), RawBuffer(buffers[4].0, 248)] {
        let was = std::mem::replace(&mut buffers[5], wrong);
        assert_eq!(encode(&buffers), -22);
        buffers[5] = was;
    }
    let mut restored = vec![0u8; 256];
    let mut outputs = vec![NONE; 6];
    outputs[1] = RawBuffer(restored.as_mut_ptr(), 256);
    let decode = |given: &[RawBuffer], outputs: &[RawBuffer]| {
        let mut error = error();
        let (from, to) = (given.as_ptr().cast(), outputs.as_ptr().cast());
        let at: *mut Error = (&raw mut error).cast();
        // SAFETY: as above.
        let status = unsafe { fieldstone_ec_decode(handle, from, to, given.len(), at) };
        (status, message(&error))
    };
    let mut given = buffers.clone();
    given[1] = NONE;
    assert_eq!(decode(&given, &outputs), (0, String::new()));
    assert_eq!(restored, chunks[1]);
    assert_eq!(decode(&given[..5], &outputs[..5]).0, -22);
    given[0] = NONE;
    given[2] = NONE;
    let (status, message) = decode(&given, &outputs);
    assert_eq!(status, -5);
    assert!(message.contains("zigzag:4+2 needs 4 shards"), "{message}");
    // SAFETY: the handle is not used any more.
    unsafe { fieldstone_ec_free(handle) };
}
