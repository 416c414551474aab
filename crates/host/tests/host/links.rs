//! Nodes that pass a write on to each other: over sockets, as between processes, and within a
//! process. The test is the writer, with a connection of its own to each node.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fieldstone_host::{Destination, Host, LocalNodeConfig, LocalNodeId};
use fieldstone_proto::wire::{Decoder, encode_reply, encode_request};
use fieldstone_proto::{
    Capability, Epoch, JournalGen, Lsn, MasterKey, NodeError, NodeIndex, NodeStat, Outcome, Pass,
    Replica, Reply, ReplyBody, Request, RequestBody, Rights, Route, ShardIndex, Strategy, Tag,
    VolumeId,
};
use fieldstone_uring::{Address, Listener};

use crate::common::{TIMEOUT, down, opening, start, wait_until};

const VOLUME: VolumeId = VolumeId(11);
pub const GENERATION: JournalGen = JournalGen(1);
const PASS: Pass = Pass(3);
/// How long a head waits for the nodes behind it.
const WAIT_MS: u32 = 500;

/// The writer's connection to a node.
pub struct Writer {
    stream: UnixStream,
    decoder: Decoder<Reply>,
    tag: u64,
    volume: VolumeId,
}

impl Writer {
    fn connect(path: &Path) -> Self {
        Self::connect_as(path, VOLUME)
    }

    /// The connection of the writer of this volume.
    pub fn connect_as(path: &Path, volume: VolumeId) -> Self {
        let stream = UnixStream::connect(path).expect("the node listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        Self { stream, decoder: Decoder::new(), tag: 0, volume }
    }

    /// A request with a tag of its own.
    pub fn request(&mut self, body: RequestBody, route: Option<Route>, payload: &[u8]) -> Request {
        self.tag += 1;
        let (tag, volume) = (Tag(self.tag), self.volume);
        let key = MasterKey([3; 16]).derive(volume, Epoch(1));
        let capability = Capability::issue(&key, volume, Epoch(1), Rights::ALL, u64::MAX);
        let payload = match payload {
            [] => Vec::new(),
            bytes => vec![Bytes::copy_from_slice(bytes)],
        };
        Request { tag, capability, body, route: route.map(Box::new), payload }
    }

    /// Sends a request, and does not wait for its answer.
    pub fn send(&mut self, request: &Request) {
        for part in encode_request(request).expect("in bounds") {
            self.stream.write_all(&part).expect("the node takes it");
        }
    }

    /// The next answer.
    pub fn answer(&mut self) -> Reply {
        loop {
            // A byte at a time: what follows the answer stays in the socket.
            let mut byte = [0];
            let count = self.stream.read(&mut byte).expect("an answer in time");
            assert!(count > 0, "the node closed the connection");
            if let Some(reply) = self.decoder.feed(&mut &byte[..]).expect("a reply") {
                return reply;
            }
        }
    }

    /// The node's process has closed the connection, and sends nothing more.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }

    fn ask(
        &mut self,
        body: RequestBody,
        route: Option<Route>,
        payload: &[u8],
    ) -> Result<ReplyBody, NodeError> {
        let request = self.request(body, route, payload);
        self.send(&request);
        let reply = self.answer();
        assert_eq!(reply.tag, request.tag);
        reply.result
    }

    /// Fences the volume, and makes a journal.
    pub fn prepare(&mut self) {
        self.ask(RequestBody::Fence { takeover: false }, None, &[]).expect("a new volume");
        let create = RequestBody::JournalCreate { generation: GENERATION, ring_bytes: 16 << 20 };
        self.ask(create, None, &[]).expect("a new journal");
        self.ask(RequestBody::AdmitRelays { pass: PASS }, None, &[]).expect("admitted");
    }

    pub fn append(&mut self, lsn: u64, byte: u8, route: Route) -> Vec<Outcome> {
        let body = RequestBody::JournalAppend { generation: GENERATION, lsn: Lsn(lsn) };
        match self.ask(body, Some(route), &[byte; 8192]) {
            Ok(ReplyBody::Outcomes(mut outcomes)) => {
                outcomes.sort_by_key(|outcome| outcome.node);
                outcomes
            }
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, offset_bytes: u64) -> Bytes {
        self.read_some(offset_bytes, 8192)
    }

    pub fn read_some(&mut self, offset_bytes: u64, len_bytes: u32) -> Bytes {
        let generation = GENERATION;
        let read = RequestBody::JournalRead { generation, offset_bytes, len_bytes };
        match self.ask(read, None, &[]) {
            Ok(ReplyBody::Data(data)) => data,
            other => panic!("{other:?}"),
        }
    }
}

pub fn route(strategy: Strategy, addresses: &[String]) -> Route {
    let replica = |(node, address): (u16, &String)| Replica {
        node: NodeIndex(node),
        pass: PASS,
        shard: ShardIndex(0),
        address: Bytes::from(address.clone()),
    };
    let replicas = (0..).zip(addresses).map(replica).collect();
    Route { strategy, rank: 0, wait_ms: WAIT_MS, replicas, ..Route::default() }
}

/// Lets the nodes of a host listen, each on the socket of its index.
pub fn listen(host: &Host, folder: &Path, nodes: &[u16]) {
    for (number, node) in (0..).zip(nodes) {
        wait_until("the node is up", || down(host, *node).is_none());
        let path = folder.join(format!("{node}.sock"));
        let listener = Listener::bind(&Address::Unix(path)).expect("bound");
        let id = LocalNodeId { number, index: NodeIndex(*node) };
        host.handle().listen(listener, Destination::Node(id));
    }
}

pub fn config(folder: &Path, node: u16) -> LocalNodeConfig {
    let opening = opening(folder, node, None);
    let folder = opening.run().map_err(|error| error.to_string());
    LocalNodeConfig { opening, folder, late: None }
}

pub fn done(nodes: u16) -> Vec<Outcome> {
    (0..nodes).map(|node| Outcome { node: NodeIndex(node), result: Ok(()) }).collect()
}

fn not_passed_on(from: u16, to: u16) -> Result<(), NodeError> {
    Err(NodeError::NotPassedOn { from: NodeIndex(from), to: NodeIndex(to) })
}

/// Every node of a route has the bytes when the head has answered, whether the nodes are in one
/// process or in several.
#[test]
fn every_node_of_a_route_has_the_bytes() {
    for apart in [false, true] {
        let temp = tempfile::tempdir().expect("temp");
        let folder = temp.path();
        let groups: Vec<Vec<u16>> = match apart {
            false => vec![vec![0, 1, 2, 3]],
            true => vec![vec![0], vec![1], vec![2], vec![3]],
        };
        let start_group = |nodes: &Vec<u16>| {
            let host = start(nodes.iter().map(|node| config(folder, *node)).collect());
            listen(&host, folder, nodes);
            host
        };
        let hosts: Vec<Host> = groups.iter().map(start_group).collect();
        let socket = |node: u16| folder.join(format!("{node}.sock"));
        let mut writers: Vec<Writer> = (0..4).map(|node| Writer::connect(&socket(node))).collect();
        writers.iter_mut().for_each(Writer::prepare);
        let address = |node: u16| match apart {
            false => String::new(),
            true => format!("unix:{}", socket(node).display()),
        };
        let addresses: Vec<String> = (0..4).map(address).collect();
        for (turn, strategy) in
            (0..).zip([Strategy::Ring, Strategy::Tree, Strategy::Primary, Strategy::Ring])
        {
            let byte = 65 + u8::try_from(turn).expect("small");
            let outcomes = writers[0].append(turn * 8192, byte, route(strategy, &addresses));
            assert_eq!(outcomes, done(4), "{strategy}, apart {apart}");
            for writer in &mut writers {
                assert_eq!(writer.read(turn * 8192), vec![byte; 8192]);
            }
        }
        drop(writers);
        hosts.into_iter().for_each(|host| host.stop().expect("no core failed"));
    }
}

/// Reads one request from a connection of a node. `None` if nothing comes for a while.
pub fn next_request(stream: &mut UnixStream, decoder: &mut Decoder<Request>) -> Option<Request> {
    loop {
        // A byte at a time: what follows the request stays in the socket.
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => {}
            _ => return None,
        }
        if let Some(request) = decoder.feed(&mut &byte[..]).expect("a request") {
            return Some(request);
        }
    }
}

/// A writer names the addresses. Whoever listens there gets nothing of the writer's before it has
/// shown that it is the node of that number in this pool: it may be a program that takes commands.
#[test]
fn a_stranger_at_the_address_of_a_node_gets_no_bytes_of_the_writer() {
    let temp = tempfile::tempdir().expect("temp");
    let folder = temp.path();
    let socket = |node: u16| folder.join(format!("{node}.sock"));
    // Node 3 listens where the writer says that node 1 is.
    let hosts: Vec<Host> = [0, 3]
        .map(|node| {
            let host = start(vec![config(folder, node)]);
            listen(&host, folder, &[node]);
            host
        })
        .into();
    let listener = UnixListener::bind(socket(1)).expect("bound");
    let mut writer = Writer::connect(&socket(0));
    writer.prepare();
    let address = |node: u16| format!("unix:{}", socket(node).display());
    let lines = b"\n{\"op\":\"stop\"}\n";
    let stranger = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the node connects");
        stream.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
        let mut decoder = Decoder::new();
        let greeting = next_request(&mut stream, &mut decoder).expect("the greeting");
        assert_eq!(greeting.body, RequestBody::Identify);
        assert_eq!(greeting.capability, Capability::default(), "no right leaves either");
        assert_eq!(next_request(&mut stream, &mut decoder), None, "it waits for the answer");
        // A stranger that speaks the protocol does not get it either.
        let result = Ok(ReplyBody::Done);
        let reply = Reply { tag: greeting.tag, result, slots_free: 0 };
        for part in encode_reply(&reply).expect("in bounds") {
            stream.write_all(&part).expect("the node reads");
        }
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        assert_eq!(stream.read(&mut [0; 64]).expect("it closes"), 0);
    });
    let body = RequestBody::JournalAppend { generation: GENERATION, lsn: Lsn(0) };
    let mut payload = vec![0; 4096];
    payload[..lines.len()].copy_from_slice(lines);
    let some = [address(0), address(1)];
    let outcomes = writer.ask(body.clone(), Some(route(Strategy::Primary, &some)), &payload);
    let results = |outcomes| match outcomes {
        Ok(ReplyBody::Outcomes(all)) => {
            all.into_iter().map(|outcome: Outcome| outcome.result).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(results(outcomes), [Ok(()), not_passed_on(0, 1)]);
    stranger.join().expect("it got nothing else");
    // Another node of the pool is not the node either, and does not answer for it.
    let some = [address(0), address(3)];
    let outcomes = writer.ask(body, Some(route(Strategy::Primary, &some)), &payload);
    assert_eq!(results(outcomes), [Ok(()), not_passed_on(0, 1)]);
    drop(writer);
    hosts.into_iter().for_each(|host| host.stop().expect("no core failed"));
}

/// Nothing that the other end of a link sends may take much memory.
#[test]
fn a_long_answer_breaks_the_link() {
    let temp = tempfile::tempdir().expect("temp");
    let folder = temp.path();
    let socket = |node: u16| folder.join(format!("{node}.sock"));
    let host = start(vec![config(folder, 0)]);
    listen(&host, folder, &[0]);
    let listener = UnixListener::bind(socket(1)).expect("bound");
    let mut writer = Writer::connect(&socket(0));
    writer.prepare();
    let stat = match writer.ask(RequestBody::Identify, None, &[]) {
        Ok(ReplyBody::Stat(stat)) => stat,
        other => panic!("{other:?}"),
    };
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the node connects");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        let mut decoder = Decoder::new();
        let greeting = next_request(&mut stream, &mut decoder).expect("the greeting");
        let stat = NodeStat { node: NodeIndex(1), ..stat };
        let reply = Reply { tag: greeting.tag, result: Ok(ReplyBody::Stat(stat)), slots_free: 0 };
        for part in encode_reply(&reply).expect("in bounds") {
            stream.write_all(&part).expect("the node reads");
        }
        let passed_on = next_request(&mut stream, &mut decoder).expect("the append");
        assert!(matches!(passed_on.body, RequestBody::JournalAppend { .. }));
        let data = Ok(ReplyBody::Data(vec![7; 100].into()));
        let reply = Reply { tag: passed_on.tag, result: data, slots_free: 0 };
        let parts = encode_reply(&reply).expect("in bounds");
        // The header is enough.
        stream.write_all(&parts[0][..40]).expect("the node reads");
        assert_eq!(stream.read(&mut [0; 64]).expect("it closes"), 0);
    });
    let addresses = [0, 1].map(|node| format!("unix:{}", socket(node).display()));
    let outcomes = writer.append(0, 65, route(Strategy::Primary, &addresses));
    let results: Vec<_> = outcomes.into_iter().map(|outcome| outcome.result).collect();
    assert_eq!(results, [Ok(()), not_passed_on(0, 1)]);
    other.join().expect("as told");
    drop(writer);
    host.stop().expect("no core failed");
}

/// A node that is gone costs no time, and a silent one a bounded time. The others have the bytes.
#[test]
fn nodes_that_are_gone_or_silent_are_named() {
    let temp = tempfile::tempdir().expect("temp");
    let folder = temp.path();
    let socket = |node: u16| folder.join(format!("{node}.sock"));
    let hosts: Vec<Host> = [0, 1]
        .map(|node| {
            let host = start(vec![config(folder, node)]);
            listen(&host, folder, &[node]);
            host
        })
        .into();
    let silent = UnixListener::bind(socket(2)).expect("bound");
    let mut writers: Vec<Writer> = (0..2).map(|node| Writer::connect(&socket(node))).collect();
    writers.iter_mut().for_each(Writer::prepare);
    let address = |node: u16| format!("unix:{}", socket(node).display());
    let addresses = [0, 1, 2].map(address);
    let began = Instant::now();
    let outcomes = writers[0].append(0, 65, route(Strategy::Ring, &addresses));
    let wait = Duration::from_millis(u64::from(WAIT_MS) / 2);
    assert!(began.elapsed() >= wait, "node 1 waits half of the head's time for node 2");
    let results: Vec<_> = outcomes.into_iter().map(|outcome| outcome.result).collect();
    assert_eq!(results, [Ok(()), Ok(()), not_passed_on(1, 2)]);
    assert_eq!(writers[1].read(0), vec![65; 8192]);
    // Nothing listens there any more, and a name is no address.
    drop(silent);
    std::fs::remove_file(socket(2)).expect("removed");
    for address in [addresses[2].clone(), "tcp:localhost:1".to_owned(), String::new()] {
        let began = Instant::now();
        let some = [addresses[0].clone(), addresses[1].clone(), address];
        let outcomes = writers[0].append(8192, 66, route(Strategy::Primary, &some));
        let results: Vec<_> = outcomes.into_iter().map(|outcome| outcome.result).collect();
        assert_eq!(results, [Ok(()), Ok(()), not_passed_on(0, 2)]);
        assert!(began.elapsed() < TIMEOUT);
    }
    drop(writers);
    hosts.into_iter().for_each(|host| host.stop().expect("no core failed"));
}
