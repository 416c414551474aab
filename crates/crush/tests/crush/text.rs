//! The language of text maps: accepted texts, refused texts with the place of the error, and shadow
//! trees. The expected numbers are crushtool's.

use fieldstone_crush::text::{self, ParseError};
use fieldstone_crush::{Algorithm, BucketId, ChooseArgsId, ClassId, ItemId, Map, RuleId, RuleStep};

const HEAD: &str = "device 0 osd.0\ndevice 1 osd.1\ndevice 2 osd.2 class ssd\ndevice 3 osd.3\n\
                    type 0 osd\ntype 1 host\ntype 3 root\n";
const RULE: &str = "rule x { id 0 type replicated min_size 1 max_size 10 step take h step choose \
                    firstn 0 type osd step emit }\n";

fn parse(rest: &str) -> Map {
    text::parse(&format!("{HEAD}{rest}")).unwrap_or_else(|error| panic!("{rest}: {error}"))
}

/// The error of a text that follows [`HEAD`], with lines counted from it.
fn refused(rest: &str) -> String {
    match text::parse(&format!("{HEAD}{rest}")) {
        Ok(_) => panic!("{rest} is a map"),
        Err(ParseError { line, column, problem }) => {
            let line = i64::from(line) - HEAD.lines().count() as i64;
            format!("{line}:{column} {problem}")
        }
    }
}

fn shadow(map: &Map, bucket: i32, class: &str) -> Option<i32> {
    let class = map.classes().id(class)?;
    map.classes().shadows.get(&BucketId(bucket))?.get(&class).map(|id| id.0)
}

fn weights(map: &Map, id: i32) -> Vec<u32> {
    let bucket = map.bucket(BucketId(id)).expect("the bucket is there");
    (0..bucket.items.len()).map(|index| bucket.item_weight(index)).collect()
}

#[test]
fn errors_say_where_what_and_what_would_do() {
    for (rest, expected) in [
        ("host h {\n  id -1\n  item osd.0\n}", "3:3 expected `id` or `alg`, found `item`"),
        ("host h { alg straw2", "1:20 expected `hash`, `item` or `}`, found the end of the text"),
        ("host h { alg fancy }", "1:14 unknown algorithm `fancy`; there are uniform, list, tree, "),
        ("host h { alg list hash 1 }", "1:24 unknown hash `1`; there are 0, rjenkins1"),
        ("cellar h { alg list }", "1:1 no type is called `cellar`; it must be defined before"),
        ("host h { alg list item osd.9 }", "1:24 no bucket or device is called `osd.9`"),
        ("host h { alg list item h }", "1:24 no bucket or device is called `h`"),
        (
            "host h { alg list item osd.0 weight 65536 }",
            "1:37 a weight is a number from 0 to below",
        ),
        ("host h { alg list item osd.0 weight -1 }", "1:37 a weight is a number from 0 to below"),
        ("host h { id 1 alg list }", "1:13 the number of a bucket is a number from -131072 to -1"),
        ("host h { id -1 id -1 class ssd alg list }", "1:19 bucket number `-1` is already defined"),
        ("host h { id -1 id -2 alg list }", "1:19 the number of this bucket, as `-2` is already"),
        ("host h { alg list } host h { alg list }", "1:26 bucket or device `h` is already defined"),
        ("host osd.0 { alg list }", "1:6 bucket or device `osd.0` is already defined"),
        ("host h { alg list item osd.0 pos 1 }", "1:34 position 1 is taken, or not below the"),
        ("osd h { alg list }", "1:5 bucket -1 has type 0, which is the type of devices"),
        (
            "device 4 osd.4\n host h { alg list }\ndevice 5 osd.5",
            "3:1 expected a bucket, a rule or",
        ),
        ("device 3 other", "1:8 device `3` is already defined"),
        ("device 9999999 other", "1:8 the number of a device is a number from 0 to 1048575, not"),
        ("type 4 rule", "1:8 expected a name that is no keyword of the language, found `rule`"),
        ("type 5 host", "1:8 type `host` is already defined"),
        ("tunable choose_tries 50", "1:9 unknown tunable `choose_tries`; there are choose_local_"),
        ("tunable choose_total_tries many", "1:28 the value of this tunable is a number from 0"),
        ("tunable choose_total_tries 100001", "1:28 choose_total_tries is 100001, outside its"),
    ] {
        let error = refused(rest);
        assert!(error.starts_with(expected), "{rest}\ngives    {error}\ninstead of {expected}");
    }
}

#[test]
fn uniform_buckets_have_one_weight_and_sums_have_32_bits() {
    let error = refused("host h { alg uniform item osd.0 weight 1\nitem osd.1 weight 2 }");
    assert!(error.starts_with("2:19 the items of a uniform bucket must all weigh"), "{error}");
    let heavy = "host h { alg straw2 item osd.0 weight 65535 item osd.1 weight 65535 }";
    assert!(refused(heavy).starts_with("1:6 the items of bucket `h` weigh 65536 or more"));
}

#[test]
fn rules_are_refused_where_they_are_wrong() {
    let host = "host h { alg straw2 item osd.0 }\n";
    for (from, to, expected) in [
        ("take h", "take g", "2:64 no bucket or device is called `g`"),
        ("take h", "take h class hdd", "2:72 no class is called `hdd`"),
        ("take h", "take osd.2 class ssd", "2:64 `osd.2` has no shadow of class `ssd`"),
        ("type osd", "type disk", "2:92 no type is called `disk`"),
        ("firstn", "most", "2:78 expected `firstn` or `indep`, found `most`"),
        ("replicated", "copied", "2:20 unknown kind of rule `copied`; there are replicated, er"),
        ("id 0", "id 256", "2:13 the number of a rule is a number from 0 to 255, not `256`"),
        ("step emit", "step omit 1", "2:101 unknown step `omit`; there are take, choose, "),
        ("step emit", "emit", "2:96 expected `step` or `}`, found `emit`"),
        ("max_size 10", "max_size 300", "2:51 a size is a number from 0 to 255, not `300`"),
        ("firstn 0", "firstn 99999", "2:1 the count of a choose step is 99999, outside its bound"),
    ] {
        let error = refused(&format!("{host}{}", RULE.replace(from, to)));
        assert!(error.starts_with(expected), "{to}\ngives    {error}\ninstead of {expected}");
    }
    assert!(refused(&format!("{host}{RULE}{RULE}")).starts_with("3:6 rule `x` is already defined"));
    assert!(
        refused(&format!("{host}{RULE}host g {{ alg list }}"))
            .starts_with("3:1 bucket `g` must stand before the first rule")
    );
}

#[test]
fn choose_args_are_refused_where_they_are_wrong() {
    let map = format!("host h {{ alg straw2 item osd.0 item osd.1 }}\n{RULE}");
    for (args, expected) in [
        ("0 { { bucket_id -9 } }", "3:29 no bucket is called `-9`"),
        ("0 { { bucket_id -1 ids [ 1 ] } }", "3:40 the bucket has 2 items, so 2 ids are needed, n"),
        ("0 { { bucket_id -1 weight_set [ [ ] ] } }", "3:47 the bucket has 2 items, so 2 weights"),
        ("x { }", "3:13 expected the number of a pool, or 18446744073709551615 for all, found `x`"),
        ("0 { } choose_args 0 { }", "3:31 choose_args `0` is already defined"),
        ("0 { { bucket_id -1 } { bucket_id -1 ids [", "3:54 expected a number or `]`, found the"),
    ] {
        let error = refused(&format!("{map}choose_args {args}"));
        assert!(error.starts_with(expected), "{args}\ngives    {error}\ninstead of {expected}");
    }
}

#[test]
fn numbers_of_choose_args_are_cut_to_32_bits() {
    for (number, id) in
        [("0", 0), ("7", 7), ("18446744073709551615", -1), ("2147483648", i64::from(i32::MIN))]
    {
        let map = parse(&format!(
            "host h {{ alg straw2 item osd.0 }} \
             choose_args {number} {{ {{ bucket_id -1 ids [ 5 ] }} }}"
        ));
        let args = &map.choose_args()[&ChooseArgsId(id)];
        assert_eq!(args.buckets[&BucketId(-1)].ids, Some(vec![ItemId(5)]));
        assert_eq!(text::parse(&text::print(&map)).as_ref(), Ok(&map));
    }
}

#[test]
fn left_out_weights_are_what_a_child_weighs_and_positions_order_items() {
    let map = parse(
        "host h { alg uniform item osd.0 weight 2 item osd.2 weight 2 }
         root r { alg list item h item osd.3 pos 0 }",
    );
    let root = map.bucket(BucketId(-2)).unwrap();
    assert_eq!(root.items, [ItemId(3), ItemId(-1)]);
    assert_eq!(weights(&map, -2), [0x1_0000, 0x4_0000]);
}

#[test]
fn buckets_and_shadows_get_the_first_numbers_that_are_free() {
    let map = parse(&format!(
        "host h {{ alg straw2 item osd.0 }}
         host b {{ id -1 alg straw2 item osd.1 }}
         host c {{ alg straw2 item osd.1 }}
         host d {{ id -3 id -9 class ssd alg straw2 item osd.2 weight 2 }}
         {RULE}"
    ));
    let id = |name: &str| map.names().items.iter().find(|(_, known)| *known == name).unwrap().0.0;
    assert_eq!(["h", "b", "c", "d"].map(id), [-2, -1, -4, -3]);
    let shadows = [-1, -2, -3, -4].map(|bucket| shadow(&map, bucket, "ssd"));
    assert_eq!(shadows, [Some(-7), Some(-6), Some(-9), Some(-5)]);
    assert_eq!(id("d~ssd"), -9);
    assert_eq!(weights(&map, -9), [0x2_0000]);
    assert_eq!(map.bucket(BucketId(-7)).unwrap().items, []);
}

#[test]
fn shadows_share_children_and_weigh_what_they_hold() {
    let map = text::parse(
        "device 0 a class hdd\ndevice 1 b class ssd\ndevice 2 c class hdd\ndevice 3 d class nvme
         device 4 e class ssd\ntype 0 osd\ntype 1 host\ntype 3 root
         host h { alg straw2 item a weight 3 item b item c weight 2 item e }
         root r { alg straw2 item h weight 10 }
         root s { alg straw2 item h weight 10 item d }
         rule x {
           id 0 type replicated step take s class nvme step choose firstn 0 type osd step emit
         }",
    )
    .unwrap();
    let ids = |bucket| ["hdd", "ssd", "nvme"].map(|class| shadow(&map, bucket, class).unwrap());
    assert_eq!((ids(-1), ids(-2), ids(-3)), ([-4, -6, -8], [-10, -11, -12], [-5, -7, -9]));
    assert_eq!(weights(&map, -10), [0x5_0000]);
    assert_eq!(weights(&map, -9), [0, 0x1_0000]);
    let (_, rule) = map.rules().next().unwrap();
    assert_eq!(rule.steps[0], RuleStep::Take(ItemId(-9)));
    assert_eq!((rule.min_size, rule.max_size), (1, 100));
}

#[test]
fn shadows_stop_at_a_uniform_bucket_that_would_have_weight() {
    let map = |take: &str| {
        format!(
            "host g {{ alg straw2 item osd.2 }}
             host h {{ alg uniform item osd.2 item osd.3 }}
             root r {{ alg straw2 item g item h }}
             {}",
            RULE.replace("take h", take)
        )
    };
    let stopped = parse(&map("take r"));
    let shadows = [-1, -2, -3].map(|bucket| shadow(&stopped, bucket, "ssd"));
    assert_eq!(shadows, [Some(-4), None, None]);
    assert!(refused(&map("take r class ssd")).contains("`r` has no shadow of class `ssd`"));
    assert_eq!(text::parse(&text::print(&stopped)).as_ref(), Ok(&stopped));
}

#[test]
fn without_a_rule_there_are_no_shadows() {
    let map = parse("host h { alg straw2 item osd.2 }");
    assert!(map.classes().shadows.is_empty());
    assert_eq!(map.classes().names[&ClassId(0)], "ssd");
}

#[test]
fn a_map_is_printed_so_that_it_reads_the_same() {
    for rest in [
        // The order in which the text names the classes first differs from that of their devices.
        "device 9 y class hdd device 8 x class nvme host h { alg list item x item y }",
        // Classes without devices that are named in different orders (found by fuzzing).
        "host g { id -5 class b id -6 class a alg list } host h { id -7 class a alg list }",
        // Words that also have another meaning, and items without names.
        "host class { alg list item osd.0 } host h { alg tree item class weight 3 }",
        // A weight with bits beyond five decimals, and the greatest weight.
        "host h { alg straw2 item osd.0 weight 0.999985 item osd.1 weight 32767.998 }",
    ] {
        let map = parse(&format!("{rest}{RULE}"));
        let printed = text::print(&map);
        let again = text::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        assert_eq!(again, map, "{printed}");
        assert_eq!(text::print(&again), printed);
    }
}

#[test]
fn a_weight_that_text_cannot_say_is_left_out_or_cut() {
    // 300.1 and 0.00002 make a sum of 25 significant bits.
    let map = parse(
        "host h { alg straw2 item osd.0 weight 300.1 item osd.1 weight 0.00002 }
         root r { alg straw2 item h }",
    );
    let sum = map.bucket(BucketId(-1)).unwrap().weight;
    assert!(sum > 1 << 24 && sum % 2 == 1, "{sum:#x}");
    let printed = text::print(&map);
    assert!(printed.contains("\titem h\n"), "{printed}");
    assert_eq!(text::parse(&printed), Ok(map.clone()));
    // If leaving the weight out would mean another weight, it is cut.
    let mut parts = map.into_parts();
    let root = parts.buckets.iter_mut().find(|bucket| bucket.id == BucketId(-2)).unwrap();
    root.algorithm = Algorithm::Straw2 { weights: vec![sum + 2] };
    let printed = text::print(&Map::new(parts).unwrap());
    assert!(printed.contains("# cut from 0x"), "{printed}");
    assert_eq!(weights(&text::parse(&printed).unwrap(), -2), [sum + 1]);
}

#[test]
fn what_has_no_name_gets_one() {
    let mut parts =
        parse(&format!("host h {{ alg straw2 item osd.0 item osd.1 }}{RULE}")).into_parts();
    parts.names.items.remove(&ItemId(-1));
    parts.names.items.insert(ItemId(1), "two words".to_owned());
    parts.names.types.clear();
    parts.names.rules.clear();
    let rule = parts.rules.get_mut(&RuleId(0)).unwrap();
    rule.steps.insert(0, RuleStep::Take(ItemId(-77)));
    let map = Map::new(parts).unwrap();
    let printed = text::print(&map);
    for line in ["device 1 osd.1\n", "type 1 type1\n", "type1 bucket0 {", "rule rule0 {"] {
        assert!(printed.contains(line), "{line} is not in\n{printed}");
    }
    let again = text::parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    let weights = vec![0x1_0000; 4];
    for x in 0..100 {
        let both = [&map, &again].map(|map| map.rule(RuleId(0)).unwrap().map(x, 2, &weights));
        assert_eq!(both[0], both[1]);
    }
}
