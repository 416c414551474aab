//! One program for each kind of fault.

use super::{HEAD, cause, fault, store_own, text, words};
use crate::interpreter::{Access, Cause, Launch, Memory, MemoryError, Module, Nearest, Param, run};

#[test]
fn a_fault_names_the_instruction_and_the_thread() {
    let body = "mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 2;\n @%p1 mov.u32 %r2, 1;\n\n\
        \x20 @!%p1  add.u32 %r3, %r2,\n 1; ret;";
    let launch = Launch { grid: 2, block: 3, ..Launch::default() };
    let found = words(&text("", body), &launch, 1).unwrap_err();
    assert_eq!((found.kernel.as_str(), found.line, found.block, found.thread), ("test", 9, 0, 2));
    assert_eq!(found.text, "@!%p1  add.u32 %r3, %r2,\n 1;");
    assert_eq!(*found.cause, Cause::UndefinedRegister("%r2".to_owned()));
    assert!(found.to_string().contains("test, line 9, block 0, thread 2"), "{found}");
}

#[test]
fn registers_without_a_value() {
    let undefined = |name: &str| Cause::UndefinedRegister(name.to_owned());
    assert_eq!(cause("", "@%p1 ret; ret;", 1), undefined("%p1"));
    assert_eq!(cause("", "st.global.u64 [%d1], 5; ret;", 1), undefined("%d1"));
    assert_eq!(cause("", "addc.u32 %r1, 1, 2; ret;", 1), undefined("the carry"));
    // Lane 0 asks lane 1, which takes no part.
    let body = "mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 exit; \
        shfl.sync.idx.b32 %r2, %r1, 1, 31, 1; add.u32 %r3, %r2, 1; ret;";
    assert_eq!(cause("", body, 2), undefined("%r2"));
    assert_eq!(cause("", "shfl.sync.idx.b32 %r2, %r1, 0, 31, 1; ret;", 1), undefined("%r1"));
}

#[test]
fn divisions_by_zero() {
    for of in ["u32", "s32"] {
        for name in ["div", "rem"] {
            let body = format!("mov.u32 %r1, %tid.x; {name}.{of} %r2, 5, %r1; ret;");
            assert_eq!(cause("", &body, 1), Cause::DivisionByZero);
        }
    }
    assert_eq!(cause("", "mov.b64 %d1, 0; rem.u64 %d2, 5, %d1; ret;", 1), Cause::DivisionByZero);
}

#[test]
fn misaligned_accesses() {
    let found = cause("", "mov.b32 %r1, 0; st.global.v2.u32 [%d19+4], {%r1, %r1}; ret;", 1);
    assert!(matches!(found, Cause::Misaligned { bytes: 8, address } if address % 8 == 4));
    let found = cause("", ".shared .align 4 .b8 a[8]; st.shared.u32 [a+2], 0; ret;", 1);
    assert!(matches!(found, Cause::Misaligned { bytes: 4, address } if address % 4 == 2));
}

#[test]
fn accesses_outside_of_allocations() {
    for offset in [-4, 256] {
        let found = cause("", &format!("ld.global.u32 %r1, [%d19+{offset}]; ret;"), 1);
        let Cause::Global(MemoryError::Outside { address, bytes, nearest }) = found else {
            panic!("{found}")
        };
        let Nearest::Allocation { address: start, bytes: size } = nearest else {
            panic!("{nearest}")
        };
        assert_eq!((address, bytes, size), (start.wrapping_add_signed(offset), 4, 256));
    }
    let found = cause("", "st.global.u32 [%d19+256], 1; ret;", 1);
    assert!(found.to_string().contains("the nearest is 256 bytes at"), "{found}");
    let found = cause("", "red.global.add.u32 [%d19+256], 1; ret;", 1);
    assert!(matches!(found, Cause::Global(MemoryError::Outside { .. })));
}

#[test]
fn accesses_outside_of_tables() {
    let tables = ".const .align 4 .u32 a[2] = {1, 2}; .global .align 4 .u32 b[2] = {1, 2};";
    let found = cause(tables, "ld.const.u32 %r1, [a+8]; ret;", 1);
    assert!(matches!(found, Cause::ConstantOutside { bytes: 4, .. }));
    let found = cause(tables, "ld.global.u32 %r1, [b+8]; ret;", 1);
    assert!(matches!(found, Cause::Global(MemoryError::Outside { .. })));
    let found = cause(tables, "st.global.u32 [b], 8; ret;", 1);
    assert!(matches!(found, Cause::ReadOnly { table, .. } if table == "b"));
}

#[test]
fn accesses_outside_of_shared_variables() {
    let variables = ".shared .align 4 .b8 a[8]; .shared .align 4 .b8 b[8];";
    let found = cause("", &format!("{variables} st.shared.u32 [a+8], 1; ret;"), 1);
    assert!(matches!(&found, Cause::SharedOutside { bytes: 4, .. }), "{found}");
    assert!(found.to_string().contains("the nearest is a, 8 bytes"), "{found}");
    let found = cause("", "mov.u32 %r1, 0; ld.shared.u32 %r2, [%r1]; ret;", 1);
    assert!(matches!(&found, Cause::SharedOutside { nearest, .. } if nearest == "there is none"));
}

#[test]
fn bytes_that_no_thread_wrote() {
    let found = cause("", "ld.global.u32 %r1, [%d19]; ret;", 1);
    assert!(matches!(found, Cause::Global(MemoryError::Uninitialised(_))));
    let body = ".shared .align 4 .b8 a[8]; st.shared.u8 [a], 1; ld.shared.u16 %r1, [a]; ret;";
    assert!(
        matches!(cause("", body, 1), Cause::SharedUninitialised { address } if address % 2 == 1)
    );
    // A block finds nothing of the one before.
    let body = ".shared .align 4 .b8 a[4]; mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; \
        @%p1 st.shared.u32 [a], 1; ld.shared.u32 %r2, [a]; ret;";
    let launch = Launch { grid: 2, ..Launch::default() };
    let found = words(&text("", body), &launch, 1).unwrap_err();
    assert!(matches!(*found.cause, Cause::SharedUninitialised { .. }));
    assert_eq!(found.block, 1);
}

/// The earlier access of a race in shared memory.
fn race(body: &str, threads: u32) -> Access {
    let body = format!(".shared .align 4 .b8 a[256]; mov.u32 %r1, %tid.x; {body} ret;");
    match cause("", &body, threads) {
        Cause::SharedRace { access, .. } => access,
        other => panic!("{other}"),
    }
}

#[test]
fn races_in_shared_memory() {
    assert_eq!(race("st.shared.u32 [a], %r1;", 2), Access::Written { block: 0, thread: 0 });
    let first = "setp.ne.u32 %p1, %r1, 0; @!%p1 st.shared.u32 [a], 1;";
    let read = "ld.shared.u32 %r2, [a];";
    let written = Access::Written { block: 0, thread: 0 };
    assert_eq!(race(&format!("{first} {read}"), 2), written);
    // A shuffle orders no accesses, and a warp barrier none of another warp.
    let shuffle = "shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;";
    assert_eq!(race(&format!("{first} {shuffle} {read}"), 32), written);
    assert_eq!(race(&format!("{first} bar.warp.sync -1; {read}"), 64), written);
    let halves = "shr.u32 %r3, %r1, 4; mul.lo.u32 %r3, %r3, 16; shl.b32 %r3, 0xffff, %r3;";
    assert_eq!(race(&format!("{first} {halves} bar.warp.sync %r3; {read}"), 32), written);
    // Reads before a write.
    let last = "setp.eq.u32 %p2, %r1, 1; @%p2 st.shared.u32 [a], 2;";
    let found = race(&format!("{first} bar.sync 0; {read} {last}"), 2);
    assert_eq!(found, Access::Read { block: 0, thread: 0 });
    let last = "setp.eq.u32 %p2, %r1, 63; @%p2 st.shared.u32 [a], 2;";
    let found = race(&format!("{first} bar.sync 0; {read} {last}"), 64);
    assert_eq!(found, Access::ReadBySeveral);
    let add = "atom.shared.add.u32 %r2, [a], 1;";
    assert_eq!(race(&format!("{first} bar.sync 0; {add} {read}"), 2), Access::Atomic);
}

#[test]
fn no_races_in_shared_memory() {
    let body = format!(
        ".shared .align 4 .b8 a[256]; mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; \
         @!%p1 st.shared.u32 [a], 7; bar.warp.sync -1; ld.shared.u32 %r2, [a]; \
         bar.warp.sync -1; setp.eq.u32 %p2, %r1, 9; @%p2 st.shared.u32 [a], 8; {}",
        store_own("%r2")
    );
    assert_eq!(super::block_words("", &body, 32), [7; 32]);
}

#[test]
fn races_in_global_memory() {
    let race =
        |body: &str, launch: &Launch| match *words(&text("", body), launch, 4).unwrap_err().cause {
            Cause::Global(MemoryError::Race { access, .. }) => access,
            other => panic!("{other}"),
        };
    let blocks = Launch { grid: 2, ..Launch::default() };
    let written = Access::Written { block: 0, thread: 0 };
    assert_eq!(race("mov.u32 %r1, %ctaid.x; st.global.u32 [%d19], %r1; ret;", &blocks), written);
    let body = "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%d19], 7; \
        bar.sync 0; ld.global.u8 %r2, [%d19+3]; ret;";
    let threads = Launch { block: 2, ..Launch::default() };
    assert_eq!(race(body, &threads), written);
    let allowed = Launch { allow_races: true, ..threads.clone() };
    assert_eq!(words(&text("", body), &allowed, 4).unwrap().0[0], 7);
    let body = "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%d19], 7; \
        red.global.add.u32 [%d19], 1; ld.global.u32 %r2, [%d19]; ret;";
    assert_eq!(race(body, &threads), Access::Atomic);
}

#[test]
fn an_index_past_the_branch_targets() {
    let body = "mov.u32 %r1, 2; LIST: .branchtargets A, B; brx.idx %r1, LIST; A: ret; B: ret;";
    assert_eq!(cause("", body, 1), Cause::BranchIndex { index: 2, targets: 2 });
}

#[test]
fn threads_at_different_barriers() {
    let body = "mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 32; @%p1 bra OTHER; bar.sync 0; ret;\n\
        OTHER: bar.sync 0; ret;";
    let found = fault("", body, 64);
    assert_eq!((found.line, found.thread), (7, 32));
    assert!(matches!(*found.cause, Cause::Deadlock(text) if text.contains("line 6")));
}

#[test]
fn lanes_that_cannot_come() {
    let stuck = |body: &str, threads: u32| {
        let body = format!("mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; {body} ret;");
        match cause("", &body, threads) {
            Cause::Deadlock(text) => text,
            other => panic!("{other}"),
        }
    };
    assert!(stuck("bar.warp.sync -1;", 31).contains("lane 31, which does not exist"));
    assert!(stuck("@%p1 exit; bar.warp.sync -1;", 32).contains("lane 0, which has ended"));
    assert!(stuck("bar.warp.sync 2;", 2).contains("does not name the lane 0 itself"));
    assert!(stuck("selp.b32 %r2, 3, 2, %p1; bar.warp.sync %r2;", 2).contains("another mask"));
    let text = stuck("@%p1 bra A; vote.sync.any.pred %p2, %p1, 3;\n ret; A: bar.warp.sync 3;", 2);
    assert!(text.contains("waits at line 6"), "{text}");
    let text = stuck("@%p1 bra A; bar.sync 0; ret; A: bar.warp.sync 3;", 2);
    assert!(text.contains("waits at line 6"), "{text}");
}

#[test]
fn a_launch_that_does_not_end() {
    let launch = Launch { budget: 1000, ..Launch::default() };
    let found = words(&text("", "LOOP: bra LOOP;"), &launch, 1).unwrap_err();
    assert_eq!(*found.cause, Cause::Budget(1000));
    assert_eq!(found.text, "bra LOOP;");
}

#[test]
fn launches_that_do_not_fit() {
    let text = format!(
        "{HEAD}.visible .entry test(.param .u64 a, .param .s32 b) .maxntid 64 {{ ret; }}\n\
         .visible .entry three() .reqntid 3 {{ ret; }}"
    );
    let module = Module::parse(&text).unwrap();
    let mut memory = Memory::new();
    let params = vec![Param::U64(1), Param::U32(2)];
    let right = Launch { params, ..Launch::default() };
    let kernel = module.kernel("test").unwrap();
    assert!(run(kernel, &right, &mut memory).is_ok());
    let wrong = [
        Launch { grid: 0, ..right.clone() },
        Launch { block: 65, ..right.clone() },
        Launch { block: 0, ..right.clone() },
        Launch { shared_bytes: 1, ..right.clone() },
        Launch { grid: u32::MAX, ..right.clone() },
        Launch { params: vec![Param::U64(1)], ..right.clone() },
        Launch { params: vec![Param::U64(1), Param::U64(2)], ..right },
    ];
    for launch in &wrong {
        let found = run(kernel, launch, &mut memory).unwrap_err();
        assert!(matches!(*found.cause, Cause::Launch(_)), "{found}");
        assert_eq!(found.line, 4);
    }
    let launch = Launch { block: 2, ..Launch::default() };
    assert!(run(module.kernel("three").unwrap(), &launch, &mut memory).is_err());
}
