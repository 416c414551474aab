//! Quantities in the form that people write and read: sizes, rates, counts, durations; and words of
//! the commands that messages name ([`shell_word`]).
//!
//! Sizes take the suffixes K, M, G, T and P as powers of 1024, with or without `iB` or `B`, and
//! fractions (`1.5G`). Output uses the unambiguous KiB, MiB, GiB. Counts take k and M as powers of
//! 1000. Durations take `ns`, `us`, `ms`, `s` and `min`.

use std::time::Duration;

mod shell;

pub use shell::shell_word;

const SUFFIXES: [(&str, u32); 6] = [("", 0), ("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50)];

/// Parses a size such as `4096`, `64K`, `1.5GiB`.
///
/// # Errors
/// A sentence for the command line that gives the reason.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(split);
    let suffix = suffix.trim().to_ascii_uppercase();
    let unit = suffix.strip_suffix("IB").or_else(|| suffix.strip_suffix('B')).unwrap_or(&suffix);
    let shift =
        SUFFIXES.iter().find(|(name, _)| *name == unit).map(|(_, shift)| *shift).ok_or_else(
            || format!("{text:?} has an unknown unit; use K, M, G, T or P (e.g. 64M)"),
        )?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_shl(shift)
            .filter(|shifted| shifted >> shift == whole)
            .ok_or_else(|| format!("{text:?} is larger than 2^64 bytes"));
    }
    let fraction: f64 =
        number.parse().map_err(|_| format!("{text:?} is not a size (e.g. 4096, 64M, 1.5G)"))?;
    let bytes = fraction * (1u64 << shift) as f64;
    if bytes.is_finite() && (0.0..9.0e18).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(format!("{text:?} is larger than 2^63 bytes"))
    }
}

/// Parses a rate such as `100M` or `100M/s`, in bytes per second; 0 means no limit.
///
/// # Errors
/// As [`parse_size`].
pub fn parse_rate(text: &str) -> Result<u64, String> {
    parse_size(text.trim().strip_suffix("/s").unwrap_or(text))
}

/// Parses a count such as `500`, `20k`, `1M`; 0 means no limit.
///
/// # Errors
/// A sentence for the command line that gives the reason.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let (number, factor) = match trimmed.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&trimmed[..at], 1_000),
        Some((at, 'm' | 'M')) => (&trimmed[..at], 1_000_000),
        _ => (trimmed, 1),
    };
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is not a count (e.g. 500, 20k)"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} is larger than 2^64"))
}

const DURATIONS: [(&str, u64); 5] =
    [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("min", 60_000_000_000), ("s", 1_000_000_000)];

/// Parses a duration such as `250us`, `1.5s`, `2min` into nanoseconds.
///
/// # Errors
/// A sentence for the command line that gives the reason.
pub fn parse_duration_ns(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a duration (e.g. 250us, 10ms, 1.5s)");
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(0);
    }
    let found = DURATIONS.iter().find_map(|(unit, ns)| Some((trimmed.strip_suffix(unit)?, *ns)));
    let (number, unit_ns) = found.ok_or_else(wrong)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit_ns).ok_or_else(|| format!("{text:?} is too long"));
    }
    let ns = number.parse::<f64>().map_err(|_| wrong())? * unit_ns as f64;
    if (0.0..9.0e18).contains(&ns) { Ok(ns.round() as u64) } else { Err(wrong()) }
}

/// A duration in the shortest form that [`parse_duration_ns`] reads back unchanged: `10ms`.
pub fn duration_argument(ns: u64) -> String {
    let suits = |(_, unit_ns): &&(&str, u64)| ns != 0 && ns.is_multiple_of(*unit_ns);
    match DURATIONS.iter().filter(suits).max_by_key(|(_, unit_ns)| *unit_ns) {
        Some((unit, unit_ns)) => format!("{}{unit}", ns / unit_ns),
        None => "0".to_owned(),
    }
}

/// A size with three significant digits: `12.3 MiB`.
pub fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = ((63 - bytes.leading_zeros()) / 10).min(5);
    let value = bytes as f64 / (1u64 << (10 * exponent)) as f64;
    let prefix = ["", "K", "M", "G", "T", "P"][exponent as usize];
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    if value.fract() == 0.0 {
        format!("{value:.0} {prefix}iB")
    } else {
        format!("{value:.digits$} {prefix}iB")
    }
}

/// A size in the shortest form that [`parse_size`] reads back unchanged: `64M`, `4097`.
pub fn size_argument(bytes: u64) -> String {
    let best =
        SUFFIXES.iter().rev().find(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1 << shift));
    match best {
        Some((name, shift)) => format!("{}{name}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// A rate: `12.3 MiB/s`.
pub fn rate(bytes: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    if seconds <= 0.0 {
        return "-".to_owned();
    }
    format!("{}/s", size((bytes as f64 / seconds) as u64))
}

/// A duration in a suitable unit: `850 ns`, `12.3 us`, `4.56 ms`, `7.8 s`.
pub fn duration_ns(ns: u64) -> String {
    let value = ns as f64;
    let (scaled, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (value / 1e3, "us"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    if scaled < 10.0 {
        format!("{scaled:.2} {unit}")
    } else if scaled < 100.0 {
        format!("{scaled:.1} {unit}")
    } else {
        format!("{scaled:.0} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("1M", 1 << 20),
            ("1MiB", 1 << 20),
            ("1MB", 1 << 20),
            ("1.5G", 3 << 29),
            ("2 T", 2 << 40),
            ("16383P", 16383 << 50),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "12X", "-1", "1..5G", "16384P", "1e9", "99999999999999999999"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(parse_rate("100M/s"), Ok(100 << 20));
    }

    #[test]
    fn arguments_read_back_unchanged() {
        for bytes in [0, 1, 1023, 1024, 4097, 1 << 20, 3 << 30, (1 << 40) + 1, u64::MAX] {
            assert_eq!(parse_size(&size_argument(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn counts_and_durations_are_read() {
        for (text, count) in [("0", 0), ("500", 500), ("20k", 20_000), ("3M", 3_000_000)] {
            assert_eq!(parse_count(text), Ok(count));
        }
        for text in
            ["", "k", "1.5k", "-1", "99999999999999999999", "20000000000000000000k", "5\u{e9}"]
        {
            assert!(parse_count(text).is_err(), "{text}");
        }
        for (text, ns) in [
            ("0", 0),
            ("7ns", 7),
            ("250us", 250_000),
            ("1.5s", 1_500_000_000),
            ("2min", 120_000_000_000),
        ] {
            assert_eq!(parse_duration_ns(text), Ok(ns));
            assert_eq!(parse_duration_ns(&duration_argument(ns)), Ok(ns));
        }
        for text in ["", "5", "s", "-1s", "1e99s", "infs", "nans", "999999999999999min"] {
            assert!(parse_duration_ns(text).is_err(), "{text}");
        }
        assert_eq!(duration_argument(60_000_000_000), "1min");
        assert_eq!(duration_argument(1_001_000), "1001us");
    }

    #[test]
    fn quantities_are_short() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1024), "1 KiB");
        assert_eq!(size(1536), "1.50 KiB");
        assert_eq!(size(300 << 20), "300 MiB");
        assert_eq!(size(u64::MAX), "16384 PiB");
        assert_eq!(duration_ns(999), "999 ns");
        assert_eq!(duration_ns(12_345), "12.3 us");
        assert_eq!(duration_ns(2_500_000_000), "2.50 s");
        assert_eq!(rate(10 << 20, Duration::from_secs(2)), "5 MiB/s");
    }
}
