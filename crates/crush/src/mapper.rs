//! Running a rule.
//!
//! A draw is a descent from a bucket: choose an item, and if it is a bucket of another type than
//! wanted, choose in that one, and so on. The attempt number r makes draws differ. A draw fails
//! when its item was already drawn (*collision*) or when it is a device that is out (*reject*).
//!
//! **firstn** (replicas): fills positions one after the other; position and failures so far add up
//! to r. A position that stays empty after all attempts is skipped, and later ones move up: what
//! replicas want, for they are interchangeable.
//!
//! **indep** (shards): tries all open positions once per round; r steps by the number of positions
//! per round, so positions never share an r. A position that fails stays empty and no other moves:
//! what shards want, for shard 3 is only shard 3.
//!
//! **chooseleaf** draws a bucket and, within the same attempt, a device below it. Leaves of firstn
//! must differ from earlier leaves; those of indep are compared with nothing, for they lie below
//! different buckets.
//!
//! The numbers (what counts as an attempt, which r a leaf gets, that an inner indep counts its
//! position twice) are Ceph's; any change of them changes placements.

use crate::hash::hash2;
use crate::map::{Bucket, Map, Rule, RuleStep, Tunables};
use crate::{ItemId, OsdId, Osds, TypeId, WEIGHT_ONE};

/// A position that could not be filled.
const NONE: ItemId = ItemId(0x7fff_ffff);
/// A position that is still open.
const UNDEFINED: ItemId = ItemId(0x7fff_fffe);

/// A rule of a map, ready to map.
#[derive(Clone, Copy, Debug)]
pub struct RuleRef<'m> {
    map: &'m Map,
    rule: &'m Rule,
}

impl<'m> RuleRef<'m> {
    pub(crate) fn new(map: &'m Map, rule: &'m Rule) -> Self {
        Self { map, rule }
    }

    /// The devices for input `x`, at most `width` of them. `weights[i]` is the 16.16 reweight of
    /// device i; devices past its end are out. A result that is a bucket (of a rule that does not
    /// descend to devices) reads as `None`; [`RuleRef::map_items`] gives those.
    #[must_use]
    pub fn map(&self, x: u32, width: usize, weights: &[u32]) -> Osds {
        let items = self.map_items(x, width, weights);
        Osds(items.into_iter().map(|item| item.and_then(ItemId::osd)).collect())
    }

    /// [`RuleRef::map`] for many inputs.
    #[must_use]
    pub fn map_batch(&self, xs: &[u32], width: usize, weights: &[u32]) -> Vec<Osds> {
        xs.iter().map(|&x| self.map(x, width, weights)).collect()
    }

    /// As [`RuleRef::map`], for rules that may give buckets.
    #[must_use]
    pub fn map_items(&self, x: u32, width: usize, weights: &[u32]) -> Vec<Option<ItemId>> {
        let run = Run { map: self.map, x, weights, width };
        let items = run.rule(self.rule);
        items.into_iter().map(|item| (item != NONE).then_some(item)).collect()
    }
}

/// The attempts that a choose step may make, as the rule has set them so far.
struct Tries {
    choose: u32,
    /// 0: not set by the rule.
    leaf: u32,
    tunables: Tunables,
}

impl Tries {
    fn new(tunables: Tunables) -> Self {
        // The tunable once counted retries, not attempts.
        Self { choose: tunables.choose_total_tries + 1, leaf: 0, tunables }
    }

    /// Takes note of a `Set` step; the other steps change nothing.
    fn set(&mut self, step: RuleStep) {
        match step {
            RuleStep::SetChooseTries(tries) if tries > 0 => self.choose = tries,
            RuleStep::SetChooseleafTries(tries) if tries > 0 => self.leaf = tries,
            RuleStep::SetChooseLocalTries(tries) => self.tunables.choose_local_tries = tries,
            RuleStep::SetChooseLocalFallbackTries(tries) => {
                self.tunables.choose_local_fallback_tries = tries;
            }
            RuleStep::SetChooseleafVaryR(shift) => self.tunables.chooseleaf_vary_r = shift,
            RuleStep::SetChooseleafStable(stable) => self.tunables.chooseleaf_stable = stable,
            _ => {}
        }
    }
}

/// One choose step, or the search for one leaf inside it.
struct Choose<'a> {
    bucket: &'a Bucket,
    /// Positions wanted; part of r in indep.
    positions: usize,
    kind: TypeId,
    tries: u32,
    /// Attempts of the search for a leaf; `None` when no leaf is wanted.
    leaf_tries: Option<u32>,
    /// What the outer search adds to r.
    parent_r: u32,
    tunables: &'a Tunables,
}

/// How one draw of firstn ended.
enum Draw {
    Taken(ItemId),
    Collided,
    Rejected,
    /// The map led nowhere: the position is given up at once.
    Hopeless,
}

/// One mapping.
struct Run<'m> {
    map: &'m Map,
    x: u32,
    weights: &'m [u32],
    width: usize,
}

impl Run<'_> {
    fn rule(&self, rule: &Rule) -> Vec<ItemId> {
        let mut tries = Tries::new(self.map.tunables);
        let mut result = Vec::with_capacity(self.width);
        let mut working: Vec<ItemId> = Vec::new();
        for &step in &rule.steps {
            match step {
                RuleStep::Take(item) => working = vec![item],
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

    /// Replaces every bucket of `working` by what is chosen below it. Each bucket's choice is made
    /// on its own: collisions are looked for only among its own results.
    fn choose_step(
        &self,
        working: &[ItemId],
        count: i32,
        kind: TypeId,
        tries: &Tries,
        indep: bool,
        leaf: bool,
    ) -> Vec<ItemId> {
        let positions =
            if count > 0 { i64::from(count) } else { i64::from(count) + self.width as i64 };
        let Some(positions) = usize::try_from(positions).ok().filter(|&n| n > 0) else {
            return Vec::new();
        };
        let leaf_tries = match (tries.leaf, indep) {
            (0, true) => 1,
            (0, false) if tries.tunables.chooseleaf_descend_once => 1,
            (0, false) => tries.choose,
            (set, _) => set,
        };
        let mut chosen: Vec<ItemId> = Vec::with_capacity(self.width);
        for item in working {
            let Some(bucket) = item.bucket().and_then(|id| self.map.bucket(id)) else { continue };
            let choose = Choose {
                bucket,
                positions,
                kind,
                tries: tries.choose,
                leaf_tries: leaf.then_some(leaf_tries),
                parent_r: 0,
                tunables: &tries.tunables,
            };
            let room = self.width - chosen.len();
            let mut items = vec![UNDEFINED; if indep { positions.min(room) } else { room }];
            let mut leaves = items.clone();
            let filled = if indep {
                self.indep(&choose, &mut items, &mut leaves, 0);
                items.len()
            } else {
                self.firstn(&choose, &mut items, &mut leaves, 0)
            };
            let taken = if leaf { leaves } else { items };
            chosen.extend(&taken[..filled]);
        }
        chosen
    }

    /// Fills `items` (and `leaves`) from `filled` on, with at most `choose.positions` attempts at a
    /// position, and returns how many are filled then.
    fn firstn(
        &self,
        choose: &Choose<'_>,
        items: &mut [ItemId],
        leaves: &mut [ItemId],
        mut filled: usize,
    ) -> usize {
        let first = if choose.tunables.chooseleaf_stable { 0 } else { filled };
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
        let tunables = choose.tunables;
        let mut failures = 0;
        loop {
            let mut bucket = choose.bucket;
            let mut local_failures = 0;
            loop {
                let r = (position as u32).wrapping_add(choose.parent_r).wrapping_add(failures);
                let by_permutation = tunables.choose_local_fallback_tries > 0
                    && local_failures >= bucket.items.len() as u32 / 2
                    && local_failures > tunables.choose_local_fallback_tries;
                let draw = if bucket.items.is_empty() {
                    Draw::Rejected
                } else {
                    let item = if by_permutation {
                        bucket.choose_by_permutation(self.x, r)
                    } else {
                        bucket.choose(self.x, r)
                    };
                    match self.next_bucket(item, choose.kind) {
                        Ok(Some(below)) => {
                            bucket = below;
                            continue;
                        }
                        Ok(None) => self.firstn_judge(choose, item, r, items, leaves, filled),
                        Err(()) => Draw::Hopeless,
                    }
                };
                let collided = match draw {
                    Draw::Taken(item) => return Some(item),
                    Draw::Hopeless => return None,
                    Draw::Collided => true,
                    Draw::Rejected => false,
                };
                failures += 1;
                local_failures += 1;
                let size = bucket.items.len() as u32;
                let fallback = tunables.choose_local_fallback_tries;
                let again_here = collided && local_failures <= tunables.choose_local_tries
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

    /// Whether an item of the wanted type can be taken; looks for its leaf if one is wanted.
    fn firstn_judge(
        &self,
        choose: &Choose<'_>,
        item: ItemId,
        r: u32,
        items: &[ItemId],
        leaves: &mut [ItemId],
        filled: usize,
    ) -> Draw {
        if items[..filled].contains(&item) {
            return Draw::Collided;
        }
        if let Some(leaf_tries) = choose.leaf_tries {
            match item.bucket().and_then(|id| self.map.bucket(id)) {
                Some(bucket) => {
                    let inner = Choose {
                        bucket,
                        positions: if choose.tunables.chooseleaf_stable { 1 } else { filled + 1 },
                        kind: TypeId::DEVICE,
                        tries: leaf_tries,
                        leaf_tries: None,
                        parent_r: match choose.tunables.chooseleaf_vary_r {
                            0 => 0,
                            shift => r.checked_shr(shift - 1).unwrap_or(0),
                        },
                        tunables: choose.tunables,
                    };
                    if self.firstn(&inner, leaves, &mut [], filled) <= filled {
                        return Draw::Rejected;
                    }
                }
                None => leaves[filled] = item,
            }
        }
        if item.osd().is_some_and(|osd| self.is_out(osd)) {
            return Draw::Rejected;
        }
        Draw::Taken(item)
    }

    /// Fills the positions of `items`, which are numbered from `first` on, in rounds.
    fn indep(
        &self,
        choose: &Choose<'_>,
        items: &mut [ItemId],
        leaves: &mut [ItemId],
        first: usize,
    ) {
        for round in 0..choose.tries {
            if !items.contains(&UNDEFINED) {
                break;
            }
            for at in 0..items.len() {
                if items[at] == UNDEFINED {
                    let leaf = leaves.get_mut(at);
                    items[at] = self.indep_draw(choose, items, leaf, first + at, round);
                }
            }
        }
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
        position: usize,
        round: u32,
    ) -> ItemId {
        let mut bucket = choose.bucket;
        let r = (position as u32)
            .wrapping_add(choose.parent_r)
            .wrapping_add((choose.positions as u32).wrapping_mul(round));
        let item = loop {
            if bucket.items.is_empty() {
                return UNDEFINED;
            }
            let item = bucket.choose(self.x, r);
            match self.next_bucket(item, choose.kind) {
                Ok(Some(below)) => bucket = below,
                Ok(None) => break item,
                Err(()) => {
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

    /// Where the descent goes on from a drawn item: in a bucket, or nowhere because the item is of
    /// the wanted type. An error is a device where a bucket was wanted.
    fn next_bucket(&self, item: ItemId, wanted: TypeId) -> Result<Option<&Bucket>, ()> {
        match item.bucket() {
            None if wanted == TypeId::DEVICE => Ok(None),
            None => Err(()),
            Some(id) => {
                let bucket = self.map.bucket(id).ok_or(())?;
                Ok((bucket.kind != wanted).then_some(bucket))
            }
        }
    }

    /// Devices out of the list or of reweight 0 are out; those of a fraction are out for as large
    /// a share of the inputs as is missing to 1.0.
    fn is_out(&self, osd: OsdId) -> bool {
        match self.weights.get(osd.0 as usize).copied().unwrap_or(0) {
            0 => true,
            weight if weight >= WEIGHT_ONE => false,
            weight => hash2(self.x, osd.0) & 0xffff >= weight,
        }
    }
}
