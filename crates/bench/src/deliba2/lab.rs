//! What all measurements of a run share: the settings, and the cluster if there is one.

use std::path::PathBuf;

use fieldstone_console::signals::Signals;
use indicatif::ProgressBar;

use super::case::Mode;
use super::contender::{NODES, Setup, Who, check_ceph};
use crate::choice::Choice;
use crate::interleaving::{Interleaving, Schedule};
use crate::pools::BenchPool;
use crate::process;
use crate::rbd;
use crate::rbd::contender::divide;
use crate::rbd::place::{self, Layout, Place, Wanted};

/// The code of replication: the paper has a primary, a secondary and a tertiary node.
const REPLICATION: &str = "copies:3";

/// The cluster of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// None was named.
    None,
    /// One that the user has.
    Named {
        /// ceph.conf.
        conf: PathBuf,
        /// The client's name without its type.
        id: String,
        /// The pool with copies.
        pool: String,
        /// The erasure-coded pool, for the data of images in `pool`.
        data_pool: Option<String>,
        /// A folder with the numbers of the OSDs' processes.
        osd_pid_dir: Option<PathBuf>,
    },
    /// The one without storage that this program brings along.
    Null,
}

impl Cluster {
    /// The cluster that the options name.
    ///
    /// # Errors
    /// There is no such configuration file.
    pub fn of(options: &rbd::Options, data_pool: Option<&str>) -> anyhow::Result<Self> {
        if options.null {
            return Ok(Self::Null);
        }
        if options.conf.is_none() && std::env::var_os("CEPH_CONF").is_none() {
            return Ok(Self::None);
        }
        Ok(Self::Named {
            conf: place::conf(options.conf.as_deref())?,
            id: options.id.clone(),
            pool: options.pool.clone(),
            data_pool: data_pool.map(str::to_owned),
            osd_pid_dir: options.osd_pid_dir.clone(),
        })
    }

    /// Why there is no image with this protection. `None` if there can be one.
    pub fn lacks(&self, mode: Mode) -> Option<&'static str> {
        match (self, mode) {
            (Self::None, _) => Some("no cluster was named; name one with --conf or CEPH_CONF"),
            (Self::Null, Mode::Ec) => Some("the null cluster has no erasure-coded pool"),
            (Self::Named { data_pool: None, .. }, Mode::Ec) => {
                Some("no erasure-coded pool was named; name one with --data-pool")
            }
            _ => None,
        }
    }

    /// The cluster, for readers.
    pub fn about(&self) -> String {
        match self {
            Self::None => "cluster: none".to_owned(),
            Self::Null => {
                "cluster: the null cluster of this program, which stores nothing and answers at \
                 once: no number of it compares with the paper's"
                    .to_owned()
            }
            Self::Named { conf, pool, data_pool, .. } => format!(
                "cluster: {}, pool {pool}, erasure-coded pool {}",
                conf.display(),
                data_pool.as_deref().unwrap_or("none")
            ),
        }
    }
}

/// The settings of a run.
pub struct Lab<'a> {
    /// The settings of all contenders.
    pub setup: Setup,
    /// The choices among cases and contenders.
    pub choices: &'a [Choice],
    /// Rounds.
    pub rounds: u32,
    /// Length of a cell, in seconds.
    pub seconds: f64,
    /// Accesses in flight, where the paper prints no depth.
    pub depth: u32,
    /// The erasure code of our pools.
    pub code: String,
    /// The cluster.
    pub cluster: Cluster,
    /// Interrupts.
    pub signals: &'a Signals,
    /// The progress.
    pub bar: &'a ProgressBar,
}

impl Lab<'_> {
    /// The pool of our own nodes for a mode.
    ///
    /// # Errors
    /// The code of the user is none, or is too wide.
    pub fn pool(&self, mode: Mode) -> anyhow::Result<BenchPool> {
        let code = match mode {
            Mode::Replication => REPLICATION,
            Mode::Ec => &self.code,
        };
        BenchPool::new(code, NODES)
    }

    /// Who may take part in a mode, of some contenders.
    pub fn contenders(&self, mode: Mode, of: &[Who]) -> Vec<Who> {
        let can = |who: &Who| !who.needs_cluster() || self.cluster.lacks(mode).is_none();
        of.iter().copied().filter(can).collect()
    }

    /// What may run.
    pub fn schedule<'b>(&'b self, cases: Vec<String>, contenders: &'b [Who]) -> Schedule<'b, Who> {
        Schedule { cases, choices: self.choices, contenders, rounds: self.rounds }
    }

    /// Lets those take part that use the cluster, and gives a filled image. `None` if nobody wants
    /// one.
    ///
    /// # Errors
    /// The cluster cannot be reached, or the image cannot be made or filled.
    pub fn enter_cluster<T>(
        &self,
        interleaving: &mut Interleaving<'_, Who, T>,
        mode: Mode,
        is_shared: bool,
    ) -> anyhow::Result<Option<Place>> {
        let wanted = interleaving.schedule.wanted().into_iter().filter(|who| who.needs_cluster());
        for who in wanted.collect::<Vec<_>>() {
            match check_ceph(who, &self.setup) {
                Ok(()) => interleaving.present.push(who),
                Err(error) => interleaving.leave(who, &error),
            }
        }
        if !interleaving.present.iter().any(|who| who.needs_cluster()) {
            return Ok(None);
        }
        interleaving.say("making an image".to_owned());
        let place = self.place(mode, is_shared)?;
        interleaving.say(format!("filling {}", place.address.path()));
        place.fill_image()?;
        interleaving.stop_if_asked()?;
        Ok(Some(place))
    }

    fn place(&self, mode: Mode, is_shared: bool) -> anyhow::Result<Place> {
        let Cluster::Named { conf, id, pool, data_pool, osd_pid_dir } = &self.cluster else {
            let (_, rest) = divide(&process::own_cpus(), usize::from(self.setup.cores));
            let Setup { program, files, size_bytes, .. } = &self.setup;
            let mut place = Place::null(*size_bytes, program, files, &rest)?;
            if is_shared {
                place.change_image(Layout::Shared)?;
            }
            return Ok(place);
        };
        let layout = match (mode, data_pool.as_deref(), is_shared) {
            (_, _, true) => Layout::Shared,
            (Mode::Ec, Some(pool), _) => Layout::DataPool(pool),
            _ => Layout::Plain,
        };
        let wanted = Wanted {
            conf: conf.clone(),
            id,
            pool,
            image: None,
            overwrite: false,
            size_bytes: self.setup.size_bytes,
            layout,
            osd_pid_dir: osd_pid_dir.as_deref(),
        };
        Place::cluster(&wanted, &self.setup.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cluster_lacks_is_named() {
        let named = |data_pool: Option<&str>| Cluster::Named {
            conf: PathBuf::from("/etc/ceph/ceph.conf"),
            id: "admin".to_owned(),
            pool: "rep".to_owned(),
            data_pool: data_pool.map(str::to_owned),
            osd_pid_dir: None,
        };
        let lacks = |cluster: &Cluster| Mode::ALL.map(|mode| cluster.lacks(mode).is_some());
        assert_eq!(lacks(&Cluster::None), [true, true]);
        assert_eq!(lacks(&Cluster::Null), [false, true]);
        assert_eq!(lacks(&named(None)), [false, true]);
        assert_eq!(lacks(&named(Some("ec"))), [false, false]);
        assert!(named(None).lacks(Mode::Ec).is_some_and(|why| why.contains("--data-pool")));
        assert!(named(Some("ec")).about().contains("erasure-coded pool ec"));
    }
}
