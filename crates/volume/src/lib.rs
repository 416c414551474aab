//! The log-structured volume.

pub mod seam;
pub mod status;
