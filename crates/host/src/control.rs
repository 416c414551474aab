//! Control calls: requests of other threads to a core, and the answers.
//!
//! A call comes through the core's mailbox, with a channel for its answer. A call may block the
//! calling thread. No core waits for a caller.

use std::sync::mpsc;

use fieldstone_block::{Info, OpenFailure, Settings};
use fieldstone_proto::{Reply, Request};

use crate::device::{DeviceSpec, DeviceStats};
use crate::frontend::FrontendCounts;
use crate::message::{Destination, DeviceId, Link, LocalNodeId};
use crate::node_local::LocalNodeStatus;
use crate::store::{Call, Mail, Phase};
use crate::turn_times::TurnSummary;
use fieldstone_uring::{Counters, Listener, ThreadUsage};

/// A call to a core.
#[derive(Debug)]
pub enum Control {
    /// Open a device. The answer comes when it serves or has failed.
    OpenDevice {
        /// The id of the device. It must belong to this core.
        device: DeviceId,
        /// The configuration.
        spec: Box<DeviceSpec>,
        /// The answer.
        reply: mpsc::Sender<Result<Info, OpenFailure>>,
    },
    /// Close a device cleanly. The answer comes when everything is stable.
    CloseDevice {
        /// The device.
        device: DeviceId,
        /// The answer.
        reply: mpsc::Sender<Result<(), String>>,
    },
    /// Drop a device that was closed or could not be opened.
    ForgetDevice {
        /// The device.
        device: DeviceId,
    },
    /// Accept connections.
    Listen {
        /// The listener.
        listener: Listener,
        /// The destination of the sockets.
        to: Destination,
    },
    /// Report the status.
    Snapshot {
        /// Include the devices' counts and measurements, which cost a core about a millisecond.
        with_stats: bool,
        /// The answer.
        reply: mpsc::Sender<CoreSnapshot>,
    },
    /// Call a device's store.
    CallStore {
        /// The device.
        device: DeviceId,
        /// The call and its options.
        call: Settings,
        /// The answer: success when the call was carried out or started.
        reply: mpsc::Sender<Result<(), String>>,
    },
    /// Change options of a device's layer.
    ChangeLayer {
        /// The device.
        device: DeviceId,
        /// The layer, and the options that change.
        settings: Settings,
        /// The answer: success when the options are in force.
        reply: mpsc::Sender<Result<(), String>>,
    },
    /// Open a link for a control call to an in-process node.
    NodeOpen {
        /// The node.
        node: LocalNodeId,
        /// The link.
        link: Link,
        /// The channel for the answers.
        replies: mpsc::Sender<Reply>,
    },
    /// Send a request to the node.
    NodeRequest {
        /// The node.
        node: LocalNodeId,
        /// The link.
        link: Link,
        /// The request.
        request: Request,
    },
    /// Close the link.
    NodeClose {
        /// The node.
        node: LocalNodeId,
        /// The link.
        link: Link,
    },
    /// Give nodes and volumes the present secrets of their pools.
    Keys {
        /// The core drops this sender, without sending, when this is done.
        taken: mpsc::Sender<()>,
    },
    /// Refuse new requests and connections. The answer comes when no request is in flight.
    Drain(mpsc::Sender<()>),
    /// End the core.
    Stop,
}

/// The status of a core.
#[derive(Debug)]
pub struct CoreSnapshot {
    /// The number of the core.
    pub core: usize,
    /// Its devices.
    pub devices: Vec<DeviceSnapshot>,
    /// Its in-process nodes.
    pub nodes: Vec<LocalNodeStatus>,
    /// Its front-ends.
    pub frontends: Vec<FrontendSnapshot>,
    /// Its turns.
    pub turns: TurnSummary,
    /// Counters of its ring.
    pub ring: Counters,
    /// Resources that its thread has used.
    pub usage: ThreadUsage,
}

impl CoreSnapshot {
    /// The front-end of this kind, if the core has one.
    #[must_use]
    pub fn frontend(&self, kind: &str) -> Option<&FrontendSnapshot> {
        self.frontends.iter().find(|frontend| frontend.kind == kind)
    }
}

/// The status of a front-end on a core.
#[derive(Clone, Copy, Debug)]
pub struct FrontendSnapshot {
    /// The kind in one word.
    pub kind: &'static str,
    /// The counts of its connections.
    pub counts: FrontendCounts,
    /// Requests that were handed over and have no answer yet.
    pub in_flight: usize,
}

/// The status of a device.
#[derive(Debug)]
pub struct DeviceSnapshot {
    /// The device.
    pub device: DeviceId,
    /// The name of its export.
    pub name: String,
    /// Its size and limits.
    pub info: Info,
    /// The kind of its store in one word.
    pub kind: &'static str,
    /// The phase of its store's life.
    pub phase: Phase,
    /// The status of its store, in the store's own type.
    pub status: Option<Mail>,
    /// The calls of its store.
    pub calls: &'static [Call],
    /// Requests, latencies and cache; empty if the caller did not ask for them.
    pub stats: DeviceStats,
}

impl DeviceSnapshot {
    /// The store's status, if it is of type `T`.
    #[must_use]
    pub fn status_of<T: 'static>(&self) -> Option<&T> {
        self.status.as_ref()?.downcast_ref()
    }
}
