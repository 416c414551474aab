//! The batch mapper gives the results of the plain mapper, on every kernel of this CPU.
//!
//! Maps, rules, reweights and weight sets are random, from a seed. `CRUSH_BATCH_MAPPINGS` is the
//! number of mappings per kernel, and `CRUSH_BATCH_SEED` the first seed.

use fieldstone_crush::{
    AlgorithmKind, BucketId, ChooseArg, ChooseArgs, ChooseArgsId, ItemId, Kernel, Map, MapBuilder,
    RuleId, RuleStep, Tunables, TypeId, WEIGHT_ONE,
};

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const DEVICE: TypeId = TypeId(0);
const HOST: TypeId = TypeId(1);
const RACK: TypeId = TypeId(2);
const ROOT: TypeId = TypeId(3);

/// With heavy weights, straws are small integers. Many are equal although their quotients differ,
/// and only an exact decision finds the first of the equal ones.
fn weight(random: &mut Random, heavy: bool) -> u32 {
    if heavy {
        return (1 << 30) + random.below(1 << 30) as u32;
    }
    match random.below(8) {
        0 => 0,
        1 => random.below(8) as u32,
        2 => random.below(1 << 31) as u32,
        3 => WEIGHT_ONE,
        _ => random.below(16 << 16) as u32,
    }
}

/// A tree of up to four levels. Some children are devices on a level of buckets, some buckets are
/// empty, and some children are shared.
fn random_map(random: &mut Random) -> Map {
    // Small maps cannot fill wide results, and fail in every try. So most rules set few tries.
    let patient = random.one_in(20);
    let heavy = random.one_in(8);
    let mut builder = MapBuilder::new();
    let mut tunables = Tunables {
        choose_total_tries: if patient {
            random.pick(&[19, 50])
        } else {
            random.pick(&[0, 1, 3, 7])
        },
        chooseleaf_descend_once: !random.one_in(6),
        chooseleaf_vary_r: random.pick(&[0, 1, 1, 1, 2, 4]),
        chooseleaf_stable: !random.one_in(3),
        straw_calc_version: random.below(2) as u8,
        ..Tunables::JEWEL
    };
    if random.one_in(24) {
        tunables = Tunables::LEGACY;
    }
    builder.tunables(tunables);
    let only = random.pick(&[None, Some(AlgorithmKind::Straw2), Some(AlgorithmKind::Straw2)]);
    let only = if random.one_in(2) { only } else { Some(random.pick(&AlgorithmKind::ALL)) };
    let equal = random.one_in(3);
    let mut args = ChooseArgs::default();
    let mut below: Vec<(ItemId, u32)> = Vec::new();
    let mut next_bucket = -1;
    let mut next_osd = 0;
    let large = random.one_in(16);
    for (kind, fanout) in [(HOST, 6), (RACK, 5), (ROOT, 8)] {
        let buckets = match kind {
            HOST => 1 + random.below(if large { 60 } else { 12 }),
            RACK => 1 + random.below(5),
            _ => 1,
        };
        let mut made = Vec::new();
        for _ in 0..buckets {
            let id = BucketId(next_bucket);
            next_bucket -= 1;
            let mut items: Vec<(ItemId, u32)> = Vec::new();
            if !random.one_in(30) {
                for _ in 0..=random.below(if large { 40 } else { fanout }) {
                    let shared = below.is_empty() || random.one_in(25);
                    let item = if kind == HOST || shared {
                        next_osd += 1;
                        (ItemId(next_osd - 1), weight(random, heavy))
                    } else {
                        random.pick(&below)
                    };
                    items.push(if equal { (item.0, WEIGHT_ONE) } else { item });
                }
            }
            let algorithm = only.unwrap_or_else(|| random.pick(&AlgorithmKind::ALL));
            let algorithm = if items.len() > 64 { AlgorithmKind::Straw2 } else { algorithm };
            if random.one_in(3) {
                let mut arg = ChooseArg::default();
                for _ in 0..random.below(4) {
                    // Some weight sets have weights that Ceph reads as negative.
                    let signed = u32::from(heavy && random.one_in(4)) << 31;
                    let weights = items.iter().map(|_| weight(random, heavy) | signed);
                    arg.weight_sets.push(weights.collect());
                }
                if random.one_in(2) {
                    let ids = items.iter().map(|_| ItemId(random.next() as i32));
                    arg.ids = Some(ids.collect());
                }
                args.buckets.insert(id, arg);
            }
            builder.bucket(id, kind, algorithm, items);
            made.push((ItemId::from(id), weight(random, heavy)));
        }
        below.extend(made.iter().copied().filter(|_| !random.one_in(6)));
        if kind == HOST || below.is_empty() {
            below = made;
        }
    }
    builder.choose_args(ChooseArgsId::DEFAULT, args);
    let root = ItemId(next_bucket + 1);
    for id in 0..6 {
        let mut steps = Vec::new();
        if random.one_in(3) {
            let most = if patient { 60 } else { 8 };
            steps.push(RuleStep::SetChooseTries(random.pick(&[1, 2, 4, most])));
        }
        if random.one_in(3) {
            steps.push(RuleStep::SetChooseleafTries(random.pick(&[1, 2, 5])));
        }
        if random.one_in(6) {
            steps.push(RuleStep::SetChooseleafStable(random.below(2) as i32));
            steps.push(RuleStep::SetChooseleafVaryR(random.below(4) as i32));
        }
        for _ in 0..=random.below(2) {
            let take = if random.one_in(8) { random.pick(&below).0 } else { root };
            steps.push(RuleStep::Take(take));
            if random.one_in(4) {
                let (count, kind) = (random.below(4) as i32, random.pick(&[HOST, RACK]));
                steps.push(if random.one_in(2) {
                    RuleStep::ChooseFirstn { count, kind }
                } else {
                    RuleStep::ChooseIndep { count, kind }
                });
            }
            let count = random.pick(&[0, 0, 0, 1, 2, 3, -1]);
            let kind = random.pick(&[DEVICE, HOST, HOST, RACK]);
            steps.push(match random.below(4) {
                0 => RuleStep::ChooseFirstn { count, kind: DEVICE },
                1 => RuleStep::ChooseIndep { count, kind: DEVICE },
                2 => RuleStep::ChooseleafFirstn { count, kind },
                _ => RuleStep::ChooseleafIndep { count, kind },
            });
            steps.push(RuleStep::Emit);
        }
        builder.rule(RuleId(id), steps);
    }
    builder.build().expect("the map is valid")
}

fn reweights(random: &mut Random, map: &Map) -> Vec<u32> {
    let style = random.below(4);
    (0..map.max_devices())
        .map(|_| match (style, random.below(5)) {
            (0, _) => WEIGHT_ONE,
            (1, 0) => 0,
            (2.., 0) => random.below(0x1_0000) as u32,
            (3, 1) => 0,
            _ => WEIGHT_ONE,
        })
        .collect()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

#[test]
fn every_kernel_gives_what_the_plain_mapper_gives() {
    let mappings = setting("CRUSH_BATCH_MAPPINGS", 1_000_000);
    let first_seed = setting("CRUSH_BATCH_SEED", 0);
    let kernels: Vec<Kernel> =
        Kernel::ALL.into_iter().filter(|k| *k != Kernel::Scalar && k.is_available()).collect();
    if kernels.is_empty() {
        println!("skipped: this CPU has neither AVX2 nor AVX-512");
        return;
    }
    let mut compared = 0;
    for seed in first_seed.. {
        let mut random = Random::new(seed + 1);
        let map = random_map(&mut random);
        let weights = reweights(&mut random, &map);
        for (id, _) in map.rules() {
            let width = random.pick(&[1, 2, 3, 3, 3, 4, 4, 6, 6, 8, 16]);
            let args = map.choose_args().get(&ChooseArgsId::DEFAULT).filter(|_| random.one_in(2));
            let rule = map.rule(id).expect("the rule exists").with_choose_args(args);
            let from = random.next() as u32;
            let len = 1 + random.below(400) as u32;
            let xs: Vec<u32> = (0..len).map(|x| from.wrapping_add(x)).collect();
            let expected = rule.map_rows_with(Kernel::Scalar, &xs, width, &weights);
            for &kernel in &kernels {
                let rows = rule.map_rows_with(kernel, &xs, width, &weights);
                for (index, &x) in xs.iter().enumerate() {
                    let what =
                        || format!("{kernel}: seed {seed}, rule {id:?}, width {width}, x {x}");
                    assert_eq!(rows.row(index), expected.row(index), "{}", what());
                    // Single look-ups use vectors in another way.
                    if index % 8 == 0 {
                        let single = rule.map_items_with(kernel, x, width, &weights);
                        let single: Vec<ItemId> =
                            single.into_iter().map(|item| item.unwrap_or(ItemId::NONE)).collect();
                        assert_eq!(single, expected.row(index), "single, {}", what());
                    }
                }
            }
            compared += xs.len() as u64;
        }
        if compared >= mappings {
            println!("{compared} mappings, {} seeds, each on {kernels:?}", seed + 1 - first_seed);
            return;
        }
    }
}
