//! The driver of the FPGA device.
//!
//! | module         | idea |
//! |----------------|------|
//! | [`regs`]       | registers, descriptors and completions, as `rtl/regs/device.toml` has them |
//! | [`field`]      | parts of registers and of layouts in memory |
//! | [`bounds`]     | every bound of the driver |
//! | [`host`]       | what the driver needs from the machine: registers, and memory that the device sees |
//! | [`extents`]    | who has which part of a memory |
//! | [`descriptor`] | descriptors, and what comes back for them |
//! | [`ring`]       | rings in host memory |
//! | [`queue_set`]  | three rings and their registers, and the way back after an error |
//! | [`card`]       | a function of a device, shared by the owners of its queue sets |
//! | [`device`]     | a queue set as an accelerator of `accel`: jobs become descriptors |
//! | [`plan`]       | where the bytes of a job lie, and what they become |
//! | [`flight`]     | what the device is working on for a queue set |
//! | [`watch`]      | is the device at work? |
//! | [`maps`]       | which map the device has, which module, and what it takes to have others |
//! | [`programs`]   | the programs that a queue set keeps in card memory |
//! | [`tables`]     | what the engines need instead of maps, made by compilers |
//! | [`compilers`]  | the two that follow, behind the driver's trait |
//! | [`image`]      | a CRUSH map as the device's memories hold it |
//! | [`program`]    | a linear map as the codes engine's table holds it |
//! | [`bitstream`]  | partial bitstreams for the reconfigurable partition |
//! | [`selftest`]   | random jobs on the device and on the CPU, compared |
//! | [`exercise`]   | changes of the partition while others use the device |
//! | [`dummy`]      | a device in plain Rust, for tests of the driver |
//! | [`simulated`]  | the device itself, in builds that have it; others say how to get it |
//! | `verilated`    | the device itself, with a host and a card around it (feature `rtl`) |

pub mod bitstream;
pub mod bounds;
pub mod card;
pub mod compilers;
pub mod descriptor;
pub mod device;
pub mod dummy;
pub mod exercise;
pub mod extents;
pub mod field;
pub mod flight;
pub mod host;
pub mod image;
pub mod maps;
pub mod plan;
pub mod program;
pub mod programs;
pub mod queue_set;
pub mod regs;
pub mod ring;
pub mod selftest;
pub mod simulated;
pub mod tables;
#[cfg(feature = "rtl")]
pub mod verilated;
pub mod watch;

pub use card::Card;
pub use device::FpgaDevice;
