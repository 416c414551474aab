//! One draw in every lane: the vector form of the [`bucket`](crate::bucket) folder.
//!
//! Every lane has its own bucket, input and attempt. All lanes go through their items together,
//! with the same index in every lane. Lanes with smaller buckets idle at the end.
//!
//! **Filter, then decide.** Straws of straw and straw2 buckets are products and quotients of 48 and
//! 64 bits, which are slow in vectors. So lanes compare `f32` approximations, and keep the best and
//! the second best. The approximations are right to one part in 2^22 (three roundings of at most
//! 2^-24 each). If the two best are further apart than one part in 2^20 (and, for straw2, whose
//! quotients are cut to integers, 2 more), the order of the exact numbers is the same, and the best
//! wins. The plain mapper decides every other lane (700 of nine million draws on a map of 10,240
//! OSDs). So the result is exact, and ties need no special case.

use super::simd::Simd;
use super::tables::Tables;
use crate::bucket::AlgorithmKind;

/// Straws whose approximations differ by less than this share may have either order.
pub(super) const DOUBT: f32 = 1.0 / (1 << 20) as f32;
/// Steps of a permutation that lanes follow. The plain mapper follows longer ones.
const MAX_PERMUTATION: usize = 16;

/// The inputs of a draw in every lane.
#[derive(Clone, Copy)]
pub(crate) struct DrawInput<S: Simd> {
    pub(crate) x: S::U,
    pub(crate) r: S::U,
    /// Slots of the buckets. In every lane, the slot is inside the tables.
    pub(crate) slot: S::U,
    /// Index of the first item of the buckets; 0 in lanes that are not asked.
    pub(crate) first: S::U,
    /// Sizes of the buckets; 0 exactly in lanes that are not asked.
    pub(crate) size: S::U,
    /// First item and size of the bucket, if all lanes have the same.
    pub(crate) common: Option<[u32; 2]>,
    /// The position in the result, which selects a run of straws.
    pub(crate) position: S::U,
    /// Lanes whose answer is used.
    pub(crate) asked: S::M,
}

/// The results of the draws.
#[derive(Clone, Copy)]
pub(crate) struct Drawn<S: Simd> {
    /// Index of the item in its bucket.
    pub(crate) index: S::U,
    /// Lanes that the plain mapper must decide.
    pub(crate) doubtful: S::M,
}

/// Draws in all lanes.
#[inline(always)]
pub(crate) fn draw<S: Simd>(s: S, tables: &Tables, input: DrawInput<S>) -> Drawn<S> {
    if tables.only_algorithm() == Some(AlgorithmKind::Straw2 as u32) {
        return straws::<S, true>(s, tables, input);
    }
    let algorithm = match tables.only_algorithm() {
        Some(kind) => s.splat(kind),
        None => s.gather(&tables.algorithm, input.slot),
    };
    let mut drawn = Drawn { index: s.splat(0), doubtful: s.mask(0) };
    for kind in AlgorithmKind::ALL {
        let asked = s.both(input.asked, s.eq(algorithm, s.splat(kind as u32)));
        if !s.any(asked) {
            continue;
        }
        // Lanes of other algorithms read where it does no harm.
        let (first, size) =
            (s.select(asked, input.first, s.splat(0)), s.select(asked, input.size, s.splat(0)));
        let input = DrawInput { asked, first, size, ..input };
        let part = draw_kind(s, tables, input, kind);
        drawn.index = s.select(asked, part.index, drawn.index);
        drawn.doubtful = s.either(drawn.doubtful, s.both(part.doubtful, asked));
    }
    drawn
}

#[inline(always)]
fn draw_kind<S: Simd>(s: S, tables: &Tables, input: DrawInput<S>, kind: AlgorithmKind) -> Drawn<S> {
    match kind {
        AlgorithmKind::Uniform => uniform(s, tables, input),
        AlgorithmKind::List => list(s, tables, input),
        AlgorithmKind::Tree => tree(s, tables, input),
        AlgorithmKind::Straw => straws::<S, false>(s, tables, input),
        AlgorithmKind::Straw2 => straws::<S, true>(s, tables, input),
    }
}

/// straw2 (`SHORTEST`: smallest N(u) / weight) and straw (greatest u * scale).
#[inline(always)]
fn straws<S: Simd, const SHORTEST: bool>(s: S, tables: &Tables, input: DrawInput<S>) -> Drawn<S> {
    let mut race = Race::<S, SHORTEST>::new(s, input);
    // Loops, not closures: a closure would be compiled without the vector instructions.
    if let (Some([first, size]), false) = (input.common, tables.has_runs) {
        let straws = &tables.straws[first as usize..][..size as usize];
        for (&[id, straw], index) in straws.iter().zip(0..) {
            race.run(s, s.splat(id), s.splat_float(f32::from_bits(straw)), index);
        }
        return race.finish(s);
    }
    let mut first = input.first;
    if tables.has_runs {
        // SAFETY: the slots are inside, and tables by slot are equally long.
        let (first_straw, last_run) = unsafe { s.gather_pairs(&tables.runs, input.slot) };
        let run = s.select(s.lt(input.position, last_run), input.position, last_run);
        let straw = s.add(first_straw, s.mul(run, input.size));
        first = s.select(input.asked, straw, s.splat(0));
    }
    let most = s.greatest(input.size);
    let last = s.greatest(first) as usize + most as usize;
    assert!(last <= tables.straws.len(), "straws end before their last bucket");
    for index in 0..most {
        // SAFETY: no index reaches `last`, which is inside.
        let (id, straw) = unsafe { s.gather_pairs(&tables.straws, s.add(first, s.splat(index))) };
        race.run(s, id, s.float_from_bits(straw), index);
    }
    race.finish(s)
}

/// The best straws so far, in every lane. Straws of `straw` are negated, so the smallest wins
/// there, too.
struct Race<S: Simd, const SHORTEST: bool> {
    input: DrawInput<S>,
    lengths: &'static [f32; 65536],
    best: S::F,
    second: S::F,
    winner: S::U,
}

impl<S: Simd, const SHORTEST: bool> Race<S, SHORTEST> {
    #[inline(always)]
    fn new(s: S, input: DrawInput<S>) -> Self {
        Self {
            input,
            lengths: super::tables::straw_lengths(),
            best: s.splat_float(f32::INFINITY),
            second: s.splat_float(f32::INFINITY),
            winner: s.splat(0),
        }
    }

    /// The item at `index` draws, in every lane.
    #[inline(always)]
    fn run(&mut self, s: S, id: S::U, straw: S::F, index: u32) {
        let hash = super::hash::hash3(s, self.input.x, id, self.input.r);
        let length = if SHORTEST {
            s.mul_float(s.gather_float(self.lengths, hash), straw)
        } else {
            let u = s.float(s.and(hash, s.splat(0xffff)));
            s.mul_float(s.mul_float(u, straw), s.splat_float(-1.0))
        };
        let index = s.splat(index);
        let inside = s.lt(index, self.input.size);
        let infinite = s.splat(f32::INFINITY.to_bits());
        let length = s.float_from_bits(s.select(inside, s.float_to_bits(length), infinite));
        let better = s.lt_float(length, self.best);
        self.second = s.min(self.second, s.max(self.best, length));
        self.best = s.min(self.best, length);
        self.winner = s.select(better, index, self.winner);
    }

    #[inline(always)]
    fn finish(self, s: S) -> Drawn<S> {
        // The second best must be beyond the limit. Then neither is NaN, and the two differ.
        let limit = if SHORTEST {
            s.add_float(s.mul_float(self.best, s.splat_float(1.0 + DOUBT)), s.splat_float(2.0))
        } else {
            s.mul_float(self.best, s.splat_float(1.0 - DOUBT))
        };
        let certain = s.lt_float(limit, self.second);
        let single = s.eq(self.input.size, s.splat(1));
        let doubtful = s.without(s.without(self.input.asked, certain), single);
        Drawn { index: self.winner, doubtful }
    }
}

/// List buckets: from the last item down, the first item that wins its draw.
#[inline(always)]
fn list<S: Simd>(s: S, tables: &Tables, input: DrawInput<S>) -> Drawn<S> {
    let (first, size) = (input.first, input.size);
    let most = s.greatest(size);
    let id = s.gather(&tables.id, input.slot);
    let last = s.greatest(first) as usize + most as usize;
    assert!(last <= tables.list.len(), "items end before their last bucket");
    assert!(tables.list.len() == tables.item.len(), "tables by item are equally long");
    let mut open = input.asked;
    let mut index = s.splat(0);
    for step in 1..=most {
        // Lanes begin at their own last item, and stay at item 0 at the end.
        let before = s.lt(s.splat(step), s.add(size, s.splat(1)));
        let at = s.select(before, s.sub(size, s.splat(step)), s.splat(0));
        let place = s.add(first, at);
        // SAFETY: no index reaches `last`, which is inside both.
        let (item, weight, sum) = unsafe {
            let (item, _) = s.gather_pairs(&tables.item, place);
            let (weight, sum) = s.gather_pairs(&tables.list, place);
            (item, weight, sum)
        };
        let hash = super::hash::hash4(s, input.x, item, input.r, id);
        let u = s.and(hash, s.splat(0xffff));
        let takes = s.both(open, s.lt(s.mul_shr::<16>(u, sum), weight));
        index = s.select(takes, at, index);
        open = s.both(s.without(open, takes), before);
        if !s.any(open) {
            break;
        }
    }
    Drawn { index, doubtful: s.mask(0) }
}

/// Tree buckets: from the root to a leaf.
#[inline(always)]
fn tree<S: Simd>(s: S, tables: &Tables, input: DrawInput<S>) -> Drawn<S> {
    let id = s.gather(&tables.id, input.slot);
    assert!(tables.tree.len() == tables.id.len(), "tables by slot are equally long");
    // SAFETY: the slots have been looked up in a table of the same length.
    let (first, root) = unsafe { s.gather_pairs(&tables.tree, input.slot) };
    let one = s.splat(1);
    let mut open = input.asked;
    let mut node = s.select(open, root, one);
    let first = s.select(open, first, s.splat(0));
    // A tree of one item has its root at node 1.
    open = s.without(open, is_odd(s, node));
    while s.any(open) {
        let inner = s.select(open, node, s.splat(0));
        // The lowest set bit is twice the distance to the children.
        let lowest = s.and(inner, s.sub(s.splat(0), inner));
        let half = s.shr::<1>(lowest);
        let hash = super::hash::hash4(s, input.x, node, input.r, id);
        let weight = s.gather(&tables.node_weights, s.add(first, inner));
        let left = s.sub(inner, half);
        let left_weight = s.gather(&tables.node_weights, s.add(first, left));
        let goes_left = s.lt(s.mul_shr::<32>(hash, weight), left_weight);
        let next = s.select(goes_left, left, s.add(inner, half));
        node = s.select(open, next, node);
        open = s.without(open, is_odd(s, node));
    }
    let index = s.shr::<1>(node);
    // Past the last item the draw finds no item, as in the plain mapper.
    let outside = s.without(input.asked, s.lt(index, input.size));
    Drawn { index: s.select(outside, s.splat(0), index), doubtful: outside }
}

#[inline(always)]
fn is_odd<S: Simd>(s: S, node: S::U) -> S::M {
    let one = s.splat(1);
    s.eq(s.and(node, one), one)
}

/// Uniform buckets: the r-th item of a permutation, followed backwards as in `bucket/uniform.rs`.
#[inline(always)]
fn uniform<S: Simd>(s: S, tables: &Tables, input: DrawInput<S>) -> Drawn<S> {
    let one = s.splat(1);
    let size = s.select(input.asked, input.size, one);
    let id = s.gather(&tables.id, input.slot);
    let mut last = input.r;
    if s.any(s.without(input.asked, s.lt(last, size))) {
        last = s.rem(last, size);
    }
    let long = s.without(input.asked, s.lt(last, s.splat(MAX_PERMUTATION as u32)));
    let last = s.select(long, s.splat(0), s.select(input.asked, last, s.splat(0)));
    let steps = s.greatest(last) as usize;
    if steps == 0 {
        let hash = super::hash::hash3(s, input.x, id, s.splat(0));
        return Drawn { index: s.rem(hash, size), doubtful: long };
    }
    let mut partners = [s.splat(0); MAX_PERMUTATION];
    let mut position = s.splat(0);
    for (step, partner) in partners.iter_mut().enumerate().take(steps + 1) {
        let at = s.splat(step as u32);
        let hash = super::hash::hash3(s, input.x, id, at);
        let reached = s.lt(at, s.add(last, one));
        let left = s.select(reached, s.sub(size, at), one);
        *partner = s.add(at, s.rem(hash, left));
        position = s.select(s.eq(at, last), *partner, position);
    }
    for (step, &partner) in partners.iter().enumerate().take(steps).rev() {
        let at = s.splat(step as u32);
        let moved = s.both(s.lt(at, last), s.eq(position, partner));
        position = s.select(moved, at, position);
    }
    Drawn { index: position, doubtful: long }
}
