//! Feeds arbitrary bytes to the decoder of the node wire protocol; the properties checked are those
//! of `fieldstone_proto::fuzz`.

#![no_main]

#[path = "../count.rs"]
mod count;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    count::add(fieldstone_proto::fuzz::wire(input).messages);
});
