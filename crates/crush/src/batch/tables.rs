//! The map as flat tables for look-ups by vectors.
//!
//! All items of all buckets lie in one array; a bucket has a first item and a size. The numbers by
//! which a draw hashes and weighs an item are its *straw*. A straw has the item's index, too,
//! except if a bucket's weights depend on the position in the result (choose_args). Such buckets
//! have one run of straws per position, and then straws have their own numbers. Numbers that are
//! looked up together are stored in pairs: a look-up costs a load per lane, and a pair costs no
//! more.
//!
//! **Straws of straw2** are 1 / weight as `f32`, infinite for weight 0. If a bucket has a weight
//! that Ceph reads as negative, *all* of its items get a straw of 0. Then all items tie, and the
//! plain mapper decides a tie exactly. Straws of straw buckets are their scale as `f32`.

use std::sync::Arc;

use crate::bucket::{Algorithm, AlgorithmKind, straw2};
use crate::choose_args::ChooseArgs;
use crate::map::Map;
use crate::{Bucket, ItemId};

/// Items past the end that may be read, and never win, because copies into lanes are made in whole
/// pieces. In addition, there are as many items past the end as the largest bucket has, because
/// draws of several buckets at once run as long as the largest bucket.
const PADDING: usize = 16;

/// See the module's text. Indexed by slot (bucket -1 - i is slot i) unless said.
#[derive(Debug)]
pub(crate) struct Tables {
    /// Index of the first item, and the number of items.
    pub(crate) bucket: Vec<[u32; 2]>,
    /// An [`AlgorithmKind`]; 0 where there is no bucket.
    pub(crate) algorithm: Vec<u32>,
    /// The bucket's number.
    pub(crate) id: Vec<u32>,
    /// Index of the first straw, and the number of runs minus one. Positions past the last run use
    /// the last run.
    pub(crate) runs: Vec<[u32; 2]>,
    /// Index of the bucket's node 0 in `node_weights`, and half the number of its nodes, which is
    /// its root. For trees only.
    pub(crate) tree: Vec<[u32; 2]>,

    /// By item: the item, and its type, 0 for devices.
    pub(crate) item: Vec<[u32; 2]>,
    /// By item of a list bucket: its weight, and the sum up to it.
    pub(crate) list: Vec<[u32; 2]>,

    /// By straw: the number to hash, and the straw's bits.
    pub(crate) straws: Vec<[u32; 2]>,
    /// By straw: the number to hash, for draws that read the items of one bucket in parallel.
    pub(crate) straw_ids: Vec<u32>,
    /// By straw: the straw.
    pub(crate) straw_scales: Vec<f32>,

    /// Nodes of all tree buckets.
    pub(crate) node_weights: Vec<u32>,

    /// Bit n is set if some bucket's algorithm has the number n.
    pub(crate) algorithms: u32,
    /// True if some bucket has more than one run of straws. Otherwise straws have the numbers of
    /// items.
    pub(crate) has_runs: bool,
}

impl Tables {
    /// The tables of a map with these weights, made when they are first asked for.
    pub(crate) fn of(map: &Map, choose_args: Option<&ChooseArgs>) -> Arc<Self> {
        map.derived(choose_args, || Self::new(map, choose_args))
    }

    fn new(map: &Map, choose_args: Option<&ChooseArgs>) -> Self {
        let slots = map.bucket_slots();
        let mut tables = Self {
            bucket: vec![[0; 2]; slots],
            algorithm: vec![0; slots],
            id: vec![0; slots],
            runs: vec![[0; 2]; slots],
            tree: vec![[0; 2]; slots],
            item: Vec::new(),
            list: Vec::new(),
            straws: Vec::new(),
            straw_ids: Vec::new(),
            straw_scales: Vec::new(),
            node_weights: Vec::new(),
            algorithms: 0,
            has_runs: false,
        };
        let mut largest = 0;
        for bucket in map.buckets() {
            tables.add(map, bucket, choose_args);
            largest = largest.max(bucket.items.len());
        }
        for _ in 0..largest + PADDING {
            tables.item.push([0; 2]);
            tables.list.push([0; 2]);
            tables.push_straw(ItemId(0), 0.0);
        }
        tables
    }

    fn add(&mut self, map: &Map, bucket: &Bucket, choose_args: Option<&ChooseArgs>) {
        let slot = !bucket.id.0 as usize;
        let first = self.item.len();
        self.bucket[slot] = [first as u32, bucket.items.len() as u32];
        let algorithm = bucket.algorithm.kind();
        self.algorithm[slot] = algorithm as u32;
        self.algorithms |= 1 << algorithm as u32;
        self.id[slot] = bucket.id.0 as u32;
        self.runs[slot][0] = self.straws.len() as u32;
        for &item in &bucket.items {
            let child = item.bucket().and_then(|id| map.bucket(id));
            self.item.push([item.0 as u32, child.map_or(0, |child| child.kind.0.into())]);
        }
        match &bucket.algorithm {
            Algorithm::Uniform { .. } => {}
            Algorithm::List { weights, sums } => {
                self.list.resize(first, [0; 2]);
                self.list.extend(weights.iter().zip(sums).map(|(&weight, &sum)| [weight, sum]));
            }
            Algorithm::Tree { node_weights } => {
                let first = self.node_weights.len() as u32;
                self.tree[slot] = [first, node_weights.len() as u32 / 2];
                self.node_weights.extend(node_weights);
            }
            Algorithm::Straw { straws, .. } => {
                for (&item, &straw) in bucket.items.iter().zip(straws) {
                    self.push_straw(item, straw as f32);
                }
            }
            Algorithm::Straw2 { weights } => {
                let arg = choose_args.and_then(|args| args.buckets.get(&bucket.id));
                let ids = arg.and_then(|arg| arg.ids.as_ref()).unwrap_or(&bucket.items);
                let sets = arg.map_or(&[][..], |arg| &arg.weight_sets[..]);
                let own = std::slice::from_ref(weights);
                let runs = if sets.is_empty() { own } else { sets };
                self.runs[slot][1] = runs.len() as u32 - 1;
                self.has_runs |= runs.len() > 1;
                for weights in runs {
                    self.push_straw2_run(ids, weights);
                }
            }
        }
        self.list.resize(self.item.len(), [0; 2]);
        if matches!(algorithm, AlgorithmKind::Uniform | AlgorithmKind::List | AlgorithmKind::Tree) {
            for &item in &bucket.items {
                self.push_straw(item, 0.0);
            }
        }
    }

    fn push_straw2_run(&mut self, ids: &[ItemId], weights: &[u32]) {
        let signed = weights.iter().any(|&weight| weight >= straw2::FIRST_SIGNED_WEIGHT);
        for (&id, &weight) in ids.iter().zip(weights) {
            let straw = if signed { 0.0 } else { (1.0 / f64::from(weight)) as f32 };
            self.push_straw(id, straw);
        }
    }

    fn push_straw(&mut self, id: ItemId, straw: f32) {
        self.straws.push([id.0 as u32, straw.to_bits()]);
        self.straw_ids.push(id.0 as u32);
        self.straw_scales.push(straw);
    }

    /// The number of the algorithm that all buckets have, if they do.
    pub(crate) fn only_algorithm(&self) -> Option<u32> {
        (self.algorithms.count_ones() == 1).then(|| self.algorithms.trailing_zeros())
    }
}

/// N(u) = 2^48 - crush_ln(u) as `f32`, with a relative error of at most 2^-24.
pub(crate) fn straw_lengths() -> &'static [f32; 65536] {
    use std::sync::OnceLock;

    use crate::ln::crush_ln;

    static LENGTHS: OnceLock<Box<[f32; 65536]>> = OnceLock::new();
    LENGTHS.get_or_init(|| {
        let lengths: Vec<f32> =
            (0..=u16::MAX).map(|u| ((1u64 << 48) - crush_ln(u)) as f32).collect();
        lengths.try_into().expect("there are 65536")
    })
}
