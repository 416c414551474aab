//! Tests of a file store against a model, on a reactor of its own.

use std::path::Path;

use fieldstone_block::{
    BlockError, Completion, ExtentKind, Landed, Op, Payload, Piece, QueueId, ReadDestination,
    RequestFlags, RequestId, Stamps, landed,
};
use fieldstone_uring::{Mailbox, Reactor, ReactorOptions};
use proptest::prelude::*;

use super::*;
use crate::message::{Core, DeviceId, Message, Router};
use crate::token::{Kind, split, token};

/// A store, with the parts of the host that it needs.
struct Rig {
    store: Box<dyn Store>,
    router: Router,
    mailbox: Mailbox<Message>,
    reactor: Reactor,
    last_id: u64,
}

impl Rig {
    fn new(spec: FileSpec) -> Self {
        let mut reactor = Reactor::new(ReactorOptions::default()).expect("a ring");
        let (sender, mailbox) = reactor.mailbox(64, token(Kind::Mail, 0, 0)).expect("a mailbox");
        let mut router = Router::new(Core(0), vec![sender]);
        let now = reactor.now();
        let mut io =
            StoreIo { device: DeviceId(3), now, reactor: &mut reactor, router: &mut router };
        let store = Box::new(spec).open(&mut io);
        Self { store, router, mailbox, reactor, last_id: 0 }
    }

    /// A rig whose store serves.
    fn open(spec: FileSpec) -> Self {
        let mut rig = Self::new(spec);
        rig.run_while(|rig| rig.store.phase() == Phase::Opening);
        assert_eq!(rig.store.phase(), Phase::Serving);
        rig
    }

    fn pump(&mut self) {
        let now = self.reactor.now();
        let (reactor, router) = (&mut self.reactor, &mut self.router);
        let mut io = StoreIo { device: DeviceId(3), now, reactor, router };
        while self.store.act(&mut io) {}
        self.store.flush(&mut io);
    }

    fn turn(&mut self) {
        let mut events = Vec::new();
        self.reactor.turn(&mut events).expect("the ring works");
        let now = self.reactor.now();
        for event in events {
            let (kind, _, index) = split(event.token).expect("made here");
            let (reactor, router) = (&mut self.reactor, &mut self.router);
            let mut io = StoreIo { device: DeviceId(3), now, reactor, router };
            if kind == Kind::Store {
                self.store.event(index, event, &mut io);
                continue;
            }
            let mut mail = Vec::new();
            self.mailbox.drain(&mut mail);
            for message in mail {
                let Message::ToStore { mail, .. } = message else { panic!("{message:?}") };
                self.store.mail(mail, &mut io);
            }
        }
        self.pump();
    }

    fn run_while(&mut self, mut go_on: impl FnMut(&mut Self) -> bool) {
        self.pump();
        while go_on(self) {
            self.turn();
        }
    }

    fn submit(
        &mut self,
        op: Op,
        offset_bytes: u64,
        len_bytes: u32,
        flags: RequestFlags,
        data: Bytes,
    ) {
        self.submit_to(ReadDestination::default(), op, offset_bytes, len_bytes, flags, data);
    }

    fn submit_to(
        &mut self,
        destination: ReadDestination,
        op: Op,
        offset_bytes: u64,
        len_bytes: u32,
        flags: RequestFlags,
        data: Bytes,
    ) {
        self.last_id += 1;
        let (id, queue, stamps) = (RequestId(self.last_id), QueueId(0), Stamps::default());
        let request =
            Request { id, op, offset_bytes, len_bytes, flags, data, destination, queue, stamps };
        request.validate(&self.store.info()).expect("a valid request");
        self.store.submit(request, self.reactor.now());
    }

    fn call(
        &mut self,
        op: Op,
        offset_bytes: u64,
        len_bytes: u32,
        flags: RequestFlags,
        data: Bytes,
    ) -> Result<Payload, BlockError> {
        self.submit(op, offset_bytes, len_bytes, flags, data);
        self.answer()
    }

    /// Waits for the only answer.
    fn answer(&mut self) -> Result<Payload, BlockError> {
        let mut out: Vec<Completion> = Vec::new();
        self.run_while(|rig| {
            rig.store.poll(Nanos(0), &mut out);
            out.is_empty()
        });
        out.pop().expect("answered").result
    }

    /// Reads into `memory`. Returns the pieces of the answer.
    fn read_into(&mut self, offset_bytes: u64, memory: AlignedBuf) -> Vec<Piece> {
        let len_bytes = u32::try_from(memory.len()).expect("small");
        let (none, destination) = (RequestFlags::default(), ReadDestination::of(memory));
        self.submit_to(destination, Op::Read, offset_bytes, len_bytes, none, Bytes::new());
        match self.answer() {
            Ok(Payload::Data(pieces)) => pieces.into_vec(),
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, offset_bytes: u64, len_bytes: u32) -> Vec<u8> {
        let none = RequestFlags::default();
        match self.call(Op::Read, offset_bytes, len_bytes, none, Bytes::new()) {
            Ok(Payload::Data(pieces)) => pieces
                .iter()
                .flat_map(|piece| match piece {
                    Piece::Data(data) => data.to_vec(),
                    Piece::Zeroes(len) => vec![0; *len as usize],
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    fn close(&mut self) {
        self.store.close();
        self.run_while(|rig| !matches!(rig.store.phase(), Phase::Closed | Phase::Failed(_)));
        assert_eq!(self.store.phase(), Phase::Closed);
    }
}

fn spec(path: &Path, caching: Caching) -> FileSpec {
    FileSpec { path: path.to_path_buf(), caching, read_only: false }
}

const SIZE_BYTES: u64 = 1 << 20;

fn made(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("disk.img");
    fs::File::create(&path).and_then(|file| file.set_len(SIZE_BYTES)).expect("made");
    path
}

/// Some file systems refuse `O_DIRECT`, for example tmpfs.
fn can_direct(path: &Path) -> bool {
    let options = FileOptions { caching: Caching::Direct, ..FileOptions::default() };
    File::open(path, options).is_ok()
}

#[test]
fn a_read_fills_its_destination() {
    let folder = tempfile::tempdir().expect("temp");
    let path = made(&folder);
    for caching in [Caching::Buffered, Caching::Direct] {
        if caching == Caching::Direct && !can_direct(&path) {
            continue;
        }
        let mut rig = Rig::open(spec(&path, caching));
        let content = Bytes::from(vec![9; 8192]);
        rig.call(Op::Write, 4096, 8192, RequestFlags::default(), content).expect("written");
        let memory = AlignedBuf::zeroed(12_288);
        let start = memory.as_ptr().addr();
        let pieces = rig.read_into(0, memory);
        assert_eq!(landed(&pieces, &(start..start + 12_288)), Landed::InPlace);
        let [Piece::Data(bytes)] = &pieces[..] else { panic!("{pieces:?}") };
        assert_eq!(bytes[..], [vec![0; 4096], vec![9; 8192]].concat());
        rig.close();
    }
}

/// An operation on a range, in units of the store's blocks.
#[derive(Clone, Debug)]
struct Step {
    op: Op,
    at: u64,
    blocks: u32,
    fill: u8,
    fua: bool,
    no_hole: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![
        3 => Just(Op::Read),
        4 => Just(Op::Write),
        1 => Just(Op::Flush),
        1 => Just(Op::Trim),
        2 => Just(Op::WriteZeroes),
        1 => Just(Op::Extents),
    ];
    let step = (op, 0..2000_u64, 0..40_u32, any::<u8>(), any::<bool>(), any::<bool>());
    let step = step.prop_map(|(op, at, blocks, fill, fua, no_hole)| Step {
        op,
        at,
        blocks,
        fill,
        fua,
        no_hole,
    });
    prop::collection::vec(step, 1..60)
}

fn check(caching: Caching, steps: &[Step]) {
    let folder = tempfile::tempdir().expect("temp");
    let path = made(&folder);
    if caching == Caching::Direct && !can_direct(&path) {
        return;
    }
    let mut rig = Rig::open(spec(&path, caching));
    let info = rig.store.info();
    assert_eq!(info.size_bytes, SIZE_BYTES);
    let block = u64::from(info.block_bytes.max(500));
    let mut model = vec![0_u8; usize::try_from(SIZE_BYTES).expect("small")];
    for step in steps {
        let offset = step.at * block % (SIZE_BYTES - 40 * block);
        let offset = offset / u64::from(info.block_bytes) * u64::from(info.block_bytes);
        let len = step.blocks * u32::try_from(block).expect("small");
        let from = usize::try_from(offset).expect("small");
        let range = from..from + len as usize;
        let fua = step.fua && step.op.changes_data();
        let no_hole = step.no_hole && step.op == Op::WriteZeroes;
        let flags = RequestFlags { fua, no_hole, fast_zero: false };
        let data = match step.op {
            Op::Write => Bytes::from(vec![step.fill; len as usize]),
            _ => Bytes::new(),
        };
        if step.op == Op::Read {
            assert!(rig.read(offset, len) == model[range], "{step:?}");
            continue;
        }
        let payload = rig.call(step.op, offset, len, flags, data).expect("a sound disk");
        match (step.op, payload) {
            (Op::Write, _) => model[range].fill(step.fill),
            (Op::Trim | Op::WriteZeroes, _) => model[range].fill(0),
            (Op::Extents, Payload::Extents(list)) => {
                assert_eq!(list.iter().map(|e| e.len_bytes).sum::<u64>(), u64::from(len));
                let mut at = from;
                for extent in list {
                    let end = at + usize::try_from(extent.len_bytes).expect("small");
                    let zero = model[at..end].iter().all(|byte| *byte == 0);
                    assert!(extent.kind == ExtentKind::Data || zero, "a hole with data: {step:?}");
                    at = end;
                }
            }
            _ => {}
        }
    }
    rig.close();
    assert!(fs::read(&path).expect("there") == model, "the file holds something else");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_file_holds_what_was_written(steps in steps()) {
        check(Caching::Buffered, &steps);
        check(Caching::Direct, &steps);
    }
}

#[test]
fn requests_in_flight_together_are_each_answered_once() {
    let folder = tempfile::tempdir().expect("temp");
    let mut rig = Rig::open(spec(&made(&folder), Caching::Buffered));
    let none = RequestFlags::default();
    for index in 0..64_u64 {
        let data = Bytes::from(vec![index as u8; 4096]);
        let fua = RequestFlags { fua: index % 3 == 0, ..none };
        rig.submit(Op::Write, index * 4096, 4096, fua, data);
        if index % 8 == 0 {
            rig.submit(Op::Flush, 0, 0, none, Bytes::new());
        }
        rig.submit(Op::Extents, 0, 65536, none, Bytes::new());
    }
    let mut out: Vec<Completion> = Vec::new();
    rig.run_while(|rig| {
        rig.store.poll(Nanos(0), &mut out);
        out.len() < 64 + 8 + 64
    });
    let mut ids: Vec<u64> = out.iter().map(|completion| completion.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=136).collect::<Vec<u64>>());
    assert!(out.iter().all(|completion| completion.result.is_ok()));
    rig.close();
}

#[test]
fn what_cannot_be_a_device_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("temp");
    let path = made(&folder);
    let failure = |path: &Path| {
        let mut rig = Rig::new(spec(path, Caching::Buffered));
        rig.run_while(|rig| rig.store.phase() == Phase::Opening);
        match rig.store.phase() {
            Phase::Failed(reason) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert!(failure(&folder.path().join("none")).contains("none is not there; make it"));
    let nowhere = failure(&folder.path().join("nowhere/none"));
    assert!(nowhere.ends_with("none is not there"), "{nowhere}");
    let disk = failure(Path::new("/dev/fieldstone-none"));
    assert!(disk.ends_with("none is not there"), "{disk}");
    assert!(failure(folder.path()).contains("neither a file nor a block device"));
    let first = Rig::open(spec(&path, Caching::Buffered));
    assert!(failure(&path).contains("is locked"));
    drop(first);
    // Readers share the lock.
    let read_only = || FileSpec { read_only: true, ..spec(&path, Caching::Buffered) };
    let first = Rig::open(read_only());
    let second = Rig::open(read_only());
    assert!(first.store.info().read_only && second.store.info().read_only);
    assert!(failure(&path).contains("is locked"));
}

#[test]
fn after_a_failed_sync_no_flush_succeeds() {
    let folder = tempfile::tempdir().expect("temp");
    let path = made(&folder);
    let mut rig = Rig::open(spec(&path, Caching::Buffered));
    let (reactor, router) = (&mut rig.reactor, &mut rig.router);
    let mut io = StoreIo { device: DeviceId(3), now: Nanos(1), reactor, router };
    // The kernel answers the token of a sync with an error.
    let token = io.token(SYNC);
    let result = Err(io::Error::from_raw_os_error(libc::EIO));
    let event = Event { token, result, payload: EventPayload::None };
    rig.store.event(SYNC, event, &mut io);
    for _ in 0..2 {
        let flushed = rig.call(Op::Flush, 0, 0, RequestFlags::default(), Bytes::new());
        assert!(matches!(flushed, Err(BlockError::Io(text)) if text.contains("fdatasync")));
    }
    let fua = RequestFlags { fua: true, ..RequestFlags::default() };
    let written = rig.call(Op::Write, 0, 3, fua, Bytes::from_static(b"abc"));
    assert!(written.is_err(), "it may not last");
    assert_eq!(rig.read(0, 3), b"abc");
    rig.store.close();
    rig.run_while(|rig| rig.store.phase() == Phase::Closing);
    assert!(matches!(rig.store.phase(), Phase::Failed(_)), "it is not closed cleanly");
}

/// After `fork`, a child has descriptors of the same open files, and so has a clone.
#[test]
fn the_lock_ends_with_the_store_although_the_open_file_lives() {
    let folder = tempfile::tempdir().expect("temp");
    let path = made(&folder);
    let spec = spec(&path, Caching::Buffered);
    let opened = Opened::open(&spec).expect("not locked");
    let inherited = opened.seeker.0.try_clone().expect("a descriptor");
    let error = Opened::open(&spec).err().expect("locked");
    assert!(error.contains("is locked"), "{error}");
    drop(opened);
    let again = Opened::open(&spec).expect("not locked any more");
    drop(inherited);
    assert!(Opened::open(&spec).is_err(), "the end of the clone unlocks nothing");
    drop(again);
}
