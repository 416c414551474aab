//! Plain text tables. The first column is aligned to the left, the others to the right.

/// A table under construction.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with a heading.
    pub fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row. Cells that are missing stay empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, each line indented by two spaces.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::from(" ");
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                line.push_str(&if column == 0 {
                    format!(" {cell:<width$}")
                } else {
                    format!("  {cell:>width$}")
                });
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A number with three significant digits, or without decimals if it is larger; `-` for `None`.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() < 9.995 => format!("{value:.2}"),
        Some(value) if value.abs() < 99.95 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["who", "IOPS", "us"]);
        table.row(vec!["ram".to_owned(), "165000".to_owned(), "1.50".to_owned()]);
        table.row(vec!["nbdkit".to_owned(), "7".to_owned()]);
        let expected = "  who       IOPS    us\n  ram     165000  1.50\n  nbdkit       7\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0.00"),
            (1.234, "1.23"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (165_432.1, "165432"),
            (-0.5, "-0.50"),
        ] {
            assert_eq!(number(Some(value)), text);
        }
        assert_eq!(number(None), "-");
    }
}
