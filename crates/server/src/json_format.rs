//! The field `format` of our JSON files: a reader checks it before any other field.

use anyhow::bail;
use serde::Deserialize;

/// The field that every version of a format has.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// Checks that a file is not of a newer format than this version reads. A text that has no such
/// field passes: the reader of the whole file says what is wrong with it.
///
/// # Errors
/// The file is of a newer format.
pub fn check(text: &str, newest: u32) -> anyhow::Result<()> {
    match serde_json::from_str(text) {
        Ok(Versioned { format }) if format > newest => {
            bail!("format {format} is of a newer version of fieldstone")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_newer_format_is_refused() {
        for passes in ["{\"format\": 2}", "{\"format\": 1, \"more\": []}", "{}", "nonsense", ""] {
            check(passes, 2).expect("not newer");
        }
        let error = check("{\"format\": 3, \"what\": \"ever\"}", 2).expect_err("newer").to_string();
        assert!(error.contains("format 3 is of a newer version"), "{error}");
    }
}
