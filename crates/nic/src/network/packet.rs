//! Messages, and the packets that they travel in.

use super::constants::Constants;
use super::time::Ps;

/// A host of the network: clients and storage nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u16);

impl HostId {
    /// Its place in a table of hosts.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A write of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u32);

/// A message: unique within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

impl MessageId {
    /// The message of a write that carries a tag to a host. A protocol never sends two messages of
    /// a write with the same tag to the same host.
    pub fn of(write: WriteId, to: HostId, tag: u16) -> Self {
        Self(u64::from(write.0) << 32 | u64::from(to.0) << 16 | u64::from(tag))
    }
}

/// When a NIC acknowledges an RDMA write to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledge {
    /// Never: the protocol needs no acknowledgement of this message.
    Never,
    /// When the last packet has arrived, as RDMA does.
    Arrived,
    /// When the data is in memory: the NIC has flushed its writes with a read.
    Durable,
}

/// What the receiver's NIC does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Stores the data in host memory.
    Write {
        /// When the NIC acknowledges the message.
        acknowledge: Acknowledge,
    },
    /// Stores the data in a receive buffer and tells the CPU.
    Send,
    /// Reads this much host memory, and answers with `ReadResponse`.
    ReadRequest {
        /// Bytes to read.
        bytes: u64,
    },
    /// Stores the data and tells the CPU.
    ReadResponse,
    /// Tells the CPU. Also the response of handlers.
    Ack,
    /// Tells the CPU that the node has no room for the request.
    Deny,
    /// Runs handlers.
    Spin,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its identity.
    pub id: MessageId,
    /// The sender.
    pub from: HostId,
    /// The receiver.
    pub to: HostId,
    /// What the receiver does.
    pub verb: Verb,
    /// The write that it belongs to.
    pub write: WriteId,
    /// The protocol's own number of the message: rank, chunk or shard.
    pub tag: u16,
    /// Bytes of data.
    pub payload_bytes: u64,
    /// Bytes of DFS headers before the data.
    pub header_bytes: u64,
}

impl Message {
    /// Packets of the message; at least one.
    pub fn packets(&self, constants: &Constants) -> u32 {
        let full = constants.packet_payload_bytes();
        (self.payload_bytes + self.header_bytes).div_ceil(full).max(1) as u32
    }

    /// Packet number `index`. The first carries the headers, and the last is short.
    pub fn packet(&self, index: u32, constants: &Constants) -> Packet {
        let full = constants.packet_payload_bytes();
        let all = self.payload_bytes + self.header_bytes;
        let begin = u64::from(index) * full;
        let content = all.saturating_sub(begin).min(full);
        let header = self.header_bytes.saturating_sub(begin).min(content);
        Packet {
            message: *self,
            index,
            count: self.packets(constants),
            payload_bytes: (content - header) as u32,
            wire_bytes: (content + constants.packet_header_bytes) as u32,
        }
    }
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The message that it is a part of.
    pub message: Message,
    /// Its number in the message.
    pub index: u32,
    /// Packets of the message.
    pub count: u32,
    /// Bytes of data.
    pub payload_bytes: u32,
    /// Bytes on the wire.
    pub wire_bytes: u32,
}

impl Packet {
    /// True for the last packet of its message.
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.count
    }

    /// The same packet in another message, as a node forwards it.
    pub fn forwarded(&self, message: Message) -> Self {
        Self { message, ..*self }
    }
}

/// A write that a client issues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its identity.
    pub id: WriteId,
    /// The client.
    pub client: HostId,
    /// Bytes of data.
    pub bytes: u64,
    /// When the client issued it.
    pub issued: Ps,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packets_carry_the_message_once(payload_bytes in 0u64..100_000, header in 0u64..4000) {
            let constants = Constants::default();
            let message = Message {
                id: MessageId(0), from: HostId(0), to: HostId(1), verb: Verb::Send,
                write: WriteId(0), tag: 0, payload_bytes, header_bytes: header,
            };
            let count = message.packets(&constants);
            let packets: Vec<Packet> =
                (0..count).map(|index| message.packet(index, &constants)).collect();
            let payload: u64 = packets.iter().map(|p| u64::from(p.payload_bytes)).sum();
            let wire: u64 = packets.iter().map(|p| u64::from(p.wire_bytes)).sum();
            prop_assert_eq!(payload, payload_bytes);
            prop_assert_eq!(wire, payload_bytes + header + u64::from(count) * 32);
            prop_assert!(packets.iter().all(|p| u64::from(p.wire_bytes) <= constants.mtu_bytes));
            prop_assert_eq!(packets.iter().filter(|p| p.is_last()).count(), 1);
        }
    }

    #[test]
    fn messages_of_a_write_differ() {
        let of = |write, host, tag| MessageId::of(WriteId(write), HostId(host), tag);
        let mut all = vec![of(0, 0, 0), of(0, 0, 1), of(0, 1, 0), of(1, 0, 0), of(1, 1, 1)];
        all.dedup();
        assert_eq!(all.len(), 5);
    }
}
