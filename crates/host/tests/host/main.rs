//! The host with nodes in real folders.

mod common;
mod folders;
mod sessions;
