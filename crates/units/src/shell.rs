//! Words of a shell, in commands that people copy from a message.

use std::fmt::Display;

/// `text` as one word of a POSIX shell: as it is where the shell takes it as it is, else in quotes.
/// What no shell can take (a zero byte) stays as it is.
pub fn shell_word(text: impl Display) -> String {
    let text = text.to_string();
    shlex::try_quote(&text).map_or_else(|_| text.clone(), |quoted| quoted.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_the_shell_would_read_them_otherwise() {
        for plain in ["/srv/pool/v", "unix:/tmp/v.sock", "ram:64M", "./a-b_c.d", "node.0"] {
            assert_eq!(shell_word(plain), plain);
        }
        for (text, word) in [("my pool/v", "'my pool/v'"), ("", "''"), ("$HOME", "'$HOME'")] {
            assert_eq!(shell_word(text), word);
        }
        let hostile = "it's `x` \"y\" \\ *";
        assert_eq!(shlex::split(&shell_word(hostile)), Some(vec![hostile.to_owned()]));
    }
}
