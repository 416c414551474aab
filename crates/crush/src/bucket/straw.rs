//! **Straw**: every item draws a straw of pseudo-random length, scaled by its weight, and the
//! longest straw wins. The scales are computed from the sorted weights when the bucket is made. The
//! scales are not quite right: a change of one weight shifts the others' shares a little. This is
//! why straw2 exists.
//!
//! Version 0 of the computation treats equal weights as a group and is wrong for zero weights.
//! Version 1 treats items one by one. Binary maps carry the scales, so the version only matters
//! when a bucket is made. The computation uses floating point and a power function, as Ceph's does.
//! Where the libraries' power functions differ in the last bit, a scale may differ, too.

use crate::ItemId;
use crate::hash::hash3;

/// The index of the drawn item; there is at least one. The first of equal straws wins.
pub(crate) fn choose(items: &[ItemId], straws: &[u32], x: u32, r: u32) -> usize {
    let mut winner = 0;
    let mut longest = 0;
    for (index, (&item, &straw)) in items.iter().zip(straws).enumerate() {
        let length = u64::from(hash3(x, item.0 as u32, r) & 0xffff) * u64::from(straw);
        if index == 0 || length > longest {
            longest = length;
            winner = index;
        }
    }
    winner
}

/// The 16.16 scale of every item's straw.
pub(crate) fn straws(weights: &[u32], version: u8) -> Vec<u32> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&index| weights[index]);
    let mut straws = vec![0; weights.len()];
    let mut left = weights.len() as u32;
    let mut scale = 1.0f64;
    let mut below = 0.0f64;
    let mut last_weight = 0.0f64;
    for (at, &index) in order.iter().enumerate() {
        let weight = weights[index];
        if weight == 0 {
            // Version 0 still counts the item among those that are left.
            if version > 0 {
                left -= 1;
            }
            continue;
        }
        straws[index] = to_fixed_point(scale);
        let Some(&next) = order.get(at + 1) else { break };
        let next_weight = weights[next];
        if version == 0 && next_weight == weight {
            continue;
        }
        below += (f64::from(weight) - last_weight) * f64::from(left);
        let passed = if version == 0 {
            order[at + 1..].iter().take_while(|&&i| weights[i] == next_weight).count() as u32
        } else {
            1
        };
        left = left.wrapping_sub(passed);
        // The product wraps, as in Ceph.
        let above = f64::from(left.wrapping_mul(next_weight - weight));
        let share_below = below / (below + above);
        scale *= (1.0 / share_below).powf(1.0 / f64::from(left as i32));
        last_weight = f64::from(weight);
    }
    straws
}

/// Converts to 16.16 as C code does on common machines: through 64 bits, of which the lower half is
/// kept. A number that does not fit into 64 bits becomes 0. Version 0 can give infinite scales.
fn to_fixed_point(scale: f64) -> u32 {
    let scaled = scale * 65536.0;
    if scaled.abs() < i64::MAX as f64 { scaled as i64 as u32 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn straws_of_equal_weights_are_equal_in_version_0_and_grow_with_the_weight() {
        assert_eq!(straws(&[0x1_0000; 5], 0), [0x1_0000; 5]);
        for version in [0, 1] {
            let straws = straws(&[0x1_0000, 0x3_0000, 0, 0x2_0000], version);
            assert_eq!(straws[2], 0);
            assert!(straws[0] < straws[3] && straws[3] < straws[1], "{straws:?}");
        }
    }
}
