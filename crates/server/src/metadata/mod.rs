//! The metadata service of a pool: where a volume lies, and capabilities for it, for clients that
//! do not have the pool's folder ([`admission`](crate::admission)).
//!
//! ```text
//! client                                          service (in a server of the pool)
//!   | Hello: pool, name, random number       ------> |
//!   | <------ Welcome: random number, or Refused     |   both derive the key of the session
//!   | Open: name of a volume, own number     ------> |   may the client open it?
//!   | <------ Layout: id, code, nodes' addresses     |
//!   | Issue: volume, epoch                   ------> |   notes it in clients.json, and signs
//!   | <------ Capability, and its lifetime           |
//!   | Watch: oldest generation in use, report -----> |   each second
//!   | <------ generation that signs, addresses, calls|
//! ```
//!
//! A message is a JSON object on one line. After the welcome, the seal of the message comes before
//! it, 32 hexadecimal digits and a space ([`SessionKey`]). So neither side takes a message of a
//! third one. A message is at most 64 KiB long.
//!
//! The client then speaks to the nodes directly, with the capabilities: data never passes through
//! the service. It asks for the next capability when half of the lifetime is over. So the service
//! may be away for half of the lifetime, and the pool may have several services. They share their
//! state, the file `clients.json`, and nothing else.
//!
//! # Epochs
//!
//! The client chooses the epoch that it opens a volume with, as a server does. The service issues
//! only for an epoch that an opening of that moment could choose: at most a few above the highest
//! that nodes or grants have. So a client cannot use up the epochs of a volume.
//!
//! # Refusals
//!
//! *Refused* is final for the client: it is not admitted, or may not open the volume. *Failed*
//! passes: nodes do not answer, or the registry cannot be read at the moment.

pub mod client;
mod issue_clock;
mod lines;
pub mod service;
mod session;

use fieldstone_proto::{Capability, Epoch, Rights, SegmentId, VolumeId};
use serde::{Deserialize, Serialize};

use crate::running::client_volumes::{ClientAnswer, ClientCall};

pub(crate) use client::WATCH_PERIOD;
pub use client::{ClientDevice, MetadataClient, RemoteVolume};
pub use service::MetadataServer;

/// The version of the protocol.
const VERSION: u32 = 1;

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of the protocol.
    pub version: u32,
    /// The pool, 32 hexadecimal digits.
    pub pool: String,
    /// The name of the client.
    pub client: String,
    /// A random number, 32 hexadecimal digits.
    pub random: String,
}

/// The service's answer to [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Welcome {
    /// The session begins. A random number, 32 hexadecimal digits.
    Random(String),
    /// The service does not know the pool.
    OtherPool(String),
    /// The pool does not admit the client.
    Refused(String),
    /// The service cannot tell at the moment.
    Failed(String),
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// Find a volume, by its name. This comes before the other requests about the volume.
    Open {
        /// The name of the volume.
        volume: String,
        /// A number that the client's process has chosen for this volume, 32 hexadecimal digits.
        instance: String,
    },
    /// Issue a capability for an epoch of the volume that was opened last.
    Issue {
        /// The epoch.
        epoch: u64,
    },
    /// Tell what has changed.
    Watch {
        /// The oldest generation of the pool's secret that the volume still uses, if that is known
        /// and was not told before.
        oldest: Option<u16>,
        /// The [report](crate::report::VolumeReport) on the volume, if it has changed since the
        /// client told it. Something else if there is none any more.
        #[serde(default)]
        report: Option<serde_json::Value>,
        /// Answers to calls of before.
        #[serde(default)]
        answers: Vec<ClientAnswer>,
    },
}

/// The service's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Response {
    /// The answer to [`Request::Open`].
    Layout(Layout),
    /// The answer to [`Request::Issue`].
    Issued {
        /// The capability.
        capability: IssuedCapability,
        /// How long it is valid, from now.
        lifetime_ns: u64,
    },
    /// The answer to [`Request::Watch`].
    Present {
        /// The generation of the pool's secret that signs.
        generation: u16,
        /// The addresses of the nodes, as in [`Layout::nodes`], if they have changed since the
        /// client was told.
        nodes: Option<NodeAddresses>,
        /// Calls for the volume to carry out.
        #[serde(default)]
        calls: Vec<ClientCall>,
    },
    /// The client may not do this, now and later.
    Refused {
        /// The reason.
        reason: String,
    },
    /// This does not work at the moment.
    Failed {
        /// The reason.
        reason: String,
    },
}

/// What a client needs to open a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The id of the volume, 32 hexadecimal digits.
    pub volume: String,
    /// Its code.
    pub code: String,
    /// How records of journals reach their nodes, as for `pool create --replicate`.
    pub replicate: String,
    /// Who makes the parity, as for `pool create --encode`.
    pub encode: String,
    /// Where the nodes are.
    pub nodes: NodeAddresses,
}

/// The address of each node of the pool, in order; `None` for a node without one.
pub type NodeAddresses = Vec<Option<String>>;

/// A [`Capability`] as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedCapability {
    volume: String,
    epoch: u64,
    rights: u32,
    segment_first: u64,
    segment_last: u64,
    expires_ns: u64,
    mac: String,
}

impl From<Capability> for IssuedCapability {
    fn from(capability: Capability) -> Self {
        Self {
            volume: capability.volume.to_string(),
            epoch: capability.epoch.0,
            rights: capability.rights.0,
            segment_first: capability.segment_first.0,
            segment_last: capability.segment_last.0,
            expires_ns: capability.expires_ns,
            mac: lines::hex(u128::from_be_bytes(capability.mac)),
        }
    }
}

impl IssuedCapability {
    /// The capability.
    ///
    /// # Errors
    /// A field is no number of 32 hexadecimal digits.
    pub fn capability(&self) -> anyhow::Result<Capability> {
        Ok(Capability {
            volume: VolumeId(lines::number(&self.volume)?),
            epoch: Epoch(self.epoch),
            rights: Rights(self.rights),
            segment_first: SegmentId(self.segment_first),
            segment_last: SegmentId(self.segment_last),
            expires_ns: self.expires_ns,
            mac: lines::number(&self.mac)?.to_be_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::{KeyGeneration, MasterKey};

    use super::*;

    #[test]
    fn a_capability_arrives_as_it_was_issued() {
        let (volume, epoch) = (VolumeId(u128::MAX / 3), Epoch(9));
        let key = MasterKey([7; 16]).derive(volume, epoch);
        let rights = Rights::ALL.of_generation(KeyGeneration(3));
        let issued = Capability::issue(&key, volume, epoch, rights, u64::MAX - 1);
        let text = serde_json::to_string(&IssuedCapability::from(issued)).expect("plain");
        let back: IssuedCapability = serde_json::from_str(&text).expect("read");
        assert_eq!(back.capability().expect("valid"), issued);
    }
}
