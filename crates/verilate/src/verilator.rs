//! Verilator as it is installed, and the C++ compiler with the flags that suit Verilator's output.
//!
//! Two kinds of build scripts use this module: those that build designs (see `build`), and that of
//! this crate, which compiles Verilator's run-time library once for all designs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

/// Why a design could not be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// Verilator was not found.
    #[error("Verilator was not found: run `make hdl-tools`, or set VERILATOR to its path")]
    NoVerilator,
    /// A package of sources was not found.
    #[error("the Python package {0} was not found beside Verilator's: run `make hdl-tools`")]
    NoPackage(PathBuf),
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The list of designs is not valid.
    #[error("{path}: {error}")]
    List {
        /// The list.
        path: PathBuf,
        /// The error.
        error: String,
    },
    /// Verilator refuses the design.
    #[error("{design}: Verilator failed:\n{output}")]
    Verilator {
        /// The design.
        design: String,
        /// Verilator's output.
        output: String,
    },
    /// The C++ compiler refuses Verilator's output.
    #[error("{design}: the C++ compiler failed: {error}")]
    Compiler {
        /// The design.
        design: String,
        /// The compiler's error.
        error: cc::Error,
    },
}

/// Ends the build script with the error, if there is one.
pub fn or_exit(result: Result<(), BuildError>) {
    if let Err(error) = result {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// True under `cargo clippy`, which does not link but runs build scripts. So a second verilating
/// and compiling would be useless.
pub fn only_checks() -> bool {
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER").unwrap_or_default();
    wrapper.to_string_lossy().contains("clippy")
}

/// An installed Verilator.
pub struct Verilator {
    /// The command.
    pub program: PathBuf,
    /// The folder with its C++ sources.
    pub root: PathBuf,
}

impl Verilator {
    /// The program in the variable `VERILATOR`, or the one that `make hdl-tools` installs in the
    /// build folder, or `verilator` on the `PATH`.
    pub fn find() -> Result<Self, BuildError> {
        println!("cargo:rerun-if-env-changed=VERILATOR");
        let named = env::var_os("VERILATOR").filter(|name| !name.is_empty()).map(PathBuf::from);
        let candidates = match named {
            Some(named) => vec![named],
            None => Self::candidates(),
        };
        for program in candidates {
            let asked = Command::new(&program).args(["--getenv", "VERILATOR_ROOT"]).output();
            if let Ok(answer) = asked
                && answer.status.success()
            {
                let root = PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim());
                return Ok(Self { program, root });
            }
        }
        Err(BuildError::NoVerilator)
    }

    fn candidates() -> Vec<PathBuf> {
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
        let bundled = out.ancestors().map(|folder| folder.join("hdl/bin/verilator"));
        let mut candidates: Vec<PathBuf> = bundled.filter(|path| path.exists()).collect();
        candidates.push(PathBuf::from("verilator"));
        candidates
    }

    /// The folder of a Python package that is installed beside this Verilator.
    pub fn package(&self, name: &Path) -> Result<PathBuf, BuildError> {
        let folder = self.root.parent().unwrap_or(&self.root).join(name);
        if folder.is_dir() { Ok(folder) } else { Err(BuildError::NoPackage(name.to_owned())) }
    }

    /// The file with the version of the C++ sources.
    pub fn version_file(&self) -> PathBuf {
        self.root.join("include/verilated_config.h")
    }

    /// The compiler with the flags for all designs. Verilator's library is compiled differently for
    /// designs with and without coverage and waves, so all designs have both.
    pub fn compiler(&self) -> cc::Build {
        let include = self.root.join("include");
        let mut build = cc::Build::new();
        build.cpp(true).std("gnu++20").opt_level(2).debug(false).warnings(false);
        build.include(&include).include(include.join("vltstd"));
        for name in ["VERILATOR", "VM_COVERAGE", "VM_TRACE", "VM_TRACE_FST"] {
            build.define(name, "1");
        }
        for name in ["VM_SC", "VM_TIMING", "VM_TRACE_VCD", "VM_TRACE_SAIF"] {
            build.define(name, "0");
        }
        build
    }
}
