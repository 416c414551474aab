//! Functions on words and lines that all writers use.

/// `SCREAMING_CASE` or `snake_case` as `CamelCase`.
pub fn camel(name: &str) -> String {
    name.split('_')
        .map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|letter| letter.to_ascii_uppercase());
            first.into_iter().chain(letters.map(|letter| letter.to_ascii_lowercase())).collect()
        })
        .collect::<Vec<String>>()
        .concat()
}

/// Text in lines of up to `width` characters, each after `prefix`.
pub fn wrap(text: &str, prefix: &str, width: usize) -> String {
    let mut lines = String::new();
    let mut line = prefix.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.len() + 1 + word.len() > width {
            lines.push_str(&line);
            lines.push('\n');
            line = prefix.to_owned();
        }
        line.push(' ');
        line.push_str(word);
        is_empty = false;
    }
    lines.push_str(&line);
    lines.push('\n');
    lines
}
