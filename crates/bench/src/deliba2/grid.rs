//! Measures a grid: all block sizes and patterns in one mode.
//!
//! Each round begins with filling the volumes of our own nodes in order. An image of a cluster is
//! written once, before the first round, and then only overwritten. All servers of our own nodes
//! run all the time; each cell on a cluster opens the image anew.

use std::collections::BTreeMap;

use anyhow::Context;

use super::case::{Mode, cases, name};
use super::contender::{Own, Who, run_ceph};
use super::lab::Lab;
use crate::case::Case;
use crate::fio::{Measured, Run};
use crate::interleaving::{Entrant, Interleaving, Results};
use crate::subject::Subject;

/// The results of one mode.
#[derive(Clone, Debug)]
pub struct Part {
    /// How the data is protected.
    pub mode: Mode,
    /// The cases.
    pub cases: Vec<Case>,
    /// The cells, and who is missing.
    pub results: Results<Who, Measured>,
    /// The commands that made and started each contender of our own nodes.
    pub commands: BTreeMap<Who, Vec<String>>,
}

/// A volume of our own nodes that is open. The server ends before the files are removed.
type Running = (Subject, Own);

/// Measures the sizes in a mode, of those of the contenders that can take part.
///
/// # Errors
/// The cluster cannot be reached, or the user has interrupted the run.
pub fn measure(
    lab: &Lab<'_>,
    mode: Mode,
    sizes: &[u64],
    contenders: &[Who],
) -> anyhow::Result<Part> {
    let cases = cases(sizes, lab.depth);
    let names = cases.iter().map(|case| name(mode, case)).collect();
    let contenders = lab.contenders(mode, contenders);
    let schedule = lab.schedule(names, &contenders);
    let mut interleaving = Interleaving::new(&schedule, lab.signals, lab.bar);
    let mut commands = BTreeMap::new();
    let mut running = start(lab, mode, &mut interleaving, &mut commands)?;
    let place = lab.enter_cluster(&mut interleaving, mode, false)?;
    let fills = running.len() as u64 * u64::from(lab.rounds);
    interleaving.expect(schedule.cells(&interleaving.present) + fills);
    let (files, size_bytes) = (&lab.setup.files, lab.setup.size_bytes);
    for round in 0..lab.rounds {
        let title = format!("{}, {}", mode.title(), interleaving.title(round));
        for who in interleaving.order(round).into_iter().filter(|who| !who.needs_cluster()) {
            interleaving.say(format!("{title}: filling {}", who.name()));
            let open = running.get(&who).context("it has left");
            if let Err(error) = open.and_then(|(subject, _)| subject.fill(files, size_bytes)) {
                interleaving.leave(who, &error.context("filling its device"));
                running.remove(&who);
            }
            interleaving.step()?;
        }
        interleaving.round(round, &title, |step| {
            let (load, seconds) = (cases[step.case].load, lab.seconds);
            let run = Run { load, seconds, seed: step.seed, jobs: 1 };
            if step.contender.needs_cluster() {
                let place = place.as_ref().context("there is no image")?;
                return Ok(run_ceph(step.contender, &lab.setup, lab.setup.cores, place, run));
            }
            let open = running.get_mut(&step.contender).context("it has left");
            let cell = open.and_then(|(subject, _)| subject.cell(files, size_bytes, run));
            if cell.is_err() {
                running.remove(&step.contender);
            }
            Ok(cell.map(|cell| cell.fio))
        })?;
    }
    Ok(Part { mode, cases, results: interleaving.results, commands })
}

/// Opens the volumes of our own nodes.
fn start(
    lab: &Lab<'_>,
    mode: Mode,
    interleaving: &mut Interleaving<'_, Who, Measured>,
    commands: &mut BTreeMap<Who, Vec<String>>,
) -> anyhow::Result<BTreeMap<Who, Running>> {
    let pool = lab.pool(mode)?;
    let mut running = BTreeMap::new();
    let wanted = interleaving.schedule.wanted();
    for who in wanted.into_iter().filter(|who| !who.needs_cluster()) {
        interleaving.say(format!("starting {} ({})", who.name(), pool.code));
        let own = Own::make(&pool, &format!("{}-{}", mode.name(), who.name()), &lab.setup);
        let opened = own.and_then(|own| match who {
            Who::OwnNbd => Ok((own.served()?, own)),
            _ => Ok((own.embedded(), own)),
        });
        match opened {
            Ok(open) => {
                commands.insert(who, open.0.commands.clone());
                running.insert(who, open);
                interleaving.present.push(who);
            }
            Err(error) => interleaving.leave(who, &error),
        }
        interleaving.stop_if_asked()?;
    }
    Ok(running)
}
