//! Mappings as text or JSON, and data sets as files.

use std::path::PathBuf;

use anyhow::Context;
use fieldstone_crush::tester::csv::DataSet;
use fieldstone_crush::tester::tally::is_bad;
use fieldstone_crush::tester::text;
use fieldstone_crush::{ItemId, RuleId};

use super::Args;

/// The options for printing the mappings of a trial.
#[derive(Clone, Copy, Debug)]
pub struct Rendering {
    rule: u32,
    width: usize,
    all: bool,
    bad: bool,
    json: bool,
}

impl Rendering {
    /// Reads the options.
    pub fn new(args: &Args, rule: RuleId, width: usize) -> Self {
        let (all, bad) = (args.show_mappings, args.show_bad_mappings);
        Self { rule: rule.0, width, all, bad, json: args.json }
    }

    /// Appends the lines of one mapping.
    pub fn row(&self, out: &mut Vec<u8>, x: i32, items: &[ItemId]) {
        if !self.all && !self.bad {
            return;
        }
        if self.json {
            let bad = is_bad(items, self.width);
            if self.all || bad {
                self.json_row(out, x, items, bad);
            }
            return;
        }
        if self.all {
            text::mapping(out, self.rule, x, items);
        }
        if self.bad && is_bad(items, self.width) {
            text::bad_mapping(out, self.rule, x, self.width, items);
        }
    }

    fn json_row(&self, out: &mut Vec<u8>, x: i32, items: &[ItemId], bad: bool) {
        out.extend_from_slice(b"{\"rule\":");
        text::decimal(out, self.rule.into());
        out.extend_from_slice(b",\"x\":");
        text::decimal(out, x.into());
        out.extend_from_slice(b",\"num_rep\":");
        text::decimal(out, self.width as i64);
        out.extend_from_slice(if bad { b",\"bad\":true" } else { b",\"bad\":false" });
        out.extend_from_slice(b",\"items\":[");
        for (place, &item) in items.iter().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            match item {
                ItemId::NONE => out.extend_from_slice(b"null"),
                ItemId(number) => text::decimal(out, number.into()),
            }
        }
        out.extend_from_slice(b"]}\n");
    }
}

/// Writes the data sets of a rule.
pub fn write_sets(prefix: &str, rule: &str, sets: &[DataSet]) -> anyhow::Result<()> {
    // The map gives the name of the rule. Without slashes, the file stays in the folder.
    let rule = rule.replace('/', "_");
    let prefix = if prefix.is_empty() { rule } else { format!("{prefix}-{rule}") };
    for set in sets {
        let path = PathBuf::from(format!("{prefix}-{}.csv", set.name));
        std::fs::write(&path, &set.text)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_rows_are_json() {
        let rendering = Rendering { rule: 3, width: 3, all: true, bad: false, json: true };
        let mut out = Vec::new();
        rendering.row(&mut out, 7, &[ItemId(5), ItemId::NONE, ItemId(-2)]);
        let row: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        let expected = serde_json::json!(
            {"rule": 3, "x": 7, "num_rep": 3, "bad": true, "items": [5, null, -2]}
        );
        assert_eq!(row, expected);
    }
}
