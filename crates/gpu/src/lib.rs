//! NVIDIA cards as engines for codes and placements.
//!
//! A code is a table: every job of every code is a [`LinearMap`](fieldstone_gf::LinearMap). This
//! crate compiles a map to a program of the card, as the text that the card's driver translates
//! (PTX). So one engine encodes, decodes, rebuilds and updates with all codes, bit for bit as the
//! CPU does. Nothing of CUDA is needed to build or to test: the driver's library is opened when a
//! card is, and an interpreter of the same text stands in for a card in tests.
//!
//! ```text
//!   Job --> GpuDevice --> Policy: worth it, and ready?
//!               |              |
//!               |          Program (sections, bodies, skeleton) --text--> Driver --> card
//!               +--> lanes: copy in | program | copy out          Cuda, or Model in tests
//! ```
//!
//! | module          | idea |
//! |-----------------|------|
//! | [`program`]     | from a linear map to a kernel and its table |
//! | [`place`]       | CRUSH placement: a hand-written kernel, and the image of a map |
//! | [`checksum`]    | CRC32C of outputs, beside their program |
//! | `ptx`           | writes PTX, and counts instructions |
//! | [`driver`]      | the operations of a card that this crate uses |
//! | [`cuda`]        | NVIDIA's driver |
//! | [`model`]       | a card in this process's memory, with faults, for tests |
//! | [`interpreter`] | executes the subset of PTX in use, and finds what a card does not |
//! | [`card`]        | an open card, and its loaded programs |
//! | `images`        | the placement images that a card keeps |
//! | `host_memory`   | memory of the host that the card reads and writes directly |
//! | [`prepare`]     | which jobs a card takes: loaded, and faster than software |
//! | [`device`]      | the card behind `accel`: jobs, slices, lanes |
//! | [`selftest`]    | random jobs on a card and on the CPU, compared |

pub mod card;
pub mod checksum;
pub mod cuda;
pub mod device;
pub mod driver;
mod host_memory;
mod images;
pub mod interpreter;
pub mod model;
pub mod place;
pub mod prepare;
pub mod program;
mod ptx;
pub mod selftest;

pub use card::{Card, LoadError, Loaded};
pub use device::GpuDevice;
pub use prepare::{Policy, Threshold};
