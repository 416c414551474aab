//! crushtool's lines, byte for byte, and C++'s way to print a float.
//!
//! The module appends lines to a buffer by hand. With a fast mapper, `format!` would take most of
//! the time.

use super::Tally;
use crate::ItemId;

/// Appends `CRUSH rule R x X [A,B,C]` and a line feed.
pub fn mapping(out: &mut Vec<u8>, rule: u32, x: i32, items: &[ItemId]) {
    out.extend_from_slice(b"CRUSH rule ");
    decimal(out, rule.into());
    out.extend_from_slice(b" x ");
    decimal(out, x.into());
    out.push(b' ');
    list(out, items);
    out.push(b'\n');
}

/// Appends `bad mapping rule R x X num_rep N result [A,B,C]` and a line feed.
pub fn bad_mapping(out: &mut Vec<u8>, rule: u32, x: i32, width: usize, items: &[ItemId]) {
    out.extend_from_slice(b"bad mapping rule ");
    decimal(out, rule.into());
    out.extend_from_slice(b" x ");
    decimal(out, x.into());
    out.extend_from_slice(b" num_rep ");
    decimal(out, width as i64);
    out.extend_from_slice(b" result ");
    list(out, items);
    out.push(b'\n');
}

fn list(out: &mut Vec<u8>, items: &[ItemId]) {
    out.push(b'[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        decimal(out, item.0.into());
    }
    out.push(b']');
}

/// Appends the number in decimal.
pub fn decimal(out: &mut Vec<u8>, number: i64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[start..]);
}

/// The start of the lines of a rule.
#[derive(Clone, Copy, Debug)]
pub struct RuleLabel<'a> {
    /// Its number.
    pub rule: u32,
    /// Its name; empty if it has none.
    pub name: &'a str,
}

/// The line above the statistics of a rule: `rule R (NAME), x = A..B, numrep = C..D`.
#[must_use]
pub fn rule_heading(label: RuleLabel<'_>, xs: (i32, i32), widths: (i64, i64)) -> String {
    let RuleLabel { rule, name } = label;
    format!("rule {rule} ({name}), x = {}..{}, numrep = {}..{}\n", xs.0, xs.1, widths.0, widths.1)
}

/// One line per size: `rule R (NAME) num_rep N result size == S:<tab>COUNT/ALL`.
#[must_use]
pub fn sizes(label: RuleLabel<'_>, width: usize, tally: &Tally) -> String {
    let RuleLabel { rule, name } = label;
    let line = |(size, count): (&usize, &u64)| {
        let all = tally.mappings;
        format!("rule {rule} ({name}) num_rep {width} result size == {size}:\t{count}/{all}\n")
    };
    tally.sizes.iter().map(line).collect()
}

/// One line per device, with its stored and expected objects. Unless `all` is set, only devices
/// with stored and expected objects are listed.
#[must_use]
pub fn devices(tally: &Tally, expected: &[f32], all: bool) -> String {
    let mut lines = String::new();
    for (osd, (&stored, &expected)) in tally.stored.iter().zip(expected).enumerate() {
        if all || (stored > 0 && expected > 0.0) {
            let expected = float(expected);
            lines += &format!("  device {osd}:\t\t stored : {stored}\t expected : {expected}\n");
        }
    }
    lines
}

/// One line per number of failed attempts, with the number of choices that needed them.
#[must_use]
pub fn tries(histogram: &[u64]) -> String {
    let line = |(failures, count): (usize, &u64)| format!("{failures:2}: {count:9}\n");
    histogram.iter().enumerate().map(line).collect()
}

/// The reweights in hexadecimal: `devices weights (hex): [A,B,C]`.
#[must_use]
pub fn weights(weights: &[u32]) -> String {
    let weights: Vec<String> = weights.iter().map(|weight| format!("{weight:x}")).collect();
    format!("devices weights (hex): [{}]\n", weights.join(","))
}

/// A float with six significant digits, as C's `%g` and C++'s streams print it.
#[must_use]
pub fn float(value: f32) -> String {
    const DIGITS: i32 = 6;
    let value = f64::from(value);
    if !value.is_finite() || value == 0.0 {
        return format!("{value}").to_lowercase();
    }
    // The exponent is that after rounding: 999999.9 is 1e+06.
    let scientific = format!("{value:.*e}", DIGITS as usize - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..DIGITS).contains(&exponent) {
        let decimals = (DIGITS - 1 - exponent) as usize;
        trimmed(&format!("{value:.decimals$}")).to_owned()
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
    }
}

/// Removes zeroes at the end of the fraction.
fn trimmed(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn floats_are_as_in_c() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (2.3622, "2.3622"),
            (4.724_409, "4.72441"),
            (0.030_769_23, "0.0307692"),
            (100.0, "100"),
            (123_456.0, "123456"),
            (999_999.9, "1e+06"),
            (1_234_567.0, "1.23457e+06"),
            (0.0001, "0.0001"),
            (0.000_012_345, "1.2345e-05"),
            (-2.5, "-2.5"),
            (3e30, "3e+30"),
        ] {
            assert_eq!(float(value), text, "{value}");
        }
    }

    #[test]
    fn lines_are_as_crushtool_prints_them() {
        let mut out = Vec::new();
        let items = [ItemId(0), ItemId(38), ItemId::NONE];
        mapping(&mut out, 4, -1, &items);
        mapping(&mut out, 0, 7, &[]);
        bad_mapping(&mut out, 4, 3, 3, &items);
        let lines = String::from_utf8(out).expect("lines are ASCII");
        assert_eq!(
            lines,
            "CRUSH rule 4 x -1 [0,38,2147483647]\nCRUSH rule 0 x 7 []\n\
             bad mapping rule 4 x 3 num_rep 3 result [0,38,2147483647]\n"
        );
        assert_eq!(tries(&[12, 0]), " 0:        12\n 1:         0\n");
        assert_eq!(weights(&[0x10000, 0x1999]), "devices weights (hex): [10000,1999]\n");
    }

    proptest! {
        #[test]
        fn decimals_are_as_std_prints_them(number in any::<i64>()) {
            let mut out = Vec::new();
            decimal(&mut out, number);
            prop_assert_eq!(String::from_utf8(out).expect("digits"), number.to_string());
        }

        #[test]
        fn floats_keep_six_digits(value in any::<f32>().prop_filter("finite", |v| v.is_normal())) {
            let read: f64 = float(value).parse().expect("a number");
            let value = f64::from(value);
            prop_assert!((read - value).abs() <= value.abs() * 5.01e-6, "{read} {value}");
        }
    }
}
