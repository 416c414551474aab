//! The seeded world: virtual clock, network and disks with faults, and checkers.
//!
//! Volumes and nodes are state machines that do no I/O. So a whole pool, its users and its faults
//! run here in one thread on a virtual clock. One seed reproduces a run exactly: the same requests,
//! the same faults, the same interleaving, the same trace.
//!
//! - [`scenario`] draws a run's parameters from its seed: profile, nodes, sizes, speeds, users,
//!   faults;
//! - [`world`] plays it; [`schedule`] is its clock, and [`random`] its only source of chance;
//! - [`disk`] and [`network`] are the actors' disk and network, with their faults, and [`device`]
//!   is the accelerator of a volume;
//! - [`frontend`] is the users' NBD connections to a volume, in a part of the runs. In a part of
//!   the runs the layers of a device stand between users and volume, and in a part of these the
//!   users' requests are not aligned to blocks;
//! - [`fault_model`] states which faults may come together, and that the code must therefore
//!   survive;
//! - [`workload`] makes the users' requests, and [`checker`] judges the answers;
//! - [`mod@run`] runs one seed or many, and [`trace`] writes down the events.
//!
//! The actors stand behind the traits of [`actor`], so that the world's own tests can run broken
//! actors and prove that the checker detects them.

pub mod actor;
pub mod checker;
pub mod conditions;
pub mod device;
pub mod disk;
pub mod fault_model;
pub mod frontend;
#[cfg(test)]
mod mirror;
pub mod network;
pub mod random;
mod real;
pub mod run;
pub mod scenario;
pub mod schedule;
pub mod trace;
pub mod workload;
pub mod world;

pub use conditions::{Chosen, Condition};
pub use real::{RealCast, run};
pub use run::{Options, Outcome, run_cast, run_many};
pub use scenario::Scenario;
pub use world::Failure;
