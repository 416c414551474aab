//! Writes the valid maps from which `crush_binary` and `crush_text` start into the two folders
//! given.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [binary, text] = &folders[..] else {
        return Err(std::io::Error::other("usage: crush_seeds BINARY_FOLDER TEXT_FOLDER"));
    };
    let seeds = [
        (binary, fieldstone_crush::fuzz::binary_seeds()),
        (text, fieldstone_crush::fuzz::text_seeds()),
    ];
    for (folder, seeds) in seeds {
        std::fs::create_dir_all(folder)?;
        for (index, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{index}")), seed)?;
        }
    }
    Ok(())
}
