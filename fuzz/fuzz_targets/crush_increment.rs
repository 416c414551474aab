//! Feeds arbitrary bytes to the decoder of increments of OSDMaps; the properties checked are those
//! of `fieldstone_crush::fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fieldstone_crush::fuzz::increment(input);
});
