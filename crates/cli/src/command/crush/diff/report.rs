//! The result as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fieldstone_bench::table::{Table, number};
use fieldstone_crush::OsdId;
use fieldstone_crush::diff::{Movement, PoolDiff};
use fieldstone_crush::osdmap::PoolId;
use serde_json::{Value, json};

use fieldstone_units::size;

/// The number of OSDs that are listed without `--osds`.
const BUSIEST: usize = 20;

/// One pool.
pub struct PoolDiffReport {
    pub id: PoolId,
    pub name: String,
    pub diff: PoolDiff,
    pub bytes_per_shard: Option<f64>,
}

/// All pools.
#[derive(Default)]
pub struct Report {
    pub pools: Vec<PoolDiffReport>,
    /// Lines on pools that only one map has.
    pub notes: Vec<String>,
}

/// One OSD: sums over all pools.
#[derive(Clone, Copy, Default)]
struct OsdReport {
    movement: Movement,
    received_bytes: f64,
    sent_bytes: f64,
}

/// Sums over pools. The sum of bytes is known only if the bytes of every pool are. The same holds
/// for the minimum of moved shards.
#[derive(Clone, Copy, Default)]
struct Total {
    pgs: u64,
    pgs_changed: u64,
    shards: u64,
    moved: u64,
    holes: u64,
    min_moved: Option<f64>,
    moved_bytes: Option<f64>,
}

impl PoolDiffReport {
    fn total(&self) -> Total {
        let PoolDiff { pgs, pgs_changed, shards, moved, holes, min_moved, .. } = self.diff;
        let moved_bytes = self.bytes_per_shard.map(|bytes| bytes * moved as f64);
        Total { pgs, pgs_changed, shards, moved, holes, min_moved, moved_bytes }
    }
}

impl Total {
    fn add(self, other: Self) -> Self {
        Self {
            pgs: self.pgs + other.pgs,
            pgs_changed: self.pgs_changed + other.pgs_changed,
            shards: self.shards + other.shards,
            moved: self.moved + other.moved,
            holes: self.holes + other.holes,
            min_moved: self.min_moved.zip(other.min_moved).map(|(a, b)| a + b),
            moved_bytes: self.moved_bytes.zip(other.moved_bytes).map(|(a, b)| a + b),
        }
    }

    fn cells(&self, name: &str) -> Vec<String> {
        let share = 100.0 * self.moved as f64 / (self.shards as f64).max(1.0);
        let mut cells = vec![
            name.to_owned(),
            self.pgs.to_string(),
            self.pgs_changed.to_string(),
            self.shards.to_string(),
            self.moved.to_string(),
            format!("{share:.2} %"),
            number(self.min_moved),
            self.holes.to_string(),
        ];
        cells.extend(self.moved_bytes.map(|bytes| size(bytes as u64)));
        cells
    }
}

impl Report {
    fn total(&self) -> Total {
        let totals = self.pools.iter().map(PoolDiffReport::total);
        totals.reduce(Total::add).unwrap_or_default()
    }

    fn has_bytes(&self) -> bool {
        self.pools.iter().any(|pool| pool.bytes_per_shard.is_some())
    }

    fn osds(&self) -> BTreeMap<OsdId, OsdReport> {
        let mut osds: BTreeMap<OsdId, OsdReport> = BTreeMap::new();
        for pool in &self.pools {
            let bytes = pool.bytes_per_shard.unwrap_or(0.0);
            for (&osd, movement) in &pool.diff.osds {
                let all = osds.entry(osd).or_default();
                all.movement.before += movement.before;
                all.movement.after += movement.after;
                all.movement.received += movement.received;
                all.movement.sent += movement.sent;
                all.received_bytes += bytes * movement.received as f64;
                all.sent_bytes += bytes * movement.sent as f64;
            }
        }
        osds
    }

    /// The result as two tables: pools and OSDs.
    pub fn text(&self, all_osds: bool) -> String {
        let heading =
            ["pool", "pgs", "changed", "shards", "moved", "share", "least", "holes", "bytes"];
        let columns = heading.len() - usize::from(!self.has_bytes());
        let mut table = Table::new(&heading[..columns]);
        for pool in &self.pools {
            table.row(pool.total().cells(&pool.name));
        }
        if self.pools.len() > 1 {
            table.row(self.total().cells("all"));
        }
        let mut text = table.text();
        for note in &self.notes {
            let _ = writeln!(text, "  {note}");
        }
        text.push('\n');
        text.push_str(&self.osd_text(all_osds));
        text
    }

    fn osd_text(&self, all: bool) -> String {
        let mut osds: Vec<(OsdId, OsdReport)> = self.osds().into_iter().collect();
        let traffic = |osd: &OsdReport| osd.movement.received + osd.movement.sent;
        let busy = osds.iter().filter(|(_, osd)| traffic(osd) > 0).count();
        if !all {
            osds.sort_by_key(|(id, osd)| (std::cmp::Reverse(traffic(osd)), *id));
            osds.truncate(busy.min(BUSIEST));
        }
        let heading = ["osd", "before", "after", "in", "out", "bytes in", "bytes out"];
        let columns = heading.len() - if self.has_bytes() { 0 } else { 2 };
        let mut table = Table::new(&heading[..columns]);
        for (id, osd) in &osds {
            let OsdReport { movement, received_bytes, sent_bytes } = osd;
            let mut cells = vec![
                format!("osd.{}", id.0),
                movement.before.to_string(),
                movement.after.to_string(),
                movement.received.to_string(),
                movement.sent.to_string(),
            ];
            if self.has_bytes() {
                cells.extend([received_bytes, sent_bytes].map(|&bytes| size(bytes as u64)));
            }
            table.row(cells);
        }
        let mut text = if osds.is_empty() { String::new() } else { table.text() };
        if !all && busy > osds.len() {
            let _ = writeln!(text, "  and {} more; --osds shows all", busy - osds.len());
        }
        text
    }

    /// The result as one object.
    pub fn json(&self) -> Value {
        let sums = |total: &Total| {
            json!({
                "pgs": total.pgs,
                "pgs_changed": total.pgs_changed,
                "shards": total.shards,
                "moved": total.moved,
                "holes": total.holes,
                "least": total.min_moved,
                "moved_bytes": total.moved_bytes,
            })
        };
        let pools = self.pools.iter().map(|pool| {
            let mut value = sums(&pool.total());
            value["pool"] = json!(pool.id.0);
            value["name"] = json!(pool.name);
            value["bytes_per_shard"] = json!(pool.bytes_per_shard);
            value
        });
        let has_bytes = self.has_bytes();
        let osds = self.osds().into_iter().map(|(id, osd)| {
            json!({
                "osd": id.0,
                "before": osd.movement.before,
                "after": osd.movement.after,
                "received": osd.movement.received,
                "sent": osd.movement.sent,
                "received_bytes": has_bytes.then_some(osd.received_bytes),
                "sent_bytes": has_bytes.then_some(osd.sent_bytes),
            })
        });
        json!({
            "pools": pools.collect::<Vec<_>>(),
            "osds": osds.collect::<Vec<_>>(),
            "total": sums(&self.total()),
            "notes": self.notes,
        })
    }
}
