//! Appends that the journal's nodes pass on to each other.
//!
//! With the strategy *flat* the volume sends each record to every node of its journal. With *ring*,
//! *tree* and *primary* it sends the record once, to the head, with a route
//! ([`fieldstone_proto::route`]): the nodes pass it on. So the volume sends the bytes once instead
//! of m + 1 times. What the volume promises does not depend on the strategy. It acknowledges a
//! record when every journal node has reported that it has this record and all records before it.
//!
//! - *When.* The volume uses a route while it serves, every journal node is up and within reach of
//!   the node before it, and each of them but the head has confirmed the volume's pass over the
//!   present connection. Otherwise it sends the record to each node itself. The moves of a journal
//!   are always flat.
//! - *Long writes.* The volume lets the world cut them into fragments
//!   ([`fieldstone_proto::fragments`]), so that a node passes bytes on before it has all of them.
//! - *When a node is not reached.* The head waits at most half of the time after which a node
//!   counts as down, and tells the outcome on each node. The volume then goes round the failed
//!   link: it announces a new pass to each node without the record, so that no late copy can reach
//!   a file, and sends the record to that node itself over the same connection. From there on all
//!   is as with *flat*: a node that does not answer in time is given up, and the journal moves.
//! - *After that* the volume uses no route through these nodes for a while ([`REST_MS`]), twice as
//!   long after each further failure. A link that stays broken costs one wait now and then.
//! - *When the head is lost*, the journal moves, as when any of its nodes is lost. Only the passes
//!   are renewed: the move writes every record anew.
//!
//! Nodes in this process reach every other node. Nodes in other processes reach only each other.
//! So nodes of this process come first in a route.

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_proto::route::{ADDRESS_BYTES_MAX, REPLICAS_MAX, WAIT_MS_MAX};
use fieldstone_proto::{
    JournalGen, Lsn, NodeError, NodeIndex, Outcome, Pass, Replica, ReplyBody, RequestBody, Route,
    ShardIndex, Strategy,
};

use crate::calls::{CallResult, Waiter};
use crate::core::VolumeCore;
use crate::status::NodeHealth;

/// How long the volume uses no route through a node that was not reached. It doubles with each
/// failure in a row, up to [`REST_MS_MAX`].
const REST_MS: u64 = 1_000;
/// The longest such time.
const REST_MS_MAX: u64 = 64_000;
/// After so many pieces of parity in a row that were denied on a node's way, the volume uses no
/// route through the node for a while, too. A denial costs the products of the data nodes, and a
/// node may have too little memory for any sum.
const DENIALS_MAX: u32 = 16;

/// How other nodes reach a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// It is in the volume's process. Only nodes of this process reach it.
    Here,
    /// At this address: `unix:PATH` or `tcp:IP:PORT`.
    At(Bytes),
    /// Not at all.
    #[default]
    Nowhere,
}

/// The volume's knowledge about a node as a part of routes.
#[derive(Debug, Default)]
pub struct NodeRelay {
    /// How other nodes reach it.
    pub reach: Reach,
    /// The pass that the volume announced last.
    pass: Pass,
    /// The node has confirmed the pass over the present connection.
    admitted: bool,
    /// The volume has announced the pass over the present connection.
    announced: bool,
    /// No route goes through the node before this time.
    rests_until: Nanos,
    /// How long the node rests after its next failure.
    rest: Nanos,
    /// Pieces of parity that were denied in a row.
    denials: u32,
    /// The node gets no parity to add up before this time.
    parity_rests_until: Nanos,
    /// How long this lasts the next time.
    parity_rest: Nanos,
    /// Payloads in parts: a process of an older release does not know them.
    parts: FormRest,
    /// Columns with a table of elements, likewise.
    tables: FormRest,
    /// Payloads in fragments, likewise.
    fragments: FormRest,
}

/// A form of requests that was added to the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewForm {
    /// A payload in parts.
    Parts,
    /// A column with a table of elements.
    Table,
    /// A payload in fragments.
    Fragments,
}

/// The node gets no request of a form before this time: its connection ended with the last one.
#[derive(Debug, Default)]
struct FormRest {
    until: Nanos,
    /// How long this lasts the next time.
    next: Nanos,
}

impl NodeRelay {
    fn rest_of(&mut self, form: NewForm) -> &mut FormRest {
        match form {
            NewForm::Parts => &mut self.parts,
            NewForm::Table => &mut self.tables,
            NewForm::Fragments => &mut self.fragments,
        }
    }

    /// The connection to the node has changed. With it, the node has forgotten the pass.
    pub fn reset(&mut self) {
        (self.admitted, self.announced) = (false, false);
    }
}

/// A record on its way to the journal.
#[derive(Clone, Copy, Debug)]
pub struct Append {
    /// The journal.
    pub generation: JournalGen,
    /// Sequence number of the batch.
    pub batch: u64,
    /// Position of the record.
    pub lsn: Lsn,
}

/// A record on its way along a route.
#[derive(Debug)]
pub struct RelayedAppend {
    append: Append,
    route: Route,
    payload: Vec<Bytes>,
}

/// Whether a node with this outcome of a write along a route may lack the write, through no fault
/// of its own. What waited in a link may have a capability that was good when the volume sent it:
/// the secret was retired meanwhile, or the clock has jumped.
pub fn may_lack(error: &NodeError) -> bool {
    matches!(error, NodeError::NotPassedOn { .. } | NodeError::Busy | NodeError::Capability(_))
}

impl VolumeCore {
    /// Sends a record to all nodes of the journal, along a route if possible.
    pub fn send_append(&mut self, append: Append, payload: Vec<Bytes>) {
        let nodes = self.log.nodes.clone();
        let Some(route) = self.route_through(&nodes) else {
            for node in nodes {
                self.send_append_to(node, append, payload.clone());
            }
            return;
        };
        self.counters.appends_relayed += 1;
        let head = route.replicas[0].node;
        let Append { generation, lsn, .. } = append;
        let body = RequestBody::JournalAppend { generation, lsn };
        let relayed = RelayedAppend { append, route: route.clone(), payload: payload.clone() };
        let waiter = Waiter::Relay(Box::new(relayed));
        self.send_along(head, body, Some(Box::new(route)), payload, waiter);
    }

    fn send_append_to(&mut self, node: NodeIndex, append: Append, payload: Vec<Bytes>) {
        let Append { generation, batch, lsn } = append;
        let body = RequestBody::JournalAppend { generation, lsn };
        self.send(node, body, payload, Waiter::Append { generation, batch });
    }

    /// The route through these nodes, if there is one now. Announces passes that it needs.
    pub fn route_through(&mut self, nodes: &[NodeIndex]) -> Option<Route> {
        let strategy = self.config.replicate;
        let possible = strategy != Strategy::Flat
            && self.life.serves()
            && (2..=REPLICAS_MAX).contains(&nodes.len());
        if !possible || !nodes.iter().all(|node| self.may_relay(*node)) {
            return None;
        }
        let mut order = nodes.to_vec();
        order.sort_by_key(|node| self.node(*node).relay.reach != Reach::Here);
        if !self.are_admitted(&order[1..]) {
            return None;
        }
        let replicas = order.iter().map(|node| self.replica(*node)).collect();
        let wait_ms = self.route_wait_ms();
        Some(Route { strategy, rank: 0, wait_ms, replicas, ..Route::default() })
    }

    /// The nodes have confirmed the volume's passes. Announces those that they do not know.
    pub fn are_admitted(&mut self, nodes: &[NodeIndex]) -> bool {
        for node in nodes {
            if !self.node(*node).relay.announced {
                self.announce_pass(*node);
            }
        }
        nodes.iter().all(|node| self.node(*node).relay.admitted)
    }

    /// The node as a replica of a route, with shard 0.
    pub fn replica(&self, node: NodeIndex) -> Replica {
        let relay = &self.node(node).relay;
        let address = match &relay.reach {
            Reach::At(address) => address.clone(),
            Reach::Here | Reach::Nowhere => Bytes::new(),
        };
        Replica { node, pass: relay.pass, shard: ShardIndex(0), address }
    }

    /// How long the head of a route waits.
    pub fn route_wait_ms(&self) -> u32 {
        u32::try_from(self.config.node_timeout_ms / 2).unwrap_or(WAIT_MS_MAX).min(WAIT_MS_MAX)
    }

    /// A route may go through the node now.
    pub fn may_relay(&self, node: NodeIndex) -> bool {
        let state = self.node(node);
        let reachable = match &state.relay.reach {
            Reach::Here => true,
            Reach::At(address) => address.len() <= ADDRESS_BYTES_MAX,
            Reach::Nowhere => false,
        };
        reachable && state.health == NodeHealth::Up && state.relay.rests_until <= self.now
    }

    /// Tells a node a new pass. From the moment that it has this message, it takes no write that
    /// carries another pass.
    fn announce_pass(&mut self, node: NodeIndex) {
        let relay = &mut self.node_mut(node).relay;
        relay.pass = Pass(relay.pass.0 + 1);
        (relay.admitted, relay.announced) = (false, true);
        let (pass, session) = (relay.pass, self.node(node).link.session);
        self.send(
            node,
            RequestBody::AdmitRelays { pass },
            Vec::new(),
            Waiter::Pass { pass, session },
        );
    }

    /// A node answered the announcement of a pass.
    pub fn pass_replied(
        &mut self,
        node: NodeIndex,
        (pass, session): (Pass, u64),
        result: &CallResult,
    ) {
        let state = self.node_mut(node);
        if state.link.session == session && state.relay.pass == pass {
            state.relay.admitted = result.is_ok();
            // After an error the volume tries again when it has let the node rest.
            if result.is_err() {
                state.relay.announced = false;
                self.let_rest(node);
            }
        }
    }

    fn let_rest(&mut self, node: NodeIndex) {
        let now = self.now;
        let relay = &mut self.node_mut(node).relay;
        relay.rests_until = now.plus(next_rest(&mut relay.rest));
    }

    /// The head answered a record that went along a route, or is lost.
    pub fn relay_replied(&mut self, head: NodeIndex, relayed: RelayedAppend, result: CallResult) {
        let RelayedAppend { append, route, payload } = relayed;
        let results = self.outcomes_of(head, &route, result);
        let mut missed = Vec::new();
        for (replica, result) in route.replicas.iter().zip(results) {
            match result {
                Err(error) if may_lack(&error) => missed.push(replica),
                result => {
                    let node = replica.node;
                    if let Err(error) = &result {
                        self.note_fenced(node, error);
                    }
                    let result = result.map(|()| ReplyBody::Done);
                    self.append_replied(node, append.generation, append.batch, result);
                }
            }
        }
        for replica in missed {
            self.send_again(replica, append, payload.clone());
        }
    }

    /// The outcome on each replica of a route, by rank. To some replicas the volume has to send the
    /// write itself ([`may_lack`]).
    pub fn outcomes_of(
        &mut self,
        head: NodeIndex,
        route: &Route,
        result: CallResult,
    ) -> Vec<Result<(), NodeError>> {
        let lacking = || NodeError::Invalid("its answer lacks its outcome".to_owned());
        let (mut outcomes, own) = match result {
            Ok(ReplyBody::Outcomes(outcomes)) => (outcomes, lacking()),
            Ok(_) => (Vec::new(), lacking()),
            Err(error) => (Vec::new(), error),
        };
        let mut outcome = |replica: &Replica| {
            let node = replica.node;
            let found = outcomes.iter().position(|outcome: &Outcome| outcome.node == node);
            match found.map(|at| outcomes.swap_remove(at).result) {
                Some(Ok(())) => {
                    if node != head {
                        self.node_mut(node).relay.rest = Nanos(0);
                    }
                    Ok(())
                }
                Some(Err(NodeError::Unreachable)) | None if node != head => {
                    Err(NodeError::NotPassedOn { from: head, to: node })
                }
                Some(Err(NodeError::NotPassedOn { .. })) if node == head => Err(lacking()),
                None => Err(own.clone()),
                Some(Err(error)) => Err(error),
            }
        };
        route.replicas.iter().map(&mut outcome).collect()
    }

    /// There was no memory for a piece of parity on this node. No late contribution can complete
    /// the sum, so the pass stays, and with it what the node adds up for other pieces.
    pub fn note_denial(&mut self, node: NodeIndex) {
        let now = self.now;
        let relay = &mut self.node_mut(node).relay;
        relay.denials = relay.denials.saturating_add(1);
        if relay.denials >= DENIALS_MAX && relay.parity_rests_until <= now {
            relay.parity_rests_until = now.plus(next_rest(&mut relay.parity_rest));
        }
    }

    /// A parity node added a piece up.
    pub fn note_sum(&mut self, node: NodeIndex) {
        let relay = &mut self.node_mut(node).relay;
        (relay.denials, relay.parity_rest) = (0, Nanos(0));
    }

    /// The node has not denied too many pieces in a row to get others now.
    pub fn may_add_up(&self, node: NodeIndex) -> bool {
        self.node(node).relay.parity_rests_until <= self.now
    }

    /// A node answered a request of this form, or was lost with it. The loss of a connection with
    /// several of them counts once.
    pub fn note_new_form(&mut self, head: NodeIndex, form: NewForm, result: &CallResult) {
        let now = self.now;
        let rest = self.node_mut(head).relay.rest_of(form);
        match result {
            Ok(_) => rest.next = Nanos(0),
            Err(NodeError::Unreachable) if rest.until <= now => {
                rest.until = now.plus(next_rest(&mut rest.next));
            }
            Err(_) => {}
        }
    }

    /// The node was not lost with requests of this form too lately to get one now.
    pub fn may_get(&self, node: NodeIndex, form: NewForm) -> bool {
        let relay = &self.node(node).relay;
        let rest = match form {
            NewForm::Parts => &relay.parts,
            NewForm::Table => &relay.tables,
            NewForm::Fragments => &relay.fragments,
        };
        rest.until <= self.now
    }

    /// Whether a payload of this length may go in fragments along this route: nodes pass it on, it
    /// is longer than a fragment, and none of the nodes was lost with fragments too lately.
    pub fn may_go_in_fragments(&self, route: Option<&Route>, payload_bytes: usize) -> bool {
        let Some(Route { replicas, .. }) = route else { return false };
        let fragment_bytes = self.config.fragment_bytes as usize;
        let may_get = |replica: &Replica| self.may_get(replica.node, NewForm::Fragments);
        (1..payload_bytes).contains(&fragment_bytes)
            && replicas.len() > 1
            && replicas.iter().all(may_get)
    }

    /// The head of a route answered a request in fragments, or was lost with it. A node of an older
    /// release may be behind the head as well: the node before it has lost the link to it.
    pub fn note_fragments(&mut self, head: NodeIndex, result: &CallResult) {
        let Ok(ReplyBody::Outcomes(outcomes)) = result else {
            return self.note_new_form(head, NewForm::Fragments, result);
        };
        for Outcome { node, result } in outcomes {
            let result = match result {
                Err(NodeError::NotPassedOn { .. }) if *node != head => Err(NodeError::Unreachable),
                other => other.clone().map(|()| ReplyBody::Done),
            };
            self.note_new_form(*node, NewForm::Fragments, &result);
        }
    }

    /// A node may lack a write that went along a route. From now on the node takes no late copy of
    /// it. Does nothing if that is so already.
    pub fn renew_pass(&mut self, replica: &Replica) {
        let state = self.node(replica.node);
        if state.link.connected && state.relay.pass == replica.pass {
            self.let_rest(replica.node);
            self.announce_pass(replica.node);
        }
    }

    /// A node may lack a record that went along a route. No late copy of the record may reach the
    /// node after this: the volume will use the same place of the ring again.
    fn send_again(&mut self, replica: &Replica, append: Append, payload: Vec<Bytes>) {
        let node = replica.node;
        self.renew_pass(replica);
        let waits = append.generation == self.log.generation
            && !self.log.journal_move.has_to_move()
            && self.log.awaits(append.batch, node);
        let len_bytes: usize = payload.iter().map(Bytes::len).sum();
        if waits && append.lsn.0 + len_bytes as u64 <= self.log.trimmed.0 {
            // Durable segments hold the record, and the node may have a later one in its place.
            self.append_replied(node, append.generation, append.batch, Ok(ReplyBody::Done));
        } else if waits {
            self.counters.appends_sent_again += 1;
            self.send_append_to(node, append, payload);
        }
    }
}

/// How long a node rests now. The next rest is twice as long.
fn next_rest(rest: &mut Nanos) -> Nanos {
    let now = (*rest).clamp(Nanos::from_ms(REST_MS), Nanos::from_ms(REST_MS_MAX));
    *rest = Nanos(now.0 * 2);
    now
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_proto::{CapabilityError, Fragments};

    use crate::script::{JOURNAL, Script, Sent};
    use crate::status::VolumePhase;

    /// A volume that replicates in this way, on eight nodes of its process.
    fn script(strategy: Strategy) -> Script {
        let mut script = Script::serving(8);
        script.core(|core| {
            core.config.replicate = strategy;
            core.nodes.iter_mut().for_each(|node| node.relay.reach = Reach::Here);
        });
        script
    }

    /// The same after every journal node has confirmed its pass.
    fn admitted(strategy: Strategy) -> Script {
        let mut script = script(strategy);
        script.write(0, 1);
        for sent in script.sent() {
            script.done(&sent);
        }
        assert!(script.sent().is_empty());
        assert_eq!(script.completions.len(), 1);
        script
    }

    fn pass_of(sent: &Sent) -> Option<Pass> {
        match sent.request.body {
            RequestBody::AdmitRelays { pass } => Some(pass),
            _ => None,
        }
    }

    fn is_append(sent: &Sent) -> bool {
        matches!(sent.request.body, RequestBody::JournalAppend { .. })
    }

    fn outcomes(all: [Result<(), NodeError>; 3]) -> ReplyBody {
        let outcome = |(node, result): (&NodeIndex, _)| Outcome { node: *node, result };
        ReplyBody::Outcomes(JOURNAL.iter().zip(all).map(outcome).collect())
    }

    fn not_passed_on(from: usize, to: usize) -> Result<(), NodeError> {
        Err(NodeError::NotPassedOn { from: JOURNAL[from], to: JOURNAL[to] })
    }

    #[test]
    fn the_first_record_is_flat_and_announces_passes_to_all_but_the_head() {
        let mut script = script(Strategy::Ring);
        script.write(0, 1);
        let sent = script.sent();
        let (appends, passes): (Vec<_>, Vec<_>) = sent.iter().partition(|sent| is_append(sent));
        assert_eq!(appends.len(), 3);
        assert!(appends.iter().all(|sent| sent.request.route.is_none()));
        let to: Vec<NodeIndex> = passes.iter().map(|sent| sent.node).collect();
        assert_eq!(to, JOURNAL[1..]);
        assert!(passes.iter().all(|sent| pass_of(sent) == Some(Pass(1))));
    }

    #[test]
    fn a_record_goes_once_and_is_acknowledged_when_all_nodes_have_it() {
        for strategy in [Strategy::Ring, Strategy::Tree, Strategy::Primary] {
            let mut script = admitted(strategy);
            let sent_before = script.core(|core| core.counters.sent_bytes);
            script.write(1, 1);
            let sent = script.sent_one();
            let route = sent.request.route.as_deref().expect("a route");
            assert_eq!((sent.node, route.strategy, route.rank), (JOURNAL[0], strategy, 0));
            let nodes: Vec<NodeIndex> = route.replicas.iter().map(|r| r.node).collect();
            assert_eq!(nodes, JOURNAL);
            assert_eq!(route.wait_ms, 500, "half of the time after which a node is down");
            assert!(route.replicas[1..].iter().all(|replica| replica.pass == Pass(1)));
            let bytes: usize = sent.request.payload.iter().map(Bytes::len).sum();
            let sent_bytes = script.core(|core| core.counters.sent_bytes) - sent_before;
            assert_eq!(sent_bytes, bytes as u64, "once");
            script.answer(&sent, Ok(outcomes([Ok(()), Ok(()), Ok(())])));
            assert!(script.sent().is_empty());
            assert_eq!(script.completions.len(), 2);
        }
    }

    /// The log goes on while a node's answer is due. When the volume hears that the node lacks the
    /// record, a later one may have its place in the ring.
    #[test]
    fn a_record_that_segments_hold_is_not_sent_again() {
        let mut script = admitted(Strategy::Ring);
        script.write(1, 1);
        let sent = script.sent_one();
        script.core(|core| core.log.trimmed = core.log.next);
        script.answer(&sent, Ok(outcomes([Ok(()), not_passed_on(0, 1), Ok(())])));
        let again = script.sent();
        assert!(again.iter().all(|sent| !is_append(sent)), "it would overwrite a later record");
        assert_eq!(pass_of(&again[0]), Some(Pass(2)), "no late copy may reach the node either");
        assert_eq!(script.completions.len(), 2, "the write is answered");
    }

    #[test]
    fn flat_announces_nothing() {
        let mut script = script(Strategy::Flat);
        script.write(0, 1);
        assert!(script.sent().iter().all(|sent| is_append(sent) && sent.request.route.is_none()));
    }

    /// The volume goes round a broken link. The new pass reaches the node before the record does.
    #[test]
    fn a_node_that_was_not_reached_gets_the_record_from_the_volume() {
        let mut script = admitted(Strategy::Ring);
        script.write(1, 1);
        let sent = script.sent_one();
        let lost = [Ok(()), not_passed_on(0, 1), not_passed_on(1, 2)];
        script.answer(&sent, Ok(outcomes(lost)));
        let again = script.sent();
        assert_eq!(script.completions.len(), 1, "two nodes may lack the record");
        let nodes: Vec<NodeIndex> = again.iter().map(|sent| sent.node).collect();
        assert_eq!(nodes, [JOURNAL[1], JOURNAL[1], JOURNAL[2], JOURNAL[2]]);
        for pair in again.chunks(2) {
            assert_eq!(pass_of(&pair[0]), Some(Pass(2)));
            assert_eq!(pair[1].request.body, sent.request.body);
            assert_eq!(pair[1].request.payload, sent.request.payload);
            assert!(pair[1].request.route.is_none());
        }
        again.iter().for_each(|sent| script.done(sent));
        // The link rests, and is tried again.
        for (wait_ms, routed) in [(REST_MS - 1, false), (1, true)] {
            script.wait_ms(wait_ms);
            script.write(2, 1);
            let sent = script.sent();
            assert_eq!(sent.len(), if routed { 1 } else { 3 });
            assert_eq!(sent[0].request.route.is_some(), routed);
            for sent in &sent {
                match routed {
                    true => script.answer(sent, Ok(outcomes([Ok(()), Ok(()), Ok(())]))),
                    false => script.done(sent),
                }
            }
        }
        assert!(script.sent().is_empty());
        assert_eq!(script.completions.len(), 4);
        script.core(|core| assert!(!core.log.journal_move.has_to_move()));
    }

    #[test]
    fn a_link_that_stays_broken_is_tried_more_and_more_rarely() {
        let mut script = admitted(Strategy::Primary);
        let mut tries = 0;
        for _ in 0..40 {
            script.wait_ms(1_000);
            script.write(1, 1);
            let mut sent = script.sent();
            if let [routed] = &sent[..]
                && routed.request.route.is_some()
            {
                tries += 1;
                script.answer(routed, Ok(outcomes([Ok(()), not_passed_on(0, 1), Ok(())])));
                sent = script.sent();
            }
            sent.iter().for_each(|sent| script.done(sent));
            script.sent();
        }
        assert_eq!(script.completions.len(), 41, "every write is acknowledged");
        assert_eq!(tries, 6, "after 1, 2, 4, 8, 16 seconds");
    }

    #[test]
    fn the_journal_moves_when_the_head_is_lost_or_fails() {
        for failure in [None, Some(NodeError::Io("broken".to_owned()))] {
            let mut script = admitted(Strategy::Tree);
            script.write(1, 1);
            let sent = script.sent_one();
            match failure {
                None => script.reconnect(JOURNAL[0]),
                Some(error) => script.answer(&sent, Err(error)),
            }
            let sent = script.sent();
            script.core(|core| assert!(core.log.journal_move.has_to_move()));
            // No late copy may reach the others: their passes are new.
            let renewed: Vec<NodeIndex> =
                sent.iter().filter(|s| pass_of(s) == Some(Pass(2))).map(|s| s.node).collect();
            assert_eq!(renewed, JOURNAL[1..]);
            assert!(!sent.iter().any(is_append));
        }
    }

    #[test]
    fn an_error_of_a_node_behind_the_head_is_that_node_s_own() {
        let mut script = admitted(Strategy::Ring);
        script.write(1, 1);
        let sent = script.sent_one();
        let broken = Err(NodeError::Io("broken".to_owned()));
        script.answer(&sent, Ok(outcomes([Ok(()), broken, Ok(())])));
        script.sent();
        script.core(|core| {
            assert!(core.log.journal_move.has_to_move());
            let health = JOURNAL.map(|node| core.node(node).health);
            assert_eq!(health, [NodeHealth::Up, NodeHealth::Down, NodeHealth::Up]);
        });
    }

    #[test]
    fn a_busy_node_gets_the_record_once_more() {
        let mut script = admitted(Strategy::Ring);
        script.write(1, 1);
        let sent = script.sent_one();
        script.answer(&sent, Err(NodeError::Busy));
        let again = script.sent();
        let appends: Vec<NodeIndex> =
            again.iter().filter(|sent| is_append(sent)).map(|sent| sent.node).collect();
        assert_eq!(appends, JOURNAL, "a head that denies passes nothing on");
        again.iter().for_each(|sent| script.done(sent));
        script.sent();
        assert_eq!(script.completions.len(), 2);
    }

    /// The record waited in a link until the secret that signed it was retired. The node behind is
    /// sound, and gets the record with a present capability.
    #[test]
    fn a_node_that_refuses_an_old_capability_gets_the_record_once_more() {
        let mut script = admitted(Strategy::Ring);
        script.write(1, 1);
        let sent = script.sent_one();
        let refused = Err(NodeError::Capability(CapabilityError::Retired));
        let results = [Ok(()), refused, not_passed_on(1, 2)];
        script.answer(&sent, Ok(outcomes(results)));
        let again = script.sent();
        let nodes: Vec<NodeIndex> = again.iter().map(|sent| sent.node).collect();
        assert_eq!(nodes, [JOURNAL[1], JOURNAL[1], JOURNAL[2], JOURNAL[2]]);
        again.iter().for_each(|sent| script.done(sent));
        script.sent();
        assert_eq!(script.completions.len(), 2);
        script.core(|core| {
            assert!(!core.log.journal_move.has_to_move());
            assert_eq!(core.node(JOURNAL[1]).health, NodeHealth::Up);
        });
    }

    #[test]
    fn a_fence_that_a_node_behind_the_head_reports_ends_the_writer() {
        let mut script = admitted(Strategy::Ring);
        script.write(1, 1);
        let sent = script.sent_one();
        let epoch = script.core(|core| core.writer.epoch());
        let current = fieldstone_proto::Epoch(epoch.0 + 1);
        let fenced = Err(NodeError::Fenced { sent: epoch, current });
        script.answer(&sent, Ok(outcomes([Ok(()), Ok(()), fenced])));
        script.sent();
        script.core(|core| assert!(matches!(core.life.phase(), VolumePhase::Failed(_))));
    }

    #[test]
    fn a_connection_that_came_back_needs_its_pass_again() {
        let mut script = admitted(Strategy::Ring);
        let node = JOURNAL[2];
        script.core(|core| {
            assert!(core.node(node).relay.admitted);
            core.node_lost(node, "a test");
            assert!(!core.node(node).relay.admitted && !core.node(node).relay.announced);
        });
    }

    /// A node of an older release closes the connection when a write comes in fragments: the head's
    /// to the volume, or that between two nodes.
    #[test]
    fn a_node_that_is_lost_with_fragments_gets_whole_writes_for_a_while() {
        let mut script = admitted(Strategy::Ring);
        script.core(|core| core.config.fragment_bytes = 4096);
        let append = |script: &mut Script| {
            script.write(1, 4);
            script.sent_one()
        };
        let allowed = |sent: &Sent| sent.request.route.as_ref().map(|route| route.fragments);
        let good = || Ok(outcomes([Ok(()), Ok(()), Ok(())]));
        let sent = append(&mut script);
        assert_eq!(allowed(&sent), Some(Fragments::Allowed(4096)));
        script.answer(&sent, good());
        let lost = Err(NodeError::Unreachable);
        let behind = || Ok(outcomes([Ok(()), not_passed_on(0, 1), Ok(())]));
        let cases: [(NodeIndex, Box<dyn Fn() -> CallResult>); 2] =
            [(JOURNAL[0], Box::new(move || lost.clone())), (JOURNAL[1], Box::new(behind))];
        for (node, result) in cases {
            for rest_ms in [1_000, 2_000, 4_000] {
                script.core(|core| core.note_fragments(JOURNAL[0], &result()));
                script.wait_ms(rest_ms - 1);
                let sent = append(&mut script);
                assert_eq!(allowed(&sent), Some(Fragments::Whole), "{node}, {rest_ms}");
                // A whole write says nothing about fragments.
                script.answer(&sent, good());
                script.wait_ms(1);
                assert!(script.sent().is_empty());
                script.core(|core| assert!(core.may_get(node, NewForm::Fragments)));
            }
            script.core(|core| core.note_fragments(JOURNAL[0], &good()));
        }
        // Short writes, and those without a route, go whole.
        script.core(|core| {
            let route = core.route_through(&JOURNAL).expect("a route");
            assert!(!core.may_go_in_fragments(Some(&route), 4096));
            assert!(core.may_go_in_fragments(Some(&route), 8192));
            assert!(!core.may_go_in_fragments(None, 8192));
            let alone = Route { replicas: route.replicas[..1].to_vec(), ..route };
            assert!(!core.may_go_in_fragments(Some(&alone), 8192));
        });
    }

    #[test]
    fn nodes_of_this_process_come_first_and_unreachable_ones_prevent_a_route() {
        let mut script = admitted(Strategy::Ring);
        let set = |script: &mut Script, reach: [Reach; 3]| {
            script.core(|core| {
                for (node, reach) in JOURNAL.iter().zip(reach) {
                    core.node_mut(*node).relay.reach = reach;
                    let relay = &mut core.node_mut(*node).relay;
                    (relay.admitted, relay.announced) = (true, true);
                }
                let route = core.route_through(&JOURNAL)?;
                Some(route.replicas.iter().map(|replica| replica.node.0).collect::<Vec<_>>())
            })
        };
        let at = |text: &'static str| Reach::At(Bytes::from_static(text.as_bytes()));
        let (one, two) = (at("tcp:10.0.0.1:7"), at("tcp:10.0.0.2:7"));
        let remote_first = [one.clone(), Reach::Here, two.clone()];
        assert_eq!(set(&mut script, remote_first), Some(vec![1, 0, 2]));
        assert_eq!(set(&mut script, [one, two.clone(), Reach::Here]), Some(vec![2, 0, 1]));
        assert_eq!(set(&mut script, [Reach::Here, Reach::Nowhere, two]), None);
        let long = Reach::At(vec![b'x'; ADDRESS_BYTES_MAX + 1].into());
        assert_eq!(set(&mut script, [Reach::Here, Reach::Here, long]), None);
    }
}
