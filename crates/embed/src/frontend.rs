//! The front-end: the work of a core for the queues of its devices.

use std::collections::BTreeMap;

use fieldstone_block::{BlockError, Completion, Info, Request};
use fieldstone_host::{
    DeviceId, Frontend, FrontendCounts, FrontendIo, FrontendKind, FrontendSetup, Submitter, store,
};

use crate::queue::Attached;

/// Front-end for callers inside the process.
pub const KIND: FrontendKind = FrontendKind {
    name: "embed",
    about: "this program, through queues",
    make: |setup| Box::new(EmbedFrontend::new(setup)),
    offer: None,
};

/// Messages to the front-end of a core.
pub(crate) enum Mail {
    /// A queue for a device of this core.
    Attach(Attached),
    /// The queue with this place is closed, and all its requests are answered.
    Detach(u32),
}

/// The queues for the devices of one core.
struct EmbedFrontend {
    queues: BTreeMap<u32, Attached>,
    /// Places of the queues that have woken the core since the last `submit`.
    woken: Vec<u32>,
    answered: Vec<(u32, Completion)>,
    /// Empty between calls. Kept so that its memory is allocated only once.
    requests: Vec<Request>,
    in_flight: usize,
    attached: u64,
    /// True when the host is ending: new requests are refused.
    draining: bool,
}

impl EmbedFrontend {
    /// The bounds of the queues limit the memory of requests ([`crate::Bounds`]), so `setup` is not
    /// used.
    fn new(_: FrontendSetup) -> Self {
        Self {
            queues: BTreeMap::new(),
            woken: Vec::new(),
            answered: Vec::new(),
            requests: Vec::new(),
            in_flight: 0,
            attached: 0,
            draining: false,
        }
    }
}

impl Frontend for EmbedFrontend {
    fn counts(&self) -> FrontendCounts {
        FrontendCounts { connections: self.queues.len(), accepted: self.attached }
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn mail(&mut self, mail: store::Mail, io: &mut FrontendIo<'_>) {
        match mail.downcast::<Mail>().map(|mail| *mail) {
            Ok(Mail::Attach(queue)) => {
                self.attached += 1;
                // The device may have changed since the caller asked for its properties.
                if let Some(info) = io.device_info(queue.0.device) {
                    queue.0.set_info(info);
                }
                self.queues.insert(queue.0.submitter.place, queue);
            }
            Ok(Mail::Detach(place)) => drop(self.queues.remove(&place)),
            Err(_) => {}
        }
    }

    fn wake(&mut self, index: u32, _: &mut FrontendIo<'_>) {
        self.woken.push(index);
    }

    fn device_changed(&mut self, device: DeviceId, info: &Info, _: &mut FrontendIo<'_>) {
        for Attached(queue) in self.queues.values().filter(|queue| queue.0.device == device) {
            queue.set_info(info);
        }
    }

    fn complete(&mut self, to: Submitter, completion: Completion) {
        self.answered.push((to.place, completion));
    }

    fn submit(&mut self, io: &mut FrontendIo<'_>) -> bool {
        let mut any = false;
        for place in self.woken.drain(..) {
            let Some(Attached(queue)) = self.queues.get(&place) else { continue };
            queue.take(&mut self.requests);
            any |= !self.requests.is_empty();
            self.in_flight += self.requests.len();
            for request in self.requests.drain(..) {
                if self.draining {
                    let refused = Completion::of(&request, Err(BlockError::ShuttingDown));
                    self.answered.push((place, refused));
                } else {
                    io.submit(queue.submitter, queue.device, request);
                }
            }
        }
        any
    }

    /// Passes the answers to their receivers. A callback may submit, which wakes the core again.
    fn flush(&mut self, _: &mut FrontendIo<'_>) -> bool {
        self.in_flight -= self.answered.len();
        // The answers of one queue stay in their order.
        if !self.answered.is_sorted_by_key(|&(place, _)| place) {
            self.answered.sort_by_key(|&(place, _)| place);
        }
        let mut answered = self.answered.drain(..).peekable();
        while let Some(&(place, _)) = answered.peek() {
            let own = std::iter::from_fn(|| answered.next_if(|&(other, _)| other == place));
            let own = own.map(|(_, completion)| completion);
            match self.queues.get(&place) {
                Some(Attached(queue)) => queue.answer(own),
                None => own.for_each(drop),
            }
        }
        false
    }

    fn drain(&mut self) {
        self.draining = true;
    }

    fn close(&mut self, _: &mut FrontendIo<'_>) {
        self.queues.clear();
    }
}
