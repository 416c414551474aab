//! Placement in a pool of Fieldstone's own nodes: a flat root of N nodes.
//!
//! There are two rules over one straw2 bucket. `indep` places shards (shard i keeps its node when
//! another node leaves), and `firstn` places journals.
//!
//! CRUSH may leave a hole: the last of six shards on six nodes must draw the only node that is
//! left, and CRUSH gives up after a fixed number of attempts. In a cluster of hundreds of nodes
//! this is rare and acceptable. In a pool whose width equals its number of nodes, a segment with a
//! hole could not be written. So this module never leaves a hole while an unused node is in:
//! afterwards it fills each hole by one straw2 race among the unused nodes. Like CRUSH itself, this
//! is a pure function of the arguments.

use std::sync::Arc;

use crate::bucket::straw2;
use crate::builder::MapBuilder;
use crate::check::BuildError;
use crate::hash::hash2;
use crate::map::Map;
use crate::rule::RuleStep;
use crate::{BucketId, ItemId, OsdId, Osds, RuleId, TypeId, WEIGHT_ONE};

/// Rounds of `indep` before the race fills holes.
const CHOOSE_TRIES: i32 = 50;
/// Set in the attempt number of the race, so that it repeats no draw of CRUSH.
const RACE: u32 = 0x4000_0000;

const ROOT: BucketId = BucketId(-1);
const ROOT_TYPE: TypeId = TypeId(1);

/// A node's share of the data, 16.16 fixed point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeWeight(pub u32);

impl NodeWeight {
    /// The share of an ordinary node.
    pub const ONE: Self = Self(WEIGHT_ONE);
}

/// The map of a pool whose nodes are numbered 0 to N-1.
#[derive(Clone, Debug)]
pub struct PoolMap {
    map: Arc<Map>,
    node_weights: Vec<u32>,
}

impl PoolMap {
    /// The rule that places shards, for [`Map::rule`].
    pub const SHARDS: RuleId = RuleId(0);
    /// The rule that places journals, for [`Map::rule`].
    pub const JOURNAL: RuleId = RuleId(1);

    /// The map of `nodes`.
    pub fn new(nodes: &[NodeWeight]) -> Result<Self, BuildError> {
        let items = nodes.iter().zip(0..).map(|(weight, id)| (ItemId(id), weight.0));
        let take = RuleStep::Take(ROOT.into());
        let kind = TypeId::DEVICE;
        let mut builder = MapBuilder::new();
        builder.straw2(ROOT, ROOT_TYPE, items);
        let tries = RuleStep::SetChooseTries(CHOOSE_TRIES);
        let indep = RuleStep::ChooseIndep { count: 0, kind };
        let firstn = RuleStep::ChooseFirstn { count: 0, kind };
        builder.rule(Self::SHARDS, [tries, take, indep, RuleStep::Emit]);
        builder.rule(Self::JOURNAL, [tries, take, firstn, RuleStep::Emit]);
        let map = Arc::new(builder.build()?);
        Ok(Self { map, node_weights: nodes.iter().map(|weight| weight.0).collect() })
    }

    /// The CRUSH map, for accelerators that place.
    #[must_use]
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.node_weights.len()
    }

    /// The CRUSH input for a 64-bit key.
    #[must_use]
    pub fn input(key: u64) -> u32 {
        hash2(key as u32, (key >> 32) as u32)
    }

    /// The node of each of `width` shards: all different; `None` only if there are not enough nodes
    /// that are in. `in_weights[i]` is node i's reweight: 0 is out, 0x10000 is in, and a value
    /// between is in for that share of the keys. Nodes past the end of the list are out.
    #[must_use]
    pub fn place_shards(&self, key: u64, width: usize, in_weights: &[u32]) -> Vec<Option<usize>> {
        let drawn = self.draw(Self::SHARDS, key, width, in_weights);
        self.shards_from(key, width, in_weights, &drawn)
    }

    /// The nodes of a journal of `copies`: all different; fewer than `copies` only if there are not
    /// enough nodes that are in. `in_weights` as in [`PoolMap::place_shards`].
    #[must_use]
    pub fn place_journal(&self, key: u64, copies: usize, in_weights: &[u32]) -> Vec<usize> {
        let drawn = self.draw(Self::JOURNAL, key, copies, in_weights);
        self.journal_from(key, copies, in_weights, &drawn)
    }

    /// The number of devices to draw for `width` positions. Positions beyond the number of nodes
    /// can only be holes, and would only cost attempts.
    #[must_use]
    pub fn draw_width(&self, width: usize) -> usize {
        width.min(self.nodes())
    }

    /// [`PoolMap::place_shards`] with a draw that the caller has made: by [`PoolMap::SHARDS`] for
    /// [`PoolMap::input`] and [`PoolMap::draw_width`].
    #[must_use]
    pub fn shards_from(
        &self,
        key: u64,
        width: usize,
        in_weights: &[u32],
        drawn: &Osds,
    ) -> Vec<Option<usize>> {
        self.fill_holes(key, width, in_weights, drawn)
    }

    /// [`PoolMap::place_journal`] with a draw that the caller has made, by [`PoolMap::JOURNAL`].
    #[must_use]
    pub fn journal_from(
        &self,
        key: u64,
        copies: usize,
        in_weights: &[u32],
        drawn: &Osds,
    ) -> Vec<usize> {
        self.fill_holes(key, copies, in_weights, drawn).into_iter().flatten().collect()
    }

    fn draw(&self, rule: RuleId, key: u64, width: usize, in_weights: &[u32]) -> Osds {
        let rule = self.map.rule(rule).expect("both rules are made with the map");
        rule.map(Self::input(key), self.draw_width(width), in_weights)
    }

    /// The drawn nodes, `width` long, with holes filled where possible.
    fn fill_holes(
        &self,
        key: u64,
        width: usize,
        in_weights: &[u32],
        drawn: &Osds,
    ) -> Vec<Option<usize>> {
        let node = |osd: &Option<OsdId>| osd.map(|OsdId(osd)| osd as usize);
        let mut placed: Vec<Option<usize>> = drawn.iter().map(node).collect();
        placed.resize(width, None);
        for position in 0..width {
            if placed[position].is_none() {
                placed[position] = self.race(key, position, in_weights, &placed);
            }
        }
        placed
    }

    /// One straw2 race among the nodes that are in and not yet used. Nodes of weight 0 hold no
    /// data, so they do not take part.
    fn race(
        &self,
        key: u64,
        position: usize,
        in_weights: &[u32],
        placed: &[Option<usize>],
    ) -> Option<usize> {
        let nodes = self.node_weights.iter().zip(in_weights).enumerate();
        let (items, weights): (Vec<ItemId>, Vec<u32>) = nodes
            .filter(|(node, (weight, reweight))| {
                **weight > 0 && **reweight > 0 && !placed.contains(&Some(*node))
            })
            .map(|(node, (&weight, _))| (ItemId(node as i32), weight))
            .unzip();
        if items.is_empty() {
            return None;
        }
        let winner = straw2::choose(&items, &weights, Self::input(key), RACE | position as u32);
        items[winner].osd().map(|OsdId(osd)| osd as usize)
    }
}
