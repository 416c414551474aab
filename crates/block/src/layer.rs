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
//! through a [`Flow`]. A layer does no I/O, reads no clock, and knows none of its neighbours.
//!
//! # Names of requests
//!
//! The stack names a request once, where the request enters; every layer and the store see that
//! name. A layer that needs a request of its own (a merged request, the read of an edge block)
//! names that request by an index into a table of its own ([`Flow::pass_own`]). The completion of
//! such a request comes back to this layer alone ([`Layer::complete_own`]). So layers that only
//! look on keep no table of requests in flight.

use std::any::Any;
use std::collections::VecDeque;

use crate::settings::{SettingError, Settings};
use crate::{Completion, Info, Nanos, Request, RequestId};

/// Bits of a [`RequestId`] that hold an index; those above hold the layer that the request is of,
/// counted from 1, or 0 for a request that entered the stack.
const INDEX_BITS: u32 = 56;

/// Layers of one stack at most.
pub(crate) const LAYERS_MAX: usize = (1 << (64 - INDEX_BITS)) - 1;

/// A number that a layer counts, for `status` and the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name, of lower-case words with underscores and with its unit, such as `held_bytes`.
    pub name: &'static str,
    /// Its present value.
    pub value: u64,
}

/// An entry of a device's ordered list of layers.
///
/// The contract of [`Backend`](crate::Backend) holds at the top of a layer if it holds below. When
/// [`Layer::submit`], [`Layer::complete`] and [`Layer::turn`] return, nothing that could go on is
/// kept back, unless [`Layer::deadline`] says when to come back.
pub trait Layer: Any + Send {
    /// The name of its kind, as in the list of kinds ([`crate::layers::KINDS`]).
    fn name(&self) -> &'static str;

    /// What the device is at the top of this layer, given what it is below. The stack asks before
    /// the first request, and again when the store has changed, in its size for example.
    fn info(&mut self, below: Info) -> Info {
        below
    }

    /// A request comes from above.
    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        flow.pass(request);
    }

    /// The completion of a request that a layer above passed down, or that entered the stack, comes
    /// from below.
    fn complete(&mut self, completion: Completion, flow: &mut Flow<'_>) {
        flow.answer(completion);
    }

    /// The completion of this layer's own request `index` comes from below.
    fn complete_own(&mut self, index: usize, completion: Completion, flow: &mut Flow<'_>) {
        let _ = (completion, flow);
        debug_assert!(false, "{} made no request of its own: {index}", self.name());
    }

    /// The stack has refused a request, which no layer gets to see otherwise: its range lies
    /// outside the device, say.
    fn refused(&mut self, request: &Request) {
        let _ = request;
    }

    /// Every completion that was ready has passed. Work that is due at [`Flow::now`] is done here.
    fn turn(&mut self, flow: &mut Flow<'_>) {
        let _ = flow;
    }

    /// When [`Layer::turn`] must come even if nothing else happens.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// No request comes any more: those that are held back for later pass at once.
    fn drain(&mut self) {}

    /// What keeps requests back here, for people; `None` if nothing does.
    fn waits_for(&self) -> Option<String> {
        None
    }

    /// The options in force, each as written on the command line.
    fn options(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What the layer has counted.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    /// Changes options while the device serves. Options that `settings` does not name stay.
    ///
    /// # Errors
    /// The layer takes no such option, or cannot change the option now; nothing has changed then.
    fn change(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        Err(SettingError::Fixed { layer: self.name().to_owned(), text: settings.to_string() })
    }
}

/// What moves between the layers, one step at a time, first in, first out.
pub(crate) enum Step {
    /// A request goes to the layer `to`, or to the store behind the last one.
    Down { to: usize, request: Request },
    /// A completion leaves the layer `from` upwards; the store is behind the last layer.
    Up { from: usize, completion: Completion },
}

/// A layer's way to its neighbours, and the time.
pub struct Flow<'a> {
    pub(crate) now: Nanos,
    /// The layer that it belongs to.
    pub(crate) layer: usize,
    pub(crate) size_bytes: u64,
    pub(crate) steps: &'a mut VecDeque<Step>,
}

impl Flow<'_> {
    /// The time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The size of the device, as its front-ends see it.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Passes a request on under the name that it came with.
    pub fn pass(&mut self, request: Request) {
        self.steps.push_back(Step::Down { to: self.layer + 1, request });
    }

    /// Passes on a request that this layer makes, named by an index into a table of the layer's.
    /// No two requests in flight may have the same index.
    pub fn pass_own(&mut self, index: usize, mut request: Request) {
        request.id = own_id(self.layer, index);
        self.pass(request);
    }

    /// Answers a request that came from above.
    pub fn answer(&mut self, completion: Completion) {
        self.steps.push_back(Step::Up { from: self.layer, completion });
    }
}

/// The name of the request `index` that `layer` makes.
fn own_id(layer: usize, index: usize) -> RequestId {
    debug_assert!(layer < LAYERS_MAX && (index as u64) < 1 << INDEX_BITS);
    RequestId((layer as u64 + 1) << INDEX_BITS | index as u64)
}

/// The layer whose own request this is, and its index there; no layer if the request has entered.
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
