//! Writes the valid headers and manifests from which `code_folder` starts into the folder given.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(std::io::Error::other("usage: code_seeds FOLDER"));
    };
    std::fs::create_dir_all(&folder)?;
    for (index, seed) in fieldstone_files::fuzz::seeds().iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{index}")), seed)?;
    }
    Ok(())
}
