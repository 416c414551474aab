//! Feeds arbitrary bytes to the decoders of what monitors and OSDs of Ceph send; the properties
//! checked are those of `fieldstone_rados::fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fieldstone_rados::fuzz::payload(input);
});
