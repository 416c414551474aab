//! Messages between the parts of the host, and their delivery.
//!
//! A front-end, a device and a node may be on one core or on different cores. In both cases they
//! send each other [`Message`]s. The [`Router`] puts a message for its own core into a plain queue,
//! and a message for another core into the batch for that core's mailbox. So there is one code
//! path, and with one core the parts use no mailbox among themselves.
//!
//! Bounds: most messages belong to a front-end's request in flight (the front-end bounds these), to
//! a node request in flight or a request in flight of a store with branches (the store bounds
//! these), or to a control call. The other messages are few: connections, links, blocking calls,
//! changes of devices and wake-ups. When a mailbox is full, the rest of its batch waits for a later
//! turn.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc;

use fieldstone_block as block;
use fieldstone_node::{LinkTarget, NodeEvent, PeerId};
use fieldstone_proto::{NodeIndex, Reply, Request};

use crate::branch::BranchSpec;
use crate::control::Control;
use crate::disk::BlockingDone;
use crate::frontend::{FrontendId, Submitter};
use crate::issuer::SharedDirectory;
use crate::store::Mail;
use fieldstone_uring::{Endpoint, SendError, Sender, Socket};

/// A core of the host, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Core(pub usize);

/// A device that the host serves. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// The core of the device.
    #[must_use]
    pub fn core(self, cores: usize) -> Core {
        Core(self.0 as usize % cores)
    }
}

/// A node of this process. Nodes of different pools may have the same index, so the number
/// identifies the node. Texts for people show the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalNodeId {
    /// Its place among the nodes that the host was started with, from 0.
    pub number: u32,
    /// The node's index in its pool.
    pub index: NodeIndex,
}

impl LocalNodeId {
    /// The core of the node.
    #[must_use]
    pub fn core(self, cores: usize) -> Core {
        Core(self.number as usize % cores)
    }
}

impl fmt::Display for LocalNodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.index.fmt(f)
    }
}

/// The place of a node, as seen from this process.
#[derive(Clone, Debug)]
pub enum NodePlace {
    /// In this process.
    Here(LocalNodeId),
    /// At this address.
    At(Box<Endpoint>),
    /// At the address that the node's process has written into this folder.
    Announced(PathBuf),
    /// At the address that this directory has for the node.
    Listed(SharedDirectory, NodeIndex),
}

impl NodePlace {
    /// Words that say where a node outside of this process is.
    #[must_use]
    pub fn remote(&self) -> Option<String> {
        match self {
            Self::Here(_) => None,
            Self::At(endpoint) => Some(format!(" at {}", endpoint.address())),
            Self::Announced(folder) => Some(format!(" of {}", folder.display())),
            Self::Listed(directory, node) => {
                directory.address(*node).map(|address| format!(" at {address}"))
            }
        }
    }
}

/// One connection of a client to an in-process node. Each reconnection of a device has a larger
/// number, which distinguishes late messages of earlier connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The device, [`Link::ADMIN`], [`Link::SOCKET`] or [`Link::NODE`].
    pub device: u32,
    /// The number of the connection.
    pub attempt: u32,
}

impl Link {
    /// The client is a control call, not a device.
    pub const ADMIN: u32 = u32::MAX;
    /// The client is a connection from another process, not a device.
    pub const SOCKET: u32 = u32::MAX - 1;
    /// The client is another node of this process, not a device.
    pub const NODE: u32 = u32::MAX - 2;

    /// The node's name for the link.
    #[must_use]
    pub fn peer(self) -> PeerId {
        PeerId(u64::from(self.device) << 32 | u64::from(self.attempt))
    }

    /// The reverse of [`Link::peer`].
    #[must_use]
    pub fn of(peer: PeerId) -> Self {
        let low = u32::try_from(peer.0 & u64::from(u32::MAX)).expect("masked to 32 bits");
        let high = u32::try_from(peer.0 >> 32).expect("shifted to 32 bits");
        Self { device: high, attempt: low }
    }
}

/// A message from an in-process node to its client: a store, the connection of another process, or
/// another node.
#[derive(Debug)]
pub enum NodeMail {
    /// The link is open: the node runs.
    Up(NodeIndex, Link),
    /// The link is down, and its unanswered requests are lost. The node reports [`NodeMail::Up`] on
    /// the same link when it is back.
    Down(NodeIndex, Link),
    /// The node's answer.
    Reply(NodeIndex, Link, Reply),
}

/// The origin of a block request: the place where its completion goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The core of the front-end.
    pub core: Core,
    /// The front-end.
    pub frontend: FrontendId,
    /// The submitter within the front-end.
    pub submitter: Submitter,
}

/// The destination of a listener's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// This front-end. Its cores get the sockets in turn.
    Frontend(FrontendId),
    /// The core of this storage node.
    Node(LocalNodeId),
}

/// A connection that a listener has just accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub socket: Socket,
    /// The destination of the connection.
    pub to: Destination,
}

/// A message from one part to another.
#[derive(Debug)]
pub enum Message {
    /// A front-end hands a request to a device.
    Submit {
        /// The device.
        device: DeviceId,
        /// Where the completion goes.
        origin: Origin,
        /// The request.
        request: block::Request,
    },
    /// A device answers a front-end.
    Complete {
        /// The origin of the request.
        origin: Origin,
        /// The answer.
        completion: block::Completion,
    },
    /// A device, or the connection of another process, opens a link to an in-process node.
    LinkOpen {
        /// The node.
        node: LocalNodeId,
        /// The link.
        link: Link,
        /// The core of the client.
        core: Core,
    },
    /// A device, or the connection of another process, closes its link.
    LinkClose {
        /// The node.
        node: LocalNodeId,
        /// The link.
        link: Link,
    },
    /// A node sends mail to the connection of another process.
    ToPeer(NodeMail),
    /// A node sends mail to another node of this process, which passes requests on to it.
    ToNodeLink(NodeMail),
    /// A node of this core passes a request on to another node.
    Relay {
        /// The node of this core.
        from: LocalNodeId,
        /// The other node.
        to: LinkTarget,
        /// The request.
        request: Request,
    },
    /// A node of this core gives up a link to another node.
    CloseNodeLink {
        /// The node of this core.
        from: LocalNodeId,
        /// The other node.
        to: LinkTarget,
    },
    /// A node of this core is down: its links to other nodes end.
    CloseNodeLinks {
        /// The node of this core.
        from: LocalNodeId,
    },
    /// An event of a link of a node of this core.
    ToLinkedNode {
        /// The node of this core.
        node: LocalNodeId,
        /// The event.
        event: Box<NodeEvent>,
    },
    /// The node has accepted a capability that came on this link.
    LinkKnown {
        /// The node.
        node: LocalNodeId,
        /// The link.
        link: Link,
    },
    /// A device, or the connection of another process, sends a request to a node.
    ToNode {
        /// The node.
        node: LocalNodeId,
        /// The link.
        link: Link,
        /// The request.
        request: Request,
    },
    /// A part or a thread sends mail to a store.
    ToStore {
        /// The device of the store.
        device: DeviceId,
        /// The mail; the store knows its type.
        mail: Mail,
    },
    /// A store makes a branch on another core.
    BranchOpen {
        /// The device of the store.
        device: DeviceId,
        /// The core of the store.
        home: Core,
        /// Makes the branch.
        spec: Box<dyn BranchSpec>,
    },
    /// A store sends mail to its branch on another core.
    ToBranch {
        /// The device of the store.
        device: DeviceId,
        /// The mail; the branch knows its type.
        mail: Mail,
    },
    /// A store ends its branch on another core.
    BranchClose {
        /// The device of the store.
        device: DeviceId,
    },
    /// A thread sends mail to a front-end.
    ToFrontend {
        /// The front-end.
        frontend: FrontendId,
        /// The mail; the front-end knows its type.
        mail: Mail,
        /// The core drops this sender, without sending, as soon as the front-end has the mail.
        taken: mpsc::Sender<()>,
    },
    /// A thread asks a front-end to look at one of its places.
    WakeFrontend {
        /// The front-end.
        frontend: FrontendId,
        /// The index of the place.
        index: u32,
    },
    /// A device has begun to serve, its properties have changed, or it is forgotten.
    DeviceInfo {
        /// The device, of any core.
        device: DeviceId,
        /// Its present properties; `None` if it is forgotten.
        info: Option<Box<block::Info>>,
    },
    /// A listener has accepted a connection, which will live on this core.
    Accepted(Accepted),
    /// A node's thread for blocking calls has finished a call.
    Blocking(Box<BlockingDone>),
    /// A control call.
    Control(Box<Control>),
}

/// Delivers messages within a core and between cores.
pub struct Router {
    /// The router's own core.
    pub me: Core,
    local: VecDeque<Message>,
    senders: Vec<Sender<Message>>,
    batches: Vec<Vec<Message>>,
    /// A mailbox was full at the last flush.
    blocked: bool,
}

impl Router {
    /// A router of core `me`. `senders` has the mailbox of every core, including its own.
    #[must_use]
    pub fn new(me: Core, senders: Vec<Sender<Message>>) -> Self {
        let batches = senders.iter().map(|_| Vec::new()).collect();
        Self { me, local: VecDeque::new(), senders, batches, blocked: false }
    }

    /// Number of cores.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.senders.len()
    }

    /// Queues a message for a core.
    pub fn send(&mut self, to: Core, message: Message) {
        if to == self.me {
            self.local.push_back(message);
        } else {
            self.batches[to.0].push(message);
        }
    }

    /// Takes the next message for this core.
    pub fn next_local(&mut self) -> Option<Message> {
        self.local.pop_front()
    }

    /// True if no message for this core waits.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.local.is_empty()
    }

    /// Queues a message for every core.
    pub fn send_all(&mut self, message: impl Fn() -> Message) {
        for core in 0..self.cores() {
            self.send(Core(core), message());
        }
    }

    /// A sender to this core's mailbox, for other threads.
    #[must_use]
    pub fn own_sender(&self) -> Sender<Message> {
        self.senders[self.me.0].clone()
    }

    /// Sends the batches. Messages that a full mailbox refuses stay, in order; see
    /// [`Router::blocked`].
    pub fn flush(&mut self) {
        self.blocked = false;
        for (batch, sender) in self.batches.iter_mut().zip(&self.senders) {
            if batch.is_empty() {
                continue;
            }
            let mut messages = std::mem::take(batch).into_iter();
            for message in messages.by_ref() {
                match sender.send(message) {
                    // A closed mailbox means that its core has ended: the host is stopping.
                    Ok(()) | Err(SendError::Closed(_)) => {}
                    Err(SendError::Full(message)) => {
                        batch.push(message);
                        self.blocked = true;
                        break;
                    }
                }
            }
            batch.extend(messages);
        }
    }

    /// True if a mailbox was full. Then flush again soon.
    #[must_use]
    pub fn blocked(&self) -> bool {
        self.blocked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_peers_are_one_to_one() {
        for link in [
            Link { device: 0, attempt: 0 },
            Link { device: 7, attempt: u32::MAX },
            Link { device: Link::ADMIN, attempt: 3 },
        ] {
            assert_eq!(Link::of(link.peer()), link);
        }
    }
}
