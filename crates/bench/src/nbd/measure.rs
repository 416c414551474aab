//! Runs the cases: in each round all cases, and in each case all contenders in turn.
//!
//! - All servers run all the time. Between their turns they rest, at almost no cost. A standard run
//!   measures that cost, too.
//! - Each round begins with filling every device in order. So no case meets the disorder that
//!   random writes left in an earlier round, and no read meets data that was never written.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use fieldstone_console::signals::Signals;
use indicatif::ProgressBar;

use super::case::Case;
use super::contender::{Contender, Setup, start};
use crate::fio::Run;
use crate::interleaving::{self, Entrant, Interleaving, Schedule};
use crate::subject::{Cell, Subject};

/// Time for which servers are watched at rest.
const REST: Duration = Duration::from_secs(3);

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The cells, and who is missing.
    pub interleaving: interleaving::Results<Contender, Cell>,
    /// Part of a core that a server takes at rest, in per cent.
    pub idle_percent: BTreeMap<Contender, f64>,
    /// The commands that started each contender.
    pub commands: BTreeMap<Contender, Vec<String>>,
}

/// The configuration of a run.
pub struct RunConfig<'a> {
    /// The cases.
    pub cases: &'a [Case],
    /// What may run.
    pub schedule: Schedule<'a, Contender>,
    /// Length of a cell, in seconds.
    pub seconds: f64,
    /// True if the run watches the servers at rest at the end.
    pub rest: bool,
}

/// Runs the cases of the configuration.
///
/// # Errors
/// The user has interrupted the run.
pub fn measure(
    config: &RunConfig<'_>,
    setup: &Setup,
    signals: &Signals,
    bar: &ProgressBar,
) -> anyhow::Result<Results> {
    let schedule = &config.schedule;
    let mut runner = Runner {
        config,
        setup,
        interleaving: Interleaving::new(schedule, signals, bar),
        running: BTreeMap::new(),
        results: Results::default(),
    };
    let wanted = schedule.wanted();
    // A contender is filled once in each round.
    let fills = wanted.len() as u64 * u64::from(schedule.rounds);
    runner.interleaving.expect(schedule.cells(&wanted) + fills);
    for contender in wanted {
        runner.interleaving.say(format!("starting {}", contender.name()));
        match start(contender, setup) {
            Ok(subject) => {
                runner.results.commands.insert(contender, subject.commands.clone());
                runner.running.insert(contender, subject);
                runner.interleaving.present.push(contender);
            }
            Err(error) => runner.interleaving.leave(contender, &error),
        }
        runner.interleaving.stop_if_asked()?;
    }
    for round in 0..schedule.rounds {
        runner.round(round)?;
    }
    if config.rest {
        runner.rest()?;
    }
    Ok(Results { interleaving: runner.interleaving.results, ..runner.results })
}

struct Runner<'a> {
    config: &'a RunConfig<'a>,
    setup: &'a Setup,
    interleaving: Interleaving<'a, Contender, Cell>,
    running: BTreeMap<Contender, Subject>,
    results: Results,
}

impl Runner<'_> {
    fn round(&mut self, round: u32) -> anyhow::Result<()> {
        let Self { config, setup, interleaving, running, .. } = self;
        let (folder, size_bytes) = (&setup.folder, setup.size_bytes);
        let title = interleaving.title(round);
        for contender in interleaving.order(round) {
            interleaving.say(format!("{title}: filling {}", contender.name()));
            let subject = running.get(&contender).context("it has left");
            if let Err(error) = subject.and_then(|subject| subject.fill(folder, size_bytes)) {
                interleaving.leave(contender, &error.context("filling its device"));
                running.remove(&contender);
            }
            interleaving.step()?;
        }
        interleaving.round(round, &title, |step| {
            let (load, seconds) = (config.cases[step.case].load, config.seconds);
            let run = Run { load, seconds, seed: step.seed, jobs: 1 };
            let subject = running.get_mut(&step.contender).context("it has left");
            let cell = subject.and_then(|subject| subject.cell(folder, size_bytes, run));
            if cell.is_err() {
                running.remove(&step.contender);
            }
            Ok(cell)
        })
    }

    fn rest(&mut self) -> anyhow::Result<()> {
        self.interleaving.say("watching the servers at rest".to_owned());
        let cpu_time = |subject: &Subject| match &subject.server {
            Some(server) => server.cpu_of_threads().map(Some),
            None => Ok(None),
        };
        let before = self.running.values().map(cpu_time).collect::<anyhow::Result<Vec<_>>>()?;
        std::thread::sleep(REST);
        for ((contender, subject), before) in self.running.iter().zip(before) {
            if let (Some(after), Some(before)) = (cpu_time(subject)?, before) {
                let used = after.saturating_sub(before).as_secs_f64();
                let percent = used / REST.as_secs_f64() * 100.0;
                self.results.idle_percent.insert(*contender, percent);
            }
        }
        self.interleaving.stop_if_asked()
    }
}
