//! The page: a chart for each panel, the paper's statements, the numbers and the constants.

use super::figure::Figure;
use super::text;
use crate::chart::{self, colour, escape};
use crate::table::number;

/// The body of the page.
pub fn body(figure: &Figure, setting: &[String]) -> String {
    let mut html = String::from(
        "<p>Modelled, not measured on a machine. The vertical axes are logarithmic. Point at a dot \
         for its number.</p>\n",
    );
    for panel in &figure.panels {
        let entries: Vec<_> = panel
            .lines
            .iter()
            .enumerate()
            .map(|(place, line)| (line.name.to_owned(), colour(place)))
            .collect();
        html.push_str(&chart::legend(&entries));
        html.push_str(&format!("<div class='charts'>\n{}</div>\n", panel.chart().svg()));
    }
    html.push_str("<h2>What the paper states, and the model</h2>\n<ul>\n");
    for statement in &figure.statements {
        let paper = statement.paper.map_or_else(String::new, |paper| {
            format!(" Paper: {} {}.", number(Some(paper)), statement.unit)
        });
        let differs = statement.difference_percent();
        let differs = differs.map_or_else(String::new, |part| format!(" ({part:+.0}%)"));
        html.push_str(&format!(
            "<li>&quot;{}&quot; ({}).{} Model: {} {}{differs}. {}.</li>\n",
            escape(statement.text),
            escape(statement.place),
            escape(&paper),
            number(statement.ours),
            escape(statement.unit),
            escape(statement.comment)
        ));
    }
    html.push_str("</ul>\n");
    for note in &figure.notes {
        html.push_str(&format!("<p>{}</p>\n", escape(note)));
    }
    html.push_str("<h2>Numbers</h2>\n");
    for panel in &figure.panels {
        let title = format!("{} ({})", panel.title, panel.unit);
        html.push_str(&format!("<p>{}</p>\n", escape(&title)));
        html.push_str(&format!("<pre>{}</pre>\n", escape(&text::table(panel))));
    }
    html.push_str("<h2>Constants</h2>\n");
    html.push_str(&format!("<pre>{}</pre>\n", escape(&text::constants())));
    html.push_str("<h2>Setting</h2>\n");
    html.push_str(&format!("<pre>{}</pre>\n", escape(&setting.join("\n"))));
    html
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;

    #[test]
    fn the_page_is_well_formed_and_complete() {
        let html = body(&figure(), &["made by: <x>".to_owned()]);
        assert!(chart::is_well_formed(&html), "{html}");
        assert_eq!(html.matches("role='img'").count(), 1);
        assert_eq!(html.matches("<circle").count(), 3);
        for part in ["up to 27%", "made by: &lt;x&gt;", "&lt;note&gt;", "link_gbit", "+20%"] {
            assert!(html.contains(part), "{part}");
        }
        for outside in ["<script", "<link", "src=", "@import"] {
            assert!(!html.contains(outside), "{outside} needs something else");
        }
    }
}
