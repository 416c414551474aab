//! The third implementation: the node of the product (crates/node), a state machine in Rust.
//!
//! The firmware works on packets, the product's node on messages: whole writes, or fragments of
//! blocks. So a [`RustCluster`] puts the packets of a write together and gives its node the request
//! that they stand for, in both ways: the same capability, segment, strategy, ranks and factors.
//! What the nodes store, what each sends to which other, and what they refuse must be the same as
//! with the firmware on the core and on the host ([`Cluster`]).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use fieldstone_codes::Profile;
use fieldstone_nic::firmware::packet::{PACKET_HEADER_BYTES, PacketHeader, Scheme, Write};
use fieldstone_nic::firmware::state::{ElementColumn, Extent, Multiply};
use fieldstone_node::{
    DiskError, DiskOp, DiskOutput, FileId, LinkTarget, Node, NodeAction, NodeConfig, NodeEvent,
    ParityMemory, PeerId, limits,
};
use fieldstone_proto::capability::{Capability, CapabilityError, Rights};
use fieldstone_proto::fragments::cut;
use fieldstone_proto::ids::SegmentId;
use fieldstone_proto::{
    BLOCK_BYTES, Column, Content, ElementTable, ElementTerm, Factors, FragmentRole, Fragments,
    NodeError, NodeIndex, Outcome, Pass, PoolId, Replica, Reply, ReplyBody, Request, RequestBody,
    Route, ShardIndex, Strategy, Tag, crc32c_blocks,
};

use crate::classes::{Class, ELEMENT_CODE, classes};
use crate::coding::{code_writes, element_settings, element_writes, interleaved};
use crate::node::{Cluster, Node as FirmwareNode};
use crate::writes::{
    CLIENT, EPOCH, MASTER, NOW_NS, PLACE, VOLUME, capability, extent, settings, write,
};

const WRITER: PeerId = PeerId(1);
const PASS: Pass = Pass(1);
/// Enough for the writes of the tests.
const SLOT_BYTES: u32 = 64 << 10;

fn config(node: u32) -> NodeConfig {
    NodeConfig {
        pool: PoolId(1),
        node: NodeIndex(node as u16),
        incarnation: 1,
        keys: MASTER.into(),
        slot_bytes: SLOT_BYTES,
        slots: 8,
        verify_payload: true,
        piece_bytes: limits::PIECE_BYTES,
        parity_memory: ParityMemory::new(limits::PARITY_MEMORY_BYTES),
    }
}

/// A node with a disk that does everything at once and never fails.
struct RustNode {
    node: Node,
    files: BTreeMap<FileId, Vec<u8>>,
    /// The requests that it passes on, and its answers.
    out: VecDeque<Sent>,
}

enum Sent {
    Relay(LinkTarget, Request),
    Reply(PeerId, Reply),
}

impl RustNode {
    fn new(index: u32) -> Self {
        let (files, out) = (BTreeMap::new(), VecDeque::new());
        let mut node = Self { node: Node::new(config(index)), files, out };
        node.node.start(0);
        node.run();
        assert!(node.node.is_ready(), "{:?}", node.node.failure());
        // The writer makes the volume, and lets other nodes pass writes on.
        for body in [
            RequestBody::Fence { takeover: false },
            RequestBody::Reserve { slots: 8, spare: 0 },
            RequestBody::AdmitRelays { pass: PASS },
        ] {
            let all = Capability::issue(
                &MASTER.derive(VOLUME, EPOCH),
                VOLUME,
                EPOCH,
                Rights::ALL,
                u64::MAX,
            );
            let reply = node.call(all, body, None, Vec::new());
            assert!(reply.is_ok(), "{reply:?}");
        }
        node
    }

    fn handle(&mut self, event: NodeEvent) {
        self.node.handle(NOW_NS, event);
        self.run();
    }

    fn request(
        capability: Capability,
        body: RequestBody,
        route: Option<Route>,
        payload: Vec<Bytes>,
    ) -> Request {
        Request { tag: Tag(1), capability, body, route: route.map(Box::new), payload }
    }

    /// The answer to a request that waits for no other node.
    fn call(
        &mut self,
        capability: Capability,
        body: RequestBody,
        route: Option<Route>,
        payload: Vec<Bytes>,
    ) -> Result<ReplyBody, NodeError> {
        let request = Self::request(capability, body, route, payload);
        self.handle(NodeEvent::Request { peer: WRITER, request });
        match self.out.pop_front() {
            Some(Sent::Reply(_, reply)) => reply.result,
            _ => panic!("no answer"),
        }
    }

    fn run(&mut self) {
        while let Some(action) = self.node.next_action() {
            match action {
                NodeAction::Disk { id, op } => {
                    let result = self.carry_out(op);
                    self.node.handle(NOW_NS, NodeEvent::Disk { id, result });
                }
                NodeAction::Relay { to, request } => self.out.push_back(Sent::Relay(to, request)),
                NodeAction::Reply { peer, reply } => self.out.push_back(Sent::Reply(peer, reply)),
                NodeAction::CloseLink { .. } => {}
            }
        }
    }

    fn carry_out(&mut self, op: DiskOp) -> Result<DiskOutput, DiskError> {
        match op {
            DiskOp::List => Ok(DiskOutput::Files(self.files.keys().copied().collect())),
            DiskOp::Read { file, offset_bytes, len_bytes } => {
                let file = self.files.get(&file).ok_or(DiskError::NotFound)?;
                let bytes = file.iter().skip(offset_bytes as usize).take(len_bytes as usize);
                let mut bytes: Vec<u8> = bytes.copied().collect();
                bytes.resize(len_bytes as usize, 0);
                Ok(DiskOutput::Data(bytes.into()))
            }
            DiskOp::Write { file, offset_bytes, data } => {
                let file = self.files.get_mut(&file).ok_or(DiskError::NotFound)?;
                let (at, data) = (offset_bytes as usize, data.concat());
                file.resize(file.len().max(at + data.len()), 0);
                file[at..at + data.len()].copy_from_slice(&data);
                Ok(DiskOutput::Done)
            }
            DiskOp::Create { file, len_bytes, .. } => {
                self.files.entry(file).or_insert_with(|| vec![0; len_bytes as usize]);
                Ok(DiskOutput::Done)
            }
            DiskOp::Remove { file } => {
                self.files.remove(&file).map(|_| DiskOutput::Done).ok_or(DiskError::NotFound)
            }
            DiskOp::Sync { .. } | DiskOp::Discard { .. } => Ok(DiskOutput::Done),
        }
    }

    /// The bytes of a shard of a write.
    fn stored(&mut self, segment: u64, rank: u8, len: usize) -> Vec<u8> {
        let (segment, shard) = (SegmentId(segment), ShardIndex(rank));
        let len_bytes = len as u32;
        let body = RequestBody::ShardRead { segment, shard, offset_bytes: 0, len_bytes };
        let key = MASTER.derive(VOLUME, EPOCH);
        let all = Capability::issue(&key, VOLUME, EPOCH, Rights::ALL, u64::MAX);
        match self.call(all, body, None, Vec::new()) {
            Ok(ReplyBody::Data(bytes)) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

/// The request of the product that the packets of a write stand for, to the node of this rank.
fn request_of(write: &Write, rank: u8, factors: &Factors) -> (RequestBody, Option<Route>) {
    let replica = |(at, node): (usize, &fieldstone_nic::firmware::packet::Coordinates)| Replica {
        node: NodeIndex(node.node as u16),
        pass: PASS,
        shard: ShardIndex(at as u8),
        address: Bytes::new(),
    };
    let (strategy, content) = match write.scheme {
        Scheme::Single => (None, Content::Same),
        Scheme::Ring { .. } => (Some(Strategy::Ring), Content::Same),
        Scheme::Tree { .. } => (Some(Strategy::Tree), Content::Same),
        Scheme::Code { k, column, .. } | Scheme::Elements { k, column, .. } => {
            let column = Column { index: column, count: k, factors: factors.clone() };
            (Some(Strategy::Primary), Content::Column(column))
        }
    };
    let replicas = write.nodes.iter().enumerate().map(replica).collect();
    let route = strategy.map(|strategy| Route {
        strategy,
        rank,
        wait_ms: 1_000,
        replicas,
        content,
        ..Route::default()
    });
    let body = RequestBody::ShardWrite {
        segment: SegmentId(write.segment),
        shard: ShardIndex(rank),
        offset_bytes: 0,
        checksums: crc32c_blocks(&write.data),
        seal: None,
        data_first: false,
    };
    (body, route)
}

/// Of a write that makes no parity.
fn no_factors() -> Factors {
    Factors::Scalars(Bytes::new())
}

/// How the product's writes come: whole, or in fragments of this length.
const FRAGMENTS: [u32; 2] = [0, BLOCK_BYTES as u32];

/// What one node sends to another: the data of each write.
type Passed = BTreeMap<(u32, u32), Vec<Vec<u8>>>;

/// The pieces of a message, each with its place.
type Pieces = Vec<(u32, Vec<u8>)>;

/// The product's nodes.
struct RustCluster {
    nodes: Vec<RustNode>,
    fragment_bytes: u32,
    passed: Passed,
    /// The place in `passed` of each write in fragments, by the nodes and the tag.
    open: BTreeMap<(u32, u32, Tag), usize>,
    outcomes: Vec<Outcome>,
    /// Fragments between nodes.
    fragments: usize,
}

impl RustCluster {
    fn new(count: u32, fragment_bytes: u32) -> Self {
        let nodes = (0..count).map(RustNode::new).collect();
        let (passed, open, outcomes) = (Passed::new(), BTreeMap::new(), Vec::new());
        Self { nodes, fragment_bytes, passed, open, outcomes, fragments: 0 }
    }

    /// A client's write, to the node of rank 0.
    fn write(&mut self, write: &Write, factors: &Factors) {
        let (body, route) = request_of(write, 0, factors);
        let fragments = Fragments::Allowed(self.fragment_bytes);
        let route = route.map(|route| Route { fragments, ..route });
        let payload = vec![Bytes::copy_from_slice(&write.data)];
        let request = RustNode::request(write.capability, body, route, payload);
        let node = &mut self.nodes[write.nodes[0].node as usize];
        for request in cut(request) {
            node.handle(NodeEvent::Request { peer: WRITER, request });
        }
    }

    fn note(&mut self, from: u32, to: u32, request: &Request) {
        self.fragments += usize::from(request.fragment_role() == FragmentRole::Continues);
        let (data, writes) = (request.payload.concat(), self.passed.entry((from, to)).or_default());
        match self.open.get(&(from, to, request.tag)) {
            Some(at) if !request.has_answer() => writes[*at].extend(data),
            _ => {
                self.open.insert((from, to, request.tag), writes.len());
                writes.push(data);
            }
        }
    }

    /// Carries messages between the nodes until there are none.
    fn deliver(&mut self) {
        while let Some(at) = self.nodes.iter().position(|node| !node.out.is_empty()) {
            let from = at as u32;
            match self.nodes[at].out.pop_front().expect("it is not empty") {
                Sent::Relay(to, request) => {
                    let node = u32::from(to.node.0);
                    self.note(from, node, &request);
                    // The peer says whose link it is.
                    let peer = PeerId(1000 + u64::from(from));
                    self.nodes[node as usize].handle(NodeEvent::Request { peer, request });
                }
                Sent::Reply(WRITER, reply) => match reply.result {
                    Ok(ReplyBody::Outcomes(outcomes)) => self.outcomes.extend(outcomes),
                    Ok(_) => {
                        let node = NodeIndex(from as u16);
                        self.outcomes.push(Outcome { node, result: Ok(()) });
                    }
                    Err(error) => panic!("{error}"),
                },
                Sent::Reply(PeerId(peer), reply) => {
                    let to = (peer - 1000) as usize;
                    let node = NodeIndex(from as u16);
                    let from = LinkTarget { node, address: Bytes::new() };
                    self.nodes[to].handle(NodeEvent::Relayed { from, reply });
                }
            }
        }
    }
}

/// Delivers packets to nodes with firmware. Returns the data that each sent to each other one.
fn firmware_passes(cluster: &mut Cluster, packets: Vec<Vec<u8>>) -> Passed {
    let mut passed = Passed::new();
    let mut open: BTreeMap<(u32, u32, u32), Pieces> = BTreeMap::new();
    cluster.deliver_noting(packets, &mut |packet| {
        let header = PacketHeader::parse(packet).expect("a packet");
        if header.source == CLIENT || header.destination == CLIENT {
            return;
        }
        let data_at = PACKET_HEADER_BYTES + usize::from(header.headers_len);
        let data = packet[data_at..].to_vec();
        let name = (header.source, header.destination, header.message);
        open.entry(name).or_default().push((header.offset, data));
    });
    for ((from, to, _), mut pieces) in open {
        pieces.sort();
        let data = pieces.into_iter().flat_map(|(_, data)| data).collect();
        passed.entry((from, to)).or_default().push(data);
    }
    passed
}

fn sorted(mut passed: Passed) -> Passed {
    passed.values_mut().for_each(|messages| messages.sort());
    passed
}

#[test]
fn rings_and_trees_pass_the_same_on_and_store_the_same() {
    for (scheme, k) in [
        (Scheme::Single, 1),
        (Scheme::Ring { k: 2 }, 2),
        (Scheme::Ring { k: 5 }, 5),
        (Scheme::Tree { k: 2 }, 2),
        (Scheme::Tree { k: 6 }, 6),
    ] {
        for blocks in [1, 3, 8] {
            let of = |node| settings(node, Multiply::Table, 0, 0);
            let Some(mut firmware) = Cluster::new(k, of) else { return };
            let write = write(scheme, k, blocks * BLOCK_BYTES);
            let passed = firmware_passes(&mut firmware, write.packets());
            firmware.assert_all_done(k as usize);
            for fragment_bytes in FRAGMENTS {
                let mut product = RustCluster::new(k, fragment_bytes);
                product.write(&write, &no_factors());
                product.deliver();
                assert!(passed == product.passed, "{scheme:?}: other bytes between nodes");
                let is_cut = fragment_bytes > 0 && blocks > 1 && k > 1;
                assert_eq!(product.fragments, if is_cut { blocks * (k as usize - 1) } else { 0 });
                check_copies(&mut product, &firmware, &write);
            }
        }
    }
}

/// All nodes have the write, as those with firmware have it.
fn check_copies(product: &mut RustCluster, firmware: &Cluster, write: &Write) {
    let len = write.data.len();
    let done: Vec<_> = product.outcomes.iter().map(|o| (o.node.0, &o.result)).collect();
    assert_eq!((done.len(), done.iter().all(|(_, r)| r.is_ok())), (write.nodes.len(), true));
    for (rank, (node, other)) in (0..).zip(product.nodes.iter_mut().zip(&firmware.nodes)) {
        let there = other.stored(write.nodes[usize::from(rank)].address, len);
        assert!(node.stored(11, rank, len) == there, "{:?} {rank}", write.scheme);
    }
}

#[test]
fn data_nodes_contribute_the_same_and_parity_nodes_store_the_same() {
    for multiply in [Multiply::Table, Multiply::Pairs] {
        for (k, m) in [(3, 2), (6, 3), (2, 1)] {
            let of = |node: u32| {
                let mut settings = settings(node, multiply, usize::from(k), usize::from(m));
                settings.column = node as usize;
                settings
            };
            let Some(mut firmware) = Cluster::new(u32::from(k + m), of) else { return };
            let len = 2 * BLOCK_BYTES;
            let writes = code_writes(k, m, len);
            let passed = firmware_passes(&mut firmware, interleaved(&writes));
            firmware.assert_all_done(usize::from(k + m));
            let coefficients = multiply.coefficients(usize::from(k), usize::from(m)).unwrap();
            let passed = sorted(passed);
            for fragment_bytes in FRAGMENTS {
                let mut product = RustCluster::new(u32::from(k + m), fragment_bytes);
                for (column, write) in writes.iter().enumerate() {
                    let factors: Vec<u8> = coefficients.iter().map(|row| row[column]).collect();
                    product.write(write, &Factors::Scalars(factors.into()));
                }
                product.deliver();
                let same = passed == sorted(product.passed.clone());
                assert!(same, "{multiply:?} {k}+{m}: other products");
                assert_eq!(product.fragments > 0, fragment_bytes > 0);
                check_codes(&mut product, &firmware, &writes, (k, m));
            }
        }
    }
}

/// Each of the k data nodes tells of itself and of each parity node, and all nodes have stored what
/// those with firmware have.
fn check_codes(product: &mut RustCluster, firmware: &Cluster, writes: &[Write], (k, m): (u8, u8)) {
    let outcomes = &product.outcomes;
    assert_eq!(outcomes.len(), usize::from(k) * (1 + usize::from(m)));
    assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()), "{outcomes:?}");
    let len = writes[0].data.len();
    for (index, node) in (0..).zip(&firmware.nodes) {
        let is_data = index < k;
        let rank = if is_data { 0 } else { index - k + 1 };
        let at = if is_data { 0 } else { 1 };
        let there = node.stored(writes[0].nodes[at].address, len);
        let stored = product.nodes[usize::from(index)].stored(11, rank, len);
        assert!(stored == there, "{:?}: node {index}", writes[0].scheme);
    }
}

/// Zigzag: the firmware sends each element as a packet to another place, and the product a whole
/// contribution, made with the table of its column.
#[test]
fn elements_contribute_the_same() {
    for multiply in [Multiply::Table, Multiply::Scheduled] {
        // The product stores whole blocks, so these have an even number of elements.
        for code in ["zigzag:4+2", "zigzag:2+2", "zigzag:2+4"] {
            let profile: Profile = code.parse().unwrap();
            let (k, m, elements) = (profile.k() as u8, profile.m() as u8, profile.elements());
            let of = |node| element_settings(node, multiply, code);
            let Some(mut firmware) = Cluster::new(u32::from(k + m), of) else { return };
            let writes = element_writes(k, m, elements);
            let len = writes[0].data.len();
            let passed = firmware_passes(&mut firmware, interleaved(&writes));
            firmware.assert_all_done(usize::from(k + m));
            let passed = sorted(passed);
            for fragment_bytes in FRAGMENTS {
                let mut product = RustCluster::new(u32::from(k + m), fragment_bytes);
                for (column, write) in (0..).zip(&writes) {
                    let terms = ElementColumn::of(code, column).unwrap().terms;
                    product.write(write, &table_of(&terms, len as u32));
                }
                product.deliver();
                assert!(passed == sorted(product.passed.clone()), "{multiply:?} {code}");
                check_codes(&mut product, &firmware, &writes, (k, m));
            }
        }
    }
}

/// The table of a column: for each element of a parity, the element that it comes from.
fn table_of(terms: &[Vec<(u8, u8)>], chunk_bytes: u32) -> Factors {
    let elements = terms[0].len();
    let mut rows = vec![Vec::new(); terms.len() * elements];
    for (parity, of_parity) in terms.iter().enumerate() {
        for (element, (place, factor)) in (0..).zip(of_parity) {
            let row = &mut rows[parity * elements + usize::from(*place)];
            row.push(ElementTerm { element, factor: *factor });
        }
    }
    let rows = rows.iter().map(Vec::as_slice);
    Factors::Elements(ElementTable::new(chunk_bytes, elements as u16, rows).unwrap())
}

/// What the product's node answers, as the firmware says it.
fn status_of(error: &NodeError) -> Option<u32> {
    match error {
        NodeError::Capability(CapabilityError::Forged) => Some(1),
        NodeError::Capability(CapabilityError::Expired) => Some(2),
        NodeError::Capability(CapabilityError::Rights) => Some(3),
        NodeError::Capability(CapabilityError::Range) => Some(4),
        _ => None,
    }
}

/// What the product's node answers to a write's request at once; 0 if it takes it. Then it answers
/// later, when other nodes have answered or contributed.
fn product_answer(class: Class, write: &Write) -> Option<u32> {
    let factors = match class.scheme {
        // A parity node gets no table.
        Scheme::Elements { m, .. } if class.waits() => {
            Factors::Scalars(vec![1; usize::from(m)].into())
        }
        Scheme::Elements { column, .. } => {
            let terms = ElementColumn::of(ELEMENT_CODE, column).unwrap().terms;
            table_of(&terms, write.data.len() as u32)
        }
        Scheme::Code { k, m, column } => {
            let rows = Multiply::Table.coefficients(usize::from(k), usize::from(m)).unwrap();
            let column = rows.iter().map(|row| row[usize::from(column)]).collect::<Vec<_>>();
            Factors::Scalars(column.into())
        }
        _ => no_factors(),
    };
    let mut node = RustNode::new(0);
    let (body, route) = request_of(write, class.rank, &factors);
    let payload = vec![Bytes::copy_from_slice(&write.data)];
    let request = RustNode::request(write.capability, body, route, payload);
    node.handle(NodeEvent::Request { peer: WRITER, request });
    for sent in &node.out {
        if let Sent::Reply(_, Reply { result: Err(error), .. }) = sent {
            assert_eq!(node.out.len(), 1, "{class:?}: a write that is refused goes on");
            let status = status_of(error);
            assert!(status.is_some(), "{class:?}: {error}");
            return status;
        }
    }
    Some(0)
}

/// For every kind of message.
#[test]
fn both_refuse_the_same_capabilities_for_the_same_reason() {
    for class in classes() {
        let (mut accepted, mut refused) = (0, 0);
        let mut settings = class.settings();
        // The node has places for segments beyond the capability's range, too.
        for (segment, base) in [(9, PLACE - (2 << 28)), ((20 << 32) + 1, PLACE + (3 << 28))] {
            settings.extents.push(Extent { segment: SegmentId(segment), base, ..extent(11) });
        }
        let Some(mut firmware) = FirmwareNode::new(&settings) else { return };
        for (capability, segment) in capabilities() {
            let mut write = class.write(BLOCK_BYTES);
            (write.capability, write.segment) = (capability, segment);
            let place = settings.extents.iter().find(|extent| extent.segment.0 == segment);
            write.nodes[usize::from(class.rank)].address = place.unwrap().base;
            let expected = product_answer(class, &write);
            let answer = class.answer(&mut firmware, &write);
            assert_eq!(answer, expected, "{class:?} {capability:?} {segment}");
            match expected {
                Some(0) => accepted += 1,
                _ => refused += 1,
            }
        }
        assert_eq!((accepted, refused), (4, 21), "{class:?}");
    }
}

/// Capabilities, good and bad, each for a write to a segment.
fn capabilities() -> Vec<(Capability, u64)> {
    let key = MASTER.derive(VOLUME, EPOCH);
    let good = capability();
    let mut cases = vec![(good, 11)];
    for byte in 0..16 {
        let mut forged = good;
        forged.mac[byte] ^= 1 << (byte % 8);
        cases.push((forged, 11));
    }
    let changed = |change: &dyn Fn(&mut Capability)| {
        let mut capability = good;
        change(&mut capability);
        capability.signed(&key)
    };
    cases.push((changed(&|c| c.expires_ns = NOW_NS), 11));
    cases.push((changed(&|c| c.expires_ns = NOW_NS + 1), 11));
    cases.push((changed(&|c| c.expires_ns = 0), 11));
    cases.push((changed(&|c| c.rights = Rights::READ), 11));
    for segment in [9, 10, 20 << 32, (20 << 32) + 1] {
        cases.push((good, segment));
    }
    cases
}
