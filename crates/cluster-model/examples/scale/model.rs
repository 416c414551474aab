//! The clusters of the example.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use fieldstone_crush::osdmap::{
    Address, AddressKind, Addresses, Fsid, Incremental, OsdMap, OsdState, PgId, Pool, PoolId,
    PoolKind,
};
use fieldstone_crush::{
    BucketId, ItemId, Map, MapBuilder, OsdId, RuleId, RuleStep, TypeId, WEIGHT_ONE,
};

/// The pool.
pub const POOL: PoolId = PoolId(1);
/// The number of the cluster.
pub const FSID: [u8; 16] = [7; 16];
const COPIES: u8 = 3;
/// The least number of copies of groups on each OSD, as Ceph advises.
const COPIES_PER_OSD: u32 = 100;
const OSDS_PER_HOST: u32 = 10;
const HOSTS_PER_RACK: u32 = 10;
/// One group of so many has an upmap.
const GROUPS_PER_UPMAP: u32 = 8;
const HOST: TypeId = TypeId(1);
const RACK: TypeId = TypeId(3);
const ROOT: TypeId = TypeId(11);

/// The address of an OSD.
pub fn osd_socket(osd: u32) -> SocketAddr {
    let [_, high, middle, low] = osd.to_be_bytes();
    SocketAddr::from(([10, 1 + high, middle, low], 6800))
}

/// The OSD at an address.
pub fn osd_at(socket: SocketAddr) -> Option<u32> {
    let SocketAddr::V4(v4) = socket else { return None };
    let [_, high, middle, low] = v4.ip().octets();
    high.checked_sub(1).map(|high| u32::from_be_bytes([0, high, middle, low]))
}

/// The nonce of an OSD's addresses.
pub fn osd_nonce(osd: u32) -> u32 {
    osd + 1
}

/// As a real OSD, it has an address for each of both messengers.
fn osd_addresses(osd: u32) -> Addresses {
    let new = Address::msgr2(osd_socket(osd), osd_nonce(osd));
    let mut socket = osd_socket(osd);
    socket.set_port(6801);
    Addresses(vec![new, Address { kind: AddressKind::Legacy, socket: Some(socket), ..new }])
}

fn crush(osds: u32, weight: u32) -> Map {
    let bucket = |number: u32| BucketId(-1 - number as i32);
    let hosts = osds.div_ceil(OSDS_PER_HOST);
    let racks = hosts.div_ceil(HOSTS_PER_RACK);
    let mut builder = MapBuilder::new();
    builder.type_names(["osd", "host", "chassis", "rack"]);
    let mut rack_items = vec![Vec::new(); racks as usize];
    for host in 0..hosts {
        let members = host * OSDS_PER_HOST..osds.min((host + 1) * OSDS_PER_HOST);
        let items: Vec<(ItemId, u32)> = members
            .map(|osd| (ItemId(osd as i32), if osd == 0 { weight } else { WEIGHT_ONE }))
            .collect();
        let total = items.iter().map(|item| item.1).sum();
        let id = bucket(1 + racks + host);
        rack_items[(host / HOSTS_PER_RACK) as usize].push((ItemId::from(id), total));
        builder.straw2(id, HOST, items);
        builder.item_name(ItemId::from(id), format!("host{host}"));
    }
    let mut root_items = Vec::new();
    for (rack, items) in (0..racks).zip(rack_items) {
        let id = bucket(1 + rack);
        root_items.push((ItemId::from(id), items.iter().map(|item| item.1).sum()));
        builder.straw2(id, RACK, items);
        builder.item_name(ItemId::from(id), format!("rack{rack}"));
    }
    builder.straw2(bucket(0), ROOT, root_items);
    for osd in 0..osds {
        builder.item_name(ItemId(osd as i32), format!("osd.{osd}"));
    }
    let kind = if hosts < u32::from(COPIES) { TypeId(0) } else { HOST };
    let choose = RuleStep::ChooseleafFirstn { count: 0, kind };
    let take = RuleStep::Take(ItemId::from(bucket(0)));
    builder.rule(RuleId(0), [take, choose, RuleStep::Emit]);
    builder.build().expect("the map is sound")
}

/// The map of a cluster: all OSDs are up and in.
pub fn map(osds: u32) -> OsdMap {
    let groups = (osds * COPIES_PER_OSD / u32::from(COPIES)).next_power_of_two();
    let mut pool = Pool::new(PoolKind::Replicated, COPIES, 2, RuleId(0), groups);
    pool.name = "rbd".to_owned();
    pool.flags |= Pool::SELFMANAGED_SNAPS;
    let mut map = OsdMap::of_crush(crush(osds, WEIGHT_ONE), BTreeMap::from([(POOL, pool)]));
    map.epoch = 1000;
    map.fsid = Fsid(FSID);
    map.require_osd_release = 16;
    for osd in 0..osds {
        map.client_addresses[osd as usize] = osd_addresses(osd);
    }
    let seeds = (0..groups).step_by(GROUPS_PER_UPMAP as usize);
    map.pg_upmap_items = seeds.filter_map(|seed| upmap(&map, seed, 1)).collect();
    // Flags are completed as a client completes them.
    OsdMap::decode(&map.encode()).expect("we have encoded it")
}

/// An upmap of a group: another OSD instead of its last one.
fn upmap(map: &OsdMap, seed: u32, distance: i32) -> Option<(PgId, Vec<(ItemId, ItemId)>)> {
    let pg = PgId { pool: POOL, seed };
    let raw = map.place(pg).ok()?.raw;
    let from = *raw.last()?;
    let osds = map.states.len() as i32;
    let others = (distance..osds).map(|step| ItemId((from.0 + step) % osds));
    let to = others.into_iter().find(|other| !raw.contains(other))?;
    Some((pg, vec![(from, to)]))
}

fn next(map: &OsdMap) -> Incremental {
    Incremental::new(map.fsid, map.epoch + 1)
}

/// The change by which an OSD goes down.
pub fn down(map: &OsdMap, osd: OsdId) -> Incremental {
    let mut change = next(map);
    change.new_state.insert(osd, OsdState::UP);
    change
}

/// A change of the balancer: so many upmaps.
pub fn upmaps(map: &OsdMap, count: usize) -> Incremental {
    let mut change = next(map);
    let free = (0..map.pools[&POOL].pg_num).filter(|seed| seed % GROUPS_PER_UPMAP != 0);
    change.new_pg_upmap_items = free.filter_map(|seed| upmap(map, seed, 2)).take(count).collect();
    change
}

/// A change of one weight in the CRUSH map. Ceph sends the whole CRUSH map then.
pub fn reweighted(map: &OsdMap) -> Incremental {
    let mut change = next(map);
    let crush = crush(map.states.len() as u32, WEIGHT_ONE / 2);
    change.crush = Some(crush.into());
    change
}
