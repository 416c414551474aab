//! Block requests, the trait that every store implements, and the decorators that stack on it.
//!
//! A front-end turns wire bytes into a [`Request`]; a [`Backend`] answers with a [`Completion`].
//! Everything between the two is a decorator that is itself a `Backend` over an inner one.
//!
//! Two rules hold for every decorator here. It renames: the ids it uses towards the inner backend
//! are its own (indices into its table of requests in flight), so that it can add requests of its
//! own whatever ids its submitter chose. And it never strands work: when `poll` returns, nothing is
//! ready that was not handed over, unless [`Backend::deadline`] says when to come back.

mod align;
mod cache;
mod extents;
mod latency;
mod lru;
mod pieces;
mod ram;
mod request;
mod scheduler;
mod streams;
mod versions;

pub use align::Align;
pub use cache::{Cache, CacheOptions, CacheStats, LINE_BYTES};
pub use latency::{ROLLING_WINDOW, RollingLatency};
pub use ram::Ram;
pub use request::{
    Backend, BlockError, Completion, Extent, ExtentKind, Info, Nanos, Op, Payload, Piece, Request,
    RequestFlags, RequestId, Stage, Stamps,
};
pub use scheduler::{Policy, Scheduler, SchedulerOptions, SchedulerStats};
