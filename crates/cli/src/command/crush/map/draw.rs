//! The distribution as an HTML page: the stored objects of devices and buckets next to their share
//! by weight. The page loads nothing and has no script. It follows the reader's colour scheme.

use std::fmt::Write as _;
use std::path::Path;

use fieldstone_bench::chart::{self, Bar, escape};
use fieldstone_crush::tester::utilization::{ItemUsage, Utilization};
use fieldstone_crush::{ItemId, Map, TypeId};

use super::tiles;

/// Most bars of a chart. With more items, the chart shows the fullest and the emptiest.
const MOST_BARS: usize = 40;

/// The results of one rule and width.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The rule's number.
    pub rule: u32,
    /// Its name.
    pub name: String,
    /// Positions of a mapping.
    pub width: usize,
    /// The first and last x.
    pub xs: (i32, i32),
    /// The number of mappings.
    pub mappings: u64,
    /// The number of mappings that are short or have an empty position.
    pub bad: u64,
    /// The stored objects of devices and buckets.
    pub utilization: Utilization,
}

/// The page.
pub fn page(map: &Map, input: &Path, pictures: &[Picture]) -> String {
    let mut body = format!("<style>\n{}</style>\n", tiles::STYLE);
    if pictures.is_empty() {
        body.push_str("<p>Nothing was mapped.</p>\n");
    }
    for picture in pictures {
        let names = Names { map };
        let _ = writeln!(
            body,
            "<h2>Rule {} ({}), {} positions</h2>\n{}",
            picture.rule,
            escape(&picture.name),
            picture.width,
            numbers(names, picture)
        );
        body.push_str(&tiles::tiles(names, &picture.utilization));
        body.push_str("<div class='charts'>\n");
        body.push_str(&level_charts(names, &picture.utilization));
        body.push_str("</div>\n");
    }
    chart::page(&format!("Distribution of {}", input.display()), &body)
}

/// Looks up names in the map.
#[derive(Clone, Copy)]
pub struct Names<'m> {
    /// The map.
    pub map: &'m Map,
}

impl Names<'_> {
    /// The name of a device or bucket, or its number.
    pub fn item(self, item: ItemId) -> String {
        self.map.names().items.get(&item).cloned().unwrap_or_else(|| item.to_string())
    }

    fn kind(self, kind: TypeId) -> String {
        let known = self.map.names().types.get(&kind).cloned();
        known.unwrap_or_else(|| format!("type {}", kind.0))
    }
}

/// A paragraph with the sums.
fn numbers(names: Names<'_>, picture: &Picture) -> String {
    let utilization = &picture.utilization;
    let stored: f64 = utilization.devices.iter().map(|usage| usage.stored).sum();
    let mut text = format!(
        "<p>x = {} to {}: {} mappings, {} of them bad; {} positions on {} devices. \
         Typical distance from the share by weight: {:.1} %.",
        picture.xs.0,
        picture.xs.1,
        picture.mappings,
        picture.bad,
        stored.round(),
        utilization.devices.len(),
        100.0 * utilization.deviation()
    );
    let ordered = by_fullness(&utilization.devices);
    if let (Some(fullest), Some(emptiest)) = (ordered.first(), ordered.last()) {
        for (word, usage) in [("Fullest", fullest), ("Emptiest", emptiest)] {
            let name = escape(&names.item(usage.item));
            let _ = write!(text, " {word}: {name} with {}.", describe(usage));
        }
    }
    text.push_str("</p>");
    text
}

/// One chart for the buckets of each type, then one for the devices.
fn level_charts(names: Names<'_>, utilization: &Utilization) -> String {
    let mut charts = String::new();
    let levels = utilization.buckets.chunk_by(|a, b| a.kind == b.kind);
    for level in levels.chain([utilization.devices.as_slice()]) {
        let Some(kind) = level.first().map(|usage| names.kind(usage.kind)) else { continue };
        let (shown, title) = if level.len() <= MOST_BARS {
            (level.to_vec(), format!("Stored by {kind}; the line is the share by weight"))
        } else {
            let ordered = by_fullness(level);
            let half = MOST_BARS / 2;
            let ends = ordered[..half].iter().chain(&ordered[ordered.len() - half..]);
            let ends = ends.copied().collect();
            (ends, format!("The {half} fullest and {half} emptiest of {} ({kind})", level.len()))
        };
        let bars: Vec<Bar> = shown.iter().map(|usage| bar(names, usage)).collect();
        charts.push_str(&chart::bars(&title, &bars));
    }
    charts
}

fn bar(names: Names<'_>, usage: &ItemUsage) -> Bar {
    Bar {
        name: names.item(usage.item),
        colour: chart::colour(0),
        value: usage.stored,
        range: None,
        mark: Some(usage.expected),
        text: Some(describe(usage)),
    }
}

/// The items with a share in order, the fullest first.
fn by_fullness(usages: &[ItemUsage]) -> Vec<ItemUsage> {
    let mut ordered: Vec<ItemUsage> =
        usages.iter().filter(|usage| usage.expected > 0.0).copied().collect();
    let ratio = |usage: &ItemUsage| usage.ratio().unwrap_or(0.0);
    ordered.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)).then(b.item.cmp(&a.item)));
    ordered
}

/// The stored objects, with the difference from the share: `1234 (+5.6 %)`.
pub fn describe(usage: &ItemUsage) -> String {
    match usage.ratio() {
        Some(ratio) => format!("{:.0} ({:+.1} %)", usage.stored, 100.0 * (ratio - 1.0)),
        None => format!("{:.0} (no share)", usage.stored),
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_crush::tester::{Tally, default_weights};
    use fieldstone_crush::{MapBuilder, RuleId, RuleStep};

    use super::*;
    use fieldstone_bench::chart::is_well_formed;

    fn picture(hosts: usize, osds: usize) -> (Map, Picture) {
        let host = vec![0x10000; osds];
        let hosts = vec![host.as_slice(); hosts];
        let mut builder = MapBuilder::new();
        builder.host_tree(TypeId(2), TypeId(1), &hosts);
        let kind = TypeId(0);
        builder.rule(
            RuleId(0),
            [RuleStep::Take(ItemId(-1)), RuleStep::ChooseFirstn { count: 0, kind }, RuleStep::Emit],
        );
        let map = builder.build().expect("a valid map");
        let stored = (0..map.max_devices()).map(|osd| 50 + u64::from(osd % 7)).collect();
        let tally = Tally { stored, mappings: 9, ..Tally::default() };
        let rule = map.rules().next().expect("the rule").1.clone();
        let utilization = Utilization::new(&map, &rule, &tally, &default_weights(&map));
        let name = "a<b".to_owned();
        let picture =
            Picture { rule: 0, name, width: 3, xs: (0, 8), mappings: 9, bad: 1, utilization };
        (map, picture)
    }

    #[test]
    fn pages_are_complete_and_self_contained() {
        for (hosts, osds) in [(3, 4), (60, 8), (1, 1)] {
            let (map, picture) = picture(hosts, osds);
            let page = page(&map, Path::new("some.map"), &[picture]);
            let svgs = page.split("<svg").skip(1).filter_map(|rest| rest.split_once("</svg>"));
            for (svg, _) in svgs {
                assert!(is_well_formed(&format!("<svg{svg}</svg>")), "{svg}");
            }
            assert_eq!(page.matches("class='t").count(), hosts * osds);
            assert!(page.contains("a&lt;b") && page.contains("9 mappings, 1 of them bad"));
            assert!(!page.contains("<script") && !page.contains("url(") && !page.contains("href"));
        }
    }

    #[test]
    fn fullness_is_told_in_percent() {
        let usage = |stored, expected| ItemUsage {
            item: ItemId(0),
            kind: TypeId::DEVICE,
            stored,
            expected,
        };
        assert_eq!(describe(&usage(110.0, 100.0)), "110 (+10.0 %)");
        assert_eq!(describe(&usage(3.0, 0.0)), "3 (no share)");
        let ordered = by_fullness(&[usage(1.0, 2.0), usage(5.0, 0.0), usage(3.0, 2.0)]);
        assert_eq!(ordered.iter().map(|usage| usage.stored).collect::<Vec<_>>(), [3.0, 1.0]);
    }
}
