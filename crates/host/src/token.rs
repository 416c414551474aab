//! The meaning of the reactor's tokens in the host.
//!
//! ```text
//!  63      56 55           32 31            0
//! +----------+---------------+---------------+
//! |   kind   |     scope     |     index     |
//! +----------+---------------+---------------+
//! ```
//!
//! `scope` is a node, device or front-end. `index` is a place in a table, or a number that the part
//! chose. A place becomes free only when all its operations have ended. So a token never names an
//! operation of a part that had the place before.

use fieldstone_uring::Token;

/// The part and operation of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// This core's mailbox.
    Mail = 1,
    /// Accepting on listener `index`.
    Accept = 2,
    /// Operation `index` of front-end `scope`.
    Frontend = 3,
    /// A disk operation `index` of node `scope`.
    Disk = 4,
    /// The timer of device `scope`.
    DeviceTimer = 5,
    /// Operation `index` of the store of device `scope`.
    Store = 6,
    /// Receiving on node connection `index`.
    PeerReceive = 7,
    /// Sending on node connection `index`.
    PeerSend = 8,
    /// The timer for node folders and full mailboxes.
    Housekeeping = 9,
    /// The timer for pending connections, memory that connections wait for, unanswered requests,
    /// deadlines of front-ends, and log lines left out.
    Watch = 10,
    /// Receiving on link `index` between nodes.
    LinkReceive = 11,
    /// Sending on link `index` between nodes.
    LinkSend = 12,
    /// Connecting link `index` between nodes.
    LinkConnect = 13,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::Mail,
        Kind::Accept,
        Kind::Frontend,
        Kind::Disk,
        Kind::DeviceTimer,
        Kind::Store,
        Kind::PeerReceive,
        Kind::PeerSend,
        Kind::Housekeeping,
        Kind::Watch,
        Kind::LinkReceive,
        Kind::LinkSend,
        Kind::LinkConnect,
    ];
}

/// Largest scope.
const SCOPE_MASK: u64 = (1 << 24) - 1;

/// Makes a token.
pub fn token(kind: Kind, scope: u32, index: u32) -> Token {
    debug_assert!(u64::from(scope) <= SCOPE_MASK, "scopes count nodes or devices of one process");
    Token((kind as u64) << 56 | (u64::from(scope) & SCOPE_MASK) << 32 | u64::from(index))
}

/// Splits a token. `None` for a token that [`token`] did not make.
pub fn split(token: Token) -> Option<(Kind, u32, u32)> {
    let kind = (token.0 >> 56).checked_sub(1)?;
    let kind = *Kind::ALL.get(usize::try_from(kind).ok()?)?;
    let scope = u32::try_from(token.0 >> 32 & SCOPE_MASK).ok()?;
    let index = u32::try_from(token.0 & u64::from(u32::MAX)).ok()?;
    Some((kind, scope, index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_apart_as_they_were_made() {
        for kind in Kind::ALL {
            for (scope, index) in [(0, 0), (5, u32::MAX), ((1 << 24) - 1, 7)] {
                assert_eq!(split(token(kind, scope, index)), Some((kind, scope, index)));
            }
        }
        assert_eq!(split(Token(0)), None);
        assert_eq!(split(Token(u64::MAX)), None);
    }
}
