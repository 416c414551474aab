//! One direction of a link: a wire with a rate and a latency, the credits of the buffer behind it,
//! and the packets that wait for it.
//!
//! A packet goes when the wire is free and the receiver has room for it. The room is counted in
//! bytes: sending takes them, and the receiver gives them back when the packet leaves its buffer.
//! So nothing is ever dropped, and a slow receiver stops its senders.

use super::fair::Fair;
use super::packet::Packet;
use super::spin::TaskId;
use super::time::{Ps, Rate};

/// Who must be told that a packet has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Its sender does not wait.
    Nobody,
    /// A flow of the host's NIC, which reads the next packet from memory.
    Flow(u32),
    /// A handler, one of whose commands is complete.
    Task(TaskId),
    /// The input port of the switch, whose buffer the packet leaves.
    Input(u16),
}

/// A packet that waits.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// The packet.
    pub packet: Packet,
    /// Who waits for its departure.
    pub owner: Owner,
}

/// One direction of a link.
#[derive(Debug)]
pub struct Channel {
    /// Rate of the wire.
    pub rate: Rate,
    /// Latency of the wire.
    pub latency: Ps,
    /// When the wire is free.
    pub busy_until: Ps,
    /// Free bytes of the receiver's buffer.
    pub credits: u64,
    /// All bytes of the receiver's buffer.
    pub capacity: u64,
    /// Packets that wait.
    pub queue: Fair<Outgoing>,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Time that the wire was busy.
    pub busy: Ps,
}

impl Channel {
    /// An idle channel in front of a buffer of `capacity` bytes.
    pub fn new(rate: Rate, latency: Ps, capacity: u64) -> Self {
        Self {
            rate,
            latency,
            busy_until: Ps::ZERO,
            credits: capacity,
            capacity,
            queue: Fair::default(),
            bytes: 0,
            packets: 0,
            busy: Ps::ZERO,
        }
    }

    /// Begins to send the next packet at `now`, if the wire is free and the receiver has room.
    pub fn begin(&mut self, now: Ps) -> Option<Outgoing> {
        if self.busy_until > now {
            return None;
        }
        let bytes = u64::from(self.queue.peek()?.packet.wire_bytes);
        if self.credits < bytes {
            return None;
        }
        let outgoing = self.queue.pop(bytes)?;
        self.credits -= bytes;
        let time = self.rate.time(bytes);
        self.busy_until = now + time;
        self.bytes += bytes;
        self.packets += 1;
        self.busy += time;
        Some(outgoing)
    }

    /// Gives bytes of the receiver's buffer back.
    pub fn give_back(&mut self, bytes: u64) {
        self.credits += bytes;
        debug_assert!(self.credits <= self.capacity, "more credits than the buffer has bytes");
    }
}
