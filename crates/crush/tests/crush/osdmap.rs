//! OSDMaps against osdmaptool's answers. `data/osdmap/om0` and `om1` are maps of a small cluster
//! that a Ceph 16 monitor made: 24 OSDs in 8 hosts, pools `rep3`, `ec42` and `rep2`, and primary
//! affinities; `om1` adds upmaps. The text files in the same folder are the output of osdmaptool
//! 16.2.15: `*.up.txt` with all OSDs up and in (`--mark-up-in --test-map-pgs-dump-all`),
//! `*.out14.txt` with OSD 14 out, and `objects.txt` for names of objects (`--test-map-object`).

use std::path::PathBuf;
use std::sync::Arc;

use fieldstone_crush::osdmap::{DecodeError, OsdMap, PgId, Placement, PoolKind};
use fieldstone_crush::{ItemId, OsdId, RuleId};

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/osdmap").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text(name: &str) -> String {
    String::from_utf8(data(name)).expect("the data are text")
}

fn set(items: &[ItemId], primary: Option<OsdId>) -> String {
    let items: Vec<String> = items.iter().map(|item| item.0.to_string()).collect();
    let primary = primary.map_or("-1".to_owned(), |osd| osd.0.to_string());
    format!("([{}], p{primary})", items.join(","))
}

/// A placement as osdmaptool prints it.
fn line(pg: PgId, placement: &Placement) -> String {
    let raw_primary = placement.raw.iter().find(|item| **item != ItemId::NONE);
    format!(
        "{pg} raw {} up {} acting {}",
        set(&placement.raw, raw_primary.and_then(|item| item.osd())),
        set(&placement.up, placement.up_primary),
        set(&placement.acting, placement.acting_primary)
    )
}

#[test]
fn every_placement_is_that_of_osdmaptool() {
    for name in ["om0", "om1"] {
        for (state, out) in [("up", &[][..]), ("out14", &[14])] {
            let mut map = OsdMap::decode(&data(name)).unwrap();
            map.mark_all_up_in();
            out.iter().for_each(|&osd| map.mark_out(OsdId(osd)));
            let mut ours = Vec::new();
            for (&id, pool) in &map.pools {
                let whole = map.place_pool(id, 2).unwrap();
                for pg in pool.pgs(id) {
                    let placement = whole.placement(pg.seed);
                    assert_eq!(placement, map.place(pg).unwrap());
                    ours.push(line(pg, &placement));
                }
            }
            let theirs = text(&format!("{name}.{state}.txt"));
            let theirs: Vec<&str> = theirs.lines().filter(|line| line.contains(" raw (")).collect();
            assert_eq!((ours.len(), theirs.len()), (37 + 32 + 64, 37 + 32 + 64));
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert_eq!(ours, theirs, "{name} {state}");
            }
        }
    }
}

#[test]
fn every_object_is_where_osdmaptool_finds_it() {
    let mut map = OsdMap::decode(&data("om0")).unwrap();
    map.mark_all_up_in();
    let text = text("objects.txt");
    for line in text.lines() {
        let (name, place) =
            line.trim().strip_prefix("object '").unwrap().split_once("' -> ").unwrap();
        let (pg, acting) = place.split_once(" -> ").unwrap();
        let pg: PgId = pg.parse().unwrap();
        assert_eq!(map.locate(pg.pool, "", "", name), Ok(pg), "{name}");
        assert_eq!(map.locate(pg.pool, "", name, "another"), Ok(pg), "{name}");
        let found = map.place(pg).unwrap().acting;
        let found: Vec<String> = found.iter().map(|item| item.0.to_string()).collect();
        assert_eq!(format!("[{}]", found.join(",")), acting, "{name}");
    }
    assert_eq!(text.lines().count(), 24);
}

#[test]
fn what_the_map_says() {
    let map = OsdMap::decode(&data("om1")).unwrap();
    assert_eq!(map.epoch, 68);
    assert_eq!(map.fsid.to_string(), "11111111-2222-3333-4444-555555555555");
    assert_eq!(map.states.len(), 24);
    assert!(map.states.iter().all(|state| state.exists() && !state.is_up()));
    let id = map.pool_named("ec42").unwrap();
    let pool = &map.pools[&id];
    assert_eq!((id.0, pool.kind, pool.size, pool.min_size), (2, PoolKind::Erasure, 6, 5));
    assert_eq!((pool.rule, pool.pg_num, pool.pgp_num), (RuleId(2), 32, 32));
    assert_eq!(pool.erasure_code_profile, "p42");
    assert_eq!(map.data_shards(pool), Some(4));
    assert_eq!(map.erasure_code_profiles["p42"]["m"], "2");
    let affinities: Vec<u32> =
        [0, 3, 7, 20, 1].map(|osd| map.primary_affinity(OsdId(osd))).to_vec();
    assert_eq!(affinities, [0, 0x8000, 0x4000, 0, 0x1_0000]);
    let pg: PgId = "1.4".parse().unwrap();
    assert_eq!(map.pg_upmap_items[&pg], [(ItemId(21), ItemId(9))]);
    assert_eq!(map.pg_upmap.len(), 1);
}

#[test]
fn a_map_written_back_is_the_same() {
    for name in ["om0", "om1"] {
        let bytes = data(name);
        let map = OsdMap::decode(&bytes).unwrap();
        assert_eq!(map.rewrite(&bytes).unwrap(), bytes, "{name}");
    }
}

#[test]
fn other_tables_are_written() {
    let bytes = data("om0");
    let mut map = OsdMap::decode(&bytes).unwrap();
    map.mark_all_up_in();
    map.mark_out(OsdId(3));
    let pg: PgId = "2.1f".parse().unwrap();
    map.pg_temp.insert(pg, vec![ItemId(5), ItemId::NONE]);
    map.primary_temp.insert(pg, ItemId(5));
    map.pg_upmap_items.insert(pg, vec![(ItemId(1), ItemId(2)), (ItemId(3), ItemId(4))]);
    map.pg_upmap.insert(pg, vec![ItemId(7)]);
    map.primary_affinities[4] = 0x1234;
    let mut parts = (*map.crush).clone().into_parts();
    parts.tunables.choose_total_tries += 1;
    map.crush = Arc::new(fieldstone_crush::Map::new(parts).unwrap());
    let written = map.rewrite(&bytes).unwrap();
    assert_eq!(OsdMap::decode(&written).unwrap(), map);
    map.pg_upmap_primaries.insert(pg, ItemId(5));
    assert_eq!(
        map.rewrite(&bytes),
        Err(DecodeError::NoRoom { what: "pg_upmap_primaries", version: 9 })
    );
}

#[test]
fn damaged_maps_are_refused() {
    let bytes = data("om1");
    assert!(OsdMap::recognises(&bytes));
    for len in 0..bytes.len() {
        let error = OsdMap::decode(&bytes[..len]).unwrap_err();
        assert!(matches!(error, DecodeError::Truncated { .. }), "{len}: {error}");
    }
    // The decoder finds every single wrong bit.
    for at in 0..bytes.len() {
        for bit in [0, 3, 7] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let error = OsdMap::decode(&damaged).unwrap_err();
            assert!(!error.to_string().is_empty());
        }
    }
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert!(matches!(OsdMap::decode(&flipped), Err(DecodeError::BadChecksum { .. })));
}
