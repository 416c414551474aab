//! What the reports of benchmarks have in common: where text, rows and page go, who made them, and
//! the columns of a comparison.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use fieldstone_console::stderr;

use crate::chart::escape;
use crate::row::{self, Row};

/// The line that names the command and the commit.
pub fn made_by() -> String {
    let command: Vec<String> = std::env::args().skip(1).collect();
    format!("made by: fieldstone {} (commit {})", command.join(" "), row::COMMIT)
}

/// Prints the report, and writes the rows if the user wants them. The report goes to stdout, or to
/// stderr if the rows go to stdout.
///
/// # Errors
/// The file of the rows cannot be written.
pub fn print(json: Option<&Path>, text: &str, rows: &[Row]) -> anyhow::Result<()> {
    match json {
        Some(path) if path == Path::new("-") => stderr::print(format_args!("{text}")),
        _ => print_text!("{text}"),
    }
    json.map_or(Ok(()), |path| row::write(path, rows))
}

/// Prints the report, and writes the rows and the page where the user wants them.
///
/// # Errors
/// A file cannot be written.
pub fn publish(
    args: &crate::Args,
    text: &str,
    rows: &[Row],
    page: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    print(args.json.as_deref(), text, rows)?;
    if let Some(path) = &args.html {
        fs::write(path, page()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Fails if one of ours is among the contenders that are missing.
///
/// # Errors
/// It names the first one of ours.
pub fn fail_if_ours_is_missing<C: crate::interleaving::Entrant>(
    missing: &[(C, String)],
) -> anyhow::Result<()> {
    if let Some((contender, _)) = missing.iter().find(|(who, _)| who.is_ours()) {
        bail!("{} could not be measured to the end; see above", contender.name());
    }
    Ok(())
}

/// Lines of text, each with its end.
pub fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// The smallest and the largest ratio of a row, for a table.
pub fn extent(row: &Row) -> String {
    let number = |name: &str| row.more.get(name).and_then(serde_json::Value::as_f64);
    let ends = number("ratio_min").zip(number("ratio_max"));
    ends.map_or(String::new(), |(low, high)| format!("{low:.2}-{high:.2}"))
}

/// The smallest and the largest ratio as fields of a row.
pub fn add_extent(row: &mut Row, range: Option<(f64, f64)>) {
    if let Some((low, high)) = range {
        row.more.insert("ratio_min".to_owned(), serde_json::json!(low));
        row.more.insert("ratio_max".to_owned(), serde_json::json!(high));
    }
}

/// The verdict on a row's target.
pub fn verdict(row: &Row) -> &'static str {
    match row.pass {
        None => "",
        Some(true) => "pass",
        Some(false) => "MISS",
    }
}

/// The line that counts the targets.
pub fn targets_reached<'a>(rows: impl IntoIterator<Item = &'a Row>) -> String {
    let verdicts: Vec<bool> = rows.into_iter().filter_map(|row| row.pass).collect();
    let reached = verdicts.iter().filter(|pass| **pass).count();
    format!("{reached} of {} targets reached\n", verdicts.len())
}

/// Who is missing, as paragraphs of a page.
pub fn missing_html<C: crate::interleaving::Entrant>(missing: &[(C, String)]) -> String {
    let paragraph = |(who, reason): &(C, String)| {
        format!("<p>Not measured: {}: {}</p>\n", escape(who.name()), escape(reason))
    };
    missing.iter().map(paragraph).collect()
}

/// The conditions of a run, as a part of a page.
pub fn setting_html(setting: &[String]) -> String {
    format!("<pre>{}</pre>\n", escape(&setting.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Better;

    fn row() -> Row {
        Row::new("x", "a".to_owned(), "IOPS", Better::More, (Some(3.0), Some(2.0)))
    }

    #[test]
    fn ranges_go_into_a_row_and_come_back() {
        let mut row = row();
        assert_eq!(extent(&row), "");
        add_extent(&mut row, None);
        assert_eq!(extent(&row), "");
        add_extent(&mut row, Some((1.25, 2.0)));
        assert_eq!(extent(&row), "1.25-2.00");
    }

    #[test]
    fn verdicts_are_counted() {
        let rows = [row(), row().at_least(Some(1.0)), row().at_least(Some(2.0))];
        assert_eq!(rows.each_ref().map(verdict), ["", "pass", "MISS"]);
        assert_eq!(targets_reached(&rows), "1 of 2 targets reached\n");
        assert_eq!(lines(&["a".to_owned(), "b".to_owned()]), "a\nb\n");
        assert!(made_by().starts_with("made by: fieldstone "));
    }
}
