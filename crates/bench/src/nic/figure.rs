//! A figure: lines of ours, and what the paper states about them.

use serde_json::{Map, json};

use crate::chart::{LineChart, Series, colour};
use crate::row::{Better, Row};

/// A panel of a figure: values over positions, one line per contender.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Part of the case's name, such as `k2`.
    pub name: &'static str,
    /// The title of the chart.
    pub title: String,
    /// The title of the positions.
    pub x_title: &'static str,
    /// The positions.
    pub positions: Vec<String>,
    /// The unit of the values.
    pub unit: &'static str,
    /// The better direction.
    pub better: Better,
    /// The limit of the network or of the NIC, if there is one.
    pub limit: Option<f64>,
    /// The lines: a name, and a value for each position.
    pub lines: Vec<Line>,
}

/// A line of a panel.
#[derive(Clone, Debug)]
pub struct Line {
    /// The contender.
    pub name: &'static str,
    /// A value for each position; `None` where there is none.
    pub values: Vec<Option<f64>>,
    /// Numbers that the paper prints for these positions, with their places.
    pub paper: Vec<Option<(f64, &'static str)>>,
}

impl Line {
    /// A line without numbers of the paper.
    pub fn new(name: &'static str, values: Vec<Option<f64>>) -> Self {
        Self { name, values, paper: Vec::new() }
    }
}

impl Panel {
    /// The value of a contender at a position.
    pub fn value(&self, line: &str, position: usize) -> Option<f64> {
        let line = self.lines.iter().find(|other| other.name == line)?;
        line.values.get(position).copied().flatten()
    }

    /// The chart.
    pub fn chart(&self) -> LineChart {
        let series = self.lines.iter().enumerate().map(|(place, line)| Series {
            name: line.name.to_owned(),
            colour: colour(place),
            points: line.values.iter().map(|value| value.map(|value| (value, None))).collect(),
            is_joined: true,
        });
        LineChart {
            title: format!("{} ({})", self.title, self.unit),
            x_title: self.x_title.to_owned(),
            positions: self.positions.clone(),
            series: series.collect(),
        }
    }
}

/// A statement of the paper, and ours.
#[derive(Clone, Debug)]
pub struct Statement {
    /// Part of the case's name.
    pub name: &'static str,
    /// The sentence as printed.
    pub text: &'static str,
    /// Its place.
    pub place: &'static str,
    /// The unit of both numbers.
    pub unit: &'static str,
    /// The paper's number; `None` for a statement without one.
    pub paper: Option<f64>,
    /// Ours; for a statement without a number 1 if it holds in the model, otherwise 0.
    pub ours: Option<f64>,
    /// What our number is, and which constant decides if it differs.
    pub comment: &'static str,
}

impl Statement {
    /// By how much our number differs from the paper's, in percent.
    pub fn difference_percent(&self) -> Option<f64> {
        let (ours, paper) = self.ours.zip(self.paper)?;
        crate::stats::quotient(100.0 * (ours - paper), paper)
    }
}

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The benchmark's name, such as `nic-fig6`.
    pub bench: &'static str,
    /// The title of the page.
    pub title: &'static str,
    /// The panels.
    pub panels: Vec<Panel>,
    /// The statements.
    pub statements: Vec<Statement>,
    /// What a reader must know.
    pub notes: Vec<&'static str>,
}

/// The rows: one for each value, and one for each statement. Nothing is measured on this machine,
/// so `seconds` is 0, and every row says that it is modelled.
pub fn rows(figure: &Figure) -> Vec<Row> {
    let mut rows = Vec::new();
    for panel in &figure.panels {
        for line in &panel.lines {
            for (place, position) in panel.positions.iter().enumerate() {
                let ours = line.values.get(place).copied().flatten();
                let case = format!("{}/{position}/{}", panel.name, line.name);
                let both = (ours, None);
                let mut row =
                    Row::new(figure.bench, case, panel.unit, panel.better, both).limit(panel.limit);
                row.more = modelled();
                if let Some((value, place)) = line.paper.get(place).copied().flatten() {
                    quote(&mut row, value, place);
                }
                rows.push(row);
            }
        }
    }
    for statement in &figure.statements {
        let case = format!("statement/{}", statement.name);
        let both = (statement.ours, None);
        let mut row = Row::new(figure.bench, case, statement.unit, Better::More, both);
        row.more = modelled();
        row.more.insert("statement".to_owned(), json!(statement.text));
        row.more.insert("comment".to_owned(), json!(statement.comment));
        row.more.insert("paper_ref".to_owned(), json!(statement.place));
        row.more.insert("paper".to_owned(), json!(statement.paper));
        row.more.insert("difference_percent".to_owned(), json!(statement.difference_percent()));
        rows.push(row);
    }
    rows
}

fn modelled() -> Map<String, serde_json::Value> {
    let mut more = Map::new();
    more.insert("modelled".to_owned(), json!(true));
    more
}

fn quote(row: &mut Row, value: f64, place: &'static str) {
    row.more.insert("paper".to_owned(), json!(value));
    row.more.insert("paper_ref".to_owned(), json!(place));
    let difference = row.ours.and_then(|ours| crate::stats::quotient(ours - value, value));
    row.more.insert("difference_percent".to_owned(), json!(difference.map(|part| 100.0 * part)));
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A figure with a panel and a statement.
    pub fn figure() -> Figure {
        let paper = vec![None, Some((2.0, "Table I"))];
        let line = Line { paper, ..Line::new("sPIN", vec![Some(1.5), Some(3.0)]) };
        Figure {
            bench: "nic-fig6",
            title: "a < b",
            panels: vec![Panel {
                name: "writes",
                title: "latency".to_owned(),
                x_title: "size",
                positions: vec!["1K".to_owned(), "2K".to_owned()],
                unit: "us",
                better: Better::Less,
                limit: None,
                lines: vec![line, Line::new("raw", vec![Some(1.0), None])],
            }],
            statements: vec![Statement {
                name: "overhead",
                text: "up to 27%",
                place: "section IV-A",
                unit: "%",
                paper: Some(25.0),
                ours: Some(30.0),
                comment: "c",
            }],
            notes: vec!["<note>"],
        }
    }

    #[test]
    fn rows_are_unique_and_quote_the_paper_where_it_prints_a_number() {
        let rows = rows(&figure());
        let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        let expected = [
            "writes/1K/sPIN",
            "writes/2K/sPIN",
            "writes/1K/raw",
            "writes/2K/raw",
            "statement/overhead",
        ];
        assert_eq!(cases, expected);
        let quoted: Vec<bool> = rows.iter().map(|row| row.more.contains_key("paper")).collect();
        assert_eq!(quoted, [false, true, false, false, true]);
        assert_eq!(rows[1].more["difference_percent"], json!(50.0));
        assert_eq!(rows[4].more["difference_percent"], json!(20.0));
        for row in &rows {
            assert_eq!(row.more["modelled"], json!(true));
            assert!(row.theirs.is_none() && row.ratio.is_none(), "no paper is measured");
        }
        assert_eq!(rows[3].ours, None, "a value that does not exist is null");
    }

    #[test]
    fn values_are_found_by_name() {
        let panel = &figure().panels[0];
        assert_eq!(panel.value("sPIN", 1), Some(3.0));
        assert_eq!(panel.value("raw", 1), None);
        assert_eq!(panel.value("rpc", 0), None);
    }
}
