//! A CRUSH map as the device's memories hold it.

pub mod rules;
