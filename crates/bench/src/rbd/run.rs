//! Runs the cases: in each round all cases, and in each case all contenders in turn.
//!
//! - The image is written once, before the first measurement, and then only overwritten.
//! - The start of each contender and the opening of an image are measured five times, in turn,
//!   before the rounds. Medians count.
//! - Each round begins with another contender. All contenders of a round with the same kind of
//!   client access the same addresses.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use fieldstone_console::signals::Signals;
use indicatif::ProgressBar;

use super::contender::{ANSWER_MAX, Cell, Contender, Run, Setup};
use super::open::OpenJob;
use super::place::Place;
use crate::case::Case;
use crate::choice::{Choice, chosen};
use crate::fio::Pattern;
use crate::generator::Job;
use crate::usage::{Usage, run_counted};

/// How often the start of a contender is measured.
const START_UPS: u32 = 5;

/// How often the opening of an image is measured.
const OPENINGS: u32 = 5;

/// The name of the case that opens an image and closes it.
pub const OPEN: &str = "open";

/// The cases of the benchmark.
pub fn cases() -> Vec<Case> {
    const SMALL: u64 = 4 << 10;
    const LARGE: u64 = 128 << 10;
    let both = [Pattern::RandomRead, Pattern::RandomWrite];
    let of = |(bytes, depth)| both.map(|pattern| Case::new(pattern, bytes, depth));
    [(SMALL, 1), (SMALL, 32), (LARGE, 16)].into_iter().flat_map(of).collect()
}

/// The configuration of a run.
pub struct RunConfig<'a> {
    /// The cases.
    pub cases: &'a [Case],
    /// The choices among cases and contenders.
    pub choices: &'a [Choice],
    /// Rounds.
    pub rounds: u32,
    /// Length of a cell, in seconds.
    pub seconds: f64,
}

impl RunConfig<'_> {
    fn takes(&self, case: usize, contender: Contender) -> bool {
        self.cases
            .get(case)
            .is_some_and(|case| chosen(self.choices, &case.name(), contender.name()))
    }

    fn opens(&self, contender: Contender) -> bool {
        matches!(contender, Contender::Librbd | Contender::Embed)
            && chosen(self.choices, OPEN, contender.name())
    }

    /// The contenders that have a case to run.
    fn wanted(&self) -> impl Iterator<Item = Contender> {
        Contender::ALL
            .into_iter()
            .filter(|contender| (0..self.cases.len()).any(|case| self.takes(case, *contender)))
    }

    /// The number of cells of the run.
    fn steps(&self, contenders: &[Contender]) -> u64 {
        let cells = |contender: &Contender| {
            (0..self.cases.len()).filter(|case| self.takes(*case, *contender)).count() as u64
        };
        contenders.iter().map(cells).sum::<u64>() * u64::from(self.rounds)
    }
}

/// The results at one place.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The cells of each case and contender, one per round.
    pub cells: BTreeMap<(usize, Contender), Vec<Cell>>,
    /// What opening and closing an image costs.
    pub openings: BTreeMap<Contender, Vec<Usage>>,
    /// What the process of each contender costs without a load.
    pub start_ups: BTreeMap<Contender, Usage>,
    /// The contenders that did not take part to the end, and the reasons.
    pub missing: Vec<(Contender, String)>,
    /// The contenders' commands, for one case.
    pub commands: Vec<(Contender, String)>,
}

/// Measures all contenders at a place.
///
/// # Errors
/// The image cannot be filled, the cluster is gone, or the user has interrupted the run.
pub fn measure(
    config: &RunConfig<'_>,
    setup: &Setup,
    place: &mut Place,
    signals: &Signals,
    bar: &ProgressBar,
) -> anyhow::Result<Results> {
    let results = Results::default();
    let mut runner = Runner { config, setup, signals, bar, results, contenders: Vec::new() };
    for contender in config.wanted() {
        match setup.check(contender) {
            Ok(()) => runner.contenders.push(contender),
            Err(error) => runner.results.missing.push((contender, format!("{error:#}"))),
        }
    }
    runner.fill(place)?;
    runner.start_ups(place)?;
    runner.openings(place)?;
    bar.set_length(bar.length().unwrap_or(0) + config.steps(&runner.contenders));
    for round in 0..config.rounds {
        runner.round(place, round)?;
    }
    for contender in &runner.contenders {
        let shown = setup.shown(*contender, place);
        runner.results.commands.extend(shown.map(|line| (*contender, line)));
    }
    Ok(runner.results)
}

struct Runner<'a> {
    config: &'a RunConfig<'a>,
    setup: &'a Setup,
    signals: &'a Signals,
    bar: &'a ProgressBar,
    results: Results,
    /// Those that take part.
    contenders: Vec<Contender>,
}

impl Runner<'_> {
    fn fill(&self, place: &mut Place) -> anyhow::Result<()> {
        let opens = Contender::ALL.into_iter().any(|contender| self.config.opens(contender));
        if opens || self.contenders.iter().any(|contender| !contender.uses_objects()) {
            self.bar.set_message(format!("filling {}", place.address.path()));
            place.fill_image()?;
        }
        self.stop_if_asked()?;
        if self.contenders.iter().any(|contender| contender.uses_objects()) {
            self.bar.set_message("filling objects");
            place.fill_objects()?;
        }
        self.stop_if_asked()
    }

    fn start_ups(&mut self, place: &Place) -> anyhow::Result<()> {
        let mut all: BTreeMap<Contender, Vec<Usage>> = BTreeMap::new();
        for _ in 0..START_UPS {
            for contender in self.contenders.clone() {
                self.bar.set_message(format!("start of {}", contender.name()));
                match self.setup.start_up(contender, place) {
                    Ok(usage) => all.entry(contender).or_default().push(usage),
                    Err(error) => self.leave(contender, &error.context("its start")),
                }
                self.stop_if_asked()?;
            }
        }
        let middle =
            |(contender, all): (Contender, Vec<Usage>)| Some((contender, Usage::median(&all)?));
        self.results.start_ups = all.into_iter().filter_map(middle).collect();
        Ok(())
    }

    fn openings(&mut self, place: &Place) -> anyhow::Result<()> {
        let address = &place.address;
        let librbd = OpenJob::Librbd {
            id: address.id.clone(),
            conf: address.conf.clone(),
            pool: address.pool.clone(),
            image: address.image.clone(),
        };
        let embed = OpenJob::Embed { target: address.target() };
        let jobs = [(Contender::Librbd, Job::Open(librbd)), (Contender::Embed, Job::Open(embed))];
        let mut jobs: Vec<_> = jobs.iter().filter(|(who, _)| self.config.opens(*who)).collect();
        for _ in 0..OPENINGS {
            for (contender, job) in jobs.clone() {
                self.bar.set_message(format!("opening by {}", contender.name()));
                match self.open_once(job, place) {
                    Ok(usage) => {
                        self.results.openings.entry(*contender).or_default().push(usage);
                    }
                    Err(error) => {
                        let reason = format!("{:#}", error.context(OPEN));
                        self.results.missing.push((*contender, reason));
                        jobs.retain(|(other, _)| other != contender);
                    }
                }
                self.stop_if_asked()?;
            }
        }
        Ok(())
    }

    fn open_once(&self, job: &Job, place: &Place) -> anyhow::Result<Usage> {
        let mut command = job.command(&self.setup.program)?;
        command.envs(place.address.environment());
        let ended = run_counted(command, ANSWER_MAX)?;
        ensure!(ended.status.success(), "{}", ended.stderr.trim());
        serde_json::from_str(&ended.stdout).context("the usage is not as expected")
    }

    fn round(&mut self, place: &mut Place, round: u32) -> anyhow::Result<()> {
        let label = format!("{}, round {}/{}", place.kind.title(), round + 1, self.config.rounds);
        for (index, case) in self.config.cases.iter().enumerate() {
            let mut order = self.contenders.clone();
            let first = round as usize % order.len().max(1);
            order.rotate_left(first);
            for contender in order {
                if !self.config.takes(index, contender) {
                    continue;
                }
                self.bar.set_message(format!("{label}: {} {}", case.name(), contender.name()));
                let seed = u64::from(round) * 1000 + index as u64;
                let run = Run { load: case.load, seconds: self.config.seconds, seed };
                let start_up = self.results.start_ups.get(&contender).copied().unwrap_or_default();
                let ran = self.setup.run(contender, place, run, &start_up);
                place.check()?;
                match ran {
                    Ok(cell) => {
                        self.results.cells.entry((index, contender)).or_default().push(cell);
                    }
                    Err(error) => self.leave(contender, &error.context(case.name())),
                }
                self.bar.inc(1);
                self.stop_if_asked()?;
            }
        }
        Ok(())
    }

    /// Removes a contender that failed from the run and records the reason.
    fn leave(&mut self, contender: Contender, error: &anyhow::Error) {
        self.contenders.retain(|other| *other != contender);
        self.results.missing.push((contender, format!("{error:#}")));
    }

    fn stop_if_asked(&self) -> anyhow::Result<()> {
        if self.signals.arrived() {
            bail!("interrupted; nothing is reported of a run that is not complete");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cases_are_those_of_the_benchmark() {
        let names: Vec<String> = cases().iter().map(Case::name).collect();
        assert_eq!(
            names,
            [
                "4k-randread-qd1",
                "4k-randwrite-qd1",
                "4k-randread-qd32",
                "4k-randwrite-qd32",
                "128k-randread-qd16",
                "128k-randwrite-qd16"
            ]
        );
    }

    #[test]
    fn only_what_was_chosen_runs() {
        let cases = cases();
        let config = |choices| RunConfig { cases: &cases, choices, rounds: 2, seconds: 1.0 };
        assert_eq!(config(&[]).wanted().count(), Contender::ALL.len());
        assert!(config(&[]).opens(Contender::Embed) && !config(&[]).opens(Contender::Nbd));
        let choices = ["4k-*-qd1/embed", "librbd"].map(|text| text.parse().expect("a choice"));
        let chosen = config(&choices);
        let wanted: Vec<Contender> = chosen.wanted().collect();
        assert_eq!(wanted, [Contender::Librbd, Contender::Embed]);
        assert_eq!(chosen.steps(&wanted), 2 * (6 + 2));
        assert!(chosen.opens(Contender::Librbd) && !chosen.opens(Contender::Embed));
    }
}
