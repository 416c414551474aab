//! Tells the program which commit it is built from, as `FIELDSTONE_COMMIT`.
//!
//! Outside a repository, or without git, it is `unknown`; that is never an error.

use std::path::Path;
use std::process::Command;

fn main() {
    // Every commit appends to the log; every change of a source makes it dirty.
    for path in ["../../.git/logs/HEAD", ".."] {
        if Path::new(path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    println!("cargo:rustc-env=FIELDSTONE_COMMIT={}", commit());
}

fn commit() -> String {
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ".."]);
    match changed.as_deref() {
        Some("") => commit,
        _ => format!("{commit}-dirty"),
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
