//! Bad descriptors, bad programs, and a card memory that answers with errors. The engine always
//! answers, and the next job succeeds.

use fieldstone_accel::crc32c;
use fieldstone_codes::Profile;
use rand::Rng;

use crate::bench::{
    BRIEF_CYCLES, CodeCase, CommandFields, Testbench, brief, one_unit, status, two_units,
};
use crate::engine::random_map;

fn job(bench: &mut Testbench, profile: &str, element_beats: usize, batch: usize) -> CodeCase {
    let profile: Profile = profile.parse().expect("a profile");
    let built = bench.built;
    CodeCase::new(profile.code().encode(), &built, element_beats, batch, &mut bench.rng)
        .expect("it fits")
}

#[test]
fn bad_descriptors_are_answered() {
    let mut bench = Testbench::new(one_unit(), 1, 0.1);
    let job = job(&mut bench, "rs:4+2", 2, 1);
    let good = job.descriptor;
    let over = 1 << 40;
    let cases: Vec<(CommandFields, u64, u64)> = vec![
        (CommandFields { op: 5, ..good }, status::BAD_OP, 5),
        (CommandFields { source: good.source + 8, ..good }, status::BAD_ALIGNMENT, good.source + 8),
        (CommandFields { input: good.input + 1, ..good }, status::BAD_ALIGNMENT, good.input + 1),
        (
            CommandFields { output: good.output + 32, ..good },
            status::BAD_ALIGNMENT,
            good.output + 32,
        ),
        (CommandFields { length: 0, ..good }, status::BAD_LENGTH, 0),
        (CommandFields { length: good.length + 1, ..good }, status::BAD_LENGTH, good.length + 1),
        (CommandFields { length: 1 << 20, ..good }, status::BAD_LENGTH, 1 << 20),
        (CommandFields { element_bytes: 0, ..good }, status::BAD_LENGTH, 0),
        (CommandFields { element_bytes: 65, ..good }, status::BAD_LENGTH, 65),
        (CommandFields { batch: 0, ..good }, status::BAD_PARAMETER, 0),
        (CommandFields { input_stride: 1, ..good }, status::BAD_PARAMETER, 1),
        (CommandFields { output_stride: over, ..good }, status::BAD_PARAMETER, over),
        (CommandFields { input_batch: over + 1, ..good }, status::BAD_PARAMETER, over + 1),
        (CommandFields { output_batch: 63, ..good }, status::BAD_PARAMETER, 63),
        (CommandFields { source: over, ..good }, status::CARD_FAULT, over),
        (CommandFields { source: over - 64, ..good }, status::CARD_FAULT, over - 64),
        (CommandFields { input: over, ..good }, status::CARD_FAULT, over),
        (CommandFields { output: over * 2, ..good }, status::CARD_FAULT, over * 2),
    ];
    bench.memory.bytes.clone_from(&job.bytes);
    for (descriptor, status, detail) in cases {
        let answer = bench.run(&descriptor);
        assert_eq!((answer.status, answer.detail), (status, detail), "{descriptor:?}");
        assert_eq!((answer.read_beats, answer.write_beats, answer.result), (0, 0, 0));
    }
    assert!(bench.memory.bytes == job.bytes);
    job.run(&mut bench);
}

#[test]
fn bad_programs_are_answered_and_nothing_is_written() {
    let mut bench = Testbench::new(one_unit(), 2, 0.1);
    let built = bench.built;
    let mut job = job(&mut bench, "clay:4+2", 1, 1);
    let fills = job.program.fills();
    let (fill_at, operation_at) = (64, 64 * (1 + fills.div_ceil(8)));
    let last_at = operation_at + 64 * (job.program.operations() - 1);
    let scratch_at = (operation_at..=last_at)
        .step_by(64)
        .find(|at| job.program.bytes()[at + 48] & 2 != 0)
        .expect("Clay has several steps");
    let past = built.shape.lane_beats as u16 - job.program.slice_beats() as u16 + 1;
    let past = past.to_le_bytes();
    type Damage<'a> = (&'a str, usize, Vec<u8>, bool);
    let damages: Vec<Damage> = vec![
        ("magic", 0, vec![0], true),
        ("no fills", 4, vec![0, 0], true),
        ("more fills", 4, vec![fills as u8 + 8], true),
        ("fills past the table", 4, vec![0xff, 0xff], true),
        ("no operations", 6, vec![0, 0], true),
        ("operations past the table", 6, vec![0xff, 0xff], true),
        ("no slice", 8, vec![0, 0], true),
        ("a long slice", 8, vec![65, 0], true),
        ("checksum", 12, vec![!job.program.bytes()[12]], false),
        ("a fill's lane", fill_at + 4, vec![built.shape.lanes as u8], true),
        ("a fill's offset", fill_at + 6, past.to_vec(), true),
        ("the last fill's offset", fill_at + 8 * (fills - 1) + 6, past.to_vec(), true),
        ("a term's offset", operation_at, [&past[..], &[1]].concat(), true),
        ("a term of a lane that is not", operation_at + 4 * 8, vec![0, 0, 1], true),
        ("scratch on a lane that is not", scratch_at + 49, vec![8], true),
        ("scratch past the bank", scratch_at + 50, past.to_vec(), true),
        ("an endless row", last_at + 48, vec![0], true),
        ("a damaged byte", operation_at + 2, vec![!job.program.bytes()[operation_at + 2]], false),
    ];
    for (what, at, bytes, seal) in damages {
        let mut program = job.program.bytes().to_vec();
        program[at..at + bytes.len()].copy_from_slice(&bytes);
        if seal {
            let checksum = crc32c(&program[64..]).to_le_bytes();
            program[12..16].copy_from_slice(&checksum);
        }
        bench.memory.bytes.clone_from(&job.bytes);
        let source = job.descriptor.source as usize;
        bench.memory.bytes[source..source + program.len()].copy_from_slice(&program);
        let before = bench.memory.bytes.clone();
        let answer = bench.run(&job.descriptor);
        assert_eq!((answer.status, answer.detail), (status::BAD_PROGRAM, source as u64), "{what}");
        assert!(bench.memory.bytes == before, "{what}: something was written");
        assert_eq!((answer.write_beats, answer.result), (0, 0), "{what}");
    }
    // A length that differs from the program's.
    for length in [64, job.descriptor.length - 64, job.descriptor.length + 64] {
        bench.memory.bytes.clone_from(&job.bytes);
        let answer = bench.run(&CommandFields { length, ..job.descriptor });
        assert_eq!(answer.status, status::BAD_PROGRAM, "{length} bytes");
    }
    job.run(&mut bench);
    // The good program stays in the table, and the engine does not use it for a bad one at the same
    // address.
    assert_eq!(job.run(&mut bench).read_beats, job.input_beats() + 1);
    let good = job.bytes.clone();
    job.bytes[job.descriptor.source as usize + 12] ^= 1;
    bench.memory.bytes.clone_from(&job.bytes);
    assert_eq!(bench.run(&job.descriptor).status, status::BAD_PROGRAM);
    job.bytes = good;
    let loaded = job.run(&mut bench).read_beats - job.input_beats();
    assert_eq!(loaded, job.descriptor.length / 64);
}

#[test]
fn memory_that_refuses_ends_the_job_and_only_the_job() {
    for (built, seed) in [(one_unit(), 3), (two_units(), 4)] {
        let mut bench = Testbench::new(built, seed, 0.1);
        for profile in ["rs:4+2", "zigzag:3+2"] {
            let job = job(&mut bench, profile, 40, 2);
            let beats = job.bytes.len() / 64;
            for _ in 0..12 {
                bench.memory.bytes.clone_from(&job.bytes);
                // Memory fails from a random beat on: in the program, the inputs or the outputs.
                bench.memory.broken_from = bench.rng.random_range(0..beats);
                let end = job.descriptor.output + job.output_end();
                let is_hit = (bench.memory.broken_from as u64) < end / 64;
                let answer = bench.run(&job.descriptor);
                let expected = if is_hit { status::CARD_FAULT } else { status::OK };
                assert_eq!(answer.status, expected);
                assert!(answer.detail < job.bytes.len() as u64);
                bench.memory.broken_from = usize::MAX;
            }
            job.run(&mut bench);
        }
    }
}

#[test]
fn addresses_past_the_card_are_faults() {
    let mut bench = Testbench::new(one_unit(), 5, 0.0);
    let job = job(&mut bench, "rs:4+2", 4, 3);
    let far = (1 << 40) - 64;
    let good = job.descriptor;
    for descriptor in [
        CommandFields { input_stride: far, ..good },
        CommandFields { output_stride: far, ..good },
        CommandFields { input_batch: far, ..good },
        CommandFields { output_batch: far, ..good },
        CommandFields { input: far, ..good },
        CommandFields { output: far, ..good },
    ] {
        bench.memory.bytes.clone_from(&job.bytes);
        let answer = bench.run(&descriptor);
        assert_eq!(answer.status, status::CARD_FAULT, "{descriptor:?}");
    }
    job.run(&mut bench);
}

/// Cycles of the work that may be in flight at the time limit: the reads for two banks of two
/// units, and the writes.
const UNDER_WAY_CYCLES: u64 = 4000;

#[test]
fn a_job_that_takes_too_long_is_ended_and_only_the_job() {
    for (seed, stall) in [(9, 0.0), (10, 0.3)] {
        let mut bench = Testbench::new(brief(), seed, stall);
        let (small, large) = (job(&mut bench, "rs:4+2", 3, 2), job(&mut bench, "rs:4+2", 8192, 1));
        // The same stripe without end, and a stripe that is long by itself: their passes differ.
        let endless = CommandFields {
            batch: 0xffff_ffff,
            input_batch: 0,
            output_batch: 0,
            ..small.descriptor
        };
        for owner in 0..4 {
            bench.memory.owner = owner;
            for (job, descriptor) in [(&small, &endless), (&large, &large.descriptor)] {
                bench.memory.bytes.clone_from(&job.bytes);
                let answer = bench.run(descriptor);
                assert_eq!((answer.status, answer.detail), (status::TOO_LONG, 0));
                let late = answer.busy_cycles - BRIEF_CYCLES;
                assert!(late < UNDER_WAY_CYCLES, "{late} cycles too late");
                assert!(answer.write_beats > 0 && answer.result == answer.write_beats * 64);
                // Every beat has its old or its right content.
                let beats = bench.memory.bytes.chunks(64);
                for (at, beat) in beats.enumerate() {
                    let of = |bytes: &[u8]| *beat == bytes[64 * at..64 * at + 64];
                    assert!(of(&job.bytes) || of(&job.expected), "beat {at}");
                }
                // Another function's job is not affected.
                bench.memory.owner = 7 - owner;
                small.run(&mut bench);
                bench.memory.owner = owner;
            }
        }
        // If a program comes so late, the engine loads it, and does no more.
        bench.memory.latency_cycles = BRIEF_CYCLES;
        bench.memory.bytes.clone_from(&small.bytes);
        let answer = bench.run(&small.descriptor);
        assert_eq!((answer.status, answer.write_beats), (status::TOO_LONG, 0));
        // An error of the program has priority.
        bench.memory.bytes[small.descriptor.source as usize] ^= 1;
        assert_eq!(bench.run(&small.descriptor).status, status::BAD_PROGRAM);
        bench.memory.latency_cycles = 40;
        small.run(&mut bench);
    }
}

/// A job that reads one element, with a program that sums all lanes at that place. Its output is
/// that element, if the other lanes are zero.
fn spy(bench: &mut Testbench) -> CodeCase {
    let lanes = bench.built.shape.lanes;
    let mut spy = job(bench, "copies:2", 64, 1);
    let source = spy.descriptor.source as usize;
    let operation = source + 128;
    for lane in 1..lanes {
        spy.bytes[operation + 4 * lane + 2] = 1;
    }
    let end = source + spy.descriptor.length as usize;
    let checksum = crc32c(&spy.bytes[source + 64..end]).to_le_bytes();
    spy.bytes[source + 12..source + 16].copy_from_slice(&checksum);
    spy.expected[source..end].copy_from_slice(&spy.bytes[source..end]);
    spy
}

#[test]
fn a_job_cannot_compute_on_what_another_function_left() {
    let mut bench = Testbench::new(one_unit(), 6, 0.0);
    let built = bench.built;
    // The first function fills every lane, then the second spies; and the other way round.
    for owners in [[0, 1], [1, 0], [0, 15], [15, 8]] {
        bench.memory.owner = owners[0];
        job(&mut bench, "rs:8+4", 64, 2).run(&mut bench);
        bench.memory.owner = owners[1];
        // Twice, for both banks.
        for _ in 0..2 {
            spy(&mut bench).run(&mut bench);
        }
    }
    // A function may compute on its own data, in any order.
    let map = random_map(&mut bench.rng);
    if let Some(job) = CodeCase::new(&map, &built, 5, 2, &mut bench.rng) {
        job.run(&mut bench);
    }
}

/// The next tenant of a function gets none of the last one's data.
#[test]
fn a_function_finds_nothing_behind_its_reset() {
    let mut bench = Testbench::new(one_unit(), 11, 0.0);
    // What the lanes held when the device began is nobody's.
    spy(&mut bench).run(&mut bench);
    for others_between in [false, true] {
        bench.memory.owner = 4;
        job(&mut bench, "rs:8+4", 64, 2).run(&mut bench);
        // Without a reset, the lanes still have the function's own data.
        let own = spy(&mut bench);
        bench.memory.bytes.clone_from(&own.bytes);
        assert_eq!(bench.run(&own.descriptor).status, status::OK);
        assert!(bench.memory.bytes != own.expected, "nothing is left to be found");
        bench.reset_function(4);
        if others_between {
            bench.memory.owner = 5;
            job(&mut bench, "copies:2", 1, 1).run(&mut bench);
            bench.memory.owner = 4;
        }
        for _ in 0..2 {
            spy(&mut bench).run(&mut bench);
        }
    }
}

/// The same job of two functions in turn takes as long as that of one, but for the program that the
/// engine loads again.
#[test]
fn a_change_of_owner_costs_no_wipe() {
    let mut bench = Testbench::new(one_unit(), 12, 0.0);
    let job = job(&mut bench, "rs:4+2", 16, 1);
    let mut cycles = |owners: [u64; 2]| {
        let mut busy = Vec::new();
        for round in 0..10 {
            bench.memory.owner = owners[round % 2];
            busy.push(job.run(&mut bench).busy_cycles);
        }
        busy[9]
    };
    let (one, two) = (cycles([1, 1]), cycles([1, 2]));
    println!("rs:4+2 of 4 KiB: {one} cycles, with alternating owners {two}");
    // The program's beats and the memory's latency.
    let program_cycles = job.descriptor.length / 64 + 60;
    assert!(two < one + program_cycles, "{two} cycles, {one} without a change");
}

#[test]
fn a_reset_in_mid_flight_leaves_nothing_behind() {
    for (built, seed) in [(one_unit(), 7), (two_units(), 8)] {
        let mut bench = Testbench::new(built, seed, 0.1);
        let job = job(&mut bench, "zigzag:3+2", 40, 2);
        for _ in 0..10 {
            bench.memory.bytes.clone_from(&job.bytes);
            let cycles = bench.rng.random_range(1..3000);
            bench.interrupt(&job.descriptor, cycles);
            job.run(&mut bench);
        }
    }
}
