//! A layer: one entry of the list that stands between a device's front-ends and its store.
//!
//! ```text
//!   front-ends ── requests ──┐           ┌── completions
//!                          ┌─v───────────┴─┐
//!                          │ layer 0       │   each layer passes a request on, keeps it for a
//!                          ├───────────────┤   while, answers it, or makes requests of its own
//!                          │ layer 1       │   in place of it
//!                          ├───────────────┤
//!                          │ …             │
//!                          └─┬───────────^─┘
//!                            v           │
//!                           the store ([`Backend`](crate::Backend))
//! ```
//!
//! The [`Stack`](crate::Stack) owns the layers and moves requests and completions between them
//! through a [`Flow`]. A layer does no I/O, reads no clock, and does not know the layers next to
//! it.
//!
//! # Names of requests
//!
//! The stack names a request once, where the request enters. Every layer and the store see that
//! name. A layer may need its own request (a merged request, the read of an edge block). It names
//! that request by an index into its own table ([`Flow::pass_own`]). The completion of such a
//! request comes back only to this layer ([`Layer::complete_own`]). A request whose range and
//! operation stay the same keeps its name. If the layer needs a note about it (the lines that a
//! change touches), it finds the note by that name. So a layer that only observes keeps no table of
//! requests in flight.

use std::any::Any;
use std::collections::VecDeque;

use crate::settings::{SettingError, Settings};
use crate::{BlockError, Completion, Info, Nanos, Request, RequestId};

/// Bits of a [`RequestId`] that hold an index. The bits above hold the layer that made the request,
/// counted from 1, or 0 for a request that entered the stack.
const INDEX_BITS: u32 = 56;

/// The largest number of layers in one stack.
pub(crate) const LAYERS_MAX: usize = (1 << (64 - INDEX_BITS)) - 1;

/// Lines for the log that wait for the host.
pub const REPORTS_MAX: usize = 16;

/// A counter of a layer, for `status` and the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name: lower-case words with underscores and the unit, such as `held_bytes`.
    pub name: &'static str,
    /// Its present value.
    pub value: u64,
}

/// What a layer has and the store has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    /// Bytes of writes that were answered.
    pub bytes: u64,
    /// Why the store refuses them, if it does and none of them is on its way.
    pub failure: Option<BlockError>,
}

/// Work of a layer that takes too long for the device's thread: it reads a file, or computes for
/// seconds. The world runs it in a thread of its own, and hands the result to [`Layer::worked`].
pub type Work = Box<dyn FnOnce() -> WorkResult + Send>;

/// The result of [`Work`], in the layer's own type; or why the work could not be done.
pub type WorkResult = Result<Box<dyn Any + Send>, OpenFailure>;

/// Why a device does not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct OpenFailure {
    /// The reason, as text for people.
    pub reason: String,
    /// Another opening would fail for the same reason, until a person changes the device or its
    /// options.
    pub is_final: bool,
}

impl OpenFailure {
    /// A failure that may pass: another opening may succeed.
    pub fn passing(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_final: false }
    }

    /// A failure that stays until a person changes something.
    pub fn lasting(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_final: true }
    }
}

/// Whether a layer can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It serves.
    Ready,
    /// It opens.
    Opening,
    /// It cannot serve, for this reason.
    Failed(OpenFailure),
}

/// An entry of a device's ordered list of layers.
///
/// The contract of [`Backend`](crate::Backend) holds at the top of a layer if it holds below. When
/// [`Layer::submit`], [`Layer::complete`] and [`Layer::turn`] return, the layer has passed on every
/// request that can go on, unless [`Layer::deadline`] says when to call it again.
pub trait Layer: Any + Send {
    /// The name of its kind, as in the list of kinds ([`crate::layers::KINDS`]).
    fn name(&self) -> &'static str;

    /// The device's properties at the top of this layer, given those below. The stack asks before
    /// the first request, and again when the store has changed, in its size for example.
    fn info(&mut self, below: Info) -> Info {
        below
    }

    /// Takes a request from above.
    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        flow.pass(request);
    }

    /// Takes a completion from below, of a request that a layer above passed down or that entered
    /// the stack.
    fn complete(&mut self, completion: Completion, flow: &mut Flow<'_>) {
        flow.answer(completion);
    }

    /// Takes the completion from below of this layer's own request `index`.
    fn complete_own(&mut self, index: usize, completion: Completion, flow: &mut Flow<'_>) {
        let _ = (completion, flow);
        debug_assert!(false, "{} made no request of its own: {index}", self.name());
    }

    /// The stack has refused a request, because its range lies outside the device for example.
    /// Layers see such a request only here.
    fn refused(&mut self, request: &Request) {
        let _ = request;
    }

    /// The stack has passed every ready completion. The layer now does the work that is due at
    /// [`Flow::now`].
    fn turn(&mut self, flow: &mut Flow<'_>) {
        let _ = flow;
    }

    /// When the stack must call [`Layer::turn`] even if nothing else happens.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Whether the layer can serve. A device opens only when all of its layers are ready. A layer
    /// that was ready once stays ready.
    fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    /// Work that has to be done before the layer is ready. The world asks after each turn in which
    /// the device opens, and runs what it gets.
    fn work(&mut self) -> Option<Work> {
        None
    }

    /// Takes the result of the layer's work. The layer's [`Layer::info`] may change now.
    fn worked(&mut self, result: WorkResult) {
        drop(result);
        debug_assert!(false, "{} had no work", self.name());
    }

    /// No more requests will come: the layer passes held requests on at once, and writes to the
    /// store what the store does not have.
    fn drain(&mut self) {}

    /// From now on others may read and change the store's data, for the reason `why`; or, with
    /// `None`, no other client does. A layer that keeps data drops what it has read, writes to the
    /// store what the store does not have ([`Layer::unwritten`]), and keeps nothing new while the
    /// store is shared.
    fn share(&mut self, why: Option<&'static str>) {
        let _ = why;
    }

    /// True if the layer keeps data when it may.
    fn keeps_data(&self) -> bool {
        false
    }

    /// What the layer has and the store has not; `None` if there is nothing.
    fn unwritten(&self) -> Option<Unwritten> {
        None
    }

    /// The reason why requests wait here, as text for people; `None` if none wait.
    fn waits_for(&self) -> Option<String> {
        None
    }

    /// The options in force, each as written on the command line.
    fn options(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The layer's counters.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    /// Changes options while the device serves. Options that `settings` does not name keep their
    /// values.
    ///
    /// # Errors
    /// The layer has no such option, or cannot change it now. Then nothing has changed.
    fn change(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        Err(SettingError::Fixed { layer: self.name().to_owned(), text: settings.to_string() })
    }
}

/// A step between layers. The stack takes steps one at a time, first in, first out.
pub(crate) enum Step {
    /// A request goes to the layer `to`, or to the store if `to` is behind the last layer.
    Down { to: usize, request: Request },
    /// A completion leaves the layer `from` upwards. The store counts as the layer behind the last.
    Up { from: usize, completion: Completion },
}

/// A layer's connection to the layers next to it, and the time.
pub struct Flow<'a> {
    pub(crate) now: Nanos,
    /// The layer that this flow belongs to.
    pub(crate) layer: usize,
    pub(crate) size_bytes: u64,
    pub(crate) steps: &'a mut VecDeque<Step>,
    pub(crate) reports: &'a mut Vec<String>,
}

impl Flow<'_> {
    /// The time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The size of the device that front-ends see.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Passes a request on under its present name.
    pub fn pass(&mut self, request: Request) {
        self.steps.push_back(Step::Down { to: self.layer + 1, request });
    }

    /// Passes on a request of this layer's own, named by an index into the layer's table. No two
    /// requests in flight may have the same index.
    pub fn pass_own(&mut self, index: usize, mut request: Request) {
        request.id = own_id(self.layer, index);
        self.pass(request);
    }

    /// Leaves a line for the log. The host writes it with the device's name
    /// ([`Stack::take_reports`](crate::Stack::take_reports)). At most [`REPORTS_MAX`] lines wait.
    pub fn report(&mut self, line: String) {
        if self.reports.len() < REPORTS_MAX {
            self.reports.push(line);
        }
    }

    /// Answers a request from above.
    pub fn answer(&mut self, completion: Completion) {
        self.steps.push_back(Step::Up { from: self.layer, completion });
    }
}

/// The name of the request `index` of `layer`.
fn own_id(layer: usize, index: usize) -> RequestId {
    debug_assert!(layer < LAYERS_MAX && (index as u64) < 1 << INDEX_BITS);
    RequestId((layer as u64 + 1) << INDEX_BITS | index as u64)
}

/// The layer that made this request, and its index there. No layer if the request entered the
/// stack.
pub(crate) fn owner_of(id: RequestId) -> (Option<usize>, usize) {
    let layer = usize::try_from(id.0 >> INDEX_BITS).expect("8 bits");
    let index = usize::try_from(id.0 & ((1 << INDEX_BITS) - 1)).expect("64-bit machines only");
    (layer.checked_sub(1), index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart_as_they_were_made() {
        for (layer, index) in [(0, 0), (3, 77), (LAYERS_MAX - 1, (1 << INDEX_BITS) - 1)] {
            assert_eq!(owner_of(own_id(layer, index)), (Some(layer), index));
        }
        assert_eq!(owner_of(RequestId(5)), (None, 5));
    }
}
