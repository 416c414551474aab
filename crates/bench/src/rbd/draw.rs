//! A run as an HTML page in one file, which loads nothing.

use super::compare::Measure;
use super::contender::Contender;
use super::summary::summary;
use super::text::Part;
use crate::case::Case;
use crate::chart::{self, Bar, bar_colour, escape};
use crate::interleaving::Entrant;
use crate::report::{missing_html, setting_html};

/// The measures that the page shows.
const SHOWN: [Measure; 4] = [Measure::Iops, Measure::Mean, Measure::Client, Measure::Switches];

/// The page: at each place and for every case and measure, one bar per contender.
pub fn page(cases: &[Case], parts: &[Part<'_>], setting: &[String]) -> String {
    let mut body = setting_html(setting);
    for part in parts {
        body.push_str(&format!("<h2>{}</h2>\n", escape(part.kind.title())));
        for line in &part.about {
            body.push_str(&format!("<p>{}</p>\n", escape(line)));
        }
        body.push_str(&missing_html(&part.results.interleaving.missing));
        for measure in SHOWN {
            body.push_str(&format!("<h3>{}</h3>\n<div class='charts'>\n", measure.unit()));
            for (index, case) in cases.iter().enumerate() {
                let bars = bars(part, index, measure);
                if !bars.is_empty() {
                    body.push_str(&chart::bars(&case.name(), &bars));
                }
            }
            body.push_str("</div>\n");
        }
    }
    chart::page("Clients of Ceph side by side", &body)
}

fn bars(part: &Part<'_>, index: usize, measure: Measure) -> Vec<Bar> {
    let bar = |contender: Contender| {
        let value = measure.of(&summary(part.results, index, contender)?)?;
        let colour = bar_colour(contender.is_ours());
        let name = contender.name().to_owned();
        Some(Bar { name, colour, value, range: None, mark: None, text: None })
    };
    Contender::ALL.into_iter().filter_map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Measured;
    use crate::rbd::contender::Cell;
    use crate::rbd::place::PlaceKind;
    use crate::rbd::run::{Results, cases};
    use crate::usage::Usage;

    #[test]
    fn each_case_has_a_chart_of_each_measure() {
        let mut results = Results::default();
        let speed = Measured { ios: 10, iops: 5e4, mean_us: 80.0, ..Measured::default() };
        let client = Usage { user_s: 1e-4, system_s: 0.0, switches: 5.0 };
        for contender in [Contender::Librbd, Contender::Embed] {
            results
                .interleaving
                .cells
                .insert((0, contender), vec![Cell { speed, client, ..Cell::default() }]);
        }
        results.interleaving.missing.push((Contender::RbdNbd, "no <such> device".to_owned()));
        let about = vec!["pool <rep>".to_owned()];
        let part = Part { kind: PlaceKind::Cluster, results: &results, rows: Vec::new(), about };
        let page = page(&cases(), &[part], &["made by".to_owned()]);
        assert_eq!(page.matches("role='img'").count(), SHOWN.len());
        assert_eq!(page.matches("<rect").count(), 2 * SHOWN.len());
        assert!(page.contains("no &lt;such&gt;") && page.contains("pool &lt;rep&gt;"));
    }
}
