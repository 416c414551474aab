//! Parameters, global memory, tables, shared memory, and vectors.

use super::{HEAD, block_words, store_own, text, words};
use crate::interpreter::{Launch, Memory, Module, Param, run};

/// Runs a kernel `copy` with the addresses of an input and an output.
fn copied(body: &str, input: &[u8], output: usize) -> Vec<u8> {
    let text = format!(
        "{HEAD}.visible .entry copy(.param .u64 .ptr .global .align 16 in, .param .u32 n, \
         .param .u64 out) .maxntid 64, 1, 1 .minnctapersm 2 {{ .reg .b16 %h<5>; \
         .reg .b32 %r<9>; .reg .b64 %d<9>, in_address; .reg .u64 out_address; \
         ld.param.u64 in_address, [in]; ld.param.u64 out_address, [out]; ld.param.u32 %r8, [n]; \
         {body} ret; }}"
    );
    let module = Module::parse(&text).unwrap();
    let mut memory = Memory::new();
    let (a, b) = (memory.alloc_with(input), memory.alloc(output));
    let params = vec![Param::U64(a), Param::U32(0x0102_0304), Param::U64(b)];
    let launch = Launch { params, ..Launch::default() };
    run(module.kernel("copy").unwrap(), &launch, &mut memory).unwrap();
    memory.read(b, output).unwrap()
}

#[test]
fn vectors_keep_their_order() {
    let input: Vec<u8> = (100..164).collect();
    let body = "ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, [in_address+16]; \
        st.global.cs.v2.b32 [out_address+8], {%r1, %r2}; \
        st.global.wb.v2.u32 [out_address], {%r3, %r4}; \
        ld.global.cs.v2.b64 {%d1, %d2}, [in_address]; \
        st.global.v2.u64 [out_address+16], {%d2, %d1};";
    let expected = [&input[24..32], &input[16..24], &input[8..16], &input[..8]].concat();
    assert_eq!(copied(body, &input, 32), expected);
}

#[test]
fn narrow_loads_are_extended() {
    let body = "ld.global.u8 %r1, [in_address+1]; ld.global.b8 %r2, [in_address+1]; \
        ld.global.s8 %r3, [in_address+1]; ld.global.u16 %h1, [in_address+2]; \
        ld.global.u16 %r4, [in_address+2]; ld.global.s32 %d1, [in_address+4]; \
        st.global.u32 [out_address], %r1; st.global.u32 [out_address+4], %r2; \
        st.global.u32 [out_address+8], %r3; st.global.u16 [out_address+12], %h1; \
        st.global.u8 [out_address+14], %r4; st.global.u8 [out_address+15], 255; \
        st.global.u64 [out_address+16], %d1;";
    let found = copied(body, &[0, 0xfe, 0xcd, 0xab, 1, 2, 3, 0x84], 24);
    let mut expected = vec![0xfe, 0, 0, 0, 0xfe, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff];
    expected.extend([0xcd, 0xab, 0xcd, 0xff, 1, 2, 3, 0x84, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(found, expected);
}

#[test]
fn parameters_have_their_offsets() {
    let body = "ld.param.b32 %r1, [n+0]; st.global.u32 [out_address], %r1; \
        cvta.to.global.u64 %d1, out_address; add.u64 %d1, %d1, 8; \
        st.global.u32 [%d1+-4], %r8; prefetch.global.L2 [%d1+4096];";
    assert_eq!(copied(body, &[0], 8), [4, 3, 2, 1, 4, 3, 2, 1]);
}

const TABLES: &str = ".const .align 4 .u32 squares[5] = {0, 1, 4, 0x9}; .const .b8 last = 200;\
    .global .align 16 .b32 cubes[4] = {0, 1, 8, -27}; .global .align 2 .b16 zero[2];";

#[test]
fn tables_hold_their_values() {
    let body = format!(
        "mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, squares; add.u32 %r3, %r3, %r2; \
         ld.const.u32 %r4, [%r3]; mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, cubes; \
         add.u64 %d2, %d2, %d1; ld.global.nc.u32 %r5, [%d2]; add.u32 %r6, %r4, %r5; \
         ld.const.u32 %r7, [squares+4]; ld.const.u8 %r8, [last]; add.u32 %r6, %r6, %r7; \
         add.u32 %r6, %r6, %r8; mov.u64 %d3, zero+2; ld.global.u16 %r9, [%d3]; \
         ld.global.u16 %r10, [zero]; add.u32 %r6, %r6, %r9; mov.u64 %d4, squares; \
         ld.const.u32 %r11, [%d4+16]; add.u32 %r6, %r6, %r11; {}",
        store_own("%r6")
    );
    let expected = [201, 203, 213, (9_u32 + 201).wrapping_sub(27)];
    assert_eq!(block_words(TABLES, &body, 4), expected);
}

#[test]
fn dynamic_shared_memory_is_as_large_as_the_launch_says() {
    let body = format!(
        ".shared .align 8 .b64 before; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; \
         mov.u32 %r3, dynamic; add.u32 %r2, %r2, %r3; \
         st.shared.v4.u32 [%r2], {{%r1, 1, 2, %r1}}; st.shared.v2.b32 [%r2+8], {{3, 4}}; \
         ld.shared.v2.u32 {{%r4, %r5}}, [%r2]; ld.shared.u64 %d1, [%r2+8]; \
         cvt.u32.u64 %r6, %d1; setp.ne.u32 %p1, %r1, 0; @!%p1 st.shared.b64 [before], %d1; \
         @!%p1 ld.shared.u32 %r6, [before+4]; mad.lo.u32 %r7, %r4, 10, %r6; {}",
        store_own("%r7")
    );
    let text = text(".extern .shared .align 16 .b8 dynamic[];", &body);
    let launch = Launch { block: 4, shared_bytes: 64, ..Launch::default() };
    assert_eq!(words(&text, &launch, 4).unwrap().0, [4, 13, 23, 33]);
    let launch = Launch { shared_bytes: 63, ..launch };
    assert!(words(&text, &launch, 4).unwrap_err().to_string().contains("63 bytes"));
}

#[test]
fn shared_memory_of_a_block_is_its_own() {
    let body = ".shared .align 4 .b8 count[4]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; \
        setp.ne.u32 %p1, %r1, 0; @%p1 bra REST; st.shared.u32 [count], %r2; REST: bar.sync 0; \
        mov.u32 %r3, count; atom.shared.add.u32 %r4, [%r3], 10; bar.sync 0; @%p1 exit; \
        ld.shared.u32 %r5, [count]; mul.wide.u32 %d1, %r2, 4; add.u64 %d1, %d1, %d19; \
        st.global.u32 [%d1], %r5; ret;";
    let launch = Launch { grid: 3, block: 50, ..Launch::default() };
    assert_eq!(words(&text("", body), &launch, 3).unwrap().0, [500, 501, 502]);
}

#[test]
fn atomic_additions_of_all_threads_count() {
    let text = format!(
        "{HEAD}.visible .entry count(.param .u64 to) {{ .reg .b64 %d<3>; .reg .b32 %r<3>; \
         ld.param.u64 %d1, [to]; atom.global.add.u32 %r1, [%d1], 2; \
         red.global.add.u32 [%d1+4], %r1; ret; }}"
    );
    let module = Module::parse(&text).unwrap();
    let mut memory = Memory::new();
    let to = memory.alloc_with(&[0; 8]);
    let launch = Launch { grid: 5, block: 20, params: vec![Param::U64(to)], ..Launch::default() };
    run(module.kernel("count").unwrap(), &launch, &mut memory).unwrap();
    let sum: u32 = (0..100).map(|n| 2 * n).sum();
    let expected = [200_u32.to_le_bytes(), sum.to_le_bytes()].concat();
    assert_eq!(memory.read(to, 8).unwrap(), expected);
}
