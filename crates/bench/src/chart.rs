//! Charts as SVG, for pages that load nothing: no script, no font, no external style sheet.
//!
//! There are two kinds: lines over named positions, with error bars and a logarithmic vertical
//! axis; and bars with the value at the end of each.

use std::fmt::Write as _;

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 44.0;
/// For bars: the room for names on the left, the room for values on the right, and the height of a
/// bar.
const NAMES: f64 = 170.0;
const VALUES: f64 = 90.0;
const BAR: f64 = 26.0;

/// Colours that readers with colour blindness can also distinguish, dark enough for lines on white.
const COLOURS: [&str; 9] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#e69f00", "#444444",
    "#7b3fb5",
];

/// The colour of series number `place`.
pub fn colour(place: usize) -> &'static str {
    COLOURS[place % COLOURS.len()]
}

/// The colour of a bar: ours have one of their own.
pub fn bar_colour(is_ours: bool) -> &'static str {
    if is_ours { colour(0) } else { "#a9a9a9" }
}

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Its colour.
    pub colour: &'static str,
    /// For every position, a value and its standard deviation, if known; `None` without a value.
    pub points: Vec<Option<(f64, Option<f64>)>>,
    /// True if a line joins the points; single dots otherwise.
    pub is_joined: bool,
}

/// Lines over positions.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// The title.
    pub title: String,
    /// The title of the horizontal axis.
    pub x_title: String,
    /// The names of the positions.
    pub positions: Vec<String>,
    /// The lines.
    pub series: Vec<Series>,
}

impl LineChart {
    /// The chart. Empty if no series has a value above 0.
    pub fn svg(&self) -> String {
        let values = self.series.iter().flat_map(|series| series.points.iter().flatten());
        let values: Vec<f64> = values.map(|(value, _)| *value).filter(|v| *v > 0.0).collect();
        let Some((low, high)) = super::stats::range(&values) else { return String::new() };
        let axis = LogAxis::around(low, high);
        let mut svg = open(WIDTH, HEIGHT, &self.title);
        for tick in axis.ticks() {
            let y = axis.y(tick);
            let _ = writeln!(
                svg,
                "<line x1='{LEFT}' x2='{:.1}' y1='{y:.1}' y2='{y:.1}' stroke='#8884'/>\
                 <text x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                short(tick)
            );
        }
        for (place, name) in self.positions.iter().enumerate() {
            let _ = writeln!(
                svg,
                "<text x='{:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
                self.x(place),
                HEIGHT - BOTTOM + 18.0,
                escape(name)
            );
        }
        let _ = writeln!(
            svg,
            "<text x='{:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0,
            escape(&self.x_title)
        );
        for series in &self.series {
            self.line(&mut svg, series, &axis);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn x(&self, place: usize) -> f64 {
        let step = (WIDTH - LEFT - RIGHT) / self.positions.len().max(1) as f64;
        LEFT + step * (place as f64 + 0.5)
    }

    fn line(&self, svg: &mut String, series: &Series, axis: &LogAxis) {
        let colour = series.colour;
        let mut path = String::new();
        for (place, point) in series.points.iter().enumerate() {
            let Some((value, deviation)) = point.filter(|(value, _)| *value > 0.0) else {
                continue;
            };
            let (x, y) = (self.x(place), axis.y(value));
            let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { "M" } else { "L" });
            let _ = writeln!(
                svg,
                "<circle cx='{x:.1}' cy='{y:.1}' r='3' fill='{colour}'>\
                 <title>{}, {}: {}</title></circle>",
                escape(&series.name),
                escape(self.positions.get(place).map_or("", String::as_str)),
                exact(value, deviation)
            );
            if let Some(deviation) = deviation {
                let (top, bottom) = (axis.y(value + deviation), axis.y(value - deviation));
                let _ = writeln!(
                    svg,
                    "<path d='M{x:.1} {top:.1}V{bottom:.1}M{:.1} {top:.1}h6M{:.1} {bottom:.1}h6' \
                     stroke='{colour}' fill='none'/>",
                    x - 3.0,
                    x - 3.0
                );
            }
        }
        if series.is_joined {
            let _ = writeln!(
                svg,
                "<path d='{path}' stroke='{colour}' stroke-width='1.8' fill='none'/>"
            );
        }
    }
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// Its colour.
    pub colour: &'static str,
    /// Its length.
    pub value: f64,
    /// The smallest and the largest value over the rounds, drawn as a line.
    pub range: Option<(f64, f64)>,
    /// A value to compare with, drawn across the bar.
    pub mark: Option<f64>,
    /// The text at the end, in place of the value.
    pub text: Option<String>,
}

/// A chart of bars from zero. Empty if no value is above 0.
pub fn bars(title: &str, bars: &[Bar]) -> String {
    let largest = bars.iter().map(|bar| {
        let high = bar.range.map_or(bar.value, |(_, high)| high.max(bar.value));
        high.max(bar.mark.unwrap_or(high))
    });
    let Some(largest) = largest.max_by(f64::total_cmp).filter(|largest| *largest > 0.0) else {
        return String::new();
    };
    let height = TOP + BAR * bars.len() as f64 + 10.0;
    let scale = (WIDTH - NAMES - VALUES) / largest;
    let mut svg = open(WIDTH, height, title);
    for (place, bar) in bars.iter().enumerate() {
        let y = TOP + BAR * place as f64;
        let middle = y + BAR / 2.0 - 2.0;
        let _ = writeln!(
            svg,
            "<text x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>\
             <rect x='{NAMES}' y='{y:.1}' width='{:.1}' height='{:.1}' fill='{}'/>",
            NAMES - 8.0,
            middle + 4.0,
            escape(&bar.name),
            bar.value * scale,
            BAR - 6.0,
            bar.colour
        );
        let mut end = bar.value;
        if let Some((low, high)) = bar.range.filter(|(low, high)| low < high) {
            end = end.max(high);
            let _ = writeln!(
                svg,
                "<path d='M{:.1} {middle:.1}H{:.1}' stroke='currentColor' stroke-width='1.2'/>",
                NAMES + low * scale,
                NAMES + high * scale
            );
        }
        if let Some(mark) = bar.mark {
            end = end.max(mark);
            let _ = writeln!(
                svg,
                "<path d='M{:.1} {:.1}v{:.1}' stroke='currentColor' stroke-width='2'/>",
                NAMES + mark * scale,
                y - 2.0,
                BAR - 2.0
            );
        }
        let _ = writeln!(
            svg,
            "<text x='{:.1}' y='{:.1}'>{}</text>",
            NAMES + end * scale + 6.0,
            middle + 4.0,
            bar.text.as_deref().map_or_else(|| super::table::number(Some(bar.value)), escape)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// The legend of several charts, as a line of names.
pub fn legend(entries: &[(String, &'static str)]) -> String {
    let mut html = String::from("<p class='legend'>");
    for (name, colour) in entries {
        let _ = write!(
            html,
            "<span><svg width='22' height='10' aria-hidden='true'><path d='M0 5H22' \
             stroke='{colour}' stroke-width='3'/></svg> {}</span> ",
            escape(name)
        );
    }
    html.push_str("</p>\n");
    html
}

/// A page with a title and a body.
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>\
         <meta name='viewport' content='width=device-width'><title>{title}</title>\n<style>\n\
         body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1300px; \
         padding: 0 1em; color: #222; background: #fff; color-scheme: light dark }}\n\
         h2 {{ margin-top: 2em }}\n\
         .charts {{ display: flex; flex-wrap: wrap; gap: 12px }}\n\
         .charts svg {{ border: 1px solid #e4e4e4; max-width: 100%; height: auto }}\n\
         .legend span {{ margin-right: 1.4em; white-space: nowrap }}\n\
         pre {{ background: #f6f6f6; padding: 1em; overflow-x: auto; font-size: 13px }}\n\
         @media (prefers-color-scheme: dark) {{\n\
         body {{ color: #ddd; background: #16181c }}\n\
         pre {{ background: #24272e }}\n\
         .charts svg {{ border-color: #3a3d44 }} }}\n\
         </style></head><body>\n<h1>{title}</h1>\n{body}</body></html>\n"
    )
}

/// Escapes text for HTML and SVG, including attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn open(width: f64, height: f64, title: &str) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' \
         viewBox='0 0 {width} {height}' font-family='system-ui, sans-serif' font-size='12' \
         fill='currentColor' role='img' aria-label='{title}'>\n\
         <text x='{:.1}' y='20' text-anchor='middle' font-size='14' \
         font-weight='600'>{title}</text>\n",
        width / 2.0
    )
}

fn exact(value: f64, deviation: Option<f64>) -> String {
    let value = super::table::number(Some(value));
    match deviation {
        Some(_) => format!("{value} (sd {})", super::table::number(deviation)),
        None => value,
    }
}

/// A logarithmic vertical axis. It begins and ends at a power of ten, or at 2 or 5 times one.
struct LogAxis {
    low: f64,
    high: f64,
}

impl LogAxis {
    fn around(low: f64, high: f64) -> Self {
        let steps = Self::steps();
        let below = steps.clone().filter(|step| *step <= low).last().unwrap_or(low);
        let above = Self::steps().find(|step| *step > high).unwrap_or(high * 2.0);
        Self { low: below, high: above.max(below * 2.0) }
    }

    /// 1, 2 and 5 times each power of ten from 10^-6 to 10^15.
    fn steps() -> impl Iterator<Item = f64> + Clone {
        (-6..16).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)))
    }

    fn ticks(&self) -> Vec<f64> {
        let within = |step: &f64| *step >= self.low * 0.999 && *step <= self.high * 1.001;
        let all: Vec<f64> = Self::steps().filter(within).collect();
        if all.len() <= 9 {
            return all;
        }
        // The powers of ten are enough.
        all.into_iter().filter(|step| (step.log10() - step.log10().round()).abs() < 1e-9).collect()
    }

    fn y(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }
}

/// The text of a tick, such as 1k, 200k or 5M.
fn short(value: f64) -> String {
    let (scaled, suffix) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    format!("{}{suffix}", (scaled * 1000.0).round() / 1000.0)
}

/// True if a drawing is well-formed: every opened tag is closed, in order. Other crates use this in
/// tests.
pub fn is_well_formed(xml: &str) -> bool {
    let mut open: Vec<&str> = Vec::new();
    for tag in xml.split('<').skip(1) {
        let Some((tag, _)) = tag.split_once('>') else { return false };
        if tag.matches('\'').count() % 2 == 1 {
            return false;
        }
        let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap_or("");
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return false;
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    open.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chart(points: Vec<Option<(f64, Option<f64>)>>) -> LineChart {
        LineChart {
            title: "a < b & 'c'".to_owned(),
            x_title: "block size".to_owned(),
            positions: (0..points.len()).map(|place| place.to_string()).collect(),
            series: vec![Series {
                name: "x".to_owned(),
                colour: colour(0),
                points,
                is_joined: true,
            }],
        }
    }

    #[test]
    fn charts_are_well_formed() {
        let svg = chart(vec![Some((100.0, Some(5.0))), None, Some((9e5, None))]).svg();
        assert!(is_well_formed(&svg), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("a &lt; b &amp; &#39;c&#39;"));
        let bar = |value, range| Bar {
            name: "n".to_owned(),
            colour: colour(1),
            value,
            range,
            mark: Some(2.0),
            text: range.map(|_| "<3".to_owned()),
        };
        let svg = bars("t", &[bar(3.0, Some((2.0, 4.0))), bar(1.0, None)]);
        assert!(is_well_formed(&svg), "{svg}");
        assert!(svg.contains("&lt;3") && svg.contains(">1.00<"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(is_well_formed(&legend(&[("x".to_owned(), colour(0))])));
    }

    #[test]
    fn nothing_to_show_is_no_chart() {
        assert_eq!(chart(vec![None, None]).svg(), "");
        assert_eq!(bars("t", &[]), "");
    }

    #[test]
    fn ticks_are_short() {
        for (value, text) in [(0.5, "0.5"), (200.0, "200"), (5e3, "5k"), (1e6, "1M"), (2e9, "2G")] {
            assert_eq!(short(value), text);
        }
    }

    proptest! {
        #[test]
        fn every_value_is_on_the_axis_in_order(
            low in 1e-3f64..1e9, factor in 1.0f64..1e4, part in 0.0f64..1.0,
        ) {
            let high = low * factor;
            let axis = LogAxis::around(low, high);
            prop_assert!(axis.low <= low && axis.high >= high);
            let ticks = axis.ticks();
            prop_assert!((2..=18).contains(&ticks.len()), "{ticks:?}");
            let middle = low + part * (high - low);
            prop_assert!(axis.y(low) >= axis.y(middle) && axis.y(middle) >= axis.y(high));
            prop_assert!(axis.y(high) >= TOP - 0.1 && axis.y(low) <= HEIGHT - BOTTOM + 0.1);
        }
    }
}
