//! The types of options: times, lists of modes, places in the CRUSH map.

use std::time::Duration;

use crate::auth::{METHOD_CEPHX, METHOD_NONE, Mode};

/// Where reads may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadPolicy {
    /// To the primary.
    #[default]
    Primary,
    /// To any replica.
    Balance,
    /// To the nearest replica, by the client's place in the CRUSH map.
    Localize,
}

/// The parts of a list: blanks, commas and semicolons separate them.
pub fn parts(text: &str) -> impl Iterator<Item = &str> {
    let separates = |letter: char| letter.is_whitespace() || matches!(letter, ',' | ';');
    text.split(separates).filter(|part| !part.is_empty())
}

/// A time of `rados_osd_op_timeout` and the like: a number of seconds, or a number with a unit.
/// Zero is no limit. `None` if the text is no time.
pub fn time(text: &str) -> Option<Option<Duration>> {
    let text = text.trim();
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let seconds = match unit.trim() {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "ms" => 0.001,
        "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
        "h" | "hr" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86400.0,
        _ => return None,
    };
    let duration = Duration::try_from_secs_f64(number * seconds).ok()?;
    Some(Some(duration).filter(|duration| !duration.is_zero()))
}

/// A list of modes, the best first. `None` if a part is no mode, or there is none.
pub fn modes(text: &str) -> Option<Vec<Mode>> {
    let mut modes = Vec::new();
    for part in parts(text) {
        let mode = [Mode::Crc, Mode::Secure].into_iter().find(|mode| mode.name() == part)?;
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    (!modes.is_empty()).then_some(modes)
}

/// A list of methods of authentication, the best first. Methods that this crate does not speak are
/// passed over. `None` if there is no other.
pub fn methods(text: &str) -> Option<Vec<u32>> {
    let number = |part| match part {
        "cephx" => Some(METHOD_CEPHX),
        "none" => Some(METHOD_NONE),
        _ => None,
    };
    let methods: Vec<u32> = parts(text).filter_map(number).collect();
    (!methods.is_empty()).then_some(methods)
}

/// A place in the CRUSH map, as in `root=default host=a`. `None` if a part has no `=`.
pub fn crush_location(text: &str) -> Option<Vec<(String, String)>> {
    let pair = |part: &str| {
        let (kind, name) = part.split_once('=')?;
        (!kind.is_empty() && !name.is_empty()).then(|| (kind.to_owned(), name.to_owned()))
    };
    parts(text).map(pair).collect()
}

/// The value of `rbd_read_from_replica_policy`.
pub fn read_policy(text: &str) -> Option<ReadPolicy> {
    match text.trim() {
        "default" | "" => Some(ReadPolicy::Primary),
        "balance" => Some(ReadPolicy::Balance),
        "localize" => Some(ReadPolicy::Localize),
        _ => None,
    }
}

/// A yes or no.
pub fn boolean(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let seconds = |s| Some(Some(Duration::from_secs_f64(s)));
        for (text, expected) in [
            ("5", seconds(5.0)),
            (" 0.5 ", seconds(0.5)),
            ("2m", seconds(120.0)),
            ("1 hour", seconds(3600.0)),
            ("250ms", seconds(0.25)),
            ("0", Some(None)),
            ("0s", Some(None)),
            ("", None),
            ("-1", None),
            ("1 fortnight", None),
            ("1.2.3", None),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(time(text), expected, "{text}");
        }
    }

    #[test]
    fn lists() {
        assert_eq!(modes("crc secure"), Some(vec![Mode::Crc, Mode::Secure]));
        assert_eq!(modes("secure,secure"), Some(vec![Mode::Secure]));
        assert_eq!(modes("plain"), None);
        assert_eq!(modes(""), None);
        assert_eq!(methods("gss, cephx none"), Some(vec![2, 1]));
        assert_eq!(methods("gss"), None);
        let place = crush_location("root=default, rack=r1; host=a").expect("sound");
        assert_eq!(place[2], ("host".to_owned(), "a".to_owned()));
        assert_eq!(crush_location("host"), None);
        assert_eq!(crush_location(""), Some(Vec::new()));
    }

    #[test]
    fn words() {
        assert_eq!(read_policy("localize"), Some(ReadPolicy::Localize));
        assert_eq!(read_policy("nearest"), None);
        assert_eq!(boolean("Yes"), Some(true));
        assert_eq!(boolean("0"), Some(false));
        assert_eq!(boolean("maybe"), None);
    }
}
