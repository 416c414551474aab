//! The layout of a shard's elements in its bytes.
//!
//! A code is a [`LinearMap`] over elements. For codes over bytes, the elements of a shard are its
//! equal parts, one after the other, and the map runs on the shards as they are. Jerasure's codes
//! over bits store their elements differently. This module connects the two: the map stays a plain
//! program that any engine can execute, and [`Layout::execute`] finds its elements.
//!
//! - **Packets** (`cauchy-orig`, `cauchy-good`): a shard is a sequence of blocks of w packets.
//!   Packet i of a block is element i, so the map runs block by block.
//! - **Words** (`jerasure-van`, `jerasure-r6` with w = 16, 32): a shard is a sequence of
//!   little-endian words, and element i is the plane of all bits i. The module converts slices of
//!   the shards to planes, executes the map on these, and converts the result back.
//!   `docs/decisions/0008` says why.

use fieldstone_gf::{LinearMap, ShapeError, WordField};

/// The layout of a shard's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Element i is the i-th of equal parts of the shard.
    Contiguous,
    /// Blocks of one packet for each element.
    Packets {
        /// Bytes of a packet.
        packet_bytes: usize,
    },
    /// Little-endian words; element i consists of the bits i of all words.
    Words {
        /// The field, which gives the bits of a word.
        field: WordField,
    },
}

/// Most bytes of a bit plane in one slice. A larger number makes each pass of the map longer; a
/// smaller one keeps all planes in the first two cache levels. This is the best number for 8 + 3
/// shards of 16 and 32 bits.
const MAX_PLANE_BYTES: usize = 512;
/// Planes have multiples of this length.
const PLANE_STEP_BYTES: usize = 16;

impl Layout {
    /// Lengths of shards must be multiples of this number of bytes. `elements` is that of the code.
    #[must_use]
    pub fn granule_bytes(self, elements: u32) -> usize {
        match self {
            Self::Contiguous => elements as usize,
            Self::Packets { packet_bytes } => packet_bytes * elements as usize,
            Self::Words { field } => field.bytes(),
        }
    }

    /// Executes a map of a code with this layout. Inputs are the reads of the map's plan. Lengths
    /// are as in [`LinearMap::execute`], and multiples of [`Layout::granule_bytes`].
    ///
    /// # Errors
    /// Numbers or lengths of buffers do not fit the map or the layout. Then no output is written.
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

/// Checks that every buffer holds whole blocks of one packet for each element, and that all hold
/// the same number of blocks.
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

/// Checks that all buffers hold the same number of words. A shard of a map is a whole shard here,
/// whatever its elements are: codes over words read and write only whole shards.
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
    let mut slice = SlicePlanes::new(field, shard_bytes.min(MAX_PLANE_BYTES * field.bits()));
    let mut input_planes = vec![0u8; slice.bytes() * inputs.len()];
    let mut output_planes = vec![0u8; slice.bytes() * outputs.len()];
    let mut start = 0;
    while start < shard_bytes {
        let end = shard_bytes.min(start + slice.bytes());
        // The last slice may be shorter.
        slice = SlicePlanes::new(field, end - start);
        let bytes = slice.bytes();
        for (planes, input) in input_planes.chunks_exact_mut(bytes).zip(inputs) {
            slice.split(&input[start..end], planes);
        }
        let planes: Vec<&[u8]> = input_planes.chunks_exact(bytes).take(inputs.len()).collect();
        let mut results: Vec<&mut [u8]> =
            output_planes.chunks_exact_mut(bytes).take(outputs.len()).collect();
        map.execute(&planes, &mut results)?;
        for (planes, output) in results.into_iter().zip(outputs.iter_mut()) {
            slice.join(planes, &mut output[start..end]);
        }
        start = end;
    }
    Ok(())
}

/// The bit planes of a slice of a shard, one after the other.
///
/// The position of a word's bits within a plane does not matter, as long as it is the same in all
/// shards. Word i p + j of a slice, with planes of p bytes, has bit i of byte j. So operations on
/// whole vectors of neighbouring words turn eight runs of words into eight planes, for every byte
/// of a word.
#[derive(Clone, Copy)]
struct SlicePlanes {
    field: WordField,
    /// Bytes of one plane.
    plane_bytes: usize,
}

impl SlicePlanes {
    /// Planes for `len_bytes` bytes of words, which is not zero. Zeros fill the planes up to a
    /// multiple of the step.
    fn new(field: WordField, len_bytes: usize) -> Self {
        let steps = len_bytes.div_ceil(field.bits() * PLANE_STEP_BYTES).max(1);
        Self { field, plane_bytes: steps * PLANE_STEP_BYTES }
    }

    /// Bytes of all planes; a buffer of words for them has the same number.
    fn bytes(self) -> usize {
        self.plane_bytes * self.field.bits()
    }

    /// Converts words to planes. Words beyond the end count as zero.
    fn split(self, words: &[u8], planes: &mut [u8]) {
        let word_bytes = self.field.bytes();
        let run_bytes = self.plane_bytes * word_bytes;
        for run in 0..8 {
            let start = words.len().min(run * run_bytes);
            let words = &words[start..words.len().min(start + run_bytes)];
            for lane in 0..word_bytes {
                let row = &mut planes[(8 * lane + run) * self.plane_bytes..][..self.plane_bytes];
                let (row, beyond) = row.split_at_mut(words.len() / word_bytes);
                take_lane(self.field, words, lane, row);
                beyond.fill(0);
            }
        }
        planes.chunks_exact_mut(8 * self.plane_bytes).for_each(transpose);
    }

    /// Converts planes to words, and overwrites the planes. Words beyond the end are dropped.
    fn join(self, planes: &mut [u8], words: &mut [u8]) {
        planes.chunks_exact_mut(8 * self.plane_bytes).for_each(transpose);
        let run_bytes = self.plane_bytes * self.field.bytes();
        for (run, words) in words.chunks_mut(run_bytes).enumerate() {
            let row = |lane| &planes[(8 * lane + run) * self.plane_bytes..][..self.plane_bytes];
            put_lanes(self.field, row, words);
        }
    }
}

/// Extracts byte `lane` of every word. Shifts of whole words let the compiler use vectors.
fn take_lane(field: WordField, words: &[u8], lane: usize, row: &mut [u8]) {
    let shift = 8 * lane;
    match field {
        WordField::W8 => row.copy_from_slice(words),
        WordField::W16 => {
            for (byte, word) in row.iter_mut().zip(words.as_chunks().0) {
                *byte = (u16::from_le_bytes(*word) >> shift) as u8;
            }
        }
        WordField::W32 => {
            for (byte, word) in row.iter_mut().zip(words.as_chunks().0) {
                *byte = (u32::from_le_bytes(*word) >> shift) as u8;
            }
        }
    }
}

/// Makes words of their bytes: the inverse of [`take_lane`] for all lanes. `row` gives the bytes of
/// a lane.
fn put_lanes<'a>(field: WordField, row: impl Fn(usize) -> &'a [u8], words: &mut [u8]) {
    match field {
        WordField::W8 => words.copy_from_slice(&row(0)[..words.len()]),
        WordField::W16 => {
            let lanes = row(0).iter().zip(row(1));
            for (word, (&a, &b)) in words.as_chunks_mut().0.iter_mut().zip(lanes) {
                *word = [a, b];
            }
        }
        WordField::W32 => {
            let lanes = row(0).iter().zip(row(1)).zip(row(2)).zip(row(3));
            for (word, (((&a, &b), &c), &d)) in words.as_chunks_mut().0.iter_mut().zip(lanes) {
                *word = [a, b, c, d];
            }
        }
    }
}

/// Bytes of each row that are transposed at once, in vector registers.
const TRANSPOSE_BYTES: usize = 16;
/// A vector of that many bytes.
type Vector = [u64; TRANSPOSE_BYTES / 8];

fn word_at(bytes: &[u8], word: usize) -> u64 {
    let bytes = bytes[8 * word..8 * word + 8].try_into();
    u64::from_le_bytes(bytes.expect("eight bytes"))
}

/// Transposes eight rows of bytes: bit b of row i becomes bit i of row b, in every byte. Blocks of
/// 4, 2 and 1 bits are exchanged across the diagonal (Warren, Hacker's Delight, section 7-3).
fn transpose(rows: &mut [u8]) {
    let row_bytes = rows.len() / 8;
    for at in (0..row_bytes).step_by(TRANSPOSE_BYTES) {
        let place = |row: usize| row * row_bytes + at..row * row_bytes + at + TRANSPOSE_BYTES;
        // The length is a constant, so this loop becomes two loads.
        let load = |row: usize| {
            let bytes = &rows[place(row)];
            std::array::from_fn(|word| word_at(bytes, word))
        };
        let mut vectors: [Vector; 8] = std::array::from_fn(load);
        exchange::<4>(&mut vectors, 0x0f);
        exchange::<2>(&mut vectors, 0x33);
        exchange::<1>(&mut vectors, 0x55);
        for (row, vector) in vectors.iter().enumerate() {
            for (bytes, word) in rows[place(row)].chunks_exact_mut(8).zip(vector) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

/// Exchanges bits b + SIZE of row i with bits b of row i + SIZE, for the bits b that are set in
/// `mask`.
fn exchange<const SIZE: usize>(rows: &mut [Vector; 8], mask: u8) {
    let mask = u64::from_ne_bytes([mask; 8]);
    for low in (0..8).filter(|row| row & SIZE == 0) {
        let high = low + SIZE;
        for word in 0..rows[low].len() {
            let swap = ((rows[low][word] >> SIZE) ^ rows[high][word]) & mask;
            rows[high][word] ^= swap;
            rows[low][word] ^= swap << SIZE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_transpose_exchanges_rows_and_bits() {
        for (row, byte, bit) in [(0, 0, 0), (1, 3, 6), (7, 40, 0), (2, 63, 5), (5, 17, 5)] {
            let mut rows = [0u8; 8 * 64];
            rows[row * 64 + byte] = 1 << bit;
            transpose(&mut rows);
            let mut expected = [0u8; 8 * 64];
            expected[bit * 64 + byte] = 1 << row;
            assert_eq!(rows, expected);
        }
    }

    proptest! {
        #[test]
        fn planes_hold_the_bits_of_words_and_give_them_back(
            words in proptest::collection::vec(any::<u32>(), 0..300),
        ) {
            for field in WordField::ALL {
                let bytes = field.bytes();
                let shard: Vec<u8> =
                    words.iter().flat_map(|word| word.to_le_bytes()[..bytes].to_vec()).collect();
                let slice = SlicePlanes::new(field, shard.len());
                let mut planes = vec![0x99; slice.bytes()];
                slice.split(&shard, &mut planes);
                for number in 0..8 * slice.plane_bytes {
                    let word = words.get(number).copied().unwrap_or(0);
                    let (row, byte) = (number / slice.plane_bytes, number % slice.plane_bytes);
                    for bit in 0..field.bits() {
                        let plane = planes[bit * slice.plane_bytes + byte];
                        prop_assert_eq!(u32::from(plane >> row & 1), word >> bit & 1);
                    }
                }
                let mut back = vec![0xaa; shard.len()];
                slice.join(&mut planes, &mut back);
                prop_assert_eq!(back, shard);
            }
        }
    }
}
