//! Plans of the balancer on random clusters. The changed map does what the plan promises, no rule
//! is broken, and a second plan has no move.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_crush::balance::{BalanceLimits, BalancePlan, Spread, balance};
use fieldstone_crush::diff::{Movement, diff_pool};
use fieldstone_crush::osdmap::{OsdMap, OsdState, PgId, Pool, PoolId, PoolKind};
use fieldstone_crush::{
    BucketId, ItemId, Map, MapBuilder, OsdId, RuleId, RuleStep, Tunables, TypeId, WEIGHT_ONE,
};
use proptest::prelude::*;

const HOST: TypeId = TypeId(1);
const RACK: TypeId = TypeId(2);
const ROOT: TypeId = TypeId(3);
const OSDS_PER_HOST: u32 = 4;
const ID: PoolId = PoolId(3);

/// Racks of hosts of four devices. Rules: 0 copies over hosts, 1 shards over hosts, 2 shards over
/// two racks and three hosts in each.
fn crush(racks: u32, hosts: u32, weights: &[u32]) -> Map {
    let mut map = MapBuilder::new();
    let (mut osd, mut next_bucket) = (0_u32, -2_i32);
    let mut bucket = || {
        next_bucket -= 1;
        BucketId(next_bucket)
    };
    let mut rack_items = Vec::new();
    for _ in 0..racks {
        let mut host_items = Vec::new();
        for _ in 0..hosts {
            let devices: Vec<(ItemId, u32)> = (osd..osd + OSDS_PER_HOST)
                .map(|osd| (ItemId(osd as i32), weights[osd as usize % weights.len()]))
                .collect();
            osd += OSDS_PER_HOST;
            let (host, weight) = (bucket(), devices.iter().map(|(_, weight)| weight).sum());
            map.straw2(host, HOST, devices);
            host_items.push((ItemId::from(host), weight));
        }
        let (rack, weight) = (bucket(), host_items.iter().map(|(_, weight)| weight).sum());
        map.straw2(rack, RACK, host_items);
        rack_items.push((ItemId::from(rack), weight));
    }
    map.straw2(BucketId(-1), ROOT, rack_items);
    map.tunables(Tunables::JEWEL);
    let take = RuleStep::Take(ItemId(-1));
    let emit = RuleStep::Emit;
    map.rule(RuleId(0), [take, RuleStep::ChooseleafFirstn { count: 0, kind: HOST }, emit]);
    let tries = RuleStep::SetChooseTries(200);
    map.rule(RuleId(1), [tries, take, RuleStep::ChooseleafIndep { count: 0, kind: HOST }, emit]);
    let two_racks = RuleStep::ChooseIndep { count: 2, kind: RACK };
    let three_hosts = RuleStep::ChooseleafIndep { count: 3, kind: HOST };
    map.rule(RuleId(2), [tries, take, two_racks, three_hosts, emit]);
    map.build().expect("the map is well-formed")
}

fn pool(rule: u32, pg_num: u32) -> Pool {
    let (kind, size) = match rule {
        0 => (PoolKind::Replicated, 3),
        _ => (PoolKind::Erasure, 6),
    };
    Pool { name: "p".to_owned(), ..Pool::new(kind, size, 2, RuleId(rule), pg_num) }
}

fn place(map: &OsdMap) -> Vec<Vec<ItemId>> {
    let pool = &map.pools[&ID];
    pool.pgs(ID).map(|pg| map.place(pg).expect("the group is there").upmapped).collect()
}

fn counts(rows: &[Vec<ItemId>]) -> BTreeMap<OsdId, u32> {
    let mut counts = BTreeMap::new();
    for item in rows.iter().flatten().filter(|item| **item != ItemId::NONE) {
        *counts.entry(item.osd().expect("a device")).or_default() += 1;
    }
    counts
}

fn check_spread(spread: &Spread, rows: &[Vec<ItemId>]) {
    let counts = counts(rows);
    for device in &spread.devices {
        assert_eq!(
            device.shards,
            counts.get(&device.osd).copied().unwrap_or(0),
            "{:?}",
            device.osd
        );
    }
    let targets: f64 = spread.devices.iter().map(|device| device.target).sum();
    assert!((targets - f64::from(counts.values().sum::<u32>())).abs() < 1e-6);
}

/// Every group keeps its failure domains; with rule 2, its racks too.
fn check_rule(map: &OsdMap, before: &[Vec<ItemId>], after: &[Vec<ItemId>], hosts: u32) {
    let host = |item: &ItemId| item.osd().expect("a device").0 / OSDS_PER_HOST;
    for (was, is) in before.iter().zip(after) {
        assert_eq!(was.len(), is.len());
        let held: Vec<&ItemId> = is.iter().filter(|item| **item != ItemId::NONE).collect();
        let domains: BTreeSet<u32> = held.iter().map(|item| host(item)).collect();
        assert_eq!(domains.len(), held.len(), "{was:?} -> {is:?}");
        for (was, is) in was.iter().zip(is).filter(|(was, is)| was != is) {
            assert!(map.is_up(*is) && map.weight(is.osd().expect("a device")) > 0, "{is:?}");
            if map.pools[&ID].rule == RuleId(2) {
                assert_eq!(host(was) / hosts, host(is) / hosts, "{was:?} -> {is:?}");
            }
        }
    }
}

fn check_plan(map: &OsdMap, plan: &BalancePlan, limits: BalanceLimits, hosts: u32) {
    let before = place(map);
    let mut changed = map.clone();
    plan.apply(&mut changed);
    let after = place(&changed);
    check_spread(&plan.pools[0].before, &before);
    check_spread(&plan.pools[0].after, &after);
    check_rule(map, &before, &after, hosts);
    let diff = diff_pool(map, &changed, ID, 2).expect("the pool is there");
    assert_eq!((diff.moved, diff.pgs_changed), (plan.moves as u64, plan.proposals.len() as u64));
    assert!(plan.moves <= limits.max_moves && plan.proposals.len() <= plan.moves);
    let [was, is] = [&plan.pools[0].before, &plan.pools[0].after];
    assert!(is.standard_deviation() <= was.standard_deviation());
    if plan.moves < limits.max_moves {
        let again = balance(&changed, &[ID], limits, 1).expect("the pool can be balanced");
        assert!(again.moves == 0 && again.proposals.is_empty(), "{:?}", again.proposals);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn plans_hold(
        rule in 0_u32..3,
        racks in 2_u32..4,
        hosts in 4_u32..7,
        weights in prop::collection::vec(1_u32..0x4_0000, 1..20),
        reweights in prop::collection::vec(
            prop_oneof![4 => Just(WEIGHT_ONE), 1 => 0_u32..WEIGHT_ONE], 84
        ),
        states in prop::collection::vec(prop_oneof![12 => Just(3_u32), 1 => Just(1_u32)], 84),
        pg_num in 1_u32..300,
        max_moves in prop_oneof![Just(usize::MAX), 1_usize..20],
        deviation in 1_u32..4,
        upmaps in prop::collection::vec((0_u32..300, 0_usize..6, 0_i32..60), 0..20),
    ) {
        let crush = crush(racks, hosts, &weights);
        let mut map = OsdMap::of_crush(crush, BTreeMap::from([(ID, pool(rule, pg_num))]));
        let osds = map.weights.len();
        map.weights.copy_from_slice(&reweights[..osds]);
        map.states = states[..osds].iter().map(|&state| OsdState(state)).collect();
        // Upmaps as administrators may write them: some to the same host, some without effect.
        for (seed, at, to) in upmaps {
            let pg = PgId { pool: ID, seed: seed % pg_num };
            let raw = map.place(pg).unwrap().raw;
            let from = raw.get(at).copied().unwrap_or(ItemId(to));
            let to = ItemId(to % osds as i32);
            let same_host = |item: &ItemId| item.0 / 4 == to.0 / 4;
            // The test leaves out upmaps that break a rule: the balancer would keep them, and the
            // check would fail.
            if from != ItemId::NONE && !raw.iter().any(same_host) && rule != 2 {
                map.pg_upmap_items.insert(pg, vec![(from, to)]);
            }
        }
        let limits = BalanceLimits { max_moves, deviation };
        let plan = balance(&map, &[ID], limits, 1).unwrap();
        prop_assert_eq!(&plan, &balance(&map, &[ID], limits, 3).unwrap());
        check_plan(&map, &plan, limits, hosts);
    }
}

#[test]
fn upmaps_are_taken_back_first() {
    let map = crush(2, 6, &[WEIGHT_ONE]);
    let mut map = OsdMap::of_crush(map, BTreeMap::from([(ID, pool(0, 256))]));
    // All shards that may move to device 0 move there.
    for pg in map.pools[&ID].pgs(ID) {
        let raw = map.place(pg).unwrap().raw;
        if raw.iter().all(|item| item.0 >= 4) {
            map.pg_upmap_items.insert(pg, vec![(raw[1], ItemId(0))]);
        }
    }
    let limits = BalanceLimits { max_moves: usize::MAX, deviation: 3 };
    let plan = balance(&map, &[ID], limits, 1).unwrap();
    check_plan(&map, &plan, limits, 6);
    assert!(plan.pools[0].after.max_deviation() <= 3.0);
    let removed = plan.proposals.iter().filter(|proposal| proposal.items.is_empty()).count();
    assert!(removed * 3 > plan.proposals.len() * 2, "{removed} of {}", plan.proposals.len());
    let command = plan.proposals.iter().find(|proposal| proposal.items.is_empty()).unwrap();
    assert_eq!(command.to_string(), format!("ceph osd rm-pg-upmap-items {}", command.pg));
}

#[test]
fn what_an_administrator_has_fixed_stays() {
    let map = crush(2, 6, &[WEIGHT_ONE]);
    let mut map = OsdMap::of_crush(map, BTreeMap::from([(ID, pool(0, 64))]));
    let fixed = [0, 4, 8].map(ItemId).to_vec();
    for seed in 0..32 {
        map.pg_upmap.insert(PgId { pool: ID, seed }, fixed.clone());
    }
    let limits = BalanceLimits { max_moves: usize::MAX, deviation: 1 };
    let plan = balance(&map, &[ID], limits, 1).unwrap();
    check_plan(&map, &plan, limits, 6);
    assert!(plan.proposals.iter().all(|proposal| proposal.pg.seed >= 32));
    assert!(!plan.proposals.is_empty());
}

#[test]
fn groups_that_split_move_nothing_by_themselves() {
    let map = crush(2, 6, &[WEIGHT_ONE]);
    let old = OsdMap::of_crush(map, BTreeMap::from([(ID, pool(1, 48))]));
    let mut new = old.clone();
    new.pools.get_mut(&ID).unwrap().pg_num = 100;
    let diff = diff_pool(&old, &new, ID, 1).unwrap();
    assert_eq!((diff.pgs, diff.moved, diff.pgs_changed), (100, 0, 0));
    assert!(diff.min_moved.unwrap() < 1e-6);
    // When pgp_num follows, they move.
    new.pools.get_mut(&ID).unwrap().pgp_num = 100;
    let diff = diff_pool(&old, &new, ID, 1).unwrap();
    assert!(diff.moved > 200, "{}", diff.moved);
    assert_eq!(diff_pool(&new, &old, ID, 1).unwrap().moved, diff.moved);
}

#[test]
fn a_device_that_leaves_moves_what_it_had() {
    let map = crush(2, 6, &[WEIGHT_ONE]);
    let old = OsdMap::of_crush(map, BTreeMap::from([(ID, pool(0, 512))]));
    let mut new = old.clone();
    new.mark_out(OsdId(7));
    let diff = diff_pool(&old, &new, ID, 1).unwrap();
    let left = diff.osds[&OsdId(7)];
    assert_eq!((left.after, left.received, left.sent), (0, 0, left.before));
    assert!(diff.moved >= left.before && diff.holes == 0);
    let share = 512.0 * 3.0 / 48.0;
    assert!((diff.min_moved.unwrap() - share).abs() < 1e-6);
    let sum = |count: fn(&Movement) -> u64| diff.osds.values().map(count).sum::<u64>();
    assert_eq!(
        (sum(|movement| movement.sent), sum(|movement| movement.received)),
        (diff.moved, diff.moved)
    );
}
