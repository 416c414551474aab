//! The batch mapper: many inputs at once, with the results of the plain mapper.
//!
//! One mapping is a long chain of decisions, and each decision waits for a hash of 45 dependent
//! lines. A vector unit can do 8 or 16 such chains in the time of one. So **every lane maps a
//! different input**, and the chains are made so similar that they can run in parallel:
//!
//! * A rule runs step by step over a block of inputs. A choose step is a list of *tasks* (an input
//!   and a bucket). A task is a number of *attempts*: go down from the bucket to an item, and judge
//!   the item. In each iteration all lanes make one attempt. A lane whose task is done takes the
//!   next task.
//! * In an attempt every lane has its own bucket, and looks it up in flat tables ([`tables`]).
//! * Draws compare approximations. If two items are too close, the plain mapper decides the lane
//!   ([`draw`]). So the result is exact, not only nearly always right.
//!
//! The plain mapper does what the vectors do not do: rules of the multi-step-retry kind, rules with
//! retries inside a bucket (the tunables of argonaut), and more than [`MAX_POSITIONS`] positions.
//!
//! Two vectors alternate, so that one computes while the other waits.
//!
//! The hash is the limit. 16 lanes take about 77 cycles for 16 hashes, 1.8 ns each at 2.6 GHz,
//! against some 19 ns one by one. A draw of straw2 hashes once per item.
//!
//! | module       | idea |
//! |--------------|------|
//! | [`simd`]     | vectors of lanes: one trait, two instruction sets |
//! | [`hash`]     | rjenkins1 in lanes |
//! | [`tables`]   | the map as flat tables |
//! | [`draw`]     | one draw in every lane |
//! | [`descend`]  | down to an item of the wanted type |
//! | [`firstn`], [`indep`] | the two searches |
//! | [`tasks`]    | the inputs and results of a choose step |
//! | [`steps`]    | a rule over a block of inputs |
//! | [`speculate`]| single mappings: speculative draws, with items in lanes |
//! | [`predict`]  | predicts the draws of a single mapping |

// Without a known vector unit, only the selection of the kernel is used.
#![cfg_attr(not(target_arch = "x86_64"), allow(unused))]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod descend;
mod draw;
mod firstn;
mod hash;
mod indep;
mod predict;
mod simd;
pub(crate) mod speculate;
mod steps;
pub(crate) mod tables;
mod tasks;

use std::fmt;
use std::sync::OnceLock;

use descend::Descend;
use simd::Twice;
use steps::Steps;
use tables::Tables;
use tasks::{OneOrEach, SelectedItems, Tasks};

use crate::choose_args::ChooseArgs;
use crate::map::Map;
use crate::rule_ref::RuleRef;
use crate::{BucketId, Rows, WEIGHT_ONE};

/// Most positions of a choose step in vectors.
pub(crate) const MAX_POSITIONS: usize = 16;
/// Inputs of a block: its tables of tasks and results stay in the second-level cache.
const BLOCK_INPUTS: usize = 1024;

/// An implementation of the mapper. All implementations give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// The plain mapper, which is the definition.
    Scalar,
    /// AVX2, 8 lanes.
    Avx2,
    /// AVX-512 F, 16 lanes.
    Avx512,
}

impl Kernel {
    /// Every kernel, slowest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// True when this CPU can run the kernel.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::Scalar => true,
            Self::Avx2 => avx2::Avx2::detect().is_some(),
            Self::Avx512 => avx512::Avx512::detect().is_some(),
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Scalar
        }
    }

    /// The fastest kernel that this CPU can run, detected once.
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| {
            let best = Self::ALL.into_iter().rev().find(|kernel| kernel.is_available());
            best.expect("the scalar kernel is always available")
        })
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
        })
    }
}

/// The parameters that all lanes share.
#[derive(Clone, Copy)]
pub(crate) struct BatchParams<'a> {
    map: &'a Map,
    choose_args: Option<&'a ChooseArgs>,
    tables: &'a Tables,
    /// Reweights of all devices that the map has room for.
    weights: &'a [u32],
    /// No device is out, not even for a share of the inputs.
    all_in: bool,
    /// By slot: 1 for uniform buckets whose size is a multiple of the step's positions; there indep
    /// adds one more per round. `None`: there are no such buckets.
    stretched: Option<&'a [u32]>,
}

impl BatchParams<'_> {
    /// The plain mapper's draw: an index in the bucket of that slot.
    fn choose(&self, x: u32, r: u32, slot: u32, position: u32) -> Option<usize> {
        let bucket = self.map.bucket(BucketId(!slot as i32))?;
        let arg = self.choose_args.and_then(|args| args.buckets.get(&bucket.id));
        bucket.draw(x, r, arg, position as usize)
    }
}

/// A choose step, in the form for lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choose {
    /// The wanted type.
    kind: u32,
    /// True if a device below every item is wanted, too.
    is_leaf: bool,
    /// Wanted positions; part of r in indep.
    positions: u32,
    tries: u32,
    leaf_tries: u32,
    /// The part of the outer r in the leaf's r: none, or r shifted right.
    leaf_shift: Option<u32>,
    stable: bool,
}

/// Maps all `xs` into the rows.
pub(crate) fn map_rows(
    kernel: Kernel,
    rule: &RuleRef<'_>,
    xs: &[u32],
    weights: &[u32],
    rows: &mut Rows,
) {
    let steps = if kernel == Kernel::Scalar { None } else { Steps::new(rule, rows.width()) };
    let Some(mut steps) = steps else {
        for (index, &x) in xs.iter().enumerate() {
            rows.set(index, &rule.run(kernel, x, rows.width(), weights));
        }
        return;
    };
    let tables = Tables::of(rule.map_ref(), rule.choose_args_ref());
    let mut all_weights = weights.to_vec();
    all_weights.resize(rule.map_ref().max_devices() as usize, 0);
    let params = BatchParams {
        map: rule.map_ref(),
        choose_args: rule.choose_args_ref(),
        tables: &tables,
        weights: &all_weights,
        all_in: all_weights.iter().all(|&weight| weight >= WEIGHT_ONE),
        stretched: None,
    };
    for (block, xs) in xs.chunks(BLOCK_INPUTS).enumerate() {
        let from = block * BLOCK_INPUTS;
        match kernel {
            Kernel::Scalar => unreachable!("the plain mapper has no steps"),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => {
                let token = avx2::Avx2::detect().expect("the kernel was checked");
                // SAFETY: the token proves that the CPU has the instructions.
                unsafe { run_avx2(token, &mut steps, &params, xs, rows, from) }
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512 => {
                let token = avx512::Avx512::detect().expect("the kernel was checked");
                // SAFETY: the token proves that the CPU has the instructions.
                unsafe { run_avx512(token, &mut steps, &params, xs, rows, from) }
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("only the plain mapper is available here"),
        }
    }
}

/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn run_avx2(
    s: avx2::Avx2,
    steps: &mut Steps,
    params: &BatchParams<'_>,
    xs: &[u32],
    rows: &mut Rows,
    from: usize,
) {
    run_block(Twice(s), steps, params, xs, rows, from);
}

/// # Safety
/// The CPU has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn run_avx512(
    s: avx512::Avx512,
    steps: &mut Steps,
    params: &BatchParams<'_>,
    xs: &[u32],
    rows: &mut Rows,
    from: usize,
) {
    run_block(Twice(s), steps, params, xs, rows, from);
}

#[inline(always)]
fn run_block<S: Descend>(
    s: S,
    steps: &mut Steps,
    params: &BatchParams<'_>,
    xs: &[u32],
    rows: &mut Rows,
    from: usize,
) {
    if let Some((slot, choose, indep)) = steps.single_choose(params.map) {
        steps.stretch(params, &choose, indep);
        let max_items = rows.width().min(choose.positions as usize);
        let (slots, lens) = (OneOrEach::One(slot), OneOrEach::One(max_items as u32));
        let selected = SelectedItems::new(rows.rows_mut(from..from + xs.len()), max_items);
        let params = BatchParams { stretched: steps.stretched(), ..*params };
        search(s, &params, &choose, indep, &Tasks { xs, slots, lens }, selected);
        return;
    }
    steps.start(xs.len());
    while let Some((choose, indep)) = steps.next_choose(xs, params) {
        let (tasks, selected, stretched) = steps.work();
        search(s, &BatchParams { stretched, ..*params }, &choose, indep, &tasks, selected);
        steps.collect();
    }
    steps.write(rows, from);
}

#[inline(always)]
fn search<S: Descend>(
    s: S,
    params: &BatchParams<'_>,
    choose: &Choose,
    indep: bool,
    tasks: &Tasks<'_>,
    selected: SelectedItems<'_>,
) {
    if indep {
        indep::indep(s, params, choose, tasks, selected);
    } else {
        firstn::firstn(s, params, choose, tasks, selected);
    }
}
