//! The map of the OSDs, and its changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use bytes::Bytes;
use fieldstone_cluster_model::wire::WireCluster;
use fieldstone_crush::osdmap::{
    Address, Addresses, Flags, Fsid, Incremental, OsdMap, OsdState, PgId, Pool, PoolId, PoolKind,
};
use fieldstone_crush::{BucketId, ItemId, MapBuilder, OsdId, RuleId, RuleStep, TypeId, WEIGHT_ONE};

/// OSDs of the cluster.
pub const OSDS: u32 = 6;
/// The pool of copies.
pub const REPLICATED: PoolId = PoolId(1);
/// The erasure-coded pool, with overwrites.
pub const ERASURE: PoolId = PoolId(2);
/// The number of the cluster.
pub const FSID: [u8; 16] = [7; 16];

/// The newest map, and how to change it.
pub struct Maps {
    map: OsdMap,
    /// Starts of each OSD: part of its address.
    starts: Vec<u32>,
}

/// The address of an OSD at its n-th start.
pub fn osd_socket(osd: u32, start: u32) -> SocketAddr {
    let port = 6800 + u16::try_from(start % 1000).expect("it is small");
    SocketAddr::from(([10, 0, 1, u8::try_from(osd).expect("few OSDs")], port))
}

fn osd_addresses(osd: u32, start: u32) -> Addresses {
    Addresses(vec![Address::msgr2(osd_socket(osd, start), start + 1)])
}

fn crush() -> fieldstone_crush::Map {
    let root = BucketId(-1);
    let items = (0..OSDS as i32).map(|osd| (ItemId(osd), WEIGHT_ONE));
    let (take, kind) = (RuleStep::Take(ItemId(-1)), TypeId(0));
    let copies = RuleStep::ChooseFirstn { count: 0, kind };
    let shards = RuleStep::ChooseIndep { count: 0, kind };
    let mut builder = MapBuilder::new();
    builder
        .straw2(root, TypeId(10), items)
        .rule(RuleId(0), [take, copies, RuleStep::Emit])
        .rule(RuleId(1), [take, shards, RuleStep::Emit]);
    builder.build().expect("the map is sound")
}

impl Maps {
    /// The first map: all OSDs are up.
    pub fn new() -> Self {
        let mut copies = Pool::new(PoolKind::Replicated, 3, 2, RuleId(0), 8);
        copies.name = "copies".to_owned();
        copies.flags |= Pool::SELFMANAGED_SNAPS;
        let mut shards = Pool::new(PoolKind::Erasure, 3, 2, RuleId(1), 4);
        shards.name = "shards".to_owned();
        shards.flags |= Pool::EC_OVERWRITES;
        shards.erasure_code_profile = "k2m1".to_owned();
        let pools = BTreeMap::from([(REPLICATED, copies), (ERASURE, shards)]);
        let mut map = OsdMap::of_crush(crush(), pools);
        map.epoch = 1;
        map.fsid = Fsid(FSID);
        map.require_osd_release = 16;
        let profile = [("k", "2"), ("m", "1"), ("plugin", "jerasure")];
        let profile = profile.map(|(key, value)| (key.to_owned(), value.to_owned()));
        map.erasure_code_profiles.insert("k2m1".to_owned(), profile.into_iter().collect());
        for osd in 0..OSDS {
            map.client_addresses[osd as usize] = osd_addresses(osd, 0);
        }
        Self { map, starts: vec![0; OSDS as usize] }
    }

    /// The newest map.
    pub fn map(&self) -> &OsdMap {
        &self.map
    }

    /// The OSD that listens at a socket, if it is up.
    pub fn listener(&self, socket: SocketAddr) -> Option<u32> {
        (0..OSDS)
            .find(|&osd| self.is_up(osd) && osd_socket(osd, self.starts[osd as usize]) == socket)
    }

    /// True if an OSD is up.
    pub fn is_up(&self, osd: u32) -> bool {
        self.map.is_up(ItemId(osd as i32))
    }

    /// The first map for the cluster.
    pub fn publish_first(&self, cluster: &mut WireCluster) {
        let full = Bytes::from(self.map.encode());
        let map = OsdMap::decode(&full).expect("it was encoded");
        cluster.publish(1, map, full, None);
    }

    /// Makes the next map.
    pub fn change(&mut self, cluster: &mut WireCluster, fill: impl FnOnce(&mut Incremental)) {
        let mut change = self.next();
        fill(&mut change);
        self.publish(cluster, change);
    }

    fn next(&self) -> Incremental {
        Incremental::new(self.map.fsid, self.map.epoch + 1)
    }

    fn publish(&mut self, cluster: &mut WireCluster, mut change: Incremental) {
        let epoch = change.epoch;
        self.clean_temporary(&mut change);
        let bytes = Bytes::from(change.encode());
        let change = Incremental::decode(&bytes).expect("it was encoded");
        self.map.apply(&change).expect("it is the next one");
        let full = Bytes::from(self.map.encode());
        cluster.publish(epoch, self.map.clone(), full, Some(bytes));
    }

    /// As monitors do: a temporary primary that is not in the group any more, and temporary members
    /// none of whom is up, go with the change that makes them so.
    fn clean_temporary(&self, change: &mut Incremental) {
        let mut next = self.map.clone();
        next.apply(change).expect("it is the next one");
        let groups: BTreeSet<PgId> =
            next.pg_temp.keys().chain(next.primary_temp.keys()).copied().collect();
        for pg in groups {
            let Ok(placement) = next.place(pg) else { continue };
            let primary = placement.acting_primary.map(ItemId::from);
            let is_sound = primary
                .is_some_and(|primary| placement.acting.contains(&primary) && next.is_up(primary));
            if !is_sound {
                change.new_pg_temp.insert(pg, Vec::new());
                change.new_primary_temp.insert(pg, ItemId(-1));
            }
        }
    }

    /// An OSD stops.
    pub fn down(&mut self, cluster: &mut WireCluster, osd: u32) {
        self.change(cluster, |change| {
            change.new_state.insert(OsdId(osd), OsdState::UP);
        });
    }

    /// An OSD starts again, at another port.
    pub fn up(&mut self, cluster: &mut WireCluster, osd: u32) {
        self.starts[osd as usize] += 1;
        let addresses = osd_addresses(osd, self.starts[osd as usize]);
        self.change(cluster, |change| {
            change.new_up_client.insert(OsdId(osd), addresses);
        });
    }

    /// An OSD gets no data any more, or data again.
    pub fn weigh(&mut self, cluster: &mut WireCluster, osd: u32, is_in: bool) {
        self.change(cluster, |change| {
            change.new_weight.insert(OsdId(osd), if is_in { WEIGHT_ONE } else { 0 });
        });
    }

    /// Changes a pool.
    pub fn change_pool(
        &mut self,
        cluster: &mut WireCluster,
        pool: PoolId,
        fill: impl FnOnce(&mut Pool, u32),
    ) {
        let (mut changed, epoch) = (self.map.pools[&pool].clone(), self.map.epoch + 1);
        fill(&mut changed, epoch);
        self.change(cluster, |change| {
            change.new_pools.insert(pool, changed);
        });
    }

    /// Pauses requests, or lets them go on.
    pub fn pause(&mut self, cluster: &mut WireCluster, reads: bool, writes: bool) {
        let mut flags = self.map.flags.0 & !(Flags::PAUSERD | Flags::PAUSEWR);
        flags |= if reads { Flags::PAUSERD } else { 0 };
        flags |= if writes { Flags::PAUSEWR } else { 0 };
        self.change(cluster, |change| change.new_flags = Some(flags));
    }

    /// Another member leads a group for a while, or CRUSH's choice does again.
    pub fn lead(&mut self, cluster: &mut WireCluster, pg: PgId, by: Option<usize>) {
        let mut change = self.next();
        self.note_lead(&mut change, pg, by);
        self.publish(cluster, change);
    }

    /// The same for all groups, in one change.
    pub fn lead_all(&mut self, cluster: &mut WireCluster, by: Option<usize>) {
        let mut change = self.next();
        for pg in self.map.pools.iter().flat_map(|(&id, pool)| pool.pgs(id)) {
            self.note_lead(&mut change, pg, by);
        }
        self.publish(cluster, change);
    }

    fn note_lead(&self, change: &mut Incremental, pg: PgId, by: Option<usize>) {
        let up = self.map.place(pg).map(|placement| placement.up).unwrap_or_default();
        let Some(by) = by.filter(|&by| by < up.len()) else {
            change.new_pg_temp.insert(pg, Vec::new());
            change.new_primary_temp.insert(pg, ItemId(-1));
            return;
        };
        if pg.pool == REPLICATED {
            let mut members = up;
            members.rotate_left(by);
            change.new_pg_temp.insert(pg, members);
        } else if up[by].0 >= 0 && up[by].0 < OSDS as i32 {
            change.new_primary_temp.insert(pg, up[by]);
        }
    }

    /// Moves a member of a group to an OSD outside of it.
    pub fn upmap(&mut self, cluster: &mut WireCluster, pg: PgId, pick: u32) {
        let Ok(placement) = self.map.place(pg) else { return };
        let to = (0..OSDS)
            .map(|osd| ItemId(((osd + pick) % OSDS) as i32))
            .find(|item| !placement.up.contains(item));
        let from = placement.raw.first().copied();
        self.change(cluster, |change| match (from, to) {
            (Some(from), Some(to)) if !pick.is_multiple_of(4) => {
                change.new_pg_upmap_items.insert(pg, vec![(from, to)]);
            }
            _ => {
                change.old_pg_upmap_items.insert(pg);
            }
        });
    }
}
