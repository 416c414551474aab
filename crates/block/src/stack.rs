//! A device: an ordered list of layers over a store.
//!
//! The stack is the one place that knows every request of the device. It names a request once and
//! checks its range once; layers and stores may rely on both. The completion carries the
//! submitter's own name for the request, and goes back to the request's origin.
//!
//! Requests and completions move from layer to layer in steps, first in, first out. So requests
//! reach the store in the order in which the layer above sent them, and the stack never calls a
//! layer while the layer is running.

use std::any::Any;
use std::collections::VecDeque;

use slab::Slab;

use crate::layer::{
    Flow, LAYERS_MAX, Layer, Readiness, Step, Unwritten, Work, WorkResult, owner_of,
};
use crate::{Backend, Completion, Info, Nanos, Op, Request, RequestId, Sharing, Stage};

/// A request that has not been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The operation.
    pub op: Op,
    /// First byte of its range.
    pub offset_bytes: u64,
    /// When the request arrived.
    pub since: Nanos,
}

/// A request in flight, and the receiver of its completion.
struct Entered<T> {
    origin: T,
    id: RequestId,
    request: Unanswered,
}

/// Layers over a store `B`. `T` identifies the origin of a request; the stack only hands it back.
pub struct Stack<B, T = ()> {
    layers: Vec<Box<dyn Layer>>,
    store: B,
    /// The store's and the device's properties when last read.
    below: Info,
    info: Info,
    entered: Slab<Entered<T>>,
    steps: VecDeque<Step>,
    ready: Vec<(T, Completion)>,
    /// Kept between polls to reuse its memory.
    answers: Vec<Completion>,
    /// The store got requests since its last poll.
    submitted: bool,
    /// Why others may use the store's data, as the layers were told.
    shared: Option<Sharing>,
    /// The store does not know yet that the layers keep nothing.
    settling: bool,
    reports: Vec<String>,
}

impl<B: Backend, T> Stack<B, T> {
    /// Puts `layers` over `store`. The first layer is next to the front-ends.
    ///
    /// # Panics
    /// There are more than 255 layers.
    #[must_use]
    pub fn new(store: B, layers: Vec<Box<dyn Layer>>) -> Self {
        assert!(layers.len() <= LAYERS_MAX, "{} layers are too many", layers.len());
        let below = store.info();
        let mut stack = Self {
            layers,
            store,
            info: below.clone(),
            below: below.clone(),
            entered: Slab::new(),
            steps: VecDeque::new(),
            ready: Vec::new(),
            answers: Vec::new(),
            submitted: false,
            shared: None,
            settling: false,
            reports: Vec::new(),
        };
        stack.note_info(below);
        stack.update_sharing();
        stack
    }

    /// The properties of the device for its front-ends.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    fn note_info(&mut self, below: Info) {
        self.info = self.layers.iter_mut().rev().fold(below.clone(), |info, l| l.info(info));
        self.below = below;
    }

    /// Reads the store's properties again: the store has opened, or has grown.
    pub fn refresh_info(&mut self) {
        let below = self.store.info();
        if below != self.below {
            self.note_info(below);
        }
    }

    /// The store.
    pub fn store(&self) -> &B {
        &self.store
    }

    /// The store, to hand it its own events. Poll the stack afterwards. The caller must not change
    /// data without going through the layers.
    pub fn store_mut(&mut self) -> &mut B {
        &mut self.store
    }

    /// The layers, in order.
    #[must_use]
    pub fn layers(&self) -> &[Box<dyn Layer>] {
        &self.layers
    }

    /// The first layer with this name, to change its options.
    pub fn layer_mut(&mut self, name: &str) -> Option<&mut dyn Layer> {
        let found = self.layers.iter_mut().find(|layer| layer.name() == name);
        found.map(|layer| &mut **layer)
    }

    /// The first layer of type `L`.
    #[must_use]
    pub fn layer<L: Layer>(&self) -> Option<&L> {
        self.layers.iter().find_map(|layer| (&**layer as &dyn Any).downcast_ref())
    }

    /// Whether all layers can serve.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let states = self.layers.iter().map(|layer| layer.readiness());
        states.fold(Readiness::Ready, |all, one| match (&all, &one) {
            (Readiness::Failed(_), _) | (_, Readiness::Ready) => all,
            _ => one,
        })
    }

    /// Work of a layer, and the place of the layer: see [`Layer::work`].
    pub fn take_work(&mut self) -> Option<(usize, Work)> {
        let mut layers = self.layers.iter_mut().enumerate();
        layers.find_map(|(place, layer)| layer.work().map(|work| (place, work)))
    }

    /// Hands the result of its work to the layer at this place. Poll the stack afterwards.
    pub fn worked(&mut self, place: usize, result: WorkResult) {
        if let Some(layer) = self.layers.get_mut(place) {
            layer.worked(result);
            self.note_info(self.below.clone());
        }
    }

    /// Number of requests without an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.entered.len() + self.ready.len()
    }

    /// The oldest request without an answer.
    #[must_use]
    pub fn oldest(&self) -> Option<Unanswered> {
        let oldest = self.entered.iter().min_by_key(|(_, entered)| entered.request.since);
        oldest.map(|(_, entered)| entered.request)
    }

    /// No more requests will come: layers hold none back.
    pub fn drain(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.drain());
    }

    /// What the layers have and the store has not; `None` if there is nothing. Poll the stack
    /// after [`Stack::drain`] before you ask.
    #[must_use]
    pub fn unwritten(&self) -> Option<Unwritten> {
        let layers = self.layers.iter().filter_map(|layer| layer.unwritten());
        layers.reduce(|one, other| Unwritten {
            bytes: one.bytes + other.bytes,
            failure: one.failure.or(other.failure),
        })
    }

    /// Why the layers keep no data, as the store says; `None` if they may.
    #[must_use]
    pub fn shared(&self) -> Option<Sharing> {
        self.shared
    }

    /// Takes the lines that layers have left for the log.
    pub fn take_reports(&mut self) -> Vec<String> {
        std::mem::take(&mut self.reports)
    }

    /// Tells the layers if the store has become shared, or is no longer.
    fn update_sharing(&mut self) {
        let shared = self.store.shared();
        if shared != self.shared {
            self.settling = shared.is_some();
            self.shared = shared;
            let why = shared.map(|shared| shared.why);
            self.layers.iter_mut().for_each(|layer| layer.share(why));
        }
    }

    /// Tells the store that the layers keep nothing, once for each reason to share it.
    fn settle(&mut self) {
        if self.settling && self.unwritten().is_none() {
            self.settling = false;
            self.store.settled();
        }
    }

    /// Takes a request from `origin` at time `now`.
    pub fn submit_from(&mut self, origin: T, mut request: Request, now: Nanos) {
        if request.stamps.at(Stage::Received) == Nanos(0) {
            request.stamps.stamp(Stage::Received, now);
        }
        let (op, offset_bytes) = (request.op, request.offset_bytes);
        let entered = Entered {
            origin,
            id: request.id,
            request: Unanswered { op, offset_bytes, since: now },
        };
        request.id = RequestId(self.entered.insert(entered) as u64);
        match request.validate(&self.info) {
            Ok(()) => self.steps.push_back(Step::Down { to: 0, request }),
            Err(error) => {
                self.layers.iter_mut().for_each(|layer| layer.refused(&request));
                let completion = Completion::of(&request, Err(error));
                self.steps.push_back(Step::Up { from: 0, completion });
            }
        }
        self.run(now);
    }

    /// Moves the ready completions into `out`, each with the origin of its request.
    pub fn poll_into(&mut self, now: Nanos, out: &mut Vec<(T, Completion)>) {
        loop {
            self.submitted = false;
            let mut answers = std::mem::take(&mut self.answers);
            self.store.poll(now, &mut answers);
            let from = self.layers.len();
            self.steps.extend(answers.drain(..).map(|completion| Step::Up { from, completion }));
            self.answers = answers;
            self.update_sharing();
            self.run(now);
            for layer in 0..self.layers.len() {
                let size_bytes = self.info.size_bytes;
                let (steps, reports) = (&mut self.steps, &mut self.reports);
                let mut flow = Flow { now, layer, size_bytes, steps, reports };
                self.layers[layer].turn(&mut flow);
                self.run(now);
            }
            self.settle();
            // The store may have answered at once, and no later call would collect the answer.
            if !self.submitted {
                break;
            }
        }
        out.append(&mut self.ready);
    }

    /// When to poll again even if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let layers = self.layers.iter().filter_map(|layer| layer.deadline());
        layers.chain(self.store.deadline()).min()
    }

    /// Takes all possible steps.
    fn run(&mut self, now: Nanos) {
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Down { to, request } => self.descend(to, request, now),
                Step::Up { from, completion } => self.ascend(from, completion, now),
            }
        }
    }

    fn descend(&mut self, to: usize, request: Request, now: Nanos) {
        let size_bytes = self.info.size_bytes;
        match self.layers.get_mut(to) {
            Some(layer) => {
                let (steps, reports) = (&mut self.steps, &mut self.reports);
                let mut flow = Flow { now, layer: to, size_bytes, steps, reports };
                layer.submit(request, &mut flow);
            }
            None => {
                self.submitted = true;
                self.store.submit(request, now);
            }
        }
    }

    fn ascend(&mut self, from: usize, completion: Completion, now: Nanos) {
        let (owner, index) = owner_of(completion.id);
        let Some(to) = from.checked_sub(1) else {
            debug_assert_eq!(owner, None, "a layer's own request left the stack");
            return self.leave(index, completion);
        };
        let size_bytes = self.info.size_bytes;
        let (steps, reports) = (&mut self.steps, &mut self.reports);
        let mut flow = Flow { now, layer: to, size_bytes, steps, reports };
        match owner {
            Some(owner) if owner == to => {
                self.layers[to].complete_own(index, completion, &mut flow);
            }
            _ => self.layers[to].complete(completion, &mut flow),
        }
    }

    fn leave(&mut self, index: usize, mut completion: Completion) {
        let Some(entered) = self.entered.try_remove(index) else {
            debug_assert!(false, "a request was answered twice");
            return;
        };
        completion.id = entered.id;
        self.ready.push((entered.origin, completion));
    }
}

impl<B: Backend> Backend for Stack<B> {
    fn info(&self) -> Info {
        self.info.clone()
    }

    fn submit(&mut self, request: Request, now: Nanos) {
        self.submit_from((), request, now);
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        let mut answered = Vec::new();
        self.poll_into(now, &mut answered);
        out.extend(answered.into_iter().map(|((), completion)| completion));
    }

    fn deadline(&self) -> Option<Nanos> {
        self.next_deadline()
    }

    fn shared(&self) -> Option<Sharing> {
        self.store.shared()
    }
}
