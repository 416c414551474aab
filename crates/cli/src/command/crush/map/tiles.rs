//! Draws every device as a tile. The colour shows how full the device is, and each bucket has its
//! row of devices. So one picture shows thousands of devices.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fieldstone_bench::chart::escape;
use fieldstone_crush::ItemId;
use fieldstone_crush::tester::utilization::{ItemUsage, Utilization};

use super::draw::{Names, describe};

/// The width of a tile and of the gap after it, in pixels.
const TILE: usize = 12;
const GAP: usize = 2;
const NAME_WIDTH: usize = 120;
/// Most tiles of a row. A bucket with more devices has several rows.
const ROW_TILES: usize = 24;
/// Most rows of a column. More rows make more columns.
const COLUMN_ROWS: usize = 64;
/// The number of colours on each side of the one for the right share.
const STEPS: i32 = 4;
/// The strongest colour stands for this distance from the share, or for a greater one if the
/// usage deviates more.
const FULL_SCALE_MIN: f64 = 0.05;

/// Colours from blue (too empty) over grey to orange (too full). Readers with colour blindness can
/// also distinguish them.
pub const STYLE: &str = "\
.t0{fill:#0b5fa5}.t1{fill:#4a90c8}.t2{fill:#86b8dc}.t3{fill:#bcd6ea}.t4{fill:#d9d9d9}\n\
.t5{fill:#f6cfa8}.t6{fill:#eda866}.t7{fill:#dd7f2c}.t8{fill:#b35806}.tx{fill:#8888}\n\
@media (prefers-color-scheme: dark) {\n\
.t0{fill:#58b0f5}.t1{fill:#3d86bd}.t2{fill:#2f658c}.t3{fill:#2a4a62}.t4{fill:#454545}\n\
.t5{fill:#5f4a33}.t6{fill:#8c6133}.t7{fill:#c17a2e}.t8{fill:#ff9a36} }\n";

/// The tiles of all devices, with a legend.
pub fn tiles(names: Names<'_>, utilization: &Utilization) -> String {
    let usages: BTreeMap<ItemId, &ItemUsage> =
        utilization.devices.iter().map(|usage| (usage.item, usage)).collect();
    let rows = rows(names, utilization, &usages);
    if rows.is_empty() {
        return String::new();
    }
    let longest = rows.iter().map(|(_, row)| row.len()).max().unwrap_or(0);
    let step = TILE + GAP;
    let column_width = NAME_WIDTH + longest * step + 2 * step;
    let columns = rows.len().div_ceil(COLUMN_ROWS);
    let height = rows.len().min(COLUMN_ROWS) * step;
    let full_scale = (2.0 * utilization.deviation()).max(FULL_SCALE_MIN);
    let mut html = legend(full_scale);
    let _ = writeln!(
        html,
        "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{height}' \
         viewBox='0 0 {0} {height}' font-size='11' font-family='system-ui, sans-serif' \
         fill='currentColor' role='img' aria-label='how full each device is'>",
        columns * column_width
    );
    for (place, (name, row)) in rows.iter().enumerate() {
        let (left, top) = (place / COLUMN_ROWS * column_width, place % COLUMN_ROWS * step);
        let _ = writeln!(
            html,
            "<text x='{}' y='{}' text-anchor='end'>{}</text>",
            left + NAME_WIDTH - 6,
            top + TILE - 2,
            escape(name)
        );
        for (column, usage) in row.iter().enumerate() {
            let _ = write!(
                html,
                "<rect class='{}' x='{}' y='{top}' width='{TILE}' height='{TILE}'>\
                 <title>{}: {}</title></rect>",
                class(usage, full_scale),
                left + NAME_WIDTH + column * step,
                escape(&names.item(usage.item)),
                escape(&describe(usage))
            );
        }
        html.push('\n');
    }
    html.push_str("</svg>\n");
    html
}

/// The rows: the devices of each bucket, each device once. Only a bucket's first row has its name.
fn rows<'s>(
    names: Names<'_>,
    utilization: &Utilization,
    usages: &BTreeMap<ItemId, &'s ItemUsage>,
) -> Vec<(String, Vec<&'s ItemUsage>)> {
    let mut left = usages.clone();
    let mut rows = Vec::new();
    for bucket in &utilization.buckets {
        let items = bucket.item.bucket().and_then(|id| names.map.bucket(id));
        let items = items.into_iter().flat_map(|bucket| &bucket.items);
        let held: Vec<&ItemUsage> = items.filter_map(|item| left.remove(item)).collect();
        for (place, row) in held.chunks(ROW_TILES).enumerate() {
            let name = if place == 0 { names.item(bucket.item) } else { String::new() };
            rows.push((name, row.to_vec()));
        }
    }
    // Devices that a rule takes directly.
    let alone: Vec<&ItemUsage> = left.into_values().collect();
    rows.extend(alone.chunks(ROW_TILES).map(|row| (String::new(), row.to_vec())));
    rows
}

/// The class that colours an item by its usage.
fn class(usage: &ItemUsage, full_scale: f64) -> String {
    match usage.ratio() {
        None => "tx".to_owned(),
        Some(ratio) => {
            let step = ((ratio - 1.0) / full_scale * f64::from(STEPS)).round();
            format!("t{}", step.clamp(f64::from(-STEPS), f64::from(STEPS)) as i32 + STEPS)
        }
    }
}

fn legend(full_scale: f64) -> String {
    let mut html = format!("<p class='legend'>{:+.0} % ", -100.0 * full_scale);
    for step in 0..=2 * STEPS {
        let _ = write!(
            html,
            "<svg width='{TILE}' height='{TILE}' aria-hidden='true'>\
             <rect class='k t{step}' width='{TILE}' height='{TILE}'/></svg> "
        );
    }
    let _ = writeln!(
        html,
        "{:+.0} % against the share by weight; point at a tile for its numbers</p>",
        100.0 * full_scale
    );
    html
}

#[cfg(test)]
mod tests {
    use fieldstone_crush::TypeId;

    use super::*;

    #[test]
    fn colours_follow_fullness() {
        for (stored, colour) in
            [(100.0, "t4"), (110.0, "t8"), (90.0, "t0"), (105.0, "t6"), (500.0, "t8"), (0.0, "t0")]
        {
            let (item, kind) = (ItemId(0), TypeId::DEVICE);
            let usage = ItemUsage { item, kind, stored, expected: 100.0 };
            assert_eq!(class(&usage, 0.1), colour, "{stored}");
            assert_eq!(class(&ItemUsage { expected: 0.0, ..usage }, 0.1), "tx");
        }
    }
}
