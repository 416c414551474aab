//! Every fault of a single node: one row of `docs/faults.md`, and one test here.

mod bench;
mod document;
mod growth;
mod judge;
mod plant;
mod rows;
mod several;
