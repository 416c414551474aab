//! The summary of one rule and width, as a JSON object.
//!
//! The fields are `rule`, `name`, `num_rep`, `min_x`, `max_x`, `mappings`, `bad_mappings`; `sizes`:
//! the number of mappings for each number of positions; `deviation`: the typical distance of a
//! device from its share by weight (0.05 is 5 %). With `--show-utilization` or
//! `--show-utilization-all`, there are also `devices`, each with `osd`, `name`, its reweight
//! `weight`, the objects `stored`, the objects that crushtool would have `expected`, and its
//! `share` by weight.

use fieldstone_crush::tester::expect::Expected;
use fieldstone_crush::tester::utilization::Utilization;
use fieldstone_crush::tester::{Tally, text};
use fieldstone_crush::{ItemId, Map, WEIGHT_ONE};
use serde::Serialize;
use std::collections::BTreeMap;

use super::options::TestParams;

/// The contents of a summary.
pub struct Summary<'a> {
    /// The map.
    pub map: &'a Map,
    /// The parameters.
    pub params: &'a TestParams,
    /// The rule.
    pub label: text::RuleLabel<'a>,
    /// Positions of a mapping.
    pub width: usize,
    /// The counts.
    pub tally: &'a Tally,
    /// The objects that crushtool expects.
    pub expected: &'a Expected,
}

/// The object.
#[derive(Debug, Serialize)]
pub struct Object<'a> {
    rule: u32,
    name: &'a str,
    num_rep: usize,
    min_x: i32,
    max_x: i32,
    mappings: u64,
    bad_mappings: u64,
    sizes: &'a BTreeMap<usize, u64>,
    deviation: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<Vec<DeviceSummary<'a>>>,
}

#[derive(Debug, Serialize)]
struct DeviceSummary<'a> {
    osd: usize,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    weight: f64,
    stored: u64,
    expected: f32,
    share: f64,
}

impl<'a> Summary<'a> {
    /// The object, with or without devices.
    pub fn json(&self, utilization: &Utilization, devices: bool) -> Object<'a> {
        Object {
            rule: self.label.rule,
            name: self.label.name,
            num_rep: self.width,
            min_x: self.params.xs.0,
            max_x: self.params.xs.1,
            mappings: self.tally.mappings,
            bad_mappings: self.tally.bad,
            sizes: &self.tally.sizes,
            deviation: utilization.deviation(),
            devices: devices.then(|| self.devices(utilization)),
        }
    }

    fn devices(&self, utilization: &Utilization) -> Vec<DeviceSummary<'a>> {
        let share: BTreeMap<ItemId, f64> =
            utilization.devices.iter().map(|usage| (usage.item, usage.expected)).collect();
        let expected = self.expected.objects(self.tally.mappings);
        let stored = self.tally.stored.iter().zip(&expected).zip(&self.params.weights).enumerate();
        stored
            .map(|(osd, ((&stored, &expected), &weight))| {
                // Device numbers are below 2^20.
                let item = ItemId(osd as i32);
                DeviceSummary {
                    osd,
                    name: self.map.names().items.get(&item).map_or("", String::as_str),
                    weight: f64::from(weight) / f64::from(WEIGHT_ONE),
                    stored,
                    expected,
                    share: share.get(&item).copied().unwrap_or(0.0),
                }
            })
            .collect()
    }
}
