//! Reading tokens one after the other.

use super::fault::ParseError;
use super::token::{Kind, Token, tokens};

/// An operand as it is written.
#[derive(Clone, Debug)]
pub(super) enum Operand<'a> {
    /// A register, a variable or a label.
    Name(&'a str),
    /// A name and what is added to it.
    Sum(&'a str, i64),
    /// An immediate.
    Number(i128),
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `[a]`
    Address(&'a str, i64),
    /// `a|b`
    Pair(&'a str, &'a str),
    /// `!a`
    Not(&'a str),
}

/// A place in the tokens of a text.
pub(super) struct Reader<'a> {
    pub text: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Reader<'a> {
    /// The beginning of a text.
    ///
    /// # Errors
    ///
    /// It has characters that PTX does not know.
    pub fn new(text: &'a str) -> Result<Self, ParseError> {
        Ok(Self { text, tokens: tokens(text)?, at: 0 })
    }

    /// An error at the token that was read last.
    pub fn error(&self, message: impl Into<String>) -> ParseError {
        let last = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
        ParseError::new(last.map_or(1, |token| token.line), message)
    }

    /// The line of the token that is next, or of the last.
    pub fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    /// The offset in the text of the token that is next.
    pub fn start(&self) -> usize {
        self.tokens.get(self.at).map_or(self.text.len(), |token| token.start)
    }

    /// The offset in the text of the end of the token that was read last.
    pub fn end(&self) -> usize {
        self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).map_or(0, |token| token.end)
    }

    /// The next token, which stays the next.
    pub fn peek(&self) -> Option<Kind<'a>> {
        self.tokens.get(self.at).map(|token| token.kind)
    }

    /// Whether all tokens are read.
    pub fn is_empty(&self) -> bool {
        self.at >= self.tokens.len()
    }

    /// Reads a sign if it is next.
    pub fn accept(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(Kind::Sign(sign));
        self.at += usize::from(found);
        found
    }

    /// Reads a certain word if it is next.
    pub fn accept_word(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(Kind::Word(word));
        self.at += usize::from(found);
        found
    }

    /// Reads a sign.
    ///
    /// # Errors
    ///
    /// Another token is next.
    pub fn expect(&mut self, sign: char) -> Result<(), ParseError> {
        if self.accept(sign) { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    /// Reads a word.
    ///
    /// # Errors
    ///
    /// Another token is next.
    pub fn word(&mut self) -> Result<&'a str, ParseError> {
        let Some(Kind::Word(word)) = self.peek() else { return Err(self.unexpected("a word")) };
        self.at += 1;
        Ok(word)
    }

    /// Reads a name: a word without dots, or a special register.
    ///
    /// # Errors
    ///
    /// Another token is next.
    pub fn name(&mut self) -> Result<&'a str, ParseError> {
        let word = self.word()?;
        if word.contains('.') && !word.starts_with('%') {
            self.at -= 1;
            return Err(self.unexpected("a name"));
        }
        Ok(word)
    }

    /// Reads a number as it is written.
    ///
    /// # Errors
    ///
    /// Another token is next.
    pub fn digits(&mut self) -> Result<&'a str, ParseError> {
        let Some(Kind::Number(digits)) = self.peek() else {
            return Err(self.unexpected("a number"));
        };
        self.at += 1;
        Ok(digits)
    }

    /// Reads an integer with or without a sign.
    ///
    /// # Errors
    ///
    /// No integer of 64 bits is next.
    pub fn integer(&mut self) -> Result<i128, ParseError> {
        let negative = self.accept('-');
        let digits = self.digits()?;
        let value = integer(digits).map(|value| if negative { -value } else { value });
        let in_range = value.filter(|value| (i128::from(i64::MIN)..1 << 64).contains(value));
        in_range.ok_or_else(|| self.error(format!("{digits} is no integer of 64 bits")))
    }

    /// Reads an integer of 32 bits without a sign.
    ///
    /// # Errors
    ///
    /// None is next.
    pub fn small(&mut self) -> Result<u32, ParseError> {
        let value = self.integer()?;
        u32::try_from(value).map_err(|_| self.error(format!("{value} is out of range")))
    }

    /// Reads an operand.
    ///
    /// # Errors
    ///
    /// None is next.
    pub fn operand(&mut self) -> Result<Operand<'a>, ParseError> {
        match self.peek() {
            Some(Kind::Number(_) | Kind::Sign('-')) => Ok(Operand::Number(self.integer()?)),
            Some(Kind::Sign('{')) => {
                self.at += 1;
                let mut parts = vec![self.part()?];
                while self.accept(',') {
                    parts.push(self.part()?);
                }
                self.expect('}')?;
                Ok(Operand::Vector(parts))
            }
            Some(Kind::Sign('[')) => {
                self.at += 1;
                let (name, offset) = (self.name()?, self.offset()?.unwrap_or(0));
                self.expect(']')?;
                Ok(Operand::Address(name, offset))
            }
            Some(Kind::Sign('!')) => {
                self.at += 1;
                Ok(Operand::Not(self.name()?))
            }
            Some(Kind::Word(_)) => {
                let name = self.name()?;
                if self.accept('|') {
                    return Ok(Operand::Pair(name, self.name()?));
                }
                let offset = self.offset()?;
                Ok(offset.map_or(Operand::Name(name), |offset| Operand::Sum(name, offset)))
            }
            _ => Err(self.unexpected("an operand")),
        }
    }

    /// Reads a part of a vector, which is no vector.
    fn part(&mut self) -> Result<Operand<'a>, ParseError> {
        match self.peek() {
            Some(Kind::Sign('{')) => Err(self.unexpected("a part of a vector")),
            _ => self.operand(),
        }
    }

    /// Reads `+` and an integer if `+` is next.
    fn offset(&mut self) -> Result<Option<i64>, ParseError> {
        if !self.accept('+') {
            return Ok(None);
        }
        let value = self.integer()?;
        let value = i64::try_from(value).map_err(|_| self.error("the offset is too large"))?;
        Ok(Some(value))
    }

    /// An error that says what was expected.
    pub fn unexpected(&self, expected: &str) -> ParseError {
        let found = match self.peek() {
            Some(Kind::Word(text) | Kind::Number(text)) => format!("`{text}` is"),
            Some(Kind::Sign(sign)) => format!("`{sign}` is"),
            None => "the text ends".to_owned(),
        };
        ParseError::new(self.line(), format!("{found} where {expected} must be"))
    }
}

/// The value of an integer as PTX writes it: decimal, or in base 16, 2 or 8 after `0x`, `0b` or
/// `0`.
fn integer(digits: &str) -> Option<i128> {
    let digits = digits.strip_suffix('U').unwrap_or(digits);
    let prefixed = [("0x", 16), ("0X", 16), ("0b", 2), ("0B", 2)].iter();
    let mut prefixed =
        prefixed.filter_map(|(prefix, base)| Some((digits.strip_prefix(prefix)?, *base)));
    let (digits, base) = prefixed.next().unwrap_or_else(|| match digits.strip_prefix('0') {
        Some(rest) if !rest.is_empty() => (rest, 8),
        _ => (digits, 10),
    });
    i128::from_str_radix(digits, base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_four_bases() {
        let found = ["0", "12", "0x1F", "0b101", "017", "5U", "0xfU"].map(integer);
        assert_eq!(found, [0, 12, 31, 5, 15, 5, 15].map(Some));
        for wrong in ["7.0", "0x", "1a", "08", "0f3f800000"] {
            assert_eq!(integer(wrong), None, "{wrong}");
        }
    }
}
