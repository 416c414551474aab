//! The choice of one item of one bucket: a pseudo-random function of the input x, the attempt r and
//! the bucket. Except for uniform buckets, the items' weights weight the choice.
//!
//! | algorithm  | a choice costs | when one weight changes, data moves |
//! |------------|----------------|-------------------------------------|
//! | [uniform]  | O(r)           | everywhere; all items weigh the same |
//! | [list]     | O(items)       | little when items are appended, much otherwise |
//! | [tree]     | O(log items)   | only along one path, but not optimally |
//! | [straw]    | O(items)       | almost only to or from that item |
//! | [straw2]   | O(items)       | only to or from that item |
//!
//! This folder has one file for each of the five algorithms. The file also makes the tables of such
//! a bucket from plain weights. Current maps use straw2; the others remain in old clusters.

pub(crate) mod list;
pub(crate) mod straw;
pub(crate) mod straw2;
pub(crate) mod tree;
pub(crate) mod uniform;

use crate::choose_args::ChooseArg;
use crate::{BucketId, ItemId, TypeId};

/// The algorithm of a bucket. The numbers are those of binary maps and of
/// [`Tunables::allowed_bucket_algs`](crate::Tunables::allowed_bucket_algs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AlgorithmKind {
    /// A permutation of equal items.
    Uniform = 1,
    /// A list, newest item first.
    List = 2,
    /// A binary tree of weights.
    Tree = 3,
    /// The longest straw wins; straws are scaled when the bucket is made.
    Straw = 4,
    /// An exponential race.
    Straw2 = 5,
}

impl AlgorithmKind {
    /// All five algorithms.
    pub const ALL: [Self; 5] = [Self::Uniform, Self::List, Self::Tree, Self::Straw, Self::Straw2];

    /// The algorithm of that number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == number)
    }

    /// Its keyword in text maps.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::List => "list",
            Self::Tree => "tree",
            Self::Straw => "straw",
            Self::Straw2 => "straw2",
        }
    }

    /// The algorithm with this keyword.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// The algorithm of a bucket, with its weights. All weights are 16.16 fixed point. Lists are as
/// long as the items unless their comments say otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// See [`AlgorithmKind::Uniform`].
    Uniform {
        /// The weight of every item. No choice depends on it.
        weight: u32,
    },
    /// See [`AlgorithmKind::List`].
    List {
        /// Weights of the items.
        weights: Vec<u32>,
        /// `sums[i]` is the weight of items 0 to i together.
        sums: Vec<u32>,
    },
    /// See [`AlgorithmKind::Tree`].
    Tree {
        /// Weights of the nodes, a power of two of them (none for an empty bucket): item i is node
        /// 2i + 1, an inner node holds the sum of its children, the root is in the middle.
        node_weights: Vec<u32>,
    },
    /// See [`AlgorithmKind::Straw`].
    Straw {
        /// Weights of the items. No choice depends on them.
        weights: Vec<u32>,
        /// Scale of the straws of the items, 16.16.
        straws: Vec<u32>,
    },
    /// See [`AlgorithmKind::Straw2`].
    Straw2 {
        /// Weights of the items.
        weights: Vec<u32>,
    },
}

impl Algorithm {
    /// The kind of the algorithm.
    #[must_use]
    pub fn kind(&self) -> AlgorithmKind {
        match self {
            Self::Uniform { .. } => AlgorithmKind::Uniform,
            Self::List { .. } => AlgorithmKind::List,
            Self::Tree { .. } => AlgorithmKind::Tree,
            Self::Straw { .. } => AlgorithmKind::Straw,
            Self::Straw2 { .. } => AlgorithmKind::Straw2,
        }
    }
}

/// An inner vertex of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its number, below 0.
    pub id: BucketId,
    /// Its type (host, rack, ...); never [`TypeId::DEVICE`].
    pub kind: TypeId,
    /// Its children, in the map's order, which decides ties.
    pub items: Vec<ItemId>,
    /// Its weight in the map: normally the sum of its items, but no choice depends on it.
    pub weight: u32,
    /// Its algorithm, with the weights.
    pub algorithm: Algorithm,
}

impl Bucket {
    /// A bucket of (item, weight) pairs, with all tables that its algorithm derives from them.
    /// Uniform buckets take the weight of their first item for all. `straw_calc_version` is that of
    /// the [tunables](crate::Tunables).
    #[must_use]
    pub fn new(
        id: BucketId,
        kind: TypeId,
        algorithm: AlgorithmKind,
        straw_calc_version: u8,
        items: impl IntoIterator<Item = (ItemId, u32)>,
    ) -> Self {
        let (items, weights): (Vec<ItemId>, Vec<u32>) = items.into_iter().unzip();
        let weight = weights.iter().fold(0u32, |sum, &weight| sum.wrapping_add(weight));
        let algorithm = match algorithm {
            AlgorithmKind::Uniform => {
                Algorithm::Uniform { weight: weights.first().copied().unwrap_or(0) }
            }
            AlgorithmKind::List => Algorithm::List { sums: list::sums(&weights), weights },
            AlgorithmKind::Tree => Algorithm::Tree { node_weights: tree::node_weights(&weights) },
            AlgorithmKind::Straw => {
                Algorithm::Straw { straws: straw::straws(&weights, straw_calc_version), weights }
            }
            AlgorithmKind::Straw2 => Algorithm::Straw2 { weights },
        };
        Self { id, kind, items, weight, algorithm }
    }

    /// The weight of the item at `index`, 16.16.
    #[must_use]
    pub fn item_weight(&self, index: usize) -> u32 {
        match &self.algorithm {
            Algorithm::Uniform { weight } => *weight,
            Algorithm::List { weights, .. }
            | Algorithm::Straw { weights, .. }
            | Algorithm::Straw2 { weights } => weights[index],
            Algorithm::Tree { node_weights } => node_weights[tree::leaf(index)],
        }
    }

    /// The index of the item drawn for input `x` and attempt `r`, at a position of the result. The
    /// position only selects the weights of `arg`. This function is public so that other
    /// implementations of the buckets can be compared with it. `None` if no item can be drawn: the
    /// bucket is empty, or it is a tree whose walk ended at a leaf without an item.
    #[must_use]
    pub fn choose(
        &self,
        x: u32,
        r: u32,
        arg: Option<&ChooseArg>,
        position: usize,
    ) -> Option<usize> {
        if self.items.is_empty() { None } else { self.draw(x, r, arg, position) }
    }

    /// The index of the item drawn for input `x` and attempt `r` at a position of the result. The
    /// position only selects the weights of `arg`. The bucket is not empty. `None`: a tree bucket
    /// whose walk ended at a leaf without an item, where Ceph reads outside its memory.
    pub(crate) fn draw(
        &self,
        x: u32,
        r: u32,
        arg: Option<&ChooseArg>,
        position: usize,
    ) -> Option<usize> {
        match &self.algorithm {
            Algorithm::Uniform { .. } => Some(self.draw_by_permutation(x, r)),
            Algorithm::List { weights, sums } => {
                Some(list::choose(self.id, &self.items, weights, sums, x, r))
            }
            Algorithm::Tree { node_weights } => {
                let index = tree::choose(self.id, node_weights, x, r);
                (index < self.items.len()).then_some(index)
            }
            Algorithm::Straw { straws, .. } => Some(straw::choose(&self.items, straws, x, r)),
            Algorithm::Straw2 { weights } => {
                let sets = arg.map_or(&[][..], |arg| &arg.weight_sets[..]);
                let weights = sets.get(position).or(sets.last()).unwrap_or(weights);
                let ids = arg.and_then(|arg| arg.ids.as_ref()).unwrap_or(&self.items);
                Some(straw2::choose(ids, weights, x, r))
            }
        }
    }

    /// The index of the r-th item of the [permutation](uniform) that depends on `x` and the
    /// bucket's id. The bucket is not empty.
    pub(crate) fn draw_by_permutation(&self, x: u32, r: u32) -> usize {
        uniform::choose(self.id, self.items.len() as u32, x, r) as usize
    }
}
