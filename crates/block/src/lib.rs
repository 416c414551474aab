//! Block requests, the trait that every store implements, and the layers in front of a store.
//!
//! A front-end turns wire bytes into a [`Request`]. A [`Backend`] answers with a [`Completion`]. A
//! device is a [`Stack`]: an ordered list of [`layers`] over one backend. [`layer`] says how a
//! layer works and how to write another one.

mod destination;
mod extents;
pub mod layer;
pub mod layers;
mod pieces;
mod ram;
mod request;
mod settings;
mod stack;
mod stages;

pub use destination::{Landed, ReadDestination, landed};
pub use layer::{Counter, Flow, Layer, OpenFailure, Readiness, Unwritten, Work, WorkResult};
pub use ram::Ram;
pub use request::{
    Backend, BlockError, Completion, EXTENTS_MAX, Extent, ExtentKind, Info, Nanos, Op, Payload,
    Piece, QueueId, Request, RequestFlags, RequestId, Sharing, Stage, Stamps,
};
pub use settings::{SettingError, Settings};
pub use stack::{Stack, Unanswered};
pub use stages::{Interval, StageStats, Summary};
