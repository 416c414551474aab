//! Tests of connections to nodes that misbehave.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use fieldstone_host::{Host, NodePlace, NodeSession, SessionError};
use fieldstone_proto::wire::encode_reply;
use fieldstone_proto::{
    Capability, Epoch, MasterKey, NodeError, NodeIndex, Reply, RequestBody, Rights, Tag, VolumeId,
};
use fieldstone_uring::{Address, Endpoint};

use crate::common::start;

/// The time limit of a call.
const CALL: Duration = Duration::from_millis(300);
/// The longest time that a call takes on a busy machine.
const BUSY: Duration = Duration::from_millis(1_500);

fn connect(host: &Host, address: &str) -> Result<NodeSession, SessionError> {
    let address: Address = address.parse().expect("an address");
    let endpoint = Endpoint::resolve(&address).expect("it resolves");
    NodeSession::connect(host.handle(), NodeIndex(0), &NodePlace::At(Box::new(endpoint)), CALL)
}

fn ask(session: &mut NodeSession) -> Result<(), SessionError> {
    let key = MasterKey([3; 16]).derive(VolumeId(0), Epoch(0));
    let capability = Capability::issue(&key, VolumeId(0), Epoch(0), Rights::ALL, u64::MAX);
    session.ask(capability, &RequestBody::Stat).map(|_| ())
}

/// The answer of the fake nodes.
fn answer() -> Vec<u8> {
    let reason = "no ".repeat(100);
    let reply = Reply { tag: Tag(1), result: Err(NodeError::Invalid(reason)), slots_free: 0 };
    encode_reply(&reply).expect("valid").concat()
}

/// Each byte follows soon after the one before, and the whole answer takes 20 times the time limit.
#[test]
fn a_node_that_answers_byte_by_byte_keeps_no_caller() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).expect("free");
    let node = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        for byte in answer() {
            std::thread::sleep(Duration::from_millis(20));
            if stream.write_all(&[byte]).is_err() {
                return;
            }
        }
    });
    let host = start(Vec::new());
    let mut session = connect(&host, &format!("unix:{}", path.display())).expect("it listens");
    let began = Instant::now();
    let error = ask(&mut session).expect_err("it is slow");
    assert!(began.elapsed() >= CALL && began.elapsed() < BUSY, "{:?}", began.elapsed());
    assert!(error.to_string().contains("does not answer in time"), "{error}");
    drop(session);
    node.join().expect("no panic");
    host.stop().expect("no core failed");
}

/// The listener's queue of connections is full.
#[test]
fn a_node_that_accepts_no_connection_keeps_no_caller() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).expect("free");
    // SAFETY: listen() takes no pointers.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let _first = UnixStream::connect(&path).expect("room for one");
    let host = start(Vec::new());
    let (done, outcome) = std::sync::mpsc::channel();
    let address = format!("unix:{}", path.display());
    let began = Instant::now();
    std::thread::spawn(move || {
        let error = connect(&host, &address).err().map(|error| error.to_string());
        drop(done.send(error));
        host.stop()
    });
    let error = outcome.recv_timeout(Duration::from_secs(20)).expect("the call hangs");
    let error = error.expect("there is no room");
    assert!(began.elapsed() >= CALL && began.elapsed() < BUSY, "{:?}", began.elapsed());
    assert!(error.contains("does not answer in time"), "{error}");
}

/// The name may have an address of each family. The node listens on only one of them.
#[test]
fn every_address_of_a_name_is_tried() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("free");
    let port = listener.local_addr().expect("bound").port();
    let node = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(&answer()).expect("open");
        drop(stream.read_to_end(&mut Vec::new()));
    });
    let host = start(Vec::new());
    let mut session = connect(&host, &format!("tcp:localhost:{port}")).expect("it listens");
    let error = ask(&mut session).expect_err("it refuses");
    assert!(matches!(error, SessionError::Refused { .. }), "{error}");
    drop(session);
    node.join().expect("no panic");
    host.stop().expect("no core failed");
}
