//! The number of objects that crushtool expects on a device.
//!
//! crushtool shares the positions by reweight alone: a device of twice the weight in its bucket is
//! not expected to hold more. ([`utilization`](super::utilization) has the share by weight.) The
//! number of buckets bounds the number of positions: a rule that chooses among four racks is
//! expected to fill at most four positions, or the count of its last step for racks if that is
//! less. All numbers have single precision, because they are printed and compared.

use std::collections::BTreeMap;

use crate::{Map, Rule, RuleStep, TypeId};

/// The expected result of a trial, as crushtool computes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Share of each device in all reweights.
    pub shares: Vec<f32>,
    /// Positions that one mapping should fill.
    positions: i64,
}

impl Expected {
    /// For mappings of the width `width`. `None` if all devices are out: then there is no share,
    /// and crushtool does nothing.
    #[must_use]
    pub fn new(map: &Map, rule: &Rule, width: usize, weights: &[u32]) -> Option<Self> {
        let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        if total == 0 {
            return None;
        }
        let shares = weights.iter().map(|&weight| weight as f32 / total as f32).collect();
        Some(Self { shares, positions: (width as i64).min(positions_of(map, rule)) })
    }

    /// Objects expected on each device after `mappings` mappings.
    #[must_use]
    pub fn objects(&self, mappings: u64) -> Vec<f32> {
        let all = (self.positions * mappings as i64) as f32;
        self.shares.iter().map(|share| share * all).collect()
    }
}

/// Most positions that the rule can fill. The bounds are the number of named buckets of each type
/// (with shadows, and once for every step that chooses the type), and the count of the last step
/// that chooses that type.
fn positions_of(map: &Map, rule: &Rule) -> i64 {
    let mut asked: BTreeMap<TypeId, (i64, i32)> = BTreeMap::new();
    for &step in &rule.steps {
        if let RuleStep::ChooseFirstn { count, kind }
        | RuleStep::ChooseIndep { count, kind }
        | RuleStep::ChooseleafFirstn { count, kind }
        | RuleStep::ChooseleafIndep { count, kind }
        | RuleStep::ChooseMsr { count, kind } = step
        {
            let (steps, last_count) = asked.entry(kind).or_default();
            *steps += 1;
            *last_count = count;
        }
    }
    let named = map.names().items.keys().filter_map(|item| map.bucket(item.bucket()?));
    let mut buckets: BTreeMap<TypeId, i64> = BTreeMap::new();
    for bucket in named {
        *buckets.entry(bucket.kind).or_default() += 1;
    }
    let most = (map.max_devices() as usize).max(slots_allocated(map)) as i64;
    let bounds = asked.iter().filter_map(|(kind, &(steps, count))| {
        let there = *buckets.get(kind)? * steps;
        Some(if count > 0 { there.min(count.into()) } else { there })
    });
    bounds.fold(most, i64::min)
}

/// Bucket slots that Ceph has allocated: it starts with 8 and doubles.
fn slots_allocated(map: &Map) -> usize {
    match map.bucket_slots() {
        0 => 0,
        slots => slots.next_power_of_two().max(8),
    }
}
