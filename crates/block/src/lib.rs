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
mod delay;
mod error_inject;
mod extents;
mod latency;
mod lru;
mod meter;
mod pieces;
mod pipeline;
mod ram;
mod request;
mod scheduler;
mod stages;
mod streams;
mod throttle;
mod versions;

pub use align::{Align, AlignStats};
pub use cache::{Cache, CacheOptions, CacheStats, LINE_BYTES};
pub use delay::{Delay, DelayOptions};
pub use error_inject::{ErrorInject, ErrorOptions};
pub use latency::{ROLLING_WINDOW, RollingLatency};
pub use meter::{Counts, Meter, OpCount};
pub use pipeline::{Pipeline, PipelineOptions, Report};
pub use ram::Ram;
pub use request::{
    Backend, BlockError, Completion, EXTENTS_MAX, Extent, ExtentKind, Info, Nanos, Op, Payload,
    Piece, Request, RequestFlags, RequestId, Stage, Stamps,
};
pub use scheduler::{Policy, Scheduler, SchedulerOptions, SchedulerStats};
pub use stages::{Interval, StageStats, Summary};
pub use throttle::{Throttle, ThrottleOptions};

/// The earlier of two deadlines, either of which may not exist.
fn earlier(one: Option<Nanos>, other: Option<Nanos>) -> Option<Nanos> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
