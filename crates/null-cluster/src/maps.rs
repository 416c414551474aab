//! The maps of the cluster: monitors, OSDs and pools, and their changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use bytes::Bytes;
use fieldstone_cluster_model::Store;
use fieldstone_cluster_model::wire::{MapChange, WireCluster};
use fieldstone_crush::osdmap::{
    Address, Addresses, Fsid, Incremental, OsdMap, PgId, Pool, PoolId, PoolKind, Time,
};
use fieldstone_crush::{BucketId, ItemId, MapBuilder, RuleId, RuleStep, TypeId, WEIGHT_ONE};
use fieldstone_rados::encoding;
use fieldstone_rados::message::monitor::{MonMap, MonitorInfo};

/// Features that all monitors of Ceph 16 have: one bit for each release since Kraken, and two more.
const MONITOR_FEATURES: u64 = 0xff;
/// Ceph 16.
const RELEASE: u8 = 16;
/// Copies that an object would have. The model keeps one.
const COPIES: u32 = 3;
/// Maps that are kept for clients that come back with an old one.
const MAPS_KEPT: u32 = 500;

/// The newest map of OSDs.
pub(crate) struct Maps {
    map: OsdMap,
    shut_out: BTreeSet<Address>,
}

fn crush(osds: u32) -> fieldstone_crush::Map {
    let items = (0..osds as i32).map(|osd| (ItemId(osd), WEIGHT_ONE));
    let steps = [
        RuleStep::Take(ItemId(-1)),
        RuleStep::ChooseFirstn { count: 0, kind: TypeId(0) },
        RuleStep::Emit,
    ];
    let mut builder = MapBuilder::new();
    builder.straw2(BucketId(-1), TypeId(10), items).rule(RuleId(0), steps);
    builder.build().expect("the map is sound")
}

/// The map of monitors: one, at this address.
pub(crate) fn monitors(fsid: [u8; 16], socket: SocketAddr, now: encoding::Time) -> MonMap {
    let addresses = encoding::Addresses(vec![encoding::EntityAddress::msgr2(socket, 0)]);
    let monitor = MonitorInfo { addresses, ..MonitorInfo::default() };
    MonMap {
        fsid,
        epoch: 1,
        changed: now,
        created: now,
        persistent_features: MONITOR_FEATURES,
        monitors: BTreeMap::from([("a".to_owned(), monitor)]),
        ranks: vec!["a".to_owned()],
        least_release: RELEASE,
        election_strategy: 1,
        ..MonMap::default()
    }
}

impl Maps {
    /// The first map. Pools get the numbers 1, 2, … as in [`crate::images`].
    pub(crate) fn new(fsid: [u8; 16], osds: &[SocketAddr], pools: &[String], pgs: u32) -> Self {
        let count = osds.len() as u32;
        let size = COPIES.min(count) as u8;
        let pools = pools.iter().zip(1..).map(|(name, id)| {
            let mut pool = Pool::new(PoolKind::Replicated, size, 1, RuleId(0), pgs);
            pool.name.clone_from(name);
            pool.flags |= Pool::SELFMANAGED_SNAPS;
            pool.applications.insert("rbd".to_owned(), BTreeMap::new());
            (PoolId(id), pool)
        });
        let mut map = OsdMap::of_crush(crush(count), pools.collect());
        map.epoch = 1;
        map.fsid = Fsid(fsid);
        map.require_osd_release = RELEASE;
        for (place, &socket) in map.client_addresses.iter_mut().zip(osds) {
            *place = Addresses(vec![Address::msgr2(socket, 1)]);
        }
        Self { map, shut_out: BTreeSet::new() }
    }

    /// Gives the first map to the cluster.
    pub(crate) fn publish_first(&self, cluster: &mut WireCluster) {
        let full = Bytes::from(self.map.encode());
        cluster.publish(self.map.epoch, self.map.clone(), full, None);
    }

    /// The map with a change that the cluster has made.
    pub(crate) fn publish(&mut self, cluster: &mut WireCluster, change: &MapChange) {
        let mut next = self.next();
        match change {
            MapChange::Blocklist => self.note_shut_out(cluster.store(), &mut next),
            MapChange::NewSnap(pool, snap) => {
                self.note_pool(*pool, &mut next, |pool, epoch| {
                    pool.snap_seq = pool.snap_seq.max(snap.0);
                    pool.snap_epoch = epoch;
                });
            }
            MapChange::RemovedSnap(pool, _) => {
                self.note_pool(*pool, &mut next, |pool, epoch| pool.snap_epoch = epoch);
            }
        }
        self.publish_next(cluster, &next);
    }

    /// The map in which the next member of each group is its primary.
    pub(crate) fn turn_primaries(&mut self, cluster: &mut WireCluster) {
        let mut next = self.next();
        for pg in self.map.pools.iter().flat_map(|(&id, pool)| pool.pgs(id)) {
            self.turn_primary(pg, &mut next);
        }
        self.publish_next(cluster, &next);
    }

    fn turn_primary(&self, pg: PgId, next: &mut Incremental) {
        let Ok(placement) = self.map.place(pg) else { return };
        let mut members = placement.acting;
        if members.len() > 1 {
            members.rotate_left(1);
            next.new_pg_temp.insert(pg, members);
        }
    }

    fn next(&self) -> Incremental {
        Incremental::new(self.map.fsid, self.map.epoch + 1)
    }

    fn note_pool(&self, id: PoolId, next: &mut Incremental, change: impl FnOnce(&mut Pool, u32)) {
        let Some(pool) = self.map.pools.get(&id) else { return };
        let mut pool = pool.clone();
        change(&mut pool, next.epoch);
        pool.last_change = next.epoch;
        next.new_pools.insert(id, pool);
    }

    /// Notes which addresses were shut out, or let in again, since the last map.
    fn note_shut_out(&mut self, store: &Store, next: &mut Incremental) {
        let mut present = BTreeSet::new();
        for (text, until) in store.all_shut_out() {
            let Some(address) = address_of(text) else { continue };
            let until = store.time_of_day(until);
            present.insert(address);
            if !self.shut_out.contains(&address) {
                let until = Time { seconds: until.seconds, nanos: until.nanos };
                next.new_blocklist.insert(address, until);
            }
        }
        next.old_blocklist.extend(self.shut_out.difference(&present));
        self.shut_out = present;
    }

    fn publish_next(&mut self, cluster: &mut WireCluster, next: &Incremental) {
        let change = Bytes::from(next.encode());
        // Both cannot fail for a change that was made above; if they did, the old map stays.
        let applied = Incremental::decode(&change)
            .map_err(|error| error.to_string())
            .and_then(|next| self.map.apply(&next).map_err(|error| error.to_string()));
        if let Err(error) = applied {
            tracing::error!("a change of the map is dropped: {error}");
            return;
        }
        let full = Bytes::from(self.map.encode());
        cluster.publish(next.epoch, self.map.clone(), full, Some(change));
        cluster.trim_maps(next.epoch.saturating_sub(MAPS_KEPT));
    }
}

/// An address as `IP:PORT/NONCE`.
fn address_of(text: &str) -> Option<Address> {
    let (socket, nonce) = text.split_once('/').unwrap_or((text, "0"));
    let socket = match socket.parse() {
        Ok(socket) => socket,
        Err(_) => SocketAddr::new(socket.parse().ok()?, 0),
    };
    let mut address = Address::msgr2(socket, nonce.parse().ok()?);
    address.kind = fieldstone_crush::osdmap::AddressKind::Any;
    Some(address)
}

#[cfg(test)]
mod tests {
    use fieldstone_rados::Nanos;

    use super::*;

    fn cluster() -> (Maps, WireCluster) {
        let sockets: Vec<SocketAddr> =
            (0..3).map(|osd| SocketAddr::from(([127, 0, 0, 1], 7000 + osd))).collect();
        let maps = Maps::new([1; 16], &sockets, &["pool".to_owned()], 8);
        let monitors = monitors([1; 16], sockets[0], encoding::Time::default());
        let mut cluster = WireCluster::new(Store::default(), monitors);
        maps.publish_first(&mut cluster);
        (maps, cluster)
    }

    #[test]
    fn a_client_that_is_shut_out_is_in_the_next_map() {
        let (mut maps, mut cluster) = cluster();
        let text = "127.0.0.1:0/77";
        let address = address_of(text).expect("an address");
        cluster.store().shut_out(text, None, Nanos(0));
        maps.publish(&mut cluster, &MapChange::Blocklist);
        assert!(maps.map.is_blocklisted(&address));
        cluster.store().let_in(text);
        maps.publish(&mut cluster, &MapChange::Blocklist);
        assert!(!maps.map.is_blocklisted(&address));
        assert_eq!(cluster.epoch(), 3);
        assert_eq!(address_of("10.0.0.1").map(|all| all.nonce), Some(0));
    }

    #[test]
    fn primaries_turn() {
        let (mut maps, mut cluster) = cluster();
        let pg = PgId { pool: PoolId(1), seed: 3 };
        let primary = |maps: &Maps| maps.map.place(pg).expect("it exists").acting_primary;
        let mut seen = vec![primary(&maps)];
        for _ in 0..3 {
            maps.turn_primaries(&mut cluster);
            seen.push(primary(&maps));
        }
        assert_eq!(seen[0], seen[3]);
        seen.truncate(3);
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 3);
    }
}
