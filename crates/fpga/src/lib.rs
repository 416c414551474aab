//! The driver of the FPGA device.
//!
//! | module                 | idea |
//! |------------------------|------|
//! | [`regs`]               | registers, descriptors and completions, from `rtl/regs/device.toml` |
//! | [`field`]              | fields of registers and of layouts in memory |
//! | [`bounds`]             | every bound of the driver |
//! | [`host`]               | the driver's view of the machine: registers, and memory for DMA |
//! | [`allocator`]          | the allocator of a memory |
//! | [`descriptor`]         | descriptors and completions |
//! | [`ring`]               | rings in host memory |
//! | [`queue_set`]          | three rings and their registers, and the recovery after an error |
//! | [`card`]               | a function of a device, shared by the owners of its queue sets |
//! | [`device`]             | a queue set as an accelerator of `accel`: jobs become descriptors |
//! | [`extent_layout`]      | the layout of a job's bytes, and its operation |
//! | [`flight`]             | the work of a queue set that is on the device |
//! | [`watchdog`]           | detects a device that does not work |
//! | [`maps`]               | the loaded map and module, and how the driver loads others |
//! | [`programs`]           | the programs that a queue set keeps in card memory |
//! | [`tables`]             | the tables that the engines need instead of maps, made by compilers |
//! | [`compilers`]          | `image` and `program` behind the driver's trait |
//! | [`image`]              | a CRUSH map in the layout of the device's memories |
//! | [`program`]            | a linear map in the layout of the codes engine's tables |
//! | [`bitstream`]          | partial bitstreams for the reconfigurable partition |
//! | [`selftest`]           | random jobs on the device and on the CPU, compared |
//! | [`reconfigure_stress`] | a stress test: changes of the partition while others use the device |
//! | [`model`]              | a software model of the device, for tests of the driver |
//! | [`simulated`]          | the device itself, in builds that have it; others say how to get it |
//! | `verilated`            | the device itself, with a host and a card around it (feature `rtl`) |
//! | [`pcie`]               | the rules of the link between the simulated host and the device |
//! | `memory_port`          | the host's and the card's memories beside `verilated` |

pub mod allocator;
pub mod bitstream;
pub mod bounds;
pub mod card;
pub mod compilers;
pub mod descriptor;
pub mod device;
pub mod extent_layout;
pub mod field;
pub mod flight;
pub mod host;
pub mod image;
pub mod maps;
// Without the device, its tests run all the same.
#[cfg(any(feature = "rtl", test))]
mod memory_port;
pub mod model;
pub mod pcie;
pub mod program;
pub mod programs;
pub mod queue_set;
pub mod reconfigure_stress;
pub mod regs;
pub mod ring;
pub mod selftest;
pub mod simulated;
pub mod tables;
#[cfg(feature = "rtl")]
pub mod verilated;
pub mod watchdog;

pub use card::Card;
pub use device::FpgaDevice;
