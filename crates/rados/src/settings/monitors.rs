//! The forms of `mon_host`.
//!
//! A list of monitors, with commas, semicolons or blanks between them. A monitor is an address, or
//! all its addresses in brackets:
//!
//! | Form | Meaning |
//! |---|---|
//! | `10.0.0.1`, `[::1]`, `::1` | port 3300 |
//! | `10.0.0.1:3300` | this port |
//! | `10.0.0.1:6789` | the port of messenger 1, so an address for messenger 1 |
//! | `v2:10.0.0.1:3300/0` | messenger 2; the number at the end has no meaning |
//! | `[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0]` | both messengers |
//! | `mon-a`, `mon-a.example:3300` | a name, to be resolved by the caller |
//!
//! This crate speaks messenger 2 only. A monitor with addresses for messenger 1 only is passed over
//! if there are others, because the monitors that answer name all monitors. If there are none, the
//! list is refused.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The port where monitors listen for messenger 2.
pub const DEFAULT_PORT: u16 = 3300;
/// The port where monitors listen for messenger 1.
const LEGACY_PORT: u16 = 6789;
/// The most addresses that are taken from a list.
pub const MONITORS_MAX: usize = 256;

/// Where to find a monitor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MonitorAddress {
    /// An address.
    Socket(SocketAddr),
    /// A name to resolve; it can have several addresses, each of a monitor.
    Name {
        /// The name of a host.
        host: String,
        /// The port.
        port: u16,
    },
}

impl fmt::Display for MonitorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MonitorAddress::Socket(socket) => write!(f, "{socket}"),
            MonitorAddress::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Why a list of monitors is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MonitorsError {
    /// A part is no address.
    #[error("`{0}` is not the address of a monitor")]
    NotAnAddress(String),
    /// There is no address for messenger 2.
    #[error("{0} speaks messenger 1 only; messenger 2 is needed (port 3300)")]
    LegacyOnly(String),
    /// The list is empty.
    #[error("no monitor is named")]
    Empty,
    /// The list is too long.
    #[error("more than {MONITORS_MAX} monitors are named")]
    TooMany,
}

/// Reads a list of monitors.
///
/// # Errors
/// A part is no address, or there is no monitor with messenger 2.
pub fn parse(text: &str) -> Result<Vec<MonitorAddress>, MonitorsError> {
    let mut monitors: Vec<MonitorAddress> = Vec::new();
    let mut legacy = None;
    for part in split(text)? {
        for address in addresses_of(part)? {
            match parse_address(address)? {
                Some(monitor) if monitors.contains(&monitor) => {}
                Some(_) if monitors.len() >= MONITORS_MAX => return Err(MonitorsError::TooMany),
                Some(monitor) => monitors.push(monitor),
                None => legacy = legacy.or_else(|| Some(address.to_owned())),
            }
        }
    }
    match (monitors.is_empty(), legacy) {
        (false, _) => Ok(monitors),
        (true, Some(legacy)) => Err(MonitorsError::LegacyOnly(legacy)),
        (true, None) => Err(MonitorsError::Empty),
    }
}

/// The parts between commas, semicolons and blanks outside of brackets.
fn split(text: &str) -> Result<Vec<&str>, MonitorsError> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => {
                let refused = || MonitorsError::NotAnAddress(text.to_owned());
                depth = depth.checked_sub(1).ok_or_else(refused)?;
            }
            _ if depth == 0 && (matches!(letter, ',' | ';') || letter.is_whitespace()) => {
                parts.push(&text[start..at]);
                start = at + letter.len_utf8();
            }
            _ => {}
        }
    }
    if depth != 0 {
        return Err(MonitorsError::NotAnAddress(text.to_owned()));
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.is_empty());
    Ok(parts)
}

/// The addresses of one monitor: those in brackets, or itself.
fn addresses_of(part: &str) -> Result<Vec<&str>, MonitorsError> {
    let inner = part.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inner.map(str::trim) {
        Some(inner) if inner.parse::<Ipv6Addr>().is_err() => split(inner),
        _ => Ok(vec![part]),
    }
}

/// Reads an address; `None` if it is for messenger 1.
fn parse_address(text: &str) -> Result<Option<MonitorAddress>, MonitorsError> {
    let refused = || MonitorsError::NotAnAddress(text.to_owned());
    let (is_legacy, is_msgr2, rest) = match text.split_once(':') {
        Some(("v1", rest)) => (true, false, rest),
        Some(("v2", rest)) => (false, true, rest),
        Some(("any", rest)) => (false, false, rest),
        _ => (false, false, text),
    };
    let rest = match rest.rsplit_once('/') {
        Some((rest, nonce)) if nonce.parse::<u32>().is_ok() => rest,
        Some(_) => return Err(refused()),
        None => rest,
    };
    let (host, port) = split_port(rest).ok_or_else(refused)?;
    if is_legacy || (port == Some(LEGACY_PORT) && !is_msgr2) {
        return Ok(None);
    }
    let port = port.filter(|&port| port != 0).unwrap_or(DEFAULT_PORT);
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(Some(MonitorAddress::Socket(SocketAddr::new(ip, port))));
    }
    let is_name = !host.is_empty()
        && host.len() <= 253
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        // A name whose last part is a number is a broken address.
        && !host.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    is_name.then(|| Some(MonitorAddress::Name { host: host.to_owned(), port })).ok_or_else(refused)
}

/// Host and port of `host`, `host:port`, `[v6]`, `[v6]:port` or `v6`.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port.parse().ok()?))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some((text, None));
    }
    match text.split_once(':') {
        Some((host, port)) => Some((host, Some(port.parse().ok()?))),
        None => Some((text, None)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> String {
        match parse(text) {
            Ok(monitors) => {
                let monitors: Vec<String> = monitors.iter().map(ToString::to_string).collect();
                monitors.join(" ")
            }
            Err(error) => format!("! {error}"),
        }
    }

    #[test]
    fn reads_all_forms() {
        for (text, expected) in [
            ("[v2:1.2.3.4:3300/0,v1:1.2.3.4:6789/0]", "1.2.3.4:3300"),
            ("[v1:1.2.3.4:6789/0, v2:1.2.3.4:40000/0]", "1.2.3.4:40000"),
            ("v2:1.2.3.4:3300", "1.2.3.4:3300"),
            ("v2:1.2.3.4", "1.2.3.4:3300"),
            ("v2:1.2.3.4:6789", "1.2.3.4:6789"),
            ("v2:1.2.3.4:0/0", "1.2.3.4:3300"),
            ("1.2.3.4", "1.2.3.4:3300"),
            ("any:1.2.3.4:3300", "1.2.3.4:3300"),
            ("1.2.3.4:3301", "1.2.3.4:3301"),
            ("[::1]:3300", "[::1]:3300"),
            ("[::1]", "[::1]:3300"),
            ("::1", "[::1]:3300"),
            ("v2:[fe80::1:2]:3300/7", "[fe80::1:2]:3300"),
            ("[v2:[::1]:3300/0,v1:[::1]:6789/0],[v2:[::2]:3300/0]", "[::1]:3300 [::2]:3300"),
            (
                "1.2.3.4 , 1.2.3.5;mon-a\tmon.b.example:3301",
                "1.2.3.4:3300 1.2.3.5:3300 mon-a:3300 mon.b.example:3301",
            ),
            ("1.2.3.4,1.2.3.4:3300", "1.2.3.4:3300"),
            ("v2:1.2.3.4:3300,v1:1.2.3.4:6789", "1.2.3.4:3300"),
            ("mon_c", "mon_c:3300"),
        ] {
            assert_eq!(list(text), expected, "{text}");
        }
    }

    #[test]
    fn refuses_by_name() {
        let legacy = "speaks messenger 1 only; messenger 2 is needed (port 3300)";
        for text in ["v1:1.2.3.4:6789", "1.2.3.4:6789", "mon-a:6789"] {
            assert_eq!(list(text), format!("! {text} {legacy}"));
        }
        assert_eq!(list("[v1:1.2.3.4:6789/0]"), format!("! v1:1.2.3.4:6789/0 {legacy}"));
        assert_eq!(list(" , ;"), "! no monitor is named");
        for text in [
            "1.2.3",
            "1.2.3.4:99999",
            "1.2.3.4:",
            "[::1",
            "::1]",
            "[::1]x",
            "1.2.3.4/x",
            "a b!",
            "v2:",
            "[v2:[::1]:3300",
            "1.2.3.400",
            "a:b:c",
            "ä",
        ] {
            assert!(list(text).ends_with("is not the address of a monitor"), "{text}");
        }
        let many: Vec<String> = (0..300).map(|n| format!("10.0.{}.{}", n / 200, n % 200)).collect();
        assert_eq!(parse(&many.join(",")), Err(MonitorsError::TooMany));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn never_panics(text in r"[v12:\[\],;/. a-fä]{0,40}") {
            let _ = parse(&text);
        }
    }
}
