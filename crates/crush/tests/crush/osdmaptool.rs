//! Random OSDMaps against the installed osdmaptool: weights, states, affinities, upmaps, `pg_temp`
//! and `primary_temp` of all kinds, sensible or not. Skipped without osdmaptool.
//!
//! The maps are `data/osdmap/om0` with other tables written into it, so osdmaptool also checks the
//! output of [`OsdMap::rewrite`]. For more maps:
//! `FIELDSTONE_OSDMAPS=1000 cargo test … --test osdmaptool`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use fieldstone_crush::osdmap::{OsdMap, OsdState, PgId, Pool, PoolId, PoolPlacement};
use fieldstone_crush::{ItemId, OsdId};
use proptest::prelude::RngExt as _;
use proptest::test_runner::{RngAlgorithm, TestRng};

const OSDS: i32 = 24;

fn members(items: &[ItemId], primary: Option<OsdId>) -> String {
    let items: Vec<String> = items.iter().map(|item| item.0.to_string()).collect();
    let primary = primary.map_or("-1".to_owned(), |osd| osd.0.to_string());
    format!("([{}], p{primary})", items.join(","))
}

/// All placements as `osdmaptool --test-map-pgs-dump-all` prints them.
fn dump(map: &OsdMap) -> String {
    let mut text = String::new();
    for (&id, pool) in &map.pools {
        let whole: PoolPlacement<'_> = map.place_pool(id, 1).expect("the pool is there");
        for pg in pool.pgs(id) {
            let place = whole.placement(pg.seed);
            let raw_primary = place.raw.iter().find(|item| **item != ItemId::NONE);
            let _ = writeln!(
                text,
                "{pg} raw {} up {} acting {}",
                members(&place.raw, raw_primary.and_then(|item| item.osd())),
                members(&place.up, place.up_primary),
                members(&place.acting, place.acting_primary)
            );
        }
    }
    text
}

/// A device. Rarely it does not exist, or is a hole.
fn any_item(rng: &mut TestRng) -> ItemId {
    match rng.random_range(0..40) {
        0 => ItemId::NONE,
        1 => ItemId(OSDS + rng.random_range(0..3)),
        _ => ItemId(rng.random_range(0..OSDS)),
    }
}

fn some_pgs(pools: &BTreeMap<PoolId, Pool>, rng: &mut TestRng, share: f64) -> Vec<(PgId, usize)> {
    let all = pools.iter().flat_map(|(&id, pool)| pool.pgs(id).map(|pg| (pg, pool.size.into())));
    all.filter(|_| rng.random_bool(share)).collect()
}

/// Members as a user would choose them: mostly those by CRUSH.
fn near(map: &OsdMap, pg: PgId, rng: &mut TestRng) -> ItemId {
    let up = map.place(pg).expect("the group is there").upmapped;
    match up.is_empty() || rng.random_bool(0.3) {
        true => any_item(rng),
        false => up[rng.random_range(0..up.len())],
    }
}

fn change(map: &mut OsdMap, rng: &mut TestRng) {
    let osds = OSDS as usize;
    for osd in 0..osds {
        let down = rng.random_bool(0.1);
        let absent = rng.random_bool(0.05);
        map.states[osd] = OsdState(if absent { 0 } else { 1 | u32::from(!down) << 1 });
        map.weights[osd] = match rng.random_range(0..8) {
            0 => 0,
            1 => rng.random_range(0..0x1_0000),
            _ => 0x1_0000,
        };
    }
    map.primary_affinities = (0..osds)
        .map(|_| if rng.random_bool(0.5) { 0x1_0000 } else { rng.random_range(0..0x1_0001) })
        .collect();
    let pools = map.pools.clone();
    for (pg, size) in some_pgs(&pools, rng, 0.1) {
        map.pg_upmap.insert(pg, (0..size).map(|_| any_item(rng)).collect());
    }
    for (pg, _) in some_pgs(&pools, rng, 0.4) {
        let count = rng.random_range(1..4);
        let pairs = (0..count).map(|_| (near(map, pg, rng), any_item(rng))).collect();
        map.pg_upmap_items.insert(pg, pairs);
    }
    for (pg, size) in some_pgs(&pools, rng, 0.2) {
        map.pg_temp.insert(pg, (0..size).map(|_| any_item(rng)).collect());
    }
    for (pg, _) in some_pgs(&pools, rng, 0.2) {
        let item = near(map, pg, rng);
        map.primary_temp.insert(pg, if item == ItemId::NONE { ItemId(-1) } else { item });
    }
}

#[test]
fn random_maps() {
    if Command::new("osdmaptool").arg("--help").output().is_err() {
        eprintln!("skipped: osdmaptool is not installed");
        return;
    }
    let rounds = std::env::var("FIELDSTONE_OSDMAPS").map_or(10, |count| count.parse().unwrap());
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/osdmap/om0");
    let original = std::fs::read(data).unwrap();
    let path = std::env::temp_dir().join(format!("fieldstone-osdmap-{}", std::process::id()));
    for round in 0..rounds {
        let mut rng =
            TestRng::from_seed(RngAlgorithm::ChaCha, &[round as u8, (round >> 8) as u8].repeat(16));
        let mut map = OsdMap::decode(&original).unwrap();
        change(&mut map, &mut rng);
        std::fs::write(&path, map.rewrite(&original).unwrap()).unwrap();
        let output =
            Command::new("osdmaptool").arg(&path).arg("--test-map-pgs-dump-all").output().unwrap();
        let theirs = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let theirs: Vec<&str> = theirs.lines().filter(|line| line.contains(" raw (")).collect();
        let ours = dump(&map);
        assert_eq!(theirs.len(), 133, "map {round}");
        for (ours, theirs) in ours.lines().zip(theirs) {
            assert_eq!(ours, theirs, "map {round}");
        }
    }
    std::fs::remove_file(&path).unwrap();
}
