//! Text becomes tokens.
//!
//! A word may hold dots, so a mnemonic with all of its modifiers (`ld.global.v4.u32`), a directive
//! (`.reg`) and a special register (`%tid.x`) are one token each. A word may hold `::` as well,
//! for modifiers such as `.L1::no_allocate`.

use super::fault::ParseError;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// A name, a mnemonic or a directive.
    Word(&'a str),
    /// A number as it is written.
    Number(&'a str),
    /// Any other character.
    Sign(char),
}

/// A token, and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub kind: Kind<'a>,
    /// Line of the text, from 1.
    pub line: u32,
    /// Offset of its first byte in the text.
    pub start: usize,
    /// Offset of the byte after its last.
    pub end: usize,
}

/// All tokens of a text.
///
/// # Errors
///
/// A comment does not end, or the text has a character that PTX does not know.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        if byte == b'\n' {
            line += 1;
            at += 1;
        } else if byte.is_ascii_whitespace() {
            at += 1;
        } else if bytes[at..].starts_with(b"//") {
            at += bytes[at..].iter().position(|&b| b == b'\n').unwrap_or(bytes.len() - at);
        } else if bytes[at..].starts_with(b"/*") {
            let Some(length) = text[at + 2..].find("*/") else {
                return Err(ParseError::new(line, "the comment does not end"));
            };
            let comment = &bytes[at..at + length + 4];
            line += comment.iter().map(|&b| u32::from(b == b'\n')).sum::<u32>();
            at += comment.len();
        } else {
            let kind = if byte.is_ascii_digit() {
                at = end_of(bytes, at, |b| b.is_ascii_alphanumeric() || b == b'.');
                Kind::Number(&text[start..at])
            } else if is_word(byte) || byte == b'.' {
                at = end_of_word(bytes, at);
                Kind::Word(&text[start..at])
            } else if b"@!,;:[](){}<>+-=|".contains(&byte) {
                at += 1;
                Kind::Sign(char::from(byte))
            } else {
                let what = text[at..].chars().next().unwrap_or_default();
                return Err(ParseError::new(line, format!("unknown character {what:?}")));
            };
            found.push(Token { kind, line, start, end: at });
        }
    }
    Ok(found)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

fn end_of(bytes: &[u8], start: usize, belongs: impl Fn(u8) -> bool) -> usize {
    bytes[start..].iter().position(|&b| !belongs(b)).map_or(bytes.len(), |n| start + n)
}

fn end_of_word(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    loop {
        at = end_of(bytes, at, |b| is_word(b) || b == b'.');
        let joined = bytes[at..].starts_with(b"::") && bytes[start..at].contains(&b'.');
        if !joined {
            return at;
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind<'_>> {
        tokens(text).unwrap().iter().map(|token| token.kind).collect()
    }

    #[test]
    fn words_hold_their_modifiers() {
        use Kind::{Number, Sign, Word};
        let expected = vec![
            Sign('@'),
            Word("%p1"),
            Word("ld.global.L1::no_allocate.u32"),
            Word("%r"),
            Sign(','),
            Sign('['),
            Word("%rd2"),
            Sign('+'),
            Number("0x10"),
            Sign(']'),
            Sign(';'),
        ];
        assert_eq!(kinds("@%p1 ld.global.L1::no_allocate.u32 %r, [%rd2+0x10];"), expected);
        assert_eq!(kinds("END: ret;"), [Word("END"), Sign(':'), Word("ret"), Sign(';')]);
    }

    #[test]
    fn comments_count_their_lines() {
        let text = "a // b ; c\n/* d\n e */ f";
        let lines: Vec<u32> = tokens(text).unwrap().iter().map(|token| token.line).collect();
        assert_eq!((kinds(text), lines), (vec![Kind::Word("a"), Kind::Word("f")], vec![1, 3]));
    }

    #[test]
    fn wrong_text_is_an_error_with_its_line() {
        assert_eq!(tokens("a\n\u{e9}").unwrap_err().line, 2);
        assert_eq!(tokens("\n\n/* a").unwrap_err().line, 3);
    }
}
