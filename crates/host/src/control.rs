//! Control calls: what other threads ask of a core, and what they are told.
//!
//! A call travels in a core's mailbox with a channel for its answer. Calls may block their thread;
//! no core ever waits for one.

use std::sync::mpsc;

use fieldstone_block::{Info, Settings};
use fieldstone_proto::{Reply, Request};

use crate::device::{DeviceSpec, DeviceStats};
use crate::frontend::FrontendCounts;
use crate::message::{Destination, DeviceId, Link, LocalNodeId};
use crate::node_local::LocalNodeStatus;
use crate::store::{Call, Mail, Phase};
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
    /// Accept connections.
    Listen {
        /// Where.
        listener: Listener,
        /// Where the sockets go.
        to: Destination,
    },
    /// Tell how things stand.
    Snapshot {
        /// With what devices count and measure, which takes a core about a millisecond.
        with_stats: bool,
        /// The answer.
        reply: mpsc::Sender<CoreSnapshot>,
    },
    /// Call a device's store.
    CallStore {
        /// Which device.
        device: DeviceId,
        /// The call and its options.
        call: Settings,
        /// The answer: whether it was carried out or started.
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
        node: LocalNodeId,
        /// The connection.
        link: Link,
        /// Where answers go.
        replies: mpsc::Sender<Reply>,
    },
    /// Ask the node something.
    NodeRequest {
        /// The node.
        node: LocalNodeId,
        /// The connection.
        link: Link,
        /// What.
        request: Request,
    },
    /// Disconnect.
    NodeClose {
        /// The node.
        node: LocalNodeId,
        /// The connection.
        link: Link,
    },
    /// Refuse new requests and accept no more connections; answered when none is in flight.
    Drain(mpsc::Sender<()>),
    /// End the core.
    Stop,
}

/// What a core tells about itself.
#[derive(Debug)]
pub struct CoreSnapshot {
    /// Which core.
    pub core: usize,
    /// Its devices.
    pub devices: Vec<DeviceSnapshot>,
    /// Its in-process nodes.
    pub nodes: Vec<LocalNodeStatus>,
    /// Its front-ends.
    pub frontends: Vec<FrontendSnapshot>,
    /// What its ring has done.
    pub ring: Counters,
    /// What its thread has used.
    pub usage: ThreadUsage,
}

impl CoreSnapshot {
    /// The front-end of this kind, if the core has one.
    #[must_use]
    pub fn frontend(&self, kind: &str) -> Option<&FrontendSnapshot> {
        self.frontends.iter().find(|frontend| frontend.kind == kind)
    }
}

/// What is told about a front-end on a core.
#[derive(Clone, Copy, Debug)]
pub struct FrontendSnapshot {
    /// What it is, in a word.
    pub kind: &'static str,
    /// Its connections.
    pub counts: FrontendCounts,
    /// Requests handed over and not yet answered.
    pub in_flight: usize,
}

/// What is told about a device.
#[derive(Debug)]
pub struct DeviceSnapshot {
    /// The device.
    pub device: DeviceId,
    /// The name of its export.
    pub name: String,
    /// Its size and limits.
    pub info: Info,
    /// What its store is, in a word.
    pub kind: &'static str,
    /// Where its store is in its life.
    pub phase: Phase,
    /// How its store stands, in a type of the store's own.
    pub status: Option<Mail>,
    /// The calls that its store takes.
    pub calls: &'static [Call],
    /// Requests, latencies, cache; empty when they were not asked for.
    pub stats: DeviceStats,
}

impl DeviceSnapshot {
    /// The status of a store that tells of itself in this type.
    #[must_use]
    pub fn status_of<T: 'static>(&self) -> Option<&T> {
        self.status.as_ref()?.downcast_ref()
    }
}
