//! Feeds arbitrary texts to the readers of ceph.conf, keyrings and options; the properties checked
//! are those of `fieldstone_rados::fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fieldstone_rados::fuzz::text(input);
});
