use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::net::UnixListener;
use std::path::Path;

use bytes::Bytes;
use fieldstone_proto::route::ADDRESS_BYTES_MAX;
use fieldstone_proto::wire::Decoder;
use fieldstone_proto::{
    Column, Content, Factors, Fragments, NodeStat, Pass, Replica, Route, SealMeta, SegmentId,
    ShardIndex, Strategy,
};
use fieldstone_uring::{Mailbox, ReactorOptions};

use super::waiting::REQUEST_BYTES;
use super::*;
use crate::message::Core;
use crate::token::split;

const ME: LocalNodeId = LocalNodeId { number: 0, index: NodeIndex(0) };
const POOL: PoolId = PoolId(5);
/// So many requests without payload may wait for a link.
const WAITING_MAX: usize = QUEUED_BYTES_MAX / REQUEST_BYTES;

thread_local! {
    static USED_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator. Counts what each thread has in use.
struct Counting;

fn count(more: usize, less: usize) {
    // A thread that ends has no counter any more.
    let add = |used: &Cell<usize>| used.set(used.get().wrapping_add(more).wrapping_sub(less));
    let _ = USED_BYTES.try_with(add);
}

// SAFETY: each call goes to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The links of node 0, which shares its process with node 1.
struct Rig {
    links: NodeLinks,
    router: Router,
    reactor: Reactor,
    _mailbox: Mailbox<Message>,
}

impl Rig {
    fn new() -> Self {
        let mut reactor = Reactor::new(ReactorOptions::default()).expect("a ring");
        let (sender, mailbox) = reactor.mailbox(64, token(Kind::Mail, 0, 0)).expect("a mailbox");
        let router = Router::new(Core(0), vec![sender]);
        let nodes = Arc::new([(POOL, NodeIndex(0)), (POOL, NodeIndex(1))]);
        Self { links: NodeLinks::new(nodes, 0, 4096), router, reactor, _mailbox: mailbox }
    }

    fn relay(&mut self, to: &LinkTarget, request: &Request) {
        let (to, request) = (to.clone(), request.clone());
        self.links.relay(ME, to, request, Nanos(0), &mut self.router, &mut self.reactor);
    }

    /// The links that were lost since the last call.
    fn lost(&mut self) -> Vec<LinkTarget> {
        let mut lost = Vec::new();
        while let Some(message) = self.router.next_local() {
            if let Message::ToLinkedNode { event, .. } = message
                && let NodeEvent::LinkLost { to } = *event
            {
                lost.push(to);
            }
        }
        lost
    }

    /// Waits until the only link is connected and has sent its greeting.
    fn connect(&mut self) -> u32 {
        let mut events = Vec::new();
        loop {
            self.reactor.turn(&mut events).expect("the ring works");
            for event in events.drain(..) {
                let (kind, _, number) = split(event.token).expect("made here");
                // A link that was lost before has ended its attempt.
                if kind == Kind::LinkConnect && self.links.links.contains_key(&number) {
                    self.links.connected(number, event, &mut self.router, &mut self.reactor);
                    assert!(matches!(self.links.links[&number].state, State::Greeting(..)));
                    return number;
                }
            }
        }
    }
}

fn at(path: &Path) -> LinkTarget {
    let address = format!("unix:{}", path.display());
    LinkTarget { node: NodeIndex(2), address: Bytes::from(address) }
}

/// Node 1, in the same process.
fn inside() -> LinkTarget {
    LinkTarget { node: NodeIndex(1), address: Bytes::new() }
}

/// The largest contribution of a data node that has no memory for the product.
fn empty_contribution() -> Request {
    let replica = |node: u16| Replica {
        node: NodeIndex(node),
        pass: Pass(1),
        shard: ShardIndex(0),
        address: Bytes::from(vec![b'a'; ADDRESS_BYTES_MAX]),
    };
    let route = Route {
        strategy: Strategy::Primary,
        rank: 1,
        wait_ms: 0,
        replicas: (0..16).map(replica).collect(),
        content: Content::Column(Column {
            index: 0,
            count: 4,
            factors: Factors::Scalars(Bytes::from(vec![3; 15])),
        }),
        fragments: Fragments::Whole,
    };
    assert_eq!(route.replicas.len(), REPLICAS_MAX);
    let body = RequestBody::ShardWrite {
        segment: SegmentId(1),
        shard: ShardIndex(0),
        offset_bytes: 0,
        checksums: Vec::new(),
        seal: Some(SealMeta::default()),
        data_first: true,
    };
    Request {
        tag: Tag(1),
        capability: Capability::default(),
        body,
        route: Some(Box::new(route)),
        payload: Vec::new(),
    }
}

/// The constant is what a request takes, and not much more.
#[test]
fn a_request_takes_no_more_memory_than_is_counted() {
    // Just after the list has grown.
    const REQUESTS: usize = 1025;
    let encoded: Vec<u8> = encode_request(&empty_contribution()).expect("in bounds").concat();
    let mut waiting = Waiting::default();
    let before = USED_BYTES.get();
    for _ in 0..REQUESTS {
        let mut decoder = Decoder::<Request>::new();
        let received = decoder.feed(&mut &encoded[..]).expect("valid").expect("complete");
        // The node passes a copy on.
        waiting.push(received.clone());
    }
    let each = (USED_BYTES.get() - before) / REQUESTS;
    assert!(each <= REQUEST_BYTES, "a request takes {each} bytes and counts {REQUEST_BYTES}");
    assert!(4 * each > 3 * REQUEST_BYTES, "it counts {REQUEST_BYTES} and takes {each} bytes");
    assert_eq!(waiting.bytes(), REQUESTS * REQUEST_BYTES);
}

/// A list of checksums that was emptied keeps its memory, and so does a list of parts.
#[test]
fn the_lists_of_a_request_count_too() {
    let mut request = empty_contribution();
    let RequestBody::ShardWrite { checksums, .. } = &mut request.body else { unreachable!() };
    *checksums = Vec::with_capacity(1024);
    let mut waiting = Waiting::default();
    assert!(waiting.push(request) >= REQUEST_BYTES + 4096);
    let mut request = empty_contribution();
    request.payload = vec![Bytes::from(vec![1; 4096])];
    let before = waiting.bytes();
    let held_bytes = waiting.push(request);
    assert!(held_bytes > REQUEST_BYTES && held_bytes < REQUEST_BYTES + 4096);
    assert_eq!(waiting.bytes() - before, held_bytes + 4096);
}

/// Relays requests without payload to a link that does not open, until it is lost.
fn flood(rig: &mut Rig, to: &LinkTarget) {
    let request = empty_contribution();
    let waiting = |rig: &Rig| rig.links.held_bytes / REQUEST_BYTES;
    for more in waiting(rig)..WAITING_MAX {
        rig.relay(to, &request);
        assert_eq!(waiting(rig), more + 1);
    }
    assert_eq!(rig.lost(), [], "{WAITING_MAX} may wait");
    rig.relay(to, &request);
    assert_eq!(rig.lost(), std::slice::from_ref(to), "more than {WAITING_MAX} requests wait");
    assert_eq!((rig.links.held_bytes, rig.links.links.len()), (0, 0));
}

/// Any process may listen at the address that a writer names, and say nothing.
#[test]
fn requests_without_payload_that_wait_for_a_link_are_bounded() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("silent.sock");
    let _silent = UnixListener::bind(&path).expect("bound");
    let mut rig = Rig::new();
    // It is not connected yet, then it has not greeted, then it is a node that is down.
    flood(&mut rig, &at(&path));
    rig.relay(&at(&path), &empty_contribution());
    rig.connect();
    flood(&mut rig, &at(&path));
    flood(&mut rig, &inside());
}

/// A writer may name many addresses, and each gets its share of the requests.
#[test]
fn all_links_together_hold_a_bounded_number_of_requests() {
    let mut rig = Rig::new();
    let request = empty_contribution();
    let most = at(Path::new("/nowhere/most"));
    let all = HELD_BYTES_MAX / REQUEST_BYTES;
    for _ in 0..WAITING_MAX - 1 {
        rig.relay(&most, &request);
    }
    let others = [1, 2, 3].map(|link| at(Path::new(&format!("/nowhere/{link}"))));
    for count in WAITING_MAX - 1..all {
        rig.relay(&others[count % 3], &request);
    }
    assert_eq!(rig.lost(), [], "{all} may wait");
    rig.relay(&others[0], &request);
    assert_eq!(rig.lost(), [most], "the link for which most waits makes room");
    assert_eq!(rig.links.links.len(), 3);
    assert_eq!(rig.links.held_bytes, (all + 1 - (WAITING_MAX - 1)) * REQUEST_BYTES);
    rig.links.close_all(ME, &mut rig.router, &mut rig.reactor);
    assert_eq!(rig.links.held_bytes, 0);
}

/// What no longer waits counts no longer, however its wait ended.
#[test]
fn a_link_that_opens_holds_nothing_any_more() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("node.sock");
    let _node = UnixListener::bind(&path).expect("bound");
    let mut rig = Rig::new();
    let request = empty_contribution();
    rig.relay(&at(&path), &request);
    let number = rig.connect();
    rig.relay(&at(&path), &request);
    rig.relay(&inside(), &request);
    assert_eq!(rig.links.held_bytes, 3 * REQUEST_BYTES);
    let stat = NodeStat { pool: POOL, node: NodeIndex(2), ..NodeStat::default() };
    let reply = Reply { tag: GREETING, result: Ok(ReplyBody::Stat(stat)), slots_free: 0 };
    rig.links.take_reply(number, reply, &mut rig.router).expect("the node of the link");
    assert_eq!(rig.links.held_bytes, REQUEST_BYTES);
    let here = rig.links.numbers[&(ME.number, inside())];
    let up = NodeMail::Up(NodeIndex(1), link(here));
    rig.links.mail(up, &mut rig.router, &mut rig.reactor);
    assert_eq!(rig.links.held_bytes, 0);
    rig.relay(&inside(), &request);
    rig.relay(&at(&path), &request);
    assert_eq!((rig.links.held_bytes, rig.lost()), (0, Vec::new()));
}

/// A name would make the core wait for its resolution.
#[test]
fn only_literal_addresses_are_connected_to() {
    for literal in ["tcp:127.0.0.1:7", "tcp:[::1]:7", "unix:/run/n"] {
        assert!(endpoint(literal.as_bytes()).is_ok(), "{literal}");
    }
    for other in [&b"tcp:localhost:7"[..], b"tcp:1.2.3.4", b"", b"\xff\xfe", b"unix:"] {
        assert!(endpoint(other).is_err(), "{other:?}");
    }
}
