//! Any bytes as an increment of an OSDMap. As for full maps, the checksum is corrected first.

use std::collections::BTreeMap;

use super::{CLASSES, is_quick};
use crate::binary::Release;
use crate::osdmap::{Incremental, OsdMap, Pool, PoolId, PoolKind};
use crate::{Map, RuleId, text};

/// The greatest number of devices of maps that are written: more take long.
const MOST_OSDS: u32 = 1 << 12;
/// Shards of pools that are placed.
const MOST_SHARDS: usize = 1 << 10;

/// Feeds `input` to the decoder of increments. Returns true if it was one.
///
/// A decoded increment is written and read again, and applied to a map of the epoch before: if that
/// fails, the map must not change; else the new map is written, read again and placed.
///
/// # Panics
/// If a property does not hold: that is the finding.
pub fn increment(input: &[u8]) -> bool {
    let Some(sealed) = Incremental::seal(input) else {
        assert!(Incremental::decode(input).is_err(), "an increment that cannot be sealed");
        return false;
    };
    let increment = Incremental::decode(&sealed).expect("it is sealed");
    let crushes = [increment.crush.as_deref(), increment.full.as_ref().map(|full| &*full.crush)];
    if crushes.into_iter().flatten().all(is_kept) {
        let again = Incremental::decode(&increment.encode());
        assert_eq!(again.as_ref(), Ok(&increment), "writing changed the increment");
    }
    let before = base(&increment);
    let mut map = before.clone();
    if increment.new_max_osd.is_some_and(|osds| osds > MOST_OSDS) {
        return true;
    }
    if map.apply(&increment).is_err() {
        assert!(map == before, "a failure changed the map");
        return true;
    }
    assert_eq!(map.epoch, increment.epoch, "the map has another epoch");
    if is_kept(&map.crush) && map.states.len() <= MOST_OSDS as usize {
        assert_eq!(OsdMap::decode(&map.encode()).as_ref(), Ok(&map), "writing changed the map");
    }
    for (&id, pool) in &map.pools {
        let shards = pool.pg_num as usize * usize::from(pool.size);
        if shards <= MOST_SHARDS && is_quick(&map.crush) && super::has_short_rules(&map.crush) {
            for pg in pool.pgs(id) {
                let interval = map.interval(pg).expect("the pool is there");
                assert!(!interval.is_new_since(&interval), "it differs from itself");
            }
        }
    }
    true
}

/// True if a written map comes back the same.
fn is_kept(map: &Map) -> bool {
    Release::min_for(map) == Release::V16
}

/// A map to which the increment can be applied, as far as cluster and epoch go.
fn base(increment: &Incremental) -> OsdMap {
    let crush = text::parse(CLASSES).expect("the seeds are valid");
    let named =
        |name: &str, kind| Pool { name: name.to_owned(), ..Pool::new(kind, 3, 2, RuleId(0), 4) };
    let pools = BTreeMap::from([
        (PoolId(1), named("one", PoolKind::Replicated)),
        (PoolId(2), named("two", PoolKind::Erasure)),
    ]);
    let mut map = OsdMap::of_crush(crush, pools);
    map.fsid = increment.fsid;
    map.epoch = increment.epoch.saturating_sub(1);
    map
}
