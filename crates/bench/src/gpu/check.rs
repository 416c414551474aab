//! The bytes of a program, compared with those of the CPU.

use anyhow::bail;
use fieldstone_gf::LinearMap;
use fieldstone_gpu::Loaded;
use fieldstone_gpu::driver::Driver;
use fieldstone_gpu::program::PITCH_ALIGN_BYTES;

use super::arena::{Arena, noise};

/// Lengths of an element: a part of a tile, and several tiles with a part. Both are odd.
pub const ELEMENT_BYTES: [usize; 2] = [1003, 33_331];
/// The content of outputs before the launch. A byte that no program writes keeps it.
const POISON: u8 = 0xa5;

/// Executes a map with elements of this length on the card and on the CPU.
///
/// # Errors
/// A byte differs, or the card has failed.
pub fn check(
    arena: &Arena,
    map: &LinearMap,
    program: &Loaded,
    element_bytes: usize,
) -> anyhow::Result<()> {
    let pitch = element_bytes.next_multiple_of(PITCH_ALIGN_BYTES as usize);
    let shape = map.shape();
    let buffer = |counts: &[u32]| -> Vec<Vec<u8>> {
        counts.iter().map(|&count| vec![0; count as usize * element_bytes]).collect()
    };
    let on_card = |counts: &[u32]| -> u64 {
        counts.iter().map(|&count| u64::from(count) * pitch as u64).sum()
    };
    let first_output = on_card(&shape.input_elements);
    let output_bytes = on_card(&shape.output_elements);
    if first_output + output_bytes > arena.len_bytes() {
        bail!("the card has too little memory for the check of the program's bytes");
    }
    let mut inputs = buffer(&shape.input_elements);
    let mut at = 0;
    for ((seed, input), &count) in (2..).zip(&mut inputs).zip(&shape.input_elements) {
        *input = noise(seed, input.len());
        arena.copy_in(at, input, (element_bytes, pitch))?;
        at += u64::from(count) * pitch as u64;
    }
    arena.time(|driver: &dyn Driver| {
        driver.fill(arena.stream, arena.at(first_output), POISON, output_bytes)?;
        program.launch(arena.stream, arena.at(0), arena.at(first_output), pitch as u32)
    })?;
    let mut outputs = buffer(&shape.output_elements);
    for (output, &count) in outputs.iter_mut().zip(&shape.output_elements) {
        arena.copy_out(at, output, (element_bytes, pitch))?;
        at += u64::from(count) * pitch as u64;
    }
    let mut expected = buffer(&shape.output_elements);
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut slices: Vec<&mut [u8]> = expected.iter_mut().map(Vec::as_mut_slice).collect();
    map.execute(&inputs, &mut slices)?;
    for (shard, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
        if let Some(byte) = output.iter().zip(expected).position(|(a, b)| a != b) {
            bail!(
                "the card computes other bytes than the CPU: first at byte {byte} of output \
                 {shard}, with elements of {element_bytes} bytes"
            );
        }
    }
    Ok(())
}
