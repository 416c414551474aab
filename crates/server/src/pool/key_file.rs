//! The file `pool.key`: the secrets of the pool. Only its owner may read it (mode 0600).
//!
//! A pool whose secret was never replaced has 32 hexadecimal digits: its secret. From the first
//! rotation on, the file is a list. Releases that do not know it report the file as damaged, and do
//! nothing.
//!
//! ```text
//! fieldstone pool keys, format 2
//! origin SECRET                  the pool's first secret, for ever: the superblocks have it
//! accept GENERATION SECRET       an older secret that is still accepted, if there is one
//! issue GENERATION SECRET        signs capabilities
//! stage GENERATION SECRET        accepted, and not issued yet, if there is one
//! crc32c CHECKSUM                of all bytes before this line
//! ```
//!
//! There is a line `accept` or a line `stage` or neither: a rotation is finished before the next
//! one begins ([`PoolKeys`] has the states). Retired secrets other than the origin are in no file.
//!
//! A new content replaces the file at once (written beside it, made stable, renamed). So a crash
//! leaves the state before a step or the state after it.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;
use std::str::Lines;

use anyhow::{Context, bail};
use fieldstone_proto::{KeyGeneration, MasterKey, PoolKeys, Rotation, crc32c};
use fieldstone_uring::sync_directory;

use super::write_new;

/// The name of the file.
pub const KEY_FILE: &str = "pool.key";
const TITLE: &str = "fieldstone pool keys, format ";
const FORMAT: u32 = 2;
/// The most bytes to read. Every file of this format is shorter.
const FILE_BYTES_MAX: u64 = 4096;

/// Reads the secrets of the pool at `folder`.
///
/// # Errors
/// The file cannot be read, is damaged or is of a newer release.
pub fn read(folder: &Path) -> anyhow::Result<PoolKeys> {
    let path = folder.join(KEY_FILE);
    let mut text = String::new();
    let done =
        fs::File::open(&path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    if let Err(error) = done {
        let shown = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                bail!(
                    "{shown} is missing; restore it from a copy: no pool opens without its secret"
                )
            }
            io::ErrorKind::PermissionDenied => {
                bail!("cannot read the pool's secret {shown}: only its owner may read it: {error}")
            }
            _ => bail!("cannot read the pool's secret {shown}: {error}"),
        }
    }
    parse(&text).with_context(|| format!("{}", path.display()))
}

/// Replaces the file, and makes that stable. The new file has the owner of the old one: a server
/// may run as another user than the command that calls this. If the file is a symbolic link of the
/// caller's or of root's, the file that it leads to is replaced.
///
/// # Errors
/// The file cannot be written, its owner cannot be kept, or it is another user's symbolic link.
pub fn write(folder: &Path, keys: &PoolKeys) -> anyhow::Result<()> {
    let path = folder.join(KEY_FILE);
    let path = match fs::symlink_metadata(&path) {
        Ok(meta) if meta.is_symlink() => {
            // SAFETY: geteuid() always succeeds.
            let caller = unsafe { libc::geteuid() };
            if ![0, caller].contains(&meta.uid()) {
                bail!(
                    "{} is a symbolic link of the user {}: put the file itself there",
                    path.display(),
                    meta.uid()
                );
            }
            fs::canonicalize(&path).with_context(|| format!("{}", path.display()))?
        }
        _ => path,
    };
    let place = path.parent().unwrap_or(folder);
    let partial = place.join(format!("{KEY_FILE}.partial"));
    // A process that was killed may have left a file of another mode or owner.
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", partial.display()));
        }
        _ => {}
    }
    write_new(&partial, text(keys).as_bytes(), 0o600)?;
    keep_owner(&path, &partial)
        .and_then(|()| fs::rename(&partial, &path))
        .inspect_err(|_| drop(fs::remove_file(&partial)))
        .and_then(|()| sync_directory(place))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Gives `new` the owner and the group of `old`, if `old` exists.
pub(crate) fn keep_owner(old: &Path, new: &Path) -> std::io::Result<()> {
    let old = match fs::symlink_metadata(old) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        old => old?,
    };
    // By its descriptor: the name may lead to another file by now.
    let new = fs::OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(new)?;
    let meta = new.metadata()?;
    if (old.uid(), old.gid()) == (meta.uid(), meta.gid()) {
        return Ok(());
    }
    fchown(&new, Some(old.uid()), Some(old.gid()))?;
    new.sync_all()
}

/// The content of the file.
fn text(keys: &PoolKeys) -> String {
    let (generation, secret) = keys.oldest();
    if generation == KeyGeneration(0) && keys.rotation() == Rotation::Settled {
        return hex(secret) + "\n";
    }
    let line = |word: &str, (generation, secret): (KeyGeneration, MasterKey)| {
        format!("{word} {} {}\n", generation.0, hex(secret))
    };
    let mut text = format!("{TITLE}{FORMAT}\norigin {}\n", hex(keys.origin()));
    match keys.rotation() {
        Rotation::Settled => {}
        Rotation::Staged(_) => text += &line("stage", keys.newest()),
        Rotation::Issuing(_) => text += &line("accept", keys.oldest()),
    }
    text += &line("issue", keys.issuing());
    let sum = crc32c(text.as_bytes());
    text + &format!("crc32c {sum:08x}\n")
}

fn parse(text: &str) -> anyhow::Result<PoolKeys> {
    let Some(rest) = text.strip_prefix(TITLE) else {
        let secret = parse_hex(text.trim()).context(
            "it is damaged: it should hold 32 hexadecimal digits, or the list of a pool whose \
             secret was replaced; restore it from a copy",
        )?;
        return Ok(secret.into());
    };
    let format = rest.lines().next().unwrap_or_default();
    match format.parse::<u32>() {
        Ok(FORMAT) => {}
        Ok(newer) if newer > FORMAT => bail!("format {newer} is of a newer version of fieldstone"),
        // The error does not show the line: if its end is damaged, a secret follows.
        _ => bail!("it is damaged: its format is no number; restore it from a copy"),
    }
    parse_list(text).context("it is damaged; restore it from a copy")
}

fn parse_list(text: &str) -> anyhow::Result<PoolKeys> {
    let (covered, sum) = text.rsplit_once("crc32c ").context("the checksum is missing")?;
    if sum.trim_end() != format!("{:08x}", crc32c(covered.as_bytes())) {
        bail!("the checksum does not match");
    }
    let mut lines = covered.lines();
    lines.next();
    let origin = lines.next().and_then(|line| line.strip_prefix("origin "));
    let origin = parse_hex(origin.context("the origin is missing")?)?;
    let (first, second) = (entry(&mut lines)?, entry(&mut lines)?);
    if let Some(line) = lines.next() {
        bail!("{:?} does not belong there", line.split(' ').next().unwrap_or_default());
    }
    let follows = |old: KeyGeneration, new: KeyGeneration| old.0.checked_add(1) == Some(new.0);
    let (oldest, rotation) = match (first, second) {
        (Some(("issue", generation, secret)), None) => ((generation, secret), Rotation::Settled),
        (Some(("stage", new, next)), Some(("issue", old, secret))) if follows(old, new) => {
            ((old, secret), Rotation::Staged(next))
        }
        (Some(("accept", old, secret)), Some(("issue", new, next))) if follows(old, new) => {
            ((old, secret), Rotation::Issuing(next))
        }
        _ => bail!("the lines do not describe a step of a rotation"),
    };
    Ok(PoolKeys::from_parts(origin, oldest, rotation)?)
}

/// The next line of the list: its word, generation and secret.
fn entry<'a>(lines: &mut Lines<'a>) -> anyhow::Result<Option<(&'a str, KeyGeneration, MasterKey)>> {
    let Some(line) = lines.next() else { return Ok(None) };
    let mut words = line.split(' ');
    let word = words.next().unwrap_or_default();
    let generation = words.next().and_then(|word| word.parse().ok()).map(KeyGeneration);
    let generation = generation.with_context(|| format!("{word:?} has no generation"))?;
    let secret = parse_hex(words.next().unwrap_or_default())?;
    if words.next().is_some() {
        bail!("the line of {word:?} is too long");
    }
    Ok(Some((word, generation, secret)))
}

fn hex(secret: MasterKey) -> String {
    secret.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hex(digits: &str) -> anyhow::Result<MasterKey> {
    // The error must not show the digits: it is meant for logs.
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        bail!("a secret has 32 hexadecimal digits");
    }
    let number =
        u128::from_str_radix(digits, 16).context("hexadecimal digits were just checked")?;
    Ok(MasterKey(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const ORIGIN: MasterKey = MasterKey(*b"0123456789abcdef");

    /// The keys after each step of two rotations.
    fn life() -> Vec<PoolKeys> {
        let mut all = vec![PoolKeys::from(ORIGIN)];
        for secret in [[2; 16], [3; 16]] {
            let staged = all.last().expect("one").stage(MasterKey(secret)).expect("settled");
            let issuing = staged.issue().expect("staged");
            all.extend([staged, issuing, issuing.retire().expect("issuing")]);
        }
        all
    }

    #[test]
    fn every_step_reads_back_and_the_first_is_what_old_releases_wrote() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for keys in life() {
            write(folder.path(), &keys).expect("writable");
            assert_eq!(read(folder.path()).expect("readable"), keys);
            let meta = fs::metadata(folder.path().join(KEY_FILE)).expect("it exists");
            assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(text(&life()[0]), "30313233343536373839616263646566\n");
        let staged = text(&life()[1]);
        assert!(staged.contains("\nstage 1 02020202") && staged.contains("\nissue 0 3031"));
        let retired = text(&life()[6]);
        assert!(!retired.contains("020202"), "a retired secret is in no file: {retired}");
    }

    /// A crash leaves the old content, whatever it left beside the file.
    #[test]
    fn a_partial_file_is_not_read_and_is_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let life = life();
        write(folder.path(), &life[0]).expect("writable");
        let partial = folder.path().join("pool.key.partial");
        fs::write(&partial, &text(&life[1])[..40]).expect("writable");
        assert_eq!(read(folder.path()).expect("readable"), life[0]);
        write(folder.path(), &life[1]).expect("writable");
        assert_eq!(read(folder.path()).expect("readable"), life[1]);
        assert!(!partial.exists());
    }

    #[test]
    fn a_link_in_place_of_the_partial_file_leads_nowhere() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let other = folder.path().join("other");
        fs::write(&other, "of another program").expect("writable");
        let partial = folder.path().join("pool.key.partial");
        std::os::unix::fs::symlink(&other, &partial).expect("writable");
        assert!(write_new(&partial, b"secrets", 0o600).is_err());
        assert!(keep_owner(&other, &partial).is_err());
        // The link itself is what an earlier call may have left.
        write(folder.path(), &life()[1]).expect("written");
        assert_eq!(fs::read_to_string(&other).expect("there"), "of another program");
        assert!(!partial.exists());
    }

    #[test]
    fn every_damaged_byte_is_noticed_and_no_error_shows_a_secret() {
        for keys in &life()[1..] {
            let good = text(keys);
            for at in 0..good.len() {
                let mut bytes = good.clone().into_bytes();
                bytes[at] ^= 1;
                let Ok(bad) = String::from_utf8(bytes) else { continue };
                let Err(error) = parse(&bad) else {
                    // The end of the line is not covered.
                    assert_eq!(at, good.len() - 1);
                    continue;
                };
                let error = format!("{error:#}");
                assert!(!error.contains("020202") && !error.contains("3132"), "{error}");
            }
            for len in 0..good.len() - 1 {
                assert!(parse(&good[..len]).is_err(), "{len} bytes");
            }
        }
    }

    /// With a good checksum, lines that describe no step are refused, too.
    #[test]
    fn lines_that_describe_no_step_are_refused() {
        let (a, b) = (hex(ORIGIN), hex(MasterKey([2; 16])));
        let list = |lines: &str| {
            let text = format!("{TITLE}{FORMAT}\n{lines}");
            let sum = crc32c(text.as_bytes());
            parse(&format!("{text}crc32c {sum:08x}\n"))
        };
        assert!(list(&format!("origin {a}\nissue 1 {b}\n")).is_ok());
        for lines in [
            String::new(),
            format!("issue 1 {b}\n"),
            format!("origin {a}\n"),
            format!("origin {a}\nissue 1 {b}\nissue 2 {a}\n"),
            format!("origin {a}\nstage 1 {b}\n"),
            format!("origin {a}\nstage 2 {b}\nissue 0 {a}\n"),
            format!("origin {a}\naccept 1 {b}\nissue 1 {b}\n"),
            format!("origin {a}\naccept 0 {a}\nissue 1 {b}\nstage 2 {a}\n"),
            format!("origin {a}\nissue 0 {b}\n"),
            format!("origin {a}\nissue 65536 {b}\n"),
            format!("origin {a}\nissue -1 {b}\n"),
            format!("origin {a}\nissue 1 {b} more\n"),
            format!("origin {a}\nstage 65536 {b}\nissue 65535 {b}\n"),
        ] {
            assert!(list(&lines).is_err(), "{lines}");
        }
        let newer = format!("{TITLE}3\nanything\n");
        let error = format!("{:#}", parse(&newer).expect_err("newer"));
        assert!(error.contains("newer version"), "{error}");
    }
}
