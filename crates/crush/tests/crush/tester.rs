//! Trials against crushtool 16.2.15's output for the same map and options.

use fieldstone_crush::tester::csv::{DataSet, Recorder};
use fieldstone_crush::tester::expect::Expected;
use fieldstone_crush::tester::text::{self, RuleLabel};
use fieldstone_crush::tester::{Tally, Trial, default_weights};
use fieldstone_crush::text::parse;
use fieldstone_crush::{Map, Rule, RuleId, TriesHistogram};

const TEXT: &str = "
tunable choose_local_tries 0
tunable choose_local_fallback_tries 0
tunable choose_total_tries 50
tunable chooseleaf_descend_once 1
tunable chooseleaf_vary_r 1
tunable chooseleaf_stable 1
tunable straw_calc_version 1
device 0 osd.0 class ssd
device 1 osd.1 class hdd
device 2 osd.2 class ssd
device 3 osd.3 class hdd
device 4 osd.4 class ssd
device 5 osd.5 class hdd
type 0 osd
type 1 host
type 2 root
host alpha { id -2 alg straw2 hash 0 item osd.0 weight 1.0 item osd.1 weight 2.0 }
host beta { id -3 alg straw2 hash 0 item osd.2 weight 1.0 item osd.3 weight 2.0 }
host gamma { id -4 alg straw2 hash 0 item osd.4 weight 1.0 item osd.5 weight 2.0 }
root all {
  id -1 alg straw2 hash 0 item alpha weight 3.0 item beta weight 3.0 item gamma weight 3.0
}
rule copies {
  id 0 type replicated min_size 1 max_size 2
  step take all
  step chooseleaf firstn 0 type host
  step emit
}
rule shards {
  id 2 type erasure min_size 3 max_size 3
  step take all class ssd
  step chooseleaf indep 0 type host
  step emit
}
";

const WIDTH: usize = 3;

fn map() -> Map {
    parse(TEXT).expect("a valid map")
}

fn rule(map: &Map, id: u32) -> Rule {
    let found = map.rules().find(|(known, _)| *known == RuleId(id));
    found.expect("a rule of that number").1.clone()
}

/// x = 0 to 99.
fn run(map: &Map, id: u32, weights: &[u32], recorder: &mut Recorder) -> Tally {
    let rule = map.rule(RuleId(id)).expect("a rule of that number");
    let (first_x, last_x, pool, count_tries) = (0, 99, None, true);
    let trial = Trial { map, rule, width: WIDTH, weights, first_x, last_x, pool, count_tries };
    let receive = |block: &_| {
        recorder.record(block);
        Ok::<(), ()>(())
    };
    trial.run(2, |_, _, _| {}, receive).expect("nothing fails")
}

#[test]
fn utilization_and_tries_are_crushtools() {
    let map = map();
    let mut weights = default_weights(&map);
    (weights[1], weights[4]) = (0x8000, 0);
    let mut tries = Tally { tries: TriesHistogram::new(&map).counts(), ..Tally::default() };
    let mut lines = String::new();
    for (id, name) in [(0, "copies"), (2, "shards")] {
        let tally = run(&map, id, &weights, &mut Recorder::new(100, WIDTH, 1, weights.len()));
        let expected =
            Expected::new(&map, &rule(&map, id), WIDTH, &weights).expect("devices are in");
        lines += &text::sizes(RuleLabel { rule: id, name }, WIDTH, &tally);
        lines += &text::devices(&tally, &expected.objects(tally.mappings), true);
        tries.add_tries(&tally.tries);
    }
    let printed = [
        "rule 0 (copies) num_rep 3 result size == 3:\t100/100",
        "  device 0:\t\t stored : 76\t expected : 66.6667",
        "  device 1:\t\t stored : 24\t expected : 33.3333",
        "  device 2:\t\t stored : 33\t expected : 66.6667",
        "  device 3:\t\t stored : 67\t expected : 66.6667",
        "  device 4:\t\t stored : 0\t expected : 0",
        "  device 5:\t\t stored : 100\t expected : 66.6667",
        "rule 2 (shards) num_rep 3 result size == 3:\t100/100",
        "  device 0:\t\t stored : 100\t expected : 66.6667",
        "  device 1:\t\t stored : 0\t expected : 33.3333",
        "  device 2:\t\t stored : 100\t expected : 66.6667",
        "  device 3:\t\t stored : 0\t expected : 66.6667",
        "  device 4:\t\t stored : 0\t expected : 0",
        "  device 5:\t\t stored : 0\t expected : 66.6667",
    ];
    assert_eq!(lines.lines().collect::<Vec<_>>(), printed);
    let most_common = [425, 2055, 39, 18, 16, 9, 6, 2, 2, 1, 2, 5, 1, 1, 0, 1, 2, 1, 0, 1];
    assert_eq!(tries.tries[..20], most_common);
    assert_eq!(tries.tries.len(), 51);
}

#[test]
fn data_sets_are_crushtools() {
    let map = map();
    let mut weights = default_weights(&map);
    weights[1] = 0x8000;
    let mut recorder = Recorder::new(100, WIDTH, 3, weights.len());
    let tally = run(&map, 0, &weights, &mut recorder);
    let expected = Expected::new(&map, &rule(&map, 0), WIDTH, &weights).expect("devices are in");
    let sets = recorder.finish(&tally, &expected, &weights);
    let text = |name: &str| {
        let set: &DataSet = sets.iter().find(|set| set.name == name).expect("the set");
        String::from_utf8(set.text.clone()).expect("sets are ASCII")
    };
    assert_eq!(
        text("proportional_weights"),
        "Device ID, Proportional Weight\n\
         0,0.181818\n1,0.0909091\n2,0.181818\n3,0.181818\n4,0.181818\n5,0.181818\n"
    );
    assert_eq!(
        text("device_utilization"),
        "Device ID, Number of Objects Stored, Number of Objects Expected\n\
         0,76,54.5455\n1,24,27.2727\n2,33,54.5455\n3,67,54.5455\n4,31,54.5455\n5,69,54.5455\n"
    );
    assert_eq!(text("absolute_weights").lines().nth(2), Some("1,0.5"));
    assert_eq!(text("placement_information").lines().count(), 101);
    // 33, 33 and 34 mappings.
    let stored = text("batch_device_utilization_all");
    let rows = stored.lines().skip(1).map(|row| {
        let numbers = row.split(',').skip(1).map(|number| number.parse::<u64>().expect("a number"));
        numbers.sum::<u64>()
    });
    assert_eq!(rows.collect::<Vec<_>>(), [99, 99, 102]);
    let expected = text("batch_device_expected_utilization_all");
    assert_eq!(expected.lines().nth(1), Some("0,18,9,18,18,18,18"));
}

#[test]
fn nothing_is_expected_when_all_devices_are_out() {
    let map = map();
    let rule = rule(&map, 0);
    assert_eq!(Expected::new(&map, &rule, WIDTH, &[0; 6]), None);
    // Three hosts and their shadows of two classes can fill nine positions.
    let objects = |width| {
        let expected = Expected::new(&map, &rule, width, &[0x10000; 6]).expect("devices are in");
        expected.objects(100).iter().sum::<f32>()
    };
    assert!((objects(12) - 900.0).abs() < 0.01 && (objects(2) - 200.0).abs() < 0.01);
}
