//! From a placement group to its devices; [`osdmap`](super) describes the steps.

use super::{OsdMap, PgId, PlaceError, Pool, PoolId};
use crate::hash::hash2;
use crate::{CrushError, ItemId, OsdId, Rows, WEIGHT_ONE};

/// Inputs that a thread maps in one call.
const CHUNK: usize = 1024;

/// The devices of one placement group. In erasure-coded pools [`ItemId::NONE`] is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The devices by CRUSH.
    pub raw: Vec<ItemId>,
    /// The devices after upmaps.
    pub upmapped: Vec<ItemId>,
    /// The devices among them that are up: where data should be.
    pub up: Vec<ItemId>,
    /// The primary of `up`.
    pub up_primary: Option<OsdId>,
    /// The devices that have the data now, as far as the map knows.
    pub acting: Vec<ItemId>,
    /// The primary of `acting`: the device that clients talk to.
    pub acting_primary: Option<OsdId>,
}

/// The devices by CRUSH for all placement groups of a pool.
#[derive(Clone, Debug)]
pub struct PoolPlacement<'m> {
    map: &'m OsdMap,
    id: PoolId,
    pool: &'m Pool,
    raw: Rows,
}

impl PoolPlacement<'_> {
    /// The number of placement groups of the pool.
    #[must_use]
    pub fn pg_num(&self) -> u32 {
        self.pool.pg_num
    }

    /// The placement of group `seed`.
    ///
    /// # Panics
    /// If the pool has no such group.
    #[must_use]
    pub fn placement(&self, seed: u32) -> Placement {
        let pg = PgId { pool: self.id, seed };
        self.map.finish(self.pool, pg, self.raw.row(seed as usize).to_vec())
    }

    /// The group's raw devices, without those that do not exist.
    ///
    /// # Panics
    /// As [`PoolPlacement::placement`].
    #[must_use]
    pub fn raw(&self, seed: u32) -> Vec<ItemId> {
        let mut raw = self.raw.row(seed as usize).to_vec();
        drop_members(self.pool, &mut raw, |item| self.map.state(item).is_some());
        raw
    }
}

impl OsdMap {
    /// The placement group of an object. If `key` is not empty, it is hashed instead of the name.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn locate(
        &self,
        pool: PoolId,
        namespace: &str,
        key: &str,
        name: &str,
    ) -> Result<PgId, PlaceError> {
        let known = self.pools.get(&pool).ok_or(PlaceError::NoSuchPool(pool))?;
        Ok(PgId { pool, seed: known.fold(known.seed(namespace, key, name)) })
    }

    /// The placement of one group.
    ///
    /// # Errors
    /// There is no such pool or group.
    pub fn place(&self, pg: PgId) -> Result<Placement, PlaceError> {
        let pool = self.pools.get(&pg.pool).ok_or(PlaceError::NoSuchPool(pg.pool))?;
        if pg.seed >= pool.pg_num {
            return Err(PlaceError::NoSuchPg { pg, pg_num: pool.pg_num });
        }
        let raw = self.crush_rows(pg.pool, pool, pg.seed..pg.seed + 1);
        Ok(self.finish(pool, pg, raw.row(0).to_vec()))
    }

    /// The placements of all groups of a pool, computed by `threads` threads.
    ///
    /// # Errors
    /// There is no such pool.
    pub fn place_pool(&self, id: PoolId, threads: usize) -> Result<PoolPlacement<'_>, PlaceError> {
        let pool = self.pools.get(&id).ok_or(PlaceError::NoSuchPool(id))?;
        let count = pool.pg_num as usize;
        let threads = threads.clamp(1, count.div_ceil(CHUNK));
        let share = (count.div_ceil(threads) as u32).max(1);
        let parts: Vec<Rows> = std::thread::scope(|scope| {
            let starts = (0..pool.pg_num).step_by(share as usize);
            let works: Vec<_> = starts
                .map(|start| {
                    let seeds = start..pool.pg_num.min(start.saturating_add(share));
                    scope.spawn(move || self.crush_rows(id, pool, seeds))
                })
                .collect();
            let join = |work: std::thread::ScopedJoinHandle<'_, Rows>| {
                work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            works.into_iter().map(join).collect()
        });
        Ok(PoolPlacement { map: self, id, pool, raw: Rows::concat(parts) })
    }

    /// The devices by CRUSH for some seeds. A rule that does not exist gives empty rows, as in
    /// Ceph.
    fn crush_rows(&self, id: PoolId, pool: &Pool, seeds: std::ops::Range<u32>) -> Rows {
        let xs: Vec<u32> = seeds.map(|seed| pool.x(id, seed)).collect();
        let width = usize::from(pool.size);
        match self.crush.rule(pool.rule) {
            Ok(rule) => rule.with_choose_args(self.crush.choose_args_for_pool(id.0)).map_rows(
                &xs,
                width,
                &self.weights,
            ),
            Err(CrushError::NoSuchRule(_)) => Rows::new(xs.len(), width),
        }
    }

    /// The steps after CRUSH.
    fn finish(&self, pool: &Pool, pg: PgId, mut raw: Vec<ItemId>) -> Placement {
        drop_members(pool, &mut raw, |item| self.state(item).is_some());
        let upmapped = self.upmap(pg, raw.clone());
        let mut up = upmapped.clone();
        drop_members(pool, &mut up, |item| self.is_up(item));
        let up_primary = self.primary(pool, pg, &mut up);
        let (mut acting, temp_primary) = self.temporary(pool, pg);
        let mut acting_primary = temp_primary;
        if acting.is_empty() {
            acting.clone_from(&up);
            acting_primary = temp_primary.or(up_primary);
        }
        Placement { raw, upmapped, up, up_primary, acting, acting_primary }
    }

    /// True if an upmap's device is out: such upmaps do not count.
    fn is_out(&self, item: ItemId) -> bool {
        item.osd().is_some_and(|osd| self.weights.get(osd.0 as usize) == Some(&0))
    }

    /// True if `pg_upmap` names a device that is out: then the other tables do not count either.
    fn voids_upmaps(&self, pg: PgId) -> bool {
        self.pg_upmap.get(&pg).is_some_and(|whole| whole.iter().any(|&item| self.is_out(item)))
    }

    /// Replaces members of `raw` as the upmap tables say.
    #[must_use]
    pub fn upmap(&self, pg: PgId, raw: Vec<ItemId>) -> Vec<ItemId> {
        let mut members = self.upmap_members(pg, raw);
        if let Some(&first) = self.pg_upmap_primaries.get(&pg) {
            let in_use = first.osd().is_some_and(|osd| self.weight(osd) != 0);
            let place = members.iter().skip(1).position(|&item| item == first);
            if let Some(place) = place.filter(|_| in_use && !self.voids_upmaps(pg)) {
                members.swap(0, place + 1);
            }
        }
        members
    }

    /// As [`OsdMap::upmap`], but without `pg_upmap_primaries`: members keep their positions.
    #[must_use]
    pub fn upmap_members(&self, pg: PgId, mut raw: Vec<ItemId>) -> Vec<ItemId> {
        if self.voids_upmaps(pg) {
            return raw;
        }
        if let Some(whole) = self.pg_upmap.get(&pg) {
            raw.clone_from(whole);
        }
        for &(from, to) in self.pg_upmap_items.get(&pg).into_iter().flatten() {
            if self.is_out(to) || raw.contains(&to) {
                continue;
            }
            if let Some(member) = raw.iter_mut().find(|item| **item == from) {
                *member = to;
            }
        }
        raw
    }

    /// The primary of an up set: the first member, or another one by affinities. In replicated
    /// pools that one moves to the front.
    fn primary(&self, pool: &Pool, pg: PgId, up: &mut [ItemId]) -> Option<OsdId> {
        let members = || up.iter().enumerate().filter_map(|(at, item)| Some((at, device(*item)?)));
        let first = members().next()?;
        let (mut at, mut primary) = first;
        if members().any(|(_, osd)| self.primary_affinity(osd) != WEIGHT_ONE) {
            let x = pool.x(pg.pool, pg.seed);
            let accepts = |osd: OsdId| {
                let affinity = self.primary_affinity(osd);
                affinity >= WEIGHT_ONE || hash2(x, osd.0) >> 16 < affinity
            };
            // If no member accepts, the first is the primary.
            (at, primary) = members().find(|&(_, osd)| accepts(osd)).unwrap_or(first);
        }
        if pool.can_shift() {
            up[..=at].rotate_right(1);
        }
        Some(primary)
    }

    /// The members by `pg_temp` and the primary by `primary_temp`; empty and `None` without an
    /// entry.
    fn temporary(&self, pool: &Pool, pg: PgId) -> (Vec<ItemId>, Option<OsdId>) {
        let mut members = self.pg_temp.get(&pg).cloned().unwrap_or_default();
        drop_members(pool, &mut members, |item| self.is_up(item));
        let primary = match self.primary_temp.get(&pg) {
            Some(&item) => device(item),
            None => members.iter().find_map(|&item| device(item)),
        };
        (shards_in_order(pool, &members), primary)
    }
}

/// With the optimisations of Ceph 20, `pg_temp` lists the shards that can be primary first. This
/// function restores their positions.
fn shards_in_order(pool: &Pool, members: &[ItemId]) -> Vec<ItemId> {
    let (may, never): (Vec<usize>, Vec<usize>) =
        (0..members.len()).partition(|&shard| !pool.is_nonprimary(shard));
    let mut ordered = vec![ItemId::NONE; members.len()];
    for (&member, shard) in members.iter().zip(may.into_iter().chain(never)) {
        ordered[shard] = member;
    }
    ordered
}

/// Drops members that `wanted` refuses.
fn drop_members(pool: &Pool, members: &mut Vec<ItemId>, wanted: impl Fn(ItemId) -> bool) {
    if pool.can_shift() {
        members.retain(|&item| wanted(item));
    } else {
        members.iter_mut().filter(|item| !wanted(**item)).for_each(|item| *item = ItemId::NONE);
    }
}

/// The device, unless it is a hole.
fn device(item: ItemId) -> Option<OsdId> {
    if item == ItemId::NONE { None } else { item.osd() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleId;
    use crate::osdmap::PoolKind;

    fn pool(kind: PoolKind, nonprimary_shards: u128) -> Pool {
        let flags = Pool::EC_OPTIMIZATIONS;
        Pool { flags, nonprimary_shards, ..Pool::new(kind, 6, 5, RuleId(0), 8) }
    }

    #[test]
    fn temporary_members_of_optimised_pools_are_put_in_order() {
        let members: Vec<ItemId> = (10..16).map(ItemId).collect();
        // Of 4 + 2 shards only 0 and the parities 4, 5 can be primary; they are listed first.
        let optimised = pool(PoolKind::Erasure, 0b00_1110);
        let ordered = [10, 13, 14, 15, 11, 12].map(ItemId);
        assert_eq!(shards_in_order(&optimised, &members), ordered);
        let plain = Pool { flags: 0, ..optimised };
        assert_eq!(shards_in_order(&plain, &members), members);
    }

    #[test]
    fn members_are_dropped_by_the_kind_of_pool() {
        let odd = |item: ItemId| item.0 % 2 == 1;
        let mut members: Vec<ItemId> = (1..6).map(ItemId).collect();
        drop_members(&pool(PoolKind::Erasure, 0), &mut members, odd);
        assert_eq!(members, [1, ItemId::NONE.0, 3, ItemId::NONE.0, 5].map(ItemId));
        drop_members(&pool(PoolKind::Replicated, 0), &mut members, |item| item != ItemId::NONE);
        assert_eq!(members, [1, 3, 5].map(ItemId));
    }
}
