//! Runs a rule.
//!
//! A draw is a descent from a bucket: the mapper chooses an item; if the item is a bucket of
//! another type than wanted, it chooses in that bucket, and so on. The attempt number r makes draws
//! differ. A draw fails when its item was already drawn (*collision*), or when it is a device that
//! is out (*reject*).
//!
//! **firstn** (replicas) fills positions one after the other; r is the position plus the failures
//! so far. A position that stays empty after all attempts is skipped, and later ones move up. This
//! is right for replicas, because they are interchangeable.
//!
//! **indep** (shards) tries all open positions once per round; r grows by the number of positions
//! per round, so positions never share an r. A position that fails stays empty, and no other
//! position moves. This is right for shards, because shard 3 is only shard 3.
//!
//! **chooseleaf** draws a bucket and, within the same attempt, a device below it. Leaves of firstn
//! must differ from earlier leaves. Leaves of indep are not compared, because they lie below
//! different buckets.
//!
//! The numbers (what counts as an attempt, which r a leaf gets, and that an inner indep counts its
//! position twice) are Ceph's; any change of them changes placements.
//!
//! This is the plain mapper, one input at a time: the definition that the batch mapper and the
//! hardware are compared with. So it uses nothing of theirs. A faster implementation of draws is a
//! [`Drawer`]: the mapper announces each choose step to the drawer, and asks it before each draw.

use smallvec::{SmallVec, smallvec};

use crate::choose_args::ChooseArgs;
use crate::hash::hash2;
use crate::map::Map;
use crate::rule::{Rule, RuleStep};
use crate::tries::TriesHistogram;
use crate::{Algorithm, Bucket, ItemId, OsdId, TypeId, WEIGHT_ONE};

pub(crate) const NONE: ItemId = ItemId::NONE;
/// A list of items; results of usual widths need no allocation.
pub(crate) type Items = SmallVec<[ItemId; 16]>;

/// A position that is still open.
pub(crate) const UNDEFINED: ItemId = ItemId(0x7fff_fffe);

/// The tries and switches of the tunables, as far as the rule has overridden them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tries {
    /// Attempts from the top.
    pub(crate) choose: u32,
    /// Attempts for the leaf; 0: not set by the rule.
    pub(crate) leaf: u32,
    pub(crate) local: u32,
    pub(crate) local_fallback: u32,
    pub(crate) descend_once: bool,
    pub(crate) vary_r: u32,
    pub(crate) stable: bool,
}

impl Tries {
    pub(crate) fn new(map: &Map) -> Self {
        let tunables = map.tunables();
        Self {
            // The tunable once counted retries, not attempts.
            choose: tunables.choose_total_tries + 1,
            leaf: 0,
            local: tunables.choose_local_tries,
            local_fallback: tunables.choose_local_fallback_tries,
            descend_once: tunables.chooseleaf_descend_once,
            vary_r: tunables.chooseleaf_vary_r.into(),
            stable: tunables.chooseleaf_stable,
        }
    }

    /// Applies a `Set` step; other steps change nothing.
    pub(crate) fn set(&mut self, step: RuleStep) {
        let positive = |n: i32, old: u32| if n > 0 { n as u32 } else { old };
        let natural = |n: i32, old: u32| u32::try_from(n).unwrap_or(old);
        match step {
            RuleStep::SetChooseTries(n) => self.choose = positive(n, self.choose),
            RuleStep::SetChooseleafTries(n) => self.leaf = positive(n, self.leaf),
            RuleStep::SetChooseLocalTries(n) => self.local = natural(n, self.local),
            RuleStep::SetChooseLocalFallbackTries(n) => {
                self.local_fallback = natural(n, self.local_fallback);
            }
            RuleStep::SetChooseleafVaryR(n) => self.vary_r = natural(n, self.vary_r),
            RuleStep::SetChooseleafStable(n) => {
                self.stable = natural(n, self.stable.into()) != 0;
            }
            _ => {}
        }
    }

    /// Attempts at the leaf below one bucket.
    pub(crate) fn leaf(&self, indep: bool) -> u32 {
        match self.leaf {
            0 if indep || self.descend_once => 1,
            0 => self.choose,
            set => set,
        }
    }

    /// The number added to a leaf's r when the outer search is at `r`.
    pub(crate) fn leaf_r(&self, r: u32) -> u32 {
        match self.vary_r {
            0 => 0,
            // C leaves shifts by 32 and more undefined; common machines take the count modulo 32.
            shift => r.wrapping_shr(shift - 1),
        }
    }
}

/// One choose step, or the search for one leaf inside it.
pub(crate) struct Choose<'a> {
    pub(crate) bucket: &'a Bucket,
    /// Wanted positions; part of r in indep.
    pub(crate) positions: usize,
    pub(crate) kind: TypeId,
    pub(crate) tries: u32,
    /// Attempts of the search for a leaf; `None` if no leaf is wanted.
    pub(crate) leaf_tries: Option<u32>,
    /// The number that the outer search adds to r.
    pub(crate) parent_r: u32,
    pub(crate) settings: &'a Tries,
}

/// The outcome of one draw of firstn.
enum DrawOutcome {
    Taken(ItemId),
    Collided,
    Rejected,
    /// The draw led nowhere: the position is given up at once.
    Hopeless,
}

/// The next step of a descent.
pub(crate) enum Next<'m> {
    /// The descent goes on in this bucket.
    Bucket(&'m Bucket),
    /// The descent has reached an item of the wanted type.
    Found(ItemId),
    /// The descent cannot go on: there is a device instead of the wanted bucket.
    Nowhere,
}

/// Makes draws for a mapping, with the results of the plain mapper. A draw depends on the bucket,
/// the input and the attempt number alone (and on the position, where weights do).
pub(crate) trait Drawer: Sized {
    /// A choose step begins. So many attempts will be made from `choose.bucket`, at least.
    fn begin(&self, mapping: &Mapping<'_, Self>, choose: &Choose<'_>, attempts: usize, indep: bool);
    /// The index of the item that an attempt draws in a bucket; `None` if the plain mapper is to
    /// draw.
    fn draw(&self, bucket: &Bucket, r: u32) -> Option<usize>;
}

/// The plain mapper makes every draw itself.
pub(crate) struct NoDrawer;

impl Drawer for NoDrawer {
    fn begin(&self, _: &Mapping<'_, Self>, _: &Choose<'_>, _: usize, _: bool) {}

    fn draw(&self, _: &Bucket, _: u32) -> Option<usize> {
        None
    }
}

/// One mapping: the input, and the parameters of its rule run.
pub(crate) struct Mapping<'m, D = NoDrawer> {
    pub(crate) map: &'m Map,
    pub(crate) choose_args: Option<&'m ChooseArgs>,
    pub(crate) x: u32,
    pub(crate) weights: &'m [u32],
    pub(crate) width: usize,
    /// Makes draws ahead of the mapper, or none.
    pub(crate) drawer: &'m D,
    /// Where failed attempts are counted.
    pub(crate) tries: Option<&'m TriesHistogram>,
}

impl<D: Drawer> Mapping<'_, D> {
    /// Runs an ordinary rule.
    pub(crate) fn rule(&self, rule: &Rule) -> Items {
        let mut tries = Tries::new(self.map);
        let mut result = Items::new();
        let mut working = Items::new();
        for &step in &rule.steps {
            match step {
                RuleStep::Take(item) if self.map.contains(item) => working = smallvec![item],
                RuleStep::Emit => {
                    let room = self.width - result.len();
                    result.extend(working.drain(..).take(room));
                }
                RuleStep::ChooseFirstn { count, kind } => {
                    working = self.choose_step(&working, count, kind, &tries, false, false);
                }
                RuleStep::ChooseleafFirstn { count, kind } => {
                    working = self.choose_step(&working, count, kind, &tries, false, true);
                }
                RuleStep::ChooseIndep { count, kind } => {
                    working = self.choose_step(&working, count, kind, &tries, true, false);
                }
                RuleStep::ChooseleafIndep { count, kind } => {
                    working = self.choose_step(&working, count, kind, &tries, true, true);
                }
                set => tries.set(set),
            }
        }
        result
    }

    /// Replaces every bucket of `working` by the items chosen below it. Each bucket's choice is
    /// independent: only its own results can collide.
    fn choose_step(
        &self,
        working: &[ItemId],
        count: i32,
        kind: TypeId,
        tries: &Tries,
        indep: bool,
        leaf: bool,
    ) -> Items {
        let positions =
            if count > 0 { i64::from(count) } else { i64::from(count) + self.width as i64 };
        let Some(positions) = usize::try_from(positions).ok().filter(|&n| n > 0) else {
            return Items::new();
        };
        let leaf_tries = tries.leaf(indep);
        let mut chosen = Items::new();
        for item in working {
            let Some(bucket) = item.bucket().and_then(|id| self.map.bucket(id)) else { continue };
            let choose = Choose {
                bucket,
                positions,
                kind,
                tries: tries.choose,
                leaf_tries: leaf.then_some(leaf_tries),
                parent_r: 0,
                settings: tries,
            };
            let room = self.width - chosen.len();
            self.drawer.begin(self, &choose, positions.min(room), indep);
            let len = if indep { positions.min(room) } else { room };
            let mut items: Items = smallvec![UNDEFINED; len];
            let mut leaves = items.clone();
            let filled = if indep {
                self.indep(&choose, &mut items, &mut leaves, 0);
                items.len()
            } else {
                self.firstn(&choose, &mut items, &mut leaves, 0)
            };
            let taken = if leaf { leaves } else { items };
            chosen.extend_from_slice(&taken[..filled]);
        }
        chosen
    }

    /// Fills `items` (and `leaves`) from `filled` on, with at most `choose.positions` attempts at a
    /// position. Returns the number of filled positions.
    fn firstn(
        &self,
        choose: &Choose<'_>,
        items: &mut [ItemId],
        leaves: &mut [ItemId],
        mut filled: usize,
    ) -> usize {
        let first = if choose.settings.stable { 0 } else { filled };
        for position in first..choose.positions {
            if filled == items.len() {
                break;
            }
            if let Some(item) = self.firstn_position(choose, position, items, leaves, filled) {
                items[filled] = item;
                filled += 1;
            }
        }
        filled
    }

    /// All attempts at one position of firstn.
    fn firstn_position(
        &self,
        choose: &Choose<'_>,
        position: usize,
        items: &[ItemId],
        leaves: &mut [ItemId],
        filled: usize,
    ) -> Option<ItemId> {
        let settings = choose.settings;
        let mut failures = 0;
        loop {
            let mut bucket = choose.bucket;
            let mut local_failures = 0;
            loop {
                let r = (position as u32).wrapping_add(choose.parent_r).wrapping_add(failures);
                let by_permutation = settings.local_fallback > 0
                    && local_failures >= bucket.items.len() as u32 / 2
                    && local_failures > settings.local_fallback;
                let draw = if bucket.items.is_empty() {
                    DrawOutcome::Rejected
                } else {
                    let index = if by_permutation {
                        Some(bucket.draw_by_permutation(self.x, r))
                    } else {
                        self.draw(bucket, r, filled)
                    };
                    match self.next(bucket, index, choose.kind) {
                        Next::Bucket(below) => {
                            bucket = below;
                            continue;
                        }
                        Next::Found(item) => {
                            self.firstn_judge(choose, item, r, items, leaves, filled)
                        }
                        Next::Nowhere => DrawOutcome::Hopeless,
                    }
                };
                let collided = match draw {
                    DrawOutcome::Taken(item) => {
                        self.count_tries(failures);
                        return Some(item);
                    }
                    DrawOutcome::Hopeless => return None,
                    DrawOutcome::Collided => true,
                    DrawOutcome::Rejected => false,
                };
                failures += 1;
                local_failures += 1;
                let size = bucket.items.len() as u32;
                let fallback = settings.local_fallback;
                let again_here = collided && local_failures <= settings.local
                    || fallback > 0 && local_failures <= size + fallback;
                if !again_here {
                    break;
                }
            }
            if failures >= choose.tries {
                return None;
            }
        }
    }

    /// Decides whether an item of the wanted type can be taken; searches its leaf if one is wanted.
    fn firstn_judge(
        &self,
        choose: &Choose<'_>,
        item: ItemId,
        r: u32,
        items: &[ItemId],
        leaves: &mut [ItemId],
        filled: usize,
    ) -> DrawOutcome {
        if items[..filled].contains(&item) {
            return DrawOutcome::Collided;
        }
        if let Some(leaf_tries) = choose.leaf_tries {
            match item.bucket().and_then(|id| self.map.bucket(id)) {
                Some(bucket) => {
                    let inner = Choose {
                        bucket,
                        positions: if choose.settings.stable { 1 } else { filled + 1 },
                        kind: TypeId::DEVICE,
                        tries: leaf_tries,
                        leaf_tries: None,
                        parent_r: choose.settings.leaf_r(r),
                        settings: choose.settings,
                    };
                    if self.firstn(&inner, leaves, &mut [], filled) <= filled {
                        return DrawOutcome::Rejected;
                    }
                }
                None => leaves[filled] = item,
            }
        }
        if item.osd().is_some_and(|osd| self.is_out(osd)) {
            return DrawOutcome::Rejected;
        }
        DrawOutcome::Taken(item)
    }

    /// Fills the positions of `items`, which are numbered from `first` on, in rounds.
    fn indep(
        &self,
        choose: &Choose<'_>,
        items: &mut [ItemId],
        leaves: &mut [ItemId],
        first: usize,
    ) {
        let mut rounds = 0;
        while rounds < choose.tries && items.contains(&UNDEFINED) {
            for at in 0..items.len() {
                if items[at] == UNDEFINED {
                    let leaf = leaves.get_mut(at);
                    items[at] = self.indep_draw(choose, items, leaf, first, first + at, rounds);
                }
            }
            rounds += 1;
        }
        self.count_tries(rounds);
        for item in items.iter_mut().chain(leaves) {
            if *item == UNDEFINED {
                *item = NONE;
            }
        }
    }

    /// One draw for one position: an item, or `UNDEFINED` to try again in the next round, or
    /// `NONE` to give up.
    fn indep_draw(
        &self,
        choose: &Choose<'_>,
        items: &[ItemId],
        leaf: Option<&mut ItemId>,
        first: usize,
        position: usize,
        round: u32,
    ) -> ItemId {
        let mut bucket = choose.bucket;
        let parent_r = (position as u32).wrapping_add(choose.parent_r);
        let positions = choose.positions as u32;
        let (item, r) = loop {
            let size = bucket.items.len() as u32;
            if size == 0 {
                return UNDEFINED;
            }
            // A permutation whose size is a multiple of the step would repeat its draws.
            let uniform = matches!(bucket.algorithm, Algorithm::Uniform { .. });
            let step = if uniform && size.is_multiple_of(positions) {
                positions.wrapping_add(1)
            } else {
                positions
            };
            let r = parent_r.wrapping_add(step.wrapping_mul(round));
            let index = self.draw(bucket, r, first);
            match self.next(bucket, index, choose.kind) {
                Next::Bucket(below) => bucket = below,
                Next::Found(item) => break (item, r),
                Next::Nowhere => {
                    if let Some(leaf) = leaf {
                        *leaf = NONE;
                    }
                    return NONE;
                }
            }
        };
        if items.contains(&item) {
            return UNDEFINED;
        }
        if let (Some(tries), Some(leaf)) = (choose.leaf_tries, leaf) {
            *leaf = match item.bucket().and_then(|id| self.map.bucket(id)) {
                Some(bucket) => {
                    let kind = TypeId::DEVICE;
                    let inner =
                        Choose { bucket, kind, tries, leaf_tries: None, parent_r: r, ..*choose };
                    let mut found = [UNDEFINED];
                    self.indep(&inner, &mut found, &mut [], position);
                    found[0]
                }
                None => item,
            };
            if *leaf == NONE {
                return UNDEFINED;
            }
        }
        if item.osd().is_some_and(|osd| self.is_out(osd)) {
            return UNDEFINED;
        }
        item
    }

    /// The index of the item drawn in a bucket that is not empty; `None` if the draw finds no item.
    pub(crate) fn draw(&self, bucket: &Bucket, r: u32, position: usize) -> Option<usize> {
        if let Some(index) = self.drawer.draw(bucket, r) {
            return Some(index);
        }
        let arg = self.choose_args.and_then(|args| args.buckets.get(&bucket.id));
        bucket.draw(self.x, r, arg, position)
    }

    fn count_tries(&self, failures: u32) {
        if let Some(tries) = self.tries {
            tries.add(failures);
        }
    }

    /// The next step of a descent after a draw.
    pub(crate) fn next(&self, bucket: &Bucket, index: Option<usize>, wanted: TypeId) -> Next<'_> {
        let Some(item) = index.map(|index| bucket.items[index]) else { return Next::Nowhere };
        match item.bucket() {
            None if wanted == TypeId::DEVICE => Next::Found(item),
            None => Next::Nowhere,
            Some(id) => match self.map.bucket(id) {
                None => Next::Nowhere,
                Some(bucket) if bucket.kind == wanted => Next::Found(item),
                Some(bucket) => Next::Bucket(bucket),
            },
        }
    }

    /// Devices past the end of the list, or of reweight 0, are out. A device of reweight w below
    /// 1.0 is out for a share of 1.0 - w of the inputs.
    pub(crate) fn is_out(&self, osd: OsdId) -> bool {
        match self.weights.get(osd.0 as usize).copied().unwrap_or(0) {
            0 => true,
            weight if weight >= WEIGHT_ONE => false,
            weight => hash2(self.x, osd.0) & 0xffff >= weight,
        }
    }
}
