//! The driver of the FPGA device.
//!
//! | module      | idea |
//! |-------------|------|
//! | [`regs`]    | registers, descriptors and completions, as `rtl/regs/device.toml` has them |
//! | [`field`]   | parts of registers and of layouts in memory |
//! | [`image`]   | a CRUSH map as the device's memories hold it |
//! | [`program`] | a linear map as the codes engine's table holds it |

pub mod field;
pub mod image;
pub mod program;
pub mod regs;
