//! Control calls: what other threads ask of a core, and what they are told.
//!
//! A call travels in a core's mailbox with a channel for its answer. Calls may block their thread;
//! no core ever waits for one.

use std::sync::Arc;
use std::sync::mpsc;

use fieldstone_block::{Info, Settings};
use fieldstone_proto::{NodeIndex, Reply, Request};
use fieldstone_volume::Status;

use crate::device::{DeviceSpec, DeviceStats};
use crate::message::{DeviceId, Link};
use crate::nbd_server::{Exports, Service};
use crate::node_local::LocalNodeStatus;
use fieldstone_uring::{Counters, Listener, ThreadUsage};

/// A call to a core.
#[derive(Debug)]
pub enum Control {
    /// Open a device; answered when it serves, or has failed.
    OpenDevice {
        /// Its id; the core must be the one that the id belongs to.
        device: DeviceId,
        /// What it is.
        spec: Box<DeviceSpec>,
        /// The answer.
        reply: mpsc::Sender<Result<Info, String>>,
    },
    /// Close a device cleanly; answered when all is stable.
    CloseDevice {
        /// Which.
        device: DeviceId,
        /// The answer.
        reply: mpsc::Sender<Result<(), String>>,
    },
    /// Let go of a device that was closed or could not be opened.
    ForgetDevice {
        /// Which.
        device: DeviceId,
    },
    /// Offer these exports to connections from now on.
    Offer {
        /// What is offered.
        exports: Arc<Exports>,
        /// The core drops it as soon as it has the exports; nothing is sent.
        taken: mpsc::Sender<()>,
    },
    /// Accept connections.
    Listen {
        /// Where.
        listener: Listener,
        /// What for.
        service: Service,
    },
    /// Tell how things stand.
    Snapshot {
        /// With what devices count and measure, which takes a core about a millisecond.
        with_stats: bool,
        /// The answer.
        reply: mpsc::Sender<CoreSnapshot>,
    },
    /// Start a job of a volume.
    Job {
        /// Which volume.
        device: DeviceId,
        /// What job.
        job: Job,
        /// The answer: whether it was started.
        reply: mpsc::Sender<Result<(), String>>,
    },
    /// Change options of a device's layer.
    ChangeLayer {
        /// Which device.
        device: DeviceId,
        /// The layer, and the options that change.
        settings: Settings,
        /// The answer: whether they are in force.
        reply: mpsc::Sender<Result<(), String>>,
    },
    /// Connect a control call to an in-process node.
    NodeOpen {
        /// The node.
        node: NodeIndex,
        /// The connection.
        link: Link,
        /// Where answers go.
        replies: mpsc::Sender<Reply>,
    },
    /// Ask the node something.
    NodeRequest {
        /// The node.
        node: NodeIndex,
        /// The connection.
        link: Link,
        /// What.
        request: Request,
    },
    /// Disconnect.
    NodeClose {
        /// The node.
        node: NodeIndex,
        /// The connection.
        link: Link,
    },
    /// Refuse new requests and accept no more connections; answered when none is in flight.
    Drain(mpsc::Sender<()>),
    /// End the core.
    Stop,
}

/// A job that a volume does beside serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Restore missing shards.
    Rebuild {
        /// Largest rate of reads; 0 for no limit.
        limit_bytes_per_second: u64,
    },
    /// Check every shard.
    Scrub {
        /// Largest rate of reads; 0 for no limit.
        limit_bytes_per_second: u64,
    },
    /// Make the device larger.
    Grow {
        /// Its new size.
        size_bytes: u64,
        /// From now on it reserves only what it needs.
        thin: bool,
    },
}

/// What a core tells about itself.
#[derive(Clone, Debug)]
pub struct CoreSnapshot {
    /// Which core.
    pub core: usize,
    /// Its devices.
    pub devices: Vec<DeviceSnapshot>,
    /// Its in-process nodes.
    pub nodes: Vec<LocalNodeStatus>,
    /// NBD connections open now.
    pub connections: usize,
    /// NBD connections since start.
    pub accepted: u64,
    /// What its ring has done.
    pub ring: Counters,
    /// What its thread has used.
    pub usage: ThreadUsage,
}

/// What is told about a device.
#[derive(Clone, Debug)]
pub struct DeviceSnapshot {
    /// The device.
    pub device: DeviceId,
    /// The name of its export.
    pub name: String,
    /// Its size and limits.
    pub info: Info,
    /// The volume's state, if it is a volume.
    pub volume: Option<Status>,
    /// Requests, latencies, cache; empty when they were not asked for.
    pub stats: DeviceStats,
}
