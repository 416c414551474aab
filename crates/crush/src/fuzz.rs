//! Fuzzing the formats of maps: any bytes as input, and the properties that must hold for all of
//! them.
//!
//! - No input causes a panic or unbounded memory; an input that is no map gives an error.
//! - A decoded map, encoded and decoded again, is the same map.
//! - A map can be printed, and the text read. From the second time on, the map is the same; the
//!   first time may lose parts that text cannot carry. Reading may fail only for the reasons in
//!   `losses`.
//! - Every rule of the map can be run.
//!
//! The cargo-fuzz targets in the repository's `fuzz/` folder and a seeded smoke test use
//! [`binary`], [`text`], [`osdmap()`] and [`increment()`]. [`binary_seeds`] and [`text_seeds`] give
//! valid maps to start from.

use crate::binary::{self as format, Release};
mod increment;
mod osdmap;

pub use increment::increment;
pub use osdmap::osdmap;

use crate::map::Map;
use crate::rule::RuleStep;
use crate::text::{self as language, Problem};
use crate::{AlgorithmKind, WEIGHT_ONE};

/// The stages that an input has passed, so that a test can judge its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// The input was a map.
    pub map: bool,
    /// The map's text was a map again.
    pub text: bool,
    /// Number of rules that were run.
    pub rules: usize,
}

/// Feeds `input` to the decoder of binary maps.
///
/// # Panics
/// If a property does not hold: that is the finding.
pub fn binary(input: &[u8]) -> Coverage {
    let Ok(map) = format::decode(input) else { return Coverage::default() };
    check(&map)
}

/// Feeds `input` to the compiler of text maps.
///
/// # Panics
/// If a property does not hold: that is the finding.
pub fn text(input: &[u8]) -> Coverage {
    let Ok(input) = std::str::from_utf8(input) else { return Coverage::default() };
    match language::parse(input) {
        Ok(map) => check(&map),
        Err(error) => {
            // The place is in the text, or directly after it.
            let lines = input.split('\n').count();
            assert!(error.line as usize <= lines && error.column > 0, "{error}");
            Coverage::default()
        }
    }
}

fn check(map: &Map) -> Coverage {
    let release = Release::min_for(map);
    let bytes = format::encode(map, release);
    let again = format::decode(&bytes).expect("what was encoded is a map");
    if release == Release::V16 {
        assert_eq!(&again, map, "encoding changed the map");
    }
    assert_eq!(format::encode(&again, release), bytes, "encoding changes the map every time");
    Coverage { map: true, text: survives_text(map), rules: run(map) }
}

/// Checks whether the printed map can be read.
fn survives_text(map: &Map) -> bool {
    let printed = language::print(map);
    let once = match language::parse(&printed) {
        Ok(once) => once,
        Err(error) => {
            assert!(losses(map, &error.problem), "{error} in what was printed:\n{printed}");
            return false;
        }
    };
    // Shadows stop at uniform buckets. Where they stop depends on the numbers of classes.
    let uniform = once.buckets().any(|b| b.algorithm.kind() == AlgorithmKind::Uniform);
    if !uniform || once.classes().names.is_empty() {
        let printed = language::print(&once);
        let twice = language::parse(&printed)
            .unwrap_or_else(|error| panic!("{error} in what was printed twice:\n{printed}"));
        let again = language::print(&twice);
        let differing = printed.lines().zip(again.lines()).find(|(before, after)| before != after);
        assert_eq!(differing, None, "printing changes every time");
        assert!(again.len() == printed.len() && twice == once, "text changes the map every time");
    }
    true
}

/// True if text cannot carry the map: sums beyond 32 bits, and shadows that do not follow from the
/// classes.
fn losses(map: &Map, problem: &Problem) -> bool {
    match problem {
        Problem::TooHeavy { .. } => true,
        Problem::NoShadow { .. } | Problem::TooManyShadows => true,
        Problem::Undefined { what: "bucket", .. } | Problem::Length { .. } => {
            !map.classes().shadows.is_empty()
        }
        _ => false,
    }
}

/// Runs every rule for a few x, unless that takes long. Returns the number of rules.
fn run(map: &Map) -> usize {
    const WIDTH: usize = 4;
    if !is_quick(map) {
        return 0;
    }
    let weights = vec![WEIGHT_ONE; map.max_devices() as usize];
    let mut rules = 0;
    for (id, rule) in map.rules() {
        // A rule whose steps multiply the chosen items is not quick either.
        if rule.steps.len() > 8 {
            continue;
        }
        let rule = map.rule(id).expect("it is one of the map's");
        for args in [None, map.choose_args_for_pool(1)] {
            let rule = rule.with_choose_args(args);
            for x in [0, 1, u32::MAX] {
                assert!(rule.map(x, WIDTH, &weights).len() <= WIDTH, "more devices than asked for");
            }
        }
        rules += 1;
    }
    rules
}

/// True if no rule has so many steps that they multiply the chosen items.
fn has_short_rules(map: &Map) -> bool {
    map.rules().all(|(_, rule)| rule.steps.len() <= 8)
}

/// True if no number of the map leads to more than a few thousand draws.
fn is_quick(map: &Map) -> bool {
    const MOST_TRIES: u32 = 50;
    let tunables = map.tunables();
    let tries = [
        tunables.choose_local_tries,
        tunables.choose_local_fallback_tries,
        tunables.choose_total_tries,
        tunables.msr_descents.min(MOST_TRIES),
    ];
    let msr = |step: &RuleStep| matches!(step, RuleStep::ChooseMsr { .. });
    let is_long = |step: &RuleStep| match *step {
        RuleStep::SetChooseTries(n)
        | RuleStep::SetChooseleafTries(n)
        | RuleStep::SetChooseLocalTries(n)
        | RuleStep::SetChooseLocalFallbackTries(n)
        | RuleStep::SetMsrDescents(n)
        | RuleStep::SetMsrCollisionTries(n) => n > MOST_TRIES as i32,
        // Every position that is not filled takes all tries.
        RuleStep::ChooseFirstn { count, .. }
        | RuleStep::ChooseIndep { count, .. }
        | RuleStep::ChooseleafFirstn { count, .. }
        | RuleStep::ChooseleafIndep { count, .. }
        | RuleStep::ChooseMsr { count, .. } => count > MOST_TRIES as i32,
        _ => false,
    };
    let steps = || map.rules().flat_map(|(_, rule)| &rule.steps);
    let msr_tries = tunables.msr_descents.saturating_mul(tunables.msr_collision_tries);
    tries.iter().all(|&tries| tries <= MOST_TRIES)
        && !steps().any(is_long)
        && (msr_tries <= 10_000 || !steps().any(msr))
        && map.max_devices() <= 1 << 12
        && map.buckets().all(|bucket| bucket.items.len() <= 256)
}

/// Valid inputs for [`text`]. Together they use all of the language.
#[must_use]
pub fn text_seeds() -> Vec<Vec<u8>> {
    [CLASSES, ALGORITHMS, MSR].map(|seed| seed.as_bytes().to_vec()).to_vec()
}

/// Valid inputs for [`binary`], of both releases.
#[must_use]
pub fn binary_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for seed in [CLASSES, ALGORITHMS, MSR] {
        let map = language::parse(seed).expect("the seeds are valid");
        seeds.extend([Release::V16, Release::V19].map(|release| format::encode(&map, release)));
    }
    seeds
}

const CLASSES: &str = "\
tunable choose_total_tries 50
tunable chooseleaf_stable 1
device 0 osd.0 class hdd
device 1 osd.1 class ssd
device 2 osd.2 class hdd
type 0 osd
type 1 host
type 2 root
host a { id -1 id -7 class ssd alg straw2 hash 0 item osd.0 weight 1.50000 item osd.1 weight 2.5 }
host b { alg straw2 item osd.2 }
root r { id -3 alg straw2 hash rjenkins1 item a item b weight 3.00000 pos 0 }
rule one { id 0 type replicated min_size 1 max_size 10
  step take r class hdd step chooseleaf firstn 0 type host step emit }
rule two { ruleset 3 type erasure min_size 3 max_size 20
  step set_choose_tries 20 step take r step choose indep -1 type osd step emit }
choose_args 0 { { bucket_id -1 weight_set [ [ 1.0 2.0 ] [ 0.0 0.5 ] ] ids [ -8 9 ] } }
choose_args 18446744073709551615 { { bucket_id -7 weight_set [ [ 3.0 ] ] } { bucket_id -3 } }
";

const ALGORITHMS: &str = "\
tunable straw_calc_version 1
device 0 a
device 1 b
device 2 c
device 4 e
type 0 disk
type 1 shelf
type 3 room
shelf u { alg uniform item a weight 2 item b weight 2 item c weight 2 }
shelf l { alg list item a weight 1 item b weight 2 item c weight 3 }
shelf t { alg tree item a weight 1 item b weight 2 item c weight 0 }
shelf s { alg straw item a weight 1 item b weight 2 item c weight 2 }
room all { id -9 alg straw2 item u item l item t item s item e weight 0.25 }
rule every { id 1 type replicated step take all step choose firstn 2 type shelf
  step choose firstn 2 type disk step emit step take e step emit }
rule slow { id 2 type erasure step set_chooseleaf_tries 3 step set_choose_local_tries 1
  step set_choose_local_fallback_tries 2 step set_chooseleaf_vary_r 1 step set_chooseleaf_stable 0
  step take all step chooseleaf indep 0 type shelf step emit }
";

const MSR: &str = "\
tunable msr_descents 7
tunable msr_collision_tries 4
device 0 osd.0
device 1 osd.1
device 2 osd.2
device 3 osd.3
type 0 osd
type 1 host
type 2 root
host a { alg straw2 item osd.0 item osd.1 }
host b { alg straw2 item osd.2 item osd.3 }
root r { alg straw2 item a item b }
rule spread { id 0 type msr_indep step set_msr_descents 5 step set_msr_collision_tries 3
  step take r step choosemsr 2 type host step choosemsr 2 type osd step emit }
rule first { id 1 type msr_firstn step take r step choosemsr 0 type osd step emit }
";
