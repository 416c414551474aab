//! Every kind of message that a node gets, by what the node does with it.

use fieldstone_nic::firmware::packet::{DATA_BYTES, Scheme, Write};
use fieldstone_nic::firmware::state::{Multiply, Settings};

use crate::coding::{element_settings, status};
use crate::node::Node;
use crate::writes::{settings, write};

/// A code with elements, of 8 in each chunk, and its shape.
pub const ELEMENT_CODE: &str = "zigzag:4+2";
const ELEMENTS: usize = 8;

/// A kind of message to node 0.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    pub scheme: Scheme,
    /// Nodes of the write.
    nodes: u32,
    /// The place of node 0 among them.
    pub rank: u8,
}

/// All kinds: alone, in the middle and at the end of replicas, data node and parity node.
pub fn classes() -> Vec<Class> {
    let code = Scheme::Code { k: 3, m: 2, column: 0 };
    let elements = Scheme::Elements { k: 4, m: 2, column: 0 };
    [
        (Scheme::Single, 1, 0),
        (Scheme::Ring { k: 3 }, 3, 0),
        (Scheme::Ring { k: 3 }, 3, 1),
        (Scheme::Ring { k: 3 }, 3, 2),
        (Scheme::Tree { k: 4 }, 4, 0),
        (Scheme::Tree { k: 4 }, 4, 1),
        (Scheme::Tree { k: 4 }, 4, 3),
        (code, 3, 0),
        (code, 3, 1),
        (code, 3, 2),
        (elements, 3, 0),
        (elements, 3, 1),
        (elements, 3, 2),
    ]
    .map(|(scheme, nodes, rank)| Class { scheme, nodes, rank })
    .to_vec()
}

impl Class {
    /// Those of node 0.
    pub fn settings(&self) -> Settings {
        match self.scheme {
            Scheme::Code { k, m, .. } => {
                settings(0, Multiply::Table, usize::from(k), usize::from(m))
            }
            Scheme::Elements { .. } => element_settings(0, Multiply::Table, ELEMENT_CODE),
            _ => settings(0, Multiply::Table, 0, 0),
        }
    }

    /// Whether node 0 adds up what others send: then its message waits for theirs.
    pub fn waits(&self) -> bool {
        matches!(self.scheme, Scheme::Code { .. } | Scheme::Elements { .. }) && self.rank != 0
    }

    /// A write of about `len` bytes: as many elements as a chunk has, if the code has elements.
    pub fn write(&self, len: usize) -> Write {
        let is_of_elements = matches!(self.scheme, Scheme::Elements { .. });
        let len = if is_of_elements { ELEMENTS * DATA_BYTES } else { len };
        let mut write = write(self.scheme, self.nodes, len);
        write.nodes.swap(0, usize::from(self.rank));
        write
    }

    /// The packets of the write as they come to node 0.
    pub fn packets(&self, write: &Write) -> Vec<Vec<u8>> {
        let mut packets = write.packets();
        for packet in &mut packets {
            packet[14] = self.rank;
        }
        packets
    }

    /// What node 0 answers to the write; 0 also if it takes it, and then waits. Its message has
    /// ended, or is cleaned up.
    pub fn answer(&self, node: &mut Node, write: &Write) -> Option<u32> {
        let packets = self.packets(write);
        let outputs: Vec<_> = packets.iter().flat_map(|packet| node.packet(packet)).collect();
        let is_open = !node.core.open_messages().is_empty();
        for name in node.core.open_messages() {
            node.cleanup(name);
        }
        assert!(node.is_clean(), "{self:?}");
        status(&outputs).or((is_open && self.waits()).then_some(0))
    }
}
