//! The syntax of `ceph.conf`, which keyrings share.
//!
//! ```text
//! # a comment
//! [global]
//!     mon host = 10.0.0.1, 10.0.0.2      ; spaces, underscores and dashes in names are equal
//!     admin_socket = "$run_dir/a;b.asok" # quotes keep `;`, `#` and blanks at the ends
//!     keyring = /etc/ceph/a.keyring, \
//!               /etc/ceph/b.keyring
//! [client.admin]
//!     rbd-cache = false
//! ```
//!
//! A comment goes from `;` or `#` to the end of the line, unless that letter is quoted or has a
//! backslash before it. A backslash in a value makes the next letter an ordinary one; at the end of
//! a line it joins the next line. A section that comes again goes on; an option that comes again in
//! a section replaces the first. Options before any section belong to `[global]`. Files cannot
//! include others.
//!
//! Ceph: `src/common/ConfUtils.cc`.

use std::collections::BTreeMap;

use super::SettingsError;

/// The longest file that is read.
pub const FILE_MAX_BYTES: usize = 4 << 20;

/// A value, and the line where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value, without quotes and comments.
    pub text: String,
    /// The line, from 1.
    pub line: usize,
}

/// A file's sections and their options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfFile {
    /// The name of the file.
    pub name: String,
    sections: BTreeMap<String, BTreeMap<String, Value>>,
}

/// The usual form of an option's name: blanks, dashes and underscores are one underscore.
#[must_use]
pub fn normal_name(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for letter in name.trim().chars() {
        match letter {
            ' ' | '\t' | '-' | '_' if normal.ends_with('_') => {}
            ' ' | '\t' | '-' | '_' => normal.push('_'),
            other => normal.push(other),
        }
    }
    normal
}

impl ConfFile {
    /// Reads a text.
    ///
    /// # Errors
    /// A line is neither a section, nor an option, nor a comment. The error has its number.
    pub fn parse(name: &str, text: &str) -> Result<Self, SettingsError> {
        let mut file = Self { name: name.to_owned(), sections: BTreeMap::new() };
        if text.len() > FILE_MAX_BYTES {
            let why = format!("the file has more than {FILE_MAX_BYTES} bytes");
            return Err(SettingsError::new(name, why));
        }
        let mut section = "global".to_owned();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (line, content) in logical_lines(text) {
            let error = |why: &str| SettingsError::at_line(name, line, why);
            let content = content.trim();
            if content.is_empty() || starts_comment(content) {
                continue;
            }
            if let Some(rest) = content.strip_prefix('[') {
                let (inner, rest) =
                    rest.split_once(']').ok_or_else(|| error("the section has no `]`"))?;
                let rest = rest.trim();
                if !(rest.is_empty() || starts_comment(rest)) {
                    return Err(error("text behind a section"));
                }
                section = inner.trim().to_owned();
                file.sections.entry(section.clone()).or_default();
                continue;
            }
            let Some((option, value)) = content.split_once('=') else {
                let includes = content.split_whitespace().next() == Some("include");
                return Err(error(if includes {
                    "files cannot include others"
                } else {
                    "neither a section nor an option: `=` is missing"
                }));
            };
            let option = normal_name(option);
            if option.is_empty() || option.contains([';', '#', '"', '\'']) {
                return Err(error("this is not the name of an option"));
            }
            let text = parse_value(value.trim()).map_err(error)?;
            let options = file.sections.entry(section.clone()).or_default();
            options.insert(option, Value { text, line });
        }
        Ok(file)
    }

    /// The value of an option in a section.
    #[must_use]
    pub fn get(&self, section: &str, option: &str) -> Option<&Value> {
        self.sections.get(section)?.get(&normal_name(option))
    }

    /// The options of a section.
    pub fn options(&self, section: &str) -> impl Iterator<Item = (&str, &Value)> {
        let options = self.sections.get(section).into_iter().flatten();
        options.map(|(option, value)| (option.as_str(), value))
    }

    /// The names of the sections.
    pub fn sections(&self) -> impl Iterator<Item = &str> {
        self.sections.keys().map(String::as_str)
    }
}

fn starts_comment(text: &str) -> bool {
    text.starts_with([';', '#'])
}

/// Lines with their numbers; a line that ends in a backslash has the next ones behind it. A comment
/// is not continued.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (index, line) in text.lines().enumerate() {
        let backslashes = line.bytes().rev().take_while(|&byte| byte == b'\\').count();
        let is_comment = !continues && starts_comment(line.trim_start());
        let joins = backslashes % 2 == 1 && !is_comment;
        let content = if joins { &line[..line.len() - 1] } else { line };
        match lines.last_mut() {
            Some((_, last)) if continues => last.push_str(content),
            _ => lines.push((index + 1, content.to_owned())),
        }
        continues = joins;
    }
    lines
}

/// The value in a text that has no blanks at its ends: quoted or not, with a comment behind it or
/// not.
fn parse_value(text: &str) -> Result<String, &'static str> {
    let quote = text.chars().next().filter(|letter| matches!(letter, '"' | '\''));
    let mut letters = text.chars().skip(usize::from(quote.is_some()));
    let mut value = String::new();
    // Bytes of the value that blanks at its end cannot take away.
    let mut kept = 0;
    loop {
        let Some(letter) = letters.next() else {
            if quote.is_some() {
                return Err("the quotes are not closed");
            }
            break;
        };
        match letter {
            '\\' => {
                value.push(letters.next().unwrap_or('\\'));
                kept = value.len();
            }
            _ if Some(letter) == quote => {
                let rest: String = letters.collect();
                let rest = rest.trim();
                if !(rest.is_empty() || starts_comment(rest)) {
                    return Err("text behind a quoted value");
                }
                return Ok(value);
            }
            ';' | '#' if quote.is_none() => break,
            _ => {
                value.push(letter);
                if !letter.is_whitespace() {
                    kept = value.len();
                }
            }
        }
    }
    value.truncate(kept);
    Ok(value)
}

/// Replaces `$name` and `${name}` in a text. Names that `value` does not know stay as they are.
pub fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        expanded.push_str(&rest[..dollar]);
        rest = &rest[dollar..];
        let behind = &rest[1..];
        let is_braced = behind.starts_with('{');
        let name = &behind[usize::from(is_braced)..];
        let len = name.bytes().take_while(|b| b.is_ascii_lowercase() || *b == b'_').count();
        let (name, tail) = name.split_at(len);
        let tail = if is_braced { tail.strip_prefix('}') } else { Some(tail) };
        match tail.and_then(|tail| Some((value(name)?, tail))) {
            Some((found, tail)) if !name.is_empty() => {
                expanded.push_str(&found);
                rest = tail;
            }
            _ => {
                expanded.push('$');
                rest = behind;
            }
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value<'a>(file: &'a ConfFile, section: &str, option: &str) -> Option<&'a str> {
        file.get(section, option).map(|value| value.text.as_str())
    }

    #[test]
    fn reads_texts_of_many_shapes() {
        let text = "\u{feff}before = 1\n\
            # comment\n\
            ; comment = 3 \\\n\
            [global]\r\n\
            \tmon host = 10.0.0.1, 10.0.0.2  ; two\r\n\
            auth--client__required=cephx# no blank\n\
            empty =\n\
            \n\
            quoted = \"  a ; b # c \"  # comment\n\
            single = 'say \"hi\"'\n\
            escaped = a\\;b \\#c\\ \\\\ \n\
            long = one, \\\n   two, \\\n   three\n\
            [ client.admin ] ; comment\n\
            rbd_cache = false\n\
            rbd cache = true\n\
            [empty]\n\
            [global]\n\
            fsid = x=y\n";
        let file = ConfFile::parse("ceph.conf", text).expect("sound");
        assert_eq!(value(&file, "global", "before"), Some("1"));
        assert_eq!(value(&file, "global", "mon_host"), Some("10.0.0.1, 10.0.0.2"));
        assert_eq!(value(&file, "global", "auth client-required"), Some("cephx"));
        assert_eq!(value(&file, "global", "empty"), Some(""));
        assert_eq!(value(&file, "global", "quoted"), Some("  a ; b # c "));
        assert_eq!(value(&file, "global", "single"), Some("say \"hi\""));
        assert_eq!(value(&file, "global", "escaped"), Some("a;b #c \\"));
        assert_eq!(value(&file, "global", "long"), Some("one,    two,    three"));
        assert_eq!(value(&file, "client.admin", "rbd_cache"), Some("true"));
        assert_eq!(value(&file, "global", "fsid"), Some("x=y"));
        assert_eq!(value(&file, "global", "comment"), None);
        assert_eq!(file.get("global", "long").map(|value| value.line), Some(12));
        assert_eq!(file.sections().collect::<Vec<_>>(), ["client.admin", "empty", "global"]);
    }

    #[test]
    fn errors_have_lines() {
        for (text, error) in [
            ("\n[global\n", "c:2: the section has no `]`"),
            ("[a] b\n", "c:1: text behind a section"),
            ("[a]\nb\n", "c:2: neither a section nor an option: `=` is missing"),
            ("include /etc/x\n", "c:1: files cannot include others"),
            ("a = \\\n b\n= c", "c:3: this is not the name of an option"),
            ("a = \"b\n", "c:1: the quotes are not closed"),
            ("a = 'b' c\n", "c:1: text behind a quoted value"),
        ] {
            assert_eq!(ConfFile::parse("c", text).expect_err(text).to_string(), error);
        }
        let huge = "#".repeat(FILE_MAX_BYTES + 1);
        assert!(ConfFile::parse("c", &huge).is_err());
    }

    #[test]
    fn expands_variables() {
        let known = |name: &str| match name {
            "id" => Some("admin".to_owned()),
            "cluster" => Some("ceph".to_owned()),
            _ => None,
        };
        for (text, expanded) in [
            ("/etc/$cluster.client.$id.keyring", "/etc/ceph.client.admin.keyring"),
            ("${id}x$id", "adminxadmin"),
            ("$idx ${idx} $ $$id ${id $", "$idx ${idx} $ $admin ${id $"),
            ("$", "$"),
            ("${}", "${}"),
            ("plain", "plain"),
        ] {
            assert_eq!(expand(text, known), expanded);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn never_panics(text in r#"([a-z=;#"'\\\[\] \n$\{\}äé-]|\r\n){0,80}"#) {
            if let Ok(file) = ConfFile::parse("c", &text) {
                for section in file.sections() {
                    for (_, value) in file.options(section) {
                        let _ = expand(&value.text, |_| Some("x".into()));
                    }
                }
            }
        }
    }
}
