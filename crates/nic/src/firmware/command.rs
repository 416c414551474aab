//! Commands that handlers give: the unit of a core that takes them, and what they say.
//!
//! A core stores the words of a command into its unit and then loads from the unit, which issues
//! the command. The unit has 4 slots; each command keeps one until the NIC has done it. An issue
//! without a free slot waits. So a handler runs as long as the NIC's egress makes it wait, and no
//! longer: the paper's Table I shows such waits as a low IPC.

use crate::firmware::packet::PacketHeader;

/// Words of the unit.
pub const WORDS: usize = 8;
/// Commands of a core at once.
pub const SLOTS: usize = 4;
/// The address of the first word.
pub const WORDS_BASE: u32 = 0x1b20_0000;
/// A load from this address issues the command.
pub const ISSUE: u32 = WORDS_BASE + 0x40;

/// A command, with the bytes that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A packet to another node.
    Send {
        /// The packet, with its header.
        packet: Vec<u8>,
    },
    /// Bytes into the host's storage.
    ToHost {
        /// The address.
        address: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// An entry in the event queue of the node's control side: `enum event` of the firmware.
    Event {
        /// Which event.
        code: u32,
        /// What it is about.
        arguments: [u32; 2],
    },
    /// The NIC forgets a message.
    Free {
        /// The message's entry.
        request_id: u32,
    },
}

/// A command as its words say it, before its bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// Node, message, place, offset and lengths for the header; where headers and data are.
    Send {
        /// destination, message, place, offset, lengths.
        header: [u32; 5],
        /// Address of the headers; their length is in `lengths`.
        headers: u32,
        /// Address of the data; its length is in `lengths`.
        data: u32,
    },
    /// A copy to the host.
    ToHost {
        /// Address of the bytes.
        local: u32,
        /// Their number.
        len: u32,
        /// Where they go.
        address: u64,
    },
    /// An event.
    Event {
        /// Which.
        code: u32,
        /// About what.
        arguments: [u32; 2],
    },
    /// Forgets a message.
    Free {
        /// Which.
        request_id: u32,
    },
}

impl Words {
    /// The command that these words say; `None` if there is no such command.
    #[must_use]
    pub fn parse(w: &[u32; WORDS]) -> Option<Self> {
        Some(match w[0] {
            1 => Words::Send { header: [w[1], w[2], w[3], w[4], w[5]], headers: w[6], data: w[7] },
            2 => Words::ToHost {
                local: w[1],
                len: w[2],
                address: u64::from(w[4]) << 32 | u64::from(w[3]),
            },
            3 => Words::Event { code: w[1], arguments: [w[2], w[3]] },
            4 => Words::Free { request_id: w[1] },
            _ => return None,
        })
    }
}

/// The packet of a send command.
#[must_use]
pub fn packet(source: u32, header: [u32; 5], headers: &[u8], data: &[u8]) -> Vec<u8> {
    let [destination, message, place, offset, lengths] = header;
    let header = PacketHeader {
        source,
        destination,
        message,
        place,
        offset,
        data_len: lengths as u16,
        headers_len: (lengths >> 16) as u16,
    };
    [header.to_bytes().as_slice(), headers, data].concat()
}
