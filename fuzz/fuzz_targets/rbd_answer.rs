//! Feeds arbitrary bytes to the decoders of what OSDs and other clients tell an image; the
//! properties checked are those of `fieldstone_rbd::fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = fieldstone_rbd::fuzz::answer(input);
});
