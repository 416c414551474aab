//! A storage node in this process: the state machine, its disk, and its clients.
//!
//! # Life
//!
//! ```text
//!          folder opened             disk read          folder vanished or replaced
//!  Down ------------------> Starting -----------> Up ------------------------------> Down
//!   ^  |  every 2 s, in the node's thread for blocking calls
//!   +--+
//! ```
//!
//! A client opens a *link* to the node whether the node is up or not, and learns when it is up.
//! When the node goes down, every client learns this, and all requests in flight are dropped. The
//! clients treat them as lost, as after a broken connection. The disk drops results of its earlier
//! era.
//!
//! A missing or empty folder stays as it is until a new empty node takes the place of the lost one.
//! A command makes that node (`fieldstone pool replace`). If nothing exists at the path, an opening
//! can also make it, when the server was told so (`--replace-missing`, see [`crate::folder`]). Such
//! a node has a new incarnation. It shows volumes that their shards are lost, and they rebuild
//! them.

use std::path::PathBuf;
use std::sync::mpsc;

use fieldstone_block::Nanos;
use fieldstone_node::{
    ControlEvent, DiskError, DiskId, DiskOutput, Node, NodeAction, NodeEvent, ParityMemory,
};
use fieldstone_proto::{NodeIndex, PoolId, Reply, Request};

use crate::disk::{BlockingCall, BlockingDone, BlockingOutput, Disk};
use crate::folder::{NodeFolder, Opening};
use crate::handle::LocalNodeConfig;
use crate::message::{Core, DeviceId, Link, LocalNodeId, Message, NodeMail, Router};
use crate::notices::{Cause, Notices};
use fieldstone_uring::{Event, Reactor};

/// A client of the node: a device, a connection of another process, or a control call.
#[derive(Debug)]
struct Client {
    link: Link,
    core: Core,
    up: bool,
    /// The node has accepted a capability of the client.
    known: bool,
    /// For a control call: the channel for its answers.
    direct: Option<mpsc::Sender<Reply>>,
}

#[derive(Debug)]
enum State {
    Down {
        reason: String,
    },
    /// `up` is true once the node is ready and its clients know it.
    Running {
        node: Box<Node>,
        folder: Box<NodeFolder>,
        up: bool,
    },
}

/// The status of an in-process node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNodeStatus {
    /// Its pool.
    pub pool: PoolId,
    /// Its index in its pool.
    pub node: NodeIndex,
    /// Its folder.
    pub path: PathBuf,
    /// Why the node is down, if it is.
    pub down: Option<String>,
}

/// After a failed start, the core leaves out at most this many looks at the folder, 2 s apart,
/// because each start reads the node's tables.
const PAUSE_MAX: u32 = 14;

/// A storage node in this process.
#[derive(Debug)]
pub struct LocalNode {
    id: LocalNodeId,
    opening: Opening,
    disk: Disk,
    state: State,
    clients: Vec<Client>,
    /// The offset that the core has told last ([`crate::wall_clock`]).
    wall_offset_ns: u64,
    /// The node checks payloads on arrival, because they come over a network.
    verify_payload: bool,
    /// Memory for parity, which the process's nodes share.
    parity_memory: ParityMemory,
    /// Since when a call that looks at the folder is under way, if one is.
    checking: Option<Nanos>,
    /// The last reason for being down. The log gives each reason once, not at every try.
    last_reason: String,
    /// Number of failed starts in a row.
    failed_starts: u32,
    /// Number of looks at the folder to leave out before the next start.
    pause: u32,
}

impl LocalNode {
    /// A node with an open folder, or with the reason why the folder could not be opened.
    #[must_use]
    pub fn new(
        id: LocalNodeId,
        config: LocalNodeConfig,
        disk: Disk,
        wall_offset_ns: u64,
        verify_payload: bool,
        parity_memory: ParityMemory,
        now: Nanos,
    ) -> Self {
        let LocalNodeConfig { opening, folder, late } = config;
        let state = State::Down { reason: String::new() };
        let mut node = Self {
            id,
            opening,
            disk,
            state,
            clients: Vec::new(),
            wall_offset_ns,
            verify_payload,
            parity_memory,
            checking: None,
            last_reason: String::new(),
            failed_starts: 0,
            pause: 0,
        };
        match folder {
            Ok(folder) => node.start(Box::new(folder), now),
            Err(reason) => {
                // The code that opened the folder has reported this to the user.
                node.last_reason.clone_from(&reason);
                node.state = State::Down { reason };
                if let Some(late) = late {
                    node.checking = Some(now);
                    node.disk.call_blocking(u32::MAX, BlockingCall::Await(late));
                }
            }
        }
        node
    }

    /// The node's id in this process.
    #[must_use]
    pub fn id(&self) -> LocalNodeId {
        self.id
    }

    /// The status of the node.
    #[must_use]
    pub fn status(&self) -> LocalNodeStatus {
        LocalNodeStatus {
            pool: self.opening.expected.pool,
            node: self.id.index,
            path: self.opening.path.clone(),
            down: match &self.state {
                State::Down { reason } => Some(reason.clone()),
                State::Running { .. } => None,
            },
        }
    }

    /// Takes the present offset ([`crate::wall_clock`]).
    pub fn set_wall_clock(&mut self, offset_ns: u64, now: Nanos) {
        self.wall_offset_ns = offset_ns;
        self.handle(NodeEvent::WallClock { offset_ns }, now);
    }

    fn is_up(&self) -> bool {
        matches!(self.state, State::Running { up: true, .. })
    }

    fn start(&mut self, folder: Box<NodeFolder>, now: Nanos) {
        self.disk.next_era(Some(folder.dir.clone()));
        let (keys, memory) = (self.opening.keys.get(), self.parity_memory.clone());
        let config = folder.config(keys, self.verify_payload, memory);
        let mut node = Box::new(Node::new(config));
        node.start(now.0);
        node.handle(now.0, NodeEvent::WallClock { offset_ns: self.wall_offset_ns });
        self.state = State::Running { node, folder, up: false };
    }

    fn handle(&mut self, event: NodeEvent, now: Nanos) {
        if let State::Running { node, .. } = &mut self.state {
            node.handle(now.0, event);
        }
    }

    /// Gives the node the present secrets of its pool. A node that is down takes them when it
    /// starts.
    pub fn keys_changed(&mut self) {
        if let State::Running { node, .. } = &mut self.state {
            node.set_keys(self.opening.keys.get());
        }
    }

    /// Tells the node how much of its data file the file system has room for; `None` if that is
    /// unknown. The node gets this each time, because a failed write since then may have changed
    /// its count.
    fn note_room(&mut self, room_bytes: Option<u64>, now: Nanos) {
        let room_bytes = room_bytes.unwrap_or(u64::MAX);
        self.handle(NodeEvent::Room { room_bytes }, now);
    }

    /// Connects a device, another process or a control call.
    pub fn open_link(
        &mut self,
        link: Link,
        core: Core,
        direct: Option<mpsc::Sender<Reply>>,
        router: &mut Router,
    ) {
        let up = self.is_up();
        if direct.is_some() && matches!(self.state, State::Down { .. }) {
            // The closed channel shows that the node is down.
            return;
        }
        if up && direct.is_none() {
            send_mail(core, link, NodeMail::Up(self.id.index, link), router);
        }
        self.clients.push(Client { link, core, up, known: false, direct });
    }

    /// Disconnects the client of `link`.
    pub fn close_link(&mut self, link: Link, now: Nanos) {
        let Some(at) = self.clients.iter().position(|client| client.link == link) else { return };
        let client = self.clients.swap_remove(at);
        if client.up || client.direct.is_some() {
            self.handle(NodeEvent::PeerLost { peer: link.peer() }, now);
        }
    }

    /// Takes a request. Drops it if the node is down or the link is not open. The sender knows
    /// this, or will learn it soon.
    pub fn request(&mut self, link: Link, request: Request, now: Nanos, router: &mut Router) {
        let open =
            |client: &&mut Client| client.link == link && (client.up || client.direct.is_some());
        let Some(client) = self.clients.iter_mut().find(open) else { return };
        let (known, core) = (client.known, client.core);
        let State::Running { node, .. } = &mut self.state else { return };
        node.handle(now.0, NodeEvent::Request { peer: link.peer(), request });
        if !known && node.has_accepted(link.peer()) {
            if let Some(client) = self.clients.iter_mut().find(|client| client.link == link) {
                client.known = true;
            }
            if link.device == Link::SOCKET {
                router.send(core, Message::LinkKnown { node: self.id, link });
            }
        }
    }

    /// Takes an event of a link to another node.
    pub fn link_event(&mut self, event: NodeEvent, now: Nanos) {
        self.handle(event, now);
    }

    /// When the node gives another node up that does not answer.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        let State::Running { node, .. } = &self.state else { return None };
        node.deadline_ns().map(Nanos)
    }

    /// Lets the node give up other nodes whose time is over.
    pub fn tick(&mut self, now: Nanos) {
        if self.deadline().is_some_and(|due| due <= now) {
            self.handle(NodeEvent::Tick, now);
        }
    }

    /// An operation on the ring has ended.
    pub fn disk_event(&mut self, index: u32, event: Event, now: Nanos) {
        if let Some(done) = self.disk.finished(index, event, now) {
            self.disk_done(done, now);
        }
    }

    fn disk_done(&mut self, done: (DiskId, Result<DiskOutput, DiskError>), now: Nanos) {
        let (id, result) = done;
        self.handle(NodeEvent::Disk { id, result }, now);
    }

    /// Carries out the node's actions until there are no more. True if there were any.
    pub fn pump(
        &mut self,
        now: Nanos,
        router: &mut Router,
        reactor: &mut Reactor,
        notices: &mut Notices,
    ) -> bool {
        let State::Running { node, up, .. } = &mut self.state else { return false };
        let mut busy = false;
        loop {
            while let Some(action) = node.next_action() {
                busy = true;
                match action {
                    NodeAction::Disk { id, op } => self.disk.start(id, op, reactor),
                    NodeAction::Relay { to, request } => {
                        let (me, from) = (router.me, self.id);
                        router.send(me, Message::Relay { from, to, request });
                    }
                    NodeAction::CloseLink { to } => {
                        router.send(router.me, Message::CloseNodeLink { from: self.id, to });
                    }
                    NodeAction::Reply { peer, reply } => {
                        let link = Link::of(peer);
                        deliver(&mut self.clients, self.id.index, link, reply, router);
                    }
                }
            }
            let Some((id, result)) = self.disk.next_ready() else { break };
            node.handle(now.0, NodeEvent::Disk { id, result });
        }
        while let Some(event) = node.next_control_event() {
            tell(self.id.index, event, now, notices);
        }
        if !*up {
            if let Some(reason) = node.failure() {
                let reason = reason.to_owned();
                self.failed_starts += 1;
                self.pause = (1 << self.failed_starts.min(31)) - 1;
                self.pause = self.pause.min(PAUSE_MAX);
                self.go_down(reason, router);
            } else if node.is_ready() {
                *up = true;
                self.failed_starts = 0;
                self.report_up(router);
                busy = true;
            }
        }
        busy
    }

    fn report_up(&mut self, router: &mut Router) {
        for client in &mut self.clients {
            client.up = true;
            if client.direct.is_none() {
                send_mail(
                    client.core,
                    client.link,
                    NodeMail::Up(self.id.index, client.link),
                    router,
                );
            }
        }
    }

    /// Since when a check of the folder is under way, if one is.
    #[must_use]
    pub fn checking_since(&self) -> Option<Nanos> {
        self.checking
    }

    /// Checks the folder. The core calls this every two seconds.
    pub fn check_folder(&mut self, now: Nanos) {
        if self.checking.is_some() {
            return;
        }
        let call = match &self.state {
            State::Running { folder, .. } => {
                BlockingCall::Check(self.opening.path.clone(), folder.identity)
            }
            State::Down { .. } if self.pause > 0 => {
                self.pause -= 1;
                return;
            }
            State::Down { .. } => {
                let mut opening = self.opening.clone();
                opening.expected.incarnation = crate::folder::random();
                BlockingCall::Open(Box::new(opening))
            }
        };
        self.checking = Some(now);
        self.disk.call_blocking(u32::MAX, call);
    }

    /// Takes the result of a call.
    pub fn blocking_done(&mut self, done: BlockingDone, now: Nanos, router: &mut Router) {
        let current = done.era == self.disk.era();
        match done.outcome {
            BlockingOutput::Disk(result) => {
                if let Some(done) = self.disk.blocking_finished(done.index, result) {
                    self.disk_done(done, now);
                }
            }
            BlockingOutput::Checked { same, room_bytes } => {
                self.checking = None;
                if !same && current {
                    let path = self.opening.path.display();
                    self.go_down(format!("the folder {path} vanished or was replaced"), router);
                } else if current {
                    self.note_room(room_bytes, now);
                }
            }
            BlockingOutput::Opened(Ok(folder)) => {
                self.checking = None;
                if folder.created {
                    tracing::warn!(
                        "nothing lay at {}; made an empty node there: its shards will be rebuilt",
                        folder.path.display()
                    );
                } else if !self.last_reason.is_empty() && self.failed_starts == 0 {
                    tracing::warn!("trying {} again", folder.path.display());
                }
                self.start(folder, now);
            }
            BlockingOutput::Opened(Err(reason)) => {
                self.checking = None;
                if matches!(self.state, State::Down { .. }) {
                    self.go_down(reason, router);
                }
            }
        }
    }

    fn go_down(&mut self, reason: String, router: &mut Router) {
        if self.last_reason != reason {
            tracing::warn!("{} is down: {reason}", self.id);
            self.last_reason.clone_from(&reason);
        }
        self.disk.next_era(None);
        self.state = State::Down { reason };
        router.send(router.me, Message::CloseNodeLinks { from: self.id });
        for client in &mut self.clients {
            if std::mem::replace(&mut client.up, false) && client.direct.is_none() {
                send_mail(
                    client.core,
                    client.link,
                    NodeMail::Down(self.id.index, client.link),
                    router,
                );
            }
        }
        // A control call in flight gets no answer: dropping its client closes its channel.
        self.clients.retain(|client| client.direct.is_none());
    }

    /// True if no disk operation is under way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.disk.is_quiet()
    }
}

/// Tells the log about an event of a node.
fn tell(node: NodeIndex, event: ControlEvent, now: Nanos, notices: &mut Notices) {
    match event {
        ControlEvent::WriteGivenUp { volume, arrived_bytes, len_bytes, .. } => {
            let line = format_args!(
                "{node}: a client sent {arrived_bytes} of {len_bytes} bytes of a write to volume \
                 {volume} and then was silent; the write is given up"
            );
            notices.say(Cause::GivenUp, now, line);
        }
        ControlEvent::SumGivenUp { volume, segment, arrived, count } => {
            let line = format_args!(
                "{node}: {arrived} of {count} nodes sent their part of a parity of volume {volume} \
                 ({segment}) in time; the volume makes the parity itself"
            );
            notices.say(Cause::GivenUp, now, line);
        }
        ControlEvent::TableFull => {
            let line = format_args!("{node}: its table of requests is full; clients send again");
            notices.say(Cause::Busy, now, line);
        }
    }
}

fn deliver(clients: &mut [Client], node: NodeIndex, link: Link, reply: Reply, router: &mut Router) {
    let Some(client) = clients.iter().find(|client| client.link == link) else { return };
    match &client.direct {
        // The caller may no longer wait, because its call timed out.
        Some(direct) => drop(direct.send(reply)),
        None => send_mail(client.core, link, NodeMail::Reply(node, link, reply), router),
    }
}

/// Sends mail to the client of a link: the connection of another process, or a store.
fn send_mail(core: Core, link: Link, mail: NodeMail, router: &mut Router) {
    let message = match link.device {
        Link::SOCKET => Message::ToPeer(mail),
        Link::NODE => Message::ToNodeLink(mail),
        device => Message::ToStore { device: DeviceId(device), mail: Box::new(mail) },
    };
    router.send(core, message);
}
