//! The conversation with a running server, over the unix socket `DIR/control.sock`.
//!
//! One JSON object per line: a [`Request`] from the client, a [`Response`] from the server, any
//! number of times. Who may connect is who may write to the socket: its mode is 0600.
//!
//! A second server of the same pool (its nodes being processes of their own) finds the name taken
//! and listens on `control.PID.sock` beside it; clients ask every socket they find.

mod client;
mod server;

use serde::{Deserialize, Serialize};

use crate::report::PoolReport;

pub use client::{Client, find_server, servers};
pub use server::{ControlServer, Service};

/// What is asked of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// Tell everything.
    Status,
    /// Restore missing shards of a volume, or of all.
    Rebuild {
        /// Which volume.
        volume: Option<String>,
        /// Largest rate of reads, bytes per second; 0 for no limit.
        limit: u64,
    },
    /// Check every shard of a volume, or of all.
    Scrub {
        /// Which volume.
        volume: Option<String>,
        /// Largest rate of reads, bytes per second; 0 for no limit.
        limit: u64,
    },
    /// List the pool's volumes.
    VolumeList,
    /// Make a volume.
    VolumeCreate {
        /// Its name.
        name: String,
        /// Its size.
        size_bytes: u64,
        /// Its code; the pool's if absent.
        code: Option<String>,
        /// The pool may run full.
        #[serde(default)]
        thin: bool,
    },
    /// Make a volume larger.
    VolumeGrow {
        /// Which.
        name: String,
        /// Its new size.
        size_bytes: u64,
        /// The pool may run full.
        #[serde(default)]
        thin: bool,
    },
    /// Bound the rate of a device that is being served.
    VolumeLimit {
        /// Which.
        name: String,
        /// Options of the layer `limit` that change, such as `iops=500,burst=0`.
        options: String,
    },
    /// Remove a volume.
    VolumeRemove {
        /// Which.
        name: String,
        /// Even if nodes are down.
        force: bool,
    },
    /// Close all volumes cleanly and end.
    Stop,
}

/// What a server answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Response {
    /// The request is done, or under way.
    Done,
    /// To [`Request::Status`].
    Status(Box<PoolReport>),
    /// To [`Request::VolumeList`], [`Request::VolumeCreate`] and [`Request::VolumeGrow`].
    Volumes {
        /// The volumes.
        volumes: Vec<VolumeLine>,
        /// What the user should know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
    },
    /// The request cannot be done.
    Error {
        /// Why.
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
    /// Its size.
    pub size_bytes: u64,
    /// Its writer's epoch.
    pub epoch: u64,
    /// Number of nodes that know it.
    pub nodes: usize,
    /// A running server serves it.
    pub served: bool,
}
