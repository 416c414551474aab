//! A client that speaks bytes: it logs in at a monitor, gets the map, and writes at an OSD.

use std::net::SocketAddr;

use bytes::Bytes;
use fieldstone_rados::Nanos;
use fieldstone_rados::auth::server::KeyServer;
use fieldstone_rados::auth::{ClientAuth, Credentials, Entity, Mode};
use fieldstone_rados::encoding::{Addresses, EntityAddress, EntityKind, EntityName, Time};
use fieldstone_rados::message::Message;
use fieldstone_rados::message::monitor::{Subscribe, Subscription, WHAT_OSDMAP};
use fieldstone_rados::message::osd::{OsdMaps, OsdOpReply};
use fieldstone_rados::msgr::{ClientOptions, Connection, ConnectionEvent};

use super::tests::{Bench, FEATURES};
use super::{LinkId, Links, Server};

struct Client {
    connection: Connection,
    link: LinkId,
}

fn addresses(kind: EntityKind) -> Addresses {
    let socket = SocketAddr::from(([10, 0, 1, 1], 3300 + kind as u16));
    Addresses(vec![EntityAddress::msgr2(socket, 1)])
}

impl Client {
    fn new(links: &mut Links, server: Server, auth: Box<dyn ClientAuth>) -> Self {
        let (kind, number) = match server {
            Server::Monitor(_) => (EntityKind::Monitor, -1),
            Server::Osd(osd) => (EntityKind::Osd, i64::from(osd)),
        };
        let socket = SocketAddr::from(([10, 0, 0, 1], 0));
        let options = ClientOptions {
            peer: EntityName { kind, number },
            peer_addresses: addresses(kind),
            own_address: EntityAddress::msgr2(socket, 77),
            own_name: EntityName { kind: EntityKind::Client, number: -1 },
            global_seq: 1,
            cookie: 9,
            features: FEATURES,
            auth,
        };
        let connection = Connection::client(options, Nanos(0));
        Self { connection, link: links.accept(server, addresses(kind), Nanos(0)) }
    }

    /// Carries bytes until nothing moves, and returns the messages for the client.
    fn run(&mut self, links: &mut Links) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
            self.connection.take_output(&mut to_server);
            let moved = !to_server.is_empty();
            to_server.into_iter().for_each(|bytes| links.received(self.link, bytes, Nanos(0)));
            links.take_output(self.link, &mut to_client);
            if !moved && to_client.is_empty() {
                return messages;
            }
            to_client.into_iter().for_each(|bytes| self.connection.received(bytes, Nanos(0)));
            while let Some(event) = self.connection.poll_event() {
                match event {
                    ConnectionEvent::Ready { .. } => self.connection.commit_auth(),
                    ConnectionEvent::Message(message) => messages.push(message),
                    ConnectionEvent::Closed(error) => panic!("{error}"),
                }
            }
        }
    }
}

#[test]
fn a_client_writes_through_bytes() {
    for mode in [Mode::Secure, Mode::Crc] {
        let keys = KeyServer::new([1; 32]);
        let key = keys.create_entity(Entity::client("admin"));
        let credentials = Credentials::new(Entity::client("admin"), Some(key), [2; 32]);
        credentials.set_wall_clock(Time { seconds: 1_000_000, nanos: 0 });
        let mut bench = Bench::new();
        let server = bench.primary("object");
        let write = bench.request(0, "object", |ops| {
            ops.write_full(Bytes::from_static(b"data"));
        });
        let mut links = Links::new(bench.cluster, keys, FEATURES);
        let auth = credentials.monitor_auth(&[mode]);
        let mut monitor = Client::new(&mut links, Server::Monitor(0), auth);
        monitor.run(&mut links);
        let what = [(WHAT_OSDMAP.to_owned(), Subscription { start: 0, once: true })].into();
        monitor.connection.send(Subscribe { what, hostname: String::new() }.encode());
        let messages = monitor.run(&mut links);
        assert_eq!(OsdMaps::decode(&messages[0]).expect("it is a map").newest, 1);
        let auth = credentials.service_auth(EntityKind::Osd, &[mode]).expect("it has a ticket");
        let mut osd = Client::new(&mut links, server, auth);
        osd.run(&mut links);
        osd.connection.send(write.encode(FEATURES));
        let messages = osd.run(&mut links);
        let reply = OsdOpReply::decode(&messages[0]).expect("it is a reply");
        assert_eq!(reply.reply.result, 0);
        let object = links.cluster().store().object(&write.object).expect("it was written");
        assert_eq!(object.head.data.read(0, 10).as_ref(), b"data");
        links.lost(osd.link, Nanos(0));
        assert!(!links.take_output(osd.link, &mut Vec::new()));
    }
}
