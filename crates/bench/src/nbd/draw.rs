//! A run as an HTML page in one file, which loads nothing.

use super::case::Case;
use super::contender::Contender;
use super::measure::Results;
use super::summary::summary;
use super::sweep::point;
use crate::chart::{self, Bar, LineChart, Series, bar_colour, colour};
use crate::fio::Pattern;
use crate::interleaving::Entrant;
use crate::report::{missing_html, setting_html};
use crate::speeds::Measure;
use crate::stats::range;
use crate::subject::Cell;

/// The page of a sweep: charts of throughput, I/Os and latency for every pattern.
pub fn sweep_page(cases: &[Case], results: &Results, setting: &[String]) -> String {
    let mut body = head(results, setting);
    body.push_str(
        "<p>Means over the runs; error bars are standard deviations. Both axes are logarithmic. \
         Point at a dot for its number.</p>\n",
    );
    for pattern in Pattern::ALL {
        let charts: Vec<String> = Measure::ALL
            .into_iter()
            .map(|measure| sweep_chart(cases, results, pattern, measure).svg())
            .filter(|svg| !svg.is_empty())
            .collect();
        if !charts.is_empty() {
            let name = pattern.long_name();
            body.push_str(&format!("<h2>{name}</h2>\n{}", legend(results)));
            body.push_str(&format!("<div class='charts'>\n{}</div>\n", charts.concat()));
        }
    }
    chart::page("NBD servers by block size", &body)
}

/// The page of a standard run: for every case, one bar per contender.
pub fn standard_page(cases: &[Case], results: &Results, setting: &[String]) -> String {
    let mut body = head(results, setting);
    body.push_str("<p>Medians over the rounds; black lines span all rounds.</p>\n");
    body.push_str("<h2>Speed (longer is better)</h2>\n<div class='charts'>\n");
    for (index, case) in cases.iter().enumerate() {
        let title = format!("{} ({})", case.name(), Measure::headline(case).unit());
        let bar = |contender| {
            let value = summary(results, index, contender)?.speeds.headline(case);
            let cells = results.interleaving.rounds(index, contender)?;
            let each = |bandwidth: bool| -> Vec<f64> {
                let value = |cell: &Cell| match bandwidth {
                    true => cell.fio.bytes_per_second / 1e6,
                    false => cell.fio.iops,
                };
                cells.iter().map(value).collect()
            };
            Some((value, range(&each(case.is_bandwidth()))))
        };
        body.push_str(&chart::bars(&title, &bars_of(bar)));
    }
    body.push_str("</div>\n<h2>CPU time per I/O, client and server (shorter is better)</h2>\n");
    body.push_str("<div class='charts'>\n");
    for (index, case) in cases.iter().enumerate() {
        let title = format!("{} (us of CPU per I/O)", case.name());
        let bar = |contender| Some((summary(results, index, contender)?.cpu_us_per_io(), None));
        body.push_str(&chart::bars(&title, &bars_of(bar)));
    }
    body.push_str("</div>\n");
    chart::page("NBD servers side by side", &body)
}

type Value = (f64, Option<(f64, f64)>);

fn bars_of(value: impl Fn(Contender) -> Option<Value>) -> Vec<Bar> {
    let all = Contender::ALL.into_iter();
    let bar = |contender: Contender| {
        let (value, range) = value(contender)?;
        let colour = bar_colour(contender.is_ours());
        Some(Bar {
            name: contender.name().to_owned(),
            colour,
            value,
            range,
            mark: None,
            text: None,
        })
    };
    all.filter_map(bar).collect()
}

fn head(results: &Results, setting: &[String]) -> String {
    missing_html(&results.interleaving.missing) + &setting_html(setting)
}

/// The contenders in the results. The colour of a contender does not depend on the others.
fn present(results: &Results) -> Vec<(Contender, &'static str)> {
    let all = Contender::ALL.into_iter().enumerate();
    let is_there =
        |contender: Contender| results.interleaving.cells.keys().any(|(_, who)| *who == contender);
    all.filter(|(_, contender)| is_there(*contender))
        .map(|(place, contender)| (contender, colour(place)))
        .collect()
}

fn legend(results: &Results) -> String {
    let entries: Vec<(String, &'static str)> = present(results)
        .into_iter()
        .map(|(contender, colour)| (contender.name().to_owned(), colour))
        .collect();
    chart::legend(&entries)
}

fn sweep_chart(cases: &[Case], results: &Results, pattern: Pattern, measure: Measure) -> LineChart {
    let of: Vec<(usize, &Case)> =
        cases.iter().enumerate().filter(|(_, case)| case.load.pattern == pattern).collect();
    let series = present(results).into_iter().map(|(contender, colour)| Series {
        name: contender.name().to_owned(),
        colour,
        points: of
            .iter()
            .map(|(index, _)| {
                let point = point(results, *index, contender)?;
                Some((measure.of(&point), measure.deviation(&point)))
            })
            .collect(),
        is_joined: true,
    });
    let depth = of.first().map_or(0, |(_, case)| case.load.depth);
    LineChart {
        title: format!("{}: {}", pattern.long_name(), measure.title()),
        x_title: format!("block size (queue depth {depth})"),
        positions: of
            .iter()
            .map(|(_, case)| format!("{} KiB", case.load.block_bytes >> 10))
            .collect(),
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::Measured;
    use crate::nbd::case::{grid, standard};

    fn results(cases: usize) -> Results {
        let mut results = Results::default();
        let fio = Measured {
            ios: 1,
            iops: 5e4,
            bytes_per_second: 2e8,
            mean_us: 80.0,
            cpu_s: 1e-6,
            ..Measured::default()
        };
        for index in 0..cases {
            for contender in [Contender::Rs, Contender::NbdkitFile] {
                results
                    .interleaving
                    .cells
                    .insert((index, contender), vec![Cell { fio, ..Cell::default() }; 4]);
            }
        }
        results.interleaving.missing.push((Contender::QemuNone, "no <such> program".to_owned()));
        results
    }

    #[test]
    fn a_sweep_is_twelve_charts_with_everything_in_the_file() {
        let page = sweep_page(&grid(), &results(32), &["made by: fieldstone bench".to_owned()]);
        assert_eq!(page.matches("role='img'").count(), 12);
        assert_eq!(page.matches("class='legend'").count(), 4);
        assert_eq!(page.matches("<circle").count(), 12 * 8 * 2);
        assert!(page.contains("made by: fieldstone bench") && page.contains("no &lt;such&gt;"));
        for outside in ["<script", "<link", "src=", "@import"] {
            assert!(!page.contains(outside), "{outside} needs something else");
        }
    }

    #[test]
    fn a_standard_run_is_two_charts_per_case() {
        let page = standard_page(&standard(), &results(6), &[]);
        assert_eq!(page.matches("role='img'").count(), 12);
        assert_eq!(page.matches("<rect").count(), 12 * 2);
    }
}
