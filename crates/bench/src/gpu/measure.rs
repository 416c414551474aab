//! Runs the cases one after the other.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, bail};
use fieldstone_console::signals::Signals;
use fieldstone_gpu::program::{METHODS, Method};
use fieldstone_gpu::{Card, LoadError, Loaded};
use indicatif::ProgressBar;

use super::arena::Arena;
use super::case::{Case, Coding, Codings, Part};
use super::check::{ELEMENT_BYTES, check};
use super::host::{Host, Limits};
use super::rows::{Done, Numbers};
use super::{device, on_card};

/// The results of a run.
#[derive(Debug, Default)]
pub struct Results {
    /// The cases that are measured.
    pub cases: Vec<Done>,
    /// The names of what could not be measured, and the reasons.
    pub missing: Vec<(String, String)>,
}

/// The queue of jobs, which is opened for the first case that needs it.
enum Queue {
    Closed,
    Open(Box<Host>),
    Absent,
}

/// The card, its memory and the maps, which all cases of a run share.
struct Run {
    card: Arc<Card>,
    arena: Arena,
    queue: Queue,
    codings: Codings,
    /// Maps whose programs gave the right bytes, by address. `codings` keeps them.
    checked: BTreeSet<usize>,
    rounds: u32,
    results: Results,
}

/// Measures cases on a card.
///
/// # Errors
/// The run was interrupted, the card has failed, or it computes other bytes than the CPU.
pub fn measure(
    card: &Arc<Card>,
    cases: &[Case],
    rounds: u32,
    signals: &Signals,
    bar: &ProgressBar,
) -> anyhow::Result<Results> {
    let arena = Arena::take(card).context("cannot take memory of the card")?;
    let mut run = Run {
        card: Arc::clone(card),
        arena,
        queue: Queue::Closed,
        codings: Codings::default(),
        checked: BTreeSet::new(),
        rounds,
        results: Results::default(),
    };
    for case in cases {
        if signals.arrived() {
            bail!("interrupted; nothing is reported of a run that is not complete");
        }
        bar.set_message(case.name());
        run.case(case).with_context(|| case.name())?;
        bar.inc(1);
    }
    Ok(run.results)
}

/// The name of a method.
fn name(method: Method) -> &'static str {
    match method {
        Method::Planes => "planes",
        Method::Horner => "horner",
        Method::Doubles => "doubles",
    }
}

impl Run {
    fn case(&mut self, case: &Case) -> anyhow::Result<()> {
        let coding = self.codings.get(case)?;
        let sizes = coding.sizes(case.object_bytes);
        let numbers = match case.part {
            Part::Card => self.on_card(case, &coding)?,
            Part::Method => self.methods(case, &coding)?,
            Part::Host => self.in_host(case, &coding)?,
        };
        if let Some(numbers) = numbers {
            self.results.cases.push(Done { case: *case, sizes, numbers });
        }
        Ok(())
    }

    fn miss(&mut self, what: String, reason: &str) {
        self.results.missing.push((what, reason.to_owned()));
    }

    /// A program, or none and a line of the report if the map is too large for one.
    fn program(
        &mut self,
        what: String,
        found: Result<Arc<Loaded>, LoadError>,
    ) -> anyhow::Result<Option<Arc<Loaded>>> {
        match found {
            Ok(program) => Ok(Some(program)),
            Err(LoadError::Misfit(misfit)) => {
                self.miss(what, &misfit.to_string());
                Ok(None)
            }
            Err(error @ LoadError::Driver(_)) => Err(error.into()),
        }
    }

    fn check(&self, coding: &Coding, program: &Loaded) -> anyhow::Result<()> {
        for element_bytes in ELEMENT_BYTES {
            check(&self.arena, &coding.map, program, element_bytes)?;
        }
        Ok(())
    }

    /// The times of programs of a map, the first of which is the chosen one.
    fn times(
        &mut self,
        case: &Case,
        coding: &Coding,
        programs: &[Arc<Loaded>],
    ) -> anyhow::Result<Option<on_card::Times>> {
        let sizes = coding.sizes(case.object_bytes);
        let times = on_card::measure(&self.arena, &sizes, programs, self.rounds)?;
        if times.is_none() {
            self.miss(case.name(), "the card has too little memory");
        }
        Ok(times)
    }

    fn on_card(&mut self, case: &Case, coding: &Coding) -> anyhow::Result<Option<Numbers>> {
        let found = self.card.program(&coding.map);
        let Some(program) = self.program(case.name(), found)? else { return Ok(None) };
        if self.checked.insert(Arc::as_ptr(&coding.map).addr()) {
            self.check(coding, &program)?;
        }
        let registers = program.resources().registers;
        let times = self.times(case, coding, &[program])?;
        Ok(times.map(|times| Numbers::Card(times, registers)))
    }

    fn methods(&mut self, case: &Case, coding: &Coding) -> anyhow::Result<Option<Numbers>> {
        let chosen = self.card.program(&coding.map);
        let Some(chosen) = self.program(case.name(), chosen)? else { return Ok(None) };
        self.check(coding, &chosen)?;
        let mut named = vec![("chosen", chosen.resources().registers)];
        let mut programs = vec![chosen];
        for method in METHODS {
            let what = format!("{} {}", case.name(), name(method));
            let found = device::with_method(&self.card, &coding.map, method).map(Arc::new);
            let Some(program) = self.program(what.clone(), found)? else { continue };
            self.check(coding, &program).context(what)?;
            named.push((name(method), program.resources().registers));
            programs.push(program);
        }
        let times = self.times(case, coding, &programs)?;
        Ok(times.map(|times| Numbers::Methods(times, named)))
    }

    fn in_host(&mut self, case: &Case, coding: &Coding) -> anyhow::Result<Option<Numbers>> {
        if matches!(self.queue, Queue::Closed) {
            self.queue = match Host::open(&self.card, Limits::default()) {
                Ok(host) => Queue::Open(Box::new(host)),
                Err(error) => {
                    self.miss("data in the host's memory".to_owned(), &format!("{error:#}"));
                    Queue::Absent
                }
            };
        }
        if matches!(self.queue, Queue::Absent) {
            return Ok(None);
        }
        let found = self.card.program(&coding.map);
        if self.program(case.name(), found)?.is_none() {
            return Ok(None);
        }
        let Queue::Open(host) = &mut self.queue else { return Ok(None) };
        let sizes = coding.sizes(case.object_bytes);
        let times = host.measure(&self.arena, &coding.map, &sizes, self.rounds)?;
        if times.is_none() {
            self.miss(case.name(), "the host has too little memory that the card reads directly");
        }
        Ok(times.map(Numbers::Host))
    }
}
