//! Messages between client and monitors, in both directions: a client encodes requests and decodes
//! answers, a model of a cluster does the reverse.
//!
//! **Layout.** A monitor's message has its fields in the front. Most begin with a [`PaxosHeader`]:
//! u64 version, s16 -1, u64 0. The version is the one that the monitor must have reached before it
//! handles the message; the two other fields are for forwarding among monitors. Requests are named
//! by the `tid` of the message, and the answer has the same; only a question for a version has its
//! number in a field. Bulk input and output of commands is in the data.
//!
//! **Versions.** Each type writes the version that Ceph 16 to 20 understand, and reads that and
//! newer ones: fields behind the known ones are passed over.
//!
//! **Hostile bytes** give a [`DecodeError`].

mod auth;
mod command;
mod monmap;
mod pool;
mod subscribe;
#[cfg(test)]
mod tests;

pub use auth::{Auth, AuthReply, METHOD_CEPHX, METHOD_NONE};
pub use command::{Command, CommandAck, Config};
pub use monmap::{MonMap, MonMapMessage, MonitorInfo};
pub use pool::{
    GetPoolStats, GetPoolStatsReply, PoolOp, PoolOpKind, PoolOpReply, PoolStats, StatFs,
    StatFsReply,
};
pub use subscribe::{
    GetVersion, GetVersionReply, Subscribe, SubscribeAck, Subscription, WHAT_CONFIG, WHAT_MONMAP,
    WHAT_OSDMAP,
};

use crate::encoding::{DecodeError, Decoder, Encoder};
use crate::message::{Message, MessageKind};

/// The number of a cluster.
pub type Fsid = [u8; 16];

/// What most messages of monitors begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PaxosHeader {
    /// The monitor handles the message once it has this version.
    version: u64,
}

impl PaxosHeader {
    fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let version = from.u64("a version")?;
        from.u16("a monitor's session")?;
        from.u64("a monitor's request")?;
        Ok(Self { version })
    }

    fn encode(self, into: &mut Encoder) {
        into.u64(self.version).u16(u16::MAX).u64(0);
    }
}

/// A decoder of the front of a message that must be of this kind.
fn front(message: &Message, kind: MessageKind) -> Result<Decoder, DecodeError> {
    if message.kind != kind as u16 {
        return Err(Decoder::refused(0, message.kind.into(), "the kind of a message"));
    }
    Ok(Decoder::new(message.front.clone()))
}

fn fsid(from: &mut Decoder) -> Result<Fsid, DecodeError> {
    from.array("the number of a cluster")
}
