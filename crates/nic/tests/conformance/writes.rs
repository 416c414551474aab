//! The firmware's program, settings of a node, and writes.

use std::sync::OnceLock;

use fieldstone_nic::firmware::build::{self, BuildError};
use fieldstone_nic::firmware::hpu::Hpu;
use fieldstone_nic::firmware::packet::{Coordinates, Scheme, Write};
use fieldstone_nic::firmware::state::{Extent, Multiply, Settings};
use fieldstone_nic::riscv::elf::Program;
use fieldstone_proto::capability::{Capability, MasterKey, Rights};
use fieldstone_proto::ids::{Epoch, SegmentId, VolumeId};

pub const MASTER: MasterKey = MasterKey([0x42; 16]);
pub const VOLUME: VolumeId = VolumeId(0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00);
pub const EPOCH: Epoch = Epoch(3);
pub const CLIENT: u32 = 100;
pub const HOST_LEN: u64 = 1 << 33;
/// The start of segment 11 on every node.
pub const PLACE: u64 = (1 << 32) - (1 << 25);
pub const STAGING_LEN: u32 = 64 << 10;
pub const NOW_NS: u64 = 5 << 32;

/// A missing compiler is a reason to skip; any other error fails the test.
pub fn or_missing<T>(built: Result<T, BuildError>) -> Result<T, String> {
    match built {
        Ok(value) => Ok(value),
        Err(error @ BuildError::NoCompiler { .. }) => Err(error.to_string()),
        Err(error) => panic!("{error}"),
    }
}

/// What was built, or a line that says why the test is skipped.
pub fn or_skip<T: Clone>(built: &Result<T, String>) -> Option<T> {
    if let Err(reason) = built {
        eprintln!("skipped: {reason}");
    }
    built.clone().ok()
}

/// The firmware for the cores, built once for each way to multiply; `None`, with the reason on
/// stderr, without its compiler.
pub fn program(multiply: Multiply) -> Option<Program> {
    static BUILT: [OnceLock<Result<Program, String>>; 4] = [const { OnceLock::new() }; 4];
    or_skip(BUILT[multiply as usize].get_or_init(|| or_missing(build::program(multiply))))
}

pub fn settings(node: u32, multiply: Multiply, k: usize, m: usize) -> Settings {
    Settings {
        node,
        host_len: HOST_LEN,
        staging_len: STAGING_LEN,
        keys: vec![(MASTER, VolumeId(1), Epoch(1)), (MASTER, VOLUME, EPOCH)],
        extents: SEGMENTS.map(extent).to_vec(),
        coefficients: if m == 0 { Vec::new() } else { multiply.coefficients(k, m).unwrap() },
        multiply,
        column: 0,
        elements: None,
    }
}

/// The segments that every node takes writes for. Segment 11, which writes are for, has bytes below
/// and above 4 GiB; segments 10 and 12 are beside it.
pub const SEGMENTS: [u64; 4] = [10, 11, 12, 20 << 32];

/// Where a segment is on every node.
pub fn extent(segment: u64) -> Extent {
    let place = match segment {
        10 => PLACE - (1 << 28),
        11 => PLACE,
        12 => PLACE + (1 << 28),
        _ => PLACE + (2 << 28),
    };
    Extent { volume: VOLUME, segment: SegmentId(segment), base: place, length: 1 << 28 }
}

pub fn hpu(program: &Program, settings: &Settings) -> Hpu {
    Hpu::new(program, &settings.context().unwrap()).unwrap()
}

pub fn capability() -> Capability {
    let key = MASTER.derive(VOLUME, EPOCH);
    let mut capability = Capability::issue(&key, VOLUME, EPOCH, Rights::WRITE, NOW_NS + 1);
    capability.segment_first = SegmentId(10);
    capability.segment_last = SegmentId(20 << 32);
    capability.signed(&key)
}

/// A write of `len` bytes to segment 11; the node of rank r is r, and its place 16 MiB times r from
/// the start of the segment.
pub fn write(scheme: Scheme, nodes: u32, len: usize) -> Write {
    Write {
        client: CLIENT,
        message: 7,
        request: 0x1234_5678_9abc_def0,
        capability: capability(),
        segment: 11,
        scheme,
        nodes: (0..nodes)
            .map(|node| Coordinates { node, address: PLACE + (u64::from(node) << 24) + 0x1000 })
            .collect(),
        data: (0..len).map(|i| (i * 7 + i / 256 * 13 + 5) as u8).collect(),
    }
}
