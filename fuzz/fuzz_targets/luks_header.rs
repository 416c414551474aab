//! Feeds arbitrary bytes as the start of an encrypted device; the properties checked are those of
//! `fieldstone_luks::fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = fieldstone_luks::fuzz::header(input);
});
