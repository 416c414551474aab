//! Scenarios with the built command and this project's NBD client, one module per subject. The
//! scripts in the repository's `tests/` test other clients.

mod code_files;
mod common;
mod control;
mod crush_maps;
mod processes;
mod refusals;
mod serving;
