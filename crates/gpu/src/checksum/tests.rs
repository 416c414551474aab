//! The kernel in the interpreter, compared with the checksums of the CPU.

use fieldstone_accel::crc32c;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::table::{back, forward};
use super::{Blocks, KERNEL, Sums, fits, kernel_text, table};
use crate::card::Card;
use crate::driver::{Argument, DeviceAddress, Rows};
use crate::interpreter::{Launch, Memory, Module, Param, run};
use crate::model::Model;

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The sums of random rows, from the kernel with this text, and from the CPU. The memory has not a
/// byte to spare, and no thread wrote the bytes between rows.
fn sums(
    text: &str,
    shape: [u32; 4],
    multiprocessors: u32,
    seed: u64,
) -> (Result<Vec<u32>, String>, Vec<u32>) {
    let [rows, row_bytes, pitch, block_bytes] = shape;
    let bytes = random((rows * row_bytes) as usize, seed);
    let mut memory = Memory::new();
    let data = memory.alloc(((rows - 1) * pitch + row_bytes) as usize);
    for (row, bytes) in bytes.chunks(row_bytes as usize).enumerate() {
        memory.write(data + row as u64 * u64::from(pitch), bytes).unwrap();
    }
    let table: Vec<u8> = table().into_iter().flat_map(u32::to_le_bytes).collect();
    let table = DeviceAddress(memory.alloc_with(&table));
    let expected: Vec<u32> = bytes.chunks(block_bytes as usize).map(crc32c).collect();
    let sums = memory.alloc(4 * expected.len());
    let blocks = Blocks { data: DeviceAddress(data), rows, row_bytes, pitch, block_bytes };
    let (grid, arguments) =
        blocks.launch(multiprocessors, table, DeviceAddress(sums)).unwrap().unwrap();
    let params = arguments.map(|argument| match argument {
        Argument::U32(value) => Param::U32(value),
        Argument::U64(value) => Param::U64(value),
    });
    let (block, shared_bytes) = (grid.threads, grid.shared_bytes);
    let params = params.to_vec();
    let launch = Launch {
        grid: grid.blocks,
        block,
        shared_bytes,
        params,
        budget: 1 << 28,
        ..Launch::default()
    };
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let found = run(module.kernel(KERNEL).unwrap(), &launch, &mut memory)
        .map_err(|fault| fault.to_string())
        .and_then(|_| memory.read(sums, 4 * expected.len()).map_err(|error| error.to_string()));
    (found.map(|bytes| words(&bytes)), expected)
}

fn check(shape: [u32; 4], multiprocessors: u32, seed: u64) {
    let (found, expected) = sums(&kernel_text(), shape, multiprocessors, seed);
    assert_eq!(found, Ok(expected), "{shape:?}");
}

#[test]
fn lengths_of_blocks() {
    for block_bytes in [512, 1024, 1536, 2048, 2560, 4096, 4608, 8192, 16384] {
        check([2, 2 * block_bytes, 2 * block_bytes + 16, block_bytes], 3, block_bytes.into());
    }
}

/// Warps go on to other blocks, and across several rows at once.
#[test]
fn more_blocks_than_warps() {
    check([3, 512 * 19, 512 * 19, 512], 1, 1);
    check([40, 1024, 1040, 512], 2, 2);
    check([37, 512, 528, 512], 1, 3);
    check([1, 512, 512, 512], 1, 4);
    check([1, 512 * 35, 512 * 35, 512], 2, 5);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn random_shapes(
        rows in 1u32..6,
        blocks in 1u32..6,
        unit in 1u32..12,
        space in 0u32..4,
        processors in 1u32..4,
        seed: u64,
    ) {
        let (block_bytes, row_bytes) = (512 * unit, 512 * unit * blocks);
        check([rows, row_bytes, row_bytes + 16 * space, block_bytes], processors, seed);
    }
}

/// Tests that a kernel with an error of its own does not pass.
#[test]
fn changes_of_the_text_are_noticed() {
    let text = kernel_text();
    for (right, wrong) in [
        ("0xcc26", "0xcc25"),
        ("0x60402000", "0x60402010"),
        ("0x04040404", "0x04040408"),
        ("0x0f0f0f0f", "0x0f0f0f07"),
        ("selp.u32 start, 0xffffffff", "selp.u32 start, 0x7fffffff"),
        ("crc, 4, 31", "crc, 2, 31"),
        ("bar.sync 0;", ""),
        ("lop3.b32 e6, e6, e7, low7, 0x96", "lop3.b32 e6, e6, e7, low7, 0x97"),
        ("[at+128]", "[at+124]"),
        ("@p add.u32 row, row, 1;", ""),
        ("shl.b32 block_step, m, 4", "shl.b32 block_step, m, 3"),
        ("add.u64 address, address, 512;", ""),
    ] {
        assert!(text.contains(right), "{right}");
        let changed = text.replace(right, wrong);
        let (found, expected) = sums(&changed, [8, 9216, 9232, 3072], 1, 1);
        assert_ne!(found, Ok(expected), "{right}");
    }
}

proptest! {
    /// What moves a register forward is what appends a run of bytes.
    #[test]
    fn registers_move(seed: u64, first in 0usize..90, second in 0usize..300, lane in 0u32..32) {
        let bytes = random(first + second, seed);
        let (left, right) = bytes.split_at(first);
        let (a, b, n) = (crc32c(left), crc32c(right), second as u32);
        prop_assert_eq!(forward(a, n) ^ b, crc32c(&bytes));
        prop_assert_eq!(back(crc32c(&bytes) ^ b, n), a);
        // The same by the tables.
        let table = table();
        let entry = |four: u32| {
            let row = four / 2 * 16 + (a >> (4 * four) & 15);
            table[(2048 + 64 * row + 32 * (four % 2) + lane) as usize]
        };
        let moved = (0..8).map(entry).fold(0, |sum, entry| sum ^ entry);
        prop_assert_eq!(moved, back(a, 8 * lane));
    }

    /// A vector and 248 zeros, by the tables for steps.
    #[test]
    fn steps_append_256_bytes(before: u32, vector: [u8; 8]) {
        let table = table();
        let mut bytes = [0; 256];
        bytes[..8].copy_from_slice(&vector);
        // The checksum of bytes behind others, from that of the others.
        let expected = forward(before, 256) ^ crc32c(&bytes);
        let mut register = !before;
        let entries = vector.iter().enumerate().map(|(at, byte)| {
            let state = if at < 4 { register.to_le_bytes()[at] } else { 0 };
            table[8 * usize::from(byte ^ state) + at]
        });
        register = entries.fold(0, |sum, entry| sum ^ entry);
        prop_assert_eq!(!register, expected);
    }
}

#[test]
fn what_fits() {
    assert!(fits(8192, 4096) && fits(512, 512) && fits(0, 512));
    assert!(!fits(8192, 0) && !fits(8192, 256) && !fits(4096, 8192) && !fits(8192, 1000));
    assert!(!fits(1 << 32, 4096));
}

#[test]
fn sums_on_a_card() {
    let card = Card::with_driver(std::sync::Arc::new(Model::default())).unwrap();
    let sums = Sums::new(&card).unwrap();
    let driver = card.driver();
    let (rows, row_bytes, pitch, block_bytes) = (3, 8192, 8208, 4096);
    let bytes = random(rows as usize * pitch as usize, 9);
    let data = driver.allocate(bytes.len() as u64).unwrap();
    card.upload(data, &bytes).unwrap();
    let at = driver.allocate(4 * 6).unwrap();
    let stream = driver.stream().unwrap();
    let blocks = Blocks { data, rows, row_bytes, pitch, block_bytes };
    sums.launch(stream, &blocks, at).unwrap();
    let mut found = [0; 24];
    // SAFETY: the model copies at once, and both places have 24 bytes.
    unsafe { driver.copy_out(stream, found.as_mut_ptr(), at, Rows::one(24)).unwrap() };
    let blocks_of = |row: &[u8]| row[..8192].chunks(4096).map(crc32c).collect::<Vec<_>>();
    let expected: Vec<u32> = bytes.chunks(pitch as usize).flat_map(blocks_of).collect();
    assert_eq!(words(&found), expected);

    // Nothing to do, and what is not possible.
    sums.launch(stream, &Blocks { rows: 0, ..blocks }, at).unwrap();
    sums.launch(stream, &Blocks { row_bytes: 0, ..blocks }, at).unwrap();
    for wrong in [
        Blocks { block_bytes: 0, ..blocks },
        Blocks { block_bytes: 3000, ..blocks },
        Blocks { pitch: 8196, ..blocks },
        Blocks { data: data.plus(4), ..blocks },
        Blocks { rows: 1 << 31, ..blocks },
    ] {
        assert!(sums.launch(stream, &wrong, at).is_err(), "{wrong:?}");
    }
}
