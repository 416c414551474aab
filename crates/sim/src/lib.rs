//! The seeded world: virtual clock, network, disks, faults and checkers
pub mod checker;
pub mod dice;
pub mod disk;
pub mod network;
pub mod schedule;
pub mod trace;
