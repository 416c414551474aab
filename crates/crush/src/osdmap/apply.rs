//! Applies an increment to a map, in place. The order of the steps is part of the contract between
//! clients and cluster: later steps overrule earlier ones.

use std::collections::{BTreeMap, BTreeSet};

use super::{Addresses, ApplyError, Flags, Incremental, OsdInfo, OsdMap, OsdState};
use crate::{ItemId, OsdId, WEIGHT_ONE};

impl OsdMap {
    /// Makes this the map of the next epoch. After an error the map is as it was.
    ///
    /// The first increment of a cluster (epoch 1) may be applied to a map of epoch 0, whatever its
    /// fsid.
    ///
    /// # Errors
    /// The increment is not for this map.
    pub fn apply(&mut self, increment: &Incremental) -> Result<(), ApplyError> {
        self.check(increment)?;
        if let Some(full) = &increment.full {
            self.clone_from(full);
            return Ok(());
        }
        self.fsid = increment.fsid;
        self.epoch = increment.epoch;
        self.modified = increment.modified;
        self.flags.0 = increment.new_flags.unwrap_or(self.flags.0);
        if let Some(osds) = increment.new_max_osd {
            self.resize_osds(osds as usize);
        }
        self.apply_pools(increment);
        for (&osd, &weight) in &increment.new_weight {
            self.apply_weight(osd, weight);
        }
        for (&osd, &affinity) in &increment.new_primary_affinity {
            self.set_primary_affinity(osd, affinity);
        }
        for name in &increment.old_erasure_code_profiles {
            self.erasure_code_profiles.remove(name);
        }
        for (name, profile) in &increment.new_erasure_code_profiles {
            self.erasure_code_profiles.insert(name.clone(), profile.clone());
        }
        for (&osd, &flips) in &increment.new_state {
            self.apply_state(osd, flips);
        }
        self.apply_infos(increment);
        self.apply_groups(increment);
        self.apply_blocklists(increment);
        self.apply_releases(increment);
        if let Some(crush) = &increment.crush {
            self.crush = crush.clone();
        }
        Ok(())
    }

    /// Finds what makes the increment unfit, before anything changes.
    fn check(&self, increment: &Incremental) -> Result<(), ApplyError> {
        let first = self.epoch == 0 && increment.epoch == 1;
        if increment.fsid != self.fsid && !first {
            return Err(ApplyError::WrongFsid { map: self.fsid, increment: increment.fsid });
        }
        if self.epoch.checked_add(1) != Some(increment.epoch) {
            return Err(ApplyError::WrongEpoch { map: self.epoch, increment: increment.epoch });
        }
        if let Some(full) = &increment.full {
            if full.epoch != increment.epoch || full.fsid != increment.fsid {
                let (increment, full, fsid) = (increment.epoch, full.epoch, full.fsid);
                return Err(ApplyError::WrongFullMap { increment, full, fsid });
            }
            return Ok(());
        }
        let osds = increment.new_max_osd.map_or(self.states.len(), |osds| osds as usize);
        // Tables are sorted, so their last devices are the highest.
        let highest = [
            last(&increment.new_up_client),
            last(&increment.new_state),
            last(&increment.new_weight),
            last(&increment.new_primary_affinity),
            last(&increment.new_up_thru),
            last(&increment.new_last_clean_interval),
            last(&increment.new_lost),
        ];
        match highest.into_iter().flatten().max() {
            Some(osd) if osd.0 as usize >= osds => Err(ApplyError::NoSuchOsd { osd, osds }),
            _ => Ok(()),
        }
    }

    fn apply_pools(&mut self, increment: &Incremental) {
        // The increment has more bits than the map.
        self.pool_max = increment.new_pool_max.map_or(self.pool_max, |max| max as i32);
        for (&id, pool) in &increment.new_pools {
            let mut pool = pool.clone();
            pool.last_change = increment.epoch;
            // A changed pool comes without a name, and keeps its own.
            pool.name = self.pools.remove(&id).map(|old| old.name).unwrap_or_default();
            self.pools.insert(id, pool);
        }
        for (id, name) in &increment.new_pool_names {
            if let Some(pool) = self.pools.get_mut(id) {
                pool.name.clone_from(name);
            }
        }
        for id in &increment.old_pools {
            self.pools.remove(id);
        }
    }

    fn apply_weight(&mut self, osd: OsdId, weight: u32) {
        let at = osd.0 as usize;
        self.weights[at] = weight;
        if weight != 0 {
            let state = &mut self.states[at].0;
            *state = (*state | OsdState::EXISTS) & !(OsdState::AUTOOUT | OsdState::NEW);
        }
    }

    /// Flips flags of a state. A device that ceases to exist is forgotten.
    fn apply_state(&mut self, osd: OsdId, flips: u32) {
        let at = osd.0 as usize;
        let flips = if flips == 0 { OsdState::UP } else { flips };
        let both = self.states[at].0 & flips;
        if both & OsdState::UP != 0 {
            self.infos[at].down_at = self.epoch;
        }
        if both & OsdState::EXISTS != 0 {
            self.infos[at] = OsdInfo::default();
            self.set_primary_affinity(osd, WEIGHT_ONE);
            self.client_addresses[at] = Addresses::default();
            self.states[at] = OsdState::default();
        } else {
            self.states[at].0 ^= flips;
        }
    }

    /// Devices that came up, and the epochs of their lives.
    fn apply_infos(&mut self, increment: &Incremental) {
        for (&osd, addresses) in &increment.new_up_client {
            let at = osd.0 as usize;
            let state = &mut self.states[at].0;
            *state = (*state | OsdState::EXISTS | OsdState::UP) & !OsdState::STOP;
            self.client_addresses[at].clone_from(addresses);
            self.infos[at].up_from = increment.epoch;
        }
        for (&osd, &epoch) in &increment.new_up_thru {
            self.infos[osd.0 as usize].up_thru = epoch;
        }
        for (&osd, &(begin, end)) in &increment.new_last_clean_interval {
            let info = &mut self.infos[osd.0 as usize];
            (info.last_clean_begin, info.last_clean_end) = (begin, end);
        }
        for (&osd, &epoch) in &increment.new_lost {
            self.infos[osd.0 as usize].lost_at = epoch;
        }
    }

    fn apply_groups(&mut self, increment: &Incremental) {
        for (&pg, members) in &increment.new_pg_temp {
            match members.is_empty() {
                true => self.pg_temp.remove(&pg),
                false => self.pg_temp.insert(pg, members.clone()),
            };
        }
        for (&pg, &primary) in &increment.new_primary_temp {
            match primary {
                ItemId(-1) => self.primary_temp.remove(&pg),
                primary => self.primary_temp.insert(pg, primary),
            };
        }
        change(&mut self.pg_upmap, &increment.new_pg_upmap, &increment.old_pg_upmap);
        let (new, old) = (&increment.new_pg_upmap_items, &increment.old_pg_upmap_items);
        change(&mut self.pg_upmap_items, new, old);
        let (new, old) = (&increment.new_pg_upmap_primaries, &increment.old_pg_upmap_primaries);
        change(&mut self.pg_upmap_primaries, new, old);
    }

    /// A ban that exists already keeps its end.
    fn apply_blocklists(&mut self, increment: &Incremental) {
        for (&address, &until) in &increment.new_blocklist {
            self.blocklist.entry(address).or_insert(until);
        }
        for address in &increment.old_blocklist {
            self.blocklist.remove(address);
        }
        for (&range, &until) in &increment.new_range_blocklist {
            self.range_blocklist.entry(range).or_insert(until);
        }
        for range in &increment.old_range_blocklist {
            self.range_blocklist.remove(range);
        }
    }

    fn apply_releases(&mut self, increment: &Incremental) {
        if let Some(release) = increment.new_require_min_compat_client {
            self.require_min_compat_client = release;
        }
        if let Some(release) = increment.new_require_osd_release {
            self.require_osd_release = release;
            self.flags = Flags(self.flags.0).for_release(release);
        }
    }
}

/// The highest device of a table.
fn last<T>(table: &BTreeMap<OsdId, T>) -> Option<OsdId> {
    table.keys().next_back().copied()
}

/// Adds and replaces entries, then removes others.
fn change<K: Ord + Copy, V: Clone>(
    table: &mut BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    old: &BTreeSet<K>,
) {
    table.extend(new.iter().map(|(&key, value)| (key, value.clone())));
    for key in old {
        table.remove(key);
    }
}
