//! Scenarios with the built command and our own NBD client; one module per theme. Clients that are
//! not ours are tried in the scripts of the repository's `tests/`.

mod common;
mod control;
mod crush_maps;
mod processes;
mod refusals;
mod serving;
