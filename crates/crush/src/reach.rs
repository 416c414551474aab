//! The devices that a rule can reach, and which of them can replace each other.
//!
//! A rule is a sequence of blocks: *take* a bucket, *choose* below it level by level, *emit*. Two
//! devices can replace each other in a placement group under two conditions. The same block reaches
//! both. On every level but the innermost, they lie below the same bucket. Such devices form a
//! *cell*. (A rule that chooses two racks and two hosts in each must still find two racks
//! afterwards.) On the innermost level, the *failure domain*, members of a group must lie below
//! different buckets.

use std::collections::BTreeMap;

use crate::rule::RuleStep;
use crate::{BucketId, ItemId, Map, OsdId, Rule, TypeId};

/// The role of one device in a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reached {
    /// Devices of one cell can replace each other.
    pub(crate) cell: u32,
    /// Devices of one block share, by weight, the shards that the block maps.
    pub(crate) block: u32,
    /// The bucket (or, without one, the device) below which no other member may lie.
    pub(crate) domain: ItemId,
    /// The sum of its 16.16 weights in the buckets that the rule draws from.
    pub(crate) weight: u64,
}

/// All devices that a rule reaches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    pub(crate) devices: BTreeMap<OsdId, Reached>,
    pub(crate) cells: u32,
    pub(crate) blocks: u32,
}

/// Most items that a walk visits. A map whose buckets share children can have far more paths than
/// buckets.
const MAX_VISITS: u32 = 1 << 22;

/// One block of a rule: its first bucket, and the type of each level.
type BlockShape = (ItemId, Vec<TypeId>);

impl Reach {
    /// Analyses a rule. The error says why its devices cannot replace each other.
    pub(crate) fn new(map: &Map, rule: &Rule) -> Result<Self, String> {
        let mut blocks = blocks(rule);
        // Two equal blocks map from the same devices twice.
        blocks.sort();
        blocks.dedup();
        let mut reach = Self::default();
        for (block, (root, kinds)) in blocks.iter().enumerate() {
            let mut walk = Walk {
                map,
                reach: &mut reach,
                kinds,
                block: block as u32,
                cells: BTreeMap::new(),
                path: Vec::new(),
                visits: 0,
            };
            walk.item(*root, 0)?;
            reach.blocks += 1;
        }
        Ok(reach)
    }
}

/// Shares of all devices, by number. The shards of each block (the sum of `shards` over its
/// devices) are divided by the devices' weight and reweight.
pub(crate) fn targets(reach: &Reach, reweights: &[u32], shards: &[u32]) -> Vec<f64> {
    let mut targets = vec![0.0; reweights.len()];
    let (mut weights, mut held) =
        (vec![0.0; reach.blocks as usize], vec![0; reach.blocks as usize]);
    let known = reach.devices.iter().filter_map(|(osd, reached)| {
        let osd = osd.0 as usize;
        let weight = reached.weight as f64 * f64::from(*reweights.get(osd)?);
        Some((osd, reached.block as usize, weight))
    });
    for (osd, block, weight) in known.clone() {
        weights[block] += weight;
        held[block] += u64::from(shards[osd]);
    }
    for (osd, block, weight) in known.filter(|&(_, _, weight)| weight > 0.0) {
        targets[osd] = held[block] as f64 * weight / weights[block];
    }
    targets
}

fn blocks(rule: &Rule) -> Vec<BlockShape> {
    let mut blocks = Vec::new();
    let mut taken: Option<BlockShape> = None;
    for step in &rule.steps {
        match (*step, &mut taken) {
            (RuleStep::Take(item), _) => taken = Some((item, Vec::new())),
            (
                RuleStep::ChooseFirstn { count, kind }
                | RuleStep::ChooseIndep { count, kind }
                | RuleStep::ChooseleafFirstn { count, kind }
                | RuleStep::ChooseleafIndep { count, kind }
                | RuleStep::ChooseMsr { count, kind },
                Some((_, kinds)),
            ) => {
                // A step for one device in each bucket of the level above adds no level: that level
                // is the innermost.
                let single = count == 1 && kind == TypeId::DEVICE && !kinds.is_empty();
                kinds.extend((!single).then_some(kind));
            }
            (RuleStep::Emit, _) => blocks.extend(taken.take()),
            _ => {}
        }
    }
    blocks
}

/// A walk through all items below the root of a block.
struct Walk<'a> {
    map: &'a Map,
    reach: &'a mut Reach,
    kinds: &'a [TypeId],
    block: u32,
    /// Numbers of cells, by the buckets of all levels but the innermost.
    cells: BTreeMap<Vec<ItemId>, u32>,
    /// The buckets of all levels so far.
    path: Vec<ItemId>,
    visits: u32,
}

impl Walk<'_> {
    /// Walks an item with this weight in its bucket. The depth of maps bounds the recursion.
    fn item(&mut self, item: ItemId, weight: u32) -> Result<(), String> {
        self.visits += 1;
        if self.visits > MAX_VISITS {
            return Err("its buckets share too many children".to_owned());
        }
        let kind = match item.bucket() {
            Some(id) => self.map.bucket(id).map(|bucket| bucket.kind),
            None => Some(TypeId::DEVICE),
        };
        let wanted = self.kinds.get(self.path.len()).copied();
        let on_level = kind.is_some() && kind == wanted;
        if on_level {
            self.path.push(item);
        }
        let walked = match (item.bucket(), item.osd()) {
            (Some(id), _) => self.bucket(id),
            (None, Some(osd)) => self.device(osd, weight),
            (None, None) => Ok(()),
        };
        if on_level {
            self.path.pop();
        }
        walked
    }

    fn bucket(&mut self, id: BucketId) -> Result<(), String> {
        let Some(bucket) = self.map.bucket(id) else { return Ok(()) };
        for (index, &item) in bucket.items.iter().enumerate() {
            self.item(item, bucket.item_weight(index))?;
        }
        Ok(())
    }

    fn device(&mut self, osd: OsdId, weight: u32) -> Result<(), String> {
        // A device above a level, or a device that a rule takes directly.
        if self.path.len() < self.kinds.len() || self.path.is_empty() {
            return Ok(());
        }
        let (&domain, outer) = self.path.split_last().unwrap_or((&ItemId::NONE, &[]));
        let next = self.reach.cells;
        let cell = *self.cells.entry(outer.to_vec()).or_insert(next);
        self.reach.cells = self.reach.cells.max(cell + 1);
        let reached = Reached { cell, block: self.block, domain, weight: weight.into() };
        match self.reach.devices.get_mut(&osd) {
            None => drop(self.reach.devices.insert(osd, reached)),
            Some(known) if (known.cell, known.domain) == (cell, domain) => {
                known.weight += reached.weight;
            }
            Some(_) => {
                return Err(format!("it reaches osd.{} in more than one way", osd.0));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlgorithmKind, Bucket, Parts, RuleId, RuleKind};

    const HOST: TypeId = TypeId(1);
    const RACK: TypeId = TypeId(2);
    const ROOT: TypeId = TypeId(3);

    fn bucket(id: i32, kind: TypeId, items: &[i32]) -> Bucket {
        let items = items.iter().map(|&item| (ItemId(item), 0x1_0000));
        Bucket::new(BucketId(id), kind, AlgorithmKind::Straw2, 1, items)
    }

    /// Root -1 of racks -2 and -3 of two hosts each of two devices each.
    fn map(steps: &[RuleStep]) -> Map {
        let mut buckets = vec![bucket(-1, ROOT, &[-2, -3])];
        for rack in 0..2 {
            let hosts = [-4 - 2 * rack, -5 - 2 * rack];
            buckets.push(bucket(-2 - rack, RACK, &hosts));
            for (index, &host) in hosts.iter().enumerate() {
                let first = 4 * rack + 2 * index as i32;
                buckets.push(bucket(host, HOST, &[first, first + 1]));
            }
        }
        let rule = Rule {
            kind: RuleKind::Replicated,
            ruleset: 0,
            min_size: 1,
            max_size: 10,
            steps: steps.to_vec(),
        };
        let rules = BTreeMap::from([(RuleId(0), rule)]);
        Map::new(Parts { buckets, rules, ..Parts::default() }).unwrap()
    }

    fn reach(steps: &[RuleStep]) -> Result<Reach, String> {
        let map = map(steps);
        let (_, rule) = map.rules().next().unwrap();
        Reach::new(&map, rule)
    }

    #[test]
    fn one_level_makes_one_cell() {
        let take = RuleStep::Take(ItemId(-1));
        let leaf = RuleStep::ChooseleafFirstn { count: 0, kind: HOST };
        let reach = reach(&[take, leaf, RuleStep::Emit]).unwrap();
        assert_eq!((reach.cells, reach.blocks, reach.devices.len()), (1, 1, 8));
        let domains: Vec<i32> = reach.devices.values().map(|device| device.domain.0).collect();
        assert_eq!(domains, [-4, -4, -5, -5, -6, -6, -7, -7]);
        assert!(reach.devices.values().all(|device| device.weight == 0x1_0000));
    }

    #[test]
    fn outer_levels_make_cells() {
        let steps = [
            RuleStep::Take(ItemId(-1)),
            RuleStep::ChooseIndep { count: 2, kind: RACK },
            RuleStep::ChooseIndep { count: 2, kind: TypeId::DEVICE },
            RuleStep::Emit,
        ];
        let reach = reach(&steps).unwrap();
        let cells: Vec<u32> = reach.devices.values().map(|device| device.cell).collect();
        assert_eq!(cells, [0, 0, 0, 0, 1, 1, 1, 1]);
        assert!(reach.devices.iter().all(|(&osd, device)| device.domain == osd.into()));
    }

    #[test]
    fn blocks_do_not_mix() {
        let leaf = RuleStep::ChooseleafFirstn { count: 1, kind: HOST };
        let [first, second] = [-2, -3].map(|rack| RuleStep::Take(ItemId(rack)));
        let emit = RuleStep::Emit;
        let apart = reach(&[first, leaf, emit, second, leaf, emit, first, leaf, emit]).unwrap();
        assert_eq!((apart.cells, apart.blocks), (2, 2));
        let whole = RuleStep::Take(ItemId(-1));
        let error = reach(&[first, leaf, emit, whole, leaf, emit]).unwrap_err();
        assert!(error.contains("osd.0"), "{error}");
    }
}
