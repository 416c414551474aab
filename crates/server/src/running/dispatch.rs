//! Chooses who carries out a command: a running server, or a running pool in the command's process.
//!
//! A server first locks the nodes' folders, and listens on its control socket a moment later. So if
//! a server has the folders, the command waits for its socket. If another command has the folders,
//! the command waits for its end. Both waits are bounded.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use fieldstone_host::FolderError;
use fieldstone_uring::Holder;

use super::{FixedNode, RunningPool};
use crate::control::{Client, Request, Response, find_server, servers};
use crate::pool::Pool;
use crate::report::VolumeReport;
use crate::runtime::RuntimeOptions;

/// How long a server that has the nodes may take to answer or to end.
const SERVER_TIMEOUT: Duration = Duration::from_secs(15);

/// The process that carries out a command.
pub enum Operator {
    /// A server of the pool does it.
    Server(Client),
    /// A running pool in this process does it.
    Own(Box<RunningPool>),
}

impl Operator {
    /// Finds a server of the pool at `folder`: the server of `volume` if that is given. If there is
    /// none, starts a running pool, which reaches the nodes in `fixed` at their addresses.
    ///
    /// # Errors
    /// The pool cannot be used, or a process that has it does not answer.
    pub fn find(folder: &Path, volume: Option<&str>, fixed: &[FixedNode]) -> anyhow::Result<Self> {
        const PAUSE: Duration = Duration::from_millis(50);
        let start = Instant::now();
        loop {
            let pool = Pool::open(folder)?;
            if let Some(server) = find_server(folder, volume)? {
                return Ok(Self::Server(server));
            }
            let error = match RunningPool::with_pool(pool, &RuntimeOptions::offline(fixed)) {
                Ok(running) => return Ok(Self::Own(Box::new(running))),
                Err(error) => error,
            };
            let holder = match error.downcast_ref() {
                Some(FolderError::InUse { holder: Some(Holder::Server), pid, .. }) => Some(*pid),
                _ => None,
            };
            // If a server answers by now but does not serve this volume, waiting is of no use.
            let mut clients = servers(folder);
            if let Some(server) = find_server(folder, volume)? {
                return Ok(Self::Server(server));
            }
            match (holder, clients.first_mut(), volume) {
                (Some(pid), Some(server), Some(volume)) => {
                    return Err(not_served(folder, server, pid, volume));
                }
                (None, ..) | (_, Some(_), _) => return Err(error),
                (Some(_), None, _) => {}
            }
            if start.elapsed() > SERVER_TIMEOUT {
                return Err(error.context(format!(
                    "waited {SERVER_TIMEOUT:?} for the server of {} to answer or to end",
                    folder.display()
                )));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// As [`Operator::find`], for a change of a volume that need not be served: the server of the
    /// volume, or else another server of the pool, or else a running pool in this process. Servers
    /// that do not answer are passed over.
    ///
    /// # Errors
    /// As [`Operator::find`].
    pub fn find_for(folder: &Path, volume: &str, fixed: &[FixedNode]) -> anyhow::Result<Self> {
        let serves = |client: &mut Client| {
            let is_it = |other: &VolumeReport| other.name == volume && other.is_of_pool();
            client.status().is_ok_and(|report| report.volumes.iter().any(is_it))
        };
        for mut client in servers(folder) {
            if serves(&mut client) {
                return Ok(Self::Server(client));
            }
        }
        Self::find(folder, None, fixed)
    }

    /// Closes the running pool if the command started one.
    ///
    /// # Errors
    /// A device was not closed cleanly, or a core failed.
    pub fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Server(_) => Ok(()),
            Self::Own(running) => running.finish(),
        }
    }
}

/// The error if a server has the pool's nodes, but does not serve `volume`.
fn not_served(folder: &Path, server: &mut Client, pid: Option<u32>, volume: &str) -> anyhow::Error {
    let (dir, who) = (folder.display(), pid.map(|pid| format!("process {pid}")));
    let who = who.as_deref().unwrap_or("another process");
    let names: Option<Vec<String>> = match server.ask(&Request::VolumeList) {
        // A volume that cannot be listed may be this one.
        Ok(Response::Volumes { volumes, warning: None }) => {
            Some(volumes.into_iter().map(|line| line.name).collect())
        }
        _ => None,
    };
    match names {
        Some(names) if names.is_empty() => {
            anyhow!("the pool {dir}, which {who} serves, has no volume {volume:?} and no other")
        }
        Some(names) if !names.iter().any(|name| name == volume) => anyhow!(
            "the pool {dir}, which {who} serves, has no volume {volume:?}; there are: {}",
            names.join(", ")
        ),
        _ => anyhow!(
            "{who} serves the pool {dir}, but not the volume {volume:?}; stop that process first, \
             or serve all volumes of the pool with it"
        ),
    }
}
