//! Sets `FIELDSTONE_COMMIT`, the commit that the program is built from.
//!
//! Outside a repository, or without git, the commit is `unknown`. This is no error.

use std::path::Path;
use std::process::Command;

fn main() {
    // Every commit appends to the log, and a change of a source makes the state dirty.
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
