//! Our mapper against the rows that Ceph's crushtool gave for the same maps.
//!
//! Every map in `data/` is a pair of files. `NAME.json` holds the tunables, the buckets as
//! `[id, type, [[item, weight], ...]]`, the rules as lists of steps, and the runs: the width, the
//! pool (if any, x becomes `hash2(x, pool)`) and the devices whose reweight is not 1.0.
//! `NAME.csv` holds the answers, `run,rule,x,osds` with `-` for a hole.

use std::path::Path;

use fieldstone_crush::{
    BucketId, ItemId, Map, MapBuilder, OsdId, RuleId, RuleStep, Tunables, TypeId, WEIGHT_ONE, hash,
};
use serde_json::Value;

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("{value} is not a whole number"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is not a list"))
}

fn step(value: &Value) -> RuleStep {
    let parts = list(value);
    let argument = || number(&parts[1]);
    let (count, kind) =
        (parts.get(1).map_or(0, number) as i32, TypeId(parts.get(2).map_or(0, number) as u16));
    match parts[0].as_str().expect("a step's name") {
        "take" => RuleStep::Take(ItemId(argument() as i32)),
        "emit" => RuleStep::Emit,
        "choose_firstn" => RuleStep::ChooseFirstn { count, kind },
        "choose_indep" => RuleStep::ChooseIndep { count, kind },
        "chooseleaf_firstn" => RuleStep::ChooseleafFirstn { count, kind },
        "chooseleaf_indep" => RuleStep::ChooseleafIndep { count, kind },
        "set_choose_tries" => RuleStep::SetChooseTries(argument() as i32),
        "set_chooseleaf_tries" => RuleStep::SetChooseleafTries(argument() as i32),
        "set_choose_local_tries" => RuleStep::SetChooseLocalTries(argument() as i32),
        "set_choose_local_fallback_tries" => {
            RuleStep::SetChooseLocalFallbackTries(argument() as i32)
        }
        "set_chooseleaf_vary_r" => RuleStep::SetChooseleafVaryR(argument() as i32),
        "set_chooseleaf_stable" => RuleStep::SetChooseleafStable(argument() as i32),
        other => panic!("unknown step {other}"),
    }
}

fn build(file: &Value) -> Map {
    let tunable = |name: &str| number(&file["tunables"][name]) as u32;
    let mut builder = MapBuilder::new();
    builder.devices(number(&file["max_devices"]) as u32);
    builder.tunables(Tunables {
        choose_local_tries: tunable("choose_local_tries"),
        choose_local_fallback_tries: tunable("choose_local_fallback_tries"),
        choose_total_tries: tunable("choose_total_tries"),
        chooseleaf_descend_once: tunable("chooseleaf_descend_once") != 0,
        chooseleaf_vary_r: tunable("chooseleaf_vary_r") as u8,
        chooseleaf_stable: tunable("chooseleaf_stable") != 0,
        ..Tunables::JEWEL
    });
    for bucket in list(&file["buckets"]) {
        let items = list(&bucket[2])
            .iter()
            .map(|item| (ItemId(number(&item[0]) as i32), number(&item[1]) as u32));
        builder.straw2(
            BucketId(number(&bucket[0]) as i32),
            TypeId(number(&bucket[1]) as u16),
            items,
        );
    }
    for (id, steps) in file["rules"].as_object().expect("the rules") {
        let steps: Vec<RuleStep> = list(steps).iter().map(step).collect();
        builder.rule(RuleId(id.parse().expect("a rule's number")), steps);
    }
    builder.build().expect("the map is valid")
}

/// As crushtool: devices that are in the map weigh 1.0 unless the run says otherwise.
fn reweights(map: &Map, run: &Value) -> Vec<u32> {
    let mut weights: Vec<u32> = (0..map.max_devices())
        .map(|osd| if map.contains_device(OsdId(osd)) { WEIGHT_ONE } else { 0 })
        .collect();
    for pair in list(&run["reweights"]) {
        if let Some(weight) = weights.get_mut(number(&pair[0]) as usize) {
            *weight = number(&pair[1]) as u32;
        }
    }
    weights
}

/// Checks all rows of one map and returns how many there were.
fn check(folder: &Path, name: &str) -> usize {
    let read = |extension: &str| {
        let path = folder.join(name).with_extension(extension);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let file: Value = serde_json::from_str(&read("json")).expect("the map is JSON");
    let map = build(&file);
    let mut rows = 0;
    for row in read("csv").lines() {
        let fields: Vec<&str> = row.split(',').collect();
        let [run_name, rule, x, osds] = fields[..] else { panic!("{name}: bad row {row}") };
        let run = &file["runs"][run_name];
        let x: i64 = x.parse().expect("x is a number");
        let x = match &run["pool"] {
            Value::Null => x as u32,
            pool => hash::hash2(x as u32, number(pool) as u32),
        };
        let rule = RuleId(rule.parse().expect("a rule's number"));
        let expected: Vec<Option<OsdId>> =
            osds.split_whitespace().map(|osd| osd.parse().ok().map(OsdId)).collect();
        let rule = map.rule(rule).expect("the rule exists");
        let weights = reweights(&map, run);
        let width = number(&run["width"]) as usize;
        assert_eq!(rule.map(x, width, &weights).0, expected, "{name}: {row}");
        rows += 1;
    }
    rows
}

#[test]
fn every_row_of_the_reference_is_matched() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for (name, rows) in [
        ("alg_straw2_jewel", 2688),
        ("alg_straw2_argonaut", 1920),
        ("rules_zoo", 3120),
        ("heavy", 1536),
        ("tun_vary2_stable0", 128),
    ] {
        assert_eq!(check(&folder, name), rows, "{name}");
    }
}
