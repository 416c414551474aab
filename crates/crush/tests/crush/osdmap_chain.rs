//! Increments of real clusters. `data/osdmap/chain16`, `chain18` and `chain20` have consecutive
//! increments of clusters of Ceph 16, 18 and 20, and full maps of some epochs; their READMEs say
//! what happens in them. Applying the increments must give the full maps.
//!
//! With `FIELDSTONE_OSDMAP_CHAIN=FOLDER` the tests take that folder alone, with `full.EPOCH` and
//! `inc.EPOCH` files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use fieldstone_crush::osdmap::{
    Address, AddressKind, Addresses, ApplyError, DecodeError, Flags, Fsid, Incremental, OsdMap,
    OsdState, PgId, Pool, PoolId, PoolKind, PoolSnapshot, Time,
};
use fieldstone_crush::{ItemId, Map, OsdId, RuleId};

struct Chain {
    full: BTreeMap<u32, Vec<u8>>,
    increments: BTreeMap<u32, Vec<u8>>,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/osdmap").join(name)
}

fn chain() -> Chain {
    let folder = std::env::var_os("FIELDSTONE_OSDMAP_CHAIN").map(PathBuf::from);
    read_chain(&folder.unwrap_or_else(|| self::folder("chain16")))
}

/// The chains of all releases, with the names of their folders.
fn chains() -> Vec<(String, Chain)> {
    if std::env::var_os("FIELDSTONE_OSDMAP_CHAIN").is_some() {
        return vec![("the given folder".to_owned(), chain())];
    }
    let names = ["chain16", "chain18", "chain20"];
    names.map(|name| (name.to_owned(), read_chain(&folder(name)))).into()
}

fn read_chain(folder: &Path) -> Chain {
    let mut chain = Chain { full: BTreeMap::new(), increments: BTreeMap::new() };
    for entry in std::fs::read_dir(folder).expect("the data are well-formed") {
        let path = entry.expect("the data are well-formed").path();
        let name =
            path.file_name().expect("the data are well-formed").to_string_lossy().into_owned();
        let Some((kind, epoch)) = name.split_once('.') else { continue };
        let table = match kind {
            "full" => &mut chain.full,
            "inc" => &mut chain.increments,
            _ => continue,
        };
        table.extend(
            epoch
                .parse()
                .ok()
                .map(|epoch| (epoch, std::fs::read(&path).expect("the data are well-formed"))),
        );
    }
    chain
}

/// The first full map, and the increments from there.
fn start(chain: &Chain) -> (OsdMap, Vec<Incremental>) {
    let (&epoch, full) = chain.full.iter().next().expect("the data are well-formed");
    let decode = |bytes: &Vec<u8>| Incremental::decode(bytes).expect("the data are well-formed");
    let increments = chain.increments.range(epoch + 1..).map(|(_, bytes)| decode(bytes)).collect();
    (OsdMap::decode(full).expect("the data are well-formed"), increments)
}

/// The map without room in the CRUSH map for devices that no bucket holds. When the last device was
/// purged, the increment's CRUSH map still has the room; the full map, which Ceph made from it, has
/// not. It means nothing for placement.
fn trimmed(map: &OsdMap) -> OsdMap {
    let mut parts = (*map.crush).clone().into_parts();
    parts.min_devices = 0;
    OsdMap { crush: Arc::new(Map::new(parts).expect("the data are well-formed")), ..map.clone() }
}

#[test]
fn increments_lead_to_the_full_maps() {
    for (name, chain) in chains() {
        let (mut map, increments) = start(&chain);
        if let Some(first) = chain.increments.get(&1) {
            // The first increment has a whole map inside.
            let mut born = OsdMap::of_crush((*map.crush).clone(), BTreeMap::new());
            born.apply(&Incremental::decode(first).unwrap()).unwrap();
            let full = chain.full.get(&1).map(|full| OsdMap::decode(full).unwrap());
            assert_eq!(Some(born), full, "{name}");
        }
        let mut compared = 0;
        for increment in &increments {
            let crush = map.crush.clone();
            map.apply(increment).unwrap();
            if increment.crush.is_none() && increment.full.is_none() {
                assert!(Arc::ptr_eq(&crush, &map.crush), "the CRUSH map was copied");
            }
            if let Some(full) = chain.full.get(&map.epoch) {
                let full = OsdMap::decode(full).unwrap();
                assert_eq!(trimmed(&map), trimmed(&full), "{name}, epoch {}", map.epoch);
                compared += 1;
            }
        }
        assert!(compared >= 2 && increments.len() >= 20, "{compared} of {}", increments.len());
    }
}

#[test]
fn maps_and_increments_survive_our_writer() {
    for (name, chain) in chains() {
        for (epoch, full) in &chain.full {
            let map = OsdMap::decode(full).unwrap();
            assert_eq!(OsdMap::decode(&map.encode()).as_ref(), Ok(&map), "{name}, epoch {epoch}");
        }
        for (epoch, bytes) in &chain.increments {
            let increment = Incremental::decode(bytes).unwrap();
            let again = Incremental::decode(&increment.encode());
            assert_eq!(again.as_ref(), Ok(&increment), "{name}, epoch {epoch}");
        }
    }
}

#[test]
fn damaged_increments_are_refused() {
    for bytes in chains().iter().flat_map(|(_, chain)| chain.increments.values()) {
        for len in 0..bytes.len() {
            assert!(Incremental::decode(&bytes[..len]).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let error = Incremental::decode(&damaged).unwrap_err();
            assert!(!error.to_string().is_empty());
        }
        let mut flipped = bytes.clone();
        *flipped.last_mut().unwrap() ^= 1;
        let error = Incremental::decode(&flipped).unwrap_err();
        assert!(matches!(error, DecodeError::BadIncrementChecksum { .. }), "{error}");
    }
}

/// `places.EPOCH` is what osdmaptool of the same release prints of the full map.
#[test]
fn placements_are_those_of_newer_osdmaptools() {
    let set = |items: &[ItemId], primary: Option<OsdId>| {
        let items: Vec<String> = items.iter().map(|item| item.0.to_string()).collect();
        let primary = primary.map_or("-1".to_owned(), |osd| osd.0.to_string());
        format!("([{}], p{primary})", items.join(","))
    };
    for (name, least) in [("chain18", 200), ("chain20", 300)] {
        let (chain, mut groups) = (read_chain(&folder(name)), 0);
        for (epoch, full) in &chain.full {
            let Ok(text) = std::fs::read_to_string(folder(name).join(format!("places.{epoch}")))
            else {
                continue;
            };
            let map = OsdMap::decode(full).unwrap();
            for line in text.lines() {
                let (pg, theirs) = line.split_once(" raw ").unwrap();
                let place = map.place(pg.parse().unwrap()).unwrap();
                let up = set(&place.up, place.up_primary);
                let acting = set(&place.acting, place.acting_primary);
                let (_, theirs) = theirs.split_once(" up ").unwrap();
                assert_eq!(format!("{up} acting {acting}"), theirs, "{name}, {epoch}: {pg}");
                groups += 1;
            }
        }
        assert!(groups >= least, "{name}: {groups} groups");
    }
}

#[test]
fn increments_that_do_not_fit_change_nothing() {
    let (map, increments) = start(&chain());
    let next = &increments[0];
    let mut refused = Vec::new();
    let (mut other, fsid) = (next.clone(), Fsid([7; 16]));
    other.fsid = fsid;
    refused.push((other, ApplyError::WrongFsid { map: map.fsid, increment: fsid }));
    let wrong = |increment| ApplyError::WrongEpoch { map: map.epoch, increment };
    refused.push((increments[1].clone(), wrong(map.epoch + 2)));
    refused.push((Incremental::new(map.fsid, map.epoch), wrong(map.epoch)));
    let mut far = next.clone();
    far.new_weight.insert(OsdId(99), 0);
    let osd = OsdId(99);
    let osds = far.new_max_osd.map_or(map.states.len(), |osds| osds as usize);
    refused.push((far, ApplyError::NoSuchOsd { osd, osds }));
    let mut full = Incremental::new(map.fsid, map.epoch + 1);
    full.full = Some(Box::new(map.clone()));
    let (fsid, increment, epoch) = (map.fsid, map.epoch + 1, map.epoch);
    refused.push((full.clone(), ApplyError::WrongFullMap { increment, full: epoch, fsid }));
    for (increment, error) in refused {
        let mut changed = map.clone();
        assert_eq!(changed.apply(&increment), Err(error));
        assert_eq!(changed, map);
    }
    // A whole map inside.
    let mut whole = map.clone();
    whole.epoch += 1;
    whole.flags.0 |= Flags::PAUSEWR;
    full.full = Some(Box::new(whole.clone()));
    let full = Incremental::decode(&full.encode()).unwrap();
    let mut changed = map.clone();
    changed.apply(&full).unwrap();
    assert_eq!(changed, whole);
}

fn address(text: &str, nonce: u32) -> Address {
    Address::msgr2(text.parse::<SocketAddr>().expect("the data are well-formed"), nonce)
}

/// A small cluster with a value in every field.
fn model() -> OsdMap {
    let chain = chain();
    let last = OsdMap::decode(chain.full.values().next_back().expect("the data are well-formed"))
        .expect("the data are well-formed");
    let mut map = OsdMap::of_crush((*last.crush).clone(), BTreeMap::new());
    map.fsid = last.fsid;
    map.resize_osds(3);
    map.mark_all_up_in();
    map.epoch = 1;
    map.modified = Time { seconds: 1_700_000_000, nanos: 5 };
    map.require_osd_release = 16;
    map.require_min_compat_client = 12;
    map.flags = Flags(Flags::SORTBITWISE | Flags::RECOVERY_DELETES | Flags::PGLOG_HARDLIMIT);
    let mut pool = Pool::new(PoolKind::Replicated, 3, 2, RuleId(0), 8);
    pool.name = "rbd".to_owned();
    pool.applications.insert("rbd".to_owned(), BTreeMap::new());
    let taken = Time { seconds: 9, nanos: 8 };
    pool.snapshots.insert(3, PoolSnapshot { name: "before".to_owned(), taken });
    (pool.snap_seq, pool.flags) = (3, pool.flags | Pool::POOL_SNAPS);
    assert_eq!(pool.snapshot_named("before"), Some(3));
    map.pools.insert(PoolId(1), pool);
    map.pool_max = 1;
    for osd in 0..map.states.len() {
        let address = address(&format!("127.0.0.1:{}", 6800 + osd), 7);
        map.client_addresses[osd] = Addresses(vec![address]);
        map.infos[osd].up_from = 1;
    }
    map
}

#[test]
fn the_model_of_a_cluster_lives() {
    let mut map = model();
    let mut next = Incremental::new(map.fsid, 2);
    next.new_max_osd = Some(5);
    next.new_flags = Some(map.flags.0 | Flags::PAUSERD | Flags::PAUSEWR);
    next.new_state = BTreeMap::from([(OsdId(0), 0), (OsdId(1), OsdState::EXISTS)]);
    next.new_up_client.insert(OsdId(4), Addresses(vec![address("[::1]:6804", 9)]));
    next.new_weight.insert(OsdId(4), 0x1_0000);
    next.new_primary_affinity.insert(OsdId(2), 0x8000);
    let pg: PgId = "1.3".parse().unwrap();
    next.new_pg_upmap_primaries.insert(pg, ItemId(2));
    let client = Address { kind: AddressKind::Any, ..address("10.0.0.1:0", 0) };
    let range = Address { kind: AddressKind::Range, ..address("10.7.0.0:0", 16) };
    let until = Time { seconds: 2_000_000_000, nanos: 0 };
    next.new_blocklist.insert(client, until);
    next.new_range_blocklist.insert(range, until);
    let next = Incremental::decode(&next.encode()).unwrap();
    map.apply(&next).unwrap();
    assert!(map.flags.pauses_reads() && map.flags.pauses_writes());
    assert_eq!(map.addresses(OsdId(0)), None);
    assert_eq!((map.states[1], map.infos[0].down_at, map.infos[1].up_from), (OsdState(0), 2, 0));
    assert_eq!(map.addresses(OsdId(4)).and_then(Addresses::msgr2), Some(address("[::1]:6804", 9)));
    assert_eq!(map.primary_affinities, [0x1_0000, 0x1_0000, 0x8000, 0x1_0000, 0x1_0000]);
    assert!(map.is_blocklisted(&address("10.0.0.1:4000", 77)));
    assert!(map.is_blocklisted(&address("10.7.200.1:4000", 77)));
    assert!(!map.is_blocklisted(&address("10.8.0.1:4000", 77)));
    assert_eq!(OsdMap::decode(&map.encode()).as_ref(), Ok(&map));

    let mut last = Incremental::new(map.fsid, 3);
    last.old_blocklist.push(client);
    last.old_range_blocklist.push(range);
    last.old_pg_upmap_primaries.insert(pg);
    last.new_primary_affinity.insert(OsdId(2), 0x1_0000);
    last.old_pools.insert(PoolId(1));
    map.apply(&Incremental::decode(&last.encode()).unwrap()).unwrap();
    assert!(map.blocklist.is_empty() && map.range_blocklist.is_empty());
    assert!(map.primary_affinities.is_empty() && map.pools.is_empty());
    assert!(map.pg_upmap_primaries.is_empty());
}

#[test]
fn targets_name_the_primary_and_its_shard() {
    let chain = chain();
    let mut groups = 0;
    for full in chain.full.values() {
        let map = OsdMap::decode(full).unwrap();
        for (&id, pool) in &map.pools {
            let target = map.target(id, "", "", "foo").unwrap();
            assert_eq!(target.pg.pg, map.locate(id, "", "", "foo").unwrap());
            assert_eq!(pool.fold(target.hash), target.pg.pg.seed);
            let unfolded = PgId { pool: id, seed: target.hash };
            assert_eq!(map.pg_target(unfolded).as_ref(), Ok(&target.pg));
            for pg in pool.pgs(id) {
                let target = map.pg_target(pg).unwrap();
                let primary = target.acting_primary.map(|osd| ItemId(osd.0 as i32));
                let at = |shard: u8| target.acting[usize::from(shard)];
                assert_eq!(target.shard.is_some(), pool.is_erasure_coded() && primary.is_some());
                assert!(target.shard.is_none_or(|shard| Some(at(shard)) == primary));
                groups += 1;
            }
        }
    }
    assert!(groups > 20, "{groups} groups");
}

#[test]
fn intervals_follow_the_map() {
    fn pool(map: &mut OsdMap) -> &mut Pool {
        map.pools.get_mut(&PoolId(1)).unwrap()
    }
    let map = model();
    let pg = map.locate_unfolded(PoolId(1), "", "", "foo").unwrap();
    let change = |edit: &dyn Fn(&mut OsdMap)| {
        let mut next = map.clone();
        edit(&mut next);
        let (old, new) = (map.interval(pg).unwrap(), next.interval(pg).unwrap());
        new.is_new_since(&old)
    };
    assert!(!change(&|map| map.epoch += 1));
    assert!(!change(&|map| map.flags.0 |= Flags::PAUSEWR));
    assert!(change(&|map| map.flags.0 ^= Flags::SORTBITWISE));
    assert!(change(&|map| pool(map).min_size = 1));
    assert!(change(&|map| pool(map).size = 2));
    assert!(change(&|map| pool(map).last_force_op_resend = 9));
    let primary = map.pg_target(pg).unwrap().acting_primary.unwrap();
    assert!(change(&|map| map.mark_out(primary)));
    // The pool grows: pgp_num stays, so every group keeps its place, but gives objects away.
    assert!(change(&|map| pool(map).pg_num = 16));
    let folded = map.pg_target(pg).unwrap().pg.seed;
    assert_eq!(change(&|map| pool(map).pg_num = 9), folded == 0);
    // A merge is being prepared: the last group goes up in group 3.
    assert_eq!(change(&|map| pool(map).pg_num_pending = 7), folded == 7 || folded == 3);
    assert!(change(&|map| pool(map).pg_num_pending = 4));
}

#[test]
fn osdmaptool_reads_what_we_write() {
    if Command::new("osdmaptool").arg("--version").output().is_err() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("fieldstone-osdmap-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut map = model();
    let until = Time { seconds: 2_000_000_000, nanos: 0 };
    let range = Address { kind: AddressKind::Range, ..address("10.7.0.0:0", 16) };
    map.range_blocklist.insert(range, until);
    let file = folder.join("map");
    std::fs::write(&file, map.encode()).unwrap();
    let output = Command::new("osdmaptool").arg(&file).arg("--print").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    for part in ["epoch 1", "pool 1 'rbd' replicated size 3", "osd.0 up   in", "127.0.0.1:6800/7"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
