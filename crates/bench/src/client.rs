//! The client of a contender: fio, or this program with the device inside its process.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, bail, ensure};

use crate::fio::{self, FioTarget, Load, Measured, Pattern, Run};
use crate::generator::{Answers, FILL, GeneratorTask, InProcess};
use crate::process::end_with_parent;

/// Makes the accesses of the cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {
    /// fio.
    Fio(FioTarget),
    /// A new process of this program, for each cell.
    InProcess {
        /// The path of this program.
        program: PathBuf,
        /// The device, as `embed` takes it.
        target: String,
    },
}

impl Client {
    /// Writes every byte of the device.
    pub fn fill(&self, size_bytes: u64) -> anyhow::Result<()> {
        match self {
            Self::Fio(target) => {
                fio::run(&fio::fill(target, size_bytes), Pattern::SequentialWrite).map(drop)
            }
            // Each process fills memory itself: nothing is left of the memory of the one before.
            Self::InProcess { target, .. } if is_memory(target) => Ok(()),
            Self::InProcess { .. } => self.generate(FILL, size_bytes, None, 0).map(drop),
        }
    }

    /// Accesses the device for some seconds. With the same seed, all contenders of a round with the
    /// same kind of client access the same addresses.
    pub fn measure(&self, run: Run, size_bytes: u64) -> anyhow::Result<Measured> {
        match self {
            Self::Fio(target) => fio::run(&fio::measure(target, run, size_bytes), run.load.pattern),
            Self::InProcess { .. } => {
                ensure!(run.jobs == 1, "a device in the client's process has one job");
                self.generate(run.load, size_bytes, Some(run.seconds), run.seed)
            }
        }
    }

    fn generate(
        &self,
        load: Load,
        size_bytes: u64,
        seconds: Option<f64>,
        seed: u64,
    ) -> anyhow::Result<Measured> {
        let Self::InProcess { program, target } = self else { bail!("fio makes these accesses") };
        let (target, fill) = (target.clone(), is_memory(target));
        let load = InProcess {
            target,
            direct: false,
            cores: 1,
            size_bytes,
            load,
            seconds,
            fill,
            seed,
            answers: Answers::Queue,
        };
        let mut command = GeneratorTask::Device(load).command(program)?;
        command.stdin(Stdio::null());
        end_with_parent(&mut command);
        let output = command.output().context("cannot run this program")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("the results are not as expected")
    }
}

fn is_memory(target: &str) -> bool {
    target.starts_with("ram:")
}
