//! Speeds over cores, as the paper's Fig. 7: fio makes its load on 1 to N cores at once.
//!
//! On n cores, n jobs of fio read or write in order, each in its own part of the device, with 64
//! accesses of 4 KiB in flight on each. Our servers have n cores, and n connections of NBD. librbd
//! is opened by each job. An image of a cluster has no exclusive lock then, because it would go
//! from job to job.

use anyhow::Context;

use super::case::{Mode, name};
use super::contender::{Own, Who, run_ceph};
use super::lab::Lab;
use crate::case::Case;
use crate::fio::{Measured, Pattern, Run};
use crate::interleaving::{Interleaving, Results};

/// Accesses in flight on each core, as printed in section 3.3.4.
const DEPTH: u32 = 64;

/// The contenders that can use several cores: a device in the client's process has one.
pub const CONTENDERS: [Who; 4] = [Who::OwnNbd, Who::CephNbd, Who::LibrbdCache, Who::Librbd];

/// The patterns of the figure.
pub const PATTERNS: [Pattern; 2] = [Pattern::SequentialRead, Pattern::SequentialWrite];

/// A load on some cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreCase {
    /// The load of each core.
    pub case: Case,
    /// Cores, and jobs of fio.
    pub cores: u16,
}

impl CoreCase {
    /// The name, for example `rep-4k-read-qd64-cores2`.
    pub fn name(&self) -> String {
        format!("{}-cores{}", name(Mode::Replication, &self.case), self.cores)
    }
}

/// The cores that are measured, up to `most`: all up to 4, then powers of two, and the last.
pub fn steps(most: u16) -> Vec<u16> {
    let taken = |cores: &u16| *cores <= 4 || cores.is_power_of_two() || *cores == most;
    (1..=most.max(1)).filter(taken).collect()
}

/// The cases, in the order of a round.
pub fn cases(most: u16) -> Vec<CoreCase> {
    let of = |pattern| {
        let case = Case::new(pattern, 4 << 10, DEPTH);
        steps(most).into_iter().map(move |cores| CoreCase { case, cores })
    };
    PATTERNS.into_iter().flat_map(of).collect()
}

/// The results.
#[derive(Clone, Debug)]
pub struct Scaling {
    /// The cases.
    pub cases: Vec<CoreCase>,
    /// The cells, and who is missing.
    pub results: Results<Who, Measured>,
}

/// Measures up to `most` cores, with replication.
///
/// # Errors
/// The cluster cannot be reached, or the user has interrupted the run.
pub fn measure(lab: &Lab<'_>, most: u16) -> anyhow::Result<Scaling> {
    let mode = Mode::Replication;
    let cases = cases(most);
    let names = cases.iter().map(CoreCase::name).collect();
    let contenders = lab.contenders(mode, &CONTENDERS);
    let schedule = lab.schedule(names, &contenders);
    let mut interleaving = Interleaving::new(&schedule, lab.signals, lab.bar);
    let own = match schedule.wanted().contains(&Who::OwnNbd) {
        true => make(lab, &mut interleaving)?,
        false => None,
    };
    let place = lab.enter_cluster(&mut interleaving, mode, true)?;
    interleaving.expect(schedule.cells(&interleaving.present));
    for round in 0..lab.rounds {
        let title = format!("cores, {}", interleaving.title(round));
        interleaving.round(round, &title, |step| {
            let CoreCase { case, cores } = cases[step.case];
            let (seconds, seed) = (lab.seconds, step.seed);
            let run = Run { load: case.load, seconds, seed, jobs: u32::from(cores) };
            if step.contender == Who::OwnNbd {
                return Ok(own.as_ref().context("it has left").and_then(|own| {
                    let mut subject = own.served_by(cores, &[])?;
                    let cell = subject.cell(&lab.setup.files, lab.setup.size_bytes, run)?;
                    subject.server.as_mut().map_or(Ok(()), |server| server.end())?;
                    Ok(cell.fio)
                }));
            }
            let place = place.as_ref().context("there is no image")?;
            Ok(run_ceph(step.contender, &lab.setup, cores, place, run))
        })?;
    }
    Ok(Scaling { cases, results: interleaving.results })
}

/// Makes our volume and fills it.
fn make(
    lab: &Lab<'_>,
    interleaving: &mut Interleaving<'_, Who, Measured>,
) -> anyhow::Result<Option<Own>> {
    let pool = lab.pool(Mode::Replication)?;
    interleaving.say("filling a volume".to_owned());
    let made = Own::make(&pool, "cores", &lab.setup).and_then(|own| {
        let mut subject = own.served()?;
        subject.fill(&lab.setup.files, lab.setup.size_bytes)?;
        // The next server of the volume is another process.
        subject.server.as_mut().map_or(Ok(()), |server| server.end())?;
        Ok(own)
    });
    match made {
        Ok(own) => {
            interleaving.present.push(Who::OwnNbd);
            Ok(Some(own))
        }
        Err(error) => {
            interleaving.leave(Who::OwnNbd, &error);
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_go_up_to_the_last() {
        assert_eq!(steps(0), [1]);
        assert_eq!(steps(2), [1, 2]);
        assert_eq!(steps(6), [1, 2, 3, 4, 6]);
        assert_eq!(steps(32), [1, 2, 3, 4, 8, 16, 32]);
        let names: Vec<String> = cases(2).iter().map(CoreCase::name).collect();
        assert_eq!(
            names,
            [
                "rep-4k-read-qd64-cores1",
                "rep-4k-read-qd64-cores2",
                "rep-4k-write-qd64-cores1",
                "rep-4k-write-qd64-cores2"
            ]
        );
    }
}
