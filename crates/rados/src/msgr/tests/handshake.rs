//! Tests of the steps up to the first message.

use super::*;

#[test]
fn a_handshake_gives_names_and_features() {
    for mode in [Mode::Crc, Mode::Secure] {
        let auth = || Method { key: Vec::new(), ..method(mode) };
        for (client, server) in [(auth(), auth()), (method(mode), method(mode))] {
            let mut pair = Pair::new(client_options(client), server_options(server));
            pair.client.send(message(1, 10, &[]));
            assert!(!pair.client.is_ready() && pair.client.has_output());
            pair.exchange();
            let features = FEATURE_MSG_ADDR2 | 0b0010;
            let ready = |peer, seen_as| ConnectionEvent::Ready { peer, features, seen_as };
            assert_eq!(events(&mut pair.client), [ready(OSD, None)]);
            let client = EntityName { number: 4100, ..CLIENT };
            let seen_as = Some(address(6800));
            let expected = [ready(client, seen_as), arrived(&message(1, 10, &[]))];
            assert_eq!(events(&mut pair.server), expected);
            assert_eq!(pair.server.peer_addresses().0, [client_options(method(mode)).own_address]);
            assert_eq!(pair.client.peer_addresses().0.len(), 2);
        }
    }
}

#[test]
fn signatures_cover_the_handshake() {
    for (mode, signature_frame_bytes) in [(Mode::Crc, 68), (Mode::Secure, 96)] {
        let pair = || {
            let other = Method { key: vec![8; 16], ..method(mode) };
            Pair::new(client_options(method(mode)), server_options(other))
        };
        let mut whole = pair();
        whole.exchange();
        assert!(matches!(end(&mut whole.client), ConnectionError::Auth(_)));

        // The server's signature is held back, so that the server gets the client's.
        let mut pair = pair();
        for _ in 0..3 {
            let bytes = bytes_of(&mut pair.client);
            pair.server.received(bytes, Nanos(0));
            let mut bytes = bytes_of(&mut pair.server);
            if pair.server.step == connection::Step::Signature {
                bytes.truncate(bytes.len() - signature_frame_bytes);
            }
            pair.client.received(bytes, Nanos(0));
        }
        let bytes = bytes_of(&mut pair.client);
        assert_eq!(bytes.len(), signature_frame_bytes);
        pair.server.received(bytes, Nanos(0));
        assert!(matches!(end(&mut pair.server), ConnectionError::Auth(_)));
    }
}

#[test]
fn an_endless_handshake_closes() {
    struct Endless;
    impl ServerAuth for Endless {
        fn begin(&mut self, _: &AuthRequest) -> ServerAnswer {
            ServerAnswer::More(Bytes::new())
        }
        fn more(&mut self, _: Bytes) -> ServerAnswer {
            ServerAnswer::More(Bytes::new())
        }
    }
    let server = ServerOptions { auth: Box::new(Endless), ..server_options(method(Mode::Crc)) };
    let mut pair = Pair::new(client_options(method(Mode::Crc)), server);
    pair.exchange();
    assert!(pair.client.is_closed() || pair.server.is_closed());
}

fn fails(client: ClientOptions, server: ServerOptions) -> (ConnectionError, Pair) {
    let mut pair = Pair::new(client, server);
    pair.exchange();
    (end(&mut pair.client), pair)
}

#[test]
fn a_wrong_peer_is_refused() {
    let client = || client_options(method(Mode::Crc));
    let server = || server_options(method(Mode::Crc));

    let (error, _) = fails(client(), ServerOptions { features: 0b11, ..server() });
    assert!(error.to_string().contains("osd.3 lacks the feature MSG_ADDR2 (bit 59)"), "{error}");

    let (error, _) = fails(ClientOptions { features: 0b11, ..client() }, server());
    assert!(error.to_string().contains("does not know: MSG_ADDR2 (bit 59)"), "{error}");

    let name = EntityName { number: 4, ..OSD };
    let (error, _) = fails(client(), ServerOptions { own_name: name, ..server() });
    assert!(error.to_string().contains("osd.3 should answer, and osd.4 did"), "{error}");

    let name = EntityName { kind: EntityKind::Monitor, number: 0 };
    let (error, _) = fails(client(), ServerOptions { own_name: name, ..server() });
    assert!(matches!(error, ConnectionError::Peer(_)), "{error}");

    let (error, _) =
        fails(ClientOptions { peer_addresses: Addresses::default(), ..client() }, server());
    assert!(error.to_string().contains("no address"), "{error}");

    let refuses = Method { refuses: true, ..method(Mode::Crc) };
    let (error, pair) = fails(client(), ServerOptions { auth: Box::new(refuses), ..server() });
    assert!(
        error.to_string().contains("the server refuses: not supported (EOPNOTSUPP)"),
        "{error}"
    );
    assert!(!pair.server.is_closed());

    let elsewhere = Addresses(vec![address(1)]);
    let mut pair = Pair::new(client(), ServerOptions { own_addresses: elsewhere, ..server() });
    pair.exchange();
    assert!(matches!(end(&mut pair.server), ConnectionError::Peer(_)));
}

#[test]
fn a_session_cannot_be_gone_on_with() {
    let mut pair = Pair::ready(Mode::Crc);
    let client = client_options(method(Mode::Crc));
    let mut again = Pair::new(client, server_options(method(Mode::Crc)));
    // Stops in front of the last step.
    again.exchange();
    again.server.step = connection::Step::Ident;
    again.server.received(control(tag::Tag::SessionReconnect, &[0; 60]), Nanos(0));
    let reset = bytes_of(&mut again.server);
    assert_eq!(reset, control(tag::Tag::SessionReset, &[1]));
    pair.client.step = connection::Step::Ident;
    pair.client.received(reset, Nanos(0));
    assert_eq!(end(&mut pair.client), ConnectionError::Reset);
}

#[test]
fn a_client_learns_its_address() {
    let mut options = client_options(method(Mode::Crc));
    options.own_address.socket = None;
    let mut pair = Pair::new(options, server_options(method(Mode::Crc)));
    pair.client.received(Bytes::copy_from_slice(&banner::encode()), Nanos(0));
    let hello = payload::Hello { kind: OSD.kind as u8, seen_as: address(4321) };
    pair.client.received(control(tag::Tag::Hello, &hello.encode()), Nanos(0));
    pair.client.step = connection::Step::Signature;
    pair.client.received(control(tag::Tag::AuthSignature, &[0; 32]), Nanos(0));
    let ident = bytes_of(&mut pair.client);
    let own = EntityAddress {
        kind: AddressKind::Any,
        nonce: 77,
        socket: Some(([10, 0, 0, 1], 0).into()),
    };
    let mut expected = crate::encoding::Encoder::new();
    Addresses(vec![own]).encode(&mut expected);
    let expected = expected.finish();
    assert!(ident.windows(expected.len()).any(|window| window == expected));
}

fn unhex(text: &str) -> Bytes {
    let digits: Vec<u8> =
        text.bytes().filter_map(|digit| char::from(digit).to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// What a monitor of Ceph 16.2.15 sent to this crate's client: banner, `HELLO`,
/// `AUTH_BAD_METHOD`.
#[test]
fn golden_bytes_of_a_monitor_are_read() {
    let at = EntityAddress::msgr2(([127, 0, 0, 1], 3411).into(), 0);
    let monitor = EntityName { kind: EntityKind::Monitor, number: -1 };
    let mut client = Connection::client(
        ClientOptions {
            peer: monitor,
            peer_addresses: Addresses(vec![at]),
            ..client_options(method(Mode::Crc))
        },
        Nanos(0),
    );
    client.received(unhex("636570682076320a100001000000000000000000000000000000"), Nanos(0));
    let banner = unhex("636570682076320a100001000000000000000100000000000000");
    let hello = unhex(
        "010124000000080000000000000000000000000000000000000000003fbd6b06\
         080101011c00000002000000000000001000000002000d537f0000010000000000000000ddb986dc",
    );
    assert_eq!(bytes_of(&mut client), [banner, hello].concat());
    let hello = unhex(
        "010124000000080000000000000000000000000000000000000000003fbd6b06\
         010101011c00000002000000000000001000000002008dfc7f0000010000000000000000464289e1",
    );
    client.received(hello, Nanos(0));
    assert_eq!(client.auth.seen_as.and_then(|seen| seen.socket).unwrap().port(), 36348);
    bytes_of(&mut client);
    let bad = unhex(
        "03011c00000008000000000000000000000000000000000000000000e80a8959\
         01000000a1ffffff0100000002000000020000000200000001000000929726e1",
    );
    client.received(bad, Nanos(0));
    let error = end(&mut client).to_string();
    let takes = "it takes the methods [cephx] in the modes [secure, crc]";
    assert!(error.contains(takes), "{error}");
}

#[test]
fn a_mode_that_was_not_offered_is_refused() {
    struct Weak(Method);
    impl ServerAuth for Weak {
        fn begin(&mut self, request: &AuthRequest) -> ServerAnswer {
            ServerAuth::begin(&mut self.0, request)
        }
        fn more(&mut self, payload: Bytes) -> ServerAnswer {
            match ServerAuth::more(&mut self.0, payload) {
                ServerAnswer::Done { global_id, payload, done, .. } => {
                    ServerAnswer::Done { global_id, mode: Mode::Crc, payload, done }
                }
                other => other,
            }
        }
    }
    let auth = Box::new(Weak(method(Mode::Secure)));
    let server = ServerOptions { auth, ..server_options(method(Mode::Secure)) };
    let (error, _) = fails(client_options(method(Mode::Secure)), server);
    assert!(error.to_string().contains("mode 1, which was not offered"), "{error}");
}

#[test]
fn authentication_counts_when_the_owner_says_so() {
    let ours = method(Mode::Crc);
    let commits = Rc::clone(&ours.commits);
    let mut pair = Pair::new(client_options(ours), server_options(method(Mode::Crc)));
    pair.exchange();
    assert!(pair.client.is_ready() && commits.get() == 0);
    pair.client.commit_auth();
    pair.server.commit_auth();
    assert_eq!(commits.get(), 1);
}

#[test]
fn a_refusal_tells_its_kind() {
    let refuses = Method { refuses: true, ..method(Mode::Crc) };
    let mut pair = Pair::new(client_options(method(Mode::Crc)), server_options(refuses));
    pair.exchange();
    let error = end(&mut pair.client);
    assert!(error.to_string().starts_with("authentication failed: the server refuses: "));
    let ConnectionError::Auth(error) = error else { panic!("{error}") };
    assert_eq!(error.kind, AuthErrorKind::Refused);
}
