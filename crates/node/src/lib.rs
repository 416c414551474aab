//! The storage node: policy handlers, request table and chunk store, as one state machine.

pub mod seam;

pub use seam::{Action, DiskError, DiskId, DiskOp, DiskOutput, Event, FileId, NodeConfig, PeerId};
