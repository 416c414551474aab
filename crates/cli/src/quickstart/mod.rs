//! The quickstart: from nothing to one page of results.
//!
//! A pool of nodes that are processes of their own, a volume served over NBD, data written through
//! NBD, nodes killed and their folders deleted, everything read back and compared, the nodes
//! replaced, the rebuild watched. Nothing is simulated and nothing is assumed: every byte read is
//! compared with what was written.
//!
//! Everything happens in one folder, which goes at the end, also when this is interrupted.

mod pattern;
mod processes;
mod stage;

pub use stage::{Plan, run};
