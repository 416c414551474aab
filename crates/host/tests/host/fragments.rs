//! Long writes that go over sockets in fragments, from a writer to a node, and from node to node.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use fieldstone_host::Host;
use fieldstone_proto::fragments::cut;
use fieldstone_proto::wire::{Decoder, encode_reply};
use fieldstone_proto::{
    BLOCK_BYTES, FRAGMENT_BYTES_MAX, FragmentRole, Fragments, Lsn, NodeError, NodeIndex, NodeStat,
    Reply, ReplyBody, Request, RequestBody, Route, Strategy, VolumeId,
};

use crate::common::{TIMEOUT, start, start_with_memory};
use crate::links::{GENERATION, Writer, config, done, listen, next_request, route};

const VOLUME: VolumeId = VolumeId(11);
const OTHER: VolumeId = VolumeId(12);
const LONG_BYTES: usize = 1 << 20;

/// Bytes that depend on their place.
fn data(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at / 7 + at / BLOCK_BYTES) as u8).collect()
}

fn append(lsn: u64) -> RequestBody {
    RequestBody::JournalAppend { generation: GENERATION, lsn: Lsn(lsn) }
}

/// A write in fragments.
fn fragments(writer: &mut Writer, lsn: u64, route: Route, data: &[u8]) -> Vec<Request> {
    let fragments = Fragments::Allowed(FRAGMENT_BYTES_MAX as u32);
    let request = writer.request(append(lsn), Some(Route { fragments, ..route }), data);
    let sent: Vec<Request> = cut(request).collect();
    assert_eq!(sent.len(), 1 + data.len().div_ceil(FRAGMENT_BYTES_MAX));
    sent
}

fn outcomes(reply: Reply) -> Vec<fieldstone_proto::Outcome> {
    match reply.result {
        Ok(ReplyBody::Outcomes(mut outcomes)) => {
            outcomes.sort_by_key(|outcome| outcome.node);
            outcomes
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_long_write_reaches_every_node_of_its_route() {
    let temp = tempfile::tempdir().expect("temp");
    let folder = temp.path();
    let socket = |node: u16| folder.join(format!("{node}.sock"));
    let hosts: Vec<Host> = (0..4)
        .map(|node| {
            let host = start(vec![config(folder, node)]);
            listen(&host, folder, &[node]);
            host
        })
        .collect();
    let mut writers: Vec<Writer> =
        (0..4).map(|node| Writer::connect_as(&socket(node), VOLUME)).collect();
    writers.iter_mut().for_each(Writer::prepare);
    let addresses: Vec<String> =
        (0..4).map(|node| format!("unix:{}", socket(node).display())).collect();
    let data = data(LONG_BYTES);
    for (lsn, strategy) in
        (0..).step_by(LONG_BYTES).zip([Strategy::Ring, Strategy::Tree, Strategy::Primary])
    {
        let route = route(strategy, &addresses);
        let sent = fragments(&mut writers[0], lsn, route, &data);
        sent.iter().for_each(|request| writers[0].send(request));
        assert_eq!(outcomes(writers[0].answer()), done(4), "{strategy}");
        for writer in &mut writers {
            assert_eq!(writer.read_some(lsn, LONG_BYTES as u32), data);
        }
    }
    drop(writers);
    hosts.into_iter().for_each(|host| host.stop().expect("no core failed"));
}

/// A node on a link: it answers the greeting, and then hands on the requests that come, until a
/// write is given up.
fn node_on_a_link(
    listener: UnixListener,
    stat: NodeStat,
) -> (mpsc::Receiver<Request>, std::thread::JoinHandle<UnixStream>) {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the node connects");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        let mut decoder = Decoder::new();
        let greeting = next_request(&mut stream, &mut decoder).expect("the greeting");
        let reply = Reply { tag: greeting.tag, result: Ok(ReplyBody::Stat(stat)), slots_free: 0 };
        for part in encode_reply(&reply).expect("in bounds") {
            stream.write_all(&part).expect("the node reads");
        }
        while let Some(request) = next_request(&mut stream, &mut decoder) {
            let ends = request.fragment_role() == FragmentRole::Ends;
            if sender.send(request).is_err() || ends {
                break;
            }
        }
        stream
    });
    (receiver, thread)
}

/// Each fragment is on the next node's link before the writer has sent the next one. A writer that
/// stops within a write does not keep others from the same link. When it is gone, the next node
/// learns it.
#[test]
fn fragments_go_on_at_once_and_a_stopped_write_is_given_up() {
    let temp = tempfile::tempdir().expect("temp");
    let folder = temp.path();
    let socket = |node: u16| folder.join(format!("{node}.sock"));
    let host = start(vec![config(folder, 0)]);
    listen(&host, folder, &[0]);
    let listener = UnixListener::bind(socket(1)).expect("bound");
    let mut writers = [VOLUME, OTHER].map(|volume| Writer::connect_as(&socket(0), volume));
    writers.iter_mut().for_each(Writer::prepare);
    let identify = writers[0].request(RequestBody::Identify, None, &[]);
    writers[0].send(&identify);
    let Ok(ReplyBody::Stat(stat)) = writers[0].answer().result else { panic!("a node") };
    let stat = NodeStat { node: NodeIndex(1), ..stat };
    let (on_link, thread) = node_on_a_link(listener, stat);
    let address = |node: u16| format!("unix:{}", socket(node).display());
    let ring = || Route { wait_ms: 10_000, ..route(Strategy::Ring, &[address(0), address(1)]) };
    let data = data(4 * FRAGMENT_BYTES_MAX);
    let sent = fragments(&mut writers[0], 0, ring(), &data);
    let mut passed_on = Vec::new();
    for request in &sent[..3] {
        writers[0].send(request);
        passed_on.push(on_link.recv_timeout(TIMEOUT).expect("it goes on at once"));
    }
    assert_eq!(passed_on[0].fragment_role(), FragmentRole::Begins(data.len()));
    let bytes: Vec<Bytes> = passed_on[1..].iter().flat_map(|r| r.payload.clone()).collect();
    assert_eq!(bytes.concat(), data[..2 * FRAGMENT_BYTES_MAX]);
    // A whole write of another volume over the same link, between the fragments.
    let other = writers[1].request(append(0), Some(ring()), &[5; BLOCK_BYTES]);
    writers[1].send(&other);
    let whole = on_link.recv_timeout(TIMEOUT).expect("nothing is before it");
    assert_eq!((whole.fragment_role(), whole.payload.concat().len()), (FragmentRole::None, 4096));
    let [stopped, _other] = writers;
    drop(stopped);
    let end = on_link.recv_timeout(TIMEOUT).expect("the next node learns it");
    assert_eq!((end.body, end.tag), (RequestBody::GiveUp, passed_on[0].tag));
    drop(thread.join().expect("it ends"));
    host.stop().expect("no core failed");
}

/// The node's process takes memory for a whole write before it takes the first fragment. Without
/// memory it refuses the write if fragments of other writes are missing on the connection. If none
/// is, the connection waits.
#[test]
fn memory_for_fragments_is_bounded() {
    const WRITE_BYTES: usize = 4 << 20;
    let temp = tempfile::tempdir().expect("temp");
    let folder = temp.path();
    // A quarter is for pending connections.
    let host = start_with_memory(vec![config(folder, 0)], 4 * WRITE_BYTES);
    listen(&host, folder, &[0]);
    let socket = folder.join("0.sock");
    let mut writers = [VOLUME, OTHER].map(|volume| Writer::connect_as(&socket, volume));
    writers.iter_mut().for_each(Writer::prepare);
    let data = data(WRITE_BYTES);
    let alone = || route(Strategy::Ring, &[String::new()]);
    let writes: Vec<Vec<Request>> = (0..4)
        .map(|at| fragments(&mut writers[0], at * WRITE_BYTES as u64, alone(), &data))
        .collect();
    for sent in &writes {
        writers[0].send(&sent[0]);
    }
    let refused = writers[0].answer();
    assert_eq!((refused.tag, refused.result), (writes[3][0].tag, Err(NodeError::Busy)));
    // The other writer has no write under way: its request waits for memory.
    let [mut first, mut second] = writers;
    let waiting = fragments(&mut second, 0, alone(), &data);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            waiting.iter().for_each(|request| second.send(request));
            outcomes(second.answer())
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        for request in writes[0][1..].iter().chain(&writes[3][1..]) {
            first.send(request);
        }
        assert_eq!(outcomes(first.answer()), done(1));
        assert_eq!(waits.join().expect("no panic"), done(1), "the first write's memory is free");
    });
    for sent in &writes[1..3] {
        sent[1..].iter().for_each(|request| first.send(request));
        assert_eq!(outcomes(first.answer()), done(1));
    }
    assert_eq!(second.read_some(0, WRITE_BYTES as u32), data);
    drop((first, second));
    host.stop().expect("no core failed");
}

/// The answer to a request gives the memory for its fragments back. Another request with its tag
/// would do so too early, so the node's process ends such a connection.
#[test]
fn a_tag_is_used_once_until_its_answer() {
    let temp = tempfile::tempdir().expect("temp");
    let folder = temp.path();
    let host = start(vec![config(folder, 0)]);
    listen(&host, folder, &[0]);
    let mut writer = Writer::connect_as(&folder.join("0.sock"), VOLUME);
    writer.prepare();
    let alone = route(Strategy::Ring, &[String::new()]);
    let sent = fragments(&mut writer, 0, alone, &data(LONG_BYTES));
    writer.send(&sent[0]);
    let mut identify = writer.request(RequestBody::Identify, None, &[]);
    writer.send(&identify);
    assert!(writer.answer().result.is_ok());
    identify.tag = sent[0].tag;
    writer.send(&identify);
    assert!(writer.is_closed());
    host.stop().expect("no core failed");
}
