//! Feeds arbitrary bytes to an NBD session; the properties checked are those of
//! `fieldstone_nbd::fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fieldstone_nbd::fuzz::session(input);
});
