//! Byte for byte: the handshake and one reply of each kind, written by hand from the specification.

use bytes::Bytes;
use fieldstone_block::{BlockError, Completion, Extent, ExtentKind, Op, Payload, Piece};
use fieldstone_nbd::{Limits, Session, SessionPhase};
use smallvec::smallvec;

use crate::support::{export, exports, feed, feed_in, take, transmitting};

/// Bytes from hexadecimal digits. Blanks are for the reader. Text in quotes stands for itself.
fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        if index % 2 == 1 {
            bytes.extend(part.as_bytes());
            continue;
        }
        let digits: Vec<u32> = part.chars().filter_map(|digit| digit.to_digit(16)).collect();
        bytes.extend(digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()));
    }
    bytes
}

fn one_gib() -> Session {
    let mut disk = export("disk", 1 << 30);
    disk.description = "a disk".into();
    Session::new(exports(vec![disk]), Limits::default())
}

#[test]
fn a_whole_handshake_with_go() {
    let mut session = one_gib();
    assert_eq!(take(&mut session), hex("'NBDMAGIC' 'IHAVEOPT' 0003"));
    assert_eq!(session.phase(), SessionPhase::Negotiating);

    feed(&mut session, &hex("00000003  'IHAVEOPT' 00000008 00000000"));
    assert_eq!(take(&mut session), hex("0003e889045565a9 00000008 00000001 00000000"));

    feed(&mut session, &hex("'IHAVEOPT' 00000003 00000000"));
    let listed = hex("0003e889045565a9 00000003 00000002 0000000e  00000004 'disk' 'a disk'
                      0003e889045565a9 00000003 00000001 00000000");
    assert_eq!(take(&mut session), listed);

    let query = "00000004 'disk' 00000001 0000000f 'base:allocation'";
    feed(&mut session, &hex(&format!("'IHAVEOPT' 0000000a 0000001f {query}")));
    let selected = hex("0003e889045565a9 0000000a 00000004 00000013  00000001 'base:allocation'
                        0003e889045565a9 0000000a 00000001 00000000");
    assert_eq!(take(&mut session), selected);

    // GO with all optional information: name, description, block size.
    feed(&mut session, &hex("'IHAVEOPT' 00000007 00000010  00000004 'disk' 0003 0001 0002 0003"));
    let described = hex("0003e889045565a9 00000007 00000003 0000000c  0000 0000000040000000 0ded
                         0003e889045565a9 00000007 00000003 00000006  0001 'disk'
                         0003e889045565a9 00000007 00000003 00000008  0002 'a disk'
                         0003e889045565a9 00000007 00000003 0000000e
                             0003 00000001 00001000 02000000
                         0003e889045565a9 00000007 00000001 00000000");
    assert_eq!(take(&mut session), described);
    assert!(matches!(session.phase(), SessionPhase::Transmission(_)));
}

#[test]
fn export_name_with_and_without_zeroes() {
    for (client_flags, zeroes) in [("00000001", 124), ("00000003", 0)] {
        let mut session = one_gib();
        take(&mut session);
        feed(&mut session, &hex(client_flags));
        feed(&mut session, &hex("'IHAVEOPT' 00000001 00000004 'disk'"));
        // Without structured replies the server does not offer DF.
        let mut expected = hex("0000000040000000 0d6d");
        expected.extend(vec![0; zeroes]);
        assert_eq!(take(&mut session), expected);
        assert!(matches!(session.phase(), SessionPhase::Transmission(_)));
    }
}

#[test]
fn an_option_refused_and_a_goodbye() {
    let mut session = one_gib();
    take(&mut session);
    feed(&mut session, &hex("00000003 'IHAVEOPT' 00000007 00000008  00000002 'no' 0000"));
    let message = "'no export has this name'";
    let refused = hex(&format!("0003e889045565a9 00000007 80000006 00000017 {message}"));
    assert_eq!(take(&mut session), refused);

    feed(&mut session, &hex("'IHAVEOPT' 00000002 00000000"));
    assert_eq!(session.phase(), SessionPhase::Closing);
    assert_eq!(take(&mut session), hex("0003e889045565a9 00000002 00000001 00000000"));
    assert_eq!(session.phase(), SessionPhase::Closed);
}

/// Sends one request, completes it with `result`, and returns the reply.
fn exchange(structured: bool, wire: &str, op: Op, result: Result<Payload, BlockError>) -> Vec<u8> {
    let list = exports(vec![export("disk", 1 << 30)]);
    let mut session = transmitting(list, structured, Limits::default());
    let mut requests = feed_in(&mut session, &hex(wire), 5);
    assert_eq!(requests.len(), 1);
    let request = requests.remove(0);
    assert_eq!(request.op, op);
    assert_eq!(take(&mut session), b"", "nothing is sent before the completion");
    session.complete(Completion::of(&request, result));
    assert_eq!(session.in_flight(), 0);
    take(&mut session)
}

const READ_8: &str = "25609513 0000 0000 a1a2a3a4a5a6a7a8 0000000000001000 00000008";
const READ_2K: &str = "25609513 0000 0000 a1a2a3a4a5a6a7a8 0000000000001000 00000800";

#[test]
fn simple_replies() {
    let data =
        Payload::Data(smallvec![Piece::Zeroes(2), Piece::Data(Bytes::from_static(b"stones"))]);
    assert_eq!(
        exchange(false, READ_8, Op::Read, Ok(data)),
        hex("67446698 00000000 a1a2a3a4a5a6a7a8 0000 'stones'")
    );
    assert_eq!(
        exchange(false, READ_8, Op::Read, Err(BlockError::Io("gone".into()))),
        hex("67446698 00000005 a1a2a3a4a5a6a7a8")
    );
    let write = "25609513 0001 0001 0000000000000007 0000000000001000 00000004 'data'";
    for structured in [false, true] {
        assert_eq!(
            exchange(structured, write, Op::Write, Ok(Payload::None)),
            hex("67446698 00000000 0000000000000007")
        );
    }
}

#[test]
fn structured_replies() {
    let data = Payload::Data(smallvec![Piece::Data(Bytes::from_static(b"8 bytes."))]);
    assert_eq!(
        exchange(true, READ_8, Op::Read, Ok(data)),
        hex("668e33ef 0001 0001 a1a2a3a4a5a6a7a8 00000010  0000000000001000 '8 bytes.'")
    );

    let half = Bytes::from(vec![0x55; 1024]);
    let data = Payload::Data(smallvec![Piece::Data(half.clone()), Piece::Zeroes(1024)]);
    let mut expected = hex("668e33ef 0000 0001 a1a2a3a4a5a6a7a8 00000408  0000000000001000");
    expected.extend(&half);
    expected.extend(hex("668e33ef 0001 0002 a1a2a3a4a5a6a7a8 0000000c  0000000000001400 00000400"));
    assert_eq!(exchange(true, READ_2K, Op::Read, Ok(data.clone())), expected);

    // The same with DF: one chunk, with the zeroes as bytes.
    let df = READ_2K.replace("0000 0000 a1", "0004 0000 a1");
    let mut expected = hex("668e33ef 0001 0001 a1a2a3a4a5a6a7a8 00000808  0000000000001000");
    expected.extend(&half);
    expected.extend([0; 1024]);
    assert_eq!(exchange(true, &df, Op::Read, Ok(data)), expected);

    let zeroes = Payload::Data(smallvec![Piece::Zeroes(8)]);
    assert_eq!(
        exchange(true, READ_8, Op::Read, Ok(zeroes)),
        hex("668e33ef 0001 0002 a1a2a3a4a5a6a7a8 0000000c  0000000000001000 00000008")
    );

    let message = "'input/output error: gone'";
    assert_eq!(
        exchange(true, READ_8, Op::Read, Err(BlockError::Io("gone".into()))),
        hex(&format!("668e33ef 0001 8001 a1a2a3a4a5a6a7a8 0000001e  00000005 0018 {message}"))
    );

    let status = "25609513 0000 0007 0000000000000009 0000000000000000 00003000";
    let extents = [ExtentKind::Data, ExtentKind::Zero, ExtentKind::Hole]
        .map(|kind| Extent { len_bytes: 4096, kind });
    assert_eq!(
        exchange(true, status, Op::Extents, Ok(Payload::Extents(extents.to_vec()))),
        hex("668e33ef 0001 0005 0000000000000009 0000001c  00000001
             00001000 00000000  00001000 00000002  00001000 00000003")
    );
}

#[test]
fn replies_of_the_session_itself() {
    let list = exports(vec![export("disk", 1 << 30)]);
    let mut session = transmitting(list.clone(), true, Limits::default());
    // A read of no bytes, then an unknown command.
    feed(&mut session, &hex("25609513 0000 0000 0000000000000001 0000000000000000 00000000"));
    assert_eq!(take(&mut session), hex("668e33ef 0001 0000 0000000000000001 00000000"));
    feed(&mut session, &hex("25609513 0000 0063 0000000000000002 0000000000000000 00000000"));
    assert_eq!(
        take(&mut session),
        hex("668e33ef 0001 8001 0000000000000002 00000015  00000016 000f 'unknown command'")
    );

    let mut session = transmitting(list, false, Limits::default());
    feed(&mut session, &hex("25609513 0000 0000 0000000000000001 0000000000000000 00000000"));
    assert_eq!(take(&mut session), hex("67446698 00000000 0000000000000001"));
}
