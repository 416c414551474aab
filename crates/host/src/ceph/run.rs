//! A client in the calling thread, for commands: it connects, and runs one procedure after another
//! until each has ended.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use fieldstone_block::{Backend, Nanos};
use fieldstone_crush::osdmap::OsdMap;
use fieldstone_rados::client::{Client, Phase};
use fieldstone_rados::cluster::Cluster;
use fieldstone_rbd::{Image, Timer};
use fieldstone_tasks::Executor;
use fieldstone_uring::{Event, Reactor, ReactorOptions, Token};

use super::{Carrier, CephSettings};

/// The longest sleep of the thread.
const SLEEP_MS: u64 = 500;
/// The time between two texts for people that tell why requests wait.
const TELL_MS: u64 = 1_000;
/// How long ending a session may take.
const CLOSE_MS: u64 = 3_000;

/// A connection to a cluster, in the calling thread.
pub struct Session {
    reactor: Reactor,
    carrier: Carrier,
    executor: Executor,
    cluster: Cluster,
    timer: Timer,
    events: Vec<Event>,
    longest_sleep: Nanos,
}

impl Session {
    /// Connects, and waits until the client has a map of the OSDs.
    ///
    /// # Errors
    /// No monitor can be reached in time, or the monitors refuse the client. The text says which.
    pub fn connect(settings: &CephSettings) -> Result<Self, String> {
        let reactor = Reactor::new(ReactorOptions { poll: false, ..ReactorOptions::default() })
            .map_err(|error| format!("io_uring cannot be used: {error}"))?;
        let now = reactor.now();
        let (client, cluster) = Client::new(settings.client_options(now), now);
        let carrier = Carrier::new(client);
        let (executor, timer) = (Executor::default(), Timer::new());
        timer.advance(now);
        let events = Vec::new();
        let longest_sleep = Nanos::from_ms(SLEEP_MS);
        let mut session =
            Self { reactor, carrier, executor, cluster, timer, events, longest_sleep };
        loop {
            session.advance(None);
            match session.carrier.machine.phase() {
                Phase::Serving => return Ok(session),
                Phase::Failed(why) => return Err(why),
                Phase::Connecting | Phase::Closed => session.sleep(None)?,
            }
        }
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        self.cluster.clone()
    }

    /// The timer of procedures: it moves on while [`Session::run`] or [`Session::drive`] runs.
    #[must_use]
    pub fn timer(&self) -> Timer {
        self.timer.clone()
    }

    /// The thread looks again after this time even if nothing has happened: for the `step` of
    /// [`Session::drive`] that waits for something else than this client. 500 ms until it is set.
    pub fn sleep_at_most(&mut self, time: Nanos) {
        self.longest_sleep = time;
    }

    /// The newest map of the OSDs that the client has.
    #[must_use]
    pub fn map(&self) -> Option<Arc<OsdMap>> {
        self.carrier.machine.map().cloned()
    }

    /// Runs a procedure to its end. About once a second, `meanwhile` gets the reason why requests
    /// wait; the text is empty if none waits for long.
    ///
    /// # Errors
    /// The client has failed.
    pub fn run<T: 'static>(
        &mut self,
        procedure: impl Future<Output = T> + 'static,
        mut meanwhile: impl FnMut(&str),
    ) -> Result<T, String> {
        let place = Rc::new(RefCell::new(None));
        let result = Rc::clone(&place);
        self.executor.spawn(Box::pin(async move {
            let value = procedure.await;
            *result.borrow_mut() = Some(value);
        }));
        let mut told = self.reactor.fresh_now();
        loop {
            self.advance(None);
            if let Some(value) = place.borrow_mut().take() {
                return Ok(value);
            }
            self.check()?;
            self.sleep(None)?;
            self.tell(&mut told, &mut meanwhile);
        }
    }

    /// Runs an image until `step` gives a value. `step` is called with the time whenever something
    /// may have happened: it takes the image's completions, and submits requests. `meanwhile` is as
    /// in [`Session::run`].
    ///
    /// # Errors
    /// The client has failed.
    pub fn drive<T>(
        &mut self,
        image: &mut Image,
        mut step: impl FnMut(&mut Image, Nanos) -> Option<T>,
        mut meanwhile: impl FnMut(&str),
    ) -> Result<T, String> {
        let mut told = self.reactor.fresh_now();
        loop {
            self.advance(Some(&mut *image));
            if let Some(value) = step(image, self.reactor.now()) {
                return Ok(value);
            }
            self.check()?;
            // What `step` has begun may have ended already.
            if !self.advance(Some(&mut *image)) {
                self.sleep(Some(&*image))?;
                self.tell(&mut told, &mut meanwhile);
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        match self.carrier.machine.phase() {
            Phase::Failed(why) => Err(why),
            _ => Ok(()),
        }
    }

    fn tell(&self, told: &mut Nanos, meanwhile: &mut impl FnMut(&str)) {
        let now = self.reactor.now();
        if now >= told.plus(Nanos::from_ms(TELL_MS)) {
            *told = now;
            meanwhile(&self.waits_for());
        }
    }

    /// The reason why requests wait, for people; empty if none waits long.
    #[must_use]
    pub fn waits_for(&self) -> String {
        self.carrier.machine.waits_for(self.reactor.now())
    }

    /// Runs everything that is ready. True if there was anything.
    fn advance(&mut self, mut image: Option<&mut Image>) -> bool {
        let now = self.reactor.now();
        self.timer.advance(now);
        let mut did = false;
        loop {
            if let Some(image) = &mut image {
                image.run(now);
            }
            if !(self.executor.run() | self.carrier.act(&mut self.reactor, token)) {
                return did;
            }
            did = true;
        }
    }

    /// Sleeps until something happens.
    fn sleep(&mut self, image: Option<&Image>) -> Result<(), String> {
        self.carrier.flush(&mut self.reactor, token);
        let longest = self.reactor.fresh_now().plus(self.longest_sleep);
        let due = [self.timer.deadline(), image.and_then(Image::deadline)];
        let limit = due.into_iter().flatten().fold(longest, Nanos::min);
        let mut events = std::mem::take(&mut self.events);
        self.reactor
            .turn_until(&mut events, limit)
            .map_err(|error| format!("io_uring cannot be used: {error}"))?;
        for event in events.drain(..) {
            let index = event.token.0 as u32;
            self.carrier.event(index, event, &mut self.reactor, token);
        }
        self.events = events;
        Ok(())
    }

    /// Ends the session: sends what is on its way (a last acknowledgement, the end of a watch), and
    /// closes the sockets.
    pub fn close(mut self) {
        let ended = |client: &Client| matches!(client.phase(), Phase::Closed | Phase::Failed(_));
        let limit = self.reactor.fresh_now().plus(Nanos::from_ms(CLOSE_MS));
        while !ended(&self.carrier.machine) && self.reactor.fresh_now() < limit {
            self.advance(None);
            self.carrier.flush(&mut self.reactor, token);
            if !self.carrier.is_sending() || self.sleep(None).is_err() {
                break;
            }
        }
        self.carrier.machine.close();
        self.carrier.release(&mut self.reactor, token);
    }
}

fn token(index: u32) -> Token {
    Token(u64::from(index))
}
