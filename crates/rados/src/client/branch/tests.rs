//! A branch and an OSD that floods it, without the rest of the client.

use std::net::SocketAddr;

use fieldstone_crush::osdmap::{PgId, PoolId};
use smallvec::smallvec;

use super::*;
use crate::auth::none::{NoneServer, NoneServiceAuth};
use crate::auth::{Credentials, Entity, Mode};
use crate::client::{Client, ClientOptions};
use crate::encoding::{Addresses, EntityKind, EntityName, Time};
use crate::message::features::SUPPORTED;
use crate::msgr::{Connection, ServerOptions};
use crate::op::{OpResult, Reply};

const OSD: OsdId = OsdId(3);
const MESSAGE_BYTES: usize = 1 << 20;
const NOW: Nanos = Nanos(0);

fn addresses() -> Addresses {
    Addresses(vec![EntityAddress::msgr2(SocketAddr::from(([10, 0, 0, 1], 6800)), 1)])
}

/// An OSD's end of the link.
struct Flood {
    server: Connection,
    link: LinkId,
}

impl Flood {
    /// A branch with a link that stands.
    fn new() -> (Branch, Self) {
        let auth = NoneServiceAuth::new(Entity::client("admin"), 4100, &[Mode::Crc]);
        let name = EntityName { kind: EntityKind::Client, number: 4100 };
        let own = EntityAddress::msgr2(SocketAddr::from(([10, 0, 0, 9], 0)), 7);
        let opening = Links::new(1, own).opening(OSD, name, &addresses(), Box::new(auth));
        let mut branch = Branch::default();
        branch.take(vec![Errand(ErrandKind::Open(Box::new(opening)))]);
        branch.run(NOW);
        let Some(Action::Connect(link, _)) = branch.poll_action() else { panic!("no connect") };
        let options = ServerOptions {
            own_name: EntityName { kind: EntityKind::Osd, number: 3 },
            own_addresses: addresses(),
            features: SUPPORTED,
            cookie: 1,
            auth: Box::new(NoneServer { new_global_id: 1 }),
        };
        let mut flood = Self { server: Connection::server(options, NOW), link };
        (0..10).for_each(|_| drop(flood.exchange(&mut branch)));
        let told = branch.take_reports();
        let [Report { kind: ReportKind::Link { event: ConnectionEvent::Ready { .. }, .. }, .. }] =
            &told[..]
        else {
            panic!("the link does not stand: {told:?}")
        };
        (branch, flood)
    }

    /// Moves bytes both ways, if the branch wants them. Gives the receive buffer.
    fn exchange(&mut self, branch: &mut Branch) -> Bytes {
        branch.outgoing(&mut Vec::new(), |_, parts| {
            self.server.received(std::mem::take(parts).concat().into(), NOW);
        });
        while self.server.poll_event().is_some() {}
        if !branch.wants_input() {
            return Bytes::new();
        }
        let mut parts = Vec::new();
        self.server.take_output(&mut parts);
        let bytes = Bytes::from(parts.concat());
        if !bytes.is_empty() {
            branch.received(self.link, bytes.clone(), NOW);
        }
        branch.run(NOW);
        bytes
    }

    /// Sends messages that no one has asked for, until the branch wants no more. Gives the number.
    fn fill(&mut self, branch: &mut Branch, most: usize) -> usize {
        for sent in 0..most {
            if !branch.wants_input() {
                return sent;
            }
            let front = Bytes::from(vec![0; MESSAGE_BYTES]);
            self.server.send(Message::new(MessageKind::OsdMap, 4, 1, front));
            self.exchange(branch);
        }
        most
    }
}

fn total(reports: &[Report]) -> u64 {
    reports.iter().map(|report| report.bytes).sum()
}

#[test]
fn an_osd_that_floods_a_branch_is_held_back() {
    let (mut branch, mut flood) = Flood::new();
    let sent = flood.fill(&mut branch, 1000);
    let most = UNACKNOWLEDGED_BYTES_MAX + 2 * MESSAGE_BYTES as u64;
    let reports = branch.take_reports();
    let told = total(&reports);
    assert!((UNACKNOWLEDGED_BYTES_MAX..most).contains(&(told + REPORT_BYTES_MIN)), "{told}");
    assert!(sent < 260, "{sent} messages were taken");
    // Those that were on their way stay in the link, and no report comes.
    assert!(!branch.run(NOW) && branch.take_reports().is_empty());
    // The client has acknowledged a part.
    branch.take(vec![Errand(ErrandKind::Acknowledged(ACKNOWLEDGED_STEP_BYTES))]);
    branch.run(NOW);
    assert!(branch.wants_input());
    let more = flood.fill(&mut branch, 1000);
    assert!((28..32).contains(&more), "{more}");
}

/// A short message takes as much as the receive buffer that it keeps.
#[test]
fn short_messages_are_not_taken_for_cheap() {
    let (mut branch, mut flood) = Flood::new();
    let mut count = 0_u64;
    while branch.wants_input() {
        flood.server.send(Message::new(MessageKind::OsdMap, 4, 1, Bytes::from_static(b"x")));
        flood.exchange(&mut branch);
        count += 1;
    }
    assert!(count <= UNACKNOWLEDGED_BYTES_MAX / REPORT_BYTES_MIN, "{count}");
}

/// A receive buffer is longer than the messages in it. It is free again while the client is slow.
#[test]
fn short_messages_keep_no_receive_buffer_while_much_is_unacknowledged() {
    let (mut branch, mut flood) = Flood::new();
    let mut kept = 0;
    loop {
        let unacknowledged = branch.unacknowledged_bytes;
        let front = Bytes::from_static(&[7; 4096]);
        flood.server.send(Message::new(MessageKind::OsdMap, 4, 1, front));
        let buffer = flood.exchange(&mut branch);
        if buffer.is_unique() {
            assert!(unacknowledged >= COPY_UNACKNOWLEDGED_BYTES, "{unacknowledged}");
            break;
        }
        assert!(unacknowledged < COPY_UNACKNOWLEDGED_BYTES, "{kept} buffers are kept");
        kept += 1;
    }
    assert!(kept > 0, "a client that hears everything in time costs no copy");
    let reports = branch.take_reports();
    let Some(Report { kind: ReportKind::Link { event, .. }, .. }) = reports.last() else {
        panic!("nothing is told")
    };
    let ConnectionEvent::Message(message) = event else { panic!("{event:?}") };
    assert_eq!(message.front, [7; 4096][..]);
}

/// A result of one byte keeps the message's data, also those that belong to no operation.
#[test]
fn an_answer_counts_with_all_its_data() {
    let (mut branch, mut flood) = Flood::new();
    let result = OpResult { result: 0, data: Bytes::from_static(b"x") };
    let answer = OsdOpReply {
        pg: PgId { pool: PoolId(1), seed: 0 },
        object: Bytes::from_static(b"object"),
        flags: 0,
        map_epoch: 1,
        attempt: 0,
        reply: Reply { ops: smallvec![result], ..Reply::default() },
        redirect: None,
    };
    let mut count = 0_u64;
    while branch.wants_input() {
        let mut message = answer.encode(SUPPORTED);
        message.data = smallvec![Bytes::from(vec![b'x'; MESSAGE_BYTES])];
        flood.server.send(message);
        flood.exchange(&mut branch);
        count += 1;
    }
    assert!(count <= UNACKNOWLEDGED_BYTES_MAX / MESSAGE_BYTES as u64, "{count} are kept");
    let reports = branch.take_reports();
    let Some(Report { kind: ReportKind::Replied { reply: Ok(reply), .. }, .. }) = reports.last()
    else {
        panic!("it is no answer: {reports:?}")
    };
    assert_eq!(reply.reply.ops[0].data, b"x"[..]);
}

#[test]
fn the_client_tells_what_it_has_acknowledged() {
    let options = ClientOptions {
        monitors: vec![addresses()],
        credentials: Credentials::new(Entity::client("admin"), None, [1; 32]),
        monitor_modes: vec![Mode::Crc],
        osd_modes: vec![Mode::Crc],
        nonce: 1,
        seed: 1,
        monitor_timeout: NOW,
        osd_timeout: NOW,
        connect_timeout: NOW,
        unix_nanos_at_zero: 0,
        hostname: "host".to_owned(),
        crush_location: Vec::new(),
        note: String::new(),
    };
    let (mut client, _cluster) = Client::new(options, NOW);
    client.set_branches(2);
    let report = |bytes: u64| {
        let event = ConnectionEvent::Message(Message::default());
        // The session is over: what it told is dropped, and counts all the same.
        Report::new(ReportKind::Link { osd: OSD, session: 7, event }, bytes)
    };
    let acknowledged = |client: &mut Client| {
        client.run(NOW, Time::default());
        let acknowledged =
            client.take_errands(BranchId(1)).into_iter().filter_map(|Errand(kind)| {
                let ErrandKind::Acknowledged(bytes) = kind else { return None };
                Some(bytes)
            });
        acknowledged.collect::<Vec<_>>()
    };
    client.reported(BranchId(1), vec![report(ACKNOWLEDGED_STEP_BYTES / 2)]);
    assert!(acknowledged(&mut client).is_empty());
    client.reported(BranchId(1), vec![report(ACKNOWLEDGED_STEP_BYTES / 2), report(5)]);
    assert_eq!(acknowledged(&mut client), [ACKNOWLEDGED_STEP_BYTES + 2 * REPORT_BYTES_MIN]);
    assert!(client.take_errands(BranchId(0)).is_empty());
}
