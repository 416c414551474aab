//! How the command line names pools and volumes: `DIR` and `DIR/VOLUME`.
//!
//! A volume is no file in the pool's folder. The path only names a volume of a pool.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::pool;
use fieldstone_units as units;

/// Longest name of a volume, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A volume of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// The pool's folder.
    pub pool: PathBuf,
    /// The volume's name.
    pub volume: String,
}

/// A pool, or one volume of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOrVolume {
    /// The pool's folder.
    pub pool: PathBuf,
    /// The volume; all volumes if absent.
    pub volume: Option<String>,
}

/// Splits `DIR/VOLUME`.
///
/// # Errors
/// The path has no last component, the name is not allowed, or `DIR` is not a pool.
pub fn volume_path(path: &Path) -> anyhow::Result<VolumePath> {
    let shown = path.display();
    let name =
        path.file_name().with_context(|| format!("{shown} is not of the form DIR/VOLUME"))?;
    let name =
        name.to_str().with_context(|| format!("the volume name in {shown} is not valid UTF-8"))?;
    check_name(name)?;
    let parent = folder_of(path);
    if !pool::may_be_pool(&parent) {
        if pool::may_be_pool(path) {
            bail!("{shown} is a pool, not a volume; name a volume of it: {shown}/VOLUME");
        }
        pool::check_not_lost(&parent)?;
        if path.exists() && !path.is_dir() {
            let target = units::shell_word(format_args!("file:{shown}"));
            bail!(
                "{shown} is not the volume of a pool, but a file; `fieldstone serve {target} --nbd \
                 unix:SOCKET` serves it as a device"
            );
        }
        bail!(
            "{} is not a pool (it has no {}); make one with `fieldstone pool create {}`",
            parent.display(),
            pool::POOL_FILE,
            units::shell_word(parent.display())
        );
    }
    Ok(VolumePath { pool: parent, volume: name.to_owned() })
}

/// The `DIR` of `DIR/VOLUME`.
fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Reads `DIR` or `DIR/VOLUME`.
///
/// # Errors
/// Neither `path` nor its parent is a pool, or the name is not allowed.
pub fn pool_or_volume(path: &Path) -> anyhow::Result<PoolOrVolume> {
    if pool::may_be_pool(path) {
        return Ok(PoolOrVolume { pool: path.to_path_buf(), volume: None });
    }
    if !pool::may_be_pool(&folder_of(path)) {
        let (shown, file) = (path.display(), pool::POOL_FILE);
        pool::check_not_lost(path)?;
        pool::check_not_lost(&folder_of(path))?;
        bail!(
            "{shown} is not a pool (it has no {file}), nor the volume of one; make one with \
             `fieldstone pool create {}`",
            units::shell_word(&shown)
        );
    }
    let volume = volume_path(path)?;
    Ok(PoolOrVolume { pool: volume.pool, volume: Some(volume.volume) })
}

/// Checks the name of a volume. It must be usable as the last part of a path and as an NBD export.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    if name.is_empty() || name == "." || name == ".." {
        bail!("{name:?} cannot be the name of a volume");
    }
    if name.len() > NAME_BYTES_MAX {
        bail!("the volume name has {} bytes, at most {NAME_BYTES_MAX} are allowed", name.len());
    }
    if name.chars().any(|c| c.is_control() || c == '/') {
        bail!("the volume name {name:?} contains a control character or a slash");
    }
    if name.starts_with("node.") || name.starts_with("pool.") || name.starts_with("control.") {
        bail!("the volume name {name:?} looks like a part of the pool's folder; choose another");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["v", "disk-1", "a b", "ä", "node", &"x".repeat(255)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a\nb", "node.3", "pool.json", &"x".repeat(256)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_outside_a_pool_says_what_to_do() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = volume_path(&folder.path().join("v")).expect_err("no pool there");
        assert!(error.to_string().contains("pool create"), "{error}");
        let file = folder.path().join("disk.img");
        std::fs::write(&file, "").expect("a file");
        let error = volume_path(&file).expect_err("no volume");
        assert!(error.to_string().contains("serve file:"), "{error}");
        let error = pool_or_volume(&folder.path().join("nopool")).expect_err("no pool there");
        assert!(error.to_string().contains("nopool is not a pool"), "{error}");
    }
}
