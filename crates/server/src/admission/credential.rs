//! A client's credential: the file with which it shows a pool's metadata service who it is.
//!
//! ```text
//! { "format": 1,
//!   "pool": "…",                       the pool, 32 hexadecimal digits
//!   "client": "web1",
//!   "secret": "91be…",                 32 hexadecimal digits
//!   "metadata": ["10.0.0.1:7000"] }    the addresses of metadata services of the pool
//! ```
//!
//! A program that can read the file can act as the client. So only the owner may read it (mode
//! 0600).

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, bail};
use fieldstone_proto::{ClientSecret, PoolId};
use serde::{Deserialize, Serialize};

use super::registry::{hex, parse_hex, secret_of_hex};
use crate::json_format;
use crate::paths::check_name;

const FORMAT: u32 = 1;

/// What a client needs to open volumes of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The pool.
    pub pool: PoolId,
    /// The name of the client.
    pub client: String,
    /// The secret that it shares with the pool.
    pub secret: ClientSecret,
    /// The addresses of metadata services of the pool, `HOST:PORT`.
    pub metadata: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct CredentialFile {
    format: u32,
    pool: String,
    client: String,
    secret: String,
    metadata: Vec<String>,
}

impl Credential {
    /// Reads a credential's file.
    ///
    /// # Errors
    /// The file cannot be read, is damaged or is of a newer release.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the client's credential {shown}"))?;
        Self::parse(&text).with_context(|| format!("{shown}"))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        json_format::check(text, FORMAT)?;
        let file: CredentialFile = serde_json::from_str(text)
            .context("it is no credential of a client (`fieldstone pool admit` makes one)")?;
        check_name(&file.client)?;
        if file.metadata.is_empty() {
            bail!("it names no metadata service");
        }
        Ok(Self {
            pool: PoolId(parse_hex(&file.pool).context("the pool")?),
            client: file.client,
            secret: secret_of_hex(&file.secret).context("the secret")?,
            metadata: file.metadata,
        })
    }

    /// The content of its file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let file = CredentialFile {
            format: FORMAT,
            pool: self.pool.to_string(),
            client: self.client.clone(),
            secret: hex(self.secret),
            metadata: self.metadata.clone(),
        };
        serde_json::to_string_pretty(&file).expect("strings and a number") + "\n"
    }

    /// Writes its file, which must not exist.
    ///
    /// # Errors
    /// The file exists, or cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let write = || -> std::io::Result<()> {
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
            let written = file.write_all(self.to_text().as_bytes()).and_then(|()| file.sync_all());
            // Half a credential would keep the next one out.
            written.inspect_err(|_| drop(fs::remove_file(path)))
        };
        write().with_context(|| format!("cannot write the credential {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_credential_is_read_as_it_was_written_and_is_private() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("web.json");
        let credential = Credential {
            pool: PoolId(0x77),
            client: "web".to_owned(),
            secret: ClientSecret([0x0b; 16]),
            metadata: vec!["10.0.0.1:7000".to_owned(), "[::1]:7000".to_owned()],
        };
        credential.write(&path).expect("writable");
        assert_eq!(Credential::read(&path).expect("readable"), credential);
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(credential.write(&path).is_err(), "another secret may be there");
        let good = credential.to_text();
        for (from, to, why) in [
            ("\"format\": 1", "\"format\": 2", "newer version"),
            ("0b0b", "0b", "the secret"),
            ("\"client\": \"web\"", "\"client\": \"a/b\"", "a/b"),
            ("\"client\"", "\"customer\"", "no credential"),
        ] {
            assert!(good.contains(from), "{good}");
            fs::write(&path, good.replace(from, to)).expect("writable");
            let error = format!("{:#}", Credential::read(&path).expect_err("refused"));
            assert!(error.contains(why) && error.contains("web.json"), "{error}");
        }
    }
}
