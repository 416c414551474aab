//! Texts that are not of the subset, and the lines of their errors.

use super::{HEAD, text};
use crate::interpreter::Module;

/// The error of a kernel with one line, which must be in that line.
fn error(declarations: &str, line: &str) -> String {
    match Module::parse(&text(declarations, &format!("{line}\nret;"))) {
        Ok(_) => panic!("{line} is right"),
        Err(error) => {
            assert_eq!(error.line, 6, "{line}: {error}");
            error.message
        }
    }
}

#[test]
fn instructions_that_are_not_of_the_subset() {
    for (line, expected) in [
        ("fma.rn.f32 %r1, %r2, %r3, %r4;", "unknown instruction"),
        ("add.f32 %r1, %r2, %r3;", "no type .f32"),
        ("add.b32 %r1, %r2, %r3;", "no type .b32"),
        ("and.u32 %r1, %r2, %r3;", "no type .u32"),
        ("add.u32.sat %r1, %r2, %r3;", "unknown modifier .sat"),
        ("add.u32 %r1, %r2;", "2 operands"),
        ("add.u32 %r1, %r2, %d1;", "64 bits in the place of 32"),
        ("add.u32 %r1, %r2, %tid.x;", "no register"),
        ("add.u32 5, %r1, %r2;", "must be a register"),
        ("add.u32 %r1, %r2, 0x100000000;", "does not fit .u32"),
        ("add.u32 %r1, %r2, 99999999999999999999;", "no integer of 64 bits"),
        ("add.u32 %r20, %r2, %r3;", "%r20 is no register"),
        ("add.u32 %r01, %r2, %r3;", "%r01 is no register"),
        ("mul.u32 %r1, %r2, %r3;", "unknown modifier .u32"),
        ("mul.wide.u64 %d1, %d2, %d3;", "no type .u64"),
        ("setp.lt.b32 %p1, %r1, %r2;", "no comparison"),
        ("setp.lo.s32 %p1, %r1, %r2;", "no comparison"),
        ("setp.eq.u32 %r3, %r1, %r2;", "in the place of 1"),
        ("lop3.b32 %r1, %r2, %r3, %r4, 256;", "immediate of 8 bits"),
        ("mov.u32 %r1, %tid.y;", "no register"),
        ("mov.u64 %d1, %tid.x;", "32 bits"),
        ("mov.u8 %r1, 1;", "no type .u8"),
        ("mov.b64 %d1, {%r1, %r2, %r3};", "no 3 parts"),
        ("cvt.u32.u64 %r1, %r2;", "32 bits in the place of 64"),
        ("ld.u32 %r1, [%d1];", "unknown state space"),
        ("ld.local.u32 %r1, [%d1];", "unknown state space"),
        ("ld.volatile.global.u32 %r1, [%d1];", "unknown state space"),
        ("ld.global.u32 %r1, %d1;", "must be an address"),
        ("ld.global.u32 %r1, [%r2];", "no address"),
        ("ld.global.u64 %r1, [%d1];", "in the place of 64"),
        ("ld.global.v4.u64 {%d1, %d2, %d3, %d4}, [%d5];", "16 bytes at most"),
        ("ld.global.v2.u32 {%r1, %r2, %r3}, [%d5];", "2 elements"),
        ("ld.global.v2.u32 %r1, [%d5];", "must be a vector"),
        ("ld.global.u32 {%r1}, [%d5];", "1 elements"),
        ("ld.global.nc.ca.u32 %r1, [%d5];", "no type .ca"),
        ("ld.global.L1::no_allocate.u32 %r1, [%d5];", "version 7.4"),
        ("ld.param.u64 %d1, [out+8];", "not inside"),
        ("ld.param.u64 %d1, [%d2];", "no addresses in registers"),
        ("ld.shared.u32 %r1, [out];", "another state space"),
        ("st.const.u32 [%d1], %r1;", "read-only"),
        ("st.global.ca.u32 [%d1], %r1;", "no type .ca"),
        ("atom.global.max.u32 %r1, [%d1], 1;", "unknown modifier .max"),
        ("bar.sync %r1;", "below 16"),
        ("bar.arrive 0, 32;", "unknown modifier .arrive"),
        ("vote.sync.ballot.pred %p1, %p2, -1;", "no type .pred"),
        ("shfl.idx.b32 %r1, %r2, 0, 31;", "unknown modifier .idx"),
        ("brx.idx %r1, LIST;", "no list of branch targets"),
        ("bra NOWHERE;", "NOWHERE is not defined"),
        ("@%r1 ret;", "%r1 is no predicate"),
        ("@%q ret;", "%q is not declared"),
        (".local .align 4 .b8 a[4];", "unknown directive .local"),
        (".reg .f32 %f<5>;", "no type of a register"),
        (".reg .b32 %r1;", "declared twice"),
        (".reg .b32 %r<3>;", "declared twice"),
        (".reg .b32 %x<2000000>;", "more than"),
        (".shared .align 3 .b8 a[4];", "no alignment"),
        (".shared .align 4 .b8 a[50000];", "bytes of shared variables"),
        (".shared .align 4 .b8 a[0];", "no bytes"),
        ("mov.b64 %d1, {{%r1}, %r2};", "part of a vector"),
        ("A: A: ret;", "defined twice"),
        ("{ ret; }", "where a word must be"),
    ] {
        let found = error("", line);
        assert!(found.contains(expected), "{line}: {found}");
    }
}

#[test]
fn hints_are_of_later_versions() {
    let head = ".version 7.4\n.target sm_80\n.address_size 64\n";
    let body = ".visible .entry a(.param .u64 p) { .reg .b64 %d<3>; .reg .b32 %r<3>; \
        ld.param.u64 %d1, [p]; ld.global.nc.L1::no_allocate.L2::256B.u32 %r1, [%d1]; \
        ld.global.L1::evict_last.u32 %r2, [%d1]; ld.global.lu.u32 %r2, [%d1]; \
        ld.global.L2::128B.v2.u32 {%r1, %r2}, [%d1]; ret; }";
    assert!(Module::parse(&format!("{head}{body}")).is_ok());
}

#[test]
fn modules_that_are_wrong() {
    let kernel = ".visible .entry a() { ret; }";
    for (rest, line, expected) in [
        ("", 4, ""),
        (".visible .entry a() { ret; }\n.visible .entry a() { ret; }", 5, "defined twice"),
        (".visible .func f() { ret; }", 4, "`.entry`"),
        (".visible .entry a(.param .b8 x) { ret; }", 4, "32 or 64 bits"),
        (".visible .entry a(.param .u32 x, .param .u32 x) { ret; }", 4, "declared twice"),
        (".visible .entry a() { }", 4, "past its end"),
        (".visible .entry a() {\n.reg .pred %p; @%p ret;\n}", 6, "past its end"),
        (".visible .entry a() { bra A; A: }", 4, "no instruction"),
        (".visible .entry a() .maxntid 8, 8 { ret; }", 4, "one dimension"),
        (".visible .entry a() { ret;", 4, "the text ends"),
        (".const .u32 t[2] = {1,\n2, 3};", 5, "more than 2 values"),
        (".const .u8 t[2] = {256};", 4, "does not fit"),
        (".const .u64 t[9000];", 4, "too large"),
        (".const .u32 t; .global .u32 t;", 4, "declared twice"),
        (".file 1 \"a\"", 4, "unknown character"),
        (".func f;", 4, "unknown directive"),
    ] {
        let text = format!("{HEAD}{rest}");
        match Module::parse(&text) {
            Ok(module) => assert!(rest.is_empty() && module.kernels().is_empty(), "{rest}"),
            Err(error) => {
                assert!(error.message.contains(expected), "{rest}: {error}");
                assert_eq!(error.line, line, "{rest}: {error}");
            }
        }
    }
    for head in ["", ".version 7\n", ".version 7.0 .target x", ".version 7.0 .target sm_70 "] {
        assert!(Module::parse(&format!("{head}{kernel}")).is_err(), "{head}");
    }
    let module = Module::parse(&format!("{HEAD}{kernel}")).unwrap();
    assert_eq!(module.kernel("a").map(|kernel| kernel.instructions()), Some(1));
    assert!(module.kernel("b").is_none());
}
