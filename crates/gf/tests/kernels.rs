//! Every kernel gives the bits of a naive interpreter that knows only field multiplication: on
//! random programs, odd lengths and misaligned buffers, for every kind of stores, and for replaced
//! and accumulated outputs.

mod common;

use common::random_map;
use fieldstone_gf::{
    Element, Kernel, LinearMap, MapError, Matrix, Options, Row, Shape, ShapeError, Source,
    StoreMode, Target, Term, Update, field,
};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The outputs of the program, computed directly from its steps.
fn interpret(map: &LinearMap, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let shape = map.shape();
    let element_bytes = inputs[0].len() / shape.input_elements[0] as usize;
    let mut scratch = vec![vec![0; element_bytes]; shape.scratch_elements as usize];
    let mut outputs: Vec<Vec<u8>> = shape
        .output_elements
        .iter()
        .map(|&elements| vec![0; elements as usize * element_bytes])
        .collect();
    for row in map.steps().iter().flatten() {
        let mut sum = vec![0u8; element_bytes];
        for term in &row.terms {
            let source = match term.source {
                Source::Input(Element { shard, index }) => {
                    &inputs[usize::from(shard)][index as usize * element_bytes..][..element_bytes]
                }
                Source::Scratch(index) => &scratch[index as usize][..],
            };
            for (sum, &byte) in sum.iter_mut().zip(source) {
                *sum ^= field::mul(term.coefficient, byte);
            }
        }
        match row.target {
            Target::Scratch(index) => scratch[index as usize] = sum,
            Target::Output(Element { shard, index }) => {
                let at = index as usize * element_bytes;
                outputs[usize::from(shard)][at..at + element_bytes].copy_from_slice(&sum);
            }
        }
    }
    outputs
}

/// Every way to execute on this CPU.
fn all_options() -> impl Iterator<Item = Options> {
    let kernels = Kernel::ALL.into_iter().filter(|kernel| kernel.is_available());
    kernels.flat_map(|kernel| {
        let modes = [StoreMode::Auto, StoreMode::Plain, StoreMode::Streaming];
        modes.into_iter().flat_map(move |stores| {
            [Update::Replace, Update::Accumulate].map(|update| Options { kernel, stores, update })
        })
    })
}

/// Runs every available kernel in every mode, on inputs that start at odd addresses and outputs
/// that start at odd addresses with or without a common alignment. Checks every output byte, and
/// that the bytes around the outputs do not change.
fn check_all_kernels(map: &LinearMap, element_bytes: usize, rng: &mut ChaCha8Rng) {
    const GUARD: usize = 130;
    let shape = map.shape();
    let inputs: Vec<Vec<u8>> = shape
        .input_elements
        .iter()
        .map(|&n| (0..n as usize * element_bytes).map(|_| rng.random()).collect())
        .collect();
    let expected = interpret(map, &inputs);
    let shifted: Vec<(usize, Vec<u8>)> = inputs
        .iter()
        .map(|input| {
            let shift = rng.random_range(0..64);
            (shift, [vec![0xee; shift], input.clone()].concat())
        })
        .collect();
    let input_slices: Vec<&[u8]> = shifted.iter().map(|(shift, all)| &all[*shift..]).collect();
    for options in all_options() {
        let mut buffers: Vec<Vec<u8>> =
            expected.iter().map(|output| vec![0xa5; output.len() + 2 * GUARD]).collect();
        let common = rng.random_bool(0.5).then(|| rng.random_range(0..64));
        let mut shift = |buffer: &Vec<u8>| match common {
            Some(past) => (64 - buffer.as_ptr().addr() % 64) + past,
            None => rng.random_range(0..GUARD),
        };
        let shifts: Vec<usize> = buffers.iter().map(&mut shift).collect();
        let mut outputs: Vec<&mut [u8]> = buffers
            .iter_mut()
            .zip(&shifts)
            .zip(&expected)
            .map(|((buffer, &shift), output)| &mut buffer[shift..shift + output.len()])
            .collect();
        map.execute_with(options, &input_slices, &mut outputs).expect("lengths fit");
        for (shard, (buffer, output)) in buffers.iter().zip(&expected).enumerate() {
            let (before, rest) = buffer.split_at(shifts[shard]);
            let (written, after) = rest.split_at(output.len());
            let old = if options.update == Update::Accumulate { 0xa5 } else { 0 };
            let right = written.iter().zip(output).all(|(&written, &sum)| written == sum ^ old);
            assert!(right, "{options:?}, output {shard}, {element_bytes} bytes");
            let untouched = before.iter().chain(after).all(|&byte| byte == 0xa5);
            assert!(untouched, "{options:?} wrote outside output {shard}, {element_bytes} bytes");
        }
    }
}

/// 1 / (i xor j): the form in which rows and sources form pairs. `shuffle` hides the pairs.
fn cauchy(rows: usize, columns: usize, shuffle: bool, rng: &mut ChaCha8Rng) -> Matrix {
    let mut points: Vec<usize> = (0..columns + rows).collect();
    if shuffle {
        let (sources, targets) = points.split_at_mut(columns);
        for list in [sources, targets] {
            for at in 0..list.len() {
                list.swap(at, rng.random_range(at..list.len()));
            }
        }
    }
    Matrix::from_fn(rows, columns, |row, column| {
        field::inverse((points[columns + row] ^ points[column]) as u8).expect("points differ")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn kernels_agree_with_the_interpreter(seed: u64, element_bytes in 0usize..700) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let map = random_map(&mut rng);
        check_all_kernels(&map, element_bytes, &mut rng);
    }
}

#[test]
fn every_length_around_the_vector_sizes_is_right() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for (rows, columns) in [(1, 4), (2, 5), (3, 6), (4, 7), (5, 3)] {
        for first_ones in [false, true] {
            let matrix = Matrix::from_fn(rows, columns, |row, _| {
                if first_ones && row == 0 { 1 } else { rng.random_range(1..=255) }
            });
            let map = LinearMap::from_matrix(&matrix).unwrap();
            for element_bytes in (0..300).chain(500..530) {
                check_all_kernels(&map, element_bytes, &mut rng);
            }
        }
    }
}

#[test]
fn cauchy_matrices_and_their_inverses_are_right_in_any_order() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for (rows, columns) in [(2, 2), (2, 4), (2, 5), (3, 6), (3, 8), (4, 10), (4, 12), (6, 40)] {
        for shuffle in [false, true] {
            let matrix = cauchy(rows, columns, shuffle, &mut rng);
            let map = LinearMap::from_matrix(&matrix).unwrap();
            for element_bytes in [1, 63, 64, 300, 1000] {
                check_all_kernels(&map, element_bytes, &mut rng);
            }
        }
        let square = cauchy(rows, rows, false, &mut rng).invert().expect("a Cauchy matrix");
        let map = LinearMap::from_matrix(&square).unwrap();
        check_all_kernels(&map, 777, &mut rng);
    }
}

#[test]
fn ones_in_rows_and_columns_are_right() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for rows in 1..=4 {
        for (ones_row, ones_columns) in [(0, 0), (0, 1), (rows - 1, 2), (rows, 3), (rows, 7)] {
            let matrix = Matrix::from_fn(rows, 7, |row, column| {
                let is_one = row == ones_row || column < ones_columns;
                if is_one { 1 } else { rng.random_range(2..=255) }
            });
            let map = LinearMap::from_matrix(&matrix).unwrap();
            check_all_kernels(&map, 900, &mut rng);
        }
    }
}

#[test]
fn large_executions_are_right_with_both_kinds_of_stores() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let one_pass = LinearMap::from_matrix(&cauchy(2, 3, false, &mut rng)).unwrap();
    let sliced = LinearMap::new(
        2,
        2,
        2,
        (0..4)
            .map(|row| vec![Term::input(0, row % 2, 1), Term::input(1, row / 2, 2 + row as u8)])
            .collect(),
    )
    .unwrap();
    for map in [one_pass, sliced] {
        let elements: u32 = map.shape().input_elements.iter().sum();
        let element_bytes = (16 << 20) / elements as usize + 77;
        let inputs: Vec<Vec<u8>> = (map.shape().input_elements.iter())
            .map(|&n| (0..n as usize * element_bytes).map(|_| rng.random()).collect())
            .collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let run = |options: Options| {
            let shards = map.shape().output_elements.iter();
            let mut outputs: Vec<Vec<u8>> =
                shards.map(|&n| vec![1; n as usize * element_bytes]).collect();
            let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            map.execute_with(options, &inputs, &mut slices).unwrap();
            outputs
        };
        let expected = run(Kernel::Scalar.into());
        for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
            for stores in [StoreMode::Plain, StoreMode::Streaming] {
                let options = Options { stores, ..kernel.into() };
                assert!(run(options) == expected, "{options:?}");
            }
        }
    }
}

#[test]
fn accumulating_twice_changes_nothing_and_matches_a_delta() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let matrix = cauchy(3, 8, false, &mut rng);
    let encode = LinearMap::from_matrix(&matrix).unwrap();
    let mut data: Vec<Vec<u8>> = (0..8).map(|_| (0..500).map(|_| rng.random()).collect()).collect();
    let parity = |data: &[Vec<u8>]| {
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity = vec![vec![0u8; 500]; 3];
        let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        encode.execute(&data, &mut slices).unwrap();
        parity
    };
    let before = parity(&data);
    let column = Matrix::from_fn(3, 1, |row, _| matrix.row(row)[5]);
    let delta_map = LinearMap::from_matrix(&column).unwrap();
    let delta: Vec<u8> = (0..500).map(|_| rng.random()).collect();
    let mut updated = before.clone();
    let add = |updated: &mut Vec<Vec<u8>>| {
        let mut slices: Vec<&mut [u8]> = updated.iter_mut().map(Vec::as_mut_slice).collect();
        delta_map.accumulate(&[&delta], &mut slices).unwrap();
    };
    add(&mut updated);
    data[5].iter_mut().zip(&delta).for_each(|(byte, delta)| *byte ^= delta);
    assert_eq!(updated, parity(&data));
    add(&mut updated);
    assert_eq!(updated, before);
}

#[test]
fn elements_longer_than_a_slice_and_rows_wider_than_a_pass_are_right() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let wide = Matrix::from_fn(6, 100, |row, _| if row == 0 { 1 } else { rng.random() });
    let wide = LinearMap::from_matrix(&wide).unwrap();
    let xor = LinearMap::from_matrix(&Matrix::from_fn(1, 70, |_, _| 1)).unwrap();
    for element_bytes in [4095, 4096, 4097, 9001] {
        check_all_kernels(&wide, element_bytes, &mut rng);
        check_all_kernels(&xor, element_bytes, &mut rng);
    }
    for _ in 0..10 {
        let map = random_map(&mut rng);
        check_all_kernels(&map, 8200, &mut rng);
    }
}

#[test]
fn rows_without_an_effective_term_give_zeroes_and_repeated_sources_add_up() {
    let terms = vec![
        vec![],
        vec![Term::input(0, 0, 0)],
        vec![Term::input(0, 0, 7), Term::input(0, 0, 7)],
        vec![Term::input(0, 0, 3), Term::input(0, 0, 2)],
    ];
    let map = LinearMap::new(1, 4, 1, terms).unwrap();
    let mut outputs = [[9u8; 5]; 4];
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(|output| &mut output[..]).collect();
    map.execute(&[&[1, 2, 3, 4, 5]], &mut slices).unwrap();
    assert_eq!(outputs, [[0; 5], [0; 5], [0; 5], [1, 2, 3, 4, 5]]);
}

#[test]
fn wrong_buffers_are_refused_with_the_place() {
    let rows = (0..4).map(|row| vec![Term::input(0, row % 2, 1)]).collect();
    let map = LinearMap::new(2, 2, 2, rows).unwrap();
    let (a, mut b, mut c) = ([0u8; 8], [0u8; 8], [0u8; 8]);
    let mut run = |inputs: &[&[u8]], lens: &[usize]| {
        let mut outputs: Vec<&mut [u8]> =
            [&mut b, &mut c].into_iter().zip(lens).map(|(all, &len)| &mut all[..len]).collect();
        map.execute(inputs, &mut outputs)
    };
    assert_eq!(run(&[&a, &a], &[8, 8]), Ok(()));
    assert_eq!(run(&[&a[..0], &a[..0]], &[0, 0]), Ok(()));
    let shard_count = ShapeError::ShardCount { side: "input", expected: 2, given: 1 };
    assert_eq!(run(&[&a], &[8, 8]), Err(shard_count));
    let shard_count = ShapeError::ShardCount { side: "output", expected: 2, given: 1 };
    assert_eq!(run(&[&a, &a], &[8]), Err(shard_count));
    let not_divisible = ShapeError::NotDivisible { len_bytes: 7, elements: 2 };
    assert_eq!(run(&[&a[..7], &a[..7]], &[7, 7]), Err(not_divisible));
    let length = |side, shard, given| ShapeError::Length { side, shard, expected: 8, given };
    assert_eq!(run(&[&a, &a[..6]], &[8, 8]), Err(length("input", 1, 6)));
    assert_eq!(run(&[&a, &a], &[8, 6]), Err(length("output", 1, 6)));
}

#[test]
fn invalid_programs_are_refused_with_the_reason() {
    let one = || vec![Term::input(0, 0, 1)];
    assert_eq!(LinearMap::new(0, 1, 1, vec![one()]), Err(MapError::NoInputs));
    let empty = MapError::EmptyShard { kind: "input", shard: 0 };
    assert_eq!(LinearMap::new(1, 1, 0, vec![]), Err(empty));
    let rows = MapError::RowCount { rows: 1, output_elements: 2 };
    assert_eq!(LinearMap::new(1, 2, 1, vec![one()]), Err(rows));
    assert!(matches!(
        LinearMap::new(2000, 1, 1, vec![one()]),
        Err(MapError::TooMany { count: 2000, .. })
    ));
    assert!(matches!(LinearMap::new(1, 1, u32::MAX, vec![one()]), Err(MapError::TooMany { .. })));
    let output = Target::Output(Element { shard: 0, index: 0 });
    for term in [Term::input(1, 0, 1), Term::input(0, 1, 1), Term::scratch(0, 1)] {
        let source_element = term.source;
        let error = MapError::NoSuchSource { step: 0, target: output, source_element };
        assert_eq!(LinearMap::new(1, 1, 1, vec![vec![term]]), Err(error));
    }
    let shape = Shape { scratch_elements: 1, ..Shape::uniform(1, 1, 1) };
    let row = |target, terms| Row { target, terms };
    let run = |steps| LinearMap::from_steps(shape.clone(), steps);
    let to_scratch = || row(Target::Scratch(0), one());
    let from_scratch = || row(output, vec![Term::scratch(0, 1)]);
    assert!(run(vec![vec![to_scratch()], vec![from_scratch()]]).is_ok());
    let not_ready = MapError::ScratchNotReady { step: 0, target: output, index: 0 };
    assert_eq!(run(vec![vec![to_scratch(), from_scratch()]]), Err(not_ready));
    let twice = MapError::WrittenTwice { step: 1, target: output };
    assert_eq!(run(vec![vec![row(output, one())], vec![row(output, one())]]), Err(twice));
    assert_eq!(run(vec![vec![to_scratch()]]), Err(MapError::NeverWritten(output)));
    let nowhere = Target::Output(Element { shard: 0, index: 1 });
    let error = MapError::NoSuchTarget { step: 0, target: nowhere };
    assert_eq!(run(vec![vec![row(nowhere, one())]]), Err(error));
}

#[test]
fn a_map_without_outputs_does_nothing() {
    let map = LinearMap::new(1, 0, 1, vec![]).unwrap();
    assert_eq!(map.execute(&[&[1, 2, 3]], &mut []), Ok(()));
}

#[test]
fn the_best_kernel_is_available() {
    assert!(Kernel::best().is_available());
    assert!(Kernel::Scalar.is_available());
}
