//! Compiles Verilator's run-time library, which all designs share, if the feature `runtime` is on.

#[cfg(feature = "runtime")]
#[path = "src/verilator.rs"]
#[allow(dead_code)] // it has the errors of designs, too
mod verilator;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "runtime")]
    verilator::or_exit(runtime());
}

#[cfg(feature = "runtime")]
fn runtime() -> Result<(), verilator::BuildError> {
    println!("cargo:rerun-if-changed=src/verilator.rs");
    if verilator::only_checks() {
        return Ok(());
    }
    let verilator = verilator::Verilator::find()?;
    let include = verilator.root.join("include");
    println!("cargo:rerun-if-changed={}", verilator.version_file().display());
    let mut build = verilator.compiler();
    for file in ["verilated", "verilated_threads", "verilated_cov", "verilated_fst_c"] {
        build.file(include.join(file).with_extension("cpp"));
    }
    let design = "run-time library".to_owned();
    build
        .try_compile("verilated_runtime")
        .map_err(|error| verilator::BuildError::Compiler { design, error })?;
    for library in ["stdc++", "z", "lz4"] {
        println!("cargo:rustc-link-lib={library}");
    }
    Ok(())
}
