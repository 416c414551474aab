//! The host with nodes in real folders.

mod common;
mod example;
mod folders;
mod frontends;
mod sessions;
