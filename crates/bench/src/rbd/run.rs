//! Runs the cases: in each round all cases, and in each case all contenders in turn.
//!
//! - The image is written once, before the first measurement, and then only overwritten.
//! - The start of each contender and the opening of an image are measured five times, in turn,
//!   before the rounds. Medians count.
//! - `interleaving` has the order of the contenders.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use fieldstone_console::signals::Signals;
use indicatif::ProgressBar;

use super::contender::{ANSWER_MAX, Cell, Contender, Setup};
use super::open::OpenTask;
use super::place::{LibrbdCache, Place};
use crate::case::Case;
use crate::choice::chosen;
use crate::fio::{Pattern, Run};
use crate::generator::GeneratorTask;
use crate::interleaving::{self, Entrant, Interleaving, Schedule};
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
    /// What may run.
    pub schedule: Schedule<'a, Contender>,
    /// Length of a cell, in seconds.
    pub seconds: f64,
}

impl RunConfig<'_> {
    fn opens(&self, contender: Contender) -> bool {
        matches!(contender, Contender::Librbd | Contender::Embed)
            && chosen(self.schedule.choices, OPEN, contender.name())
    }
}

/// The results at one place.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The cells, and who is missing.
    pub interleaving: interleaving::Results<Contender, Cell>,
    /// What opening and closing an image costs.
    pub openings: BTreeMap<Contender, Vec<Usage>>,
    /// What the process of each contender costs without a load.
    pub start_ups: BTreeMap<Contender, Usage>,
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
    let interleaving = Interleaving::new(&config.schedule, signals, bar);
    let mut runner = Runner { config, setup, interleaving, results: Results::default() };
    for contender in config.schedule.wanted() {
        match setup.check(contender) {
            Ok(()) => runner.interleaving.present.push(contender),
            Err(error) => runner.interleaving.results.miss(contender, &error),
        }
    }
    runner.fill(place)?;
    runner.start_ups(place)?;
    runner.openings(place)?;
    runner.interleaving.expect(config.schedule.cells(&runner.interleaving.present));
    for round in 0..config.schedule.rounds {
        runner.round(place, round)?;
    }
    for contender in &runner.interleaving.present {
        let shown = setup.shown(*contender, place);
        runner.results.commands.extend(shown.map(|line| (*contender, line)));
    }
    Ok(Results { interleaving: runner.interleaving.results, ..runner.results })
}

struct Runner<'a> {
    config: &'a RunConfig<'a>,
    setup: &'a Setup,
    interleaving: Interleaving<'a, Contender, Cell>,
    results: Results,
}

impl Runner<'_> {
    fn fill(&self, place: &mut Place) -> anyhow::Result<()> {
        let opens = Contender::ALL.into_iter().any(|contender| self.config.opens(contender));
        if opens || self.interleaving.present.iter().any(|contender| !contender.uses_objects()) {
            self.interleaving.say(format!("filling {}", place.address.path()));
            place.fill_image()?;
        }
        self.interleaving.stop_if_asked()?;
        if self.interleaving.present.iter().any(|contender| contender.uses_objects()) {
            self.interleaving.say("filling objects".to_owned());
            place.fill_objects()?;
        }
        self.interleaving.stop_if_asked()
    }

    fn start_ups(&mut self, place: &Place) -> anyhow::Result<()> {
        let mut all: BTreeMap<Contender, Vec<Usage>> = BTreeMap::new();
        for _ in 0..START_UPS {
            for contender in self.interleaving.present.clone() {
                self.interleaving.say(format!("start of {}", contender.name()));
                match self.setup.start_up(contender, place) {
                    Ok(usage) => all.entry(contender).or_default().push(usage),
                    Err(error) => self.interleaving.leave(contender, &error.context("its start")),
                }
                self.interleaving.stop_if_asked()?;
            }
        }
        let middle =
            |(contender, all): (Contender, Vec<Usage>)| Some((contender, Usage::median(&all)?));
        self.results.start_ups = all.into_iter().filter_map(middle).collect();
        Ok(())
    }

    fn openings(&mut self, place: &Place) -> anyhow::Result<()> {
        let address = &place.address;
        let librbd = OpenTask::Librbd {
            id: address.id.clone(),
            conf: address.conf.clone(),
            pool: address.pool.clone(),
            image: address.image.clone(),
        };
        let embed = OpenTask::Embed { target: address.target() };
        let tasks = [
            (Contender::Librbd, GeneratorTask::Open(librbd)),
            (Contender::Embed, GeneratorTask::Open(embed)),
        ];
        let mut tasks: Vec<_> = tasks.iter().filter(|(who, _)| self.config.opens(*who)).collect();
        for _ in 0..OPENINGS {
            for (contender, task) in tasks.clone() {
                self.interleaving.say(format!("opening by {}", contender.name()));
                match self.open_once(task, place) {
                    Ok(usage) => {
                        self.results.openings.entry(*contender).or_default().push(usage);
                    }
                    Err(error) => {
                        self.interleaving.results.miss(*contender, &error.context(OPEN));
                        tasks.retain(|(other, _)| other != contender);
                    }
                }
                self.interleaving.stop_if_asked()?;
            }
        }
        Ok(())
    }

    fn open_once(&self, task: &GeneratorTask, place: &Place) -> anyhow::Result<Usage> {
        let mut command = task.command(&self.setup.program)?;
        command.envs(place.address.environment(LibrbdCache::Off));
        let ended = run_counted(command, ANSWER_MAX)?;
        ensure!(ended.status.success(), "{}", ended.stderr.trim());
        serde_json::from_str(&ended.stdout).context("the usage is not as expected")
    }

    fn round(&mut self, place: &mut Place, round: u32) -> anyhow::Result<()> {
        let Self { config, setup, interleaving, results } = self;
        let title = format!("{}, {}", place.kind.title(), interleaving.title(round));
        interleaving.round(round, &title, |step| {
            let (load, seconds) = (config.cases[step.case].load, config.seconds);
            let run = Run { load, seconds, seed: step.seed, jobs: 1 };
            let start_up = results.start_ups.get(&step.contender).copied().unwrap_or_default();
            let ran = setup.run(step.contender, place, run, &start_up);
            place.check()?;
            Ok(ran)
        })
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
    fn images_are_opened_by_two_contenders_that_are_chosen() {
        let cases = cases();
        let config = |choices| RunConfig {
            cases: &cases,
            schedule: Schedule {
                cases: cases.iter().map(Case::name).collect(),
                choices,
                contenders: &Contender::ALL,
                rounds: 2,
            },
            seconds: 1.0,
        };
        assert!(config(&[]).opens(Contender::Embed) && !config(&[]).opens(Contender::Nbd));
        let choices = ["4k-*-qd1/embed", "librbd"].map(|text| text.parse().expect("a choice"));
        let chosen = config(&choices);
        assert_eq!(chosen.schedule.wanted(), [Contender::Librbd, Contender::Embed]);
        assert!(chosen.opens(Contender::Librbd) && !chosen.opens(Contender::Embed));
    }
}
