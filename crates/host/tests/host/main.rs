//! Tests of the host, most of them with nodes in real folders.

mod bounds;
mod common;
mod example;
mod folders;
mod fragments;
mod frontends;
mod keys;
mod links;
mod resize;
mod scripted;
mod sessions;
