//! Writes the valid sessions from which `nbd_session` starts into the folder given.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(std::io::Error::other("usage: nbd_seeds FOLDER"));
    };
    std::fs::create_dir_all(&folder)?;
    for (index, seed) in fieldstone_nbd::fuzz::seeds().iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{index}")), seed)?;
    }
    Ok(())
}
