//! The page: a chart of each work, the paper's words beside them, and the setting.

use super::case::{Findings, SIZES, Who, Work};
use super::{paper, text};
use crate::chart::{self, LineChart, Series, colour, escape};
use fieldstone_units as units;

/// The title of the page.
pub const TITLE: &str = "Zigzag {6,4,8} by CPU, GPU and FPGA";

/// The lines of ours. Each keeps its colour, whether the others are there or not.
const LINES: [Who; 6] =
    [Who::CpuOne, Who::CpuAll, Who::GfAll, Who::Gpu, Who::Fpga, Who::FpgaPaperClock];

/// The contenders whose neighbours in the paper are drawn as points.
const PAPER: [Who; 3] = [Who::CpuOne, Who::CpuAll, Who::FpgaPaperClock];

/// The body of the page.
pub fn body(found: &Findings, setting: &[String]) -> String {
    let mut html = String::new();
    html.push_str(
        "<p>Bytes of objects per second over the size of an object, in 10^9. Both axes are \
         logarithmic. Point at a dot for its number. Single dots are the paper's: printed, or \
         derived where they say so.</p>\n",
    );
    for (name, reason) in &found.absent {
        html.push_str(&format!("<p>Not measured: {}: {}</p>\n", escape(name), escape(reason)));
    }
    let origins = found.notes.iter().filter(|note| note.contains("recorded"));
    for note in origins {
        html.push_str(&format!("<p>Recorded, not measured in this run: {}</p>\n", escape(note)));
    }
    html.push_str(&chart::legend(&legend(found)));
    let charts: Vec<String> = Work::ALL.into_iter().map(|work| chart(found, work).svg()).collect();
    html.push_str(&format!("<div class='charts'>\n{}</div>\n", charts.concat()));
    html.push_str(&paper_section());
    html.push_str("<h2>Numbers</h2>\n");
    for work in Work::ALL {
        let table = text::table(found, work);
        html.push_str(&format!("<p>{}</p>\n", escape(text::heading(work))));
        html.push_str(&format!("<pre>{}</pre>\n", escape(&table)));
    }
    html.push_str(&format!("<pre>{}</pre>\n", escape(&text::explanations(found))));
    html.push_str("<h2>Setting</h2>\n");
    html.push_str(&format!("<pre>{}</pre>\n", escape(&setting.join("\n"))));
    html
}

/// What the paper prints, what follows from it, and what it does not print.
fn paper_section() -> String {
    let mut html = format!("<h2>The paper: {}</h2>\n<ul>\n", escape(paper::NAME));
    for (statement, place) in paper::STATEMENTS {
        let (statement, place) = (escape(statement), escape(place));
        html.push_str(&format!("<li>&quot;{statement}&quot; ({place})</li>\n"));
    }
    html.push_str("</ul>\n");
    html.push_str(&format!("<pre>{}</pre>\n", escape(&text::paper_table())));
    html.push_str("<p>Derived from printed numbers:</p>\n<ul>\n");
    for derived in paper::derivations() {
        html.push_str(&format!("<li>{}</li>\n", escape(&derived)));
    }
    html.push_str("</ul>\n<p>The text does not print the points of Fig. 5, so none is here. ");
    html.push_str(&format!("{}.</p>\n", escape(paper::DEFINITION)));
    html
}

fn is_drawn(found: &Findings, who: Who) -> bool {
    Work::ALL.into_iter().any(|work| found.has(work, who))
}

fn legend(found: &Findings) -> Vec<(String, &'static str)> {
    let ours = LINES.into_iter().enumerate().filter(|(_, who)| is_drawn(found, *who));
    let ours = ours.map(|(place, who)| (who.name().to_owned(), colour(place)));
    let paper = paper_points().into_iter().map(|series| (series.name, series.colour));
    ours.chain(paper).collect()
}

fn chart(found: &Findings, work: Work) -> LineChart {
    let line = |(place, who): (usize, Who)| Series {
        name: who.name().to_owned(),
        colour: colour(place),
        points: SIZES
            .into_iter()
            .map(|bytes| Some((found.point(work, bytes, who)?.gb_per_second, None)))
            .collect(),
        is_joined: true,
    };
    let lines = LINES.into_iter().enumerate().filter(|(_, who)| found.has(work, *who));
    let mut series: Vec<Series> = lines.map(line).collect();
    if work == Work::Encode {
        series.extend(paper_points());
    }
    LineChart {
        title: format!("{} (GB of objects per second)", work.name()),
        x_title: "size of an object".to_owned(),
        positions: SIZES.map(|bytes| units::size_argument(bytes as u64)).to_vec(),
        series,
    }
}

/// The paper's numbers of encoding, as series of one point.
fn paper_points() -> Vec<Series> {
    let series = PAPER.into_iter().enumerate().filter_map(|(place, who)| {
        let of = |bytes| paper::quoted(Work::Encode, bytes, who);
        let name = SIZES.into_iter().find_map(of)?.name.to_owned();
        let point = |bytes| of(bytes).map(|quoted| (quoted.gb_per_second, None));
        let points = SIZES.into_iter().map(point).collect();
        Some(Series { name, colour: colour(LINES.len() + place), points, is_joined: false })
    });
    series.collect()
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::found;
    use super::*;

    #[test]
    fn the_page_is_well_formed_and_complete() {
        let html = body(&found(), &["made by: <x>".to_owned()]);
        assert!(chart::is_well_formed(&html), "{html}");
        assert_eq!(html.matches("role='img'").count(), 2);
        // Two lines of ours in each chart; gf-complete on one core is in the table only.
        assert_eq!(html.matches("<circle").count(), 2 * 2 * SIZES.len() + PAPER.len());
        for part in ["no GPU: no &lt;card&gt;", "made by: &lt;x&gt;", "34.0 GB/s", "Table I"] {
            assert!(html.contains(part), "{part}");
        }
        for outside in ["<script", "<link", "src=", "@import"] {
            assert!(!html.contains(outside), "{outside} needs something else");
        }
    }

    #[test]
    fn nothing_measured_is_still_a_page() {
        let html = body(&Findings::default(), &[]);
        assert!(chart::is_well_formed(&html), "{html}");
        assert_eq!(html.matches("role='img'").count(), 1, "the paper's points remain");
    }

    #[test]
    fn lines_keep_their_colours() {
        let entries = legend(&found());
        let of = |name: &str| entries.iter().find(|(entry, _)| entry == name).map(|(_, c)| *c);
        assert_eq!(of("cpu-1"), Some(colour(0)));
        assert_eq!(of("fpga-300"), Some(colour(5)));
        assert_eq!(of("paper: FPGA (derived)"), Some(colour(8)));
    }
}
