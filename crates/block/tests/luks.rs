//! Opens devices that begin with a header, and compares what the store then has.

use std::path::PathBuf;

use bytes::Bytes;
use fieldstone_block::layers::{Align, Luks, LuksOptions, TrimPolicy, ZEROES_BYTES};
use fieldstone_block::{
    Backend, BlockError, Completion, Extent, ExtentKind, Layer, Nanos, Op, OpenFailure, Payload,
    Piece, QueueId, Ram, ReadDestination, Readiness, Request, RequestFlags, RequestId, Stack,
    Stamps,
};
use fieldstone_luks::SectorCipher;

const LUKS1: &[u8] = include_bytes!("../../luks/tests/data/luks1.bin");
const LUKS2: &[u8] = include_bytes!("../../luks/tests/data/luks2.bin");
const SIZE_BYTES: u64 = 24 << 20;

fn request(op: Op, offset_bytes: u64, len_bytes: u32, data: Bytes) -> Request {
    Request {
        id: RequestId(7),
        op,
        offset_bytes,
        len_bytes,
        flags: RequestFlags::default(),
        data,
        destination: ReadDestination::default(),
        queue: QueueId(0),
        stamps: Stamps::default(),
    }
}

fn ask(backend: &mut impl Backend, request: Request) -> Result<Payload, BlockError> {
    backend.submit(request, Nanos(1));
    let mut out: Vec<Completion> = Vec::new();
    backend.poll(Nanos(1), &mut out);
    assert_eq!(out.len(), 1);
    out.remove(0).result
}

fn write(backend: &mut impl Backend, offset_bytes: u64, data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    let written = request(Op::Write, offset_bytes, data.len() as u32, data);
    assert_eq!(ask(backend, written), Ok(Payload::None));
}

fn read(backend: &mut impl Backend, offset_bytes: u64, len_bytes: u32) -> Vec<u8> {
    let read = ask(backend, request(Op::Read, offset_bytes, len_bytes, Bytes::new()));
    let Ok(Payload::Data(pieces)) = read else { panic!("{read:?}") };
    pieces.iter().fold(Vec::new(), |mut bytes, piece| {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeroes(len) => bytes.resize(bytes.len() + *len as usize, 0),
        }
        bytes
    })
}

/// A file with a passphrase, and a device with a header.
fn device(header: &[u8], passphrase: Option<&str>, trim: TrimPolicy, name: &str) -> Stack<Ram> {
    let mut store = Ram::new(SIZE_BYTES);
    write(&mut store, 0, header);
    let passphrase_file = passphrase.map(|text| {
        let path = std::env::temp_dir().join(format!("luks-{name}-{}", std::process::id()));
        std::fs::write(&path, text).expect("a file can be written");
        path
    });
    let luks = Luks::new(LuksOptions { passphrase_file, trim });
    Stack::new(store, vec![Box::new(Align::new()), Box::new(luks)])
}

/// What a world does until the device is ready.
fn open(stack: &mut Stack<Ram>) -> Readiness {
    for _ in 0..10 {
        let mut out = Vec::new();
        stack.poll_into(Nanos(1), &mut out);
        assert!(out.is_empty());
        if let Some((place, work)) = stack.take_work() {
            assert_eq!((stack.info().size_bytes, stack.readiness()), (0, Readiness::Opening));
            stack.worked(place, work());
        }
    }
    stack.readiness()
}

/// The reason of a failure that lasts.
fn why(stack: &mut Stack<Ram>) -> String {
    match open(stack) {
        Readiness::Failed(OpenFailure { reason, is_final: true }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sectors_are_stored_encrypted_behind_the_header() {
    let key: Vec<u8> = (0..32).collect();
    for (header, sector, offset) in [(LUKS1, 512u32, 2u64 << 20), (LUKS2, 4096, 16 << 20)] {
        let mut stack =
            device(header, Some("open sesame\n"), TrimPolicy::Zeroes, &format!("s{sector}"));
        assert_eq!(open(&mut stack), Readiness::Ready);
        assert_eq!(stack.info().size_bytes, SIZE_BYTES - offset);
        let plain: Vec<u8> = (0..3 * sector).map(|at| (at / 3) as u8).collect();
        write(&mut stack, 5 * u64::from(sector), &plain);
        let mut expected = vec![0; plain.len()];
        let cipher = SectorCipher::new(&key, sector, 0).unwrap();
        cipher.encrypt(5 * u64::from(sector), &plain, &mut expected);
        let stored = read(stack.store_mut(), offset + 5 * u64::from(sector), 3 * sector);
        assert_eq!(stored, expected);
        // Unaligned, beside a hole.
        write(&mut stack, 8 * u64::from(sector) + 100, &[9; 10]);
        let mut model = vec![0; 16 * sector as usize];
        model[5 * sector as usize..8 * sector as usize].copy_from_slice(&plain);
        model[8 * sector as usize + 100..][..10].fill(9);
        assert_eq!(read(&mut stack, 0, 16 * sector), model);
        assert_eq!(read(&mut stack, 77, 11 * sector)[..], model[77..77 + 11 * sector as usize]);
        let header_now = read(stack.store_mut(), 0, 4096);
        assert_eq!(header_now[..], header[..4096]);
    }
}

#[test]
fn trims_are_encrypted_zeroes_unless_they_are_passed() {
    let zeroes = |len| vec![0; len];
    for trim in [TrimPolicy::Zeroes, TrimPolicy::Pass] {
        let mut stack = device(LUKS1, Some("open sesame"), trim, &format!("{trim:?}"));
        assert_eq!(open(&mut stack), Readiness::Ready);
        let len = 9 * ZEROES_BYTES + 512;
        write(&mut stack, 0, &vec![5; len as usize + 1024]);
        for op in [Op::Trim, Op::WriteZeroes] {
            assert_eq!(ask(&mut stack, request(op, 512, len, Bytes::new())), Ok(Payload::None));
            assert_eq!(read(&mut stack, 512, len), zeroes(len as usize));
            assert_eq!(read(&mut stack, 0, 512), vec![5; 512]);
            assert_eq!(read(&mut stack, u64::from(len) + 512, 512), vec![5; 512]);
            let stored = read(stack.store_mut(), (2 << 20) + 512, len);
            let is_hole = stored.iter().all(|byte| *byte == 0);
            assert_eq!(is_hole, trim == TrimPolicy::Pass);
            write(&mut stack, 512, &vec![6; len as usize]);
        }
        let mut fast = request(Op::WriteZeroes, 0, 512, Bytes::new());
        fast.flags.fast_zero = true;
        assert_eq!(ask(&mut stack, fast).is_ok(), trim == TrimPolicy::Pass);
        let mut kept = request(Op::WriteZeroes, 0, 4096, Bytes::new());
        kept.flags.no_hole = true;
        assert_eq!(ask(&mut stack, kept), Ok(Payload::None));
        let stored = read(stack.store_mut(), 2 << 20, 4096);
        assert!(stored.iter().any(|byte| *byte != 0), "a hole, which was not allowed");
    }
}

#[test]
fn holes_of_the_store_are_holes_of_the_device() {
    let mut stack = device(LUKS2, Some("open sesame"), TrimPolicy::Zeroes, "extents");
    assert_eq!(open(&mut stack), Readiness::Ready);
    write(&mut stack, 1 << 20, &vec![1; 1 << 20]);
    let extents = ask(&mut stack, request(Op::Extents, 0, 4 << 20, Bytes::new()));
    let expected = [(1 << 20, ExtentKind::Hole), (1 << 20, ExtentKind::Data)];
    let Ok(Payload::Extents(extents)) = extents else { panic!("{extents:?}") };
    let expected = expected.map(|(len_bytes, kind)| Extent { len_bytes, kind });
    assert_eq!(extents[..2], expected);
}

#[test]
fn a_device_that_does_not_open_says_why() {
    let open_with = |header: &[u8], passphrase, name: &str| {
        why(&mut device(header, passphrase, TrimPolicy::Zeroes, name))
    };
    let text = open_with(LUKS1, Some("close sesame"), "wrong");
    assert!(text.starts_with("luks: no key slot opens with this passphrase, of the file "));
    assert!(!text.contains("sesame"));
    let text = open_with(LUKS1, None, "none");
    assert_eq!(text, "luks: the option passphrase-file is missing");
    let text = open_with(&[1; 4096], Some("x"), "nothing");
    assert_eq!(text, "luks: there is no LUKS header");
    let mut clone = LUKS1.to_vec();
    clone[0] = b'R';
    clone[1] = b'B';
    clone[2] = b'D';
    clone[3] = b'L';
    assert!(open_with(&clone, Some("x"), "clone").contains("Ceph 17 or newer"));
    let mut stack = device(LUKS1, Some(""), TrimPolicy::Zeroes, "empty");
    assert!(why(&mut stack).ends_with("the passphrase is empty"));
    let luks = Luks::new(LuksOptions {
        passphrase_file: Some(PathBuf::from("/no/file")),
        ..LuksOptions::default()
    });
    let mut store = Ram::new(SIZE_BYTES);
    write(&mut store, 0, LUKS1);
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(luks)];
    assert!(why(&mut Stack::new(store, layers)).contains("/no/file"));
    // The first copy of LUKS2 is gone.
    let mut damaged = LUKS2.to_vec();
    damaged[..4096].fill(0);
    let mut stack = device(&damaged, Some("open sesame"), TrimPolicy::Zeroes, "second");
    assert_eq!(open(&mut stack), Readiness::Ready);
    let mut short = Ram::new(1 << 20);
    write(&mut short, 0, LUKS1);
    let options =
        LuksOptions { passphrase_file: Some("/no/file".into()), ..LuksOptions::default() };
    let mut stack: Stack<Ram> = Stack::new(short, vec![Box::new(Luks::new(options))]);
    assert!(why(&mut stack).contains("which has 1048576 bytes"));
}
