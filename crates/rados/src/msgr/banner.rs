//! The first bytes of a connection: who speaks which revision of the protocol.
//!
//! `ceph v2\n`, u16 length of the rest, u64 supported features, u64 required features. Later
//! versions may add to the end.

use super::ConnectionError;

/// Revision 1 of the frames' format: messenger 2.1. This crate speaks no other.
pub(super) const REVISION_1: u64 = 1;
/// The bytes in front of the features.
pub(super) const PREFIX_BYTES: usize = 10;

const MAGIC: &[u8; 8] = b"ceph v2\n";
const FEATURES_BYTES: usize = 16;
/// Ceph has feature 2, compression. It is neither offered nor used.
const SUPPORTED: u64 = REVISION_1;
const REQUIRED: u64 = REVISION_1;

/// This party's banner.
pub(super) fn encode() -> [u8; PREFIX_BYTES + FEATURES_BYTES] {
    let mut bytes = [0; PREFIX_BYTES + FEATURES_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&(FEATURES_BYTES as u16).to_le_bytes());
    bytes[10..18].copy_from_slice(&SUPPORTED.to_le_bytes());
    bytes[18..].copy_from_slice(&REQUIRED.to_le_bytes());
    bytes
}

/// The length of the rest of the peer's banner.
pub(super) fn rest_bytes(prefix: [u8; PREFIX_BYTES]) -> Result<usize, ConnectionError> {
    let broken = |what: &str| Err(ConnectionError::Protocol(what.into()));
    if prefix[..8] != *MAGIC {
        return broken(if prefix.starts_with(b"ceph v0") {
            "it speaks messenger 1"
        } else {
            "its first bytes are no banner of messenger 2"
        });
    }
    let rest = u16::from_le_bytes([prefix[8], prefix[9]]).into();
    if rest < FEATURES_BYTES { broken("its banner is too short") } else { Ok(rest) }
}

/// Checks the rest of the peer's banner.
pub(super) fn check(rest: &[u8]) -> Result<(), ConnectionError> {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&rest[at..at + 8]);
        u64::from_le_bytes(word)
    };
    if rest.len() < FEATURES_BYTES {
        return Err(ConnectionError::Protocol("its banner is too short".into()));
    }
    let (supported, required) = (word(0), word(8));
    if supported & REQUIRED != REQUIRED {
        return Err(ConnectionError::Peer("the peer does not speak messenger 2.1".into()));
    }
    let unknown = required & !SUPPORTED;
    if unknown != 0 {
        let what = format!("the peer requires messenger features {unknown:#x}, not known here");
        return Err(ConnectionError::Peer(what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(supported: u64, required: u64) -> Vec<u8> {
        [supported.to_le_bytes(), required.to_le_bytes()].concat()
    }

    #[test]
    fn features_are_compared_in_both_directions() {
        check(&features(1, 0)).unwrap();
        check(&features(3, 1)).unwrap();
        check(&[features(3, 0), vec![9; 7]].concat()).unwrap();
        assert!(matches!(check(&features(2, 0)), Err(ConnectionError::Peer(_))));
        assert!(matches!(check(&features(3, 2)), Err(ConnectionError::Peer(_))));
        assert!(matches!(check(&[0; 15]), Err(ConnectionError::Protocol(_))));
    }

    #[test]
    fn a_prefix_is_checked() {
        assert_eq!(rest_bytes(*b"ceph v2\n\x10\0"), Ok(16));
        assert_eq!(rest_bytes(*b"ceph v2\n\xff\xff"), Ok(65535));
        let what = |prefix: &[u8; 10]| rest_bytes(*prefix).unwrap_err().to_string();
        assert!(what(b"ceph v2\n\x0f\0").contains("too short"));
        assert!(what(b"ceph v027x").contains("messenger 1"));
        assert!(what(b"HTTP/1.1 4").contains("no banner"));
    }
}
