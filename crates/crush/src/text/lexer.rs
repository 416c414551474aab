//! Splits text into words.

use super::error::{ParseError, Problem, shown};
use super::is_name;

/// A place in the text. Line and column count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub line: u32,
    pub column: u32,
}

/// A word: a bracket, or the characters between blanks, brackets and comments. The end of the text
/// is an empty word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    pub text: &'a str,
    pub place: Place,
}

impl Word<'_> {
    /// An error: the text has another word than the language allows here.
    pub(super) fn expected(self, expected: &'static str) -> ParseError {
        let found = match self.text {
            "" => "the end of the text".to_owned(),
            word => format!("`{}`", shown(word)),
        };
        Problem::Expected { expected, found }.at(self.place)
    }

    /// The word as a number.
    pub(super) fn number(self, what: &'static str, from: i64, to: i64) -> Result<i64, ParseError> {
        let number = self.text.parse().ok().filter(|number| (from..=to).contains(number));
        let found = || shown(self.text);
        number.ok_or_else(|| Problem::Number { what, found: found(), from, to }.at(self.place))
    }
}

const BRACKETS: [char; 4] = ['{', '}', '[', ']'];

/// The words of a text, one after the other.
pub(super) struct Lexer<'a> {
    rest: &'a str,
    place: Place,
    next: Word<'a>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let place = Place { line: 1, column: 1 };
        let mut lexer = Self { rest: text, place, next: Word { text: "", place } };
        lexer.next();
        lexer
    }

    /// The next word, without taking it.
    pub(super) fn peek(&self) -> Word<'a> {
        self.next
    }

    /// Takes the next word.
    pub(super) fn next(&mut self) -> Word<'a> {
        self.skip_blanks_and_comments();
        let len = match self.rest.chars().next() {
            Some(bracket) if BRACKETS.contains(&bracket) => bracket.len_utf8(),
            _ => {
                let ends = |c: char| c.is_whitespace() || c == '#' || BRACKETS.contains(&c);
                self.rest.find(ends).unwrap_or(self.rest.len())
            }
        };
        let word = Word { text: &self.rest[..len], place: self.place };
        self.pass(len);
        std::mem::replace(&mut self.next, word)
    }

    fn skip_blanks_and_comments(&mut self) {
        loop {
            let blanks = self.rest.len() - self.rest.trim_start().len();
            self.pass(blanks);
            if !self.rest.starts_with('#') {
                return;
            }
            self.pass(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    fn pass(&mut self, len: usize) {
        let (passed, rest) = self.rest.split_at(len);
        for c in passed.chars() {
            if c == '\n' {
                self.place = Place { line: self.place.line.saturating_add(1), column: 1 };
            } else {
                self.place.column = self.place.column.saturating_add(1);
            }
        }
        self.rest = rest;
    }

    /// Takes the next word if it is this one.
    pub(super) fn accept(&mut self, word: &str) -> bool {
        let is_it = self.next.text == word;
        if is_it {
            self.next();
        }
        is_it
    }

    /// Takes the next word, which must be this one; `expected` is the word with its quotes.
    pub(super) fn expect(
        &mut self,
        word: &str,
        expected: &'static str,
    ) -> Result<Word<'a>, ParseError> {
        let next = self.next();
        if next.text == word { Ok(next) } else { Err(next.expected(expected)) }
    }

    /// Takes the next word, which must be a name.
    pub(super) fn name(&mut self, expected: &'static str) -> Result<Word<'a>, ParseError> {
        let next = self.next();
        if is_name(next.text) { Ok(next) } else { Err(next.expected(expected)) }
    }

    /// Takes the next word, which must be neither a bracket nor the end.
    pub(super) fn word(&mut self, expected: &'static str) -> Result<Word<'a>, ParseError> {
        let next = self.next();
        if next.text.is_empty() || next.text.starts_with(BRACKETS) {
            return Err(next.expected(expected));
        }
        Ok(next)
    }
}
