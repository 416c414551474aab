//! Computes which data moves when a map changes.
//!
//! The module compares each placement group in the two maps. In a replicated pool the members are a
//! set, so only new members count. In an erasure-coded pool every position is a separate shard, so
//! two devices that swap positions both get new data. Upmaps count, `pg_temp` does not. A device
//! that is down keeps its shards until it is out.
//!
//! **When the number of groups differs**, groups have split or merged in place. Then the unit is
//! the smaller of the two. With 4 groups before and 8 after, group 6 is compared with the old group
//! 2, where its data was.
//!
//! **The minimum of moved data** follows from weights alone: the sum, over devices, of the increase
//! of the device's share. CRUSH moves more than that; the difference is the cost of working without
//! a directory.

use std::collections::BTreeMap;

use crate::osdmap::{OsdMap, PgId, PlaceError, Pool, PoolId, PoolPlacement};
use crate::reach::{self, Reach};
use crate::{ItemId, OsdId};

/// The shards of one pool on one device: held, received and sent, in shards of placement groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Movement {
    /// Shards before.
    pub before: u64,
    /// Shards after.
    pub after: u64,
    /// Shards that the device receives.
    pub received: u64,
    /// Shards that the device loses.
    pub sent: u64,
}

/// The changes in one pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolDiff {
    /// Placement groups; the greater number if that changed.
    pub pgs: u64,
    /// Placement groups in which a shard moves or is lost.
    pub pgs_changed: u64,
    /// Shards of all groups, after.
    pub shards: u64,
    /// Shards that move to a device.
    pub moved: u64,
    /// Positions without a device, after.
    pub holes: u64,
    /// The smallest number of shards that had to move, by weight; `None` if the rule does not
    /// define shares.
    pub min_moved: Option<f64>,
    /// The devices that have or had a shard.
    pub osds: BTreeMap<OsdId, Movement>,
}

/// Compares one pool in two maps; `threads` map placement groups.
///
/// # Errors
/// A map has no such pool.
pub fn diff_pool(
    old: &OsdMap,
    new: &OsdMap,
    id: PoolId,
    threads: usize,
) -> Result<PoolDiff, PlaceError> {
    let before = Side::new(old, id, threads)?;
    let after = Side::new(new, id, threads)?;
    let pgs = before.pool.pg_num.max(after.pool.pg_num);
    let is_set = before.pool.can_shift() && after.pool.can_shift();
    let mut diff = PoolDiff { pgs: pgs.into(), ..PoolDiff::default() };
    for seed in 0..pgs {
        let (was, is) = (before.members(seed), after.members(seed));
        let (received, sent) = (lacking(&is, &was, is_set), lacking(&was, &is, is_set));
        let held = is.iter().flatten().count();
        diff.shards += held as u64;
        diff.holes += usize::from(after.pool.size).saturating_sub(held) as u64;
        diff.moved += received.len() as u64;
        diff.pgs_changed += u64::from(!(received.is_empty() && sent.is_empty()));
        let mut count = |osd: OsdId, add: fn(&mut Movement)| add(diff.osds.entry(osd).or_default());
        was.into_iter().flatten().for_each(|osd| count(osd, |movement| movement.before += 1));
        is.into_iter().flatten().for_each(|osd| count(osd, |movement| movement.after += 1));
        received.into_iter().for_each(|osd| count(osd, |movement| movement.received += 1));
        sent.into_iter().for_each(|osd| count(osd, |movement| movement.sent += 1));
    }
    diff.min_moved = min_moved(&before, &after, &diff);
    Ok(diff)
}

/// A pool in one of the two maps.
struct Side<'m> {
    map: &'m OsdMap,
    id: PoolId,
    pool: &'m Pool,
    placement: PoolPlacement<'m>,
}

impl<'m> Side<'m> {
    fn new(map: &'m OsdMap, id: PoolId, threads: usize) -> Result<Self, PlaceError> {
        let placement = map.place_pool(id, threads)?;
        let pool = map.pools.get(&id).ok_or(PlaceError::NoSuchPool(id))?;
        Ok(Self { map, id, pool, placement })
    }

    /// The devices of a group, or of the group from which it will split or into which it has
    /// merged.
    fn members(&self, seed: u32) -> Vec<Option<OsdId>> {
        let seed = self.pool.fold(seed);
        let members = self.map.upmap(PgId { pool: self.id, seed }, self.placement.raw(seed));
        members
            .into_iter()
            .map(|item| (item != ItemId::NONE).then(|| item.osd()).flatten())
            .collect()
    }

    /// The share of each device in all shards together.
    fn targets(&self, shards: impl Fn(&Movement) -> u64, diff: &PoolDiff) -> Option<Vec<f64>> {
        let (_, rule) = self.map.crush.rules().find(|&(id, _)| id == self.pool.rule)?;
        let reach = Reach::new(&self.map.crush, rule).ok()?;
        let held = (0..self.map.weights.len() as u32).map(|osd| diff.osds.get(&OsdId(osd)));
        let held: Vec<u32> =
            held.map(|movement| movement.map_or(0, |f| shards(f) as u32)).collect();
        Some(reach::targets(&reach, &self.map.weights, &held))
    }
}

/// The members of `these` that are not in `those`: anywhere in a set, else at the same position.
fn lacking(these: &[Option<OsdId>], those: &[Option<OsdId>], is_set: bool) -> Vec<OsdId> {
    let lacks = |at: usize, osd: OsdId| match is_set {
        true => !those.contains(&Some(osd)),
        false => those.get(at) != Some(&Some(osd)),
    };
    let members = these.iter().enumerate().filter_map(|(at, osd)| Some((at, (*osd)?)));
    members.filter(|&(at, osd)| lacks(at, osd)).map(|(_, osd)| osd).collect()
}

/// The sum of the increases of the devices' shares.
fn min_moved(before: &Side<'_>, after: &Side<'_>, diff: &PoolDiff) -> Option<f64> {
    let was = before.targets(|movement| movement.before, diff)?;
    let is = after.targets(|movement| movement.after, diff)?;
    let had = |osd: usize| was.get(osd).copied().unwrap_or(0.0);
    Some(is.iter().enumerate().map(|(osd, target)| (target - had(osd)).max(0.0)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_counts_where_positions_have_a_meaning() {
        let members = |osds: [i64; 3]| osds.map(|osd| u32::try_from(osd).ok().map(OsdId));
        let (was, is) = (members([1, 2, 3]), members([2, 1, -1]));
        assert_eq!(lacking(&is, &was, true), []);
        assert_eq!(lacking(&was, &is, true), [OsdId(3)]);
        assert_eq!(lacking(&is, &was, false), [OsdId(2), OsdId(1)]);
        assert_eq!(lacking(&was, &is, false), [OsdId(1), OsdId(2), OsdId(3)]);
    }
}
