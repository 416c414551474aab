//! How fast the interpreter is.

use std::fmt::Write;
use std::time::Instant;

use super::{store_own, text, words};
use crate::interpreter::Launch;

/// Prints how many instructions of threads it executes in a second.
#[test]
#[ignore = "measures, and checks nothing"]
fn instructions_in_a_second() {
    let mut body = String::from(
        ".shared .align 16 .b8 a[4096]; mov.u32 %r1, %tid.x; mov.u32 %r3, 0; mov.u32 %r2, a; \
         shl.b32 %r4, %r1, 4; add.u32 %r2, %r2, %r4; mov.u32 %r9, %r1;\nLOOP: ",
    );
    for _ in 0..8 {
        write!(
            body,
            "prmt.b32 %r5, %r1, %r3, 0x4321; lop3.b32 %r1, %r1, %r5, %r4, 0x96; \
             shf.l.wrap.b32 %r6, %r1, %r5, 3; mad.lo.u32 %r1, %r6, 5, %r1; "
        )
        .unwrap();
    }
    body.push_str(
        "st.shared.v4.u32 [%r2], {%r1, %r5, %r6, %r3}; ld.shared.u32 %r7, [%r2+4]; \
         add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 1000; @%p1 bra LOOP;\n",
    );
    body.push_str(&store_own("%r1"));
    let launch = Launch { block: 256, ..Launch::default() };
    let begin = Instant::now();
    let (_, statistics) = words(&text("", &body), &launch, 256).unwrap();
    let millions = (statistics.instructions + statistics.skipped) as f64 / 1e6;
    println!("{:.1} M/s", millions / begin.elapsed().as_secs_f64());
}
