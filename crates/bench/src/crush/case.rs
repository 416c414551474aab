//! The cases: rules and maps.

use fieldstone_crush::{
    AlgorithmKind, BucketId, ItemId, Map, MapBuilder, RuleId, RuleStep, Tunables, TypeId,
    WEIGHT_ONE,
};

const HOST: TypeId = TypeId(1);
const RACK: TypeId = TypeId(2);
const ROOT: TypeId = TypeId(3);

/// The rule for replicas: chooseleaf firstn over hosts.
pub const FIRSTN: RuleId = RuleId(0);
/// The rule for shards: chooseleaf indep over hosts.
pub const INDEP: RuleId = RuleId(1);

/// Sizes of clusters: OSDs, racks, hosts per rack, OSDs per host.
pub const CLUSTERS: [(u32, u32, u32, u32); 4] =
    [(32, 2, 4, 4), (256, 4, 8, 8), (1024, 8, 8, 16), (10_240, 16, 32, 20)];

/// Weights of OSDs, used in turn: disks of several sizes.
const WEIGHTS: [f64; 7] = [1.0, 2.0, 0.5, 4.0, 1.818_97, 7.277_39, 3.638_69];

/// One rule on one map, applied to many inputs.
pub struct Case {
    /// Its name, part of a row's case.
    pub name: String,
    /// The map.
    pub map: Map,
    /// The rule.
    pub rule: RuleId,
    /// Positions of a mapping.
    pub width: usize,
    /// Target: how many times faster than the C mapper the batch mapper is.
    pub batch_target: f64,
    /// Target: how many times faster than the C mapper single mappings are.
    pub single_target: Option<f64>,
}

/// All cases.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for cluster in CLUSTERS {
        for (rule, name, width, batch_target) in
            [(FIRSTN, "firstn-3", 3, 10.0), (INDEP, "indep-6", 6, 7.0)]
        {
            cases.push(Case {
                name: format!("{}-osds-{name}", cluster.0),
                map: tree(AlgorithmKind::Straw2, cluster),
                rule,
                width,
                batch_target,
                single_target: Some(3.0),
            });
        }
    }
    for algorithm in AlgorithmKind::ALL {
        cases.push(Case {
            name: format!("choose-{}-16", algorithm.word()),
            map: flat(algorithm, 16),
            rule: FIRSTN,
            width: 1,
            batch_target: 5.0,
            single_target: None,
        });
    }
    cases
}

fn weight(algorithm: AlgorithmKind, osd: i32) -> u32 {
    if algorithm == AlgorithmKind::Uniform {
        return WEIGHT_ONE;
    }
    (WEIGHTS[osd as usize % WEIGHTS.len()] * f64::from(WEIGHT_ONE)) as u32
}

/// A cluster of racks of hosts, with both rules.
pub fn tree(algorithm: AlgorithmKind, cluster: (u32, u32, u32, u32)) -> Map {
    let (_, racks, hosts, osds) = cluster;
    let mut builder = MapBuilder::new();
    builder.type_names(["osd", "host", "rack", "root"]);
    let mut next_osd = 0;
    let mut next_bucket = -2;
    let mut root = Vec::new();
    for rack in 0..racks {
        let mut rack_items = Vec::new();
        for host in 0..hosts {
            let items: Vec<(ItemId, u32)> = (0..osds)
                .map(|_| {
                    let osd = next_osd;
                    next_osd += 1;
                    builder.item_name(ItemId(osd), format!("osd.{osd}"));
                    (ItemId(osd), weight(algorithm, osd))
                })
                .collect();
            let total = items.iter().map(|item| item.1).sum();
            builder.bucket(BucketId(next_bucket), HOST, algorithm, items);
            builder.item_name(ItemId(next_bucket), format!("host-{rack}-{host}"));
            rack_items.push((ItemId(next_bucket), total));
            next_bucket -= 1;
        }
        let total = rack_items.iter().map(|item| item.1).sum();
        builder.bucket(BucketId(next_bucket), RACK, algorithm, rack_items);
        builder.item_name(ItemId(next_bucket), format!("rack-{rack}"));
        root.push((ItemId(next_bucket), total));
        next_bucket -= 1;
    }
    builder.bucket(BucketId(-1), ROOT, algorithm, root);
    builder.item_name(ItemId(-1), "root".to_owned());
    let take = RuleStep::Take(ItemId(-1));
    let leaf = RuleStep::ChooseleafFirstn { count: 0, kind: HOST };
    builder.rule(FIRSTN, [take, leaf, RuleStep::Emit]);
    builder.rule(
        INDEP,
        [
            RuleStep::SetChooseleafTries(5),
            RuleStep::SetChooseTries(100),
            take,
            RuleStep::ChooseleafIndep { count: 0, kind: HOST },
            RuleStep::Emit,
        ],
    );
    builder.rule_name(FIRSTN, "replicas".to_owned());
    builder.rule_name(INDEP, "shards".to_owned());
    builder.build().expect("the map is valid")
}

/// One bucket of devices.
fn flat(algorithm: AlgorithmKind, items: i32) -> Map {
    let mut builder = MapBuilder::new();
    // The C builder uses this straw version by default, and none of its functions changes it.
    builder.tunables(Tunables { straw_calc_version: 0, ..Tunables::JEWEL });
    let items = (0..items).map(|osd| (ItemId(osd), weight(algorithm, osd)));
    builder.bucket(BucketId(-1), ROOT, algorithm, items);
    let choose = RuleStep::ChooseFirstn { count: 0, kind: TypeId::DEVICE };
    builder.rule(FIRSTN, [RuleStep::Take(ItemId(-1)), choose, RuleStep::Emit]);
    builder.build().expect("the map is valid")
}
