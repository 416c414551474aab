//! Passphrases, read from files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use zeroize::{Zeroize, Zeroizing};

use crate::LuksError;

/// The longest passphrase.
pub const PASSPHRASE_BYTES_MAX: usize = 64 << 10;

/// A passphrase. It is wiped when it is dropped, and is never printed.
pub struct Passphrase(Zeroizing<Vec<u8>>);

impl std::fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Passphrase")
    }
}

impl Passphrase {
    /// A passphrase of these bytes.
    ///
    /// # Errors
    /// It is empty or too long.
    pub fn new(bytes: Vec<u8>) -> Result<Self, LuksError> {
        let bytes = Zeroizing::new(bytes);
        if bytes.is_empty() {
            return Err(LuksError::Passphrase("the passphrase is empty".to_owned()));
        }
        if bytes.len() > PASSPHRASE_BYTES_MAX {
            let text = format!("the passphrase has more than {PASSPHRASE_BYTES_MAX} bytes");
            return Err(LuksError::Passphrase(text));
        }
        Ok(Self(bytes))
    }

    /// Reads a file as Ceph's command `rbd` reads it: all bytes count, except one line feed at the
    /// end.
    ///
    /// # Errors
    /// The file cannot be read, is empty, or is too long.
    pub fn read(path: &Path) -> Result<Self, LuksError> {
        let named = |what: &dyn std::fmt::Display| {
            LuksError::Passphrase(format!("the passphrase file {}: {what}", path.display()))
        };
        let mut file = File::open(path).map_err(|error| named(&error))?;
        // Room for all bytes from the start: a vector that grows leaves copies behind.
        let mut bytes = Zeroizing::new(vec![0; PASSPHRASE_BYTES_MAX + 2]);
        let mut len = 0;
        while len < bytes.len() {
            match file.read(&mut bytes[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(named(&error)),
            }
        }
        if len > 0 && bytes[len - 1] == b'\n' {
            len -= 1;
        }
        bytes[len..].zeroize();
        Self::new(bytes[..len].to_vec()).map_err(|error| named(&error))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_feed_at_the_end_does_not_count() {
        let path = std::env::temp_dir().join(format!("passphrase-{}", std::process::id()));
        let read = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            Passphrase::read(&path).map(|passphrase| passphrase.bytes().to_vec())
        };
        assert_eq!(read(b"open\n").unwrap(), b"open");
        assert_eq!(read(b" open \r\n\n").unwrap(), b" open \r\n");
        assert_eq!(read(b"open").unwrap(), b"open");
        assert!(read(b"\n").unwrap_err().to_string().ends_with("the passphrase is empty"));
        assert_eq!(read(&vec![b'x'; PASSPHRASE_BYTES_MAX]).unwrap().len(), PASSPHRASE_BYTES_MAX);
        assert!(read(&vec![b'x'; PASSPHRASE_BYTES_MAX + 1]).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(Passphrase::read(&path).is_err());
        assert_eq!(format!("{:?}", Passphrase::new(b"open".to_vec()).unwrap()), "Passphrase");
    }
}
