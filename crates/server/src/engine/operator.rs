//! Who does what a command asks for: a running server, or an engine of the command's own.
//!
//! A server takes the nodes' folders first and listens on its control socket a moment later. A
//! command that finds the folders taken by a server therefore waits for the socket, and one that
//! finds them taken by another command waits for its end. Both waits are bounded.

use std::path::Path;
use std::time::{Duration, Instant};

use fieldstone_host::FolderError;
use fieldstone_uring::Holder;

use super::{Engine, FixedNode};
use crate::control::{Client, find_server, servers};
use crate::pool::Pool;
use crate::runtime::RuntimeOptions;

/// How long a server that has the nodes may take to answer, or to end.
const SERVER_PATIENCE: Duration = Duration::from_secs(15);

/// Who does what a command asks for.
pub enum Operator {
    /// The pool's server.
    Server(Client),
    /// This process.
    Own(Box<Engine>),
}

impl Operator {
    /// Finds the server of the pool at `folder`, the one of `volume` if that is given, or starts an
    /// engine, which reaches some nodes at addresses.
    ///
    /// # Errors
    /// When the pool cannot be used, or is in use by a process that does not answer.
    pub fn find(folder: &Path, volume: Option<&str>, fixed: &[FixedNode]) -> anyhow::Result<Self> {
        const PAUSE: Duration = Duration::from_millis(50);
        let start = Instant::now();
        loop {
            let pool = Pool::open(folder)?;
            if let Some(server) = find_server(folder, volume)? {
                return Ok(Self::Server(server));
            }
            let error = match Engine::with_pool(pool, &RuntimeOptions::offline(fixed)) {
                Ok(engine) => return Ok(Self::Own(Box::new(engine))),
                Err(error) => error,
            };
            let waits = matches!(
                error.downcast_ref(),
                Some(FolderError::InUse { holder: Some(Holder::Server), .. })
            );
            // A server answers by now. If it does not serve this volume, waiting changes nothing.
            let answers = !servers(folder).is_empty();
            if let Some(server) = find_server(folder, volume)? {
                return Ok(Self::Server(server));
            }
            if !waits || answers {
                return Err(error);
            }
            if start.elapsed() > SERVER_PATIENCE {
                return Err(error.context(format!(
                    "waited {SERVER_PATIENCE:?} for the server of {} to answer or to end",
                    folder.display()
                )));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends what was started for the command.
    ///
    /// # Errors
    /// When something was not closed properly.
    pub fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Server(_) => Ok(()),
            Self::Own(engine) => engine.finish(),
        }
    }
}
