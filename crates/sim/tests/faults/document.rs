//! Compares `docs/faults.md` with the tests: each row names a test that exists, and each test has
//! its row.

use std::collections::BTreeSet;

use crate::{rows, several};

const DOCUMENT: &str = include_str!("../../../../docs/faults.md");
/// The tests for the rows about real files.
const FOLDER: &str = include_str!("../../../host/src/folder/faults.rs");
/// The column with the name of the test.
const TEST: &str = "test";

/// The tests that the tables of the document name.
fn documented() -> Vec<String> {
    let mut named = Vec::new();
    let mut in_table = false;
    for line in DOCUMENT.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            in_table = false;
        } else if cells.last() == Some(&TEST) {
            in_table = true;
        } else if in_table && !cells[0].starts_with('-') {
            let last = cells.last().expect("a row has cells");
            let name = last.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
            named
                .push(name.unwrap_or_else(|| panic!("the row ends without a test: {line}")).into());
        }
    }
    named
}

/// The names of the tests in `folder/faults.rs`: rows of its macro, and functions.
fn of_folders() -> Vec<String> {
    let mut found = Vec::new();
    let mut test = false;
    let mut rows = false;
    for line in FOLDER.lines() {
        rows = line == "rows! {" || (rows && line != "}");
        let name = |text: &str, end: &str| Some(text.split_once(end)?.0.to_owned());
        let row = line.strip_prefix("    ").filter(|rest| rows && !rest.starts_with(' '));
        found.extend(row.and_then(|rest| name(rest, ": ")));
        found.extend(line.strip_prefix("fn ").filter(|_| test).and_then(|rest| name(rest, "(")));
        test = line == "#[test]";
    }
    found
}

#[test]
fn every_row_of_the_document_has_a_test_and_every_test_a_row() {
    let named = documented();
    let mut tests: Vec<String> = of_folders();
    tests.extend(rows::NAMES.iter().chain(several::NAMES).map(|name| (*name).to_owned()));
    let (rows, known): (BTreeSet<_>, BTreeSet<_>) =
        (named.iter().collect(), tests.iter().collect());
    assert_eq!(rows.len(), named.len(), "a test is named twice");
    assert_eq!(known.len(), tests.len(), "a test exists twice");
    let no_test: Vec<_> = rows.difference(&known).collect();
    let no_row: Vec<_> = known.difference(&rows).collect();
    assert!(no_test.is_empty() && no_row.is_empty(), "no test: {no_test:?}; no row: {no_row:?}");
}
