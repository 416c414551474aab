//! The folder of a run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The folder of a run. Dropping this removes it.
pub struct RunFolder {
    /// The folder for files.
    pub files: PathBuf,
    /// The folder for sockets. Its path is short.
    pub sockets: PathBuf,
}

impl RunFolder {
    /// Makes the folder in `dir`, or in the folder for temporary files.
    ///
    /// # Errors
    /// The folder cannot be made, or its path has a blank.
    pub fn make(dir: Option<&Path>) -> anyhow::Result<Self> {
        /// The system allows 107 bytes for the path of a socket. This is the room for the socket's
        /// name.
        const ROOM_FOR_NAMES: usize = 40;
        let name = format!("fieldstone-bench-{}", std::process::id());
        let parent = dir.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let parent = parent
            .canonicalize()
            .with_context(|| format!("cannot find the folder {}", parent.display()))?;
        if parent.display().to_string().contains(char::is_whitespace) {
            bail!("{}: name a folder without blanks in its path", parent.display());
        }
        let files = parent.join(&name);
        let sockets = if files.as_os_str().len() + ROOM_FOR_NAMES < 107 {
            files.clone()
        } else {
            std::env::temp_dir().join(&name)
        };
        let folder = Self { files, sockets };
        for path in [&folder.files, &folder.sockets] {
            fs::create_dir_all(path)
                .with_context(|| format!("cannot make the folder {}", path.display()))?;
        }
        Ok(folder)
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        for path in [&self.files, &self.sockets] {
            match fs::remove_dir_all(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    eprint_line!("fieldstone: cannot remove {}: {error}", path.display());
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_go_away() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let folder = RunFolder::make(Some(parent.path())).expect("it is made");
        let path = folder.files.clone();
        fs::write(path.join("x"), "y").expect("it is a folder");
        drop(folder);
        assert!(!path.exists());
        assert!(RunFolder::make(Some(Path::new("/no/such/folder"))).is_err());
    }
}
