//! The image's loader: images that it accepts and refuses, and the content of the memories
//! afterwards.

use fieldstone_crush::{
    AlgorithmKind, BucketId, ItemId, Map, MapBuilder, RuleId, RuleStep, Tunables, TypeId,
};
use fieldstone_fpga::image::Image;
use fieldstone_rtl_crush as designs;
use rand::Rng;

use crate::buckets;
use crate::engine::{Choose, Engine};

/// Twenty hosts in a root, and two rules.
fn map(tunables: Tunables) -> Map {
    let mut builder = MapBuilder::new();
    builder.tunables(tunables);
    let hosts = (0..20).map(|host| (ItemId(-2 - host), 0x1_0000));
    builder.bucket(BucketId(-1), TypeId(2), AlgorithmKind::Straw, hosts);
    for host in 0..20 {
        let devices = (0..17).map(|device| (ItemId(17 * host + device), 0x1_0000));
        builder.straw2(BucketId(-2 - host), TypeId(1), devices);
    }
    let take = RuleStep::Take(ItemId(-1));
    let firstn = RuleStep::ChooseleafFirstn { count: -1, kind: TypeId(1) };
    let indep = RuleStep::ChooseIndep { count: 3, kind: TypeId(2) };
    builder.rule(RuleId(1), [take, RuleStep::SetChooseleafTries(5), firstn, RuleStep::Emit]);
    builder.rule(RuleId(4), [take, indep, RuleStep::Emit]);
    builder.build().expect("the map is sound")
}

/// An image with the right checksum.
fn with_sum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[60..64].fill(0);
    let sum = fieldstone_accel::crc32c(&bytes);
    bytes[60..64].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Reads entry `index` of a memory.
fn read(engine: &mut Engine, port: &str, index: u16) -> Vec<u8> {
    engine.model.set(engine.model.port("index_i"), index.into());
    engine.model.set(engine.model.port("read_i"), 1);
    engine.cycle();
    engine.model.set(engine.model.port("read_i"), 0);
    engine.cycle();
    engine.model.bytes(engine.model.port(port)).to_vec()
}

fn settings(engine: &Engine) -> u128 {
    let mut bytes = [0; 16];
    let settings = engine.model.bytes(engine.model.port("settings_o"));
    bytes[..settings.len()].copy_from_slice(settings);
    u128::from_le_bytes(bytes)
}

#[test]
fn memories_hold_what_the_image_has() {
    let mut engine = Engine::new(&designs::DRAW_16, 1, (0.0, 0.0));
    let map = map(Tunables { chooseleaf_vary_r: 3, choose_total_tries: 77, ..Tunables::FIREFLY });
    let reweights: Vec<u32> = (0..400).map(|_| engine.rng.random()).collect();
    let image = Image::compile(&map, &reweights, None).expect("the map fits");
    assert!(engine.load(image.bytes()));

    let algorithms = 1 << AlgorithmKind::Straw as u32 | 1 << AlgorithmKind::Straw2 as u32;
    let devices = u128::from(map.max_devices());
    let expected = algorithms << 74 | 5 << 58 | devices << 26 | 78 << 10 | 3 << 2 | 1;
    assert_eq!(settings(&engine), expected);

    for device in [0, 1, 15, 16, 17, 200, 339] {
        let reweight = read(&mut engine, "reweight_o", device);
        assert_eq!(reweight, reweights[usize::from(device)].to_le_bytes());
    }
    let rule = |first: u16, steps: u16| {
        let [first, steps] = [first.to_le_bytes(), steps.to_le_bytes()];
        vec![first[0], first[1], steps[0], steps[1], 1, 0, 0, 0]
    };
    assert_eq!(read(&mut engine, "rule_o", 0), [0; 8]);
    assert_eq!(read(&mut engine, "rule_o", 1), rule(0, 4));
    assert_eq!(read(&mut engine, "rule_o", 4), rule(4, 3));
    assert_eq!(read(&mut engine, "step_o", 0), [1, 0, 0, 0, 255, 255, 255, 255]);
    assert_eq!(read(&mut engine, "step_o", 1), [9, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(read(&mut engine, "step_o", 2), [6, 1, 0, 0, 255, 255, 255, 255]);
    assert_eq!(read(&mut engine, "step_o", 5), [3, 2, 0, 0, 3, 0, 0, 0]);
    assert_eq!(read(&mut engine, "step_o", 6), [4, 0, 0, 0, 0, 0, 0, 0]);
    let bucket = read(&mut engine, "bucket_o", 20);
    assert_eq!(bucket[..6], [1 << 7 | 5, 1, 0, 1, 17, 0]);
}

#[test]
fn damaged_images_are_refused_and_leave_no_buckets() {
    let mut engine = Engine::new(&designs::DRAW_16, 2, (0.0, 0.0));
    let map = map(Tunables::JEWEL);
    let good = Image::compile(&map, &[0x1_0000; 340], None).expect("the map fits").bytes().to_vec();
    let draws: Vec<Choose> = (0..40).map(|_| Choose::random(&mut engine.rng, 3)).collect();
    let nothing = Map::new(fieldstone_crush::Parts::default()).expect("it is sound");

    let edited = |at: usize, value: u8| {
        let mut bytes = good.clone();
        assert_ne!(bytes[at], value);
        bytes[at] = value;
        bytes
    };
    let mut bad = vec![
        ("a wrong magic", with_sum(edited(0, 0))),
        ("another version", with_sum(edited(4, 2))),
        ("too short by a beat", with_sum(good[..good.len() - 64].to_vec())),
        ("too long by a beat", with_sum([&good[..], &[0; 64]].concat())),
        ("a header alone", with_sum(good[..64].to_vec())),
        ("a wrong sum", edited(62, !good[62])),
    ];
    for section in 0..5 {
        bad.push(("more entries than room", with_sum(edited(8 + 4 * section + 2, 0xff))));
        bad.push(("more entries than beats", with_sum(edited(8 + 4 * section + 1, 0x02))));
    }
    for _ in 0..10 {
        let (at, bit) = (engine.rng.random_range(0..good.len()), engine.rng.random_range(0..8));
        bad.push(("a bit flipped", edited(at, good[at] ^ 1 << bit)));
    }
    for (what, bytes) in bad {
        assert!(!engine.load(&bytes), "{what}");
        engine.check(&nothing, None, draws[..3].iter().copied());
        assert_eq!(settings(&engine) >> 58 & 0xffff, 0, "{what}: no rules");
    }
    assert!(engine.load(&good));
    engine.check(&map, None, draws);
    // An image of an empty map is an image, too.
    let empty = Image::compile(&nothing, &[], None).expect("it fits");
    assert!(engine.load(empty.bytes()));
    engine.check(&nothing, None, [Choose::default()]);
}

/// Buckets of 20 devices, one per algorithm, except for `without`.
fn one_of_each(without: Option<AlgorithmKind>) -> Map {
    let mut builder = MapBuilder::new();
    for algorithm in AlgorithmKind::ALL.into_iter().filter(|&algorithm| Some(algorithm) != without)
    {
        let items = (0..20).map(|device| (ItemId(device), 0x1_0000));
        builder.bucket(BucketId(-(algorithm as i32)), TypeId(1), algorithm, items);
    }
    builder.build().expect("the map is sound")
}

/// A uniform bucket whose reciprocal is so wrong that remainders are not less than the size. The
/// engine answers every draw, and draws from other buckets are right.
#[test]
fn wrong_reciprocals_end_in_bad_draws() {
    let (map, others) = (one_of_each(None), one_of_each(Some(AlgorithmKind::Uniform)));
    let image = Image::compile(&map, &[], None).expect("the map fits");
    let slots = 64 + (16 * 5usize).next_multiple_of(64);
    for (seed, stalls) in [(4, (0.0, 0.0)), (5, (0.3, 0.3))] {
        let mut engine = Engine::new(&designs::DRAW_16, seed, stalls);
        // The bucket is the first, and so is its row of slots. The quotient is always 0.
        let mut bytes = image.bytes().to_vec();
        let row = u16::from_le_bytes(bytes[64 + 6..64 + 8].try_into().expect("2 bytes"));
        let reciprocal = slots + 16 * 16 * usize::from(row) + 8;
        bytes[reciprocal..reciprocal + 7].fill(0);
        bytes[reciprocal + 6] = 31 << 1;
        assert!(engine.load(&with_sum(bytes)));
        engine.set_module(AlgorithmKind::Uniform as u64, true);
        let draws: Vec<Choose> = (0..600)
            .map(|at| {
                let mut draw = Choose::random(&mut engine.rng, at % 5);
                draw.r_base = engine.rng.random_range(20..60_000);
                draw.ftotal = 0;
                draw
            })
            .collect();
        engine.check(&others, None, draws);
        // With the right reciprocal all draws are right.
        assert!(engine.load(image.bytes()));
        let draws: Vec<Choose> =
            (0..100).map(|at| Choose::random(&mut engine.rng, 3 * (at % 2))).collect();
        engine.check(&map, None, draws);
    }
}

/// crush_commands decides by the header whether the partition may be swapped. So the engine does
/// not draw from buckets of an algorithm that the header does not name.
#[test]
fn buckets_of_algorithms_that_the_header_does_not_name_are_bad() {
    let mut engine = Engine::new(&designs::DRAW_16, 6, (0.0, 0.0));
    let map = one_of_each(None);
    let good = Image::compile(&map, &[], None).expect("the map fits").bytes().to_vec();
    for unnamed in AlgorithmKind::ALL {
        let mut bytes = good.clone();
        bytes[6] &= !(1 << unnamed as u8);
        assert!(engine.load(&with_sum(bytes)));
        for module in [unnamed as u64, 1] {
            engine.set_module(module, true);
            let draws: Vec<Choose> =
                (0..100).map(|at| Choose::random(&mut engine.rng, at % 5)).collect();
            engine.check(&one_of_each(Some(unnamed)), None, draws);
        }
    }
    assert!(engine.load(&good));
    let draws: Vec<Choose> = (0..100).map(|at| Choose::random(&mut engine.rng, at % 5)).collect();
    engine.check(&map, None, draws);
}

#[test]
fn random_maps_replace_each_other() {
    let mut engine = Engine::new(&designs::DRAW_4, 3, (0.0, 0.0));
    for buckets in [100, 3, 60] {
        let map = buckets::map(&mut engine.rng, buckets, 20);
        assert!(engine.load(Image::compile(&map, &[], None).expect("it fits").bytes()));
        let draws: Vec<Choose> =
            (0..100).map(|bucket| Choose::random(&mut engine.rng, bucket)).collect();
        engine.check(&map, None, draws);
    }
}
