//! The decoder against tables written from the RISC-V specification's listings of opcodes, and
//! from RI5CY's decoder for Xpulp.
#![allow(clippy::unwrap_used)]

use fieldstone_nic::riscv::isa::{Instr, decode, encode};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Name and bits 31 to 0; `-` is any bit. Spaces separate the fields.
const LONG: &[(&str, &str)] = &[
    ("lui", "-------------------- ----- 0110111"),
    ("auipc", "-------------------- ----- 0010111"),
    ("jal", "-------------------- ----- 1101111"),
    ("jalr", "------------ ----- 000 ----- 1100111"),
    ("beq", "------- ----- ----- 000 ----- 1100011"),
    ("bne", "------- ----- ----- 001 ----- 1100011"),
    ("blt", "------- ----- ----- 100 ----- 1100011"),
    ("bge", "------- ----- ----- 101 ----- 1100011"),
    ("bltu", "------- ----- ----- 110 ----- 1100011"),
    ("bgeu", "------- ----- ----- 111 ----- 1100011"),
    ("lb", "------------ ----- 000 ----- 0000011"),
    ("lh", "------------ ----- 001 ----- 0000011"),
    ("lw", "------------ ----- 010 ----- 0000011"),
    ("lbu", "------------ ----- 100 ----- 0000011"),
    ("lhu", "------------ ----- 101 ----- 0000011"),
    ("sb", "------- ----- ----- 000 ----- 0100011"),
    ("sh", "------- ----- ----- 001 ----- 0100011"),
    ("sw", "------- ----- ----- 010 ----- 0100011"),
    ("addi", "------------ ----- 000 ----- 0010011"),
    ("slti", "------------ ----- 010 ----- 0010011"),
    ("sltiu", "------------ ----- 011 ----- 0010011"),
    ("xori", "------------ ----- 100 ----- 0010011"),
    ("ori", "------------ ----- 110 ----- 0010011"),
    ("andi", "------------ ----- 111 ----- 0010011"),
    ("slli", "0000000 ----- ----- 001 ----- 0010011"),
    ("srli", "0000000 ----- ----- 101 ----- 0010011"),
    ("srai", "0100000 ----- ----- 101 ----- 0010011"),
    ("add", "0000000 ----- ----- 000 ----- 0110011"),
    ("sub", "0100000 ----- ----- 000 ----- 0110011"),
    ("sll", "0000000 ----- ----- 001 ----- 0110011"),
    ("slt", "0000000 ----- ----- 010 ----- 0110011"),
    ("sltu", "0000000 ----- ----- 011 ----- 0110011"),
    ("xor", "0000000 ----- ----- 100 ----- 0110011"),
    ("srl", "0000000 ----- ----- 101 ----- 0110011"),
    ("sra", "0100000 ----- ----- 101 ----- 0110011"),
    ("or", "0000000 ----- ----- 110 ----- 0110011"),
    ("and", "0000000 ----- ----- 111 ----- 0110011"),
    ("fence", "------------ ----- 000 ----- 0001111"),
    ("fence.i", "------------ ----- 001 ----- 0001111"),
    ("ecall", "000000000000 00000 000 00000 1110011"),
    ("ebreak", "000000000001 00000 000 00000 1110011"),
    ("csrrw", "------------ ----- 001 ----- 1110011"),
    ("csrrs", "------------ ----- 010 ----- 1110011"),
    ("csrrc", "------------ ----- 011 ----- 1110011"),
    ("csrrwi", "------------ ----- 101 ----- 1110011"),
    ("csrrsi", "------------ ----- 110 ----- 1110011"),
    ("csrrci", "------------ ----- 111 ----- 1110011"),
    ("mul", "0000001 ----- ----- 000 ----- 0110011"),
    ("mulh", "0000001 ----- ----- 001 ----- 0110011"),
    ("mulhsu", "0000001 ----- ----- 010 ----- 0110011"),
    ("mulhu", "0000001 ----- ----- 011 ----- 0110011"),
    ("div", "0000001 ----- ----- 100 ----- 0110011"),
    ("divu", "0000001 ----- ----- 101 ----- 0110011"),
    ("rem", "0000001 ----- ----- 110 ----- 0110011"),
    ("remu", "0000001 ----- ----- 111 ----- 0110011"),
    ("lr.w", "00010 -- 00000 ----- 010 ----- 0101111"),
    ("sc.w", "00011 -- ----- ----- 010 ----- 0101111"),
    ("amoswap.w", "00001 -- ----- ----- 010 ----- 0101111"),
    ("amoadd.w", "00000 -- ----- ----- 010 ----- 0101111"),
    ("amoxor.w", "00100 -- ----- ----- 010 ----- 0101111"),
    ("amoand.w", "01100 -- ----- ----- 010 ----- 0101111"),
    ("amoor.w", "01000 -- ----- ----- 010 ----- 0101111"),
    ("amomin.w", "10000 -- ----- ----- 010 ----- 0101111"),
    ("amomax.w", "10100 -- ----- ----- 010 ----- 0101111"),
    ("amominu.w", "11000 -- ----- ----- 010 ----- 0101111"),
    ("amomaxu.w", "11100 -- ----- ----- 010 ----- 0101111"),
    // Xpulp.
    ("p.lb rr", "0000000 ----- ----- 111 ----- 0000011"),
    ("p.lh rr", "0001000 ----- ----- 111 ----- 0000011"),
    ("p.lw rr", "0010000 ----- ----- 111 ----- 0000011"),
    ("p.lbu rr", "0100000 ----- ----- 111 ----- 0000011"),
    ("p.lhu rr", "0101000 ----- ----- 111 ----- 0000011"),
    ("p.lb !", "------------ ----- 000 ----- 0001011"),
    ("p.lh !", "------------ ----- 001 ----- 0001011"),
    ("p.lw !", "------------ ----- 010 ----- 0001011"),
    ("p.lbu !", "------------ ----- 100 ----- 0001011"),
    ("p.lhu !", "------------ ----- 101 ----- 0001011"),
    ("p.lb rr!", "0000000 ----- ----- 111 ----- 0001011"),
    ("p.lh rr!", "0001000 ----- ----- 111 ----- 0001011"),
    ("p.lw rr!", "0010000 ----- ----- 111 ----- 0001011"),
    ("p.lbu rr!", "0100000 ----- ----- 111 ----- 0001011"),
    ("p.lhu rr!", "0101000 ----- ----- 111 ----- 0001011"),
    ("p.sb rr", "0000000 ----- ----- 100 ----- 0100011"),
    ("p.sh rr", "0000000 ----- ----- 101 ----- 0100011"),
    ("p.sw rr", "0000000 ----- ----- 110 ----- 0100011"),
    ("p.sb !", "------- ----- ----- 000 ----- 0101011"),
    ("p.sh !", "------- ----- ----- 001 ----- 0101011"),
    ("p.sw !", "------- ----- ----- 010 ----- 0101011"),
    ("p.sb rr!", "0000000 ----- ----- 100 ----- 0101011"),
    ("p.sh rr!", "0000000 ----- ----- 101 ----- 0101011"),
    ("p.sw rr!", "0000000 ----- ----- 110 ----- 0101011"),
    ("lp.starti", "------------ 00000 000 0000- 1111011"),
    ("lp.endi", "------------ 00000 001 0000- 1111011"),
    ("lp.count", "000000000000 ----- 010 0000- 1111011"),
    ("lp.counti", "------------ 00000 011 0000- 1111011"),
    ("lp.setup", "------------ ----- 100 0000- 1111011"),
    ("lp.setupi", "------------ ----- 101 0000- 1111011"),
    ("p.extract", "11 ----- ----- ----- 000 ----- 0110011"),
    ("p.extractu", "11 ----- ----- ----- 001 ----- 0110011"),
    ("p.insert", "11 ----- ----- ----- 010 ----- 0110011"),
    ("p.beqimm", "------- ----- ----- 010 ----- 1100011"),
    ("p.bneimm", "------- ----- ----- 011 ----- 1100011"),
    ("pv.pack.h", "110100 0 ----- ----- 000 ----- 1010111"),
    ("pv.pack.h.h", "110100 1 ----- ----- 000 ----- 1010111"),
    ("pv.shuffle.b", "110000 0 ----- ----- 001 ----- 1010111"),
    ("pv.shuffle2.b", "110010 0 ----- ----- 001 ----- 1010111"),
];

/// RVC on RV32 without floating point: bits 15 to 0. Reserved encodings, which the rows would
/// cover, are in [`RESERVED`].
const SHORT: &[(&str, &str)] = &[
    ("c.addi4spn", "000 -------- --- 00"),
    ("c.lw", "010 --- --- -- --- 00"),
    ("c.sw", "110 --- --- -- --- 00"),
    ("c.addi", "000 - ----- ----- 01"),
    ("c.jal", "001 ----------- 01"),
    ("c.li", "010 - ----- ----- 01"),
    ("c.addi16sp and c.lui", "011 - ----- ----- 01"),
    ("c.srli", "100 0 00 --- ----- 01"),
    ("c.srai", "100 0 01 --- ----- 01"),
    ("c.andi", "100 - 10 --- ----- 01"),
    ("c.sub", "100 0 11 --- 00 --- 01"),
    ("c.xor", "100 0 11 --- 01 --- 01"),
    ("c.or", "100 0 11 --- 10 --- 01"),
    ("c.and", "100 0 11 --- 11 --- 01"),
    ("c.j", "101 ----------- 01"),
    ("c.beqz", "110 --- --- ----- 01"),
    ("c.bnez", "111 --- --- ----- 01"),
    ("c.slli", "000 0 ----- ----- 10"),
    ("c.lwsp", "010 - ----- ----- 10"),
    ("c.jr, c.mv, c.jalr, c.add, c.ebreak", "100 - ----- ----- 10"),
    ("c.swsp", "110 ------ ----- 10"),
];

const RESERVED: &[(&str, &str)] = &[
    ("c.addi4spn of 0", "000 00000000 --- 00"),
    ("c.addi16sp and c.lui of 0", "011 0 ----- 00000 01"),
    ("c.lwsp to x0", "010 - 00000 ----- 10"),
    ("c.jr x0", "100 0 00000 00000 10"),
];

/// Mask and value of a pattern.
fn pattern(text: &str) -> (u32, u32) {
    let bits: String = text.chars().filter(|c| *c != ' ').collect();
    assert!(bits.len() == 32 || bits.len() == 16, "{text}: {} bits", bits.len());
    bits.chars().fold((0, 0), |(mask, value), c| {
        (mask << 1 | u32::from(c != '-'), value << 1 | u32::from(c == '1'))
    })
}

/// The masks and values of all rows.
fn patterns(table: &[(&str, &str)]) -> Vec<(u32, u32)> {
    table.iter().map(|row| pattern(row.1)).collect()
}

/// The rows that have this word.
fn matches(word: u32, patterns: &[(u32, u32)]) -> Vec<usize> {
    let has = |(row, &(mask, value)): (usize, &(u32, u32))| (word & mask == value).then_some(row);
    patterns.iter().enumerate().filter_map(has).collect()
}

/// Whether the words of a row decode to what its name says.
fn is_named(name: &str, instr: &Instr) -> bool {
    let debug = format!("{instr:?}");
    let base = name.trim_start_matches("p.").split([' ', '.']).next().unwrap();
    let variant = debug.split(' ').next().unwrap();
    match variant {
        "Load" => base.starts_with('l'),
        "Store" => base.starts_with('s'),
        "OpImm" | "Op" => debug.to_lowercase().contains(&format!(
            "op: {}",
            base.strip_suffix("iu").map_or_else(
                || base.strip_suffix('i').unwrap_or(base).to_owned(),
                |b| format!("{b}u")
            )
        )),
        "MulDiv" => debug.to_lowercase().contains(&format!("op: {base},")),
        "Amo" => debug.to_lowercase().contains(&format!("op: {},", &base[3..])),
        "LoadReserved" => base == "lr",
        "StoreConditional" => base == "sc",
        "Branch" => debug.to_lowercase().contains(&format!("condition: {},", &base[1..])),
        "BranchImm" => debug.contains(&format!("equal: {}", base == "beqimm")),
        "Csr" => base.starts_with("csrr"),
        "LoopStart" => name == "lp.starti",
        "LoopEnd" => name == "lp.endi",
        "LoopCount" => name == "lp.count" || name == "lp.counti",
        "LoopSetup" => name == "lp.setup" || name == "lp.setupi",
        "Extract" => name.starts_with("p.extract"),
        "Insert" => name == "p.insert",
        "PackLow" => name == "pv.pack.h",
        "PackHigh" => name == "pv.pack.h.h",
        "Shuffle" => name == "pv.shuffle.b",
        "Shuffle2" => name == "pv.shuffle2.b",
        "FenceI" => name == "fence.i",
        _ => debug.to_lowercase().starts_with(base),
    }
}

#[test]
fn each_row_of_the_table_decodes_to_its_instruction_and_back() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for &(name, text) in LONG {
        let (mask, value) = pattern(text);
        for _ in 0..2000 {
            let word = random.random::<u32>() & !mask | value;
            let decoded = decode(word).unwrap_or_else(|| panic!("{name}: {word:#010x} is illegal"));
            assert_eq!(decoded.len_bytes, 4);
            assert!(is_named(name, &decoded.instr), "{name}: {:?}", decoded.instr);
            let again = encode(&decoded.instr);
            assert_eq!(decode(again).unwrap().instr, decoded.instr, "{name}: {again:#010x}");
            // All bits mean something, but for fences and the order bits of atomics.
            if !name.starts_with("fence") && !text.ends_with("0101111") {
                assert_eq!(again, word, "{name}");
            }
        }
    }
}

#[test]
fn a_long_word_is_legal_if_one_row_has_it() {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let long = patterns(LONG);
    let mut legal = 0;
    for round in 0..400_000 {
        let mut word = random.random::<u32>() | 3;
        if round % 2 == 0 {
            // Near a row: a row's bits with one of them flipped.
            let (mask, value) = long[random.random_range(0..long.len())];
            word = (word & !mask | value) ^ 1 << random.random_range(2..32);
        }
        let rows = matches(word, &long);
        assert!(rows.len() <= 1, "{word:#010x} is in {} rows", rows.len());
        match decode(word) {
            Some(decoded) => {
                let row = LONG[*rows.first().unwrap_or_else(|| {
                    panic!("{word:#010x} is in no row, and decodes to {:?}", decoded.instr)
                })];
                assert!(is_named(row.0, &decoded.instr), "{}: {:?}", row.0, decoded.instr);
                legal += 1;
            }
            None => assert!(rows.is_empty(), "{word:#010x} is {}", LONG[rows[0]].0),
        }
    }
    assert!(legal > 50_000);
}

#[test]
fn every_short_word_is_legal_if_one_row_has_it() {
    let (short, reserved, longs) = (patterns(SHORT), patterns(RESERVED), patterns(LONG));
    for word in 0..=u32::from(u16::MAX) {
        if word & 3 == 3 {
            continue;
        }
        let rows = matches(word, &short);
        assert!(rows.len() <= 1, "{word:#06x}");
        let legal = !rows.is_empty() && matches(word, &reserved).is_empty();
        let decoded = decode(word);
        assert_eq!(decoded.is_some(), legal, "{word:#06x}: {decoded:?}");
        // The upper half belongs to the next instruction.
        assert_eq!(decode(word | 0xabcd_0000), decoded);
        if let Some(decoded) = decoded {
            assert_eq!(decoded.len_bytes, 2);
            // The long form is an instruction of the table.
            let long = encode(&decoded.instr);
            assert_eq!(decode(long).unwrap().instr, decoded.instr);
            assert_eq!(matches(long, &longs).len(), 1, "{word:#06x}: {long:#010x}");
        }
    }
}

/// Short words and their long forms, worked out by hand from the specification's formats.
#[test]
fn known_short_words() {
    for (short, long) in [
        (0x0001, 0x0000_0013), // c.nop
        (0x4501, 0x0000_0513), // c.li a0, 0
        (0x557d, 0xfff0_0513), // c.li a0, -1
        (0x1141, 0xff01_0113), // c.addi sp, -16
        (0x7179, 0xfd01_0113), // c.addi16sp -48
        (0x0808, 0x0101_0513), // c.addi4spn a0, 16
        (0xc606, 0x0011_2623), // c.swsp ra, 12
        (0x40b2, 0x00c1_2083), // c.lwsp ra, 12
        (0x4588, 0x0085_a503), // c.lw a0, 8(a1)
        (0xc588, 0x00a5_a423), // c.sw a0, 8(a1)
        (0x8082, 0x0000_8067), // c.jr ra
        (0x9582, 0x0005_80e7), // c.jalr a1
        (0x852e, 0x00b0_0533), // c.mv a0, a1
        (0x952e, 0x00b5_0533), // c.add a0, a1
        (0x8d0d, 0x40b5_0533), // c.sub a0, a1
        (0x050a, 0x0025_1513), // c.slli a0, 2
        (0x8109, 0x0025_5513), // c.srli a0, 2
        (0x8509, 0x4025_5513), // c.srai a0, 2
        (0x8905, 0x0015_7513), // c.andi a0, 1
        (0x67c1, 0x0001_07b7), // c.lui a5, 16
        (0xa001, 0x0000_006f), // c.j 0
        (0xbffd, 0xfffff06f),  // c.j -2
        (0xc111, 0x0005_0263), // c.beqz a0, 4
        (0xfd75, 0xfe05_1ee3), // c.bnez a0, -4
        (0x9002, 0x0010_0073), // c.ebreak
    ] {
        assert_eq!(encode(&decode(short).unwrap().instr), long, "{short:#06x}");
    }
}
