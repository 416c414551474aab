//! The cost of a handler without contention: instructions, and cycles of 1 ns.
//!
//! The defaults are the paper's Tables I and II. The instructions are printed. The cycles of k = 1
//! are printed, too. Those of ring and tree contain the wait for the egress port, which the model
//! makes itself; so their cycles here are their instructions at the IPC of k = 1. Their header
//! handlers have as many instructions as that of k = 1. A model of the
//! cores that runs real firmware can replace every number.

use super::spin::Handler;

/// The cost of one handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Instructions retired.
    pub instructions: u32,
    /// Cycles without a wait for commands.
    pub cycles: u32,
}

impl Cost {
    const fn new(instructions: u32, cycles: u32) -> Self {
        Self { instructions, cycles }
    }
}

/// A code: k data nodes, m parity nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rs {
    /// Data nodes.
    pub k: u16,
    /// Parity nodes.
    pub m: u16,
}

/// What a node does with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Checks and stores it, and forwards each packet to this many nodes.
    Store {
        /// Nodes to forward to: 0, 1 or 2.
        children: u16,
    },
    /// Stores it, and sends an intermediate parity of each packet to each parity node.
    Data(Rs),
    /// Adds up intermediate parities.
    Parity(Rs),
}

/// Costs of all handlers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerCosts {
    /// Header handlers of writes that are forwarded to 0, 1 and 2 nodes: Table I, k = 1, ring, PBT.
    /// Those of codes have the first.
    pub header: [Cost; 3],
    /// Payload handlers of the same.
    pub payload: [Cost; 3],
    /// Completion handlers of the same.
    pub completion: [Cost; 3],
    /// Payload handler of a data node that encodes 2016 bytes for two parities: Table II, RS(3,2).
    pub encode_2: Cost,
    /// The same for three parities: Table II, RS(6,3).
    pub encode_3: Cost,
    /// Completion handler of TriEC: Table II.
    pub completion_ec: Cost,
    /// Payload handler of a parity node for 2016 bytes. The paper prints no cost. Ours: a load, an
    /// atomic XOR and two more instructions per word of 4 bytes, at Table II's IPC of 0.7.
    pub aggregate: Cost,
    /// Bytes of the packets of `encode_2`, `encode_3` and `aggregate`.
    pub bytes: u32,
}

impl Default for HandlerCosts {
    fn default() -> Self {
        Self {
            header: [Cost::new(120, 211); 3],
            // 105 and 130 instructions at 55 / 92 per cycle.
            payload: [Cost::new(55, 92), Cost::new(105, 176), Cost::new(130, 217)],
            // 65 and 82 instructions at 66 / 107 per cycle.
            completion: [Cost::new(66, 107), Cost::new(65, 105), Cost::new(82, 133)],
            encode_2: Cost::new(11_672, 16_681),
            encode_3: Cost::new(16_028, 23_018),
            completion_ec: Cost::new(35, 82),
            aggregate: Cost::new(2016, 2880),
            bytes: 2016,
        }
    }
}

impl HandlerCosts {
    /// The cost of a handler in a role, on a packet with `payload_bytes` of data.
    pub fn of(&self, handler: Handler, role: Role, payload_bytes: u32) -> Cost {
        match (handler, role) {
            (Handler::Header, Role::Store { children }) => {
                self.header[usize::from(children.min(2))]
            }
            (Handler::Header, Role::Data(_) | Role::Parity(_)) => self.header[0],
            (Handler::Payload, Role::Store { children }) => {
                self.payload[usize::from(children.min(2))]
            }
            (Handler::Payload, Role::Data(rs)) => {
                let full = if rs.m <= 2 { self.encode_2 } else { self.encode_3 };
                self.scaled(full, payload_bytes)
            }
            (Handler::Payload, Role::Parity(_)) => self.scaled(self.aggregate, payload_bytes),
            (Handler::Completion, Role::Store { children }) => {
                self.completion[usize::from(children.min(2))]
            }
            (Handler::Completion, Role::Data(_) | Role::Parity(_)) => self.completion_ec,
        }
    }

    /// The cost of a loop over bytes: the payload handler of k = 1, and the rest by the byte.
    fn scaled(&self, full: Cost, payload_bytes: u32) -> Cost {
        let fixed = self.payload[0];
        let part = |full: u32, fixed: u32| {
            let rest = u64::from(full.saturating_sub(fixed)) * u64::from(payload_bytes);
            fixed + (rest / u64::from(self.bytes.max(1))) as u32
        };
        Cost {
            instructions: part(full.instructions, fixed.instructions),
            cycles: part(full.cycles, fixed.cycles),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_packets_cost_what_the_tables_print() {
        let costs = HandlerCosts::default();
        let of = |handler, role| costs.of(handler, role, 2016);
        let (rs32, rs63) = (Rs { k: 3, m: 2 }, Rs { k: 6, m: 3 });
        assert_eq!(of(Handler::Payload, Role::Data(rs32)), Cost::new(11_672, 16_681));
        assert_eq!(of(Handler::Payload, Role::Data(rs63)), Cost::new(16_028, 23_018));
        assert_eq!(of(Handler::Header, Role::Store { children: 0 }), Cost::new(120, 211));
        assert_eq!(costs.of(Handler::Payload, Role::Data(rs63), 0), costs.payload[0]);
        for children in 0..3u16 {
            let cost = of(Handler::Payload, Role::Store { children });
            let ipc = f64::from(cost.instructions) / f64::from(cost.cycles);
            assert!((ipc - 0.6).abs() < 0.01, "{ipc}");
        }
    }
}
