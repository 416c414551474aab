//! The options by which commands find a Ceph cluster, with the names that Ceph's own commands use,
//! and the session with it.

use anyhow::{anyhow, bail};
use fieldstone_host::ceph::{CephSettings, Session};
use fieldstone_rados::cluster::{Cluster, PoolInfo};

/// How to reach a Ceph cluster. What is not given is taken from CEPH_ARGS, and from the
/// configuration file.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct CephArgs {
    /// The client's name without its type: `admin` for client.admin.
    #[arg(long, value_name = "ID", help_heading = "Ceph cluster", global = true)]
    id: Option<String>,
    /// The configuration file. [default: CEPH_CONF, or /etc/ceph/ceph.conf]
    #[arg(long, short, value_name = "FILE", help_heading = "Ceph cluster", global = true)]
    conf: Option<String>,
    /// The file with the client's key.
    #[arg(long, short, value_name = "FILE", help_heading = "Ceph cluster", global = true)]
    keyring: Option<String>,
    /// The addresses of the monitors.
    #[arg(long, short, value_name = "ADDRESSES", help_heading = "Ceph cluster", global = true)]
    mon_host: Option<String>,
    /// An option of ceph.conf; may be repeated.
    #[arg(
        long,
        short = 'o',
        value_name = "NAME=VALUE",
        help_heading = "Ceph cluster",
        global = true
    )]
    option: Vec<String>,
}

impl CephArgs {
    /// The same as words of a command line of Ceph.
    fn words(&self) -> anyhow::Result<Vec<String>> {
        let mut words = Vec::new();
        let named = [
            ("--id", &self.id),
            ("--conf", &self.conf),
            ("--keyring", &self.keyring),
            ("--mon-host", &self.mon_host),
        ];
        for (name, value) in named {
            if let Some(value) = value {
                words.extend([name.to_owned(), value.clone()]);
            }
        }
        for option in &self.option {
            if !option.contains('=') {
                bail!("--option {option}: write NAME=VALUE");
            }
            words.push(format!("--{option}"));
        }
        Ok(words)
    }

    /// The settings of the client.
    ///
    /// # Errors
    /// A file cannot be read, or a setting is missing or wrong.
    pub fn settings(&self) -> anyhow::Result<CephSettings> {
        CephSettings::read(&self.words()?).map_err(|error| anyhow!("{error}"))
    }

    /// Connects to the cluster.
    ///
    /// # Errors
    /// The settings are wrong, no monitor answers, or the monitors refuse the client.
    pub fn connect(&self) -> anyhow::Result<Session> {
        Session::connect(&self.settings()?).map_err(|error| anyhow!("{error}"))
    }

    /// Connects, runs one procedure, and ends the session.
    ///
    /// # Errors
    /// As [`CephArgs::connect`], and those of the procedure.
    pub fn with_cluster<T: 'static, F>(
        &self,
        procedure: impl FnOnce(Cluster) -> F,
    ) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<T>> + 'static,
    {
        let mut session = self.connect()?;
        let work = procedure(session.cluster());
        let result = run(&mut session, work);
        session.close();
        result
    }
}

/// Runs a procedure. If the cluster keeps it waiting, says for what.
///
/// # Errors
/// Those of the procedure, or the client has failed.
pub fn run<T: 'static>(
    session: &mut Session,
    work: impl Future<Output = anyhow::Result<T>> + 'static,
) -> anyhow::Result<T> {
    let mut last = String::new();
    let result = session.run(work, |waits_for| {
        if !waits_for.is_empty() && waits_for != last {
            eprint_line!("fieldstone: {waits_for}");
            waits_for.clone_into(&mut last);
        }
    });
    result.map_err(|error| anyhow!("{error}"))?
}

/// The pool with this name.
///
/// # Errors
/// There is none; the text names those that exist.
pub async fn pool_named(cluster: &Cluster, name: &str) -> anyhow::Result<PoolInfo> {
    let pools = cluster.pools().await?;
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    match pools.iter().find(|pool| pool.name == name) {
        Some(pool) => Ok(pool.clone()),
        None => bail!("there is no pool {name:?}; the cluster has: {}", names.join(", ")),
    }
}
