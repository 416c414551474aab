//! Compares `docs/network-model.md` and `docs/nic.md` with the figures: each number that a document
//! prints is made again, and the document must have the same text. So a change of the model, of the
//! firmware or of a document that makes a document untrue fails here.

mod firmware;
mod hybrid;
mod model;

use std::sync::LazyLock;

use super::figure::{Figure, Statement, rows};

/// The document of the network model.
const MODEL: &str = include_str!("../../../../../docs/network-model.md");
/// The document of the firmware.
const FIRMWARE: &str = include_str!("../../../../../docs/nic.md");

/// Asserts that a document has this text, whatever its line breaks.
fn says(document: &str, text: &str) {
    assert!(is_said(document, text), "the document does not say: {text}");
}

fn is_said(document: &str, text: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    words(document).contains(&words(text))
}

/// The rows of the table that begins with this row, without it and without the line below it.
fn table(document: &str, head: &str) -> Vec<Vec<String>> {
    let lines = document.lines().skip_while(|line| *line != head);
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let cells = |line: &str| {
        let inner = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')).unwrap();
        inner.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let rows: Vec<Vec<String>> = rows.map(cells).collect();
    assert!(!rows.is_empty(), "there is no table: {head}");
    rows
}

/// The number of a figure by the name of its row.
fn ours(figure: &Figure, case: &str) -> f64 {
    let rows = rows(figure);
    let row = rows.iter().find(|row| row.case == case);
    row.and_then(|row| row.ours).unwrap_or_else(|| panic!("{} has no {case}", figure.bench))
}

/// The paper's number for a row.
fn paper(figure: &Figure, case: &str) -> f64 {
    let rows = rows(figure);
    let row = rows.iter().find(|row| row.case == case);
    let number = row.and_then(|row| row.more.get("paper")?.as_f64());
    number.unwrap_or_else(|| panic!("{} has no number of the paper for {case}", figure.bench))
}

/// A statement of a figure.
fn statement<'a>(figure: &'a Figure, name: &str) -> &'a Statement {
    let found = figure.statements.iter().find(|statement| statement.name == name);
    found.unwrap_or_else(|| panic!("{} has no statement {name}", figure.bench))
}

/// A number without decimals, with commas between thousands.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The difference of a number to another one, as the documents have it: `+4 %`.
fn percent(ours: f64, paper: f64) -> String {
    let part = 100.0 * (ours - paper) / paper;
    if part.abs() < 0.5 { "0 %".to_owned() } else { format!("{part:+.0} %") }
}

/// A figure that several tests share.
type Shared = LazyLock<Figure>;

#[test]
fn texts_and_tables_are_found_in_a_document() {
    let document = "a b\nc\n\n| x | y |\n|---|---|\n| 1 | |\n| 2 | 3 |\n\n| x | y |\n";
    assert!(is_said(document, "b c") && !is_said(document, "b d"));
    assert_eq!(table(document, "| x | y |"), [["1", ""], ["2", "3"]]);
    assert_eq!([999.6, 12.0, 123_456.0].map(thousands), ["1,000", "12", "123,456"]);
    assert_eq!([104.0, 99.7, 67.0].map(|ours| percent(ours, 100.0)), ["+4 %", "0 %", "-33 %"]);
}
