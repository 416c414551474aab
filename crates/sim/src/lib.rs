//! The seeded world: virtual clock, network and disks with faults, and checkers.
//!
//! Volumes and nodes are state machines that do no I/O, so a whole pool, its users and its
//! misfortunes run here in one thread on a virtual clock, and one seed reproduces a run exactly: the
//! same requests, the same faults, the same interleaving, the same trace.
//!
//! - [`scenario`] draws from a seed what a run is like: profile, nodes, sizes, speeds, users, faults;
//! - [`world`] plays it; [`schedule`] is its clock, [`dice`] its only source of chance;
//! - [`disk`] and [`network`] are what actors see of it, with their faults;
//! - [`atlas`] states which faults may come together, so that the code must survive them;
//! - [`workload`] is what the users want, [`checker`] judges what they get;
//! - [`mod@run`] runs one seed or many, [`trace`] tells what happened.
//!
//! The actors stand behind the traits of [`actor`], so that the world's own tests can run broken
//! ones and prove that the checker notices.

pub mod actor;
pub mod atlas;
pub mod checker;
pub mod dice;
pub mod disk;
#[cfg(test)]
mod mirror;
pub mod network;
mod real;
pub mod run;
pub mod scenario;
pub mod schedule;
pub mod trace;
pub mod workload;
pub mod world;

pub use real::{RealCast, run};
pub use run::{Options, Outcome, run_cast, run_many};
pub use scenario::Scenario;
pub use world::Failure;
