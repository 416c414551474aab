//! A server's life: what it serves is opened, exported and closed.
//!
//! The control socket comes first, so that `status` tells what an opening volume waits for. Then
//! all devices are opened at the same time ([`opening`]), and each is exported as soon as it is
//! open.

mod opening;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::bail;
use fieldstone_console::signals::Signals;
use fieldstone_uring::Listener;

pub use opening::Device;

use crate::control::ControlServer;
use crate::engine::{Engine, Served};
use crate::metrics::MetricsServer;
use opening::{Door, Openings};

/// Tells the user, in lines, what is served from now on.
pub type Announce = fn(&str);

/// What to serve, and where.
pub struct ServeOptions {
    /// What to open, in the order of the exports.
    pub devices: Vec<Device>,
    /// Where NBD clients come in.
    pub listeners: Vec<Listener>,
    /// Where metrics are served, `HOST:PORT`.
    pub metrics: Option<String>,
    /// Writes are refused.
    pub read_only: bool,
    /// Tells what is served.
    pub announce: Announce,
}

/// A server at work. Without [`Server::end`], requests in flight are not waited for.
pub struct Server {
    engine: Arc<Engine>,
    openings: Openings,
    /// They answer until the server ends.
    control: Option<ControlServer>,
    metrics: Option<MetricsServer>,
}

impl Server {
    /// Answers control clients, and begins to open everything. A call to stop goes to `stop`.
    ///
    /// # Errors
    /// When a volume is not known, or a socket or a thread cannot be made.
    pub fn start(
        engine: &Arc<Engine>,
        options: ServeOptions,
        stop: Sender<()>,
    ) -> anyhow::Result<Self> {
        let ServeOptions { devices, listeners, read_only, .. } = options;
        engine.set_targets(devices.iter().map(|device| device.name().to_owned()));
        let addresses = listeners.iter().map(|listener| listener.address().to_string());
        let served = Served::new(Arc::clone(engine), addresses.collect(), read_only, stop);
        let served = Arc::new(served);
        let metrics = match &options.metrics {
            Some(address) => Some(MetricsServer::start(address, Arc::clone(&served))?),
            None => None,
        };
        let control = match &engine.pool {
            Some(pool) => Some(ControlServer::start(&pool.folder, Arc::clone(&served) as _)?),
            None => None,
        };
        let door = Door::new(engine, listeners, read_only, metrics.as_ref(), options.announce);
        // A wrong name changes nothing: all are looked up before any is opened.
        let openings = Openings::start(engine, devices, door)?;
        Ok(Self { engine: Arc::clone(engine), openings, control, metrics })
    }

    /// Waits for the end: a signal, a call to stop, or a failure.
    ///
    /// # Errors
    /// A core has ended by itself, nothing could be opened, or the end came before anything was
    /// open.
    pub fn wait(&self, signals: &Signals) -> anyhow::Result<()> {
        const STEP: Duration = Duration::from_secs(3);
        const STEP_WHILE_OPENING: Duration = Duration::from_millis(50);
        loop {
            let opening = self.openings.is_any_new();
            if signals.wait(if opening { STEP_WHILE_OPENING } else { STEP }) {
                if self.engine.open_devices().is_empty() {
                    self.openings.interrupted()?;
                }
                return Ok(());
            }
            if self.engine.has_failed() {
                bail!("a core has ended by itself; see the messages above");
            }
            if opening && self.openings.is_any_new() {
                continue;
            }
            if let Some(reason) = self.engine.all_failed() {
                bail!("{reason}");
            }
        }
    }

    /// Opens and answers nothing more, and waits for requests in flight.
    pub fn end(self) {
        /// How long requests in flight are waited for.
        const DRAIN: Duration = Duration::from_secs(20);
        let Self { engine, openings, control, metrics } = self;
        drop(openings);
        drop((control, metrics));
        if !engine.handle().drain(DRAIN) {
            tell!("fieldstone: requests in flight were not answered within {DRAIN:?}");
        }
    }
}
