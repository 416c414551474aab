//! Writes full maps and increments in the form of Ceph 16, which later releases read. Parts that
//! this crate does not keep are written empty.

use std::collections::BTreeMap;

use super::decode::{PRIMARIES_CLIENT, checksum};
use super::incremental::{self, RANGES_DAEMON};
use super::writer::Writer;
use super::{Address, Addresses, Incremental, OsdMap, Pool, PoolId, Time};
use crate::binary::{self, Release};
use crate::{Map, OsdId};

/// Version of the whole, and the least version of its readers.
const WHOLE: (u8, u8) = (8, 7);
/// The client part without `pg_upmap_primaries`.
const CLIENT: u8 = PRIMARIES_CLIENT - 1;
/// The daemon part without blocked ranges.
const DAEMON: u8 = 9;
/// Ratios at which OSDs count as nearly full, full, and too full for backfill.
const RATIOS: [f32; 3] = [0.85, 0.95, 0.90];
/// "Not changed", as a ratio and as a release.
const SAME_RATIO: f32 = -1.0;
const SAME_RELEASE: u8 = 0xff;
/// Features of an increment's writer: all of them.
const ALL_FEATURES: u64 = u64::MAX;

pub(super) fn full(map: &OsdMap) -> Vec<u8> {
    let mut out = Writer::new();
    out.versioned(WHOLE.0, WHOLE.1, |out| {
        let primaries = !map.pg_upmap_primaries.is_empty();
        let version = if primaries { PRIMARIES_CLIENT } else { CLIENT };
        out.versioned(version, 1, |out| {
            client(map, out);
            if primaries {
                out.table(&map.pg_upmap_primaries, |out, item| out.i32(item.0));
            }
        });
        let ranges = !map.range_blocklist.is_empty();
        out.versioned(if ranges { RANGES_DAEMON } else { DAEMON }, 1, |out| {
            daemon(map, out);
            if ranges {
                out.zeros(1 + 4 * 4);
                blocklist(&map.range_blocklist, out);
            }
        });
        out.u32(0);
    });
    let end = out.bytes.len();
    seal(&mut out, end - 4, end);
    out.bytes
}

/// Writes the checksum of all bytes but its own at `at`.
fn seal(out: &mut Writer, at: usize, end: usize) {
    let checksum = checksum(&[&out.bytes[..at], &out.bytes[at + 4..end]]);
    out.patch(at + 4, checksum);
}

fn client(map: &OsdMap, out: &mut Writer) {
    out.raw(&map.fsid.0);
    out.u32(map.epoch);
    map.created.encode(out);
    map.modified.encode(out);
    pools(&map.pools, out);
    out.list(map.pools.iter(), |out, (id, pool)| {
        out.i64(id.0);
        out.string(&pool.name);
    });
    out.i32(map.pool_max);
    out.u32(map.flags.0);
    out.count(map.states.len());
    out.list(map.states.iter(), |out, state| out.u32(state.0));
    out.u32s(&map.weights);
    out.list(map.client_addresses.iter(), |out, addresses| addresses.encode(out));
    out.table(&map.pg_temp, |out, items| out.items(items));
    out.table(&map.primary_temp, |out, item| out.i32(item.0));
    out.affinities(&map.primary_affinities);
    out.blob(&crush(&map.crush));
    out.profiles(&map.erasure_code_profiles);
    out.table(&map.pg_upmap, |out, items| out.items(items));
    out.table(&map.pg_upmap_items, |out, pairs| out.pairs(pairs));
    // The CRUSH map's version; no snapshots; times of the last changes.
    out.u32(1);
    out.zeros(4 + 4);
    map.modified.encode(out);
    map.modified.encode(out);
}

fn crush(map: &Map) -> Vec<u8> {
    binary::encode(map, Release::min_for(map))
}

fn daemon(map: &OsdMap, out: &mut Writer) {
    let osds = map.states.len();
    let no_addresses = |out: &mut Writer| {
        out.count(osds);
        (0..osds).for_each(|_| Addresses::default().encode(out));
    };
    no_addresses(out);
    out.list(map.infos.iter(), |out, info| {
        out.u8(1);
        out.u32(info.last_clean_begin);
        out.u32(info.last_clean_end);
        out.u32(info.up_from);
        out.u32(info.up_thru);
        out.u32(info.down_at);
        out.u32(info.lost_at);
    });
    blocklist(&map.blocklist, out);
    no_addresses(out);
    // No snapshot of the cluster.
    out.zeros(4 + 4);
    out.count(osds);
    out.zeros(16 * osds);
    out.count(osds);
    for _ in 0..osds {
        // Time of going down, two numbers of laggards, features, old weight, time of a scrub,
        // epoch of death.
        out.versioned(4, 1, |out| {
            out.zeros(8 + 4 + 4);
            out.u64(ALL_FEATURES);
            out.zeros(4 + 8 + 4);
        });
    }
    no_addresses(out);
    RATIOS.iter().for_each(|&ratio| out.f32(ratio));
    out.u8(map.require_min_compat_client);
    out.u8(map.require_osd_release);
    // No removed snapshots, no flags of nodes and classes.
    out.zeros(4 + 4 + 4);
}

fn pools(pools: &BTreeMap<PoolId, Pool>, out: &mut Writer) {
    out.list(pools.iter(), |out, (id, pool)| {
        out.i64(id.0);
        pool.encode(out);
    });
}

fn blocklist(list: &BTreeMap<Address, Time>, out: &mut Writer) {
    out.list(list.iter(), |out, (address, until)| {
        address.encode(out);
        until.encode(out);
    });
}

pub(super) fn increment(new: &Incremental) -> Vec<u8> {
    let mut out = Writer::new();
    let mut checksum_at = 0;
    out.versioned(WHOLE.0, WHOLE.1, |out| {
        let (added, removed) = (&new.new_pg_upmap_primaries, &new.old_pg_upmap_primaries);
        let primaries = !added.is_empty() || !removed.is_empty();
        let last = incremental::PRIMARIES_CLIENT;
        out.versioned(if primaries { last } else { last - 1 }, 1, |out| {
            increment_client(new, out);
            if primaries {
                out.table(added, |out, item| out.i32(item.0));
                out.list(removed.iter(), |out, &pg| out.pg(pg));
            }
        });
        let (added, removed) = (&new.new_range_blocklist, &new.old_range_blocklist);
        let ranges = !added.is_empty() || !removed.is_empty();
        out.versioned(if ranges { RANGES_DAEMON } else { DAEMON }, 1, |out| {
            increment_daemon(new, out);
            if ranges {
                out.zeros(1 + 4 * 4 + 1);
                blocklist(added, out);
                out.list(removed.iter(), |out, range| range.encode(out));
            }
        });
        checksum_at = out.bytes.len();
        out.u32(0);
        out.u32(new.full_checksum);
    });
    let end = out.bytes.len();
    seal(&mut out, checksum_at, end);
    out.bytes
}

fn by_osd<T>(table: &BTreeMap<OsdId, T>, out: &mut Writer, value: impl Fn(&mut Writer, &T)) {
    out.list(table.iter(), |out, (osd, entry)| {
        out.u32(osd.0);
        value(out, entry);
    });
}

fn u32_by_osd(table: &BTreeMap<OsdId, u32>, out: &mut Writer) {
    by_osd(table, out, |out, &value| out.u32(value));
}

fn increment_client(new: &Incremental, out: &mut Writer) {
    let same = |value: Option<u32>| value.map_or(-1, |value| value as i32);
    out.raw(&new.fsid.0);
    out.u32(new.epoch);
    new.modified.encode(out);
    out.i64(new.new_pool_max.unwrap_or(-1));
    out.i32(same(new.new_flags));
    out.blob(&new.full.as_ref().map(|full| full.encode()).unwrap_or_default());
    out.blob(&new.crush.as_ref().map(|map| crush(map)).unwrap_or_default());
    out.i32(same(new.new_max_osd));
    pools(&new.new_pools, out);
    out.list(new.new_pool_names.iter(), |out, (id, name)| {
        out.i64(id.0);
        out.string(name);
    });
    out.list(new.old_pools.iter(), |out, id| out.i64(id.0));
    by_osd(&new.new_up_client, out, |out, addresses| addresses.encode(out));
    u32_by_osd(&new.new_state, out);
    u32_by_osd(&new.new_weight, out);
    out.table(&new.new_pg_temp, |out, items| out.items(items));
    out.table(&new.new_primary_temp, |out, item| out.i32(item.0));
    u32_by_osd(&new.new_primary_affinity, out);
    out.profiles(&new.new_erasure_code_profiles);
    out.list(new.old_erasure_code_profiles.iter(), |out, name| out.string(name));
    out.table(&new.new_pg_upmap, |out, items| out.items(items));
    out.list(new.old_pg_upmap.iter(), |out, &pg| out.pg(pg));
    out.table(&new.new_pg_upmap_items, |out, pairs| out.pairs(pairs));
    out.list(new.old_pg_upmap_items.iter(), |out, &pg| out.pg(pg));
    // No snapshots, no times of changes.
    out.zeros(4 + 4 + 8 + 8);
}

fn increment_daemon(new: &Incremental, out: &mut Writer) {
    // Ceph looks up the heartbeat addresses of every OSD that came up.
    let blank = |out: &mut Writer| {
        by_osd(&new.new_up_client, out, |out, _| Addresses::default().encode(out));
    };
    blank(out);
    u32_by_osd(&new.new_up_thru, out);
    by_osd(&new.new_last_clean_interval, out, |out, &(begin, end)| {
        out.u32(begin);
        out.u32(end);
    });
    u32_by_osd(&new.new_lost, out);
    blocklist(&new.new_blocklist, out);
    out.list(new.old_blocklist.iter(), |out, address| address.encode(out));
    blank(out);
    // No snapshot of the cluster, no identities, no more states.
    out.zeros(4 + 4 + 4);
    blank(out);
    out.u64(ALL_FEATURES);
    (0..3).for_each(|_| out.f32(SAME_RATIO));
    out.u8(new.new_require_min_compat_client.unwrap_or(SAME_RELEASE));
    out.u8(new.new_require_osd_release.unwrap_or(SAME_RELEASE));
    // No flags of nodes and classes.
    out.zeros(4 + 4);
}
