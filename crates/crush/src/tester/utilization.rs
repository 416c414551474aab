//! How evenly a rule spreads: the stored objects of every device against its share by weight, and
//! the same summed up over hosts, racks and all other buckets.
//!
//! The share of a bucket's item is its weight divided by the weight of all items of the bucket
//! (uniform buckets share equally). So the share of a device below a taken bucket is a product
//! along the path down. Reweights scale it. The objects that the devices of one `take` stored
//! together are distributed in proportion to these shares. So several takes of one rule (a copy on
//! flash, the others on disks) are measured separately. Weight sets do not count: they only serve
//! to come near the weights.
//! Summing up follows the same paths upwards. An item in several buckets is counted in each bucket
//! by the share that came through that bucket.
//!
//! The share follows from the weights, and not from the rule's abilities: three copies over three
//! racks put one copy in each rack for any weights of the racks, and the numbers here show that.

use std::collections::{BTreeMap, BTreeSet};

use super::Tally;
use crate::{Bucket, BucketId, ItemId, Map, OsdId, Rule, RuleStep, TypeId, WEIGHT_ONE};

/// The usage of one device or bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ItemUsage {
    /// The device or bucket.
    pub item: ItemId,
    /// Its type.
    pub kind: TypeId,
    /// Positions that were mapped to the item or below it.
    pub stored: f64,
    /// The item's share of positions by weight.
    pub expected: f64,
}

impl ItemUsage {
    /// Stored divided by expected; 1.0 is exact. `None` if the item should be empty.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        (self.expected > 0.0).then(|| self.stored / self.expected)
    }
}

/// The stored objects of all items that the rule can reach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Utilization {
    /// Devices, by number.
    pub devices: Vec<ItemUsage>,
    /// Buckets, by type and number, the type with the greatest number first.
    pub buckets: Vec<ItemUsage>,
}

impl Utilization {
    /// The utilization by `rule`. `tally` has counted its mappings, with these 16.16 reweights.
    #[must_use]
    pub fn new(map: &Map, rule: &Rule, tally: &Tally, weights: &[u32]) -> Self {
        let takes: BTreeSet<ItemId> = rule
            .steps
            .iter()
            .filter_map(|step| match *step {
                RuleStep::Take(item) if map.contains(item) => Some(item),
                _ => None,
            })
            .collect();
        let by_take: Vec<ExpectedShares<'_>> =
            takes.iter().map(|&take| ExpectedShares::new(map, take)).collect();
        let mut reached_by: BTreeMap<OsdId, f64> = BTreeMap::new();
        for osd in by_take.iter().flat_map(ExpectedShares::osds) {
            *reached_by.entry(osd).or_default() += 1.0;
        }
        let mut usages: BTreeMap<ItemId, ItemUsage> = BTreeMap::new();
        for shares in &by_take {
            // If two takes reach a device, half of its objects count for each.
            let stored = |osd: OsdId| {
                tally.stored.get(osd.0 as usize).map_or(0.0, |&stored| stored as f64)
                    / reached_by.get(&osd).copied().unwrap_or(1.0)
            };
            for usage in shares.roll_up(stored, weights) {
                usages
                    .entry(usage.item)
                    .and_modify(|known| {
                        known.stored += usage.stored;
                        known.expected += usage.expected;
                    })
                    .or_insert(usage);
            }
        }
        let (mut buckets, devices): (Vec<ItemUsage>, Vec<ItemUsage>) =
            usages.into_values().partition(|usage| usage.item.bucket().is_some());
        buckets.sort_by_key(|usage| (std::cmp::Reverse(usage.kind), std::cmp::Reverse(usage.item)));
        Self { devices, buckets }
    }

    /// Standard deviation of the devices' [`ItemUsage::ratio`] from 1.0, weighted by the expected
    /// objects: 0.05 means that devices are typically 5 % off.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        let total: f64 = self.devices.iter().map(|usage| usage.expected).sum();
        let square = |usage: &ItemUsage| {
            usage.ratio().map_or(0.0, |ratio| usage.expected * (ratio - 1.0) * (ratio - 1.0))
        };
        if total > 0.0 {
            (self.devices.iter().map(square).sum::<f64>() / total).sqrt()
        } else {
            0.0
        }
    }
}

/// The expected shares of all items below a taken item, which has the share 1.0.
struct ExpectedShares<'m> {
    /// All buckets below the take; a bucket comes before its items.
    order: Vec<&'m Bucket>,
    /// The sum of the shares that arrive at an item.
    arrived: BTreeMap<ItemId, f64>,
    /// How many edges lead to an item.
    edges: BTreeMap<ItemId, f64>,
}

impl<'m> ExpectedShares<'m> {
    fn new(map: &'m Map, take: ItemId) -> Self {
        let mut order = Vec::new();
        if let Some(bucket) = take.bucket().and_then(|id| map.bucket(id)) {
            children_first(map, bucket, &mut BTreeSet::new(), &mut order);
        }
        order.reverse();
        let mut shares =
            Self { order, arrived: BTreeMap::from([(take, 1.0)]), edges: BTreeMap::new() };
        for &bucket in &shares.order {
            let here = shares.arrived.get(&bucket.id.into()).copied().unwrap_or(0.0);
            for (item, part) in parts(bucket) {
                *shares.arrived.entry(item).or_default() += here * part;
                *shares.edges.entry(item).or_default() += 1.0;
            }
        }
        shares
    }

    fn osds(&self) -> impl Iterator<Item = OsdId> {
        self.arrived.keys().filter_map(|item| item.osd())
    }

    /// The usage of all items below, from the objects that devices store.
    fn roll_up(&self, stored: impl Fn(OsdId) -> f64, weights: &[u32]) -> Vec<ItemUsage> {
        let reweight = |OsdId(osd): OsdId| {
            f64::from(weights.get(osd as usize).copied().unwrap_or(0)) / f64::from(WEIGHT_ONE)
        };
        let leaf = |item: ItemId| item.osd().map(|osd| self.arrived[&item] * reweight(osd));
        let total: f64 = self.arrived.keys().filter_map(|&item| leaf(item)).sum();
        let total_stored: f64 = self.osds().map(&stored).sum();
        let scale = if total > 0.0 { total_stored / total } else { 0.0 };
        let mut usages: BTreeMap<ItemId, ItemUsage> = BTreeMap::new();
        for osd in self.osds() {
            let item = ItemId::from(osd);
            let expected = leaf(item).unwrap_or(0.0) * scale;
            let usage = ItemUsage { item, kind: TypeId::DEVICE, stored: stored(osd), expected };
            usages.insert(item, usage);
        }
        for &bucket in self.order.iter().rev() {
            let item = ItemId::from(bucket.id);
            let mut sum = ItemUsage { item, kind: bucket.kind, stored: 0.0, expected: 0.0 };
            let here = self.arrived[&item];
            for (child, part) in parts(bucket) {
                let arrived = self.arrived[&child];
                let through =
                    if arrived > 0.0 { here * part / arrived } else { 1.0 / self.edges[&child] };
                let Some(below) = usages.get(&child) else { continue };
                sum.stored += below.stored * through;
                sum.expected += below.expected * through;
            }
            usages.insert(item, sum);
        }
        usages.into_values().collect()
    }
}

/// The items of a bucket, with their parts of 1.0.
fn parts(bucket: &Bucket) -> impl Iterator<Item = (ItemId, f64)> {
    let weight = |index| f64::from(bucket.item_weight(index));
    let total: f64 = (0..bucket.items.len()).map(weight).sum();
    let part = move |index| if total > 0.0 { weight(index) / total } else { 0.0 };
    bucket.items.iter().enumerate().map(move |(index, &item)| (item, part(index)))
}

/// Appends `bucket` and the buckets below it, children first, each once.
/// [`MAX_DEPTH`](crate::check::MAX_DEPTH) bounds the depth.
fn children_first<'m>(
    map: &'m Map,
    bucket: &'m Bucket,
    seen: &mut BTreeSet<BucketId>,
    order: &mut Vec<&'m Bucket>,
) {
    if !seen.insert(bucket.id) {
        return;
    }
    for child in bucket.items.iter().filter_map(|item| map.bucket(item.bucket()?)) {
        children_first(map, child, seen, order);
    }
    order.push(bucket);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MapBuilder, RuleId};

    const ONE: u32 = 0x10000;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    fn take_all(takes: &[i32]) -> Vec<RuleStep> {
        let block = |&take: &i32| {
            let kind = TypeId::DEVICE;
            [
                RuleStep::Take(ItemId(take)),
                RuleStep::ChooseFirstn { count: 1, kind },
                RuleStep::Emit,
            ]
        };
        takes.iter().flat_map(block).collect()
    }

    fn utilization_of(
        builder: &mut MapBuilder,
        takes: &[i32],
        stored: &[u64],
        weights: &[u32],
    ) -> Utilization {
        let map = builder.rule(RuleId(0), take_all(takes)).build().expect("a valid map");
        let rule = map.rules().next().expect("the rule").1.clone();
        let tally = Tally { stored: stored.to_vec(), ..Tally::default() };
        Utilization::new(&map, &rule, &tally, weights)
    }

    #[test]
    fn shares_follow_weights_and_reweights() {
        let mut builder = MapBuilder::new();
        builder.host_tree(TypeId(2), TypeId(1), &[&[ONE, 3 * ONE], &[2 * ONE, 2 * ONE]]);
        let utilization =
            utilization_of(&mut builder, &[-1], &[10, 30, 20, 10], &[ONE, ONE, ONE, ONE / 2]);
        let expected: Vec<f64> = utilization.devices.iter().map(|usage| usage.expected).collect();
        assert!([10.0, 30.0, 20.0, 10.0].iter().zip(&expected).all(|(a, b)| near(*a, *b)));
        assert!(near(utilization.deviation(), 0.0));
        let hosts: Vec<(ItemId, f64, f64)> = utilization
            .buckets
            .iter()
            .map(|usage| (usage.item, usage.stored, usage.expected))
            .collect();
        assert_eq!(hosts.len(), 3);
        assert_eq!(hosts[0].0, ItemId(-1));
        assert!(near(hosts[0].1, 70.0) && near(hosts[0].2, 70.0));
        assert!(near(hosts[2].1, 30.0) && near(hosts[2].2, 30.0));
    }

    #[test]
    fn takes_are_measured_apart() {
        let mut builder = MapBuilder::new();
        builder.host_tree(TypeId(2), TypeId(1), &[&[ONE], &[ONE, ONE]]);
        let utilization = utilization_of(&mut builder, &[-2, -3], &[90, 12, 8], &[ONE; 3]);
        let expected: Vec<f64> = utilization.devices.iter().map(|usage| usage.expected).collect();
        assert_eq!(expected, [90.0, 10.0, 10.0]);
        assert!(utilization.buckets.iter().all(|usage| usage.item != ItemId(-1)));
    }

    #[test]
    fn what_lies_in_two_buckets_is_counted_in_both() {
        // Both hosts hold device 0. A ladder of doubled buckets has 2^60 paths, so a walk path by
        // path would not end.
        let mut builder = MapBuilder::new();
        builder.straw2(BucketId(-1), TypeId(1), [(ItemId(0), ONE), (ItemId(1), ONE)]);
        for level in 2..=60 {
            let below = ItemId(-(level - 1));
            builder.straw2(BucketId(-level), TypeId(level as u16), [(below, ONE), (below, ONE)]);
        }
        let utilization = utilization_of(&mut builder, &[-60], &[5, 7], &[ONE, ONE]);
        assert!(
            utilization.buckets.iter().all(|usage| near(usage.stored, 12.0)),
            "{utilization:?}"
        );
        assert_eq!(utilization.devices[1].ratio(), Some(7.0 / 6.0));
    }
}
