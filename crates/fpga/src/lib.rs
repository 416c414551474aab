//! The driver of the FPGA device.
//!
//! | module      | idea |
//! |-------------|------|
//! | [`image`]   | a CRUSH map as the device's memories hold it |
//! | [`program`] | a linear map as the codes engine's table holds it |

pub mod image;
pub mod program;
