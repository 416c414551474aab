//! The node on a disk with faults: each operation, requests in flight together, and crashes.

mod arrivals;
mod basics;
mod crash;
mod departing;
mod disk;
mod keys;
mod model;
mod open;
mod order;
mod parted;
mod pieces;
mod rebuilt;
mod relays;
mod shares;
mod start;
mod stream;
mod stream_elements;
mod stream_memory;
mod stream_random;
mod world;
