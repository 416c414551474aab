//! Any bytes as an OSDMap. The fuzzer first corrects the checksum; else the decoder would refuse
//! most inputs at once.

use super::is_quick;
use crate::balance::{self, BalanceLimits};
use crate::binary::Release;
use crate::diff::diff_pool;
use crate::osdmap::OsdMap;

/// Shards of pools that are placed.
const MOST_SHARDS: usize = 1 << 12;
/// Steps of rules that are run: more steps can multiply the chosen items.
const MOST_STEPS: usize = 8;
const LIMITS: BalanceLimits = BalanceLimits { max_moves: 16, deviation: 1 };

/// Feeds `input` to the decoder of OSDMaps. Returns true if it was one.
///
/// A decoded map is written back, written anew, placed, compared with itself and balanced.
///
/// # Panics
/// If a property does not hold: that is the finding.
pub fn osdmap(input: &[u8]) -> bool {
    let Some(sealed) = OsdMap::seal(input) else {
        assert!(OsdMap::decode(input).is_err(), "a map that cannot be sealed");
        return false;
    };
    let map = OsdMap::decode(&sealed).expect("it is sealed");
    let written = map.rewrite(&sealed).expect("it was decoded");
    assert_eq!(OsdMap::decode(&written).as_ref(), Ok(&map), "writing changed the map");
    if Release::min_for(&map.crush) == Release::V16 {
        assert_eq!(OsdMap::decode(&map.encode()).as_ref(), Ok(&map), "a new file changed the map");
    }
    if !is_quick(&map.crush) {
        return true;
    }
    for (&id, pool) in &map.pools {
        let steps = map.crush.rules().find(|&(rule, _)| rule == pool.rule);
        let steps = steps.map_or(0, |(_, rule)| rule.steps.len());
        if steps > MOST_STEPS || pool.pg_num as usize * usize::from(pool.size) > MOST_SHARDS {
            continue;
        }
        let whole = map.place_pool(id, 1).expect("the pool is there");
        for pg in pool.pgs(id) {
            let placement = whole.placement(pg.seed);
            assert!(placement.raw.len() <= pool.size.into(), "more members than asked for");
        }
        let diff = diff_pool(&map, &map, id, 1).expect("the pool is there");
        assert_eq!((diff.moved, diff.pgs_changed), (0, 0), "it differs from itself");
        if let Ok(plan) = balance::balance(&map, &[id], LIMITS, 1) {
            assert!(plan.moves <= LIMITS.max_moves, "more moves than allowed");
            let mut changed = map.clone();
            plan.apply(&mut changed);
            let diff = diff_pool(&map, &changed, id, 1).expect("the pool is there");
            assert!(diff.moved <= plan.moves as u64, "{plan:?} moves {}", diff.moved);
        }
    }
    true
}
