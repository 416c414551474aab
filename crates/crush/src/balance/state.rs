//! The shards of one pool by device, and the next move.
//!
//! A *deviation* is the number of a device's shards minus its share. It is a fixed-point number, so
//! that devices can be ordered exactly. A move takes a shard from a device to another device of its
//! cell. A move is useful if the two devices are more than one shard apart, because it then brings
//! them closer. Every move lowers the sum of squares of all deviations, so the moves end.

use std::collections::BTreeSet;

use crate::osdmap::{OsdMap, PgId, Pool, PoolId};
use crate::reach::{self, Reach, Reached};
use crate::{ItemId, OsdId};

/// One shard as a deviation.
pub(super) const SHARD: i64 = 1 << 20;

/// One device in one pool.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolDevice {
    /// The rule's way to reach the device, if there is one.
    pub(super) reached: Option<Reached>,
    /// True if the device may lose and get shards: it is up, in, reached, and its weight is not 0.
    pub(super) usable: bool,
    /// The device's share.
    pub(super) target: f64,
    /// The device's shards: indices into the state's tables.
    pub(super) shards: Vec<u32>,
}

impl PoolDevice {
    fn deviation(&self) -> i64 {
        self.shards.len() as i64 * SHARD - (self.target * SHARD as f64) as i64
    }
}

/// A pool being balanced.
#[derive(Debug)]
pub(super) struct State {
    pool: PoolId,
    width: usize,
    /// The device by CRUSH of shard `pg * width + position`; [`ItemId::NONE`] if there is none.
    raw: Vec<ItemId>,
    /// The shard's device now, with the upmaps of the map.
    before: Vec<ItemId>,
    /// The shard's device after the plan.
    placed: Vec<ItemId>,
    /// Placement groups that must not change.
    frozen: Vec<bool>,
    /// The device that must stay first, where the map names one.
    primaries: Vec<ItemId>,
    pub(super) devices: Vec<PoolDevice>,
    /// The allowed deviation.
    limit: i64,
    /// Usable devices of each cell by deviation.
    cells: Vec<BTreeSet<(i64, u32)>>,
    /// The devices above the limit, and those below, without the devices for which no useful move
    /// was found.
    over: BTreeSet<(i64, u32)>,
    under: BTreeSet<(i64, u32)>,
    /// Moves since `renew` last considered all devices again.
    moves_since_renewal: u64,
}

/// A shard and its new device.
struct Move {
    shard: u32,
    from: u32,
    to: u32,
}

impl State {
    pub(super) fn new(
        map: &OsdMap,
        pool: PoolId,
        known: &Pool,
        reach: &Reach,
        limit: u32,
        threads: usize,
    ) -> Self {
        let width = usize::from(known.size);
        let shards = known.pg_num as usize * width;
        let mut state = Self {
            pool,
            width,
            raw: vec![ItemId::NONE; shards],
            before: Vec::new(),
            placed: vec![ItemId::NONE; shards],
            frozen: vec![false; known.pg_num as usize],
            primaries: vec![ItemId::NONE; known.pg_num as usize],
            devices: vec![PoolDevice::default(); map.states.len()],
            limit: i64::from(limit) * SHARD,
            cells: vec![BTreeSet::new(); reach.cells as usize],
            over: BTreeSet::new(),
            under: BTreeSet::new(),
            moves_since_renewal: 0,
        };
        state.map_everything(map, known, threads);
        state.before.clone_from(&state.placed);
        state.set_targets(map, reach);
        for osd in 0..state.devices.len() as u32 {
            state.enter(osd);
        }
        state
    }

    /// Fills the tables of shards.
    fn map_everything(&mut self, map: &OsdMap, known: &Pool, threads: usize) {
        let Ok(whole) = map.place_pool(self.pool, threads) else { return };
        for seed in 0..known.pg_num {
            let pg = PgId { pool: self.pool, seed };
            let raw = whole.raw(seed);
            let placed = map.upmap_members(pg, raw.clone());
            let start = seed as usize * self.width;
            let same_shape = placed.len() == raw.len() && raw.len() <= self.width;
            self.frozen[seed as usize] =
                !same_shape || map.pg_upmap.contains_key(&pg) || chained(&raw, &placed);
            if let Some(&primary) = map.pg_upmap_primaries.get(&pg) {
                self.primaries[seed as usize] = primary;
            }
            for (at, &item) in raw.iter().take(self.width).enumerate() {
                self.raw[start + at] = item;
            }
            for (at, &item) in placed.iter().take(self.width).enumerate() {
                self.placed[start + at] = item;
                if let Some(device) = self.device_mut(item) {
                    device.shards.push((start + at) as u32);
                }
            }
        }
    }

    fn device_mut(&mut self, item: ItemId) -> Option<&mut PoolDevice> {
        self.devices.get_mut(item.osd()?.0 as usize)
    }

    /// Computes the share of every device that the rule reaches.
    fn set_targets(&mut self, map: &OsdMap, reach: &Reach) {
        let shards: Vec<u32> = self.devices.iter().map(|held| held.shards.len() as u32).collect();
        let targets = reach::targets(reach, &map.weights, &shards);
        for ((osd, device), target) in (0..).map(OsdId).zip(&mut self.devices).zip(targets) {
            device.reached = reach.devices.get(&osd).copied();
            device.target = target;
            device.usable = target > 0.0 && map.is_up(osd.into());
        }
    }

    /// The greatest deviation of a device that may still have a useful move; `None` if there is
    /// none above the limit.
    pub(super) fn worst(&self) -> Option<i64> {
        let over = self.over.last().map(|&(deviation, _)| deviation);
        let under = self.under.first().map(|&(deviation, _)| -deviation);
        over.max(under)
    }

    /// Makes the most useful move; false if no move is useful.
    pub(super) fn step(&mut self) -> bool {
        loop {
            let Some(worst) = self.worst() else { return false };
            let over = self.over.last().copied().filter(|&(deviation, _)| deviation == worst);
            let found = match (over, self.under.first().copied()) {
                (Some(key), _) => {
                    let found = self.push(key.1, key.0);
                    if found.is_none() {
                        self.over.remove(&key);
                    }
                    found
                }
                (None, Some(key)) => {
                    let found = self.pull(key.1, key.0);
                    if found.is_none() {
                        self.under.remove(&key);
                    }
                    found
                }
                (None, None) => None,
            };
            if let Some(found) = found {
                self.make(&found);
                return true;
            }
        }
    }

    /// Considers again the devices without a useful move, if any shard has moved since.
    pub(super) fn renew(&mut self) -> bool {
        if self.moves_since_renewal == 0 {
            return false;
        }
        self.moves_since_renewal = 0;
        for osd in 0..self.devices.len() as u32 {
            self.leave(osd);
            self.enter(osd);
        }
        self.worst().is_some()
    }

    /// A shard that an overfull device can give away.
    fn push(&self, from: u32, deviation: i64) -> Option<Move> {
        let device = &self.devices[from as usize];
        let back = device.shards.iter().find_map(|&shard| {
            let to = self.home(shard)?;
            let room = self.devices[to as usize].deviation() + SHARD <= self.limit;
            (room && self.allows(shard, to)).then_some(Move { shard, from, to })
        });
        if back.is_some() {
            return back;
        }
        let cell = &self.cells[device.reached?.cell as usize];
        let helps = |&(other, _): &(i64, u32)| other + SHARD < deviation;
        cell.iter().copied().take_while(helps).find_map(|(_, to)| {
            let shard = device.shards.iter().find(|&&shard| self.allows(shard, to))?;
            Some(Move { shard: *shard, from, to })
        })
    }

    /// A shard that an underfull device can get.
    fn pull(&self, to: u32, deviation: i64) -> Option<Move> {
        let cell = &self.cells[self.devices[to as usize].reached?.cell as usize];
        let helps = |&(other, _): &(i64, u32)| deviation + SHARD < other;
        cell.iter().rev().copied().take_while(helps).find_map(|(_, from)| {
            let shards = &self.devices[from as usize].shards;
            let shard = shards.iter().find(|&&shard| self.allows(shard, to))?;
            Some(Move { shard: *shard, from, to })
        })
    }

    /// The device by CRUSH of a shard that an upmap has moved.
    fn home(&self, shard: u32) -> Option<u32> {
        let raw = self.raw[shard as usize];
        if raw == self.placed[shard as usize] {
            return None;
        }
        let osd = raw.osd()?.0;
        self.devices.get(osd as usize).filter(|device| device.usable).map(|_| osd)
    }

    /// True if a shard may move to a device of its cell, or back to its device by CRUSH.
    fn allows(&self, shard: u32, to: u32) -> bool {
        let (shard, to_item) = (shard as usize, ItemId::from(OsdId(to)));
        let pg = shard / self.width;
        if self.frozen[pg] || self.primaries[pg] == self.placed[shard] {
            return false;
        }
        let Some(reached) = self.devices[to as usize].reached else { return false };
        let members = pg * self.width..(pg + 1) * self.width;
        members.filter(|&member| member != shard).all(|member| {
            // If CRUSH has put the device elsewhere in the group, the result would depend on the
            // order of upmaps.
            self.raw[member] != to_item
                && self.placed[member] != to_item
                && self.domain(self.placed[member]) != Some(reached.domain)
        })
    }

    fn domain(&self, item: ItemId) -> Option<ItemId> {
        let device = self.devices.get(item.osd()?.0 as usize)?;
        Some(device.reached?.domain)
    }

    fn make(&mut self, found: &Move) {
        let Move { shard, from, to } = *found;
        self.moves_since_renewal += 1;
        self.leave(from);
        self.leave(to);
        self.placed[shard as usize] = ItemId::from(OsdId(to));
        self.devices[from as usize].shards.retain(|&other| other != shard);
        self.devices[to as usize].shards.push(shard);
        self.enter(from);
        self.enter(to);
    }

    /// Inserts a device into all orders that it belongs to.
    fn enter(&mut self, osd: u32) {
        let device = &self.devices[osd as usize];
        let (Some(reached), true) = (device.reached, device.usable) else { return };
        let key = (device.deviation(), osd);
        self.cells[reached.cell as usize].insert(key);
        if key.0 > self.limit {
            self.over.insert(key);
        } else if key.0 < -self.limit {
            self.under.insert(key);
        }
    }

    /// Removes a device from all orders.
    fn leave(&mut self, osd: u32) {
        let device = &self.devices[osd as usize];
        let (Some(reached), true) = (device.reached, device.usable) else { return };
        let key = (device.deviation(), osd);
        self.cells[reached.cell as usize].remove(&key);
        self.over.remove(&key);
        self.under.remove(&key);
    }

    /// The upmaps that a placement group needs: the device by CRUSH, and the device instead.
    pub(super) fn items(&self, seed: u32) -> Vec<(ItemId, ItemId)> {
        let start = seed as usize * self.width;
        let members = start..start + self.width;
        let pairs = members.map(|member| (self.raw[member], self.placed[member]));
        pairs.filter(|(from, to)| from != to).collect()
    }

    /// Number of shards that have moved.
    pub(super) fn moves(&self) -> usize {
        self.before.iter().zip(&self.placed).filter(|(before, after)| before != after).count()
    }

    /// True for a placement group with a moved shard.
    pub(super) fn is_changed(&self, seed: u32) -> bool {
        let start = seed as usize * self.width;
        let members = start..start + self.width;
        self.before[members.clone()] != self.placed[members]
    }
}

/// True if a member of `placed` is at another position of `raw`. Then the pairs depend on their
/// order, and the balancer avoids them.
fn chained(raw: &[ItemId], placed: &[ItemId]) -> bool {
    let elsewhere = |at: usize, item: &ItemId| {
        *item != ItemId::NONE && raw.iter().enumerate().any(|(other, r)| other != at && r == item)
    };
    placed.iter().enumerate().any(|(at, item)| elsewhere(at, item))
}
