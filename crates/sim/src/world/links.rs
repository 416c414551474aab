//! Links between nodes, over which nodes pass writes on, and the faults of these links.
//!
//! A link is a connection whose client is a node. A node process makes a link with its first
//! request to another node, and keeps it until it breaks, or until the node gives the other one up.
//!
//! In some runs nodes run in processes of their own. A volume learns the address of such a node as
//! it connects to it, and names it in routes. Nodes of the volumes' process have no addresses; they
//! reach each other and all others. Nodes of other processes reach only each other. The world
//! checks that routes ask for nothing else. In some of these runs a node has another address after
//! each start, so a route may name one at which no process listens any more.
//!
//! Faults strike the links of runs that replicate in another way than *flat*, or whose nodes make
//! parity. They impair no node: whatever happens to links, the volumes must go round them.
//!
//! | fault          | what happens                                                        |
//! |----------------|---------------------------------------------------------------------|
//! | `link-loss`    | a link breaks; both nodes learn of it, each in its own time         |
//! | `link-silence` | the way from a node to another one is silent for a while: frames    |
//! |                | stall. Then they arrive late, or the link is lost                   |
//!
//! The faults of nodes strike in the middle of what nodes pass on, as well.

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_node::{LinkTarget, NodeEvent, PeerId};
use fieldstone_proto::{Encode, FragmentRole, NodeIndex, Request, Strategy};
use fieldstone_volume::Reach;

use super::describe::{brief_reply, brief_request};
use super::{Happening, World};
use crate::actor::{Cast, NodeProcess};
use crate::network::{Arrival, ClientId, Ends};
use crate::trace::Who;

const MS: u64 = 1_000_000;
/// Mean time between faults of links, where no faults strike nodes.
const GAP_NS: u64 = 200 * MS;
/// The first port of the processes of nodes.
const FIRST_PORT: u64 = 7000;

/// The other end of a link, as [`LinkTarget`] in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkEnd {
    node: NodeIndex,
    /// Where its process listens. `None` for a node of the volumes' process.
    port: Option<u64>,
}

impl LinkEnd {
    /// The end that `to` names. An address that is none of this world's is one at which no process
    /// listens.
    fn of(to: &LinkTarget) -> Self {
        let port = || std::str::from_utf8(&to.address).ok()?.rsplit_once(':')?.1.parse().ok();
        let port = (!to.address.is_empty()).then(|| port().unwrap_or_default());
        Self { node: to.node, port }
    }

    fn target(self) -> LinkTarget {
        let address = self.port.map(|port| format!("tcp:10.0.0.{}:{port}", self.node.0));
        LinkTarget { node: self.node, address: Bytes::from(address.unwrap_or_default()) }
    }
}

impl<C: Cast> World<'_, C> {
    /// A node passes a request on.
    pub(super) fn relay(&mut self, from: NodeIndex, to: &LinkTarget, request: Request) {
        let text = brief_request(&request).to_string();
        let key = request.tag.0;
        self.note(Who::Node(from.0), "relay", key, format_args!("{} {text}", to.node));
        self.count_relay(from, to, &request);
        let now = self.now();
        if let Some(peer) = self.link(from, to) {
            return self.network.send_request(now, peer, request);
        }
        if !request.has_answer() {
            // The link is gone, and with it the write to which this belongs.
            return;
        }
        let to = LinkEnd::of(to);
        if self.nodes[usize::from(to.node.0)].process.is_none() || to.port != self.port_of(to.node)
        {
            let life = self.nodes[usize::from(from.0)].life;
            let delay_ns = self.link_rng.around(self.scenario.network.delay_ns * 2);
            self.schedule.after(delay_ns, Happening::LinkRefused { node: from, life, to });
            return;
        }
        let peer = self.network.connect(ClientId::of_node(from), to.node);
        self.nodes[usize::from(from.0)].links.insert(to, peer);
        self.network.send_request(now, peer, request);
    }

    /// Counts a request that a node passes on. A node of the volumes' process has no address, and
    /// only nodes of that process reach it.
    fn count_relay(&mut self, from: NodeIndex, to: &LinkTarget, request: &Request) {
        let ends = (self.is_outside(from), self.is_outside(to.node));
        if ends.1 == to.address.is_empty() || ends == (true, false) {
            return self.fail(format!("{from} was told to reach {} at {:?}", to.node, to.address));
        }
        let kind = match ends {
            (false, false) => 0,
            (false, true) => 1,
            (true, _) => 2,
        };
        self.links[kind] += u64::from(request.has_answer());
        self.fragments += u64::from(request.fragment_role() == FragmentRole::Continues);
    }

    pub(super) fn is_outside(&self, node: NodeIndex) -> bool {
        self.scenario.conditions.places.as_ref().is_some_and(|plan| plan.is_outside(node))
    }

    /// Where a node's process listens, if it is one of its own. Each start may change it.
    fn port_of(&self, node: NodeIndex) -> Option<u64> {
        let plan = self.scenario.conditions.places.as_ref()?;
        let moved = if plan.moves { self.nodes[usize::from(node.0)].life } else { 0 };
        plan.is_outside(node).then_some(FIRST_PORT + moved)
    }

    /// How other nodes reach a node.
    pub(super) fn reach_of(&self, node: NodeIndex) -> Reach {
        let port = self.port_of(node);
        match port {
            None => Reach::Here,
            Some(_) => Reach::At(LinkEnd { node, port }.target().address),
        }
    }

    fn link(&self, from: NodeIndex, to: &LinkTarget) -> Option<PeerId> {
        self.nodes[usize::from(from.0)].links.get(&LinkEnd::of(to)).copied()
    }

    /// A node gives a link up.
    pub(super) fn close_link(&mut self, from: NodeIndex, to: &LinkTarget) {
        self.note(Who::Node(from.0), "unlink", u64::from(to.node.0), format_args!("{}", to.node));
        let now = self.now();
        if let Some(peer) = self.nodes[usize::from(from.0)].links.remove(&LinkEnd::of(to)) {
            self.network.close_by_client(now, peer, false);
        }
    }

    /// Another node could not be reached.
    pub(super) fn link_refused_due(&mut self, node: NodeIndex, life: u64, to: LinkEnd) {
        if self.nodes[usize::from(node.0)].life == life {
            self.link_lost(node, to);
        }
    }

    fn link_lost(&mut self, node: NodeIndex, to: LinkEnd) {
        self.note(Who::Node(node.0), "nolink", u64::from(to.node.0), format_args!("{}", to.node));
        self.node_event(node, NodeEvent::LinkLost { to: to.target() });
    }

    /// A frame arrives at a node that passes requests on.
    pub(super) fn arrived_over_link(&mut self, from: NodeIndex, ends: Ends, arrival: Arrival) {
        let links = &mut self.nodes[usize::from(from.0)].links;
        let Some(end) = links.iter().find(|(_, peer)| **peer == ends.peer).map(|(end, _)| *end)
        else {
            return;
        };
        match arrival {
            Arrival::Reply(reply) => {
                let (who, key) = (Who::Node(from.0), reply.tag.0);
                self.note(who, "told", key, format_args!("{} {}", ends.node, brief_reply(&reply)));
                self.node_event(from, NodeEvent::Relayed { from: end.target(), reply });
            }
            Arrival::Closed => {
                links.remove(&end);
                self.link_lost(from, end);
            }
            Arrival::Request(_) => {}
        }
    }

    pub(super) fn node_event(&mut self, node: NodeIndex, event: NodeEvent) {
        let now = self.now();
        let host = &mut self.nodes[usize::from(node.0)];
        if let Some(process) = host.process.as_mut().filter(|_| !host.permanent_faults.silent) {
            process.handle(event, now);
            self.pump_node(node);
        }
    }

    /// The process of a node has died, and with it its links.
    pub(super) fn links_died(&mut self, node: NodeIndex) {
        let now = self.now();
        self.network.client_died(now, ClientId::of_node(node));
        let host = &mut self.nodes[usize::from(node.0)];
        host.links.clear();
        host.timer = None;
    }

    /// Sets the timer for the time at which a node gives others up.
    pub(super) fn arm_node_timer(&mut self, node: NodeIndex) {
        let now = self.now();
        let host = &mut self.nodes[usize::from(node.0)];
        let Some(due) = host.process.as_ref().and_then(NodeProcess::deadline) else { return };
        let at = due.max(now.plus(Nanos(1000)));
        if host.timer.is_none_or(|timer| at < timer) {
            host.timer = Some(at);
            let life = host.life;
            self.schedule.at(at, Happening::NodeTimer { node, life, at });
        }
    }

    pub(super) fn node_timer_due(&mut self, node: NodeIndex, life: u64, at: Nanos) {
        let host = &mut self.nodes[usize::from(node.0)];
        if host.life == life && host.timer == Some(at) {
            host.timer = None;
            self.node_event(node, NodeEvent::Tick);
        }
    }

    pub(super) fn schedule_link_strike(&mut self) {
        let passes_on =
            self.scenario.replicate != Strategy::Flat || self.scenario.encode == Encode::Stream;
        if self.faults_active && passes_on {
            let gap_ns = match self.scenario.fault_gap_ns {
                0 => GAP_NS,
                gap_ns => gap_ns,
            };
            let delay_ns = self.link_rng.around(gap_ns);
            self.schedule.after(delay_ns, Happening::StrikeLink);
        }
    }

    pub(super) fn link_strike_due(&mut self) {
        if !self.faults_active {
            return;
        }
        let count = self.nodes.len();
        let from = NodeIndex(self.link_rng.index(count) as u16);
        let others = self.nodes[usize::from(from.0)].links.keys().copied();
        let others: Vec<LinkEnd> = others.collect();
        if !others.is_empty() {
            let to = others[self.link_rng.index(others.len())];
            self.strike_link(from, to);
        }
        self.schedule_link_strike();
    }

    fn strike_link(&mut self, from: NodeIndex, end: LinkEnd) {
        let (now, to) = (self.now(), end.node);
        let client = ClientId::of_node(from);
        let fault = match self.link_rng.chance(500) {
            true => "link-loss",
            false => "link-silence",
        };
        self.note(Who::Fault, fault, u64::from(from.0), format_args!("{from} to {to}"));
        *self.link_faults.entry(fault).or_default() += 1;
        if fault == "link-loss" {
            if let Some(peer) = self.nodes[usize::from(from.0)].links.get(&end).copied() {
                self.network.lose(now, peer);
            }
            return;
        }
        if self.network.is_partitioned(client, to) {
            return;
        }
        let (low, high) = self.link_rng.pick(&[(1, 5), (5, 100), (300, 5000)]);
        let silent_ns = self.link_rng.between(low * MS, high * MS);
        self.network.partition(client, to);
        self.schedule.after(silent_ns, Happening::HealLink { from, to });
    }

    pub(super) fn heal_link_due(&mut self, from: NodeIndex, to: NodeIndex) {
        let (now, lossy) = (self.now(), self.link_rng.chance(500));
        self.note(Who::World, "heal", u64::from(from.0), format_args!("{from} to {to}"));
        self.network.heal(now, ClientId::of_node(from), to, lossy);
    }
}
