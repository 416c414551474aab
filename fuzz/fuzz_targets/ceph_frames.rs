//! Feeds arbitrary bytes to a client's connection to a monitor or an OSD of Ceph; the properties
//! checked are those of `fieldstone_rados::fuzz`. The messages counted are those that come through.

#![no_main]

#[path = "../count.rs"]
mod count;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    count::add(fieldstone_rados::fuzz::frames(input).messages);
});
