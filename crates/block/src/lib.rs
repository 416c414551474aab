//! Block requests, the trait that every store implements, and the decorators that stack on it.
//!
//! A front-end turns wire bytes into a [`Request`]; a [`Backend`] answers with a [`Completion`].
//! Everything between the two is a decorator that is itself a `Backend` over an inner one.

mod request;

pub use request::{
    Backend, BlockError, Completion, Extent, ExtentKind, Info, Nanos, Op, Payload, Piece, Request,
    RequestFlags, RequestId, Stage, Stamps,
};
