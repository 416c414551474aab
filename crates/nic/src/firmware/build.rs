//! The firmware's sources, carried in the program, and their compilation.
//!
//! The sources are in `firmware/` of the repository. The program has a copy of them, writes it into
//! a temporary folder, and calls `build` there: so a benchmark works wherever the program is, if
//! the compiler is.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::firmware::planes;
use crate::firmware::state::Multiply;
use crate::riscv::elf::{ElfError, Program};

const SOURCES: &[(&str, &str)] = &[
    ("build", include_str!("../../../../firmware/build")),
    ("program.ld", include_str!("../../../../firmware/program.ld")),
    ("nic.h", include_str!("../../../../firmware/nic.h")),
    ("layout.h", include_str!("../../../../firmware/layout.h")),
    ("xpulp.h", include_str!("../../../../firmware/xpulp.h")),
    ("gf.h", include_str!("../../../../firmware/gf.h")),
    ("gf.c", include_str!("../../../../firmware/gf.c")),
    ("siphash.h", include_str!("../../../../firmware/siphash.h")),
    ("siphash.c", include_str!("../../../../firmware/siphash.c")),
    ("policies.c", include_str!("../../../../firmware/policies.c")),
    ("host.c", include_str!("../../../../firmware/host.c")),
];

/// Debian's package of the compiler for the cores.
pub const COMPILER_PACKAGE: &str = "gcc-riscv64-unknown-elf";

/// Why there is no firmware.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The compiler is not installed.
    #[error("{compiler} is not installed (Debian's package {package})")]
    NoCompiler {
        /// The program.
        compiler: &'static str,
        /// What has it.
        package: &'static str,
    },
    /// The temporary folder could not be written.
    #[error("building the firmware in {}: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The compiler failed.
    #[error("the compiler refused the firmware: {0}")]
    Compiler(String),
    /// A benchmark changes the firmware at this line, and finds it not or more than once.
    #[error("the firmware's policies do not have this line once: {0}")]
    NoCall(&'static str),
    /// There is no code for the columns of a code.
    #[error("code for planes of bits: {0}")]
    Planes(String),
    /// The compiled file is no program.
    #[error("the compiled firmware: {0}")]
    Elf(#[from] ElfError),
}

/// What the firmware is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The cores of the NIC.
    Rv32,
    /// The same without atomic operations, for a core that runs alone: CV32E40P has none.
    Rv32Alone,
    /// This machine: a shared object.
    Host,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Target::Rv32 => "rv32",
            Target::Rv32Alone => "rv32-alone",
            Target::Host => "host",
        }
    }

    fn compiler(self) -> (&'static str, &'static str) {
        match self {
            Target::Rv32 | Target::Rv32Alone => ("riscv64-unknown-elf-gcc", COMPILER_PACKAGE),
            Target::Host => ("cc", "gcc"),
        }
    }
}

/// Builds the firmware in `folder`; the answer is the file.
///
/// # Errors
/// [`BuildError`] says what is missing or wrong.
pub fn build_in(folder: &Path, target: Target, multiply: Multiply) -> Result<PathBuf, BuildError> {
    build_with(folder, target, multiply, &[])
}

fn build_with(
    folder: &Path,
    target: Target,
    multiply: Multiply,
    files: &[(&str, &str)],
) -> Result<PathBuf, BuildError> {
    let (compiler, package) = target.compiler();
    if !on_path(compiler) {
        return Err(BuildError::NoCompiler { compiler, package });
    }
    let failed = |source| BuildError::Folder { folder: folder.to_owned(), source };
    for (name, text) in SOURCES.iter().chain(files) {
        std::fs::write(folder.join(name), text).map_err(failed)?;
    }
    if multiply == Multiply::Planes {
        let text = planes::source().map_err(BuildError::Planes)?;
        std::fs::write(folder.join("planes.h"), text).map_err(failed)?;
    }
    let file = folder.join(format!("{}-{}", target.name(), multiply.name()));
    let output = Command::new("sh")
        .arg(folder.join("build"))
        .args([target.name(), multiply.name()])
        .arg(&file)
        .env_remove("CROSS")
        .output()
        .map_err(failed)?;
    if !output.status.success() {
        return Err(BuildError::Compiler(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(file)
}

/// The firmware for the cores of the NIC.
///
/// # Errors
/// [`BuildError`] says what is missing or wrong.
pub fn program(multiply: Multiply) -> Result<Program, BuildError> {
    program_for(Target::Rv32, multiply)
}

/// The firmware for the cores of `target`, which is not [`Target::Host`].
///
/// # Errors
/// [`BuildError`] says what is missing or wrong.
pub fn program_for(target: Target, multiply: Multiply) -> Result<Program, BuildError> {
    program_of(target, multiply, &[])
}

/// Another firmware for the cores of the NIC: this one with `files`, names and texts, beside its
/// sources or in place of them. A test has handlers by it that do what none may.
///
/// # Errors
/// [`BuildError`] says what is missing or wrong.
pub fn program_with(multiply: Multiply, files: &[(&str, &str)]) -> Result<Program, BuildError> {
    program_of(Target::Rv32, multiply, files)
}

/// A firmware that lets every capability pass: what it costs less than [`program`] is the cost of
/// the authentication. It is for benchmarks only, and not among the files of `firmware/`.
///
/// # Errors
/// [`BuildError`] says what is missing or wrong.
pub fn program_without_authentication(multiply: Multiply) -> Result<Program, BuildError> {
    const FILE: &str = "policies.c";
    const CALL: &str = "= authenticate(task, capability, write->segment);";
    // The packet is never empty there, so the compiler leaves the call out.
    const NO_CALL: &str =
        "= task->packet_len == 0 ? authenticate(task, capability, write->segment) : STATUS_DONE;";
    let policies = SOURCES.iter().find(|(name, _)| *name == FILE).map_or("", |(_, text)| text);
    if policies.matches(CALL).count() != 1 {
        return Err(BuildError::NoCall(CALL));
    }
    program_with(multiply, &[(FILE, &policies.replace(CALL, NO_CALL))])
}

fn program_of(
    target: Target,
    multiply: Multiply,
    files: &[(&str, &str)],
) -> Result<Program, BuildError> {
    let temporary = std::env::temp_dir();
    let folder =
        tempfile::tempdir().map_err(|source| BuildError::Folder { folder: temporary, source })?;
    let file = build_with(folder.path(), target, multiply, files)?;
    let bytes = std::fs::read(&file)
        .map_err(|source| BuildError::Folder { folder: folder.path().to_owned(), source })?;
    Ok(Program::parse(&bytes)?)
}

fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}
