//! The text of the kernel: `checksum.ptx`, with the parts that repeat.

use std::fmt::Write;

use super::THREADS;
use super::table::{BACK_BYTES, SHARED_ROWS_BYTES, STEP_TABLE_BYTES};

/// The name of the kernel.
pub const KERNEL: &str = "checksum";

/// Appends a line.
macro_rules! line {
    ($text:expr, $($line:tt)*) => {
        writeln!($text, "    {}", format_args!($($line)*)).expect("strings take all text")
    };
}

/// The text of the kernel, in PTX.
#[must_use]
pub fn kernel_text() -> String {
    let parts = [
        ("@fill@\n", fill()),
        ("@fill_back@\n", fill_back()),
        ("@eight_steps@\n", steps(8)),
        ("@two_steps@\n", steps(2)),
        ("@back@\n", back()),
    ];
    let skeleton = include_str!("checksum.ptx").to_owned();
    parts.iter().fold(skeleton, |text, (name, part)| text.replace(name, part))
}

/// Copies the tables for steps, four turns at once so that the loads overlap.
fn fill() -> String {
    let mut text = String::new();
    let turns = SHARED_ROWS_BYTES / (16 * THREADS);
    // Two threads load the same entry.
    let (load_bytes, store_bytes) = (4 * THREADS / 2, 16 * THREADS);
    for first in (0..turns).step_by(4) {
        for turn in 0..4 {
            line!(text, "ld.global.nc.u32 v{turn}, [address+{}];", (first + turn) * load_bytes);
        }
        for turn in 0..4 {
            let at = (first + turn) * store_bytes;
            line!(text, "st.shared.v4.u32 [at+{at}], {{v{turn}, v{turn}, v{turn}, v{turn}}};");
        }
    }
    text
}

/// Copies the tables for the way back.
fn fill_back() -> String {
    let mut text = String::new();
    for at in (0..BACK_BYTES).step_by(16 * THREADS as usize) {
        let from = STEP_TABLE_BYTES + at;
        line!(text, "ld.global.nc.v4.u32 {{v0, v1, v2, v3}}, [address+{from}];");
        line!(text, "st.shared.v4.u32 [at+{}], {{v0, v1, v2, v3}};", SHARED_ROWS_BYTES + at);
    }
    text
}

/// Adds the entries e0 to e7 to a register, three operands at a time. `crc` gets only their sum.
fn sum(text: &mut String, register: &str) {
    line!(text, "lop3.b32 e0, e0, e1, e2, 0x96;");
    line!(text, "lop3.b32 e3, e3, e4, e5, 0x96;");
    if register == "crc" {
        line!(text, "lop3.b32 e0, e0, e3, e6, 0x96;");
        line!(text, "xor.b32 crc, e0, e7;");
    } else {
        line!(text, "lop3.b32 e6, e6, e7, {register}, 0x96;");
        line!(text, "lop3.b32 {register}, e0, e3, e6, 0x96;");
    }
}

/// Some steps: the loads of all vectors, then the lookups of one vector after the other. The state
/// goes from one to the next in the low word, to which it is added.
fn steps(count: u32) -> String {
    let mut text = String::new();
    for step in 0..count {
        let at = 256 * step;
        line!(text, "ld.global.nc.v2.u32 {{low{step}, high{step}}}, [address+{at}];");
    }
    line!(text, "xor.b32 low0, low0, crc;");
    for step in 0..count {
        for entry in 0..8 {
            let (word, load) = (if entry < 4 { "low" } else { "high" }, entry % 4);
            line!(text, "prmt.b32 at, {word}{step}, places, pick{load};");
            line!(text, "add.u32 at, at, base;");
            line!(text, "ld.shared.u32 e{entry}, [at+{}];", entry / 4 * 128);
        }
        let next = if step + 1 < count { format!("low{}", step + 1) } else { "crc".to_owned() };
        sum(&mut text, &next);
    }
    text
}

/// Moves the state back: a lookup for each four bits.
fn back() -> String {
    let mut text = String::new();
    for entry in 0..8 {
        let (word, byte) = (if entry % 2 == 0 { "n" } else { "m" }, entry / 2);
        let at = SHARED_ROWS_BYTES + 4096 * byte + 128 * (entry % 2);
        // Byte 4 of the two words is the place, and byte 5 is 0.
        line!(text, "prmt.b32 at, {word}, back_place, {:#x};", 0x5504 | byte << 4);
        line!(text, "add.u32 at, at, base;");
        line!(text, "ld.shared.u32 e{entry}, [at+{at}];");
    }
    sum(&mut text, "crc");
    text
}
