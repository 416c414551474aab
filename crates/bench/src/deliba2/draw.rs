//! The page: the charts of each figure, with the paper's printed numbers as single dots and marks.

use super::case::{PATTERNS, paper_name};
use super::contender::Who;
use super::cores::{self, Scaling};
use super::figure::{Content, Figure, Grid};
use super::grid::Part;
use super::paper::{self, Of, Paper, Quantity};
use super::rows::{NOT_PRINTED, all_patterns, point, shows, speeds, stage, value};
use super::stages::{self, Breakdowns, PaperStage};
use super::text::{Found, differences};
use crate::chart::{self, Bar, LineChart, Series, colour, escape};
use crate::fio::Pattern;
use crate::interleaving::Entrant;
use crate::report::{missing_html, setting_html};

/// The names and colours of the paper's numbers. Those of ours come before.
const PAPER: [(Of, &str, usize); 2] =
    [(Of::Software, "paper: software", 6), (Of::Hardware, "paper: DeLiBA-2 (hardware)", 7)];

/// The page of a run.
pub fn page(figures: &[&Figure], found: &Found, paper: &Paper, setting: &[String]) -> String {
    let mut body = String::from(
        "<p>Means over the runs; error bars are standard deviations. Both axes are logarithmic. \
         Point at a dot for its number. Dots without a line, and black marks across bars, are the \
         paper's printed numbers.",
    );
    body.push_str(&format!(" Elsewhere, {}.</p>\n", escape(NOT_PRINTED)));
    body.push_str(&missing_html(&found.missing()));
    for line in &found.absent {
        body.push_str(&format!("<p>{}</p>\n", escape(line)));
    }
    for figure in figures {
        let (title, about) = (escape(figure.title), escape(figure.about));
        body.push_str(&format!("<h2>{title}</h2>\n<p>{about}</p>\n"));
        body.push_str(&of_figure(figure, found, paper));
    }
    body.push_str("<h2>What differs from the paper</h2>\n<ul>\n");
    for line in differences(&found.present()) {
        body.push_str(&format!("<li>{}</li>\n", escape(line)));
    }
    body.push_str("</ul>\n<h2>The paper</h2>\n<ul>\n");
    for (statement, place) in paper::STATEMENTS {
        let (statement, place) = (escape(statement), escape(place));
        body.push_str(&format!("<li>&quot;{statement}&quot; ({place})</li>\n"));
    }
    body.push_str(&format!("<li>{}</li>\n</ul>\n", escape(paper::DEPTH_REASON)));
    body.push_str("<h2>Setting</h2>\n");
    body.push_str(&setting_html(setting));
    chart::page("DeLiBA-2's figures, drawn again", &body)
}

fn of_figure(figure: &Figure, found: &Found, paper: &Paper) -> String {
    match figure.content {
        Content::Grid(grid) => {
            let parts = grid.modes.iter().filter_map(|mode| found.part(*mode));
            parts.map(|part| grid_charts(&grid, part, paper)).collect()
        }
        Content::Stages => {
            found.stages.as_ref().map_or(String::new(), |found| stage_charts(found, paper))
        }
        Content::Cores => {
            found.cores.as_ref().map_or(String::new(), |found| core_charts(found, paper))
        }
    }
}

/// The colour of a contender, whether the others are there or not.
fn colour_of(who: Who) -> &'static str {
    colour(Who::ALL.into_iter().position(|other| other == who).unwrap_or(0))
}

fn legend(present: &[Who], sets: &[Of]) -> String {
    let ours = present.iter().map(|who| (who.name().to_owned(), colour_of(*who)));
    let paper = PAPER.into_iter().filter(|(of, ..)| sets.contains(of));
    let paper = paper.map(|(_, name, place)| (name.to_owned(), colour(place)));
    chart::legend(&ours.chain(paper).collect::<Vec<_>>())
}

fn grid_charts(grid: &Grid, part: &Part, paper: &Paper) -> String {
    let is_there = |who: &Who| part.results.cells.keys().any(|(_, there)| there == who);
    let is_shown = |who: &Who| grid.quantities.iter().any(|quantity| shows(*quantity, *who));
    let present: Vec<Who> =
        Who::ALL.into_iter().filter(|who| is_there(who) && is_shown(who)).collect();
    let sets: &[Of] =
        if grid.of == Of::Hardware { &[Of::Software, Of::Hardware] } else { &[Of::Software] };
    let mut html = format!("<h3>{}</h3>\n{}", part.mode.title(), legend(&present, sets));
    for quantity in grid.quantities {
        let charts = PATTERNS.map(|pattern| {
            grid_chart(grid, part, (*quantity, pattern), &present, sets, paper).svg()
        });
        html.push_str(&format!("<div class='charts'>\n{}</div>\n", charts.concat()));
    }
    html
}

fn grid_chart(
    grid: &Grid,
    part: &Part,
    (quantity, pattern): (Quantity, Pattern),
    present: &[Who],
    sets: &[Of],
    paper: &Paper,
) -> LineChart {
    let cases: Vec<(usize, &crate::case::Case)> = part
        .cases
        .iter()
        .enumerate()
        .filter(|(_, case)| {
            case.load.pattern == pattern && grid.sizes.contains(&case.load.block_bytes)
        })
        .collect();
    let line = |who: &Who| Series {
        name: who.name().to_owned(),
        colour: colour_of(*who),
        points: cases
            .iter()
            .map(|(index, _)| {
                let librbd = who.peer().and_then(|peer| speeds(&part.results, *index, peer));
                let found = speeds(&part.results, *index, *who)?;
                let deviation = match quantity {
                    Quantity::Throughput => found.mb_per_second_sd,
                    Quantity::Iops => found.iops_sd,
                    Quantity::Latency => found.mean_us_sd,
                    _ => None,
                };
                Some((value(quantity, &found, librbd.as_ref())?, deviation))
            })
            .collect(),
        is_joined: true,
    };
    let dots = |(of, name, place): (Of, &str, usize)| Series {
        name: name.to_owned(),
        colour: colour(place),
        points: cases
            .iter()
            .map(|(_, case)| {
                let number = paper.number(quantity, of, point(part.mode, case))?;
                Some((number.value, number.deviation))
            })
            .collect(),
        is_joined: false,
    };
    let quoted = PAPER.into_iter().filter(|(of, ..)| sets.contains(of)).map(dots);
    let depth = cases.first().map_or(0, |(_, case)| case.load.depth);
    LineChart {
        title: format!("{}: {}", paper_name(pattern), quantity.title()),
        x_title: format!("block size ({depth} in flight)"),
        positions: cases
            .iter()
            .map(|(_, case)| format!("{} KiB", case.load.block_bytes >> 10))
            .collect(),
        series: present.iter().map(line).chain(quoted).collect(),
    }
}

/// One chart for each contender and pattern, and one for the mean, which the paper prints.
fn stage_charts(found: &Breakdowns, paper: &Paper) -> String {
    let mut html = String::from("<div class='charts'>\n");
    for who in stages::CONTENDERS {
        let all = all_patterns(found, who);
        let cases = found.cases.iter().enumerate();
        let mut charts: Vec<(&str, Vec<stages::Breakdown>, bool)> = cases
            .filter_map(|(index, case)| {
                let cells = found.results.rounds(index, who)?.to_vec();
                Some((paper_name(case.load.pattern), cells, false))
            })
            .collect();
        charts.push(("mean of the patterns", all, true));
        for (name, cells, is_mean) in charts {
            let bars = PaperStage::ALL.into_iter().enumerate().filter_map(|(place, part)| {
                let (share, us) = stage(&cells, part)?;
                let number = paper.stage(part.name()).filter(|_| is_mean);
                Some(Bar {
                    name: part.name().to_owned(),
                    colour: colour(place),
                    value: share,
                    range: None,
                    mark: number.map(|number| number.value),
                    text: Some(format!("{share:.1} % ({us:.1} us)")),
                })
            });
            let title = format!("{}, {name}: % of the latency", who.name());
            html.push_str(&chart::bars(&title, &bars.collect::<Vec<_>>()));
        }
    }
    html.push_str("</div>\n<ul>\n");
    for part in PaperStage::ALL {
        html.push_str(&format!("<li>{}: {}</li>\n", part.name(), escape(part.here())));
    }
    html.push_str("</ul>\n");
    html
}

fn core_charts(found: &Scaling, paper: &Paper) -> String {
    let is_there = |who: &Who| found.results.cells.keys().any(|(_, there)| there == who);
    let present: Vec<Who> = cores::CONTENDERS.into_iter().filter(is_there).collect();
    let mut html = legend(&present, &[]);
    html.push_str("<div class='charts'>\n");
    for pattern in cores::PATTERNS {
        let cases: Vec<(usize, u16)> = found
            .cases
            .iter()
            .enumerate()
            .filter(|(_, case)| case.case.load.pattern == pattern)
            .map(|(index, case)| (index, case.cores))
            .collect();
        let line = |who: &Who| Series {
            name: who.name().to_owned(),
            colour: colour_of(*who),
            points: cases
                .iter()
                .map(|(index, _)| {
                    let found = speeds(&found.results, *index, *who)?;
                    Some((found.mb_per_second, found.mb_per_second_sd))
                })
                .collect(),
            is_joined: true,
        };
        let title = format!("{}, 4 KiB: throughput (MB/s)", paper_name(pattern));
        let chart = LineChart {
            title,
            x_title: "cores (64 in flight on each)".to_owned(),
            positions: cases.iter().map(|(_, cores)| cores.to_string()).collect(),
            series: present.iter().map(line).collect(),
        };
        html.push_str(&chart.svg());
    }
    html.push_str("</div>\n");
    for pattern in cores::PATTERNS {
        if let Some(number) = paper.best_of_cores(pattern) {
            let (name, printed) = (paper_name(pattern), escape(&number.printed));
            let place = escape(&number.place);
            html.push_str(&format!("<p>The paper's best for {name}: {printed} ({place})</p>\n"));
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::super::case::Mode;
    use super::super::figure::{ALL, of_name};
    use super::super::text::tests::found;
    use super::*;

    fn paper() -> Paper {
        Paper::read().expect("the file is good")
    }

    #[test]
    fn the_page_is_well_formed_and_complete_in_itself() {
        let page = page(&of_name(ALL), &found(true), &paper(), &["made by: <x>".to_owned()]);
        let body = &page[page.find("<body>").expect("a body")..];
        let body = body.trim_start_matches("<body>").trim_end().trim_end_matches("</body></html>");
        assert!(chart::is_well_formed(body), "{body}");
        // Grids: fig. 4 has 3 quantities, 5, 11 and 12 have 2 in one mode; tables 1, 3, 4 and 5
        // have 1 and fig. 13 has 2 in two modes; all have 4 patterns. Stages: 4 and the mean.
        // Cores: 2.
        let charts = 4 * (3 + 2 + 2 + 2 + 2 * (1 + 1 + 1 + 1 + 2)) + 5 + 2;
        assert_eq!(page.matches("role='img'").count(), charts);
        for part in ["made by: &lt;x&gt;", "&lt;nothing&gt;", "paper: DeLiBA-2 (hardware)"] {
            assert!(page.contains(part), "{part}");
        }
        for outside in ["<script", "<link", "src=", "@import", "href="] {
            assert!(!page.contains(outside), "{outside} needs something else");
        }
    }

    #[test]
    fn the_papers_points_are_dots_without_a_line() {
        let found = found(false);
        let figure = of_name("deliba2-table1")[0];
        let Content::Grid(grid) = figure.content else { panic!("a grid") };
        let part = found.part(Mode::Ec).expect("measured");
        let what = (Quantity::Throughput, Pattern::SequentialRead);
        let of = |sets: &[Of]| {
            let chart = grid_chart(&grid, part, what, &[Who::OwnNbd], sets, &paper());
            (chart.svg(), chart.series.len())
        };
        let (svg, series) = of(&[Of::Software]);
        assert_eq!((svg.matches("<circle").count(), series), (3 + 3, 2));
        assert_eq!(svg.matches("stroke-width='1.8'").count(), 1, "one line is drawn: {svg}");
        let (svg, _) = of(&[]);
        assert_eq!(svg.matches("<circle").count(), 3);
    }

    #[test]
    fn nothing_measured_is_still_a_page() {
        let page = page(&of_name(ALL), &Found::default(), &paper(), &[]);
        assert_eq!(page.matches("role='img'").count(), 0);
        assert!(page.contains("<h2>Fig. 13</h2>"));
    }
}
