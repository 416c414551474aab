//! A server: everything that `fieldstone serve` is beside moving bytes.
//!
//! The host moves bytes. This crate knows what a pool is and where its nodes are, opens and closes
//! its volumes, answers those who ask ([`control`], [`metrics`]) and tells how everything stands
//! ([`report`]). A command without a server uses the same code in its own process: see [`engine`].
//! No option of the command line and no table is here; the command has them.
//!
//! | module          | idea |
//! |-----------------|------|
//! | [`pool`]        | a pool on disk: its description, its secret, what is known of its nodes' folders |
//! | [`replace`]     | an empty node in place of one that is lost |
//! | [`target`]      | how a pool and a volume of it are named |
//! | [`runtime`]     | stores at work on the cores of this process: any mix, of several pools too |
//! | [`engine`]      | a pool at work: its nodes, its volumes, and what commands do with them |
//! | [`accelerator`] | what places, codes and sums for the volumes |
//! | [`serve`]       | a server's life: what it serves is opened, exported and closed |
//! | [`listen`]      | listening, with patience for a predecessor |
//! | [`control`]     | the conversation between a server and commands |
//! | [`metrics`]     | a page for Prometheus |
//! | `callers`       | clients that have a thread each, bounded |
//! | [`report`]      | what `status` tells, and how it is collected |

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate fieldstone_console;

pub mod accelerator;
mod callers;
pub mod control;
pub mod engine;
pub mod listen;
pub mod metrics;
pub mod pool;
pub mod replace;
pub mod report;
pub mod runtime;
pub mod serve;
pub mod target;
