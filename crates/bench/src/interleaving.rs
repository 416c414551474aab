//! Contenders take turns: in each round all cases, and in each case all contenders.
//!
//! Each round begins with another contender. A contender that fails leaves the run, with the
//! reason, and the others go on. The seed of a cell depends on its round and its case alone, so all
//! contenders of a round with the same kind of client access the same addresses.

use std::collections::BTreeMap;

use anyhow::bail;
use fieldstone_console::signals::Signals;
use indicatif::ProgressBar;

use crate::choice::{Choice, chosen};
use crate::stats::range;

/// One who takes part in a run.
pub trait Entrant: Copy + Ord + 'static {
    /// The name in options, rows and reports; unique within a benchmark.
    fn name(self) -> &'static str;

    /// True for what this project makes.
    fn is_ours(self) -> bool;
}

/// What may run.
pub struct Schedule<'a, C> {
    /// The names of the cases.
    pub cases: Vec<String>,
    /// The choices among cases and contenders.
    pub choices: &'a [Choice],
    /// The contenders that may take part.
    pub contenders: &'a [C],
    /// Rounds.
    pub rounds: u32,
}

impl<C: Entrant> Schedule<'_, C> {
    /// True if this contender runs this case.
    pub fn takes(&self, case: usize, contender: C) -> bool {
        self.cases.get(case).is_some_and(|case| chosen(self.choices, case, contender.name()))
    }

    /// The contenders that have a case to run.
    pub fn wanted(&self) -> Vec<C> {
        let busy = |contender: &C| self.cases_of(*contender) > 0;
        self.contenders.iter().copied().filter(busy).collect()
    }

    /// How many cases a contender runs.
    pub fn cases_of(&self, contender: C) -> u64 {
        (0..self.cases.len()).filter(|case| self.takes(*case, contender)).count() as u64
    }

    /// The cells of a whole run of these contenders.
    pub fn cells(&self, contenders: &[C]) -> u64 {
        let in_round: u64 = contenders.iter().map(|contender| self.cases_of(*contender)).sum();
        in_round * u64::from(self.rounds)
    }
}

/// The results of a run. `T` is the result of one cell.
#[derive(Clone, Debug)]
pub struct Results<C, T> {
    /// The cells of each case and contender, one per round.
    pub cells: BTreeMap<(usize, C), Vec<T>>,
    /// The contenders that did not take part to the end, and the reasons.
    pub missing: Vec<(C, String)>,
}

impl<C, T> Default for Results<C, T> {
    fn default() -> Self {
        Self { cells: BTreeMap::new(), missing: Vec::new() }
    }
}

impl<C: Entrant, T> Results<C, T> {
    /// The rounds of one case and contender.
    pub fn rounds(&self, case: usize, contender: C) -> Option<&[T]> {
        self.cells.get(&(case, contender)).map(Vec::as_slice)
    }

    /// Records that a contender did not take part to the end.
    pub fn miss(&mut self, contender: C, error: &anyhow::Error) {
        self.missing.push((contender, format!("{error:#}")));
    }

    /// The smallest and the largest ratio within a round: a measure of the noise.
    pub fn ratio_range(
        &self,
        case: usize,
        (ours, theirs): (C, C),
        ratio: impl Fn(&T, &T) -> Option<f64>,
    ) -> Option<(f64, f64)> {
        let pairs = self.rounds(case, ours)?.iter().zip(self.rounds(case, theirs)?);
        range(&pairs.filter_map(|(ours, theirs)| ratio(ours, theirs)).collect::<Vec<f64>>())
    }

    /// A line for each contender that is missing.
    pub fn missing_text(&self) -> String {
        let lines = self.missing.iter();
        lines.map(|(who, reason)| format!("not measured: {}: {reason}\n", who.name())).collect()
    }
}

/// One cell of a run: a contender measures a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<C> {
    /// The index of the case.
    pub case: usize,
    /// Who measures.
    pub contender: C,
    /// The seed of the addresses.
    pub seed: u64,
}

/// A run: who takes part, and what was found so far.
pub struct Interleaving<'a, C, T> {
    /// What may run.
    pub schedule: &'a Schedule<'a, C>,
    /// What was found.
    pub results: Results<C, T>,
    /// Those that take part.
    pub present: Vec<C>,
    signals: &'a Signals,
    bar: &'a ProgressBar,
}

impl<'a, C: Entrant, T> Interleaving<'a, C, T> {
    /// A run in which nobody takes part yet.
    pub fn new(schedule: &'a Schedule<'a, C>, signals: &'a Signals, bar: &'a ProgressBar) -> Self {
        Self { schedule, results: Results::default(), present: Vec::new(), signals, bar }
    }

    /// Says on the bar what is done now.
    pub fn say(&self, message: String) {
        self.bar.set_message(message);
    }

    /// Makes the bar longer.
    pub fn expect(&self, steps: u64) {
        self.bar.set_length(self.bar.length().unwrap_or(0) + steps);
    }

    /// Removes a contender that failed from the run and records the reason.
    pub fn leave(&mut self, contender: C, error: &anyhow::Error) {
        self.present.retain(|other| *other != contender);
        self.results.miss(contender, error);
    }

    /// A step of the bar is done.
    ///
    /// # Errors
    /// The user has interrupted the run.
    pub fn step(&self) -> anyhow::Result<()> {
        self.bar.inc(1);
        self.stop_if_asked()
    }

    /// Stops an interrupted run.
    ///
    /// # Errors
    /// The user has interrupted the run.
    pub fn stop_if_asked(&self) -> anyhow::Result<()> {
        if self.signals.arrived() {
            bail!("interrupted; nothing is reported of a run that is not complete");
        }
        Ok(())
    }

    /// Those that take part, in the order of a round.
    pub fn order(&self, round: u32) -> Vec<C> {
        let mut order = self.present.clone();
        let first = round as usize % order.len().max(1);
        order.rotate_left(first);
        order
    }

    /// Runs all cells of a round. `cell` runs one: its error ends the run, and the error within
    /// ends the contender's part.
    ///
    /// # Errors
    /// That of `cell`, or the user has interrupted the run.
    pub fn round(
        &mut self,
        round: u32,
        title: &str,
        mut cell: impl FnMut(Step<C>) -> anyhow::Result<anyhow::Result<T>>,
    ) -> anyhow::Result<()> {
        for case in 0..self.schedule.cases.len() {
            for contender in self.order(round) {
                if !self.schedule.takes(case, contender) {
                    continue;
                }
                let name = &self.schedule.cases[case];
                self.say(format!("{title}: {name} {}", contender.name()));
                let seed = u64::from(round) * 1000 + case as u64;
                match cell(Step { case, contender, seed })? {
                    Ok(cell) => self.results.cells.entry((case, contender)).or_default().push(cell),
                    Err(error) => {
                        let error = error.context(name.clone());
                        self.leave(contender, &error);
                    }
                }
                self.step()?;
            }
        }
        Ok(())
    }

    /// The title of a round on the bar.
    pub fn title(&self, round: u32) -> String {
        format!("round {}/{}", round + 1, self.schedule.rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Who {
        Ours,
        Theirs,
    }

    impl Entrant for Who {
        fn name(self) -> &'static str {
            if self == Self::Ours { "ours" } else { "theirs" }
        }

        fn is_ours(self) -> bool {
            self == Self::Ours
        }
    }

    const BOTH: [Who; 2] = [Who::Ours, Who::Theirs];

    fn schedule(choices: &[Choice]) -> Schedule<'_, Who> {
        let cases = ["a", "b", "c"].map(str::to_owned).to_vec();
        Schedule { cases, choices, contenders: &BOTH, rounds: 2 }
    }

    #[test]
    fn only_what_was_chosen_runs() {
        assert_eq!(schedule(&[]).wanted(), BOTH);
        assert_eq!(schedule(&[]).cells(&BOTH), 2 * 6);
        let choices = ["a/ours", "c/ours"].map(|text| text.parse().expect("a choice"));
        let chosen = schedule(&choices);
        assert_eq!(chosen.wanted(), [Who::Ours]);
        assert_eq!((chosen.cells(&BOTH), chosen.cases_of(Who::Ours)), (4, 2));
        assert!(chosen.takes(2, Who::Ours) && !chosen.takes(1, Who::Ours));
        assert!(!chosen.takes(3, Who::Ours), "there is no such case");
    }

    #[test]
    fn contenders_take_turns_and_one_that_fails_leaves() {
        let schedule = schedule(&[]);
        let signals = Signals::install().expect("signals");
        let bar = ProgressBar::hidden();
        let mut interleaving: Interleaving<'_, Who, u32> =
            Interleaving::new(&schedule, &signals, &bar);
        interleaving.present = BOTH.to_vec();
        let mut seen = Vec::new();
        interleaving
            .round(1, "second", |step| {
                seen.push((step.case, step.contender, step.seed));
                if step.case == 1 && step.contender == Who::Theirs {
                    return Ok(Err(anyhow::anyhow!("it burns")));
                }
                Ok(Ok(7))
            })
            .expect("nobody interrupts");
        use Who::{Ours, Theirs};
        let cells = [(0, Theirs), (0, Ours), (1, Theirs), (1, Ours), (2, Ours)];
        assert_eq!(seen, cells.map(|(case, who)| (case, who, 1000 + case as u64)));
        assert_eq!(interleaving.results.missing_text(), "not measured: theirs: b: it burns\n");
        assert_eq!(interleaving.results.rounds(1, Theirs), None);
        assert_eq!(interleaving.results.rounds(2, Ours), Some([7].as_slice()));
        let broken =
            interleaving.round(0, "first", |_| Err(anyhow::anyhow!("the cluster is gone")));
        assert!(broken.is_err(), "such an error ends the run");
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut results: Results<Who, f64> = Results::default();
        results.cells.insert((0, Who::Ours), vec![100.0, 300.0]);
        results.cells.insert((0, Who::Theirs), vec![100.0, 200.0]);
        let ratio = |ours: &f64, theirs: &f64| crate::stats::quotient(*ours, *theirs);
        assert_eq!(results.ratio_range(0, (Who::Ours, Who::Theirs), ratio), Some((1.0, 1.5)));
        assert_eq!(results.ratio_range(1, (Who::Ours, Who::Theirs), ratio), None);
    }
}
