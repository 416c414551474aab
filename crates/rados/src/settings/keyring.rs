//! Keyrings: files with the keys of entities.
//!
//! ```text
//! [client.admin]
//!     key = AQCcuQlr2rZeHxAAbMge7JV2zRjNUGnfBGi9Cg==
//!     caps mon = "allow *"
//! ```
//!
//! The syntax is that of `ceph.conf`. Capabilities are of no use to a client. The old binary form
//! of keyrings is not read.

use super::SettingsError;
use super::conf::ConfFile;
use crate::auth::{CryptoKey, Entity};

/// The key of an entity in the text of a keyring; `None` if the keyring does not have it.
///
/// # Errors
/// The text is no keyring, or the key is damaged. The error has the line, and not the key.
pub fn find(
    file_name: &str,
    text: &str,
    entity: &Entity,
) -> Result<Option<CryptoKey>, SettingsError> {
    let file = ConfFile::parse(file_name, text)?;
    let Some(value) = file.get(&entity.to_string(), "key") else {
        return Ok(None);
    };
    let key = CryptoKey::from_base64(&value.text);
    key.map(Some).map_err(|error| SettingsError::at_line(file_name, value.line, &error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[client.admin]\n\
        \tkey = AQCcuQlr2rZeHxAAbMge7JV2zRjNUGnfBGi9Cg==\n\
        \tcaps mds = \"allow *\"\n\
        \tcaps osd = \"allow *\"\n\
        [client.bad]\n\
        key = AQCcuQ==\n\
        [client.none]\n";

    #[test]
    fn finds_keys() {
        let find = |id| find("k", TEXT, &Entity::client(id));
        let key = find("admin").expect("sound").expect("there");
        assert_eq!(key.to_base64(), "AQCcuQlr2rZeHxAAbMge7JV2zRjNUGnfBGi9Cg==");
        assert_eq!(find("none"), Ok(None));
        assert_eq!(find("other"), Ok(None));
        let error = find("bad").expect_err("damaged").to_string();
        assert!(error.starts_with("k:6: the key is damaged"), "{error}");
        assert!(!error.contains("AQCcuQ"));
    }
}
