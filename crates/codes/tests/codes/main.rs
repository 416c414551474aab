//! The codes: layouts, encoding, decoding, repair and updates. One program, because each program of
//! tests is compiled with all that it uses.

mod ceph;
mod clay;
mod common;
mod every_code;
mod profiles;
mod stripe;
mod zigzag;
