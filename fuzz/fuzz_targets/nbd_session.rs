//! Feeds arbitrary bytes to an NBD session; the properties checked are those of
//! `fieldstone_nbd::fuzz`. The messages counted are the requests that reach the backend.

#![no_main]

#[path = "../count.rs"]
mod count;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    count::add(fieldstone_nbd::fuzz::session(input).requests);
});
