//! The client refuses replies that a server must not send. Otherwise no test with it would notice
//! them.

use fieldstone_nbd::client::{AllocationExtent, Client, ClientError, Config, Outcome};
use fieldstone_nbd::wire::{chunk, cmd_flag, rep};
use fieldstone_nbd::{Errno, Limits, Session};

use crate::support::{export, exports, feed, take};

/// A client past the handshake.
fn ready(config: Config) -> Client {
    let mut session = Session::new(exports(vec![export("disk", 1 << 20)]), Limits::default());
    let mut client = Client::new(config);
    while client.about().is_none() {
        client.receive(&take(&mut session)).unwrap();
        feed(&mut session, &sent(&mut client));
    }
    client
}

fn sent(client: &mut Client) -> Vec<u8> {
    let mut out = Vec::new();
    client.output(&mut out);
    out.concat()
}

fn chunk_of(cookie: u64, chunk_type: u16, last: bool, payload: &[u8]) -> Vec<u8> {
    let mut bytes = 0x668e_33efu32.to_be_bytes().to_vec();
    bytes.extend(u16::from(last).to_be_bytes());
    bytes.extend(chunk_type.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn data(cookie: u64, offset: u64, len: usize, last: bool) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], &vec![9; len]].concat();
    chunk_of(cookie, chunk::OFFSET_DATA, last, &payload)
}

fn hole(cookie: u64, offset: u64, len: u32, last: bool) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    chunk_of(cookie, chunk::OFFSET_HOLE, last, &payload)
}

/// The client's result for `chunks` as the reply to a read of 1000 bytes at 5000.
fn read_answered(flags: u16, chunks: &[Vec<u8>]) -> Result<Outcome, ClientError> {
    let mut client = ready(Config::full("disk"));
    assert_eq!(client.read(5000, 1000, flags), 1);
    client.receive(&chunks.concat())?;
    Ok(client.next_reply()?.expect("the reply is complete").outcome)
}

#[test]
fn content_chunks_must_tile_the_range() {
    let mut expected = vec![0; 1000];
    expected[400..700].fill(9);
    // In any order, closed by a chunk without content.
    let good = [
        data(1, 5400, 300, false),
        hole(1, 5700, 300, false),
        hole(1, 5000, 400, false),
        chunk_of(1, chunk::NONE, true, &[]),
    ];
    assert_eq!(read_answered(0, &good), Ok(Outcome::Data(expected.into())));
    let bad: [&[Vec<u8>]; 7] = [
        &[data(1, 5000, 999, true)],
        &[data(1, 5001, 999, true)],
        &[data(1, 5000, 600, false), hole(1, 5500, 500, true)],
        &[data(1, 4999, 1000, true)],
        &[data(1, 5500, 501, true)],
        &[hole(1, 5000, 0, false), data(1, 5000, 1000, true)],
        &[chunk_of(1, chunk::NONE, true, &[])],
    ];
    for chunks in bad {
        assert!(matches!(read_answered(0, chunks), Err(ClientError::Malformed(_))), "{chunks:?}");
    }
    let split = [data(1, 5000, 500, false), data(1, 5500, 500, true)];
    assert!(read_answered(0, &split).is_ok());
    assert!(matches!(read_answered(cmd_flag::DF, &split), Err(ClientError::Malformed(_))));
}

#[test]
fn error_chunks_fail_the_reply() {
    let error = |message_len: u16, text: &[u8]| {
        let payload = [&5u32.to_be_bytes()[..], &message_len.to_be_bytes(), text].concat();
        chunk_of(1, chunk::ERROR, true, &payload)
    };
    let failed = Outcome::Failed { errno: Errno::Io, message: "gone".into() };
    assert_eq!(read_answered(0, &[error(4, b"gone")]), Ok(failed.clone()));
    assert_eq!(
        read_answered(0, &[data(1, 5000, 10, false), error(4, b"gone")]),
        Ok(failed.clone())
    );
    let with_offset = [&5u32.to_be_bytes()[..], &[0, 4], b"gone", &5000u64.to_be_bytes()].concat();
    let chunks = [chunk_of(1, chunk::ERROR_OFFSET, true, &with_offset)];
    assert_eq!(read_answered(0, &chunks), Ok(failed));
    assert!(read_answered(0, &[error(5, b"gone")]).is_err());
}

#[test]
fn replies_must_fit_the_command() {
    let unknown = read_answered(0, &[data(7, 5000, 1000, true)]);
    assert_eq!(unknown, Err(ClientError::UnknownCookie(7)));
    let simple = [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &1u64.to_be_bytes()].concat();
    assert!(matches!(read_answered(0, &[simple]), Err(ClientError::Malformed(_))));
    let magic = ClientError::Magic { what: "reply", magic: 0x0102_0304 };
    assert_eq!(read_answered(0, &[vec![1, 2, 3, 4, 5]]), Err(magic));
    assert!(read_answered(0, &[chunk_of(1, 77, true, &[])]).is_err());
}

#[test]
fn block_status_replies_are_checked() {
    let answered = |flags, words: &[u32]| {
        let mut client = ready(Config::full("disk"));
        let cookie = client.block_status(0, 1000, flags);
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        client.receive(&chunk_of(cookie, chunk::BLOCK_STATUS, true, &payload)).unwrap();
        client.next_reply().map(|reply| reply.expect("complete").outcome)
    };
    let two = vec![
        AllocationExtent { len_bytes: 400, flags: 0 },
        AllocationExtent { len_bytes: 9000, flags: 3 },
    ];
    assert_eq!(answered(0, &[1, 400, 0, 9000, 3]), Ok(Outcome::Extents(two)));
    assert!(answered(cmd_flag::REQ_ONE, &[1, 400, 0, 600, 3]).is_err());
    assert!(answered(cmd_flag::REQ_ONE, &[1, 1001, 0]).is_err());
    assert!(answered(0, &[2, 1000, 0]).is_err(), "another context");
    assert!(answered(0, &[1]).is_err(), "no extent");
    assert!(answered(0, &[1, 0, 0]).is_err(), "empty extent");
    assert!(answered(0, &[1, 1000, 0, 1, 3]).is_err(), "an extent behind the range");
    assert!(answered(0, &[1, 1000]).is_err(), "half a descriptor");
}

#[test]
fn failed_handshakes_say_why() {
    let mut client = Client::new(Config::full("disk"));
    let error = client.receive(b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0").unwrap_err();
    assert_eq!(error, ClientError::Magic { what: "greeting", magic: 0x4202_8186_1253 });

    let mut session = Session::new(exports(vec![export("disk", 1 << 20)]), Limits::default());
    let mut client = Client::new(Config::simple("missing"));
    client.receive(&take(&mut session)).unwrap();
    feed(&mut session, &sent(&mut client));
    let Err(ClientError::Refused { reply_type, message, .. }) = client.receive(&take(&mut session))
    else {
        panic!("there is no such export");
    };
    assert_eq!((reply_type, message.as_str()), (rep::ERR_UNKNOWN, "no export has this name"));
    assert_eq!(client.about(), None);
}
