//! The contenders, and one cell of each: a load for some seconds, with its costs.
//!
//! Each cell opens the image anew, in processes of its own, and closes it. So no contender holds
//! the lock or a watch of the image while another one is measured. The costs are those of the
//! processes that are the client of Ceph, without the start: that part is measured apart, by the
//! same processes without a load, and taken away.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::librados::Librados;
use super::librbd::{self, ImageLoad};
use super::mapped::Mapped;
use super::objects::ObjectClient;
use super::place::{Address, LibrbdCache, Place};
use crate::fio::{self, FioTarget, Load, Measured, Run};
use crate::generator::{Answers, GeneratorTask, InProcess};
use crate::interleaving::Entrant;
use crate::process::{Server, SwitchCounter, pin};
use crate::usage::{Usage, run_counted};

/// The longest time, besides that of the load, in which a process has to connect, to open the image
/// and to close it. A client that waits for ever would hold up the others.
pub const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// fio's rbd engine: librbd in fio's process.
    Librbd,
    /// librbd in a process whose callbacks submit the next requests.
    LibrbdCallback,
    /// Our client in the process of the load.
    Embed,
    /// The same in a process whose callbacks submit the next requests.
    EmbedCallback,
    /// The same on several cores: one image, whose connections to OSDs are divided among them.
    EmbedCores,
    /// Our client behind NBD, with fio.
    Nbd,
    /// librbd behind the kernel's NBD client, with fio.
    RbdNbd,
    /// librados, on plain objects.
    Librados,
    /// Our client, on plain objects.
    Rados,
    /// The same on several cores.
    RadosCores,
}

impl Contender {
    /// All contenders, in the order of the report.
    pub const ALL: [Self; 10] = [
        Self::Librbd,
        Self::LibrbdCallback,
        Self::Embed,
        Self::EmbedCallback,
        Self::EmbedCores,
        Self::Nbd,
        Self::RbdNbd,
        Self::Librados,
        Self::Rados,
        Self::RadosCores,
    ];

    /// What it is, for the report.
    pub fn about(self) -> &'static str {
        match self {
            Self::Librbd => "fio --ioengine=rbd: librbd in fio's process, rbd_cache=false",
            Self::LibrbdCallback => "librbd through C: its callbacks submit the next requests",
            Self::Embed => "ours: the image in the process of the load (embed)",
            Self::EmbedCallback => "ours: the same; its callbacks submit the next requests",
            Self::EmbedCores => "ours: the same image on --cores cores",
            Self::Nbd => "ours: fieldstone serve, and fio --ioengine=nbd over a unix socket",
            Self::RbdNbd => "rbd-nbd map, and fio --ioengine=io_uring on the device",
            Self::Librados => "librados through C, plain objects",
            Self::Rados => "ours: plain objects, one core",
            Self::RadosCores => "ours: plain objects, --cores cores, each with its own depth",
        }
    }

    /// True if it needs several cores.
    pub fn needs_cores(self) -> bool {
        matches!(self, Self::EmbedCores | Self::RadosCores)
    }

    /// True if it uses plain objects instead of an image.
    pub fn uses_objects(self) -> bool {
        matches!(self, Self::Librados | Self::Rados | Self::RadosCores)
    }

    /// True if the client of Ceph is not the process that makes the load.
    pub fn has_server(self) -> bool {
        matches!(self, Self::Nbd | Self::RbdNbd)
    }
}

impl Entrant for Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Librbd => "librbd",
            Self::LibrbdCallback => "librbd-callback",
            Self::Embed => "embed",
            Self::EmbedCallback => "embed-callback",
            Self::EmbedCores => "embed-cores",
            Self::Nbd => "nbd",
            Self::RbdNbd => "rbd-nbd",
            Self::Librados => "librados",
            Self::Rados => "rados",
            Self::RadosCores => "rados-cores",
        }
    }

    fn is_ours(self) -> bool {
        use Contender::{Embed, EmbedCallback, EmbedCores, Nbd, Rados, RadosCores};
        matches!(self, Embed | EmbedCallback | EmbedCores | Nbd | Rados | RadosCores)
    }
}

/// The result of one contender in one case and one round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    /// The speeds.
    pub speed: Measured,
    /// What the client of Ceph has used.
    pub client: Usage,
    /// What fio has used, if it is another process than the client.
    pub fio: Usage,
    /// CPU time of the OSDs.
    pub osd_cpu_s: Option<f64>,
}

/// How cells are run.
pub struct Setup {
    /// The path of this program.
    pub program: PathBuf,
    /// The folder for sockets and logs.
    pub folder: PathBuf,
    /// Cores of our server, of `embed-cores` and of `rados-cores`.
    pub cores: u16,
    /// The CPUs of clients; all without a list.
    pub cpus: Option<Vec<usize>>,
    /// The cache of librbd.
    pub librbd_cache: LibrbdCache,
}

impl Setup {
    /// Fails with the reason if the contender cannot take part.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self, contender: Contender) -> anyhow::Result<()> {
        match contender {
            Contender::Librbd => {
                ensure!(fio::has_engine("rbd"), "this fio was built without its rbd engine");
            }
            Contender::Nbd => {
                ensure!(fio::has_engine("nbd"), "this fio was built without its nbd engine");
            }
            Contender::LibrbdCallback => librbd::check_libraries()?,
            Contender::Librados => Librados::check()?,
            Contender::RbdNbd => Mapped::check()?,
            Contender::EmbedCores | Contender::RadosCores => {
                ensure!(self.cores > 1, "only with --cores 2 or more");
            }
            Contender::Embed | Contender::EmbedCallback | Contender::Rados => {}
        }
        Ok(())
    }

    /// What the process of the load costs without a load: its start, the opening and the closing.
    ///
    /// # Errors
    /// It fails.
    pub fn start_up(&self, contender: Contender, place: &Place) -> anyhow::Result<Usage> {
        const NOTHING: f64 = 0.0;
        match contender {
            Contender::Librbd => self.fio_alone(place, &librbd_target(place)),
            Contender::Nbd => {
                let (mut server, socket) = self.serve(place, &[])?;
                let started = self.fio_alone(place, &FioTarget::Nbd(socket))?;
                server.end()?;
                Ok(started)
            }
            Contender::RbdNbd => {
                let mapped = Mapped::map(&place.address)?;
                self.fio_alone(place, &FioTarget::File(mapped.device.clone()))
            }
            Contender::LibrbdCallback
            | Contender::Embed
            | Contender::EmbedCallback
            | Contender::EmbedCores
            | Contender::Librados
            | Contender::Rados
            | Contender::RadosCores => {
                let task = self.task(contender, place, crate::generator::FILL, NOTHING, 0);
                Ok(self.generate(&task, NOTHING)?.1)
            }
        }
    }

    /// Runs a load.
    ///
    /// # Errors
    /// An access fails, or a process does.
    pub fn run(
        &self,
        contender: Contender,
        place: &Place,
        run: Run,
        start_up: &Usage,
    ) -> anyhow::Result<Cell> {
        let osds_before = place.osds.cpu_s();
        let mut cell = match contender {
            Contender::Librbd => {
                let (speed, used) = self.fio(place, &librbd_target(place), run)?;
                Cell { speed, client: used.without(start_up), ..Cell::default() }
            }
            Contender::Nbd => {
                let (mut server, socket) = self.serve(place, &[])?;
                let target = FioTarget::Nbd(socket);
                let (cell, used) = self.behind(server.pid(), place, &target, run)?;
                server.check()?;
                server.end()?;
                Cell { fio: used.without(start_up), ..cell }
            }
            Contender::RbdNbd => {
                let mapped = Mapped::map(&place.address)?;
                let target = FioTarget::File(mapped.device.clone());
                let (cell, used) = self.behind(mapped.pid, place, &target, run)?;
                Cell { fio: used.without(start_up), ..cell }
            }
            Contender::LibrbdCallback
            | Contender::Embed
            | Contender::EmbedCallback
            | Contender::EmbedCores
            | Contender::Librados
            | Contender::Rados
            | Contender::RadosCores => {
                let task = self.task(contender, place, run.load, run.seconds, run.seed);
                let (speed, used) = self.generate(&task, run.seconds)?;
                Cell { speed, client: used.without(start_up), ..Cell::default() }
            }
        };
        ensure!(cell.speed.ios > 0, "it completed no I/O");
        let osds_after = place.osds.cpu_s();
        cell.osd_cpu_s = osds_before.zip(osds_after).map(|(before, after)| after - before);
        Ok(cell)
    }

    fn task(
        &self,
        contender: Contender,
        place: &Place,
        load: Load,
        seconds: f64,
        seed: u64,
    ) -> GeneratorTask {
        let client = match contender {
            Contender::Librados => ObjectClient::Librados,
            Contender::Rados => ObjectClient::Ours { cores: 1 },
            Contender::RadosCores => ObjectClient::Ours { cores: self.cores },
            Contender::LibrbdCallback => {
                let Address { conf, id, pool, image } = place.address.clone();
                let size_bytes = place.size_bytes;
                let load = ImageLoad { id, conf, pool, image, size_bytes, load, seconds, seed };
                return GeneratorTask::Librbd(load);
            }
            _ => {
                return GeneratorTask::Device(InProcess {
                    target: place.address.target(),
                    direct: false,
                    cores: if contender == Contender::EmbedCores { self.cores } else { 1 },
                    size_bytes: place.size_bytes,
                    load,
                    seconds: Some(seconds),
                    fill: false,
                    seed,
                    answers: match contender {
                        Contender::EmbedCallback => Answers::Callback,
                        _ => Answers::Queue,
                    },
                });
            }
        };
        GeneratorTask::Objects(place.object_load(client, load, Some(seconds), seed))
    }

    /// Runs a task in a new process. The CPU time is that of the whole process.
    fn generate(&self, task: &GeneratorTask, seconds: f64) -> anyhow::Result<(Measured, Usage)> {
        let mut command = task.command(&self.program)?;
        self.pin(&mut command);
        let ended = run_counted(command, ANSWER_MAX + Duration::from_secs_f64(seconds))?;
        if !ended.status.success() {
            bail!("{}", ended.stderr.trim().trim_start_matches("fieldstone: "));
        }
        let measured = serde_json::from_str(&ended.stdout);
        Ok((measured.context("the results are not as expected")?, ended.usage))
    }

    /// Starts our server for the image, and gives its socket.
    ///
    /// # Errors
    /// It does not start.
    pub fn serve(&self, place: &Place, options: &[&str]) -> anyhow::Result<(Server, PathBuf)> {
        let socket = self.folder.join("nbd.sock");
        let mut command = Command::new(&self.program);
        command.arg("serve").arg(place.address.target());
        command.arg("--nbd").arg(format!("unix:{}", socket.display()));
        command.args(["--cores", &self.cores.to_string()]).args(options);
        self.pin(&mut command);
        let log = self.folder.join("serve.log");
        let server = Server::spawn(command, &log, |said| said.contains("serving "))?;
        Ok((server, socket))
    }

    /// A load behind a server, and what fio has used.
    fn behind(
        &self,
        pid: u32,
        place: &Place,
        target: &FioTarget,
        run: Run,
    ) -> anyhow::Result<(Cell, Usage)> {
        let before = Usage::of_process(pid)?;
        let counter = SwitchCounter::start(pid)?;
        let ran = self.fio(place, target, run);
        let switches = counter.finish() as f64;
        let client = Usage { switches, ..Usage::of_process(pid)?.without(&before) };
        let (speed, used) = ran?;
        Ok((Cell { speed, client, ..Cell::default() }, used))
    }

    /// Runs fio on a target at this place, and gives what fio's process has used.
    ///
    /// # Errors
    /// fio fails.
    pub fn fio(
        &self,
        place: &Place,
        target: &FioTarget,
        run: Run,
    ) -> anyhow::Result<(Measured, Usage)> {
        let mut arguments = fio::measure(target, run, place.size_bytes);
        // The loads of this program write the same bytes again and again; so does fio.
        arguments.push("--scramble_buffers=0".to_owned());
        let limit = ANSWER_MAX + Duration::from_secs_f64(run.seconds);
        fio::run_counted(self.fio_command(place, target), &arguments, run.load.pattern, limit)
    }

    fn fio_alone(&self, place: &Place, target: &FioTarget) -> anyhow::Result<Usage> {
        let mut command = self.fio_command(place, target);
        command.args(fio::start_up(target));
        let ended = run_counted(command, ANSWER_MAX)?;
        ensure!(ended.status.success(), "fio ended with {}: {}", ended.status, ended.stderr.trim());
        Ok(ended.usage)
    }

    fn fio_command(&self, place: &Place, target: &FioTarget) -> Command {
        let mut command = Command::new("fio");
        command.envs(place.address.environment(self.librbd_cache)).current_dir(&self.folder);
        // In front of a server, fio is not what is measured.
        if matches!(target, FioTarget::Rbd { .. }) {
            self.pin(&mut command);
        }
        command
    }

    fn pin(&self, command: &mut Command) {
        if let Some(cpus) = &self.cpus {
            pin(command, cpus);
        }
    }

    /// The commands of a contender, as the report shows them.
    pub fn shown(&self, contender: Contender, place: &Place) -> Option<String> {
        let run = Run {
            load: Load { pattern: fio::Pattern::RandomRead, block_bytes: 4096, depth: 32 },
            seconds: 3.0,
            seed: 0,
            jobs: 1,
        };
        let fio = |target: &FioTarget| {
            let arguments = fio::measure(target, run, place.size_bytes);
            format!("fio {} --scramble_buffers=0", arguments.join(" "))
        };
        let line = match contender {
            Contender::Librbd => fio(&librbd_target(place)),
            Contender::Nbd => format!(
                "fieldstone serve {} --nbd unix:DIR/nbd.sock --cores {}",
                place.address.target(),
                self.cores
            ),
            Contender::RbdNbd => format!("rbd-nbd map {}", place.address.path()),
            _ => return None,
        };
        Some(line.replace(&self.folder.display().to_string(), "DIR"))
    }
}

fn librbd_target(place: &Place) -> FioTarget {
    let address = &place.address;
    FioTarget::Rbd {
        pool: address.pool.clone(),
        image: address.image.clone(),
        id: address.id.clone(),
    }
}

/// The CPUs for clients and for the process of a null cluster: clients get the last ones.
pub fn divide(cpus: &[usize], clients: usize) -> (Vec<usize>, Vec<usize>) {
    let clients = clients.clamp(1, cpus.len().max(1));
    let (rest, own) = cpus.split_at(cpus.len().saturating_sub(clients));
    match rest.is_empty() {
        // Nothing is left: the cluster shares the CPUs of the clients.
        true => (own.to_vec(), own.to_vec()),
        false => (own.to_vec(), rest.to_vec()),
    }
}

/// True if the clients on this many cores leave no CPU to a null cluster.
pub fn is_shared(cpus: &[usize], clients: usize) -> bool {
    clients >= cpus.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_each_has_a_kind() {
        let mut names: Vec<_> = Contender::ALL.iter().map(|contender| contender.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Contender::ALL.len());
        for contender in Contender::ALL {
            assert_eq!(contender.is_ours(), contender.about().starts_with("ours: "));
        }
    }

    #[test]
    fn clients_and_the_null_cluster_have_their_own_cpus_while_there_are_enough() {
        assert_eq!(divide(&[0, 1, 2, 3], 1), (vec![3], vec![0, 1, 2]));
        assert_eq!(divide(&[0, 1, 2, 3], 2), (vec![2, 3], vec![0, 1]));
        assert_eq!(divide(&[4, 7], 2), (vec![4, 7], vec![4, 7]));
        assert_eq!(divide(&[4], 3), (vec![4], vec![4]));
        assert!(is_shared(&[0, 1], 2) && !is_shared(&[0, 1], 1));
    }
}
