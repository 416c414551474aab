//! Every command and flag: the request at the backend, and the client's error.

use bytes::Bytes;
use fieldstone_block::{
    BlockError, Completion, Extent, ExtentKind, Op, Payload, Piece, RequestFlags,
};
use fieldstone_nbd::client::{Config, Outcome};
use fieldstone_nbd::wire::{cmd, cmd_flag};
use fieldstone_nbd::{Errno, Export, Limits, Session, SessionPhase, Violation};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use smallvec::smallvec;

use crate::support::{
    Pair, export, exports, feed, feed_in, go_data, haggling, option, request, take, transmitting,
};

const SIZE: u64 = 1 << 20;
const COOKIE: u64 = 0x1122_3344_5566_7788;

fn session(structured: bool) -> Session {
    transmitting(exports(vec![export("disk", SIZE)]), structured, Limits::default())
}

fn read_only() -> Session {
    let list = exports(vec![Export { read_only: true, ..export("disk", SIZE) }]);
    transmitting(list, true, Limits::default())
}

/// The error number of the single waiting reply; zero for success.
fn errno(reply: &[u8]) -> u32 {
    let field = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().unwrap());
    match field(0) {
        0x6744_6698 => {
            assert_eq!(reply.len(), 16);
            assert_eq!(reply[8..16], COOKIE.to_be_bytes());
            field(4)
        }
        0x668e_33ef => {
            assert_eq!(reply[8..16], COOKIE.to_be_bytes());
            assert_eq!(field(4), 0x0001_8001, "a final error chunk");
            assert_eq!(reply.len(), 20 + field(16) as usize);
            let message = std::str::from_utf8(&reply[26..]).unwrap();
            assert!(message.len() > 5, "an error must explain itself");
            field(20)
        }
        magic => panic!("unknown reply {magic:x}"),
    }
}

/// Sends a request that the session must refuse by itself. Returns its error.
fn refused(session: &mut Session, flags: u16, command: u16, offset: u64, len: u32) -> Errno {
    let mut bytes = request(flags, command, COOKIE, offset, len);
    if command == cmd::WRITE {
        bytes.resize(bytes.len() + len as usize, 0xee);
    }
    assert!(feed_in(session, &bytes, 9999).is_empty());
    let errno = errno(&take(session));
    // The session must still be in step with the stream.
    let next = feed(session, &request(0, cmd::FLUSH, 1, 0, 0));
    assert_eq!(next.len(), 1);
    session.complete(Completion::of(&next[0], Ok(Payload::None)));
    take(session);
    assert_ne!(errno, 0);
    Errno::from_code(errno)
}

#[test]
fn requests_reach_the_backend_as_they_were_sent() {
    let flags = |fua, no_hole, fast_zero| RequestFlags { fua, no_hole, fast_zero };
    let none = flags(false, false, false);
    let all_zeroing = cmd_flag::FUA | cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO;
    let cases = [
        (0, cmd::READ, Op::Read, none),
        (cmd_flag::FUA, cmd::READ, Op::Read, none),
        (cmd_flag::DF, cmd::READ, Op::Read, none),
        (0, cmd::WRITE, Op::Write, none),
        (cmd_flag::FUA, cmd::WRITE, Op::Write, flags(true, false, false)),
        (0, cmd::TRIM, Op::Trim, none),
        (cmd_flag::FUA, cmd::TRIM, Op::Trim, flags(true, false, false)),
        (cmd_flag::NO_HOLE, cmd::WRITE_ZEROES, Op::WriteZeroes, flags(false, true, false)),
        (cmd_flag::FAST_ZERO, cmd::WRITE_ZEROES, Op::WriteZeroes, flags(false, false, true)),
        (all_zeroing, cmd::WRITE_ZEROES, Op::WriteZeroes, flags(true, true, true)),
        (cmd_flag::REQ_ONE, cmd::BLOCK_STATUS, Op::Extents, none),
        (cmd_flag::FUA, cmd::BLOCK_STATUS, Op::Extents, none),
        (0, cmd::CACHE, Op::Read, none),
        (cmd_flag::FUA, cmd::CACHE, Op::Read, none),
    ];
    for (wire_flags, command, op, flags) in cases {
        let mut session = session(true);
        let mut bytes = request(wire_flags, command, COOKIE, 4097, 1000);
        if command == cmd::WRITE {
            bytes.extend((0..1000u32).map(|at| at.to_le_bytes()[0]));
        }
        let requests = feed_in(&mut session, &bytes, 11);
        let [request] = &requests[..] else { panic!("{command} gave {requests:?}") };
        assert_eq!((request.op, request.flags), (op, flags));
        assert_eq!((request.offset_bytes, request.len_bytes), (4097, 1000));
        if op == Op::Write {
            assert_eq!(request.data, bytes[28..]);
        } else {
            assert!(request.data.is_empty());
        }
    }
    for wire_flags in [0, cmd_flag::FUA] {
        let requests = feed(&mut session(false), &request(wire_flags, cmd::FLUSH, COOKIE, 0, 0));
        assert_eq!(requests[0].op, Op::Flush);
    }
}

#[test]
fn flags_that_do_not_belong_to_a_command_are_invalid() {
    for structured in [false, true] {
        let mut session = session(structured);
        for command in 0..=cmd::BLOCK_STATUS {
            if command == cmd::DISC {
                continue;
            }
            let valid = cmd_flag::FUA
                | match command {
                    cmd::READ if structured => cmd_flag::DF,
                    cmd::WRITE_ZEROES => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
                    cmd::BLOCK_STATUS => cmd_flag::REQ_ONE,
                    _ => 0,
                };
            for bit in 0..16 {
                if valid & (1 << bit) == 0 {
                    let errno = refused(&mut session, 1 << bit, command, 0, 64);
                    assert_eq!(errno, Errno::Inval, "command {command} flag {bit}");
                }
            }
        }
    }
}

#[test]
fn unknown_commands_are_invalid() {
    let mut session = session(true);
    for command in [8, 9, 100, u16::MAX] {
        assert_eq!(refused(&mut session, 0, command, 0, 512), Errno::Inval);
    }
}

#[test]
fn ranges_past_the_end() {
    let cases = [
        (cmd::READ, Errno::Inval),
        (cmd::WRITE, Errno::NoSpc),
        (cmd::TRIM, Errno::Inval),
        (cmd::CACHE, Errno::Inval),
        (cmd::WRITE_ZEROES, Errno::NoSpc),
        (cmd::BLOCK_STATUS, Errno::Inval),
    ];
    for (command, expected) in cases {
        let mut session = session(true);
        for (offset, len) in
            [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 511, 512), (0, SIZE as u32 + 1)]
        {
            assert_eq!(refused(&mut session, 0, command, offset, len), expected, "{command}");
        }
        let mut bytes = request(0, command, COOKIE, SIZE - 1, 1);
        bytes.extend(if command == cmd::WRITE { &[7][..] } else { &[] });
        assert_eq!(feed(&mut session, &bytes).len(), 1, "the last byte belongs to the device");
    }
}

#[test]
fn read_only_exports_refuse_to_write() {
    let mut session = read_only();
    for command in [cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
        assert_eq!(refused(&mut session, 0, command, 0, 512), Errno::Perm);
        assert_eq!(refused(&mut session, cmd_flag::FUA, command, 0, 100_000), Errno::Perm);
    }
    assert_eq!(feed(&mut session, &request(0, cmd::READ, COOKIE, 0, 512)).len(), 1);
}

#[test]
fn block_status_needs_a_context() {
    let mut session = session(false);
    assert_eq!(refused(&mut session, 0, cmd::BLOCK_STATUS, 0, 512), Errno::Inval);
    let mut session = haggling(exports(vec![export("disk", SIZE)]), Limits::default());
    feed(&mut session, &option(8, &[]));
    feed(&mut session, &option(7, &go_data("disk", &[])));
    take(&mut session);
    assert_eq!(refused(&mut session, 0, cmd::BLOCK_STATUS, 0, 512), Errno::Inval);
}

#[test]
fn requests_of_no_bytes() {
    for structured in [false, true] {
        let mut session = session(structured);
        for command in [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES] {
            for offset in [0, 77, SIZE] {
                assert!(feed(&mut session, &request(0, command, COOKIE, offset, 0)).is_empty());
                let reply = take(&mut session);
                if structured && command == cmd::READ {
                    assert_eq!(reply.len(), 20);
                    assert_eq!(reply[4..8], [0, 1, 0, 0], "a final chunk of type NONE");
                } else {
                    assert_eq!(errno(&reply), 0);
                }
            }
            refused(&mut session, 0, command, SIZE + 1, 0);
        }
        assert_eq!(refused(&mut session, 0, cmd::BLOCK_STATUS, 0, 0), Errno::Inval);
        assert_eq!(refused(&mut session, 0, cmd::FLUSH, 1, 0), Errno::Inval);
        assert_eq!(refused(&mut session, 0, cmd::FLUSH, 0, 1), Errno::Inval);
    }
}

#[test]
fn payloads_over_32_mib() {
    const TOO_LONG: u32 = (32 << 20) + 1;
    let list = || exports(vec![export("disk", 1 << 40)]);
    for structured in [false, true] {
        let mut session = transmitting(list(), structured, Limits::default());
        let read = if structured { Errno::Overflow } else { Errno::Inval };
        assert_eq!(refused(&mut session, 0, cmd::READ, 0, TOO_LONG), read);
        assert_eq!(refused(&mut session, 0, cmd::CACHE, 0, TOO_LONG), Errno::Overflow);
        assert_eq!(refused(&mut session, 0, cmd::WRITE, 0, TOO_LONG), Errno::Inval);
        assert!(session.memory_bytes() < 1 << 20);
        // Commands without payload have no such bound.
        for command in [cmd::TRIM, cmd::WRITE_ZEROES] {
            let requests = feed(&mut session, &request(0, command, COOKIE, 0, u32::MAX));
            assert_eq!(requests[0].len_bytes, u32::MAX);
        }
        feed(&mut session, &request(0, cmd::WRITE, COOKIE, 0, (64 << 20) + 1));
        let limit_bytes = 64 << 20;
        let len_bytes = limit_bytes + 1;
        let violation = Violation::PayloadTooLong { len_bytes, limit_bytes };
        assert_eq!(session.violation(), Some(&violation));
        assert_eq!(session.phase(), SessionPhase::Closed);
    }
}

#[test]
fn bad_request_magic_ends_the_session_but_keeps_queued_replies() {
    let mut session = session(true);
    let good = request(0, cmd::WRITE, COOKIE, 0, 0);
    let mut bad = request(0, cmd::READ, COOKIE, 0, 512);
    bad[3] ^= 0x80;
    assert!(feed(&mut session, &[good, bad].concat()).is_empty());
    assert_eq!(session.violation(), Some(&Violation::RequestMagic { magic: 0x2560_9593 }));
    assert_eq!(session.phase(), SessionPhase::Closing);
    assert_eq!(errno(&take(&mut session)), 0);
    assert_eq!(session.phase(), SessionPhase::Closed);
    assert!(!session.wants_input());
}

#[test]
fn block_errors_become_error_numbers() {
    let range = BlockError::OutOfRange { offset_bytes: 0, len_bytes: 1, size_bytes: 0 };
    let other = |errno| [errno; 4];
    // Columns: read, write, fast write-zeroes, flush.
    let table = [
        (range, [Errno::Inval, Errno::NoSpc, Errno::NoSpc, Errno::Inval]),
        (BlockError::NoSpace, other(Errno::NoSpc)),
        (
            BlockError::NotSupported("zeroing"),
            [Errno::Inval, Errno::Inval, Errno::NotSup, Errno::Inval],
        ),
        (BlockError::Io("two nodes are gone".into()), other(Errno::Io)),
        (BlockError::Fenced("epoch 9".into()), other(Errno::Perm)),
        (BlockError::ReadOnly, other(Errno::Perm)),
        (BlockError::ShuttingDown, other(Errno::Shutdown)),
    ];
    for (error, expected) in table {
        for structured in [false, true] {
            let mut session = session(structured);
            let zeroing = request(cmd_flag::FAST_ZERO, cmd::WRITE_ZEROES, COOKIE, 0, 1);
            let write = [request(0, cmd::WRITE, COOKIE, 0, 1), vec![1]].concat();
            let read = request(0, cmd::READ, COOKIE, 0, 1);
            let flush = request(0, cmd::FLUSH, COOKIE, 0, 0);
            for (bytes, expected) in [read, write, zeroing, flush].iter().zip(expected) {
                let request = feed(&mut session, bytes).remove(0);
                let result = Err(error.clone());
                session.complete(Completion::of(&request, result));
                let reply = take(&mut session);
                assert_eq!(errno(&reply), expected.code());
                if structured {
                    assert_eq!(reply[26..], *error.to_string().as_bytes());
                }
            }
        }
    }
}

#[test]
fn long_error_messages_are_cut_between_characters() {
    let mut session = session(true);
    let request = feed(&mut session, &request(0, cmd::READ, COOKIE, 0, 1)).remove(0);
    let result = Err(BlockError::Io("ü".repeat(5000)));
    session.complete(Completion::of(&request, result));
    let reply = take(&mut session);
    assert_eq!(errno(&reply), Errno::Io.code());
    assert!((1000..=1024 + 26).contains(&reply.len()));
}

/// The reply to a read of `len` bytes (or to a block status) that the backend answers with
/// `payload`.
fn misbehave(command: u16, len: u32, payload: Payload) -> Vec<u8> {
    let mut session = session(true);
    let request = feed(&mut session, &request(0, command, COOKIE, 0, len)).remove(0);
    session.complete(Completion::of(&request, Ok(payload)));
    take(&mut session)
}

#[test]
fn a_backend_that_breaks_its_contract_costs_the_client_an_error_only() {
    let data = |len: usize| Payload::Data(smallvec![Piece::Data(Bytes::from(vec![1; len]))]);
    for len in [0, 511, 513] {
        assert_eq!(errno(&misbehave(cmd::READ, 512, data(len))), Errno::Io.code());
    }
    assert_eq!(errno(&misbehave(cmd::READ, 512, Payload::None)), Errno::Io.code());
    let two = Payload::Data(smallvec![Piece::Zeroes(u32::MAX), Piece::Zeroes(513)]);
    assert_eq!(errno(&misbehave(cmd::READ, 512, two)), Errno::Io.code());
    assert_eq!(errno(&misbehave(cmd::BLOCK_STATUS, 512, Payload::None)), Errno::Io.code());
    let empty = Extent { len_bytes: 0, kind: ExtentKind::Data };
    for extents in [vec![], vec![empty]] {
        let payload = Payload::Extents(extents);
        assert_eq!(errno(&misbehave(cmd::BLOCK_STATUS, 512, payload)), Errno::Io.code());
    }
}

#[test]
fn empty_pieces_make_no_chunks_and_the_last_chunk_says_so() {
    let none = || [Piece::Zeroes(0), Piece::Data(Bytes::new())];
    let middle = [Piece::Data(Bytes::from(vec![1; 512])), Piece::Zeroes(512)];
    let pieces = none().into_iter().chain(middle).chain(none()).collect();
    let reply = misbehave(cmd::READ, 1024, Payload::Data(pieces));
    assert_eq!(reply.len(), 28 + 512 + 32);
    assert_eq!(reply[4..8], [0, 0, 0, 1], "data, more to come");
    assert_eq!(reply[540 + 4..540 + 8], [0, 1, 0, 2], "a hole, the last chunk");
}

#[test]
fn extents_are_clipped_merged_and_bounded() {
    let extent = |len_bytes, kind| Extent { len_bytes, kind };
    let many: Vec<Extent> = (0..100)
        .map(|at| extent(512, if at % 2 == 0 { ExtentKind::Data } else { ExtentKind::Hole }))
        .collect();
    let limits = Limits { max_extents: 10, ..Limits::default() };
    let list = exports(vec![export("disk", SIZE)]);
    let mut session = transmitting(list, true, limits);
    let mut status = |flags, len, extents: &[Extent]| {
        let bytes = request(flags, cmd::BLOCK_STATUS, COOKIE, 0, len);
        let request = feed(&mut session, &bytes).remove(0);
        let result = Ok(Payload::Extents(extents.to_vec()));
        session.complete(Completion::of(&request, result));
        let reply = take(&mut session);
        assert_eq!(reply[6..8], [0, 5]);
        let words = reply[24..].chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
        words.collect::<Vec<_>>()
    };
    assert_eq!(status(0, 51_200, &many).len(), 20, "ten descriptors, then stop");
    assert_eq!(status(cmd_flag::REQ_ONE, 51_200, &many), [512, 0]);
    let huge = [extent(u64::MAX, ExtentKind::Hole)];
    assert_eq!(status(cmd_flag::REQ_ONE, 4096, &huge), [4096, 3]);
    let alike = [extent(10, ExtentKind::Zero), extent(0, ExtentKind::Data)];
    let alike = [&alike[..], &[extent(20, ExtentKind::Zero)]].concat();
    assert_eq!(status(0, 4096, &alike), [30, 2]);
}

#[test]
fn disconnect_lets_requests_in_flight_end() {
    let mut session = session(true);
    let reads = [request(0, cmd::READ, 1, 0, 512), request(0, cmd::READ, COOKIE, 0, 512)].concat();
    let requests = feed(&mut session, &reads);
    feed(&mut session, &request(0xffff, cmd::DISC, 3, 9, 9));
    assert_eq!(session.phase(), SessionPhase::Closing);
    assert!(!session.wants_input());
    for request in requests {
        assert_eq!(session.phase(), SessionPhase::Closing);
        let result = Err(BlockError::NoSpace);
        session.complete(Completion::of(&request, result));
    }
    assert_eq!(session.phase(), SessionPhase::Closing, "replies are still to be taken");
    assert_eq!(take(&mut session).len(), 2 * (26 + BlockError::NoSpace.to_string().len()));
    assert_eq!(session.phase(), SessionPhase::Closed);
    assert_eq!(session.violation(), None);
}

#[test]
fn a_lost_connection_drops_late_completions() {
    for by_host in [false, true] {
        let mut session = session(true);
        let request = feed(&mut session, &request(0, cmd::READ, COOKIE, 0, 512)).remove(0);
        if by_host {
            session.disconnect();
        } else {
            session.received(0, fieldstone_block::Nanos(1));
        }
        assert_eq!(session.phase(), SessionPhase::Closed);
        let result = Ok(Payload::Data(smallvec![Piece::Zeroes(512)]));
        session.complete(Completion::of(&request, result.clone()));
        session.complete(Completion::of(&request, result));
        assert_eq!((session.in_flight(), session.memory_bytes()), (0, 0));
        assert_eq!(take(&mut session), b"");
    }
}

#[test]
fn shutting_down_refuses_new_requests_and_ends_old_ones() {
    let mut session = session(true);
    let old = feed(&mut session, &request(0, cmd::READ, COOKIE, 0, 512)).remove(0);
    session.shut_down();
    assert!(feed(&mut session, &request(0, cmd::FLUSH, COOKIE, 0, 0)).is_empty());
    assert_eq!(errno(&take(&mut session)), Errno::Shutdown.code());
    let write = [request(0, cmd::WRITE, COOKIE, 0, 70_000), vec![0; 70_000]].concat();
    assert!(feed(&mut session, &write).is_empty());
    assert_eq!(errno(&take(&mut session)), Errno::Shutdown.code());
    let result = Ok(Payload::Data(smallvec![Piece::Zeroes(512)]));
    session.complete(Completion::of(&old, result));
    assert_eq!(take(&mut session).len(), 32);
    feed(&mut session, &request(0, cmd::DISC, 0, 0, 0));
    assert_eq!(session.phase(), SessionPhase::Closed);
}

#[test]
fn the_client_sees_failures_with_their_reason() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let disk = Export { minimum_block_bytes: 512, ..export("disk", SIZE) };
    let mut pair = Pair::new(Config::full("disk"), disk, Limits::default());
    pair.run(&mut rng);
    let about = pair.client.about().unwrap().clone();
    assert_eq!(about.block_sizes, Some([512, 4096, 32 << 20]));
    assert_eq!(about.name.as_deref(), Some("disk"));
    assert_eq!(about.description.as_deref(), Some("the disk volume"));
    pair.ram.fail_next = Some(BlockError::Io("shards 2 and 3 are gone".into()));
    let cookie = pair.client.read(0, 4096, 0);
    let message = "input/output error: shards 2 and 3 are gone".into();
    assert_eq!(pair.outcome(cookie, &mut rng), Outcome::Failed { errno: Errno::Io, message });
    let cookie = pair.client.write(SIZE - 1, Bytes::from_static(b"xy"), 0);
    let message = "the range passes the end".into();
    assert_eq!(pair.outcome(cookie, &mut rng), Outcome::Failed { errno: Errno::NoSpc, message });
    assert_eq!(pair.ram.seen.len(), 1);
}
