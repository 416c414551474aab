//! Writes all files that are generated from the description of the device's registers.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use fieldstone_regs::{DESCRIPTION, check, outputs, parse};

fn main() -> ExitCode {
    // The repository: the given folder, or the one with this program's sources.
    let given = env::args_os().nth(1).map(Into::into);
    let root = given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    match write(&root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn write(root: &Path) -> Result<(), String> {
    let path = root.join(DESCRIPTION);
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let description = parse(&text).map_err(|error| format!("{DESCRIPTION}: {error}"))?;
    check(&description).map_err(|error| format!("{DESCRIPTION}: {error}"))?;
    for (name, content) in outputs(&description) {
        let path = root.join(name);
        fs::write(&path, content).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("{name}");
    }
    Ok(())
}
