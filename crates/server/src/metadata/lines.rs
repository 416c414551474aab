//! The lines of the protocol, and their seals.

use std::io::{self, BufRead, Read};

use anyhow::{Context, bail};
use fieldstone_proto::{SessionKey, Side};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest line.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Digits of a seal, and the space behind them.
const SEAL_CHARS: usize = 33;

/// A number as 32 hexadecimal digits.
pub(super) fn hex(number: u128) -> String {
    format!("{number:032x}")
}

/// Reads 32 hexadecimal digits.
///
/// # Errors
/// The text is something else.
pub(super) fn number(digits: &str) -> anyhow::Result<u128> {
    let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_hex);
    number.context("these are no 32 hexadecimal digits")
}

/// Reads a line. `None` if the other side has closed the connection.
///
/// # Errors
/// The line is too long or not whole, or the connection fails.
pub(super) fn read_line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.pop() != Some(b'\n') {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
    }
    let line = String::from_utf8(line);
    line.map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// One side of a session after the welcome: seals what it sends, and checks what it receives.
pub(super) struct Sealed {
    key: SessionKey,
    side: Side,
    sent: u64,
    received: u64,
}

impl Sealed {
    pub fn new(key: SessionKey, side: Side) -> Self {
        Self { key, side, sent: 0, received: 0 }
    }

    /// The line of the next message.
    pub fn seal(&mut self, message: &impl Serialize) -> anyhow::Result<String> {
        let text = serde_json::to_string(message)?;
        let seal = self.key.seal(self.side, self.sent, text.as_bytes());
        self.sent += 1;
        let line = format!("{} {text}\n", hex(u128::from_be_bytes(seal)));
        if line.len() as u64 > LINE_BYTES_MAX {
            bail!("a message of {} bytes is too long", line.len());
        }
        Ok(line)
    }

    /// The message of a line of the other side. `None` if its seal is wrong.
    ///
    /// # Errors
    /// The seal is right, and the message is not understood.
    pub fn open<T: DeserializeOwned>(&mut self, line: &str) -> anyhow::Result<Option<T>> {
        let other = match self.side {
            Side::Client => Side::Service,
            Side::Service => Side::Client,
        };
        let Some((seal, text)) = line.split_at_checked(SEAL_CHARS) else { return Ok(None) };
        let Ok(seal) = number(seal.trim_end_matches(' ')) else { return Ok(None) };
        let (seal, number) = (seal.to_be_bytes(), self.received);
        if !self.key.is_seal(&seal, other, number, text.as_bytes()) {
            return Ok(None);
        }
        self.received += 1;
        serde_json::from_str(text).map(Some).context("a message is not understood")
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_proto::{ClientSecret, PoolId};

    use super::super::Request;
    use super::*;

    fn sides() -> (Sealed, Sealed) {
        let key = SessionKey::derive(&ClientSecret([1; 16]), PoolId(2), "web", (3, 4));
        (Sealed::new(key, Side::Client), Sealed::new(key, Side::Service))
    }

    #[test]
    fn a_message_is_taken_once_in_its_turn_and_only_from_the_other_side() {
        let (mut client, mut service) = sides();
        let (first, second) = (Request::Issue { epoch: 1 }, Request::Issue { epoch: 2 });
        let lines = [&first, &second].map(|message| client.seal(message).expect("short"));
        let [one, two] = lines.each_ref().map(|line| line.trim_end());
        assert_eq!(service.open::<Request>(two).expect("not read"), None, "not its turn");
        assert_eq!(service.open(one).expect("understood"), Some(first));
        assert_eq!(service.open::<Request>(one).expect("not read"), None, "again");
        assert_eq!(client.open::<Request>(two).expect("not read"), None, "sent back");
        let changed = two.replace("\"epoch\":2", "\"epoch\":3");
        assert_eq!(service.open::<Request>(&changed).expect("not read"), None);
        assert_eq!(service.open(two).expect("understood"), Some(second));
        for nonsense in ["", "{}", "zz", &"0".repeat(33), &"é".repeat(40)] {
            assert_eq!(service.open::<Request>(nonsense).expect("not read"), None);
        }
    }

    #[test]
    fn lines_have_an_end_and_a_bound() {
        let mut input = io::Cursor::new(b"one\n\ntwo".to_vec());
        assert_eq!(read_line(&mut input).expect("whole").as_deref(), Some("one"));
        assert_eq!(read_line(&mut input).expect("whole").as_deref(), Some(""));
        assert!(read_line(&mut input).is_err(), "without an end");
        assert!(read_line(&mut input).expect("closed").is_none());
        let long = vec![b'x'; LINE_BYTES_MAX as usize + 10];
        assert!(read_line(&mut io::Cursor::new(long)).is_err());
    }
}
