//! Every instruction that computes, against the value that Rust computes.

use proptest::prelude::*;

use super::{HEAD, REGISTERS};
use crate::interpreter::{Launch, Memory, Module, Param, run};

/// Runs instructions with three inputs, which are in `%d1` to `%d3`, and their low halves in `%r1`
/// to `%r3`. Returns what they leave in `%d0`. `%r0` is the same, without the high half.
struct Program(Module);

impl Program {
    fn new(instruction: &str) -> Self {
        let wide = instruction.contains("%d0");
        let last = if wide { "" } else { "cvt.u64.u32 %d0, %r0;" };
        let text = format!(
            "{HEAD}.visible .entry test(.param .u64 out, .param .b64 a, .param .u64 b, \
             .param .u64 c) {{ {REGISTERS} ld.param.u64 %d1, [a]; ld.param.b64 %d2, [b]; \
             ld.param.u64 %d3, [c]; cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2; \
             cvt.u32.u64 %r3, %d3; cvt.u16.u64 %h1, %d1; cvt.u16.u64 %h2, %d2; \
             {instruction} {last} ld.param.u64 %d19, [out]; st.global.u64 [%d19], %d0; ret; }}"
        );
        Self(Module::parse(&text).unwrap_or_else(|error| panic!("{instruction}: {error}")))
    }

    fn value(&self, inputs: [u64; 3]) -> u64 {
        let mut memory = Memory::new();
        let out = memory.alloc(8);
        let mut params = vec![Param::U64(out)];
        params.extend(inputs.map(Param::U64));
        let launch = Launch { params, ..Launch::default() };
        run(self.0.kernel("test").unwrap(), &launch, &mut memory).unwrap();
        u64::from_le_bytes(memory.read(out, 8).unwrap().try_into().unwrap())
    }
}

/// The value that Rust computes.
type Expected<T> = fn(T, T, T) -> T;

/// Checks instructions of 32 bits on values that are often near a limit.
fn check32(cases: &[(&str, Expected<u32>)]) {
    let values =
        [0, 1, 5, 31, 32, 33, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, u32::MAX, 0x89ab_1cd2];
    for (instruction, expected) in cases {
        let program = Program::new(instruction);
        for (at, &a) in values.iter().enumerate() {
            for &b in &values {
                let c = values[(at * 3 + 1) % values.len()];
                let found = program.value([a, b, c].map(u64::from));
                let expected = u64::from(expected(a, b, c));
                assert_eq!(found, expected, "{instruction} {a:#x} {b:#x} {c:#x}");
            }
        }
    }
}

fn check64(cases: &[(&str, Expected<u64>)]) {
    let values = [
        0,
        1,
        7,
        63,
        64,
        1 << 31,
        1 << 32,
        u64::MAX >> 1,
        1 << 63,
        u64::MAX,
        0x89ab_1cd2_3ef4_5678,
    ];
    for (instruction, expected) in cases {
        let program = Program::new(instruction);
        for (at, &a) in values.iter().enumerate() {
            for &b in &values {
                let c = values[(at * 3 + 1) % values.len()];
                let found = program.value([a, b, c]);
                assert_eq!(found, expected(a, b, c), "{instruction} {a:#x} {b:#x} {c:#x}");
            }
        }
    }
}

fn s(value: u32) -> i32 {
    value.cast_signed()
}

fn u(value: i32) -> u32 {
    value.cast_unsigned()
}

#[test]
fn arithmetic_of_32_bits() {
    check32(&[
        ("add.u32 %r0, %r1, %r2;", |a, b, _| a.wrapping_add(b)),
        ("add.s32 %r0, %r1, -7;", |a, _, _| a.wrapping_sub(7)),
        ("sub.s32 %r0, %r1, %r2;", |a, b, _| a.wrapping_sub(b)),
        ("mul.lo.u32 %r0, %r1, %r2;", |a, b, _| a.wrapping_mul(b)),
        ("mul.hi.u32 %r0, %r1, %r2;", |a, b, _| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        ("mul.hi.s32 %r0, %r1, %r2;", |a, b, _| ((i64::from(s(a)) * i64::from(s(b))) >> 32) as u32),
        ("mad.lo.s32 %r0, %r1, %r2, %r3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("mad.hi.u32 %r0, %r1, %r2, %r3;", |a, b, c| {
            (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
        }),
        ("min.s32 %r0, %r1, %r2;", |a, b, _| u(s(a).min(s(b)))),
        ("max.u32 %r0, %r1, %r2;", |a, b, _| a.max(b)),
        ("neg.s32 %r0, %r1;", |a, _, _| a.wrapping_neg()),
        ("abs.s32 %r0, %r1;", |a, _, _| s(a).unsigned_abs()),
        ("or.b32 %r4, %r2, 1; div.u32 %r0, %r1, %r4;", |a, b, _| a / (b | 1)),
        ("or.b32 %r4, %r2, 1; rem.u32 %r0, %r1, %r4;", |a, b, _| a % (b | 1)),
        ("or.b32 %r4, %r2, 1; div.s32 %r0, %r1, %r4;", |a, b, _| u(s(a).wrapping_div(s(b | 1)))),
        ("or.b32 %r4, %r2, 1; rem.s32 %r0, %r1, %r4;", |a, b, _| u(s(a).wrapping_rem(s(b | 1)))),
    ]);
}

#[test]
fn bits_of_32_bits() {
    check32(&[
        ("mov.u32 %r0, %r2;", |_, b, _| b),
        ("mov.b32 %r0, 0x89abcdef;", |_, _, _| 0x89ab_cdef),
        ("and.b32 %r0, %r1, %r2;", |a, b, _| a & b),
        ("or.b32 %r0, %r1, 0xf0;", |a, _, _| a | 0xf0),
        ("xor.b32 %r0, %r1, %r2;", |a, b, _| a ^ b),
        ("not.b32 %r0, %r1;", |a, _, _| !a),
        ("shl.b32 %r0, %r1, %r2;", |a, b, _| a.checked_shl(b).unwrap_or(0)),
        ("shr.u32 %r0, %r1, %r2;", |a, b, _| a.checked_shr(b).unwrap_or(0)),
        ("shr.b32 %r0, %r1, %r2;", |a, b, _| a.checked_shr(b).unwrap_or(0)),
        ("shr.s32 %r0, %r1, %r2;", |a, b, _| u(s(a) >> b.min(31))),
        ("shf.l.wrap.b32 %r0, %r1, %r1, %r2;", |a, b, _| a.rotate_left(b % 32)),
        ("shf.r.wrap.b32 %r0, %r1, %r1, %r2;", |a, b, _| a.rotate_right(b % 32)),
        ("shf.l.clamp.b32 %r0, %r1, 0, %r2;", |a, b, _| (u64::from(a) << b.min(32) >> 32) as u32),
        ("shf.r.clamp.b32 %r0, 0, %r1, %r2;", |a, b, _| (u64::from(a) << 32 >> b.min(32)) as u32),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", |a, b, c| a ^ b ^ c),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0xca;", |a, b, c| a & b | !a & c),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x78;", |a, b, c| a ^ (b & c)),
        ("prmt.b32 %r0, %r1, %r2, 0x0123;", |a, _, _| a.swap_bytes()),
        ("prmt.b32 %r0, %r1, %r2, 0x5410;", |a, b, _| a & 0xffff | b << 16),
        ("prmt.b32 %r0, %r1, %r2, 0xba98;", |a, _, _| (a >> 7 & 0x0101_0101) * 0xff),
        ("bfe.u32 %r0, %r1, 4, 8;", |a, _, _| a >> 4 & 0xff),
        ("bfe.s32 %r0, %r1, 24, 8;", |a, _, _| u(s(a) >> 24)),
        ("bfi.b32 %r0, %r1, %r2, 8, 4;", |a, b, _| b & !0xf00 | (a & 15) << 8),
        ("brev.b32 %r0, %r1;", |a, _, _| a.reverse_bits()),
        ("popc.b32 %r0, %r1;", |a, _, _| a.count_ones()),
        ("clz.b32 %r0, %r1;", |a, _, _| a.leading_zeros()),
        ("popc.b64 %r0, %d1;", |a, _, _| a.count_ones()),
        ("clz.b64 %r0, %d1;", |a, _, _| a.leading_zeros() + 32),
    ]);
}

#[test]
fn words_of_64_bits() {
    check64(&[
        ("add.u64 %d0, %d1, %d2;", |a, b, _| a.wrapping_add(b)),
        ("sub.s64 %d0, %d1, %d2;", |a, b, _| a.wrapping_sub(b)),
        ("mul.lo.s64 %d0, %d1, %d2;", |a, b, _| a.wrapping_mul(b)),
        ("mul.hi.u64 %d0, %d1, %d2;", |a, b, _| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        ("mul.hi.s64 %d0, %d1, %d2;", |a, b, _| {
            ((i128::from(a.cast_signed()) * i128::from(b.cast_signed())) >> 64) as u64
        }),
        ("mad.lo.u64 %d0, %d1, %d2, %d3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("mul.wide.u32 %d0, %r1, %r2;", |a, b, _| u64::from(a as u32) * u64::from(b as u32)),
        ("mul.wide.s32 %d0, %r1, %r2;", |a, b, _| {
            (i64::from(a as i32) * i64::from(b as i32)).cast_unsigned()
        }),
        ("mad.wide.u32 %d0, %r1, %r2, %d3;", |a, b, c| {
            (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)
        }),
        ("mad.wide.s32 %d0, %r1, 8, %d3;", |a, _, c| {
            (i64::from(a as i32) * 8).cast_unsigned().wrapping_add(c)
        }),
        ("or.b64 %d4, %d2, 1; div.u64 %d0, %d1, %d4;", |a, b, _| a / (b | 1)),
        ("or.b64 %d4, %d2, 1; rem.s64 %d0, %d1, %d4;", |a, b, _| {
            a.cast_signed().wrapping_rem((b | 1).cast_signed()).cast_unsigned()
        }),
        ("min.u64 %d0, %d1, %d2;", |a, b, _| a.min(b)),
        ("max.s64 %d0, %d1, %d2;", |a, b, _| a.cast_signed().max(b.cast_signed()).cast_unsigned()),
        ("neg.s64 %d0, %d1;", |a, _, _| a.wrapping_neg()),
        ("abs.s64 %d0, %d1;", |a, _, _| a.cast_signed().unsigned_abs()),
        ("and.b64 %d0, %d1, %d2;", |a, b, _| a & b),
        ("xor.b64 %d0, %d1, %d2;", |a, b, _| a ^ b),
        ("not.b64 %d0, %d1;", |a, _, _| !a),
        ("shl.b64 %d0, %d1, %r2;", |a, b, _| a.checked_shl(b as u32).unwrap_or(0)),
        ("shr.u64 %d0, %d1, %r2;", |a, b, _| a.checked_shr(b as u32).unwrap_or(0)),
        ("shr.s64 %d0, %d1, %r2;", |a, b, _| {
            (a.cast_signed() >> (b as u32).min(63)).cast_unsigned()
        }),
        ("bfe.u64 %d0, %d1, 60, 8;", |a, _, _| a >> 60),
        ("bfi.b64 %d0, %d1, %d2, 8, 40;", |a, b, _| {
            let mask = 0xff_ffff_ffff << 8;
            b & !mask | a << 8 & mask
        }),
        ("brev.b64 %d0, %d1;", |a, _, _| a.reverse_bits()),
        ("mov.b64 {%r4, %r5}, %d1; mov.b64 %d0, {%r5, %r4};", |a, _, _| a.rotate_left(32)),
        (
            "add.cc.u32 %r4, %r1, %r2; mov.b64 {%r6, %r5}, %d1; mov.b64 {%r6, %r7}, %d2; \
          addc.u32 %r5, %r5, %r7; mov.b64 %d0, {%r4, %r5};",
            |a, b, _| a.wrapping_add(b),
        ),
    ]);
}

#[test]
fn carries_go_on() {
    check64(&[(
        "add.cc.u32 %r4, %r1, %r2; addc.cc.u32 %r5, %r3, -1; addc.u32 %r6, 0, 0; \
         mov.b64 %d0, {%r5, %r6};",
        |a, b, c| {
            let carry = u64::from((a as u32).checked_add(b as u32).is_none());
            u64::from(c as u32) + u64::from(u32::MAX) + carry
        },
    )]);
}

#[test]
fn conversions() {
    check64(&[
        ("cvt.u64.u32 %d0, %r1;", |a, _, _| u64::from(a as u32)),
        ("cvt.s64.s32 %d0, %r1;", |a, _, _| i64::from(a as i32).cast_unsigned()),
        ("cvt.u64.s32 %d0, %r1;", |a, _, _| i64::from(a as i32).cast_unsigned()),
        ("cvt.s64.s8 %d0, %r1;", |a, _, _| i64::from(a as i8).cast_unsigned()),
        ("cvt.u64.u8 %d0, %d1;", |a, _, _| u64::from(a as u8)),
        ("cvt.u32.u64 %r4, %d1; cvt.u64.u32 %d0, %r4;", |a, _, _| u64::from(a as u32)),
        ("cvt.u32.u16 %r0, %h1;", |a, _, _| u64::from(a as u16)),
        ("cvt.s32.s16 %r0, %h1;", |a, _, _| u64::from(i32::from(a as i16).cast_unsigned())),
        ("cvt.s16.u32 %r0, %r1;", |a, _, _| u64::from(i32::from(a as i16).cast_unsigned())),
        ("cvt.u16.u32 %h3, %r1; cvt.u64.u16 %d0, %h3;", |a, _, _| u64::from(a as u16)),
        ("mov.b32 %r0, {%h2, %h1};", |a, b, _| u64::from(b as u16) | u64::from(a as u16) << 16),
        ("mul.wide.s16 %r0, %h1, %h2;", |a, b, _| {
            u64::from((i32::from(a as i16) * i32::from(b as i16)).cast_unsigned())
        }),
        ("cvt.u64.u32 %d0, %ntid.x;", |_, _, _| 1),
    ]);
}

#[test]
fn comparisons_and_choices() {
    type Relation = fn(i64, i64) -> bool;
    let relations: [(&str, Relation); 6] = [
        ("eq", |a, b| a == b),
        ("ne", |a, b| a != b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
    ];
    let unsigned = ["eq", "ne", "lo", "ls", "hi", "hs"];
    let values = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    let check = |name: &str, of: &str, expected: &dyn Fn(u32, u32) -> bool| {
        let text = format!("setp.{name}.{of} %p1, %r1, %r2; selp.b32 %r0, 7, %r3, %p1;");
        let program = Program::new(&text);
        for (a, b) in values.iter().flat_map(|&a| values.map(|b| (a, b))) {
            let expected = if expected(a, b) { 7 } else { 3 };
            assert_eq!(program.value([a.into(), b.into(), 3]), expected, "{text} {a:#x} {b:#x}");
        }
    };
    for ((name, holds), unsigned) in relations.iter().zip(unsigned) {
        check(name, "s32", &|a, b| holds(s(a).into(), s(b).into()));
        check(name, "u32", &|a, b| holds(a.into(), b.into()));
        check(unsigned, "u32", &|a, b| holds(a.into(), b.into()));
    }
    check("eq", "b32", &|a, b| a == b);
    check64(&[
        ("setp.lt.s64 %p1, %d1, %d2; selp.u64 %d0, %d1, %d2, %p1;", |a, b, _| {
            a.cast_signed().min(b.cast_signed()).cast_unsigned()
        }),
        ("setp.hs.u64 %p1, %d1, %d2; selp.s64 %d0, %d1, %d2, %p1;", |a, b, _| a.max(b)),
        ("setp.ne.b64 %p1, %d1, %d2; selp.s32 %r0, 1, 0, %p1;", |a, b, _| u64::from(a != b)),
    ]);
}

#[test]
fn predicates() {
    check32(&[(
        "setp.ne.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r2, 0; and.pred %p3, %p1, %p2; \
             or.pred %p4, %p1, %p2; xor.pred %p5, %p1, %p2; not.pred %p6, %p1; \
             mov.pred %p7, %p6; mov.pred %p8, 1; \
             mov.u32 %r0, 0; @%p3 or.b32 %r0, %r0, 1; @%p4 or.b32 %r0, %r0, 2; \
             @%p5 or.b32 %r0, %r0, 4; @%p7 or.b32 %r0, %r0, 8; @!%p8 or.b32 %r0, %r0, 16;",
        |a, b, _| {
            let (a, b) = (a != 0, b != 0);
            u32::from(a & b) | u32::from(a | b) << 1 | u32::from(a ^ b) << 2 | u32::from(!a) << 3
        },
    )]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn immediates_are_as_registers(a: u32, b: u32, table: u8) {
        let program = |operand: &str| Program::new(&format!(
            "lop3.b32 %r4, %r1, {operand}, %r3, {table}; prmt.b32 %r5, %r1, {operand}, %r3; \
             shf.l.wrap.b32 %r6, %r1, {operand}, 7; mov.b64 %d4, {{%r4, %r5}}; \
             mad.wide.u32 %d0, %r6, {operand}, %d4;"
        ));
        let inputs = [a.into(), b.into(), 0x4321_89ab];
        prop_assert_eq!(
            program("%r2").value(inputs),
            program(&b.to_string()).value(inputs)
        );
    }
}
