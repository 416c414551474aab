//! A node that runs the firmware twice, on a core and on the host, and several nodes.

use std::collections::{BTreeMap, VecDeque};

use fieldstone_nic::firmware::engine::{Area, Engine};
use fieldstone_nic::firmware::hpu::Hpu;
use fieldstone_nic::firmware::nic::{Nic, Output};
use fieldstone_nic::firmware::packet::{PacketHeader, Reply};
use fieldstone_nic::firmware::state::Settings;

use crate::cpu::Cpu;
use crate::shared_object::HostEngine;
use crate::writes::{CLIENT, NOW_NS, hpu, program};

/// A node whose firmware runs twice, compared after every packet.
pub struct Node {
    pub settings: Settings,
    pub core: Nic<Hpu>,
    host: Nic<HostEngine>,
    pub storage: BTreeMap<u64, u8>,
    /// The node's clock.
    pub now_ns: u64,
}

impl Node {
    pub fn new(settings: &Settings) -> Option<Self> {
        let program = program(settings.multiply)?;
        Some(Self {
            settings: settings.clone(),
            core: Nic::new(hpu(&program, settings)),
            host: Nic::new(HostEngine::new(settings)?),
            storage: BTreeMap::new(),
            now_ns: NOW_NS,
        })
    }

    /// The control side changes the settings.
    pub fn set(&mut self, settings: &Settings) {
        let context = settings.context().unwrap();
        self.core.set_context(&context).unwrap();
        self.host.set_context(&context).unwrap();
        self.settings = settings.clone();
    }

    /// A packet of the node that its header names.
    pub fn packet(&mut self, packet: &[u8]) -> Vec<Output> {
        self.packet_from(source(packet), packet)
    }

    /// A packet that the node `from` sends, whatever its header says.
    pub fn packet_from(&mut self, from: u32, packet: &[u8]) -> Vec<Output> {
        let core = self.core.packet(from, packet, self.now_ns);
        let host = self.host.packet(from, packet, self.now_ns);
        self.compare(core, &host)
    }

    pub fn cleanup(&mut self, name: (u32, u32)) -> Vec<Output> {
        let core = self.core.cleanup(name, self.now_ns);
        let host = self.host.cleanup(name, self.now_ns);
        self.compare(core, &host)
    }

    /// The clock goes on, and no packet comes.
    pub fn tick(&mut self, now_ns: u64) -> Vec<Output> {
        self.now_ns = now_ns;
        let core = self.core.tick(now_ns);
        let host = self.host.tick(now_ns);
        assert_eq!(self.core.deadline_ns(), self.host.deadline_ns());
        self.compare(core, &host)
    }

    fn compare(&mut self, core: Vec<Output>, host: &[Output]) -> Vec<Output> {
        for output in &core {
            assert!(!matches!(output, Output::Fault(_)), "{output:?}");
        }
        assert!(core == host, "core:\n{core:?}\nhost:\n{host:?}");
        for area in [Area::Requests, Area::Cache, Area::Pool] {
            let same = self.core.engine().area(area) == self.host.engine().area(area);
            assert!(same, "{area:?} differs");
        }
        for output in &core {
            if let Output::Store { address, bytes } = output {
                self.storage.extend((*address..).zip(bytes.iter().copied()));
            }
        }
        core
    }

    /// The node's CPU has the NIC forget a message.
    pub fn release(&mut self, request_id: u32) {
        self.core.release(request_id);
        self.host.release(request_id);
    }

    pub fn stored(&self, address: u64, len: usize) -> Vec<u8> {
        (address..).take(len).map(|at| self.storage.get(&at).copied().unwrap_or(0xee)).collect()
    }

    pub fn is_clean(&self) -> bool {
        is_clean(&self.core)
    }
}

/// The source that a packet's header names; 0 if it has none.
pub fn source(packet: &[u8]) -> u32 {
    PacketHeader::parse(packet).map_or(0, |header| header.source)
}

/// Whether the NIC has no message, entry, group or accumulator in use.
pub fn is_clean<E: Engine>(nic: &Nic<E>) -> bool {
    let engine = nic.engine();
    nic.open_messages().is_empty() && engine.area(Area::Requests).iter().all(|&b| b == 0) && {
        // The order of free accumulators may have changed; nothing else.
        let pool = engine.area(Area::Pool);
        pool[0..8] == [0, 0, 0, 0, 64, 0, 0, 0] && pool[8 + 256..].iter().all(|&b| b == 0)
    }
}

/// Nodes 0 to n - 1 and the replies that the client got.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub cpus: Vec<Cpu>,
    pub replies: Vec<Reply>,
}

impl Cluster {
    pub fn new(n: u32, of: impl Fn(u32) -> Settings) -> Option<Self> {
        let nodes = (0..n).map(|node| Node::new(&of(node))).collect::<Option<Vec<_>>>()?;
        let cpus = (0..n).map(|_| Cpu::default()).collect();
        Some(Self { nodes, cpus, replies: Vec::new() })
    }

    /// Delivers packets, and what they cause, in the order of a queue.
    pub fn deliver(&mut self, packets: impl IntoIterator<Item = Vec<u8>>) -> usize {
        self.deliver_noting(packets, &mut |_| {})
    }

    /// The same; `note` gets each packet.
    pub fn deliver_noting(
        &mut self,
        packets: impl IntoIterator<Item = Vec<u8>>,
        note: &mut dyn FnMut(&[u8]),
    ) -> usize {
        let mut queue: VecDeque<_> = packets.into_iter().collect();
        let mut delivered = 0;
        while let Some(packet) = queue.pop_front() {
            delivered += 1;
            assert!(delivered < 10_000, "the packets never end");
            note(&packet);
            let header = PacketHeader::parse(&packet).unwrap();
            if header.destination == CLIENT {
                self.replies.push(Reply::parse(&packet).unwrap());
                continue;
            }
            let at = header.destination as usize;
            for output in self.nodes[at].packet(&packet) {
                match output {
                    Output::Send(packet) => queue.push_back(packet),
                    Output::Event { code: 4, arguments: [request_id, failed] } => {
                        let (node, cpu) = (&mut self.nodes[at], &mut self.cpus[at]);
                        self.replies.extend(cpu.staged(node, request_id, failed != 0));
                    }
                    _ => {}
                }
            }
        }
        delivered
    }

    pub fn assert_all_done(&self, count: usize) {
        assert_eq!(self.replies.len(), count);
        assert!(self.replies.iter().all(|r| r.status == 0), "{:?}", self.replies);
        assert!(self.nodes.iter().all(Node::is_clean));
    }
}
