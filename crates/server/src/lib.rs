//! A server: all of `fieldstone serve` except the transfer of data, which the host does.
//!
//! This crate knows pools and their nodes, opens and closes volumes, answers clients ([`control`],
//! [`metrics`]) and reports the state ([`report`]). A command without a server uses the same code
//! in its own process: see [`running`]. The options and tables of the command line are in the
//! command's crate.
//!
//! | module          | idea |
//! |-----------------|------|
//! | [`pool`]        | a pool on disk: its description, its key, the record of its nodes' folders |
//! | [`replace`]     | makes an empty node in place of a lost one |
//! | [`rotation`]    | replaces the pool's secret while the pool serves |
//! | [`admission`]   | clients that do not have the pool's folder: who they are, what they have |
//! | [`metadata`]    | tells these clients where volumes lie, and issues their capabilities |
//! | [`paths`]       | the names of pools and volumes on the command line |
//! | [`runtime`]     | open devices on the cores of this process, of any stores and pools |
//! | [`running`]     | a running pool: its nodes, its volumes, and the operations of commands |
//! | [`accelerator`] | places, codes and computes checksums for the volumes |
//! | [`serve`]       | the life of a server: opens, exports and closes devices |
//! | [`listen`]      | listens, and waits for the address of a killed server |
//! | [`control`]     | the protocol between a server and commands |
//! | [`metrics`]     | a page for Prometheus |
//! | `client_limits` | accepts and bounds the clients that have a thread each |
//! | `json_format`   | the field `format` of JSON files |
//! | [`report`]      | the report of `status`, and how it is made |

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate fieldstone_console;

pub mod accelerator;
pub mod admission;
mod client_limits;
pub mod control;
mod json_format;
pub mod listen;
pub mod metadata;
pub mod metrics;
pub mod paths;
pub mod pool;
pub mod replace;
pub mod report;
pub mod rotation;
pub mod running;
pub mod runtime;
pub mod serve;
