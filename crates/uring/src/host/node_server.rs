//! Other processes, as a node sees them: the node's side of `fieldstone node`.
//!
//! A connection becomes a link of the node like that of an in-process device. It is read from once
//! the node runs; when the node goes down it is closed, and its owner connects again.

use std::collections::BTreeMap;

use fieldstone_proto::wire::encode_reply;
use fieldstone_proto::{NodeError, NodeIndex, Reply, Request};

use super::message::{Core, Link, Message, Router, node_core};
use super::token::{Kind, token};
use super::wire_socket::{Broken, WireSocket};
use crate::{Event, Reactor, Socket};

/// Connections of one core to its nodes; more are closed at once. One per volume and server is
/// needed.
pub const PEERS_MAX: usize = 4096;

struct Peer {
    socket: WireSocket<Request>,
    node: NodeIndex,
    up: bool,
    dirty: bool,
}

/// The connections of one core to its nodes.
#[derive(Default)]
pub struct NodeServer {
    peers: BTreeMap<u32, Peer>,
    last: u32,
    dirty: Vec<u32>,
    /// Connections to close at the next occasion.
    broken: Vec<u32>,
}

fn link(attempt: u32) -> Link {
    Link { device: Link::SOCKET, attempt }
}

impl NodeServer {
    /// Takes a connection over.
    pub fn accept(&mut self, socket: Socket, node: NodeIndex, router: &mut Router) {
        if self.peers.len() >= PEERS_MAX {
            tracing::warn!("refused a connection to {node}: there are {PEERS_MAX} already");
            return;
        }
        self.last = self.last.wrapping_add(1);
        let attempt = self.last;
        let receive = token(Kind::PeerReceive, 0, attempt);
        let send = token(Kind::PeerSend, 0, attempt);
        let socket = WireSocket::new(socket, receive, send);
        self.peers.insert(attempt, Peer { socket, node, up: false, dirty: false });
        let core = router.me;
        let to = node_core(node, router.cores());
        router.send(to, Message::LinkOpen { node, link: link(attempt), core });
    }

    fn mark(&mut self, attempt: u32) {
        if let Some(peer) = self.peers.get_mut(&attempt)
            && !std::mem::replace(&mut peer.dirty, true)
        {
            self.dirty.push(attempt);
        }
    }

    /// The node runs: requests may come.
    pub fn link_up(&mut self, link: Link) {
        if let Some(peer) = self.peers.get_mut(&link.attempt) {
            peer.up = true;
        }
        self.mark(link.attempt);
    }

    /// The node is gone.
    pub fn link_down(&mut self, link: Link) {
        self.broken.push(link.attempt);
    }

    /// A receive came back.
    pub fn received(&mut self, attempt: u32, event: Event, router: &mut Router) {
        let Some(peer) = self.peers.get_mut(&attempt) else { return };
        let node = peer.node;
        let to: Core = node_core(node, router.cores());
        let link = link(attempt);
        let result = peer.socket.received(event, |request| {
            router.send(to, Message::ToNode { node, link, request });
        });
        self.settle(attempt, result);
    }

    /// A send came back.
    pub fn sent(&mut self, attempt: u32, event: Event) {
        let Some(peer) = self.peers.get_mut(&attempt) else { return };
        let result = peer.socket.sent(event);
        self.settle(attempt, result);
    }

    fn settle(&mut self, attempt: u32, result: Result<(), Broken>) {
        match result {
            Ok(()) => self.mark(attempt),
            Err(Broken::Closed) => self.broken.push(attempt),
            Err(error) => {
                match &error {
                    // No message, or one of a newer release: whoever runs the peer must know.
                    Broken::Wire(error) => tracing::warn!("closed a connection: {error}"),
                    other => tracing::info!("closed a connection: {other}"),
                }
                self.broken.push(attempt);
            }
        }
    }

    /// The node answered.
    pub fn reply(&mut self, link: Link, reply: &Reply) {
        let Some(peer) = self.peers.get_mut(&link.attempt) else { return };
        let parts = encode_reply(reply).or_else(|error| {
            let result = Err(NodeError::Io(format!("the answer cannot be sent: {error}")));
            encode_reply(&Reply { tag: reply.tag, result, slots_free: reply.slots_free })
        });
        match parts {
            Ok(parts) => peer.socket.push(parts),
            Err(error) => tracing::error!("an answer is lost: {error}"),
        }
        self.mark(link.attempt);
    }

    /// Sends and receives what there is.
    pub fn pump(&mut self, router: &mut Router, reactor: &mut Reactor) {
        for attempt in std::mem::take(&mut self.broken) {
            if let Some(peer) = self.peers.remove(&attempt) {
                let to = node_core(peer.node, router.cores());
                router.send(to, Message::LinkClose { node: peer.node, link: link(attempt) });
                peer.socket.close(reactor);
            }
        }
        for attempt in std::mem::take(&mut self.dirty) {
            let Some(peer) = self.peers.get_mut(&attempt) else { continue };
            peer.dirty = false;
            if peer.up {
                peer.socket.start_io(reactor);
            }
        }
    }

    /// Ends every connection.
    pub fn close_all(&mut self, reactor: &mut Reactor) {
        for (_, peer) in std::mem::take(&mut self.peers) {
            peer.socket.close(reactor);
        }
    }
}
