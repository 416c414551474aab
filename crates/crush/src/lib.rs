//! CRUSH placement, bit-exact with Ceph
