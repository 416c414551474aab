//! Shuffles, votes and other things that lanes do together.

use super::{block_words, store_own};

#[test]
fn a_butterfly_sums_over_the_warp() {
    let mut body = String::from("mov.u32 %r1, %tid.x; add.u32 %r1, %r1, 1;\n");
    for step in [16, 8, 4, 2, 1] {
        body.push_str(&format!(
            "shfl.sync.bfly.b32 %r2, %r1, {step}, 0x1f, 0xffffffff; add.u32 %r1, %r1, %r2;\n"
        ));
    }
    body.push_str(&store_own("%r1"));
    let found = block_words("", &body, 64);
    assert_eq!(found, [vec![32 * 33 / 2; 32], vec![(33..65).sum(); 32]].concat());
}

#[test]
fn shuffles_tell_who_is_in_range() {
    // A value of 1000 and more says that the lane asked for one in range.
    let shuffled = |how: &str, b: &str, c: &str| {
        let body = format!(
            "mov.u32 %r1, %tid.x; xor.b32 %r5, %r1, 5; add.u32 %r2, %r1, 100; \
             shfl.sync.{how}.b32 %r3|%p1, %r2, {b}, {c}, -1; @%p1 add.u32 %r3, %r3, 900; {}",
            store_own("%r3")
        );
        block_words("", &body, 32)
    };
    let expected = |f: &dyn Fn(u32) -> (u32, bool)| {
        let values = (0..32).map(|lane| {
            let (from, inside) = f(lane);
            if inside { 1000 + from } else { 100 + lane }
        });
        values.collect::<Vec<u32>>()
    };
    assert_eq!(shuffled("up", "3", "0"), expected(&|n| (n.wrapping_sub(3), n >= 3)));
    assert_eq!(shuffled("down", "3", "31"), expected(&|n| (n + 3, n < 29)));
    assert_eq!(shuffled("idx", "%r5", "31"), expected(&|n| (n ^ 5, true)));
    // Segments of eight lanes.
    assert_eq!(shuffled("idx", "2", "0x181f"), expected(&|n| (n & 24 | 2, true)));
    assert_eq!(shuffled("down", "3", "0x181f"), expected(&|n| (n + 3, n % 8 < 5)));
    assert_eq!(shuffled("up", "3", "0x1800"), expected(&|n| (n.wrapping_sub(3), n % 8 >= 3)));
    assert_eq!(shuffled("bfly", "4", "0x181f"), expected(&|n| (n ^ 4, true)));
    // Half of the lanes ask for one above the clamp of their segment.
    assert_eq!(shuffled("bfly", "4", "0x1803"), expected(&|n| (n ^ 4, n & 4 != 0)));
}

#[test]
fn votes_tell_all_lanes() {
    let body = format!(
        "mov.u32 %r1, %tid.x; mov.u32 %r5, 0; setp.lt.u32 %p1, %r1, 35; \
         vote.sync.ballot.b32 %r2, %p1, -1; vote.sync.any.pred %p2, %p1, -1; \
         vote.sync.all.pred %p3, %p1, -1; vote.sync.all.pred %p4, !%p1, -1; \
         @%p2 or.b32 %r5, %r5, 1; @%p3 or.b32 %r5, %r5, 2; @%p4 or.b32 %r5, %r5, 4; \
         popc.b32 %r2, %r2; shl.b32 %r2, %r2, 8; or.b32 %r5, %r5, %r2; {}",
        store_own("%r5")
    );
    let found = block_words("", &body, 96);
    let expected = [vec![32 << 8 | 3; 32], vec![3 << 8 | 1; 32], vec![4; 32]].concat();
    assert_eq!(found, expected);
}

#[test]
fn groups_of_lanes_go_their_own_ways() {
    // Odd and even lanes shuffle at different instructions.
    let body = format!(
        "mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra ODD; \
         shfl.sync.idx.b32 %r3, %r1, 4, 31, 0x55555555; bra END; \
         ODD: activemask.b32 %r4; shfl.sync.idx.b32 %r3, %r1, 7, 31, %r4; END: {}",
        store_own("%r3")
    );
    let expected: Vec<u32> = (0..32).map(|lane| if lane % 2 == 0 { 4 } else { 7 }).collect();
    assert_eq!(block_words("", &body, 32), expected);
}

#[test]
fn a_warp_barrier_orders_the_lanes_that_it_names() {
    // Groups of four lanes pass a value on, with a mask for each group.
    let body = format!(
        ".shared .align 4 .b8 values[128]; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 28; \
         shl.b32 %r3, 15, %r2; mov.u32 %r4, values; shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r4; \
         st.shared.u32 [%r5], %r1; bar.warp.sync %r3; xor.b32 %r6, %r1, 3; shl.b32 %r6, %r6, 2; \
         add.u32 %r6, %r6, %r4; ld.shared.u32 %r7, [%r6]; bar.warp.sync %r3; \
         st.shared.u32 [%r5], %r7; {}",
        store_own("%r7")
    );
    assert_eq!(block_words("", &body, 32), (0..32).map(|n| n ^ 3).collect::<Vec<u32>>());
}
