//! What the parts of the host tell each other, and how it gets there.
//!
//! A front-end, a device and a node may live on one core or on three. They talk in [`Message`]s
//! either way: the [`Router`] puts a message for the own core into a plain queue, and a message for
//! another core into the batch for its mailbox. So there is one code path, and with one core no
//! channel is ever touched.
//!
//! Bounds: every message is caused by a front-end's request in flight (bounded by the front-end:
//! `nbd::Limits` for each connection), by a node request in flight (bounded by the volume), or by a
//! control call. The mailbox is sized well above; when it is full all the same, its batch waits for
//! the next turn.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc;

use fieldstone_block as block;
use fieldstone_node::PeerId;
use fieldstone_proto::{NodeIndex, Request};

use crate::control::Control;
use crate::disk::ChoreDone;
use crate::frontend::{FrontendId, Submitter};
use crate::store::Mail;
use crate::stores::volume::NodeMail;
use fieldstone_uring::{SendError, Sender, Socket};

/// A core of the host, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Core(pub usize);

/// A device that the host serves: a volume or memory. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// The core that it lives on.
    #[must_use]
    pub fn core(self, cores: usize) -> Core {
        Core(self.0 as usize % cores)
    }
}

/// A node of this process. Nodes of several pools may have the same index, so the number tells them
/// apart; people are told the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalNodeId {
    /// Its place among the nodes that the host was started with, from 0.
    pub number: u32,
    /// Which node of its pool it is.
    pub index: NodeIndex,
}

impl LocalNodeId {
    /// The core that it lives on.
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

/// One connection between a device and an in-process node: the device, and a number that rises with
/// each reconnection so that late messages of an earlier one are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The device, or [`Link::ADMIN`].
    pub device: u32,
    /// Which of its connections.
    pub attempt: u32,
}

impl Link {
    /// In place of a device: a control call that talks to the node itself.
    pub const ADMIN: u32 = u32::MAX;
    /// In place of a device: a connection from another process.
    pub const SOCKET: u32 = u32::MAX - 1;

    /// The node's name for it.
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

/// Where a block request came from, and so where its completion goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The core of the front-end.
    pub core: Core,
    /// The front-end.
    pub frontend: FrontendId,
    /// Who asked within the front-end.
    pub submitter: Submitter,
}

/// Where the sockets of a listener go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To this front-end; they are dealt to the cores in turn.
    Frontend(FrontendId),
    /// To the core of this storage node.
    Node(LocalNodeId),
}

/// A connection that was just accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub socket: Socket,
    /// What for.
    pub to: Destination,
}

/// What a part tells another.
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
        /// Who asked.
        origin: Origin,
        /// The answer.
        completion: block::Completion,
    },
    /// A device wants a connection to an in-process node.
    LinkOpen {
        /// The node.
        node: LocalNodeId,
        /// The connection.
        link: Link,
        /// The core of the device.
        core: Core,
    },
    /// A device gives a connection up.
    LinkClose {
        /// The node.
        node: LocalNodeId,
        /// The connection.
        link: Link,
    },
    /// A node tells the connection of another process.
    ToPeer(NodeMail),
    /// The node has accepted a capability that came on this connection.
    LinkKnown {
        /// The node.
        node: LocalNodeId,
        /// The connection.
        link: Link,
    },
    /// A device asks a node.
    ToNode {
        /// The node.
        node: LocalNodeId,
        /// The connection.
        link: Link,
        /// What.
        request: Request,
    },
    /// A part or a thread tells a store.
    ToStore {
        /// The device of the store.
        device: DeviceId,
        /// What; the store knows its type.
        mail: Mail,
    },
    /// A thread tells a front-end.
    ToFrontend {
        /// The front-end.
        frontend: FrontendId,
        /// What; the front-end knows its type.
        mail: Mail,
        /// The core drops it as soon as the front-end has the mail; nothing is sent.
        taken: mpsc::Sender<()>,
    },
    /// A thread has put something where a front-end is to look.
    WakeFrontend {
        /// The front-end.
        frontend: FrontendId,
        /// The place, which the front-end knows.
        index: u32,
    },
    /// A connection was accepted on another core and shall live here.
    Accepted(Accepted),
    /// A node's chore thread has done something.
    Chore(Box<ChoreDone>),
    /// A control call.
    Control(Box<Control>),
}

/// Delivers messages within a core and between cores.
pub struct Router {
    /// The core that this router belongs to.
    pub me: Core,
    local: VecDeque<Message>,
    senders: Vec<Sender<Message>>,
    batches: Vec<Vec<Message>>,
    /// A mailbox was full at the last flush.
    blocked: bool,
}

impl Router {
    /// A router of core `me`; `senders` has a mailbox for every core, the own included.
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

    /// Delivers a message to a core.
    pub fn send(&mut self, to: Core, message: Message) {
        if to == self.me {
            self.local.push_back(message);
        } else {
            self.batches[to.0].push(message);
        }
    }

    /// The next message for this core.
    pub fn next_local(&mut self) -> Option<Message> {
        self.local.pop_front()
    }

    /// True when no message for this core waits.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.local.is_empty()
    }

    /// A mailbox of this core, for other threads.
    #[must_use]
    pub fn own_sender(&self) -> Sender<Message> {
        self.senders[self.me.0].clone()
    }

    /// Sends the batches off. What a full mailbox refuses stays, in order; see [`Router::blocked`].
    pub fn flush(&mut self) {
        self.blocked = false;
        for (batch, sender) in self.batches.iter_mut().zip(&self.senders) {
            if batch.is_empty() {
                continue;
            }
            let mut messages = std::mem::take(batch).into_iter();
            for message in messages.by_ref() {
                match sender.send(message) {
                    // A closed mailbox is a core that has ended: the host is going down.
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

    /// True when a mailbox was full: flush again soon.
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
