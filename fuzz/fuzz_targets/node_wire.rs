//! Feeds arbitrary bytes to the decoder of the node wire protocol; the properties checked are those
//! of `fieldstone_proto::fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fieldstone_proto::fuzz::wire(input);
});
