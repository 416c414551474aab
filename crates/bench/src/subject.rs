//! A device under test: its client, and its server if there is one, with what a cell costs them.
//!
//! The file system is synced before each cell, so that write-back of one contender's data does not
//! disturb the next one. After a cell, the run waits at most 10 s for the server's deferred work
//! (sealing, collecting garbage) and counts its CPU time to the cell.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

use crate::client::Client;
use crate::fio::{Measured, Run};
use crate::process::{Server, SwitchCounter};

/// The longest wait for a server that is busy after the last reply.
const SETTLE: Duration = Duration::from_secs(10);

/// The result of one contender in one case and one round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    /// The client's measurements.
    pub fio: Measured,
    /// CPU time of the server, including the time after the last reply.
    pub server_cpu_s: f64,
    /// CPU time of the server after the last reply.
    pub deferred_cpu_s: f64,
    /// Context switches of the server's threads.
    pub server_switches: u64,
}

/// A device that is ready to be measured.
pub struct Subject {
    /// The client, with its target.
    pub client: Client,
    /// The server's process, if there is one.
    pub server: Option<Server>,
    /// The commands that made and started it.
    pub commands: Vec<String>,
}

impl Subject {
    /// Writes the whole device in order. `folder` is on the file system that has the data.
    ///
    /// # Errors
    /// The client fails, or the server has ended.
    pub fn fill(&self, folder: &Path, size_bytes: u64) -> anyhow::Result<()> {
        self.client.fill(size_bytes)?;
        self.wait_until_idle(folder)
    }

    /// Runs a load, and measures what it costs the server.
    ///
    /// # Errors
    /// The client fails, or the server has ended.
    pub fn cell(&mut self, folder: &Path, size_bytes: u64, run: Run) -> anyhow::Result<Cell> {
        self.wait_until_idle(folder)?;
        let access = || self.client.measure(run, size_bytes);
        let Some(server) = &mut self.server else {
            let fio = access()?;
            return Ok(Cell { fio, ..Cell::default() });
        };
        let before = server.cpu()?;
        let counter = SwitchCounter::start(server.pid())?;
        let ran = access();
        let server_switches = counter.finish();
        // If the server died, its error says more than the client's.
        server.check()?;
        let fio = ran?;
        let replied = server.cpu()?;
        server.settle(SETTLE)?;
        let after = server.cpu()?;
        Ok(Cell {
            fio,
            server_cpu_s: after.saturating_sub(before).as_secs_f64(),
            deferred_cpu_s: after.saturating_sub(replied).as_secs_f64(),
            server_switches,
        })
    }

    /// Waits until server and file system have no work left.
    fn wait_until_idle(&self, folder: &Path) -> anyhow::Result<()> {
        if let Some(server) = &self.server {
            server.settle(SETTLE)?;
        }
        sync(folder)
    }
}

/// Writes back all dirty data of the file system that has `folder`.
fn sync(folder: &Path) -> anyhow::Result<()> {
    let file = File::open(folder).with_context(|| format!("cannot open {}", folder.display()))?;
    // SAFETY: the descriptor is open, and the call touches no memory of this program.
    if unsafe { libc::syncfs(file.as_raw_fd()) } != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot sync the file system");
    }
    Ok(())
}
