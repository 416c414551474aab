//! Launches of the kernel in the interpreter, for tests.

use fieldstone_crush::ItemId;

use super::{BLOCK_THREADS, Image, KERNEL, shared_bytes};
use crate::interpreter::{Launch, Memory, Module, Param, run};

/// Instructions of a launch. A kernel that never ends fails soon.
const BUDGET: u64 = 1 << 28;

/// Maps all inputs, and returns the rows up to their lengths. The rest of a row must be empty.
pub(super) fn launch(
    text: &str,
    image: &Image,
    xs: &[u32],
    width: u32,
    grid: u32,
) -> Vec<Vec<i32>> {
    let (mut rows, lens) = launch_whole(text, image, xs, width, grid);
    for (row, len) in rows.iter_mut().zip(lens) {
        let rest = row.split_off(len as usize);
        assert!(rest.iter().all(|&item| item == ItemId::NONE.0), "{rest:x?} after the result");
    }
    rows
}

/// Maps all inputs, and returns whole rows, and their lengths.
pub(super) fn launch_whole(
    text: &str,
    image: &Image,
    xs: &[u32],
    width: u32,
    grid: u32,
) -> (Vec<Vec<i32>>, Vec<u32>) {
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let mut memory = Memory::new();
    let image = memory.alloc_with(image.bytes());
    let inputs: Vec<u8> = xs.iter().flat_map(|x| x.to_le_bytes()).collect();
    let inputs = memory.alloc_with(&inputs);
    let row_bytes = 4 * width as usize;
    let (rows, lens) = (memory.alloc(xs.len() * row_bytes), memory.alloc(xs.len() * 4));
    let params = vec![
        Param::U64(image),
        Param::U64(inputs),
        Param::U32(xs.len() as u32),
        Param::U32(width),
        Param::U64(rows),
        Param::U64(lens),
    ];
    let shared_bytes = shared_bytes(width).unwrap();
    let (block, budget) = (BLOCK_THREADS, BUDGET);
    let launch = Launch { grid, block, shared_bytes, params, budget, ..Launch::default() };
    let done = run(module.kernel(KERNEL).unwrap(), &launch, &mut memory);
    done.unwrap_or_else(|fault| panic!("{fault}"));
    let words = |at, count: usize| -> Vec<u32> {
        let bytes = memory.read(at, 4 * count).unwrap();
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    let items = words(rows, xs.len() * width as usize);
    let rows = items.chunks(width as usize);
    let rows = rows.map(|row| row.iter().map(|&item| item as i32).collect());
    (rows.collect(), words(lens, xs.len()))
}
