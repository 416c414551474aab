//! Maps that become images, and the reasons why others do not.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fieldstone_crush::{
    AlgorithmKind, Bucket, BucketId, ChooseArg, ChooseArgs, ItemId, Map, MapBuilder, Parts, RuleId,
    RuleStep, TypeId, WEIGHT_ONE, text,
};
use fieldstone_fpga::image::{Image, ImageError, ImageLimits, RuleMisfit};

/// The maps for which Ceph's crushtool has given the placements.
fn oracle_maps() -> Vec<(String, Map)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crush/tests/data/maps");
    let mut maps: Vec<(String, Map)> = std::fs::read_dir(folder)
        .expect("the folder exists")
        .map(|entry| {
            let path = entry.expect("it can be read").path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let source = std::fs::read_to_string(&path).expect("it can be read");
            (name, text::parse(&source).expect("it is a map"))
        })
        .collect();
    maps.sort_by(|a, b| a.0.cmp(&b.0));
    maps
}

#[test]
fn oracle_maps_fit_or_say_why_not() {
    let mut refused = Vec::new();
    for (name, map) in oracle_maps() {
        let weights = vec![WEIGHT_ONE; map.max_devices() as usize];
        for args in std::iter::once(None).chain(map.choose_args().values().map(Some)) {
            let image = match Image::compile(&map, &weights, args) {
                Ok(image) => image,
                Err(error) => {
                    assert!(
                        matches!(error, ImageError::NoRule { misfit: RuleMisfit::Msr, .. }),
                        "{name}: {error}"
                    );
                    refused.push(name.clone());
                    continue;
                }
            };
            assert_eq!(image.bytes().len() % 64, 0);
            let tunables = map.tunables();
            let retries = tunables.choose_local_tries + tunables.choose_local_fallback_tries > 0;
            for (id, rule) in map.rules() {
                let firstn = |step: &RuleStep| {
                    matches!(
                        step,
                        RuleStep::ChooseFirstn { .. } | RuleStep::ChooseleafFirstn { .. }
                    )
                };
                let own = (name.as_str(), id.0) == ("rules_zoo", 5);
                let expected = (own || retries && rule.steps.iter().any(firstn))
                    .then_some(RuleMisfit::LocalTries);
                assert_eq!(image.misfit(id), expected, "{name}, rule {}", id.0);
            }
        }
    }
    assert_eq!(refused, ["msr_squid", "msr_tun"]);
}

/// A root of these (item, weight) pairs, with a rule.
fn one_bucket(algorithm: AlgorithmKind, items: &[(i32, u32)], rule: &[RuleStep]) -> Map {
    let items = items.iter().map(|&(item, weight)| (ItemId(item), weight));
    let mut parts = Parts::default();
    parts.buckets.push(Bucket::new(BucketId(-1), TypeId(1), algorithm, 1, items));
    let mut builder = MapBuilder::new();
    builder.straw2(BucketId(-1), TypeId(1), []);
    builder.rule(RuleId(0), rule);
    let with_rule = builder.build().expect("it is sound").into_parts();
    parts.rules = with_rule.rules;
    Map::new(parts).expect("it is sound")
}

const CHOOSE: RuleStep = RuleStep::ChooseFirstn { count: 0, kind: TypeId::DEVICE };

#[test]
fn weights_that_are_negative_for_ceph_are_refused_where_they_count() {
    let items = [(0, 1), (1, 1 << 31)];
    let straw2 = one_bucket(AlgorithmKind::Straw2, &items, &[CHOOSE]);
    let error = Image::compile(&straw2, &[], None).expect_err("the weight is too large");
    let (bucket, item, weight) = (BucketId(-1), ItemId(1), 1 << 31);
    assert_eq!(error, ImageError::WeightTooLarge { bucket, item, weight });
    for algorithm in [AlgorithmKind::List, AlgorithmKind::Tree, AlgorithmKind::Uniform] {
        let map = one_bucket(algorithm, &items, &[CHOOSE]);
        let image = Image::compile(&map, &[], None).expect("it does not count there");
        assert_eq!(image.algorithms(), [algorithm]);
    }
    // A weight set that replaces the weight.
    let arg = ChooseArg { weight_sets: vec![vec![1, 1]], ids: None };
    let args = ChooseArgs { buckets: BTreeMap::from([(BucketId(-1), arg)]) };
    assert!(Image::compile(&straw2, &[], Some(&args)).is_ok());
}

#[test]
fn maps_past_the_limits_are_refused() {
    let items: Vec<(i32, u32)> = (0..40).map(|item| (item, 1)).collect();
    let map = one_bucket(AlgorithmKind::Straw2, &items, &[CHOOSE, CHOOSE]);
    let exact = ImageLimits { buckets: 1, slot_rows: 3, devices: 40, rules: 1, steps: 2 };
    let compile = |limits: ImageLimits| Image::compile_within(&limits, &map, &[1; 40], None);
    assert!(compile(exact).is_ok());
    let too_large = |what, needed, room| Err(ImageError::TooLarge { what, needed, room });
    assert_eq!(compile(ImageLimits { buckets: 0, ..exact }), too_large("buckets", 1, 0));
    assert_eq!(compile(ImageLimits { slot_rows: 2, ..exact }), too_large("rows of 16 slots", 3, 2));
    assert_eq!(compile(ImageLimits { devices: 39, ..exact }), too_large("devices", 40, 39));
    let no_rule = Err(ImageError::NoRule { rule: RuleId(0), misfit: RuleMisfit::TooLong });
    assert_eq!(compile(ImageLimits { steps: 1, ..exact }), no_rule);
    assert_eq!(compile(ImageLimits { rules: 0, ..exact }), no_rule);
    // Reweights of devices past the map's end do not matter.
    assert!(Image::compile_within(&exact, &map, &[1; 100], None).is_ok());
}

#[test]
fn rules_that_do_not_fit_are_left_out() {
    let mut builder = MapBuilder::new();
    builder.straw2(BucketId(-1), TypeId(1), [(ItemId(0), 1)]);
    let kind = TypeId::DEVICE;
    let misfits = [
        (RuleStep::ChooseFirstn { count: 31, kind }, None),
        (RuleStep::ChooseFirstn { count: 32, kind }, Some(RuleMisfit::Count(32))),
        (RuleStep::ChooseIndep { count: -1000, kind }, None),
        (RuleStep::SetChooseTries(65_535), None),
        (RuleStep::SetChooseTries(65_536), Some(RuleMisfit::Tries(65_536))),
        (RuleStep::SetChooseleafTries(70_000), Some(RuleMisfit::Tries(70_000))),
        (RuleStep::ChooseIndep { count: 1, kind: TypeId(256) }, Some(RuleMisfit::Type(256))),
    ];
    for (id, (step, _)) in (0..).zip(&misfits) {
        builder.rule(RuleId(id), [*step]);
    }
    let local = [RuleStep::SetChooseLocalTries(1), CHOOSE];
    builder.rule(RuleId(20), [RuleStep::SetChooseLocalTries(1)]);
    builder.rule(RuleId(21), local);
    let image = Image::compile(&builder.build().expect("it is sound"), &[], None);
    let image = image.expect("some rules fit");
    for (id, (step, misfit)) in (0..).zip(misfits) {
        assert_eq!(image.misfit(RuleId(id)), misfit, "{step:?}");
    }
    assert_eq!(image.misfit(RuleId(20)), None);
    assert_eq!(image.misfit(RuleId(21)), Some(RuleMisfit::LocalTries));
}
