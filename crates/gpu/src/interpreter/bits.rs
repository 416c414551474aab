//! What works on the bits of a word: permutes, funnels, fields, logic of three inputs.

use super::arithmetic::Integer;
use super::types::{extend, ones};

/// Each bit of the result is the bit of the table that the three input bits select.
pub(super) fn logic3(a: u64, b: u64, c: u64, table: u64) -> u64 {
    let entry = |index: u32| (table >> index & 1).wrapping_neg();
    let choose = |bits: u64, ones: u64, zeros: u64| zeros ^ bits & (zeros ^ ones);
    let by_c = |index: u32| choose(c, entry(index + 1), entry(index));
    let by_b = |index: u32| choose(b, by_c(index + 2), by_c(index));
    choose(a, by_b(4), by_b(0)) & ones(32)
}

/// The sum of three values in GF(2): [`logic3`] with the table 0x96, which is most frequent.
pub(super) fn sum3(a: u64, b: u64, c: u64) -> u64 {
    a ^ b ^ c
}

/// Each byte of the result is the byte of `b:a` that four bits of the selector name: three bits for
/// the index, and one that asks for the byte's sign in all eight bits.
pub(super) fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = b << 32 | a;
    (0..4).fold(0, |sum, byte| {
        let select = selector >> (4 * byte);
        let value = bytes >> (8 * (select & 7)) & 0xff;
        let value = if select & 8 == 0 { value } else { (value >> 7) * 0xff };
        sum | value << (8 * byte)
    })
}

/// The high half of `b:a`, shifted left by the count modulo 32.
pub(super) fn funnel_left_wrap(a: u64, b: u64, count: u64) -> u64 {
    (b << 32 | a) << (count & 31) >> 32
}

/// The low half of `b:a`, shifted right by the count modulo 32.
pub(super) fn funnel_right_wrap(a: u64, b: u64, count: u64) -> u64 {
    (b << 32 | a) >> (count & 31) & ones(32)
}

/// The high half of `b:a`, shifted left by the count, which is 32 at most.
pub(super) fn funnel_left_clamp(a: u64, b: u64, count: u64) -> u64 {
    (b << 32 | a) << count.min(32) >> 32
}

/// The low half of `b:a`, shifted right by the count, which is 32 at most.
pub(super) fn funnel_right_clamp(a: u64, b: u64, count: u64) -> u64 {
    (b << 32 | a) >> count.min(32) & ones(32)
}

/// A field of a value: where it begins and its length are the low bytes of `start` and `length`.
/// A type with a sign extends the field by its highest bit, which is the highest of the value if
/// the field reaches past it.
pub(super) fn extract<T: Integer>(a: u64, start: u64, length: u64) -> u64 {
    let (start, length, width) = (start & 0xff, length & 0xff, u64::from(T::BITS));
    let signed = T::of(u64::MAX) < T::of(0);
    if length == 0 {
        return 0;
    }
    // The value continues with its sign above its width.
    let wide = extend(a, T::BITS, 64, signed);
    let sign = if signed { wide >> 63 } else { 0 };
    let field =
        if start >= width { sign * u64::MAX } else { (T::of(a)).right(start as u32).bits() };
    let kept = length.min(width.saturating_sub(start)).max(1) as u32;
    extend(field, kept, T::BITS, signed)
}

/// A value with a field replaced by the low bits of `field`.
pub(super) fn insert<T: Integer>(field: u64, a: u64, start: u64, length: u64) -> u64 {
    let (start, length) = (start & 0xff, length & 0xff);
    if start >= u64::from(T::BITS) || length == 0 {
        return a;
    }
    let mask = ones(length as u32) << start & ones(T::BITS);
    a & !mask | field << start & mask
}

/// The bits in reverse order.
pub(super) fn reverse<T: Integer>(a: u64) -> u64 {
    a.reverse_bits() >> (64 - T::BITS)
}

/// How many bits are ones.
pub(super) fn count_ones(a: u64) -> u64 {
    u64::from(a.count_ones())
}

/// How many bits above the highest one are zeros.
pub(super) fn leading_zeros<T: Integer>(a: u64) -> u64 {
    u64::from(a.leading_zeros() + T::BITS - 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, as the manual defines it.
    fn extract_slowly(a: u64, start: u64, length: u64, width: u64, signed: bool) -> u64 {
        let (start, length, top) = (start & 0xff, length & 0xff, width - 1);
        let bit = |index: u64| a >> index & 1;
        let sign = if !signed || length == 0 { 0 } else { bit(top.min(start + length - 1)) };
        (0..width).fold(0, |sum, index| {
            let inside = index < length && start + index <= top;
            sum | (if inside { bit(start + index) } else { sign }) << index
        })
    }

    proptest! {
        #[test]
        fn fields_are_extracted(a: u64, start in 0u64..90, length in 0u64..90) {
            let low = a & ones(32);
            prop_assert_eq!(extract::<u64>(a, start, length),
                extract_slowly(a, start, length, 64, false));
            prop_assert_eq!(extract::<i64>(a, start, length),
                extract_slowly(a, start, length, 64, true));
            prop_assert_eq!(extract::<u32>(low, start, length),
                extract_slowly(low, start, length, 32, false));
            prop_assert_eq!(extract::<i32>(low, start, length),
                extract_slowly(low, start, length, 32, true));
        }

        #[test]
        fn fields_are_inserted(a: u32, b: u32, start in 0u64..40, length in 0u64..40) {
            let found = insert::<u32>(a.into(), b.into(), start, length);
            for bit in 0..32 {
                let inside = (start..start + length).contains(&bit);
                let expected = if inside { a >> (bit - start) } else { b >> bit } & 1;
                prop_assert_eq!((found >> bit & 1) as u32, expected);
            }
        }

        #[test]
        fn bytes_are_permuted(a: u32, b: u32, selector: u32) {
            let mut bytes = a.to_le_bytes().to_vec();
            bytes.extend(b.to_le_bytes());
            let expected: [u8; 4] = std::array::from_fn(|at| {
                let select = selector >> (4 * at) & 15;
                let byte = bytes[select as usize & 7];
                if select < 8 { byte } else { (byte.cast_signed() >> 7).cast_unsigned() }
            });
            let found = permute(a.into(), b.into(), selector.into());
            prop_assert_eq!(found, u64::from(u32::from_le_bytes(expected)));
        }

        #[test]
        fn tables_of_three_inputs(a: u32, b: u32, c: u32, table: u8) {
            let found = logic3(a.into(), b.into(), c.into(), table.into());
            for bit in 0..32 {
                let index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1;
                prop_assert_eq!((found >> bit & 1) as u8, table >> index & 1);
            }
        }

        #[test]
        fn funnels(a: u32, b: u32, count in 0u32..70) {
            let (wa, wb, n) = (u64::from(a), u64::from(b), u64::from(count));
            let rotated = u64::from(a.rotate_left(count));
            prop_assert_eq!(funnel_left_wrap(wa, wa, n), rotated);
            let rotated = u64::from(a.rotate_right(count));
            prop_assert_eq!(funnel_right_wrap(wa, wa, n), rotated);
            let left = if count >= 32 { a } else { b << count | (wa << count >> 32) as u32 };
            prop_assert_eq!(funnel_left_clamp(wa, wb, n), u64::from(left));
            let right = if count >= 32 { b } else { a >> count | (wb << 32 >> count) as u32 };
            prop_assert_eq!(funnel_right_clamp(wa, wb, n), u64::from(right));
        }
    }

    #[test]
    fn well_known_tables() {
        let (a, b, c) = (0xf0f0_1234, 0x3333_5678, 0x5555_9abc);
        assert_eq!(logic3(a, b, c, 0x96), sum3(a, b, c));
        assert_eq!(logic3(a, b, c, 0xe8), a & b | b & c | a & c);
        assert_eq!(logic3(a, b, c, 0xca), a & b | !a & c & ones(32));
    }

    #[test]
    fn counts_of_bits() {
        assert_eq!(
            (count_ones(0xf0f), leading_zeros::<u32>(0), leading_zeros::<u64>(1)),
            (8, 32, 63)
        );
        assert_eq!(reverse::<u32>(1), 1 << 31);
        assert_eq!(reverse::<u64>(0b10), 1 << 62);
    }
}
