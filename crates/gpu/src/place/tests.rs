//! The kernel in the interpreter, compared with the plain mapper on random maps.

use fieldstone_crush::bucket::AlgorithmKind;
use fieldstone_crush::hash::hash3;
use fieldstone_crush::ln::crush_ln;
use fieldstone_crush::{
    Algorithm, Bucket, BucketId, ChooseArg, ChooseArgs, ItemId, Kernel, Map, MapBuilder, RuleId,
    RuleKind, RuleStep, Tunables, TypeId, WEIGHT_ONE,
};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::harness::{launch, launch_whole};
use super::{Image, MAX_WIDTH, Misfit, blocks, kernel_text};

const RULE: RuleId = RuleId(0);
/// Random maps.
const CASES: usize = 100;

/// The rows of the plain mapper.
fn expected(map: &Map, xs: &[u32], width: u32, weights: &[u32]) -> Vec<Vec<i32>> {
    let rule = map.rule(RULE).unwrap();
    let rows = rule.map_rows_with(Kernel::Scalar, xs, width as usize, weights);
    rows.iter().map(|row| row.iter().map(|item| item.0).collect()).collect()
}

fn xs(rng: &mut ChaCha8Rng, count: usize) -> Vec<u32> {
    (0..count).map(|_| rng.random()).collect()
}

/// A random map of up to four levels of buckets, which can be empty, hold devices next to buckets,
/// or hold a device that another bucket holds, too.
fn random_map(rng: &mut ChaCha8Rng, steps: &[RuleStep]) -> Map {
    let levels = rng.random_range(1..=4u16);
    let mut builder = MapBuilder::new();
    builder.tunables(tunables(rng));
    let mut below: Vec<ItemId> = (0..rng.random_range(4..40)).map(ItemId).collect();
    let devices = below.clone();
    let mut next = -2;
    for level in 1..levels {
        let mut made = Vec::new();
        let mut rest = &below[..];
        while !rest.is_empty() {
            let (own, others) = rest.split_at(rng.random_range(1..=5).min(rest.len()));
            rest = others;
            let mut items = own.to_vec();
            match rng.random_range(0..12) {
                0 => items.clear(),
                1 | 2 => items.push(*devices.choose(rng).unwrap()),
                _ => {}
            }
            builder.straw2(BucketId(next), TypeId(level), weighed(rng, &items));
            made.push(ItemId(next));
            next -= rng.random_range(1..=2);
        }
        below = made;
    }
    builder.straw2(BucketId(-1), TypeId(levels), weighed(rng, &below));
    builder.rule(RULE, steps);
    builder.build().unwrap()
}

fn weighed(rng: &mut ChaCha8Rng, items: &[ItemId]) -> Vec<(ItemId, u32)> {
    let style = rng.random_range(0..4);
    let weight = |rng: &mut ChaCha8Rng| match (style, rng.random_range(0..6)) {
        (0, _) => WEIGHT_ONE,
        (1, 0) | (2, 1..) => 0,
        (3, _) => 0x7fff_ffff - rng.random_range(0..2),
        _ => rng.random_range(1..5 * WEIGHT_ONE),
    };
    items.iter().map(|&item| (item, weight(rng))).collect()
}

fn tunables(rng: &mut ChaCha8Rng) -> Tunables {
    Tunables {
        choose_total_tries: *[0, 2, 19, 50].choose(rng).unwrap(),
        chooseleaf_descend_once: rng.random(),
        chooseleaf_vary_r: rng.random_range(0..4),
        chooseleaf_stable: rng.random(),
        ..Tunables::JEWEL
    }
}

/// Devices that are in, out, and in for a share of the inputs. Some devices are past the end.
fn reweights(rng: &mut ChaCha8Rng, map: &Map) -> Vec<u32> {
    let weight = |rng: &mut ChaCha8Rng| match rng.random_range(0..8) {
        0 => 0,
        1 => WEIGHT_ONE / 2,
        2 => rng.random_range(0..=WEIGHT_ONE),
        3 => 2 * WEIGHT_ONE,
        _ => WEIGHT_ONE,
    };
    let len = map.max_devices() - rng.random_range(0..=2).min(map.max_devices());
    (0..len).map(|_| weight(rng)).collect()
}

fn choose(rng: &mut ChaCha8Rng, kind: u16) -> RuleStep {
    let count = *[0, 0, -1, 1, 2, 3, 20].choose(rng).unwrap();
    let kind = TypeId(kind);
    match rng.random_range(0..4) {
        0 => RuleStep::ChooseFirstn { count, kind },
        1 => RuleStep::ChooseIndep { count, kind },
        2 => RuleStep::ChooseleafFirstn { count, kind },
        _ => RuleStep::ChooseleafIndep { count, kind },
    }
}

/// A rule of one or two passes, each with one or two choose steps. Sometimes a step is missing, or
/// is there twice.
fn random_steps(rng: &mut ChaCha8Rng) -> Vec<RuleStep> {
    let mut steps = Vec::new();
    match rng.random_range(0..6) {
        0 => steps.push(RuleStep::SetChooseleafTries(rng.random_range(0..6))),
        1 => steps.push(RuleStep::SetChooseTries(rng.random_range(0..30))),
        2 => steps.push(RuleStep::SetChooseleafVaryR(rng.random_range(-1..40))),
        3 => steps.push(RuleStep::SetChooseleafStable(rng.random_range(-1..2))),
        _ => {}
    }
    for _ in 0..*[1, 1, 2].choose(rng).unwrap() {
        let take = if rng.random_ratio(1, 10) { 0 } else { -1 };
        steps.push(RuleStep::Take(ItemId(take)));
        let kind = rng.random_range(0..4);
        if rng.random_ratio(1, 3) {
            steps.push(choose(rng, kind + 1));
        }
        steps.push(choose(rng, kind));
        steps.push(RuleStep::Emit);
    }
    let at = rng.random_range(0..steps.len());
    match rng.random_range(0..12) {
        0 => drop(steps.remove(at)),
        1 => steps.insert(at, steps[at]),
        _ => {}
    }
    steps
}

#[test]
fn random_maps_and_rules_place_as_the_plain_mapper_does() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (mut items, mut holes) = (0, 0);
    for case in 0..CASES {
        let steps = random_steps(&mut rng);
        let map = random_map(&mut rng, &steps);
        let weights = reweights(&mut rng, &map);
        let width = rng.random_range(1..=6);
        let xs = xs(&mut rng, 40);
        let image = Image::new(&map, RULE, &weights, None).unwrap();
        let rows = launch(kernel_text(), &image, &xs, width, 1);
        assert_eq!(rows, expected(&map, &xs, width, &weights), "case {case}: {steps:?}");
        items += rows.iter().flatten().filter(|&&item| item != ItemId::NONE.0).count();
        holes += rows.iter().flatten().filter(|&&item| item == ItemId::NONE.0).count();
    }
    assert!(items > 20 * CASES && holes > 2 * CASES, "{items} items and {holes} holes say little");
}

/// Racks of hosts of devices, with weights as in a cluster, and some devices out or half in.
fn cluster(steps: &[RuleStep]) -> (Map, Vec<u32>) {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut builder = MapBuilder::new();
    let (mut osd, mut id, mut racks) = (0, -2, Vec::new());
    for _ in 0..4 {
        let mut hosts = Vec::new();
        for _ in 0..3 {
            let items: Vec<_> =
                (osd..osd + 4).map(|osd| (ItemId(osd), rng.random_range(1..9) << 15)).collect();
            osd += 4;
            hosts.push((ItemId(id), items.iter().map(|(_, weight)| weight).sum()));
            builder.straw2(BucketId(id), TypeId(1), items);
            id -= 1;
        }
        racks.push((ItemId(id), hosts.iter().map(|(_, weight)| weight).sum()));
        builder.straw2(BucketId(id), TypeId(2), hosts);
        id -= 1;
    }
    builder.straw2(BucketId(-1), TypeId(3), racks);
    let rule = [&[RuleStep::Take(ItemId(-1))], steps, &[RuleStep::Emit]].concat();
    builder.rule(RULE, rule);
    let choices = [WEIGHT_ONE, WEIGHT_ONE, WEIGHT_ONE, WEIGHT_ONE / 2, 0];
    let weights = (0..osd).map(|_| *choices.choose(&mut rng).unwrap()).collect();
    (builder.build().unwrap(), weights)
}

#[test]
fn every_search_and_width_places_as_the_plain_mapper_does() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for kind in [0, 1, 2].map(TypeId) {
        let count = 0;
        for step in [
            RuleStep::ChooseFirstn { count, kind },
            RuleStep::ChooseIndep { count, kind },
            RuleStep::ChooseleafFirstn { count, kind },
            RuleStep::ChooseleafIndep { count, kind },
        ] {
            let (map, weights) = cluster(&[step]);
            let image = Image::new(&map, RULE, &weights, None).unwrap();
            for width in [1, 2, 3, 4, 6, MAX_WIDTH] {
                let xs = xs(&mut rng, 20);
                let rows = launch(kernel_text(), &image, &xs, width, 1);
                assert_eq!(rows, expected(&map, &xs, width, &weights), "{step:?}, {width}");
            }
        }
    }
}

/// The rest of a row gives the shortest straw of the last draw, instead of no items. So the straws
/// of a single device can be compared, not only the order of straws.
#[test]
fn straws_are_those_of_the_plain_mapper() {
    let text = kernel_text().replace(
        "st.global.u32 [address], 0x7fffffff;",
        "mov.b64 {w0, w1}, shortest; shr.u64 shortest, shortest, 32; st.global.u32 [address], w0;",
    );
    let u = |x: u32| hash3(x, 0, 0) as u16;
    // The greatest u, the exception below it, and the least.
    let rare = [65_535, 65_534, 65_533, 0, 1].map(|rare| (0..).find(|&x| u(x) == rare).unwrap());
    let xs: Vec<u32> = (1000..1123).chain(rare).collect();
    for weight in [1, 3, 0x8000, 0xfff1, WEIGHT_ONE, 0x1_0001, 0x3c_3c3c, 1 << 30, 0x7fff_ffff] {
        let mut builder = MapBuilder::new();
        builder.straw2(BucketId(-1), TypeId(1), [(ItemId(0), weight)]);
        let choose = RuleStep::ChooseFirstn { count: 1, kind: TypeId(0) };
        builder.rule(RULE, [RuleStep::Take(ItemId(-1)), choose, RuleStep::Emit]);
        let image = Image::new(&builder.build().unwrap(), RULE, &[WEIGHT_ONE], None).unwrap();
        let (rows, lens) = launch_whole(&text, &image, &xs, 3, 1);
        assert!(lens.iter().all(|&len| len == 1));
        for (&x, row) in xs.iter().zip(rows) {
            let straw = u64::from(row[1] as u32) | u64::from(row[2] as u32) << 32;
            let exact = ((1 << 48) - crush_ln(u(x))) / u64::from(weight);
            assert_eq!(straw, exact, "u {} and weight {weight:#x}", u(x));
        }
    }
}

#[test]
fn any_number_of_blocks_maps_every_input_once() {
    let (map, weights) = cluster(&[RuleStep::ChooseleafFirstn { count: 0, kind: TypeId(1) }]);
    let image = Image::new(&map, RULE, &weights, None).unwrap();
    let all: Vec<u32> = (0..300).collect();
    let all_rows = expected(&map, &all, 3, &weights);
    for (count, grid) in [(0, 1), (1, 1), (127, 1), (129, 2), (300, 1), (300, 2), (300, 5)] {
        let rows = launch(kernel_text(), &image, &all[..count], 3, grid);
        assert_eq!(rows, all_rows[..count], "{count} inputs, {grid} blocks");
    }
    assert_eq!([0, 1, 128, 129].map(blocks), [1, 1, 1, 2]);
}

/// The list that one input leaves does not reach the next input of the thread.
#[test]
fn inputs_of_a_thread_do_not_meet() {
    let step = RuleStep::ChooseFirstn { count: 0, kind: TypeId(0) };
    let (map, weights) = cluster(&[step]);
    let mut parts = map.into_parts();
    let steps = [step, RuleStep::Emit, RuleStep::Take(ItemId(-1))];
    parts.rules.get_mut(&RULE).unwrap().steps = steps.to_vec();
    let map = Map::new(parts).unwrap();
    let image = Image::new(&map, RULE, &weights, None).unwrap();
    let rows = launch(kernel_text(), &image, &[7; 300], 3, 1);
    assert!(rows.iter().all(Vec::is_empty));
}

/// The lists of a thread change places after every step. Two of them must never be the same.
#[test]
fn lists_stay_apart_over_many_steps() {
    let leaf = RuleStep::ChooseleafFirstn { count: 0, kind: TypeId(1) };
    let racks = RuleStep::ChooseFirstn { count: 3, kind: TypeId(2) };
    let leaves = RuleStep::ChooseleafIndep { count: 2, kind: TypeId(1) };
    let take = RuleStep::Take(ItemId(-1));
    let one = RuleStep::ChooseleafFirstn { count: 1, kind: TypeId(1) };
    let emit = RuleStep::Emit;
    let (map, weights) = cluster(&[one, emit, take, racks, leaves, emit, take, leaf]);
    let image = Image::new(&map, RULE, &weights, None).unwrap();
    let xs: Vec<u32> = (0..60).collect();
    let rows = launch(kernel_text(), &image, &xs, 10, 1);
    assert_eq!(rows, expected(&map, &xs, 10, &weights));
}

/// One constant changed at a time: the comparison must notice every one.
#[test]
fn a_kernel_with_another_constant_places_differently() {
    let chooseleaf = [
        RuleStep::ChooseleafFirstn { count: 0, kind: TypeId(1) },
        RuleStep::ChooseleafIndep { count: 0, kind: TypeId(1) },
    ];
    let xs: Vec<u32> = (0..40).collect();
    for (from, to) in [
        ("shr.u32 t, hb, 15;", "shr.u32 t, hb, 14;"),
        ("mov.u32 hx, 231232;", "mov.u32 hx, 231233;"),
        ("1315423911", "1315423910"),
        ("and.b32 u, h, 0xffff;", "and.b32 u, h, 0x7fff;"),
        ("[remainder+2064]", "[remainder+2056]"),
        ("[entry+-2048]", "[entry+-2032]"),
        ("shl.b32 zeros, zeros, 27;", "shl.b32 zeros, zeros, 26;"),
        ("shr.u64 straw, straw, shift;", "shr.u64 straw, straw, 30;"),
        ("setp.ge.u32 p, n, 0x10000;", "setp.ge.u32 p, n, 0x8000;"),
        ("shr.u32 n, r, w2;", "shr.u32 n, r, 1;"),
        ("selp.u32 n, positions, 1, is_indep;", "selp.u32 n, 1, 1, is_indep;"),
        ("selp.u32 n, 0, room, q;", "selp.u32 n, 0, 1, q;"),
        ("add.u32 r, r, position;", "add.u32 r, r, 0;"),
    ] {
        assert!(kernel_text().contains(from), "the kernel has no {from}");
        let changed = kernel_text().replacen(from, to, 1);
        let noticed = chooseleaf.iter().any(|&step| {
            let (map, weights) = cluster(&[RuleStep::SetChooseleafTries(4), step]);
            let image = Image::new(&map, RULE, &weights, None).unwrap();
            launch(&changed, &image, &xs, 6, 1) != expected(&map, &xs, 6, &weights)
        });
        assert!(noticed, "nothing notices {to}");
    }
}

#[test]
fn maps_and_rules_that_do_not_fit_say_why() {
    let step = RuleStep::ChooseleafFirstn { count: 0, kind: TypeId(1) };
    let (map, weights) = cluster(&[step]);
    let why = |map: &Map, args: Option<&ChooseArgs>| Image::new(map, RULE, &weights, args).err();
    assert_eq!(why(&map, None), None);
    let missing = Image::new(&map, RuleId(7), &weights, None);
    assert_eq!(missing, Err(Misfit::NoSuchRule(RuleId(7))));

    let args = ChooseArgs { buckets: [(BucketId(-1), ChooseArg::default())].into() };
    assert_eq!(why(&map, Some(&args)), Some(Misfit::ChooseArgs));
    assert_eq!(why(&map, Some(&ChooseArgs::default())), None);

    let with_rule = |kind, steps: &[RuleStep]| {
        let mut parts = map.clone().into_parts();
        let rule = parts.rules.get_mut(&RULE).unwrap();
        (rule.kind, rule.steps) = (kind, steps.to_vec());
        Map::new(parts).unwrap()
    };
    let take = RuleStep::Take(ItemId(-1));
    let replicated = RuleKind::Replicated;
    let msr = with_rule(RuleKind::MsrFirstn, &[take, RuleStep::Emit]);
    assert_eq!(why(&msr, None), Some(Misfit::MultiStepRetry));
    let local = with_rule(replicated, &[RuleStep::SetChooseLocalTries(1), take, step]);
    assert_eq!(why(&local, None), Some(Misfit::LocalTries));
    let indep = RuleStep::ChooseIndep { count: 0, kind: TypeId(1) };
    let harmless = with_rule(replicated, &[RuleStep::SetChooseLocalTries(1), take, indep]);
    assert_eq!(why(&harmless, None), None);
    let tries = [RuleStep::SetChooseTries(1000), RuleStep::SetChooseleafTries(1000), take, step];
    let attempts = Misfit::TooManyAttempts(16_000_000);
    assert_eq!(why(&with_rule(replicated, &tries), None), Some(attempts));
    let long = with_rule(replicated, &[take; 300]);
    assert_eq!(why(&long, None), Some(Misfit::TooManySteps(300)));
}

#[test]
fn only_buckets_below_the_rule_must_fit() {
    let step = RuleStep::ChooseleafFirstn { count: 0, kind: TypeId(1) };
    let (map, weights) = cluster(&[step]);
    let with_bucket = |bucket: Bucket, take: i32| {
        let mut parts = map.clone().into_parts();
        parts.buckets.push(bucket);
        parts.rules.get_mut(&RULE).unwrap().steps[0] = RuleStep::Take(ItemId(take));
        Map::new(parts).unwrap()
    };
    let why = |map: &Map| Image::new(map, RULE, &weights, None).err();
    let id = BucketId(-100);
    let tree = Bucket::new(id, TypeId(3), AlgorithmKind::Tree, 1, [(ItemId(-1), 1)]);
    assert_eq!(why(&with_bucket(tree.clone(), -1)), None);
    let algorithm = AlgorithmKind::Tree;
    let misfit = Misfit::Algorithm { bucket: id, algorithm };
    assert_eq!(misfit.to_string(), "bucket -100 is of the algorithm tree, not straw2");
    assert_eq!(why(&with_bucket(tree, -100)), Some(misfit));

    let (item, weight) = (ItemId(-1), 1 << 31);
    let algorithm = Algorithm::Straw2 { weights: vec![weight] };
    let heavy = Bucket { id, kind: TypeId(4), items: vec![item], weight, algorithm };
    let misfit = Misfit::WeightTooLarge { bucket: id, item, weight };
    assert_eq!(why(&with_bucket(heavy, -100)), Some(misfit));
}
