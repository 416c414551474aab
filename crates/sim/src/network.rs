//! The network: one connection per volume process and node, in order in both directions. Nodes that
//! pass requests on to other nodes have such connections as well.
//!
//! A connection carries frames: messages, and at its end `Closed`. Frames of one direction arrive
//! in the order in which they were sent. Frames of different connections overtake each other.
//!
//! - **Loss** of a connection cuts each direction at a random frame. The frames before the cut
//!   still arrive; then that side learns of the loss. The two sides learn at different times, so a
//!   node may carry out requests whose sender has long given up, or already has a new connection.
//! - **Partition** of a link is silent: frames stall, neither side learns of it, and no new
//!   connection is made. When the link heals, stalled frames arrive late, or the connection is
//!   lost.
//! - In some runs the messages travel as **bytes** of the wire format (`proto::wire`), as between
//!   two processes. They arrive in pieces, and a cut may fall within a message.
//! - A request that may go in **fragments** always does so in runs with bytes. In other runs it
//!   does so with probability 1/2; else it arrives whole, as within a process.
//! - When a **process dies**, its frames in flight arrive up to a random cut. A **node that dies
//!   silently** (its machine vanished) tells no client until it is back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_node::PeerId;
use fieldstone_proto::fragments::cut;
use fieldstone_proto::wire::{Decoder, Message, encode_reply, encode_request};
use fieldstone_proto::{Fragments, NodeIndex, Reply, Request};

use crate::random::RandomStream;

/// A volume process, numbered from 0 in the order of the starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

impl ClientId {
    /// A node that passes requests on is a client, too. Its number is above those of volume
    /// processes.
    #[must_use]
    pub fn of_node(node: NodeIndex) -> Self {
        Self(u32::MAX - u32::from(node.0))
    }

    /// The node, if the client is one.
    #[must_use]
    pub fn node(self) -> Option<NodeIndex> {
        u16::try_from(u32::MAX - self.0).ok().map(NodeIndex)
    }
}

/// The direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameDirection {
    /// From the volume process to the node.
    ToNode,
    /// From the node to the volume process.
    ToClient,
}

/// The content of a frame that arrives.
#[derive(Debug)]
pub enum Arrival {
    /// A request, at a node.
    Request(Request),
    /// A reply, at a volume process.
    Reply(Reply),
    /// The connection is gone; this side now knows.
    Closed,
}

/// The place where a frame arrives.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The connection.
    pub peer: PeerId,
    /// Its volume process.
    pub client: ClientId,
    /// Its node.
    pub node: NodeIndex,
}

enum Frame<T> {
    Message(T),
    /// A message, or the beginning of one, in the wire format.
    Bytes(Vec<u8>),
    Closed,
}

struct Lane<T> {
    frames: VecDeque<Frame<T>>,
    /// Makes messages of the bytes that arrive.
    decoder: Decoder<T>,
    /// The receiver still reads.
    open: bool,
    /// `Closed` is in the lane, or was. No frame can follow.
    ending: bool,
    /// Frames that came due while the link was partitioned.
    stalled: u32,
    last_due: Nanos,
}

impl<T: Message> Lane<T> {
    fn new() -> Self {
        Self {
            frames: VecDeque::new(),
            decoder: Decoder::new(),
            open: true,
            ending: false,
            stalled: 0,
            last_due: Nanos(0),
        }
    }

    fn cut(&mut self, rng: &mut RandomStream) {
        if self.ending {
            return;
        }
        let mut kept = rng.between(0, self.frames.len() as u64) as usize;
        if let Some(Frame::Bytes(bytes)) = self.frames.get_mut(kept)
            && !bytes.is_empty()
        {
            bytes.truncate(rng.index(bytes.len()));
            kept += 1;
        }
        self.frames.truncate(kept);
    }

    fn deafen(&mut self) {
        self.open = false;
        self.frames.clear();
        self.stalled = 0;
    }
}

struct Connection {
    client: ClientId,
    node: NodeIndex,
    to_node: Lane<Request>,
    to_client: Lane<Reply>,
}

/// The speed of the network; means of random times.
#[derive(Clone, Copy, Debug)]
pub struct NetworkSpeed {
    /// The delay from one side to the other.
    pub delay_ns: u64,
    /// The delay until a side notices that a connection was lost.
    pub notice_ns: u64,
}

/// A frame will arrive: the world calls [`Network::arrive`] at `at`.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    /// The time.
    pub at: Nanos,
    /// The connection.
    pub peer: PeerId,
    /// The direction.
    pub direction: FrameDirection,
}

/// All connections. [`Network::take_due`] gives the frames to schedule.
pub struct Network {
    connections: BTreeMap<PeerId, Connection>,
    partitioned: BTreeSet<(ClientId, NodeIndex)>,
    due: Vec<Due>,
    next_peer: u64,
    rng: RandomStream,
    speed: NetworkSpeed,
    /// Messages travel as bytes.
    wire: bool,
}

impl Network {
    /// A network without connections. With `wire`, messages travel as bytes.
    #[must_use]
    pub fn new(rng: RandomStream, speed: NetworkSpeed, wire: bool) -> Self {
        Self {
            connections: BTreeMap::new(),
            partitioned: BTreeSet::new(),
            due: Vec::new(),
            next_peer: 1,
            rng,
            speed,
            wire,
        }
    }

    /// The frames to schedule since the last call.
    pub fn take_due(&mut self) -> std::vec::Drain<'_, Due> {
        self.due.drain(..)
    }

    /// True while the link is partitioned.
    #[must_use]
    pub fn is_partitioned(&self, client: ClientId, node: NodeIndex) -> bool {
        self.partitioned.contains(&(client, node))
    }

    /// True when the connection is open on both sides, and neither side has yet to learn of a loss.
    #[must_use]
    pub fn is_sound(&self, peer: PeerId) -> bool {
        self.connections.get(&peer).is_some_and(|connection| {
            let (to_node, to_client) = (&connection.to_node, &connection.to_client);
            to_node.open
                && to_client.open
                && !to_node.ending
                && !to_client.ending
                && !self.is_partitioned(connection.client, connection.node)
        })
    }

    /// The volume process of a connection, as long as either side reads.
    #[must_use]
    pub fn client_of(&self, peer: PeerId) -> Option<ClientId> {
        self.connections.get(&peer).map(|connection| connection.client)
    }

    /// Makes a connection, open on both sides.
    pub fn connect(&mut self, client: ClientId, node: NodeIndex) -> PeerId {
        let peer = PeerId(self.next_peer);
        self.next_peer += 1;
        let connection = Connection { client, node, to_node: Lane::new(), to_client: Lane::new() };
        self.connections.insert(peer, connection);
        peer
    }

    /// Sends a request. It is lost if the connection is lost.
    pub fn send_request(&mut self, now: Nanos, peer: PeerId, request: Request) {
        let fragments = request.route.as_ref().map(|route| route.fragments);
        if matches!(fragments, Some(Fragments::Allowed(_))) && (self.wire || self.rng.chance(500)) {
            return cut(request).for_each(|request| self.send_message(now, peer, request));
        }
        self.send_message(now, peer, request);
    }

    fn send_message(&mut self, now: Nanos, peer: PeerId, request: Request) {
        if let Some(connection) = self.connections.get_mut(&peer)
            && !connection.to_node.ending
            && connection.to_node.open
        {
            let frame = match self.wire {
                true => Frame::of(&encode_request(&request).expect("a request has its bounds")),
                false => Frame::Message(request),
            };
            connection.to_node.frames.push_back(frame);
            self.schedule(now, peer, FrameDirection::ToNode, self.speed.delay_ns);
        }
    }

    /// Sends a reply. It is lost if the connection is lost.
    pub fn send_reply(&mut self, now: Nanos, peer: PeerId, reply: Reply) {
        if let Some(connection) = self.connections.get_mut(&peer)
            && !connection.to_client.ending
            && connection.to_client.open
        {
            let frame = match self.wire {
                true => Frame::of(&encode_reply(&reply).expect("a reply has its bounds")),
                false => Frame::Message(reply),
            };
            connection.to_client.frames.push_back(frame);
            self.schedule(now, peer, FrameDirection::ToClient, self.speed.delay_ns);
        }
    }

    fn schedule(&mut self, now: Nanos, peer: PeerId, direction: FrameDirection, mean_ns: u64) {
        let wanted = now.plus(Nanos(self.rng.around(mean_ns)));
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        let last = match direction {
            FrameDirection::ToNode => &mut connection.to_node.last_due,
            FrameDirection::ToClient => &mut connection.to_client.last_due,
        };
        let at = wanted.max(*last);
        *last = at;
        self.due.push(Due { at, peer, direction });
    }

    /// A frame is due. Returns its content and its receiver; `None` if it stalls or its receiver is
    /// gone.
    pub fn arrive(&mut self, peer: PeerId, direction: FrameDirection) -> Option<(Ends, Arrival)> {
        let connection = self.connections.get_mut(&peer)?;
        let ends = Ends { peer, client: connection.client, node: connection.node };
        let stalled = self.partitioned.contains(&(ends.client, ends.node));
        let arrival = match direction {
            FrameDirection::ToNode => {
                take(&mut connection.to_node, stalled, &mut self.rng, Arrival::Request)
            }
            FrameDirection::ToClient => {
                take(&mut connection.to_client, stalled, &mut self.rng, Arrival::Reply)
            }
        };
        if !connection.to_node.open && !connection.to_client.open {
            self.connections.remove(&peer);
        }
        arrival.map(|arrival| (ends, arrival))
    }

    /// The volume process closes its side. The node gets the sent frames, or a part of them, and
    /// then learns of the end.
    pub fn close_by_client(&mut self, now: Nanos, peer: PeerId, abrupt: bool) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        connection.to_client.deafen();
        if abrupt {
            connection.to_node.cut(&mut self.rng);
        }
        self.end_to_node(now, peer);
    }

    fn end_to_node(&mut self, now: Nanos, peer: PeerId) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        if connection.to_node.open && !connection.to_node.ending {
            connection.to_node.ending = true;
            connection.to_node.frames.push_back(Frame::Closed);
            self.schedule(now, peer, FrameDirection::ToNode, self.speed.notice_ns);
        }
    }

    fn end_to_client(&mut self, now: Nanos, peer: PeerId) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        if connection.to_client.open && !connection.to_client.ending {
            connection.to_client.ending = true;
            connection.to_client.frames.push_back(Frame::Closed);
            self.schedule(now, peer, FrameDirection::ToClient, self.speed.notice_ns);
        }
    }

    /// Loses the connection: cuts both directions. Each side learns of it in its own time.
    pub fn lose(&mut self, now: Nanos, peer: PeerId) {
        let Some(connection) = self.connections.get_mut(&peer) else { return };
        connection.to_node.cut(&mut self.rng);
        connection.to_client.cut(&mut self.rng);
        self.end_to_node(now, peer);
        self.end_to_client(now, peer);
    }

    /// The node died. The volume processes learn of it, unless `silent`: then
    /// [`Self::node_is_back`] tells them.
    pub fn node_died(&mut self, now: Nanos, node: NodeIndex, silent: bool) {
        for peer in self.peers_of_node(node) {
            if let Some(connection) = self.connections.get_mut(&peer) {
                connection.to_node.deafen();
                connection.to_client.cut(&mut self.rng);
            }
            if !silent {
                self.end_to_client(now, peer);
            }
        }
        self.connections.retain(|_, c| c.to_node.open || c.to_client.open);
    }

    /// The node's machine is back, and refuses frames of earlier connections.
    pub fn node_is_back(&mut self, now: Nanos, node: NodeIndex) {
        for peer in self.peers_of_node(node) {
            if !self.connections[&peer].to_node.open {
                self.end_to_client(now, peer);
            }
        }
    }

    /// The volume process died. The nodes get its frames in flight, or a part of them, and then
    /// learn of the end.
    pub fn client_died(&mut self, now: Nanos, client: ClientId) {
        let peers = self.connections.iter().filter(|(_, c)| c.client == client);
        for peer in peers.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            self.close_by_client(now, peer, true);
        }
    }

    /// Partitions a link, silently.
    pub fn partition(&mut self, client: ClientId, node: NodeIndex) {
        self.partitioned.insert((client, node));
    }

    /// Heals a link: stalled frames arrive, or, if `lossy`, the connection is lost.
    pub fn heal(&mut self, now: Nanos, client: ClientId, node: NodeIndex, lossy: bool) {
        if !self.partitioned.remove(&(client, node)) {
            return;
        }
        let peers = self.connections.iter().filter(|(_, c)| c.client == client && c.node == node);
        for peer in peers.map(|(peer, _)| *peer).collect::<Vec<_>>() {
            let Some(connection) = self.connections.get_mut(&peer) else { continue };
            let (to_node, to_client) = (
                std::mem::take(&mut connection.to_node.stalled),
                std::mem::take(&mut connection.to_client.stalled),
            );
            for _ in 0..to_node {
                self.schedule(now, peer, FrameDirection::ToNode, self.speed.delay_ns);
            }
            for _ in 0..to_client {
                self.schedule(now, peer, FrameDirection::ToClient, self.speed.delay_ns);
            }
            if lossy {
                self.lose(now, peer);
            }
        }
    }

    /// The partitioned links.
    #[must_use]
    pub fn partitions(&self) -> Vec<(ClientId, NodeIndex)> {
        self.partitioned.iter().copied().collect()
    }

    fn peers_of_node(&self, node: NodeIndex) -> Vec<PeerId> {
        let peers = self.connections.iter().filter(|(_, c)| c.node == node);
        peers.map(|(peer, _)| *peer).collect()
    }
}

impl<T> Frame<T> {
    fn of(parts: &[Bytes]) -> Self {
        Self::Bytes(parts.concat())
    }
}

/// Gives bytes to a decoder in two pieces, as a socket might. `None` if they end within a message.
fn decode<T: Message>(decoder: &mut Decoder<T>, bytes: &[u8], rng: &mut RandomStream) -> Option<T> {
    let (mut first, mut rest) = bytes.split_at(rng.index(bytes.len() + 1));
    let mut message = None;
    for piece in [&mut first, &mut rest] {
        while !piece.is_empty() {
            let decoded = decoder.feed(piece).expect("the sender encoded it");
            assert!(message.is_none() || decoded.is_none(), "one frame gave two messages");
            message = decoded.or(message);
        }
    }
    message
}

fn take<T: Message>(
    lane: &mut Lane<T>,
    stalled: bool,
    rng: &mut RandomStream,
    wrap: fn(T) -> Arrival,
) -> Option<Arrival> {
    if !lane.open {
        return None;
    }
    if stalled {
        lane.stalled += 1;
        return None;
    }
    match lane.frames.pop_front()? {
        Frame::Message(message) => Some(wrap(message)),
        Frame::Bytes(bytes) => decode(&mut lane.decoder, &bytes, rng).map(wrap),
        Frame::Closed => {
            lane.deafen();
            Some(Arrival::Closed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::{Capability, ReplyBody, RequestBody, Tag};

    const CLIENT: ClientId = ClientId(0);
    const NODE: NodeIndex = NodeIndex(2);

    /// Half of the networks carry bytes.
    fn network(seed: u64) -> Network {
        let speed = NetworkSpeed { delay_ns: 1000, notice_ns: 5000 };
        Network::new(RandomStream::new(seed, "network", 0), speed, seed % 2 == 1)
    }

    fn request(tag: u64) -> Request {
        Request {
            tag: Tag(tag),
            capability: Capability::default(),
            body: RequestBody::Stat,
            route: None,
            payload: Vec::new(),
        }
    }

    fn reply(tag: u64) -> Reply {
        Reply { tag: Tag(tag), result: Ok(ReplyBody::Done), slots_free: 0 }
    }

    /// Delivers all frames in order of time. Returns the tags per direction, `u64::MAX` for closed.
    fn deliver(network: &mut Network) -> (Vec<u64>, Vec<u64>) {
        let (mut at_node, mut at_client) = (Vec::new(), Vec::new());
        let mut due: Vec<Due> = network.take_due().collect();
        due.sort_by_key(|due| due.at);
        for due in due {
            match network.arrive(due.peer, due.direction) {
                Some((_, Arrival::Request(request))) => at_node.push(request.tag.0),
                Some((_, Arrival::Reply(reply))) => at_client.push(reply.tag.0),
                Some((_, Arrival::Closed)) if due.direction == FrameDirection::ToNode => {
                    at_node.push(u64::MAX);
                }
                Some((_, Arrival::Closed)) => at_client.push(u64::MAX),
                None => {}
            }
        }
        (at_node, at_client)
    }

    #[test]
    fn frames_of_one_direction_stay_in_order() {
        let mut network = network(1);
        let peer = network.connect(CLIENT, NODE);
        for tag in 0..50 {
            network.send_request(Nanos(tag * 10), peer, request(tag));
            network.send_reply(Nanos(tag * 10), peer, reply(tag));
        }
        let (at_node, at_client) = deliver(&mut network);
        assert_eq!(at_node, (0..50).collect::<Vec<_>>());
        assert_eq!(at_client, at_node);
    }

    #[test]
    fn a_lost_connection_delivers_a_prefix_and_tells_both_sides_once() {
        let mut lengths = BTreeSet::new();
        for seed in 0..40 {
            let mut network = network(seed);
            let peer = network.connect(CLIENT, NODE);
            for tag in 0..5 {
                network.send_request(Nanos(0), peer, request(tag));
                network.send_reply(Nanos(0), peer, reply(tag));
            }
            network.lose(Nanos(1), peer);
            network.send_request(Nanos(2), peer, request(99));
            network.lose(Nanos(3), peer);
            let (at_node, at_client) = deliver(&mut network);
            for seen in [&at_node, &at_client] {
                let (last, prefix) = seen.split_last().expect("each side is told");
                assert_eq!(*last, u64::MAX);
                assert_eq!(prefix, (0..prefix.len() as u64).collect::<Vec<_>>());
            }
            lengths.insert(at_node.len());
            assert!(network.connections.is_empty());
        }
        assert!(lengths.len() > 3, "cuts fall everywhere: {lengths:?}");
    }

    #[test]
    fn a_partition_stalls_and_heals_in_order() {
        let mut network = network(4);
        let peer = network.connect(CLIENT, NODE);
        network.partition(CLIENT, NODE);
        for tag in 0..5 {
            network.send_request(Nanos(0), peer, request(tag));
        }
        assert_eq!(deliver(&mut network), (vec![], vec![]));
        network.heal(Nanos(9_000), CLIENT, NODE, false);
        network.send_request(Nanos(9_001), peer, request(5));
        assert_eq!(deliver(&mut network).0, vec![0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn requests_of_a_closed_connection_still_reach_the_node() {
        let mut network = network(4);
        let peer = network.connect(CLIENT, NODE);
        network.send_request(Nanos(0), peer, request(1));
        network.send_reply(Nanos(0), peer, reply(2));
        network.close_by_client(Nanos(1), peer, false);
        assert_eq!(deliver(&mut network), (vec![1, u64::MAX], vec![]));
    }

    #[test]
    fn a_silent_death_is_told_when_the_node_is_back() {
        let mut network = network(4);
        let peer = network.connect(CLIENT, NODE);
        network.send_request(Nanos(0), peer, request(1));
        network.node_died(Nanos(1), NODE, true);
        assert_eq!(deliver(&mut network), (vec![], vec![]));
        network.node_is_back(Nanos(2), NODE);
        assert_eq!(deliver(&mut network), (vec![], vec![u64::MAX]));
    }
}
