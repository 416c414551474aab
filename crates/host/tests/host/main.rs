//! Tests of the host, most of them with nodes in real folders.

mod common;
mod example;
mod folders;
mod frontends;
mod links;
mod sessions;
