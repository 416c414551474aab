//! Runs the cases: in each round all cases, and in each case all contenders in turn.
//!
//! - All servers run all the time. Between their turns they rest, at almost no cost. A standard run
//!   measures that cost, too.
//! - Each round begins with filling every device in order. So no case meets the disorder that
//!   random writes left in an earlier round, and no read meets data that was never written.
//! - Before each cell the file system is synced, so that write-back of one contender's data does
//!   not disturb the next one. After a cell, the run waits at most 10 s for the server's deferred
//!   work (sealing, collecting garbage) and counts its CPU time to the cell.
//! - Each round begins with another contender. All contenders of a round access the same addresses.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;
use indicatif::ProgressBar;

use super::case::Case;
use super::contender::{Contender, Running, Setup, start};
use crate::choice::{Choice, chosen};
use crate::fio::Measured;
use crate::process::SwitchCounter;

/// The longest wait for a server that is busy after the last reply.
const SETTLE: Duration = Duration::from_secs(10);

/// Time for which servers are watched at rest.
const REST: Duration = Duration::from_secs(3);

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

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The cells of each case and contender, one per round.
    pub cells: BTreeMap<(usize, Contender), Vec<Cell>>,
    /// Part of a core that a server takes at rest, in per cent.
    pub idle_percent: BTreeMap<Contender, f64>,
    /// The contenders that did not take part to the end, and the reasons.
    pub missing: Vec<(Contender, String)>,
    /// The commands that started each contender.
    pub commands: BTreeMap<Contender, Vec<String>>,
}

/// The configuration of a run.
pub struct RunConfig<'a> {
    /// The cases.
    pub cases: &'a [Case],
    /// The choices among cases and contenders.
    pub choices: &'a [Choice],
    /// The contenders that may take part.
    pub contenders: &'a [Contender],
    /// Rounds.
    pub rounds: u32,
    /// Length of a cell, in seconds.
    pub seconds: f64,
    /// True if the run watches the servers at rest at the end.
    pub rest: bool,
}

impl RunConfig<'_> {
    fn takes(&self, case: usize, contender: Contender) -> bool {
        self.cases
            .get(case)
            .is_some_and(|case| chosen(self.choices, &case.name(), contender.name()))
    }

    /// The contenders that have a case to run.
    pub fn wanted(&self) -> Vec<Contender> {
        let busy =
            |contender: &Contender| (0..self.cases.len()).any(|case| self.takes(case, *contender));
        self.contenders.iter().copied().filter(busy).collect()
    }

    /// The number of cells and fills of a round.
    fn steps(&self) -> u64 {
        let of = |contender: Contender| {
            1 + (0..self.cases.len()).filter(|case| self.takes(*case, contender)).count() as u64
        };
        self.wanted().into_iter().map(of).sum()
    }
}

/// Runs the cases of the configuration.
pub fn measure(
    config: &RunConfig<'_>,
    setup: &Setup,
    signals: &Signals,
    bar: &ProgressBar,
) -> anyhow::Result<Results> {
    let mut runner =
        Runner { config, setup, signals, bar, running: Vec::new(), results: Results::default() };
    bar.set_length(config.steps() * u64::from(config.rounds));
    for contender in config.wanted() {
        bar.set_message(format!("starting {}", contender.name()));
        match start(contender, setup) {
            Ok(running) => {
                runner.results.commands.insert(contender, running.commands.clone());
                runner.running.push(running);
            }
            Err(error) => runner.leave(contender, &error),
        }
        runner.stop_if_asked()?;
    }
    for round in 0..config.rounds {
        runner.round(round)?;
    }
    if config.rest {
        runner.rest()?;
    }
    Ok(runner.results)
}

struct Runner<'a> {
    config: &'a RunConfig<'a>,
    setup: &'a Setup,
    signals: &'a Signals,
    bar: &'a ProgressBar,
    running: Vec<Running>,
    results: Results,
}

impl Runner<'_> {
    fn round(&mut self, round: u32) -> anyhow::Result<()> {
        let label = format!("round {}/{}", round + 1, self.config.rounds);
        for contender in self.order(round) {
            self.bar.set_message(format!("{label}: filling {}", contender.name()));
            let filled = self.with(contender, |runner, running| {
                running.client.fill(runner.setup.size_bytes)?;
                runner.wait_until_idle(running)
            });
            if let Err(error) = filled {
                self.leave(contender, &error.context("filling its device"));
            }
            self.step()?;
        }
        for (index, case) in self.config.cases.iter().enumerate() {
            for contender in self.order(round) {
                if !self.config.takes(index, contender) {
                    continue;
                }
                self.bar.set_message(format!("{label}: {} {}", case.name(), contender.name()));
                let seed = u64::from(round) * 1000 + index as u64;
                match self.with(contender, |runner, running| runner.cell(running, *case, seed)) {
                    Ok(cell) => {
                        self.results.cells.entry((index, contender)).or_default().push(cell);
                    }
                    Err(error) => self.leave(contender, &error.context(case.name())),
                }
                self.step()?;
            }
        }
        Ok(())
    }

    /// The contenders in the order of a round.
    fn order(&self, round: u32) -> Vec<Contender> {
        let mut order: Vec<Contender> =
            self.running.iter().map(|running| running.contender).collect();
        let first = round as usize % order.len().max(1);
        order.rotate_left(first);
        order
    }

    fn with<T>(
        &mut self,
        contender: Contender,
        act: impl FnOnce(&Self, &mut Running) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let at = self.running.iter().position(|running| running.contender == contender);
        let mut running = self.running.remove(at.context("it has left")?);
        let done = act(self, &mut running);
        self.running.insert(at.unwrap_or(0), running);
        done
    }

    fn cell(&self, running: &mut Running, case: Case, seed: u64) -> anyhow::Result<Cell> {
        let (size_bytes, seconds) = (self.setup.size_bytes, self.config.seconds);
        self.wait_until_idle(running)?;
        let client = running.client.clone();
        let access = || client.measure(case.load, size_bytes, seconds, seed);
        let Some(server) = &mut running.server else {
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
    fn wait_until_idle(&self, running: &Running) -> anyhow::Result<()> {
        if let Some(server) = &running.server {
            server.settle(SETTLE)?;
        }
        sync(&self.setup.folder)
    }

    fn rest(&mut self) -> anyhow::Result<()> {
        self.bar.set_message("watching the servers at rest");
        let cpu_time = |running: &Running| match &running.server {
            Some(server) => server.cpu_of_threads().map(Some),
            None => Ok(None),
        };
        let before = self.running.iter().map(cpu_time).collect::<anyhow::Result<Vec<_>>>()?;
        std::thread::sleep(REST);
        for (running, before) in self.running.iter().zip(before) {
            if let (Some(after), Some(before)) = (cpu_time(running)?, before) {
                let used = after.saturating_sub(before).as_secs_f64();
                let percent = used / REST.as_secs_f64() * 100.0;
                self.results.idle_percent.insert(running.contender, percent);
            }
        }
        self.stop_if_asked()
    }

    /// Removes a contender that failed from the run and records the reason.
    fn leave(&mut self, contender: Contender, error: &anyhow::Error) {
        self.running.retain(|running| running.contender != contender);
        self.results.missing.push((contender, format!("{error:#}")));
    }

    fn step(&self) -> anyhow::Result<()> {
        self.bar.inc(1);
        self.stop_if_asked()
    }

    fn stop_if_asked(&self) -> anyhow::Result<()> {
        if self.signals.arrived() {
            bail!("interrupted; nothing is reported of a run that is not complete");
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::case;

    fn config<'a>(cases: &'a [Case], choices: &'a [Choice]) -> RunConfig<'a> {
        let contenders = &Contender::ALL;
        RunConfig { cases, choices, contenders, rounds: 2, seconds: 1.0, rest: true }
    }

    #[test]
    fn only_what_was_chosen_is_started() {
        let cases = case::standard();
        assert_eq!(config(&cases, &[]).wanted(), Contender::ALL);
        assert_eq!(config(&cases, &[]).steps(), 14 * (6 + 1));
        let choices =
            ["4k-randread-qd1/ram", "nbdkit-memory"].map(|text| text.parse().expect("ok"));
        let config = config(&cases, &choices);
        assert_eq!(config.wanted(), [Contender::Ram, Contender::NbdkitMemory]);
        assert_eq!(config.steps(), (1 + 1) + (1 + 6));
    }
}
