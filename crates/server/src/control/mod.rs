//! The protocol between a running server and its clients, over the unix socket `DIR/control.sock`.
//!
//! The client sends a [`Request`] and the server sends a [`Response`], any number of times. Each is
//! a JSON object on one line. Every user who may write to the socket may connect: the mode of the
//! socket is 0600.
//!
//! A second server of the same pool, whose nodes run in other processes, finds the name taken. It
//! listens on `control.PID.sock` in the same folder. Clients ask all these sockets.

mod client;
mod server;

use serde::{Deserialize, Serialize};

use crate::admission::Evicted;
use crate::report::PoolReport;
use crate::rotation::report::KeysReport;

pub use client::{Client, every_server, find_server, servers};
pub use server::{ControlServer, Service};

/// A request to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// Return the complete report.
    Status,
    /// Restore the missing shards of a volume, or of all volumes.
    Rebuild {
        /// The volume; all if absent.
        volume: Option<String>,
        /// Largest rate of reads in bytes per second; 0 for no limit.
        limit: u64,
    },
    /// Check every shard of a volume, or of all volumes.
    Scrub {
        /// The volume; all if absent.
        volume: Option<String>,
        /// Largest rate of reads in bytes per second; 0 for no limit.
        limit: u64,
    },
    /// Read the pool's secrets again, and return who has them.
    Keys {
        /// Ask the nodes, too, whether they refuse the generation before the oldest.
        #[serde(default)]
        retired: bool,
    },
    /// Evict a client of the pool, and return what was fenced.
    Evict {
        /// The name of the client.
        client: String,
    },
    /// List the pool's volumes.
    VolumeList,
    /// Make a volume, and return it.
    VolumeCreate {
        /// Its name.
        name: String,
        /// Its size in bytes.
        size_bytes: u64,
        /// Its code; the default code of the pool if absent.
        code: Option<String>,
        /// Allow volumes that need more space than the pool has.
        #[serde(default)]
        thin: bool,
    },
    /// Make a volume larger, and return it.
    VolumeGrow {
        /// The name of the volume.
        name: String,
        /// Its new size in bytes.
        size_bytes: u64,
        /// Allow volumes that need more space than the pool has.
        #[serde(default)]
        thin: bool,
    },
    /// Change the rate limit of a served device.
    VolumeLimit {
        /// The name of the volume or store.
        name: String,
        /// The options of the layer `limit` to change, such as `iops=500,burst=0`.
        options: String,
    },
    /// Remove a volume.
    VolumeRemove {
        /// The name of the volume.
        name: String,
        /// Remove it also if nodes are down.
        force: bool,
    },
    /// Close all volumes cleanly, and end the server.
    Stop,
}

/// A server's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Response {
    /// The request is done, or is under way.
    Done,
    /// The answer to [`Request::Status`].
    Status(Box<PoolReport>),
    /// The answer to [`Request::Keys`].
    Keys(Box<KeysReport>),
    /// The answer to [`Request::Evict`].
    Evicted(Evicted),
    /// The answer to [`Request::VolumeList`], [`Request::VolumeCreate`] and
    /// [`Request::VolumeGrow`].
    Volumes {
        /// The volumes.
        volumes: Vec<VolumeLine>,
        /// A warning for the user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
    },
    /// The request failed.
    Error {
        /// The reason.
        error: String,
    },
}

/// A volume in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLine {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Its code.
    pub code: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The epoch of its writer.
    pub epoch: u64,
    /// Number of nodes that know the volume.
    pub nodes: usize,
    /// A server of the pool, or a client, serves the volume.
    pub served: bool,
    /// The client of the pool that has the volume open on its own machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
}
