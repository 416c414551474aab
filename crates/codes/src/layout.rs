//! Where the elements of a shard lie in its bytes.
//!
//! A code is a [`LinearMap`] over elements. For codes over bytes the elements of a shard are its
//! equal parts, one after the other, and the map is executed on the shards as they are. Jerasure's
//! codes over bits store them otherwise, and this module brings the two together: the map stays a
//! plain program, which any engine executes, and [`Layout::execute`] finds its elements.
//!
//! - **Packets** (`cauchy-orig`, `cauchy-good`): a shard is a run of blocks of w packets. Packet i
//!   of a block is element i, so the map is executed block by block.
//! - **Words** (`jerasure-van`, `jerasure-r6` with w = 16, 32): a shard is a run of little-endian
//!   words, and element i is the plane of all bits i. Slices of the shards are turned into planes,
//!   the map is executed on those, and the result is turned back. `docs/decisions/0008` says why.

use fieldstone_gf::{LinearMap, ShapeError, WordField};

/// Where the elements of a shard lie in its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Element i is the i-th of equal parts of the shard.
    Contiguous,
    /// Blocks of one packet for each element.
    Packets {
        /// Bytes of a packet.
        packet_bytes: usize,
    },
    /// Little-endian words; element i is made of the bits i of all words.
    Words {
        /// The field, which gives the bits of a word.
        field: WordField,
    },
}

/// Bytes of a bit plane that are treated at once: the planes of 4 + 2 shards of 32 bits fit the
/// first cache level.
const PLANE_BYTES: usize = 128;

impl Layout {
    /// Lengths of shards must be multiples of this, in bytes; `elements` is that of the code.
    #[must_use]
    pub fn granule_bytes(self, elements: u32) -> usize {
        match self {
            Self::Contiguous => elements as usize,
            Self::Packets { packet_bytes } => packet_bytes * elements as usize,
            Self::Words { field } => field.bytes(),
        }
    }

    /// Executes a map of a code that has this layout. Inputs are what the map's plan reads;
    /// lengths are as [`LinearMap::execute`] wants them, and multiples of
    /// [`Layout::granule_bytes`].
    ///
    /// # Errors
    /// Numbers or lengths of buffers do not fit the map or the layout. Nothing is written then.
    pub fn execute(
        self,
        map: &LinearMap,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), ShapeError> {
        match self {
            Self::Contiguous => map.execute(inputs, outputs),
            Self::Packets { packet_bytes } => {
                check(map, packet_bytes, inputs, outputs)?;
                execute_packets(map, packet_bytes, inputs, outputs)
            }
            Self::Words { field } => {
                check_words(map, field, inputs, outputs)?;
                execute_words(map, field, inputs, outputs)
            }
        }
    }
}

/// Checks that every buffer holds whole blocks of one packet for each element, and equally many.
fn check(
    map: &LinearMap,
    packet_bytes: usize,
    inputs: &[&[u8]],
    outputs: &[&mut [u8]],
) -> Result<(), ShapeError> {
    let element_bytes = map.element_bytes(inputs)?;
    if !element_bytes.is_multiple_of(packet_bytes) {
        let expected = element_bytes.next_multiple_of(packet_bytes) * elements(map, 0);
        let given = inputs[0].len();
        return Err(ShapeError::Length { side: "input", shard: 0, expected, given });
    }
    check_outputs(map, element_bytes, outputs, |element_bytes, n| element_bytes * n)
}

/// Checks that every buffer holds equally many words. A map's shard of any elements is a whole
/// shard here: codes over words read and write nothing less.
fn check_words(
    map: &LinearMap,
    field: WordField,
    inputs: &[&[u8]],
    outputs: &[&mut [u8]],
) -> Result<(), ShapeError> {
    let counts = [("input", map.inputs(), inputs.len()), ("output", map.outputs(), outputs.len())];
    for (side, expected, given) in counts {
        if expected != given {
            return Err(ShapeError::ShardCount { side, expected, given });
        }
    }
    let expected = inputs[0].len();
    if !expected.is_multiple_of(field.bytes()) {
        let elements = field.bytes() as u32;
        return Err(ShapeError::NotDivisible { len_bytes: expected, elements });
    }
    let inputs = inputs.iter().map(|input| ("input", input.len())).enumerate();
    let outputs = outputs.iter().map(|output| ("output", output.len())).enumerate();
    for (shard, (side, given)) in inputs.chain(outputs) {
        if given != expected {
            return Err(ShapeError::Length { side, shard, expected, given });
        }
    }
    Ok(())
}

fn check_outputs(
    map: &LinearMap,
    element_bytes: usize,
    outputs: &[&mut [u8]],
    bytes: impl Fn(usize, usize) -> usize,
) -> Result<(), ShapeError> {
    let shards = &map.shape().output_elements;
    if shards.len() != outputs.len() {
        let (expected, given) = (shards.len(), outputs.len());
        return Err(ShapeError::ShardCount { side: "output", expected, given });
    }
    for (shard, (&elements, output)) in shards.iter().zip(outputs).enumerate() {
        let (expected, given) = (bytes(element_bytes, elements as usize), output.len());
        if expected != given {
            return Err(ShapeError::Length { side: "output", shard, expected, given });
        }
    }
    Ok(())
}

fn elements(map: &LinearMap, input: usize) -> usize {
    map.shape().input_elements[input] as usize
}

fn execute_packets(
    map: &LinearMap,
    packet_bytes: usize,
    inputs: &[&[u8]],
    outputs: &mut [&mut [u8]],
) -> Result<(), ShapeError> {
    let blocks = inputs[0].len() / (packet_bytes * elements(map, 0));
    let input_block = |shard: usize| packet_bytes * elements(map, shard);
    let mut block_inputs = vec![&[][..]; inputs.len()];
    let mut rests: Vec<&mut [u8]> = outputs.iter_mut().map(|output| &mut **output).collect();
    for block in 0..blocks {
        for (shard, (part, input)) in block_inputs.iter_mut().zip(inputs).enumerate() {
            let bytes = input_block(shard);
            *part = &input[block * bytes..(block + 1) * bytes];
        }
        let mut block_outputs: Vec<&mut [u8]> = Vec::with_capacity(rests.len());
        for (rest, &elements) in rests.iter_mut().zip(&map.shape().output_elements) {
            let (part, next) = std::mem::take(rest).split_at_mut(packet_bytes * elements as usize);
            block_outputs.push(part);
            *rest = next;
        }
        map.execute(&block_inputs, &mut block_outputs)?;
    }
    Ok(())
}

fn execute_words(
    map: &LinearMap,
    field: WordField,
    inputs: &[&[u8]],
    outputs: &mut [&mut [u8]],
) -> Result<(), ShapeError> {
    let shard_bytes = inputs[0].len();
    // A plane of one byte holds the bits of 8 words, so both have equally many bytes.
    let slice_bytes = (PLANE_BYTES * field.bits()).min(shard_bytes.next_multiple_of(field.bits()));
    let mut input_planes = vec![0u8; slice_bytes * inputs.len()];
    let mut output_planes = vec![0u8; slice_bytes * outputs.len()];
    let mut start = 0;
    while start < shard_bytes {
        let end = shard_bytes.min(start + slice_bytes);
        // Words beyond the end count as zero, up to a whole byte of every plane.
        let bytes = (end - start).next_multiple_of(field.bits());
        for (planes, input) in input_planes.chunks_exact_mut(slice_bytes).zip(inputs) {
            to_planes(field, &input[start..end], &mut planes[..bytes]);
        }
        let planes: Vec<&[u8]> =
            input_planes.chunks_exact(slice_bytes).map(|planes| &planes[..bytes]).collect();
        let mut results: Vec<&mut [u8]> = output_planes
            .chunks_exact_mut(slice_bytes)
            .map(|planes| &mut planes[..bytes])
            .collect();
        map.execute(&planes, &mut results)?;
        for (planes, output) in results.iter().zip(outputs.iter_mut()) {
            from_planes(field, planes, &mut output[start..end]);
        }
        start = end;
    }
    Ok(())
}

/// Eight words at a time: byte lane b of each, as an 8 x 8 bit matrix, holds one byte of each of
/// the planes 8 b .. 8 b + 8. `planes` is the next multiple of w bytes long.
fn to_planes(field: WordField, words: &[u8], planes: &mut [u8]) {
    let (word_bytes, plane_bytes) = (field.bytes(), planes.len() / field.bits());
    let mut padded = [0u8; 32];
    for at in 0..plane_bytes {
        let group = &words[at * field.bits()..words.len().min((at + 1) * field.bits())];
        let group = if group.len() == field.bits() {
            group
        } else {
            padded[..group.len()].copy_from_slice(group);
            &padded[..field.bits()]
        };
        for lane in 0..word_bytes {
            let bytes: [u8; 8] = std::array::from_fn(|word| group[word * word_bytes + lane]);
            let bits = transpose(u64::from_le_bytes(bytes)).to_le_bytes();
            for (bit, byte) in bits.into_iter().enumerate() {
                planes[(8 * lane + bit) * plane_bytes + at] = byte;
            }
        }
    }
}

/// The inverse of [`to_planes`]; words beyond the end of `words` are dropped.
fn from_planes(field: WordField, planes: &[u8], words: &mut [u8]) {
    let (word_bytes, plane_bytes) = (field.bytes(), planes.len() / field.bits());
    let mut group = [0u8; 32];
    for (at, target) in words.chunks_mut(field.bits()).enumerate() {
        for lane in 0..word_bytes {
            let bytes: [u8; 8] =
                std::array::from_fn(|bit| planes[(8 * lane + bit) * plane_bytes + at]);
            let bits = transpose(u64::from_le_bytes(bytes)).to_le_bytes();
            for (word, byte) in bits.into_iter().enumerate() {
                group[word * word_bytes + lane] = byte;
            }
        }
        target.copy_from_slice(&group[..target.len()]);
    }
}

/// The transpose of an 8 x 8 bit matrix whose row i is byte i: it swaps blocks of 1, 2 and 4 bits
/// across the diagonal (Warren, Hacker's Delight, section 7-3).
fn transpose(mut matrix: u64) -> u64 {
    for (shift, mask) in
        [(7, 0x00aa_00aa_00aa_00aa), (14, 0x0000_cccc_0000_cccc), (28, 0x0000_0000_f0f0_f0f0)]
    {
        let swap = (matrix ^ (matrix >> shift)) & mask;
        matrix ^= swap ^ (swap << shift);
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_transpose_exchanges_rows_and_columns() {
        for row in 0..8 {
            for column in 0..8 {
                assert_eq!(transpose(1 << (8 * row + column)), 1 << (8 * column + row));
            }
        }
    }

    proptest! {
        #[test]
        fn planes_hold_the_bits_of_words_and_give_them_back(
            words in proptest::collection::vec(any::<u32>(), 0..40),
        ) {
            for field in [WordField::W16, WordField::W32] {
                let bytes = field.bytes();
                let shard: Vec<u8> =
                    words.iter().flat_map(|word| word.to_le_bytes()[..bytes].to_vec()).collect();
                let mut planes = vec![0; shard.len().next_multiple_of(field.bits())];
                to_planes(field, &shard, &mut planes);
                let plane_bytes = planes.len() / field.bits();
                for (number, word) in words.iter().enumerate() {
                    for bit in 0..field.bits() {
                        let plane = &planes[bit * plane_bytes..(bit + 1) * plane_bytes];
                        prop_assert_eq!(
                            u32::from(plane[number / 8] >> (number % 8) & 1),
                            word >> bit & 1
                        );
                    }
                }
                let mut back = vec![0xaa; shard.len()];
                from_planes(field, &planes, &mut back);
                prop_assert_eq!(back, shard);
            }
        }
    }
}
