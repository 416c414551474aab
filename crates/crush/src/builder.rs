//! Builds maps in code, for Fieldstone's pools, tests and benchmarks.

use crate::check::{BuildError, FIRST_SIGNED_WEIGHT};
use crate::choose_args::{ChooseArgs, ChooseArgsId};
use crate::map::{Map, Parts};
use crate::rule::{Rule, RuleKind, RuleStep};
use crate::{AlgorithmKind, Bucket, BucketId, ItemId, RuleId, Tunables, TypeId};

/// Largest weight of an item in a bucket that [`MapBuilder`] makes. `bucket/straw2.rs` explains how
/// Ceph reads larger weights.
pub const MAX_ITEM_WEIGHT: u32 = FIRST_SIGNED_WEIGHT - 1;

/// Collects buckets and rules, and checks them when the map is [built](MapBuilder::build).
#[derive(Clone, Debug, Default)]
pub struct MapBuilder {
    parts: Parts,
    error: Option<BuildError>,
}

impl MapBuilder {
    /// An empty map with [`Tunables::JEWEL`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the tunables.
    pub fn tunables(&mut self, tunables: Tunables) -> &mut Self {
        self.parts.tunables = tunables;
        self
    }

    /// Makes room for device numbers below `devices`, even if no bucket holds them.
    pub fn devices(&mut self, devices: u32) -> &mut Self {
        self.parts.min_devices = devices;
        self
    }

    /// Adds a straw2 bucket of (item, 16.16 weight) pairs. Items may be defined later.
    pub fn straw2(
        &mut self,
        id: BucketId,
        kind: TypeId,
        items: impl IntoIterator<Item = (ItemId, u32)>,
    ) -> &mut Self {
        self.bucket(id, kind, AlgorithmKind::Straw2, items)
    }

    /// Adds a bucket of (item, 16.16 weight) pairs. Items may be defined later; tunables that
    /// matter when a straw bucket is made must have been set before.
    pub fn bucket(
        &mut self,
        id: BucketId,
        kind: TypeId,
        algorithm: AlgorithmKind,
        items: impl IntoIterator<Item = (ItemId, u32)>,
    ) -> &mut Self {
        let items: Vec<(ItemId, u32)> = items.into_iter().collect();
        if let Some(&(item, weight)) = items.iter().find(|(_, weight)| *weight > MAX_ITEM_WEIGHT) {
            self.error.get_or_insert(BuildError::WeightTooLarge { bucket: id, item, weight });
        }
        let version = self.parts.tunables.straw_calc_version;
        self.parts.buckets.push(Bucket::new(id, kind, algorithm, version, items));
        self
    }

    /// Adds a rule. It has the kind of replicated pools, unless a step requires another kind.
    pub fn rule(&mut self, id: RuleId, steps: impl Into<Vec<RuleStep>>) -> &mut Self {
        let steps = steps.into();
        let indep = |step: &RuleStep| {
            matches!(step, RuleStep::ChooseIndep { .. } | RuleStep::ChooseleafIndep { .. })
        };
        let kind = if steps.iter().any(indep) { RuleKind::Erasure } else { RuleKind::Replicated };
        self.rule_of_kind(id, kind, steps)
    }

    /// Adds a rule of a certain kind.
    pub fn rule_of_kind(
        &mut self,
        id: RuleId,
        kind: RuleKind,
        steps: impl Into<Vec<RuleStep>>,
    ) -> &mut Self {
        let ruleset = u8::try_from(id.0).unwrap_or(u8::MAX);
        let rule = Rule { kind, ruleset, min_size: 1, max_size: 10, steps: steps.into() };
        if self.parts.rules.insert(id, rule).is_some() {
            self.error.get_or_insert(BuildError::RuleTwice(id));
        }
        self
    }

    /// Names the types, beginning with the type of devices.
    pub fn type_names(&mut self, names: impl IntoIterator<Item = &'static str>) -> &mut Self {
        let names = names.into_iter().zip(0..).map(|(name, kind)| (TypeId(kind), name.to_owned()));
        self.parts.names.types.extend(names);
        self
    }

    /// Names a device or bucket.
    pub fn item_name(&mut self, item: ItemId, name: String) -> &mut Self {
        self.parts.names.items.insert(item, name);
        self
    }

    /// Names a rule.
    pub fn rule_name(&mut self, rule: RuleId, name: String) -> &mut Self {
        self.parts.names.rules.insert(rule, name);
        self
    }

    /// Adds a weight set.
    pub fn choose_args(&mut self, id: ChooseArgsId, args: ChooseArgs) -> &mut Self {
        self.parts.choose_args.insert(id, args);
        self
    }

    /// Adds the common tree of straw2 buckets: a root (bucket -1) of hosts (buckets -2, -3, ...),
    /// each with devices of the given weights. Devices are numbered from 0 across hosts. A host's
    /// weight is the sum of its devices' weights, up to [`MAX_ITEM_WEIGHT`].
    pub fn host_tree(&mut self, root: TypeId, host: TypeId, hosts: &[&[u32]]) -> &mut Self {
        let mut next_osd = 0..;
        let mut root_items = Vec::new();
        for (weights, slot) in hosts.iter().zip(2..) {
            let id = BucketId(-slot);
            let items: Vec<(ItemId, u32)> =
                weights.iter().map(|&w| (ItemId(next_osd.next().unwrap_or(i32::MAX)), w)).collect();
            let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
            let total = total.min(u64::from(MAX_ITEM_WEIGHT)) as u32;
            root_items.push((ItemId::from(id), total));
            self.straw2(id, host, items);
        }
        self.straw2(BucketId(-1), root, root_items)
    }

    /// Checks everything and makes the map.
    pub fn build(&self) -> Result<Map, BuildError> {
        match &self.error {
            Some(error) => Err(error.clone()),
            None => {
                let map = Map::new(self.parts.clone())?;
                check_takes(&map)?;
                Ok(map)
            }
        }
    }
}

/// Maps from other sources may have rules that take an item that no longer exists; such a step does
/// nothing. A map that is built here must not have them.
fn check_takes(map: &Map) -> Result<(), BuildError> {
    for (id, rule) in map.rules() {
        for step in &rule.steps {
            let RuleStep::Take(item) = *step else { continue };
            if !map.contains(item) {
                return Err(BuildError::NoSuchItem { user: format!("rule {}", id.0), item });
            }
        }
    }
    Ok(())
}
