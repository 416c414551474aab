//! Packets of the storage policies, as `firmware/layout.h` has them.
//!
//! A message carries one write. Its first packet has the headers of figure 3 of the
//! network-accelerated DFS paper; the others have data only:
//!
//! ```text
//! first:   packet header 24   DFS header 84   write header 16   coordinates 12 each   data
//! others:  packet header 24   data
//! ```
//!
//! The packet header stands for the RDMA header. The virtual rank is in it, so that a node forwards
//! all other bytes unchanged. Numbers are little endian.

use fieldstone_proto::capability::Capability;

/// Bytes of the packet header.
pub const PACKET_HEADER_BYTES: usize = 24;
/// Bytes of the DFS header and of the write header, without coordinates.
pub const FIXED_HEADERS_BYTES: usize = 84 + 16;
/// Bytes of the coordinates of a node.
pub const COORDINATES_BYTES: usize = 12;
/// The most data of a packet: with it, the packet is one MTU of 2 KiB and a header.
pub const DATA_BYTES: usize = 2048;
/// The most bytes of a packet.
pub const MAX_PACKET_BYTES: usize =
    PACKET_HEADER_BYTES + FIXED_HEADERS_BYTES + MAX_COORDINATES * COORDINATES_BYTES + DATA_BYTES;
/// The most nodes of a write.
pub const MAX_COORDINATES: usize = 16;
/// Marks a packet as the first of its message.
pub const PLACE_FIRST: u32 = 1 << 24;
/// Marks a packet as the last of its message.
pub const PLACE_LAST: u32 = 1 << 25;
/// "FS", version 1, write.
const DFS_WRITE: u32 = 0x0101_5346;

/// How a write is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// On one node.
    Single,
    /// On k nodes; each sends to the next.
    Ring {
        /// The number of nodes.
        k: u8,
    },
    /// On k nodes; the node of rank r sends to ranks 2r + 1 and 2r + 2.
    Tree {
        /// The number of nodes.
        k: u8,
    },
    /// The chunk of one data node of a Reed-Solomon code. Rank 0 stores and encodes it; rank 1 + i
    /// aggregates parity i.
    Code {
        /// Data nodes of the code.
        k: u8,
        /// Parity nodes.
        m: u8,
        /// Which data node this is.
        column: u8,
    },
    /// The chunk of one data node of a code with elements, as Zigzag: an element in each packet but
    /// the first. Ranks as in [`Scheme::Code`].
    Elements {
        /// Data nodes of the code.
        k: u8,
        /// Parity nodes.
        m: u8,
        /// Which data node this is.
        column: u8,
    },
}

impl Scheme {
    fn word(self) -> u32 {
        let bytes = match self {
            Scheme::Single => [0, 1, 0, 0],
            Scheme::Ring { k } => [1, k, 0, 0],
            Scheme::Tree { k } => [2, k, 0, 0],
            Scheme::Code { k, m, column } => [3, k, m, column],
            Scheme::Elements { k, m, column } => [4, k, m, column],
        };
        u32::from_le_bytes(bytes)
    }
}

/// Where a node stores a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// The node.
    pub node: u32,
    /// The address in its storage, in bytes.
    pub address: u64,
}

/// A write as its client sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The client's node, which gets the replies.
    pub client: u32,
    /// The client's number of the message.
    pub message: u32,
    /// The client's number of the request.
    pub request: u64,
    /// The right to write.
    pub capability: Capability,
    /// The segment that the write is part of.
    pub segment: u64,
    /// How it is stored.
    pub scheme: Scheme,
    /// The nodes, by rank.
    pub nodes: Vec<Coordinates>,
    /// The bytes.
    pub data: Vec<u8>,
}

impl Write {
    /// The packets to the node of rank 0. The data is cut so that the first packet with its headers
    /// has at most [`DATA_BYTES`] beside its packet header, as the others have. With
    /// [`Scheme::Elements`] the first packet has no data.
    #[must_use]
    pub fn packets(&self) -> Vec<Vec<u8>> {
        let headers = self.headers();
        let room = match self.scheme {
            Scheme::Elements { .. } => 0,
            _ => DATA_BYTES - headers.len().min(DATA_BYTES),
        };
        let first = self.data.len().min(room);
        let (first, rest) = self.data.split_at(first);
        let mut parts = vec![first];
        parts.extend(rest.chunks(DATA_BYTES));
        let last = parts.len() - 1;
        let mut offset = 0;
        let mut packets = Vec::new();
        for (index, data) in parts.into_iter().enumerate() {
            let headers = if index == 0 { headers.as_slice() } else { &[] };
            let mut place = index as u32 & 0xffff;
            if index == 0 {
                place |= PLACE_FIRST;
            }
            if index == last {
                place |= PLACE_LAST;
            }
            let header = PacketHeader {
                source: self.client,
                destination: self.nodes.first().map_or(0, |c| c.node),
                message: self.message,
                place,
                offset,
                data_len: data.len() as u16,
                headers_len: headers.len() as u16,
            };
            packets.push([header.to_bytes().as_slice(), headers, data].concat());
            offset += data.len() as u32;
        }
        packets
    }

    /// The DFS header, the write header and the coordinates.
    #[must_use]
    pub fn headers(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(DFS_WRITE.to_le_bytes());
        bytes.extend(self.request.to_le_bytes());
        bytes.extend(self.client.to_le_bytes());
        bytes.extend(capability_bytes(&self.capability));
        bytes.extend(self.segment.to_le_bytes());
        bytes.extend((self.data.len() as u32).to_le_bytes());
        bytes.extend(self.scheme.word().to_le_bytes());
        for node in &self.nodes {
            bytes.extend(node.node.to_le_bytes());
            bytes.extend(node.address.to_le_bytes());
        }
        bytes
    }
}

/// A capability in a packet: the signed bytes in their order, and the MAC.
#[must_use]
pub fn capability_bytes(capability: &Capability) -> [u8; 68] {
    let mut bytes = [0; 68];
    bytes[0..16].copy_from_slice(&capability.volume.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&capability.epoch.0.to_le_bytes());
    bytes[24..28].copy_from_slice(&capability.rights.0.to_le_bytes());
    bytes[28..36].copy_from_slice(&capability.segment_first.0.to_le_bytes());
    bytes[36..44].copy_from_slice(&capability.segment_last.0.to_le_bytes());
    bytes[44..52].copy_from_slice(&capability.expires_ns.to_le_bytes());
    bytes[52..68].copy_from_slice(&capability.mac);
    bytes
}

/// The header of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeader {
    /// The node that sends it.
    pub source: u32,
    /// The node that it is for.
    pub destination: u32,
    /// With the source, names the message.
    pub message: u32,
    /// Bits 0 to 15: index in the message; 16 to 23: rank; 24: first; 25: last.
    pub place: u32,
    /// The place of the data in the write, in bytes.
    pub offset: u32,
    /// Bytes of data.
    pub data_len: u16,
    /// Bytes of the other headers.
    pub headers_len: u16,
}

impl PacketHeader {
    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PACKET_HEADER_BYTES] {
        let lengths = u32::from(self.data_len) | u32::from(self.headers_len) << 16;
        let words = [self.source, self.destination, self.message, self.place, self.offset, lengths];
        let mut bytes = [0; PACKET_HEADER_BYTES];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The header of a packet; `None` if the packet is shorter. Nothing else is checked.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let mut words = [0; 6];
        for (i, word) in words.iter_mut().enumerate() {
            *word = u32::from_le_bytes(packet.get(4 * i..4 * i + 4)?.try_into().ok()?);
        }
        let [source, destination, message, place, offset, lengths] = words;
        Some(Self {
            source,
            destination,
            message,
            place,
            offset,
            data_len: lengths as u16,
            headers_len: (lengths >> 16) as u16,
        })
    }
}

/// A reply of a node to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The client's number of the request.
    pub request: u64,
    /// What became of it: `enum status` of `firmware/layout.h`.
    pub status: u32,
    /// The node that replies.
    pub node: u32,
}

impl Reply {
    /// The reply in a packet, if it is one: a packet without other headers and with 16 bytes.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let header = PacketHeader::parse(packet)?;
        let data = packet.get(PACKET_HEADER_BYTES..)?;
        if header.headers_len != 0 || data.len() != 16 {
            return None;
        }
        Some(Self {
            request: u64::from_le_bytes(data[0..8].try_into().ok()?),
            status: u32::from_le_bytes(data[8..12].try_into().ok()?),
            node: u32::from_le_bytes(data[12..16].try_into().ok()?),
        })
    }
}
