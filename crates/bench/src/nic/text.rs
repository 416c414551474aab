//! The report on a terminal.

use std::fmt::Write as _;

use fieldstone_nic::network::constants::Constants;

use super::figure::{Figure, Panel};
use crate::table::{Table, number};

/// The report of a figure.
pub fn report(figure: &Figure, setting: &[String]) -> String {
    let mut text = format!("{}: {}\n", figure.bench, figure.title);
    text.push_str("Modelled, not measured on this machine.\n\n");
    for panel in &figure.panels {
        let _ = writeln!(text, "{} ({})", panel.title, panel.unit);
        text.push_str(&table(panel));
        text.push('\n');
    }
    text.push_str(&statements(figure));
    for note in &figure.notes {
        let _ = writeln!(text, "{note}");
    }
    text.push('\n');
    for line in setting {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// A panel as a table: one row per position. A number of the paper stands behind ours.
pub fn table(panel: &Panel) -> String {
    let names = panel.lines.iter().map(|line| line.name);
    let mut table = Table::new(&std::iter::once(panel.x_title).chain(names).collect::<Vec<_>>());
    for (place, position) in panel.positions.iter().enumerate() {
        let cells = panel.lines.iter().map(|line| {
            let ours = number(line.values.get(place).copied().flatten());
            match line.paper.get(place).copied().flatten() {
                Some((paper, _)) => format!("{ours} (paper {})", number(Some(paper))),
                None => ours,
            }
        });
        table.row(std::iter::once(position.clone()).chain(cells).collect());
    }
    table.text()
}

/// What the paper states, and ours.
pub fn statements(figure: &Figure) -> String {
    let mut table = Table::new(&["statement", "paper", "ours", "unit", "differs by"]);
    for statement in &figure.statements {
        let percent = statement.difference_percent();
        table.row(vec![
            statement.name.to_owned(),
            number(statement.paper),
            number(statement.ours),
            statement.unit.to_owned(),
            percent.map_or("-".to_owned(), |percent| format!("{percent:+.0}%")),
        ]);
    }
    let mut text = table.text();
    for statement in &figure.statements {
        let _ = writeln!(
            text,
            "  {}: \"{}\" ({})\n    {}",
            statement.name, statement.text, statement.place, statement.comment
        );
    }
    text
}

/// The constants of the model.
pub fn constants() -> String {
    let mut table = Table::new(&["constant", "value", "source"]);
    for row in Constants::default().rows() {
        let source = format!("{}: {}", row.origin.kind(), row.origin.text());
        table.row(vec![row.name.to_owned(), row.value.to_string(), source]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;

    #[test]
    fn the_report_has_values_statements_and_the_paper() {
        let text = report(&figure(), &["made by: x".to_owned()]);
        for part in [
            "nic-fig6: a < b",
            "3.00 (paper 2.00)",
            "up to 27%",
            "+20%",
            "Modelled",
            "<note>",
            "made by: x",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(constants().contains("fitted: "));
    }
}
