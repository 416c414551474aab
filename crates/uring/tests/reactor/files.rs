//! Reads, writes and other operations on real files.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_uring::{
    Caching, Creation, File, FileOptions, Inlined, Payload, Space, TaskRun, Token, Unsure,
    reactor::MAX_TRANSFER_BYTES,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{by_token, collect, one, reactor, reactor_with};

/// A folder on a disk file system (not tmpfs), so that direct I/O works.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("writable")
}

fn create(folder: &tempfile::TempDir, caching: Caching) -> File {
    let options = FileOptions { write: true, creation: Creation::New, caching };
    File::open(&folder.path().join("f"), options).expect("created")
}

fn buffer(event: fieldstone_uring::Event) -> (u32, AlignedBuf) {
    let count = event.result.expect("a successful read");
    let Payload::Buffer(buffer) = event.payload else { panic!("no buffer: {:?}", event.payload) };
    (count, buffer)
}

fn round_trip(caching: Caching, task_run: TaskRun) {
    let folder = folder();
    let file = create(&folder, caching);
    let mut reactor = reactor_with(8, task_run);
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut block = |len| {
        let mut buffer = AlignedBuf::zeroed(len);
        random.fill(&mut buffer[..]);
        buffer.freeze()
    };
    let parts = vec![block(4096), block(12_288), block(4096)];
    let whole = parts.concat();
    reactor.write(&file, 8192, parts.clone(), Token(1));
    let event = one(&mut reactor);
    assert_eq!(event.result.expect("written"), 20_480);
    assert!(matches!(event.payload, Payload::Parts(back) if back == parts));
    reactor.fsync(&file, true, Token(2));
    one(&mut reactor).result.expect("stable");
    reactor.fsync(&file, false, Token(2));
    one(&mut reactor).result.expect("stable");

    reactor.read(&file, 8192, AlignedBuf::zeroed(20_480), Token(3));
    let (count, got) = buffer(one(&mut reactor));
    assert_eq!((count, &got[..]), (20_480, &whole[..]));
    // Past the end: the available bytes, then none.
    reactor.read(&file, 24_576, got, Token(4));
    let (count, got) = buffer(one(&mut reactor));
    assert_eq!((count, &got[..4096]), (4096, &whole[16_384..]));
    reactor.read(&file, 1 << 20, got, Token(5));
    assert_eq!(buffer(one(&mut reactor)).0, 0);
}

#[test]
fn buffered_and_direct_files_round_trip_on_every_rung_of_the_ladder() {
    for task_run in [TaskRun::Deferred, TaskRun::Cooperative, TaskRun::Interrupting] {
        assert_eq!(reactor_with(8, task_run).task_run(), task_run);
        for caching in [Caching::Buffered, Caching::Direct] {
            round_trip(caching, task_run);
        }
    }
}

#[test]
fn a_direct_read_ends_at_a_ragged_end_of_file() {
    let folder = folder();
    std::fs::write(folder.path().join("f"), vec![9u8; 5000]).expect("written");
    let options = FileOptions { caching: Caching::Direct, ..FileOptions::default() };
    let file = File::open(&folder.path().join("f"), options).expect("opens");
    let mut reactor = reactor(8);
    reactor.read(&file, 0, AlignedBuf::zeroed(16_384), Token(1));
    let (count, got) = buffer(one(&mut reactor));
    assert_eq!(count, 5000);
    assert!(got[..5000].iter().all(|byte| *byte == 9));
}

#[test]
fn many_parts_are_split_and_reported_once() {
    let folder = folder();
    let file = create(&folder, Caching::Buffered);
    let mut reactor = reactor(8);
    let parts: Vec<Bytes> = (0..5000u32)
        .map(|i| Bytes::copy_from_slice(&i.to_le_bytes()[..(i % 5) as usize % 4]))
        .collect();
    let whole = parts.concat();
    for inline in [false, true] {
        let offset_bytes = if inline { 20_000 } else { 3 };
        if inline {
            reactor.write_inline(&file, offset_bytes, parts.clone(), Unsure::Block, Token(1));
        } else {
            reactor.write(&file, offset_bytes, parts.clone(), Token(1));
        }
        let event = one(&mut reactor);
        assert_eq!(event.result.expect("written") as usize, whole.len());
        assert!(matches!(event.payload, Payload::Parts(back) if back == parts));
        let got = std::fs::read(folder.path().join("f")).expect("readable");
        assert_eq!(&got[offset_bytes as usize..], &whole[..]);
    }
    let counters = reactor.counters();
    assert!(counters.continuations >= 4, "more than IOV_MAX parts");
    assert_eq!((counters.inline_writes, counters.sqes), (1, counters.continuations + 1));
}

/// The write succeeds whatever the file system answers to `RWF_NOWAIT`.
#[test]
fn a_write_that_may_not_block_is_made_all_the_same() {
    let folder = folder();
    let file = create(&folder, Caching::Buffered);
    let mut reactor = reactor(8);
    let part = Bytes::from(vec![7; 5000]);
    for at in 0..20 {
        let before = reactor.counters();
        let parts = vec![part.clone(); 2];
        let inlined = reactor.write_inline(&file, at * 9_000, parts, Unsure::Ring, Token(at));
        assert!(matches!(inlined, Inlined::AtOnce | Inlined::Ring), "{inlined:?}");
        let event = one(&mut reactor);
        assert_eq!((event.token, event.result.expect("written")), (Token(at), 10_000));
        let at_once = reactor.counters().inline_writes - before.inline_writes;
        assert_eq!(at_once, u64::from(inlined == Inlined::AtOnce));
        assert_eq!(reactor.counters().sqes > before.sqes, inlined == Inlined::Ring);
    }
    let got = std::fs::read(folder.path().join("f")).expect("readable");
    assert!(got.len() == 19 * 9_000 + 10_000 && got.iter().all(|byte| *byte == 7));
    let empty = reactor.write_inline(&file, 0, Vec::new(), Unsure::Ring, Token(1));
    assert_eq!((empty, one(&mut reactor).result.expect("nothing")), (Inlined::AtOnce, 0));
}

#[test]
fn thousands_of_operations_above_the_ring_size_all_complete() {
    const COUNT: u64 = 5000;
    let folder = folder();
    let file = create(&folder, Caching::Buffered);
    // A poll that finds an event adds a call that neither submits nor waits.
    let options =
        fieldstone_uring::ReactorOptions { entries: 8, poll: false, ..Default::default() };
    let mut reactor = fieldstone_uring::Reactor::new(options).expect("io_uring");
    for i in 0..COUNT {
        reactor.write(&file, i * 8, vec![Bytes::copy_from_slice(&i.to_le_bytes())], Token(i));
    }
    assert_eq!(reactor.in_flight(), COUNT as usize);
    for (_, event) in by_token(collect(&mut reactor, COUNT as usize)) {
        assert_eq!(event.result.expect("written"), 8);
    }
    for i in 0..COUNT {
        reactor.read(&file, i * 8, AlignedBuf::zeroed(8), Token(i));
    }
    for (token, event) in by_token(collect(&mut reactor, COUNT as usize)) {
        assert_eq!(&buffer(event).1[..], token.0.to_le_bytes());
    }
    let counters = reactor.counters();
    assert_eq!(reactor.in_flight(), 0);
    assert_eq!((counters.sqes, counters.cqes), (2 * COUNT, 2 * COUNT));
    assert!(counters.backlog_peak >= COUNT - 8, "{counters:?}");
    // Each submission fills the ring. The other calls only wait.
    assert!(counters.enters - counters.waits <= 2 * COUNT / 8 + 10, "{counters:?}");
}

#[test]
fn several_operations_go_to_the_kernel_before_the_turn() {
    let folder = folder();
    let file = create(&folder, Caching::Buffered);
    let mut reactor = reactor(8);
    let write = |reactor: &mut fieldstone_uring::Reactor, i: u64| {
        reactor.write(&file, i * 8, vec![Bytes::copy_from_slice(&i.to_le_bytes())], Token(i));
        reactor.submit_early();
        reactor.counters().sqes
    };
    assert_eq!([0, 1].map(|i| write(&mut reactor, i)), [0, 0], "two may wait for the turn");
    assert_eq!(write(&mut reactor, 2), 3);
    assert_eq!(write(&mut reactor, 3), 3);
    for (token, event) in by_token(collect(&mut reactor, 4)) {
        assert_eq!(event.result.expect("written"), 8, "{token:?}");
    }
    let expected: Vec<u8> = (0..4u64).flat_map(u64::to_le_bytes).collect();
    assert_eq!(std::fs::read(folder.path().join("f")).expect("readable"), expected);
}

#[test]
fn the_bound_on_operations_in_flight_refuses_and_gives_back() {
    let folder = folder();
    let file = create(&folder, Caching::Buffered);
    let options =
        fieldstone_uring::ReactorOptions { entries: 4, max_operations: 6, ..Default::default() };
    let mut reactor = fieldstone_uring::Reactor::new(options).expect("io_uring");
    for i in 0..7 {
        reactor.write(&file, 0, vec![Bytes::from_static(b"x")], Token(i));
    }
    let mut events = by_token(collect(&mut reactor, 7));
    let refused = events.remove(&Token(6)).expect("reported");
    assert_eq!(refused.result.expect_err("refused").raw_os_error(), Some(libc::ENOBUFS));
    assert!(matches!(refused.payload, Payload::Parts(parts) if parts == vec!["x"]));
    assert!(events.values().all(|event| event.result.is_ok()));
    reactor.fsync(&file, true, Token(9));
    one(&mut reactor).result.expect("there is room again");
}

#[test]
fn errors_come_back_with_the_buffers() {
    let mut reactor = reactor(8);
    let full = FileOptions { write: true, ..FileOptions::default() };
    let full = File::open("/dev/full".as_ref(), full).expect("every Linux has it");
    let parts = vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")];
    reactor.write(&full, 0, parts.clone(), Token(1));
    let event = one(&mut reactor);
    assert_eq!(event.result.expect_err("full").raw_os_error(), Some(libc::ENOSPC));
    assert!(matches!(event.payload, Payload::Parts(back) if back == parts));

    reactor.write_inline(&full, 0, parts.clone(), Unsure::Block, Token(1));
    reactor.write_inline(&full, u64::MAX - 1, parts.clone(), Unsure::Block, Token(2));
    let mut events = by_token(collect(&mut reactor, 2)).into_iter().collect::<Vec<_>>();
    events.sort_by_key(|(token, _)| *token);
    for ((_, event), errno) in events.into_iter().zip([libc::ENOSPC, libc::EFBIG]) {
        assert_eq!(event.result.expect_err("refused").raw_os_error(), Some(errno));
        assert!(matches!(event.payload, Payload::Parts(back) if back == parts));
    }

    let folder = folder();
    drop(create(&folder, Caching::Buffered));
    let path = folder.path().join("f");
    let read_only = File::open(&path, FileOptions::default()).expect("opens");
    reactor.write(&read_only, 0, parts, Token(2));
    let error = one(&mut reactor).result.expect_err("not open for writing");
    assert_eq!(error.raw_os_error(), Some(libc::EBADF));

    let write_only = std::fs::OpenOptions::new().write(true).open(&path).expect("opens");
    let write_only = File::from_descriptor(OwnedFd::from(write_only), Caching::Buffered);
    reactor.read(&write_only, 0, AlignedBuf::zeroed(10), Token(3));
    let event = one(&mut reactor);
    assert_eq!(event.result.expect_err("not open for reading").raw_os_error(), Some(libc::EBADF));
    assert!(matches!(event.payload, Payload::Buffer(back) if back.len() == 10));

    let directory = std::fs::File::open(folder.path()).expect("opens");
    let directory = File::from_descriptor(OwnedFd::from(directory), Caching::Buffered);
    reactor.read(&directory, 0, AlignedBuf::zeroed(10), Token(4));
    let error = one(&mut reactor).result.expect_err("a directory");
    assert_eq!(error.kind(), ErrorKind::IsADirectory);
}

#[test]
fn empty_and_oversized_transfers_never_reach_the_kernel() {
    let folder = folder();
    let file = create(&folder, Caching::Buffered);
    let mut reactor = reactor(8);
    reactor.write(&file, 0, vec![], Token(1));
    reactor.write(&file, 0, vec![Bytes::new(), Bytes::new()], Token(2));
    reactor.read(&file, 0, AlignedBuf::zeroed(0), Token(3));
    let part = fieldstone_buf::zeroes(1 << 20);
    reactor.write(&file, 0, vec![part; MAX_TRANSFER_BYTES / (1 << 20) + 1], Token(4));
    let mut events = by_token(collect(&mut reactor, 4));
    let oversized = events.remove(&Token(4)).expect("reported").result.expect_err("refused");
    assert_eq!(oversized.raw_os_error(), Some(libc::EINVAL));
    for (_, event) in events {
        assert_eq!(event.result.expect("nothing to do"), 0);
    }
    assert_eq!(reactor.counters().sqes, 0);
    assert_eq!(file.len_bytes().expect("open"), 0);
}

#[test]
fn space_is_reserved_zeroed_and_given_back() {
    let folder = folder();
    let file = create(&folder, Caching::Buffered);
    let mut reactor = reactor(8);
    const LEN: u64 = 1 << 20;
    reactor.fallocate(&file, Space::Reserve, 0, LEN, Token(1));
    one(&mut reactor).result.expect("reserved");
    assert_eq!(file.len_bytes().expect("open"), LEN);
    assert!(file.allocated_bytes().expect("open") >= LEN);
    reactor.write(&file, 0, vec![vec![1u8; LEN as usize].into()], Token(2));
    one(&mut reactor).result.expect("written");
    reactor.fallocate(&file, Space::Zero, 4096, 4096, Token(3));
    one(&mut reactor).result.expect("zeroed");
    reactor.fallocate(&file, Space::PunchHole, 8192, LEN - 8192, Token(4));
    one(&mut reactor).result.expect("punched");
    assert!(file.allocated_bytes().expect("open") < LEN / 2);
    assert_eq!(file.len_bytes().expect("open"), LEN);
    let got = std::fs::read(folder.path().join("f")).expect("readable");
    assert!(got[..4096].iter().all(|byte| *byte == 1) && got[4096..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_pipe_delivers_in_pieces_and_the_read_waits_for_all_of_them() {
    let (from, mut to) = std::io::pipe().expect("descriptors");
    let from = File::from_descriptor(from.into(), Caching::Buffered);
    let mut reactor = reactor(8);
    reactor.read(&from, 0, AlignedBuf::zeroed(100_000), Token(1));
    let writer = std::thread::spawn(move || {
        use std::io::Write;
        for piece in 0..10u8 {
            to.write_all(&vec![piece; 10_000]).expect("the reader lives");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    });
    let (count, got) = buffer(one(&mut reactor));
    writer.join().expect("no panic");
    assert_eq!(count, 100_000);
    assert!(got.chunks(10_000).enumerate().all(|(i, piece)| piece.iter().all(|b| *b == i as u8)));
    assert!(reactor.counters().continuations > 0);
}

#[test]
fn a_file_dropped_while_in_use_stays_open_until_done() {
    let folder = folder();
    let file = create(&folder, Caching::Buffered);
    let mut reactor = reactor(4);
    // More writes than fit the ring, so that some have not reached the kernel when the handle is
    // dropped and a new file takes the descriptor's number.
    for i in 0..64 {
        reactor.write(&file, i * 8, vec![Bytes::from_static(b"original")], Token(i));
    }
    drop(file);
    let path = folder.path().join("other");
    let other = FileOptions { write: true, creation: Creation::New, ..FileOptions::default() };
    let other = File::open(&path, other).expect("created");
    for event in collect(&mut reactor, 64) {
        event.result.expect("written to the file it was started on");
    }
    assert_eq!(other.len_bytes().expect("open"), 0);
    assert_eq!(std::fs::read(folder.path().join("f")).expect("readable"), b"original".repeat(64));
}
