//! Every fault of a single node: one row of `docs/faults.md`, and one test here.

mod bench;
mod corrupt;
mod document;
mod growth;
mod rows;
mod several;
mod verify;
