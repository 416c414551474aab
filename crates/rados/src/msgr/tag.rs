//! What a frame is for.

use std::fmt;

/// The kinds of frames, with Ceph's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Tag {
    Hello = 1,
    AuthRequest,
    AuthBadMethod,
    AuthReplyMore,
    AuthRequestMore,
    AuthDone,
    AuthSignature,
    ClientIdent,
    ServerIdent,
    IdentMissingFeatures,
    SessionReconnect,
    SessionReset,
    SessionRetry,
    SessionRetryGlobal,
    SessionReconnectOk,
    Wait,
    Message,
    Keepalive2,
    Keepalive2Ack,
    Ack,
}

const ALL: [Tag; 20] = [
    Tag::Hello,
    Tag::AuthRequest,
    Tag::AuthBadMethod,
    Tag::AuthReplyMore,
    Tag::AuthRequestMore,
    Tag::AuthDone,
    Tag::AuthSignature,
    Tag::ClientIdent,
    Tag::ServerIdent,
    Tag::IdentMissingFeatures,
    Tag::SessionReconnect,
    Tag::SessionReset,
    Tag::SessionRetry,
    Tag::SessionRetryGlobal,
    Tag::SessionReconnectOk,
    Tag::Wait,
    Tag::Message,
    Tag::Keepalive2,
    Tag::Keepalive2Ack,
    Tag::Ack,
];

impl Tag {
    /// The tag with this number.
    pub(super) fn of(number: u8) -> Option<Self> {
        ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} ({})", *self as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_tags_agree() {
        for number in 0..=255 {
            assert_eq!(
                Tag::of(number).map(|tag| tag as u8),
                (1..=20).contains(&number).then_some(number)
            );
        }
        assert_eq!((Tag::Message as u8, Tag::Ack as u8), (17, 20));
    }
}
