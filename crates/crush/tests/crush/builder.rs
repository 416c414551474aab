//! The checks refuse maps that the mapper could not trust, and the mapper always ends on the
//! others.

use fieldstone_crush::check::{MAX_DEPTH, MAX_DEVICES, MAX_TRIES};
use fieldstone_crush::{
    BucketId, BuildError, CrushError, ItemId, Map, MapBuilder, OsdId, RuleId, RuleStep, Tunables,
    TypeId, WEIGHT_ONE,
};
use proptest::prelude::*;

const HOST: TypeId = TypeId(1);
const ROOT: TypeId = TypeId(2);

fn build(change: impl FnOnce(&mut MapBuilder) -> &mut MapBuilder) -> Result<Map, BuildError> {
    change(&mut MapBuilder::new()).build()
}

#[test]
fn invalid_maps_are_refused_with_the_reason() {
    let osd = |id| (ItemId(id), WEIGHT_ONE);
    let bucket = BucketId(-1);
    assert_eq!(
        build(|b| b.straw2(BucketId(0), HOST, [])).err(),
        Some(BuildError::BadBucketId(BucketId(0)))
    );
    assert_eq!(
        build(|b| b.straw2(BucketId(i32::MIN), HOST, [])).err(),
        Some(BuildError::BadBucketId(BucketId(i32::MIN)))
    );
    assert_eq!(
        build(|b| b.straw2(bucket, HOST, []).straw2(bucket, HOST, [])).err(),
        Some(BuildError::BucketTwice(bucket))
    );
    assert_eq!(
        build(|b| b.straw2(bucket, TypeId::DEVICE, [])).err(),
        Some(BuildError::BucketOfDeviceType(bucket))
    );
    assert_eq!(
        build(|b| b.straw2(bucket, HOST, [osd(MAX_DEVICES as i32)])).err(),
        Some(BuildError::DeviceTooLarge { bucket, item: ItemId(MAX_DEVICES as i32) })
    );
    assert_eq!(
        build(|b| b.straw2(bucket, HOST, [osd(-5)])).err(),
        Some(BuildError::NoSuchItem { user: "bucket -1".to_owned(), item: ItemId(-5) })
    );
    let (item, weight) = (ItemId(0), 0x8000_0000);
    assert_eq!(
        build(|b| b.straw2(bucket, HOST, [(item, weight)])).err(),
        Some(BuildError::WeightTooLarge { bucket, item, weight })
    );
    assert!(build(|b| b.straw2(bucket, HOST, [(item, weight - 1)])).is_ok());
    let cycle = build(|b| b.straw2(bucket, HOST, [osd(-2)]).straw2(BucketId(-2), HOST, [osd(-1)]));
    assert_eq!(cycle.err(), Some(BuildError::CycleOrTooDeep(bucket)));
    let rule = RuleId(3);
    assert_eq!(build(|b| b.rule(rule, []).rule(rule, [])).err(), Some(BuildError::RuleTwice(rule)));
    for id in [-1, 0] {
        let item = ItemId(id);
        let error = BuildError::NoSuchItem { user: "rule 3".to_owned(), item };
        assert_eq!(build(|b| b.rule(rule, [RuleStep::Take(item)])).err(), Some(error));
    }
    for step in [
        RuleStep::SetChooseTries(MAX_TRIES as i32 + 1),
        RuleStep::SetMsrDescents(-1 - MAX_TRIES as i32),
        RuleStep::ChooseFirstn { count: i32::MIN, kind: HOST },
    ] {
        let error = build(|b| b.rule(rule, [step])).err();
        assert!(matches!(error, Some(BuildError::OutOfBounds { .. })), "{step:?}: {error:?}");
    }
    let tunables = Tunables { choose_total_tries: u32::MAX, ..Tunables::JEWEL };
    let error = build(|b| b.tunables(tunables)).err();
    assert!(matches!(error, Some(BuildError::OutOfBounds { .. })));
    let map = build(|b| b.devices(4)).unwrap();
    assert_eq!(map.max_devices(), 4);
    assert_eq!(map.rule(rule).err(), Some(CrushError::NoSuchRule(rule)));
}

#[test]
fn trees_are_limited_in_depth() {
    let chain = |depth: i32| {
        build(|b| {
            for id in 1..depth {
                b.straw2(BucketId(-id), HOST, [(ItemId(-id - 1), WEIGHT_ONE)]);
            }
            b.straw2(BucketId(-depth), HOST, [(ItemId(0), WEIGHT_ONE)])
        })
    };
    assert!(chain(MAX_DEPTH as i32).is_ok());
    let too_deep = chain(MAX_DEPTH as i32 + 1).err();
    assert!(matches!(too_deep, Some(BuildError::CycleOrTooDeep(_))), "{too_deep:?}");
}

#[test]
fn a_host_tree_places_on_different_hosts() {
    let host: &[u32] = &[WEIGHT_ONE; 3];
    let map = build(|b| {
        b.host_tree(ROOT, HOST, &[host; 5]);
        let take = RuleStep::Take(ItemId(-1));
        let leaf = RuleStep::ChooseleafFirstn { count: 0, kind: HOST };
        b.rule(RuleId(0), [take, leaf, RuleStep::Emit]);
        let leaf = RuleStep::ChooseleafIndep { count: 0, kind: HOST };
        b.rule(RuleId(1), [take, leaf, RuleStep::Emit]);
        let hosts = RuleStep::ChooseFirstn { count: 0, kind: HOST };
        b.rule(RuleId(2), [take, hosts, RuleStep::Emit])
    })
    .unwrap();
    assert_eq!(map.max_devices(), 15);
    assert!(map.contains_device(OsdId(14)) && !map.contains_device(OsdId(15)));
    let weights = [WEIGHT_ONE; 15];
    for x in 0..500 {
        for rule in 0..2 {
            let osds = map.rule(RuleId(rule)).unwrap().map(x, 4, &weights);
            let mut hosts: Vec<u32> = osds.iter().flatten().map(|osd| osd.0 / 3).collect();
            hosts.sort_unstable();
            hosts.dedup();
            assert!(hosts.len() == osds.iter().flatten().count() && hosts.len() >= 3);
        }
        // A rule that stops at hosts gives buckets, and no devices.
        let rule = map.rule(RuleId(2)).unwrap();
        assert!(rule.map(x, 4, &weights).iter().all(Option::is_none));
        assert!(rule.map_items(x, 4, &weights).iter().flatten().all(|item| item.0 < -1));
    }
    let xs: Vec<u32> = (0..100).collect();
    let rule = map.rule(RuleId(1)).unwrap();
    let one_by_one: Vec<_> = xs.iter().map(|&x| rule.map(x, 4, &weights)).collect();
    assert_eq!(rule.map_batch(&xs, 4, &weights), one_by_one);
}

fn random_step() -> impl Strategy<Value = RuleStep> {
    let choose = (-3i32..6, 0u16..4).prop_map(|(count, kind)| (count, TypeId(kind)));
    prop_oneof![
        (-6i32..8).prop_map(|item| RuleStep::Take(ItemId(item))),
        choose.clone().prop_map(|(count, kind)| RuleStep::ChooseFirstn { count, kind }),
        choose.clone().prop_map(|(count, kind)| RuleStep::ChooseIndep { count, kind }),
        choose.clone().prop_map(|(count, kind)| RuleStep::ChooseleafFirstn { count, kind }),
        choose.prop_map(|(count, kind)| RuleStep::ChooseleafIndep { count, kind }),
        Just(RuleStep::Emit),
        (0i32..20).prop_map(RuleStep::SetChooseTries),
        (0i32..20).prop_map(RuleStep::SetChooseleafTries),
        (0i32..4).prop_map(RuleStep::SetChooseLocalTries),
        (0i32..4).prop_map(RuleStep::SetChooseLocalFallbackTries),
        (0i32..=32).prop_map(RuleStep::SetChooseleafVaryR),
        (0i32..2).prop_map(RuleStep::SetChooseleafStable),
    ]
}

proptest! {
    /// Any map that passes the checks gives results of the right size, for any shape and rules:
    /// empty buckets, devices next to buckets, zero weights, one device in several buckets.
    #[test]
    fn whatever_is_built_can_be_mapped(
        buckets in proptest::collection::vec(
            (1u16..4, proptest::collection::vec((-6i32..8, 0u32..0x2_0000), 0..5)), 1..6,
        ),
        steps in proptest::collection::vec(random_step(), 0..9),
        weights in proptest::collection::vec(0u32..0x1_2000, 0..9),
        width in 0usize..9,
        xs in proptest::collection::vec(any::<u32>(), 1..9),
    ) {
        let mut builder = MapBuilder::new();
        for ((kind, items), slot) in buckets.iter().zip(1..) {
            // Children have higher slots, so that most maps are trees.
            let below = items.iter().filter(|(item, _)| *item >= 0 || *item < -slot);
            let items = below.map(|&(item, weight)| (ItemId(item), weight));
            builder.straw2(BucketId(-slot), TypeId(*kind), items);
        }
        builder.rule(RuleId(0), steps);
        if let Ok(map) = builder.build() {
            let rule = map.rule(RuleId(0)).unwrap();
            for x in xs {
                let osds = rule.map(x, width, &weights);
                prop_assert!(osds.len() <= width);
                let in_map = |osd: &OsdId| osd.0 < map.max_devices();
                prop_assert!(osds.iter().flatten().all(in_map));
            }
        }
    }
}
