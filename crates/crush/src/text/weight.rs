//! Weights as text: 16.16 fixed point, read and written through 32-bit floats.

use super::error::{ParseError, Problem, shown};
use super::lexer::Word;

/// Decimals that are always written.
const MIN_DECIMALS: usize = 5;
/// Most decimals that 16 binary places need.
const MAX_DECIMALS: usize = 16;

/// The weight of a word.
pub(super) fn read(word: Word<'_>) -> Result<u32, ParseError> {
    let weight = value(word.text);
    weight.ok_or_else(|| Problem::Weight { found: shown(word.text) }.at(word.place))
}

fn value(text: &str) -> Option<u32> {
    // Rust also reads words like "inf".
    if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
        return None;
    }
    let weight: f32 = text.parse().ok()?;
    let fixed = weight * 65536.0;
    (0.0..4_294_967_296.0).contains(&fixed).then_some(fixed as u32)
}

/// The shortest text of at least five decimals that is read as `weight`. `None` if there is none,
/// because `weight` has more than 24 significant bits.
pub(super) fn exactly(weight: u32) -> Option<String> {
    let exact = f64::from(weight) / 65536.0;
    let texts = (MIN_DECIMALS..=MAX_DECIMALS).map(|decimals| format!("{exact:.decimals$}"));
    texts.into_iter().find(|text| value(text) == Some(weight))
}

/// The nearest weight that is not greater and that a text can carry.
pub(super) fn nearest_below(weight: u32) -> u32 {
    let surplus_bits = (u32::BITS - weight.leading_zeros()).saturating_sub(f32::MANTISSA_DIGITS);
    weight >> surplus_bits << surplus_bits
}

/// For messages and comments: rounded to five decimals.
pub(super) fn rounded(weight: u32) -> String {
    format!("{:.MIN_DECIMALS$}", f64::from(weight) / 65536.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_is_read_back_or_cut() {
        let mut weight = 1u32;
        for step in 0..400_000u32 {
            match exactly(weight) {
                Some(text) => assert_eq!(value(&text), Some(weight)),
                None => {
                    let below = nearest_below(weight);
                    assert!(below < weight && weight - below < 256, "{weight:#x}");
                    assert!(value(&exactly(below).unwrap()) == Some(below));
                }
            }
            weight = weight.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) >> (step % 3 * 4);
        }
    }

    #[test]
    fn weights_have_five_decimals_and_more_where_needed() {
        assert_eq!(exactly(0x1_0000).unwrap(), "1.00000");
        assert_eq!(exactly(0x1_8000).unwrap(), "1.50000");
        // 2^-16 rounds up to five decimals; 1.0 - 2^-16 needs a sixth decimal.
        assert_eq!(exactly(1).unwrap(), "0.00002");
        assert_eq!(value("0.99998"), Some(0xfffe));
        assert_eq!(exactly(0xffff).unwrap(), "0.999985");
        assert_eq!(exactly(0xffff_ffff), None);
        assert_eq!(nearest_below(0xffff_ffff), 0xffff_ff00);
    }

    #[test]
    fn what_is_no_weight_is_refused() {
        for text in ["", "inf", "nan", "-1", "65536", "1e9", "1,5", "0x10", "-", "."] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!(value("1e-1"), value("0.1"));
        assert_eq!(value("65535.99"), Some(0xffff_fd00));
    }
}
