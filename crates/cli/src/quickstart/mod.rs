//! The quickstart: makes a pool and prints one page of results.
//!
//! The quickstart starts each node as a process of its own and serves a volume over NBD. It writes
//! data through NBD, kills nodes, deletes their folders, and reads all data back. Then it replaces
//! the nodes and watches the rebuild. It compares every byte that it reads with the byte that it
//! wrote.
//!
//! All files are in one folder. The quickstart removes them at the end, also after a first
//! interrupt, unless `--keep` is given.

mod cluster;
mod pattern;
mod processes;

pub use cluster::{Options, run};
