//! Branches, predication, loops, launches and what they count.

use super::{block_words, store_own, text, words};
use crate::interpreter::Launch;

#[test]
fn a_loop_sums() {
    let body = format!(
        "mov.u32 %r1, %tid.x; mov.u32 %r2, 0;\n\
         LOOP: setp.eq.u32 %p1, %r1, 0; @%p1 bra DONE; add.u32 %r2, %r2, %r1; \
         sub.u32 %r1, %r1, 1; bra.uni LOOP;\nDONE: {}",
        store_own("%r2")
    );
    let expected: Vec<u32> = (0..40).map(|n| n * (n + 1) / 2).collect();
    assert_eq!(block_words("", &body, 40), expected);
}

#[test]
fn an_indexed_branch_chooses() {
    let body = format!(
        "mov.u32 %r1, %tid.x; TARGETS: .branchtargets A, B, C;\n brx.idx %r1, TARGETS;\n\
         A: mov.u32 %r2, 10; bra END; B: mov.u32 %r2, 20; bra END; C: mov.u32 %r2, 30;\nEND: {}",
        store_own("%r2")
    );
    assert_eq!(block_words("", &body, 3), [10, 20, 30]);
}

#[test]
fn a_guard_skips() {
    let body = format!(
        "mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; \
         @%p1 mov.u32 %r3, 5; @!%p1 mov.u32 %r3, 6; {}",
        store_own("%r3")
    );
    assert_eq!(block_words("", &body, 4), [5, 6, 5, 6]);
    let launch = Launch { block: 4, ..Launch::default() };
    let (_, statistics) = words(&text("", &body), &launch, 4).unwrap();
    assert_eq!(statistics.skipped, 4);
    assert_eq!(statistics.opcodes["mov.u32"], 3 * 4);
    assert_eq!((statistics.count("mov"), statistics.count("st")), (12, 4));
    assert_eq!(statistics.count("mo"), 0);
    assert_eq!((statistics.stored_bytes, statistics.loaded_bytes), (16, 0));
    assert_eq!((statistics.threads, statistics.instructions), (4, 4 * 10));
}

#[test]
fn special_registers_name_the_thread() {
    let body = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.s32 %r3, %tid.x; \
        mad.lo.u32 %r4, %r1, %r2, %r3; mul.wide.u32 %d1, %r4, 16; add.u64 %d1, %d1, %d19; \
        mov.u32 %r5, %nctaid.x; mov.b32 %r6, %laneid; mov.u32 %r7, %warpid; \
        st.global.v4.u32 [%d1], {%r4, %r5, %r6, %r7}; exit;";
    let launch = Launch { grid: 3, block: 40, ..Launch::default() };
    let (found, statistics) = words(&text("", body), &launch, 480).unwrap();
    for (index, words) in found.chunks(4).enumerate() {
        let (index, thread) = (index as u32, index as u32 % 40);
        assert_eq!(words, [index, 3, thread % 32, thread / 32]);
    }
    assert_eq!(statistics.threads, 120);
}

#[test]
fn barriers_order_shared_memory() {
    let body = format!(
        ".shared .align 4 .b8 values[400]; mov.u32 %r1, %tid.x; mov.u32 %r2, values; \
         shl.b32 %r3, %r1, 2; add.u32 %r3, %r3, %r2; st.shared.u32 [%r3], %r1; bar.sync 0; \
         mov.u32 %r4, 99; sub.u32 %r4, %r4, %r1; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r2; \
         ld.shared.u32 %r5, [%r4]; {}",
        store_own("%r5")
    );
    let launch = Launch { block: 100, ..Launch::default() };
    let (found, statistics) = words(&text("", &body), &launch, 100).unwrap();
    assert_eq!(found, (0..100).rev().collect::<Vec<_>>());
    assert_eq!(statistics.barriers, 1);
}

#[test]
fn a_barrier_does_not_wait_for_threads_that_have_ended() {
    let body = format!(
        "mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 5; @%p1 exit; bar.sync 0; {}",
        store_own("%r1")
    );
    assert_eq!(block_words("", &body, 64)[..5], [0, 1, 2, 3, 4]);
}
