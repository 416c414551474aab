//! One NIC that handles packets one after the other: matches them to messages, runs the handlers,
//! and does their commands at once.
//!
//! It is the functional half of a NIC, without time. A packet whose flag says first opens an entry
//! and runs the header handler; if that refuses, the rest of the message is dropped. Each packet of
//! an accepted message runs the payload handler, once ([`Arrivals`]): packets that come again are
//! strays. Behind the first, packets come in any order. When all are there, the completion handler
//! runs, and the message takes no more packets. A message stays until a handler frees its entry, or
//! the node's CPU does so with [`Nic::release`].
//!
//! **A client that fails** leaves a message of which packets are missing. The cleanup handler of a
//! message runs when no packet of it has come for [`INACTIVE_NS`], as in the paper (section VII).
//! The next packet, or [`Nic::tick`], brings the time; [`Nic::deadline_ns`] says when the next
//! cleanup is due. A message whose packets are all there may wait for others of its parity write,
//! for [`WAITS_NS`].
//!
//! **Who sends is the network's word.** A message is found by its source and its number, and only
//! the first packet has a capability. So the NIC takes the source from the connection that the
//! packet came by, as an RDMA NIC does, and a packet whose header has another one is a stray. The
//! network is trusted with that, as in the paper (section IV).
//!
//! An input error never stops the NIC. A packet that is longer than a packet may be runs no
//! handler. What a handler did wrong comes out as [`Output::Fault`]. After a fault of a header,
//! payload or completion handler the message takes no more packets, and its cleanup handler runs: a
//! parity write, which the message may be part of, gives its accumulators back. After a fault of a
//! cleanup handler the message is forgotten.

use std::collections::BTreeMap;

use fieldstone_node::limits;

use crate::firmware::arrivals::Arrivals;
use crate::firmware::command::Command;
use crate::firmware::engine::{Area, Call, Engine, EngineError, Handler, MAX_REQUESTS};
use crate::firmware::packet::{
    MAX_PACKET_BYTES, PACKET_HEADER_BYTES, PLACE_FIRST, PLACE_LAST, PacketHeader,
};
use crate::firmware::state::REQUEST_BYTES;
use crate::riscv::core::Counters;

/// What a NIC does.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A packet to another node.
    Send(Vec<u8>),
    /// Bytes into storage.
    Store {
        /// The address.
        address: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// An entry in the control side's event queue.
    Event {
        /// Which event.
        code: u32,
        /// What it is about.
        arguments: [u32; 2],
    },
    /// There was no entry for a message: it is dropped.
    Full,
    /// A packet that is dropped: it belongs to no message, came before, names another source than
    /// its sender, or is longer than a packet may be.
    Stray,
    /// A handler did not end as it should.
    Fault(EngineError),
}

/// A run of a handler, for who counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    /// Which handler.
    pub handler: Handler,
    /// What the core counted; the host's build has no counters.
    pub counters: Option<Counters>,
    /// Commands that it gave.
    pub commands: usize,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    slot: u32,
    request_id: u32,
    /// The packets that have come.
    arrivals: Arrivals,
    /// It takes no more packets: all were handled, or a handler has faulted.
    ended: bool,
    /// When it is cleaned up, if nothing comes before.
    deadline_ns: u64,
}

/// A message of which packets are missing is cleaned up when none has come for this long, in
/// nanoseconds. The paper says "a specified amount of time" (section VII, on clients that fail).
/// This is what the product's node waits for the fragments of a write.
pub const INACTIVE_NS: u64 = limits::FRAGMENTS_SILENCE_NS;

/// A message that has ended, and waits for other messages of its parity write or for the CPU, is
/// cleaned up after this long, in nanoseconds. The product's node gives a write's fragments as long
/// to come. A message that is open ends its parity write earlier, if it falls silent. A cleanup
/// that leaves the message there is repeated after this long: it may have waited for the pool's
/// lock in vain.
pub const WAITS_NS: u64 = limits::ARRIVAL_NS;

/// A NIC around an engine.
#[derive(Debug)]
pub struct Nic<E> {
    engine: E,
    messages: BTreeMap<(u32, u32), Message>,
    free: Vec<u32>,
    generations: Vec<u32>,
    /// No message is cleaned up before this.
    earliest_ns: u64,
    /// The runs since the last [`Nic::take_runs`].
    runs: Vec<Ran>,
}

/// The most runs that a NIC keeps for [`Nic::take_runs`].
const MAX_RUNS: usize = 4096;

impl<E: Engine> Nic<E> {
    /// A NIC without messages.
    pub fn new(engine: E) -> Self {
        Self {
            engine,
            messages: BTreeMap::new(),
            free: (0..MAX_REQUESTS).rev().collect(),
            generations: vec![0; MAX_REQUESTS as usize],
            earliest_ns: u64::MAX,
            runs: Vec::new(),
        }
    }

    /// The engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The engine, to be changed.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Replaces the context: other keys, extents or coefficients. The core forgets the capabilities
    /// that it has checked with the old keys, so a key that is gone allows nothing more. Messages
    /// that are open go on: the control side that takes a segment's extent or a volume's key away
    /// waits for them, or cleans them up.
    ///
    /// # Errors
    /// [`EngineError::Context`] if the context does not fit; then the old one stays.
    pub fn set_context(&mut self, context: &[u8]) -> Result<(), EngineError> {
        self.engine.set_context(context)?;
        self.engine.area_mut(Area::Cache).fill(0);
        Ok(())
    }

    /// The names of the messages that are open, `(source, message)`.
    #[must_use]
    pub fn open_messages(&self) -> Vec<(u32, u32)> {
        self.messages.keys().copied().collect()
    }

    /// The runs of handlers since the last call: the first 4,096.
    pub fn take_runs(&mut self) -> Vec<Ran> {
        std::mem::take(&mut self.runs)
    }

    /// Handles a packet at `now_ns` of the node's clock. `from` is the node that sent it, as the
    /// network says.
    pub fn packet(&mut self, from: u32, packet: &[u8], now_ns: u64) -> Vec<Output> {
        let mut out = self.tick(now_ns);
        let header = match PacketHeader::parse(packet) {
            Some(header) if header.source == from && packet.len() <= MAX_PACKET_BYTES => header,
            _ => {
                out.push(Output::Stray);
                return out;
            }
        };
        let name = (header.source, header.message);
        if header.place & PLACE_FIRST != 0 {
            if header.place as u16 != 0 {
                out.push(Output::Stray);
                return out;
            }
            if !self.open(name, packet, now_ns, &mut out) {
                return out;
            }
        }
        let Some(message) = self.take(name, &header, now_ns) else {
            out.push(Output::Stray);
            return out;
        };
        let payload = self.run(Handler::Payload, name, message, packet, now_ns, &mut out);
        if message.ended && payload.is_some() && self.messages.contains_key(&name) {
            self.run(Handler::Completion, name, message, &[], now_ns, &mut out);
        }
        out
    }

    /// Runs the cleanup handlers of the messages that have been silent for too long at `now_ns` of
    /// the node's clock.
    pub fn tick(&mut self, now_ns: u64) -> Vec<Output> {
        let mut out = Vec::new();
        if now_ns < self.earliest_ns {
            return out;
        }
        let silent = |message: &Message| message.deadline_ns <= now_ns;
        let names: Vec<_> =
            self.messages.iter().filter(|(_, m)| silent(m)).map(|(&name, _)| name).collect();
        for name in names {
            out.extend(self.cleanup(name, now_ns));
        }
        self.earliest_ns = self.deadline_ns().unwrap_or(u64::MAX);
        out
    }

    /// When the next message is cleaned up if no packet comes, in nanoseconds of the node's clock.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        self.messages.values().map(|message| message.deadline_ns).min()
    }

    /// Runs the cleanup handler of the message `(source, message)` before its time, for the control
    /// side that takes its key or its extent away. An unknown message gives no output.
    pub fn cleanup(&mut self, name: (u32, u32), now_ns: u64) -> Vec<Output> {
        let mut out = Vec::new();
        if let Some(message) = self.postpone(name, now_ns, WAITS_NS) {
            self.run(Handler::Cleanup, name, message, &[], now_ns, &mut out);
        }
        out
    }

    /// Forgets a message, for the node's CPU that was told its `request_id`. An unknown one is
    /// forgotten already.
    pub fn release(&mut self, request_id: u32) {
        let found = self.messages.iter().find(|(_, m)| m.request_id == request_id);
        if let Some(name) = found.map(|(&name, _)| name) {
            self.forget(name);
        }
    }

    /// Counts a packet. The answer is its message, as it then is; `None` if it belongs to none, or
    /// has come before.
    fn take(&mut self, name: (u32, u32), header: &PacketHeader, now_ns: u64) -> Option<Message> {
        let message = self.messages.get_mut(&name)?;
        let ends = header.place & PLACE_LAST != 0;
        if message.ended || !message.arrivals.take(header.place as u16, ends) {
            return None;
        }
        message.ended = message.arrivals.is_complete();
        let wait_ns = if message.ended { WAITS_NS } else { INACTIVE_NS };
        self.postpone(name, now_ns, wait_ns)
    }

    /// The message, which is now cleaned up `wait_ns` after `now_ns`.
    fn postpone(&mut self, name: (u32, u32), now_ns: u64, wait_ns: u64) -> Option<Message> {
        let message = self.messages.get_mut(&name)?;
        message.deadline_ns = now_ns.saturating_add(wait_ns);
        self.earliest_ns = self.earliest_ns.min(message.deadline_ns);
        Some(*message)
    }

    /// Whether the message is open now.
    fn open(
        &mut self,
        name: (u32, u32),
        packet: &[u8],
        now_ns: u64,
        out: &mut Vec<Output>,
    ) -> bool {
        if self.messages.contains_key(&name) || packet.len() < PACKET_HEADER_BYTES {
            // A second first packet: the open message goes on without it.
            out.push(Output::Stray);
            return false;
        }
        let Some(slot) = self.free.pop() else {
            out.push(Output::Full);
            return false;
        };
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1);
        let request_id = slot | *generation << 12;
        let arrivals = Arrivals::default();
        let deadline_ns = now_ns.saturating_add(INACTIVE_NS);
        let message = Message { slot, request_id, arrivals, ended: false, deadline_ns };
        self.messages.insert(name, message);
        match self.run(Handler::Header, name, message, packet, now_ns, out) {
            Some(1) => return true,
            Some(_) => self.forget(name),
            // The cleanup handler has run, and knows what is left of the message.
            None => {}
        }
        false
    }

    /// Runs a handler and does its commands; the answer is its result, `None` after a fault.
    fn run(
        &mut self,
        handler: Handler,
        name: (u32, u32),
        message: Message,
        packet: &[u8],
        now_ns: u64,
        out: &mut Vec<Output>,
    ) -> Option<u32> {
        let call = Call { packet, slot: message.slot, request_id: message.request_id, now_ns };
        let run = match self.engine.run(handler, &call) {
            Ok(run) => run,
            Err(error) => {
                out.push(Output::Fault(error));
                match (handler, self.messages.get_mut(&name)) {
                    (Handler::Cleanup, _) | (_, None) => self.forget(name),
                    (_, Some(open)) => {
                        open.ended = true;
                        open.deadline_ns = now_ns.saturating_add(WAITS_NS);
                        self.run(Handler::Cleanup, name, message, &[], now_ns, out);
                    }
                }
                return None;
            }
        };
        if self.runs.len() < MAX_RUNS {
            self.runs.push(Ran { handler, counters: run.counters, commands: run.commands.len() });
        }
        for command in run.commands {
            match command {
                Command::Send { packet } => out.push(Output::Send(packet)),
                Command::ToHost { address, bytes } => out.push(Output::Store { address, bytes }),
                Command::Event { code, arguments } => out.push(Output::Event { code, arguments }),
                Command::Free { request_id } => self.release(request_id),
            }
        }
        Some(run.result)
    }

    fn forget(&mut self, name: (u32, u32)) {
        if let Some(message) = self.messages.remove(&name) {
            let at = message.slot as usize * REQUEST_BYTES;
            self.engine.area_mut(Area::Requests)[at..at + REQUEST_BYTES].fill(0);
            self.free.push(message.slot);
        }
    }
}
