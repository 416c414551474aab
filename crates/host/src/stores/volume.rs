//! A volume as a store: the state machine, its links to nodes, and the engine that does its jobs.
//!
//! A volume has one link per node for its requests: a queue within the process for nodes that run
//! here, a socket for other nodes ([`remote`]). When the volume asks for a reconnection, the link
//! starts over with a new attempt number. The store drops messages with an old number. So the
//! volume never sees an answer from before a reconnection.
//!
//! The engine does a job at once in software, or gives it to its device. While the device has jobs,
//! the store asks for its results once in each turn of the reactor, and the turn does not sleep.

mod remote;

use std::sync::Arc;

use fieldstone_accel::{Counters, Engine, Job, JobCompletion, JobId, SubmissionQueueId, execute};
use fieldstone_block::{Backend, Completion, Info, Nanos, Request, Settings};
use fieldstone_proto::NodeIndex;
use fieldstone_volume::{
    Reach, Status, Volume, VolumeAction, VolumeConfig, VolumeEvent, VolumePhase,
};

use crate::issuer::{IssuerMail, VolumeAuthority};
use crate::message::{Link, LocalNodeId, Message, NodeMail, NodePlace};
use crate::store::{Call, Mail, Phase, Store, StoreIo, StoreSpec};
use remote::{FoundAddress, RemoteEvent, RemoteNode};

/// A volume on nodes.
#[derive(Debug)]
pub struct VolumeSpec {
    /// The volume, and how to open it.
    pub config: VolumeConfig,
    /// Who issues its capabilities. This replaces the authority of `config`.
    pub authority: VolumeAuthority,
    /// The places of its nodes, in the order of their indices.
    pub places: Arc<[NodePlace]>,
    /// Does the volume's jobs.
    pub engine: Engine,
}

/// The status of a volume's store.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// The volume.
    pub volume: Status,
    /// The name of the engine that does its jobs.
    pub engine: String,
    /// The engine's counters.
    pub engine_counters: Counters,
}

/// The queue of the engine. Each volume has its own engine, so one queue is enough.
const QUEUE: SubmissionQueueId = SubmissionQueueId(0);

/// A call to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeCall {
    /// Restore missing shards.
    Rebuild {
        /// Largest rate of reads, bytes per second; 0 for no limit.
        limit_bytes_per_second: u64,
    },
    /// Check every shard.
    Scrub {
        /// Largest rate of reads, bytes per second; 0 for no limit.
        limit_bytes_per_second: u64,
    },
    /// Make the device larger.
    Grow {
        /// Its new size.
        size_bytes: u64,
        /// From now on the volume reserves only the slots that it needs.
        thin: bool,
    },
}

/// The calls of a volume, for lists.
const CALLS: &[Call] = &[
    Call { name: "rebuild", options: &["limit"], about: "restore missing shards" },
    Call { name: "scrub", options: &["limit"], about: "check every shard" },
    Call { name: "grow", options: &["size", "thin"], about: "make the device larger" },
];

impl VolumeCall {
    /// The call in the form that a store takes.
    #[must_use]
    pub fn settings(self) -> Settings {
        let (name, options) = match self {
            Self::Rebuild { limit_bytes_per_second: limit } => ("rebuild", vec![("limit", limit)]),
            Self::Scrub { limit_bytes_per_second: limit } => ("scrub", vec![("limit", limit)]),
            Self::Grow { size_bytes, thin } => {
                ("grow", vec![("size", size_bytes), ("thin", u64::from(thin))])
            }
        };
        let mut settings = Settings::none(name);
        for (option, value) in options {
            settings.set(option, &value.to_string());
        }
        settings
    }

    fn read(mut settings: Settings) -> Result<Self, String> {
        let name = settings.layer().to_owned();
        let mut number = |option| {
            let mut value = 0;
            settings.number(option, &mut value).map_err(|error| error.to_string())?;
            Ok::<u64, String>(value)
        };
        let call = match name.as_str() {
            "rebuild" => Self::Rebuild { limit_bytes_per_second: number("limit")? },
            "scrub" => Self::Scrub { limit_bytes_per_second: number("limit")? },
            "grow" => Self::Grow { size_bytes: number("size")?, thin: number("thin")? > 0 },
            _ => return Err(format!("a volume does not know {name:?}")),
        };
        settings.finish().map_err(|error| error.to_string())?;
        Ok(call)
    }
}

impl StoreSpec for VolumeSpec {
    fn open(self: Box<Self>, io: &mut StoreIo<'_>) -> Box<dyn Store> {
        let link = |(index, place): (usize, &NodePlace)| match place {
            NodePlace::Here(id) => NodeLink::Here { id: *id, attempt: 0 },
            place => {
                let node = RemoteNode::new(node_index(index), place.clone(), io.mailer());
                NodeLink::Remote(Box::new(node))
            }
        };
        let links: Vec<NodeLink> = self.places.iter().enumerate().map(link).collect();
        let mut authority = self.authority;
        if let VolumeAuthority::Issuer(issuer) = &mut authority {
            issuer.start(io.mailer());
        }
        // The secrets may have changed since the specification was made.
        let config = VolumeConfig { authority: authority.for_volume(), ..self.config };
        let volume = Volume::new(config, io.now);
        let mut store = VolumeStore {
            volume,
            authority,
            links,
            engine: self.engine,
            polled_at: Nanos(0),
            events: Vec::new(),
            done: Vec::new(),
        };
        for index in 0..store.links.len() {
            store.connect(node_index(index), io);
        }
        Box::new(store)
    }
}

fn node_index(index: usize) -> NodeIndex {
    NodeIndex(u16::try_from(index).expect("a pool has at most 65535 nodes"))
}

enum NodeLink {
    Here { id: LocalNodeId, attempt: u32 },
    Remote(Box<RemoteNode>),
}

struct VolumeStore {
    volume: Volume,
    authority: VolumeAuthority,
    links: Vec<NodeLink>,
    engine: Engine,
    /// The time of the core's round in which the engine was last polled.
    polled_at: Nanos,
    /// Kept to reuse its memory.
    events: Vec<RemoteEvent>,
    /// Kept to reuse its memory.
    done: Vec<JobCompletion>,
}

impl VolumeStore {
    /// Opens the node's link with a new attempt number.
    fn connect(&mut self, node: NodeIndex, io: &mut StoreIo<'_>) {
        let device = io.device.0;
        let core = io.router.me;
        match self.links.get_mut(usize::from(node.0)) {
            Some(NodeLink::Here { id: node, attempt }) => {
                let (node, to) = (*node, node.core(io.router.cores()));
                let old = Link { device, attempt: *attempt };
                if *attempt > 0 {
                    io.router.send(to, Message::LinkClose { node, link: old });
                }
                *attempt += 1;
                let link = Link { device, attempt: *attempt };
                io.router.send(to, Message::LinkOpen { node, link, core });
            }
            Some(NodeLink::Remote(remote)) => remote.reconnect(io),
            None => tracing::error!("{} is not of this pool", node),
        }
    }

    /// Takes mail of the issuer, or of a thread that has read the address of a node.
    fn take_mail_of_thread(&mut self, mail: Mail, io: &mut StoreIo<'_>) {
        let mail = match mail.downcast::<IssuerMail>() {
            Ok(mail) => return self.take_mail_of_issuer(*mail, io.now),
            Err(mail) => mail,
        };
        let Ok(found) = mail.downcast::<FoundAddress>() else { return };
        let FoundAddress { node, attempt, endpoint } = *found;
        if let Some(NodeLink::Remote(remote)) = self.links.get_mut(usize::from(node.0)) {
            remote.found(attempt, endpoint, io);
        }
    }

    fn take_mail_of_issuer(&mut self, mail: IssuerMail, now: Nanos) {
        let VolumeAuthority::Issuer(issuer) = &mut self.authority else { return };
        match mail.event() {
            Some(event) => self.volume.handle(event, now),
            None => issuer.tell_oldest(self.volume.oldest_generation()),
        }
    }

    fn is_current(&self, node: NodeIndex, link: Link) -> bool {
        matches!(self.links.get(usize::from(node.0)),
            Some(NodeLink::Here { attempt, .. }) if *attempt == link.attempt)
    }

    /// Gives a job of the volume to the engine.
    fn start_job(&mut self, id: JobId, job: Job, now: Nanos) {
        if let Err(job) = self.engine.submit(now.0, QUEUE, id, job) {
            // So many results wait that the engine takes no more.
            let event = VolumeEvent::JobDone { id, result: execute(&job) };
            self.volume.handle(event, now);
        }
    }

    /// Gives the engine's results to the volume. True if there were any. If the engine has left
    /// work for a later poll, that poll comes in a later round of the core, so that other parts run
    /// before it.
    fn finish_jobs(&mut self, now: Nanos) -> bool {
        if self.engine.pending() > 0 && self.polled_at == now {
            return false;
        }
        self.polled_at = now;
        self.engine.poll(now.0, QUEUE, &mut self.done);
        drop_elsewhere(self.engine.take_given_up());
        let any = !self.done.is_empty();
        for JobCompletion { job: id, result } in self.done.drain(..) {
            self.volume.handle(VolumeEvent::JobDone { id, result }, now);
        }
        any
    }

    /// Passes the events of a remote node to the volume.
    fn listen(&mut self, node: NodeIndex, events: &mut Vec<RemoteEvent>, now: Nanos) {
        for event in events.drain(..) {
            let event = match event {
                RemoteEvent::Up(address) => {
                    self.volume.handle(VolumeEvent::NodeAt(node, Reach::At(address)), now);
                    VolumeEvent::NodeUp(node)
                }
                RemoteEvent::Down => VolumeEvent::NodeDown(node),
                RemoteEvent::Reply(reply) => VolumeEvent::Reply { node, reply },
            };
            self.volume.handle(event, now);
        }
    }
}

/// Drops an accelerator on a thread of its own, because that waits until the accelerator uses no
/// memory any more.
fn drop_elsewhere(accelerator: Option<Box<dyn fieldstone_accel::Device>>) {
    if let Some(accelerator) = accelerator {
        std::thread::spawn(move || drop(accelerator));
    }
}

impl Drop for VolumeStore {
    fn drop(&mut self) {
        drop_elsewhere(std::mem::take(&mut self.engine).into_device());
    }
}

impl Backend for VolumeStore {
    fn info(&self) -> Info {
        self.volume.info()
    }
    fn submit(&mut self, request: Request, now: Nanos) {
        self.volume.submit(request, now);
    }
    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        self.volume.poll(now, out);
    }
    fn deadline(&self) -> Option<Nanos> {
        // A device has no event of its own: the store asks again in the next turn.
        if self.engine.unfinished() > 0 { Some(Nanos(0)) } else { self.volume.deadline() }
    }
}

impl Store for VolumeStore {
    fn kind(&self) -> &'static str {
        "volume"
    }

    fn phase(&self) -> Phase {
        match self.volume.phase() {
            VolumePhase::Opening => Phase::Opening,
            VolumePhase::Serving | VolumePhase::Inspected => Phase::Serving,
            VolumePhase::Closing => Phase::Closing,
            VolumePhase::Closed => Phase::Closed,
            VolumePhase::Failed(reason) => Phase::Failed(reason.to_string()),
        }
    }

    fn close(&mut self) {
        self.volume.request_close();
    }

    fn release(&mut self, io: &mut StoreIo<'_>) {
        for link in &mut self.links {
            match link {
                NodeLink::Here { id, attempt } => {
                    let node = *id;
                    let link = Link { device: io.device.0, attempt: *attempt };
                    let to = node.core(io.router.cores());
                    io.router.send(to, Message::LinkClose { node, link });
                }
                NodeLink::Remote(remote) => remote.close(io),
            }
        }
    }

    fn event(&mut self, index: u32, event: fieldstone_uring::Event, io: &mut StoreIo<'_>) {
        let what = remote::Name::of(index);
        let mut events = std::mem::take(&mut self.events);
        if let Some(NodeLink::Remote(remote)) = self.links.get_mut(usize::from(what.node.0)) {
            remote.event(what, event, io, &mut events);
        }
        self.listen(what.node, &mut events, io.now);
        self.events = events;
    }

    fn mail(&mut self, mail: Mail, io: &mut StoreIo<'_>) {
        let mail = match mail.downcast::<NodeMail>() {
            Ok(mail) => mail,
            Err(mail) => return self.take_mail_of_thread(mail, io),
        };
        match *mail {
            NodeMail::Up(node, link) if self.is_current(node, link) => {
                self.volume.handle(VolumeEvent::NodeAt(node, Reach::Here), io.now);
                self.volume.handle(VolumeEvent::NodeUp(node), io.now);
            }
            NodeMail::Down(node, link) if self.is_current(node, link) => {
                self.volume.handle(VolumeEvent::NodeDown(node), io.now);
            }
            NodeMail::Reply(node, link, reply) if self.is_current(node, link) => {
                self.volume.handle(VolumeEvent::Reply { node, reply }, io.now);
            }
            NodeMail::Up(..) | NodeMail::Down(..) | NodeMail::Reply(..) => {}
        }
    }

    fn set_wall_clock(&mut self, offset_ns: u64, now: Nanos) {
        self.volume.handle(VolumeEvent::WallClock { offset_ns }, now);
    }

    fn keys_changed(&mut self) {
        if let VolumeAuthority::Secrets(keys) = &self.authority {
            self.volume.set_keys(keys.get());
        }
    }

    fn act(&mut self, io: &mut StoreIo<'_>) -> bool {
        let device = io.device.0;
        let mut busy = false;
        while let Some(action) = self.volume.next_action() {
            busy = true;
            match action {
                VolumeAction::Job { id, job } => self.start_job(id, job, io.now),
                VolumeAction::Reconnect { node } => self.connect(node, io),
                VolumeAction::Issue { epoch } => {
                    if let VolumeAuthority::Issuer(issuer) = &mut self.authority {
                        issuer.ask(epoch);
                    }
                }
                VolumeAction::Send { node, request } => {
                    match self.links.get_mut(usize::from(node.0)) {
                        Some(NodeLink::Here { id: node, attempt }) => {
                            let (node, link) = (*node, Link { device, attempt: *attempt });
                            let to = node.core(io.router.cores());
                            io.router.send(to, Message::ToNode { node, link, request });
                        }
                        Some(NodeLink::Remote(remote)) => remote.send(request),
                        None => tracing::error!("{node} is not of this pool"),
                    }
                }
            }
        }
        busy | self.finish_jobs(io.now)
    }

    fn flush(&mut self, io: &mut StoreIo<'_>) {
        let mut events = std::mem::take(&mut self.events);
        for index in 0..self.links.len() {
            if let NodeLink::Remote(remote) = &mut self.links[index] {
                remote.flush(io.reactor, &mut events);
                self.listen(node_index(index), &mut events, io.now);
            }
        }
        self.events = events;
    }

    fn waits_for(&self, now: Nanos) -> String {
        self.volume.waits_for(now)
    }

    fn status(&self, now: Nanos) -> Option<Mail> {
        let mut volume = self.volume.status();
        // The volume may not have run since it began to wait.
        volume.waits_for = self.volume.waits_for(now);
        Some(Box::new(VolumeStatus {
            volume,
            engine: self.engine.name().to_owned(),
            engine_counters: self.engine.counters(),
        }))
    }

    fn calls(&self) -> &'static [Call] {
        CALLS
    }

    fn call(&mut self, call: Settings) -> Result<(), String> {
        match VolumeCall::read(call)? {
            VolumeCall::Rebuild { limit_bytes_per_second } => {
                self.volume.request_rebuild(limit_bytes_per_second);
            }
            VolumeCall::Scrub { limit_bytes_per_second } => {
                self.volume.request_scrub(limit_bytes_per_second);
            }
            VolumeCall::Grow { size_bytes, thin } => self.volume.request_grow(size_bytes, thin),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_as_they_were_written() {
        for call in [
            VolumeCall::Rebuild { limit_bytes_per_second: 7 },
            VolumeCall::Scrub { limit_bytes_per_second: 0 },
            VolumeCall::Grow { size_bytes: 1 << 40, thin: true },
            VolumeCall::Grow { size_bytes: 4096, thin: false },
        ] {
            let settings = call.settings();
            let listed = CALLS.iter().find(|listed| listed.name == settings.layer());
            assert!(listed.is_some(), "{settings:?}");
            assert_eq!(VolumeCall::read(settings), Ok(call));
        }
        assert!(VolumeCall::read(Settings::none("shrink")).is_err());
        let mut settings = Settings::none("scrub");
        settings.set("size", "1");
        assert!(VolumeCall::read(settings).is_err(), "an option of another call");
    }
}
