//! Every profile: an accepted profile can be made, within the bounds of programs; a refused profile
//! exceeds the bound that its error names.

use fieldstone_codes::{MAX_CODE_TERMS, MAX_SHARDS, Profile, ProfileError, ScalarMds};
use fieldstone_gf::{LinearMap, MAX_ELEMENTS, MAX_TERMS, WordField};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Most bytes of a code's name where it is stored: in the header of a shard.
const MAX_NAME_BYTES: usize = 68;
/// Codes with at most this number of terms are made in a moment, also without optimization.
const QUICK_TERMS: usize = 1 << 17;

/// Calls `each` for every profile whose K and M go a little beyond the bounds of any code, with
/// every W, N, D and S.
fn all(mut each: impl FnMut(Profile)) {
    let most = MAX_SHARDS + 1;
    for k in 0..=most {
        for m in (0..=most - k).chain([most]) {
            each(Profile::Rs { k, m });
            each(Profile::RsVan { k, m });
            for w in WordField::ALL {
                each(Profile::JerasureVan { k, m, w });
                each(Profile::CauchyOrig { k, m, w, packet_bytes: 2048 });
                each(Profile::CauchyGood { k, m, w, packet_bytes: 1 << 20 });
            }
            for n in (0..=10).flat_map(|digits| [2u32, 3, 4].map(|r| r.pow(digits))) {
                each(Profile::Zigzag { k, m, n });
            }
            for d in k.saturating_sub(1)..=k + m {
                each(Profile::Clay { k, m, d, mds: ScalarMds::JerasureVan });
            }
        }
        WordField::ALL.into_iter().for_each(|w| each(Profile::JerasureR6 { k, w }));
        each(Profile::Copies { n: k });
    }
}

/// The profile, if it is accepted. The error of a refused profile must contain a number: the bound.
fn accepted(profile: Profile) -> Option<Profile> {
    match profile.checked() {
        Ok(profile) => Some(profile),
        Err(ProfileError::Bounds { reason, .. }) => {
            assert!(reason.bytes().any(|byte| byte.is_ascii_digit()), "{profile}: {reason}");
            None
        }
        Err(other) => panic!("{profile}: {other}"),
    }
}

/// Clay with the other inner codes. Their bounds are the same, except for `rs-van`.
fn siblings(profile: Profile) -> impl Iterator<Item = Profile> {
    let others = ScalarMds::ALL.into_iter().skip(1);
    others.filter_map(move |other| match profile {
        Profile::Clay { k, m, d, .. } => Profile::Clay { k, m, d, mds: other }.checked().ok(),
        _ => None,
    })
}

fn terms(map: &LinearMap) -> usize {
    map.steps().iter().flatten().map(|row| row.terms.len()).sum()
}

/// Makes a code and plans for its losses; compares them with the profile's predictions.
fn make(profile: Profile, rng: &mut ChaCha8Rng) {
    let (code, most) = (profile.code(), profile.most_terms());
    assert_eq!(code.profile(), profile);
    assert_eq!((code.elements(), code.layout()), (profile.elements(), profile.layout()));
    let encode = terms(code.encode());
    assert!(encode <= most, "{profile}: its encoder has {encode} terms, of {most}");
    if let Profile::Clay { k, m, d, .. } = profile
        && (k + m).is_multiple_of(d - k + 1)
    {
        // Without virtual nodes, all of the code's programs for m outputs have the same size.
        assert_eq!(encode, most, "{profile}");
    }
    let change = code.delta(rng.random_range(0..code.k()), 0..code.elements());
    let change = change.expect("the shard and its elements exist");
    assert!(terms(&change.map) <= most, "{profile}: an update");
    if code.m() == 0 {
        return;
    }
    for losses in [1, rng.random_range(1..=code.m()), code.m()] {
        let shards: Vec<usize> = (0..profile.shards()).collect();
        let mut lost: Vec<usize> = shards.choose_multiple(rng, losses).copied().collect();
        lost.sort_unstable();
        let there: Vec<usize> =
            shards.iter().copied().filter(|shard| !lost.contains(shard)).collect();
        let plan = code.repair(&lost, &there).expect("no more than m are lost");
        let planned = terms(&plan.map);
        assert!(planned <= most, "{profile}: a plan for {lost:?} has {planned} terms, of {most}");
    }
}

/// All profiles, without making their codes.
#[test]
fn accepted_profiles_stay_within_the_bounds_of_programs() {
    const { assert!(MAX_CODE_TERMS <= MAX_TERMS) };
    let (mut accepted_count, mut refused_count) = (0, 0);
    all(|profile| {
        let Some(profile) = accepted(profile) else {
            refused_count += 1;
            return;
        };
        accepted_count += 1;
        assert!(profile.most_terms() <= MAX_CODE_TERMS, "{profile}");
        let elements = profile.elements() as usize;
        // Outputs of a decode are at most m shards; scratch elements are at most as many twice.
        assert!(profile.k() * elements <= MAX_ELEMENTS, "{profile}");
        assert!(2 * profile.m() * elements <= MAX_ELEMENTS, "{profile}");
        let name = profile.to_string();
        assert!(name.len() <= MAX_NAME_BYTES, "{name}");
        assert_eq!(name.parse(), Ok(profile));
    });
    assert!(accepted_count > 200_000, "{accepted_count} accepted, {refused_count} refused");
    assert!(refused_count > 1_000_000, "{accepted_count} accepted, {refused_count} refused");
}

/// A sample of the accepted profiles, and all small profiles of regenerating codes.
#[test]
fn accepted_profiles_can_be_made_and_are_as_foretold() {
    let mut rng = ChaCha8Rng::seed_from_u64(14);
    let (mut small, mut quick) = (Vec::new(), Vec::new());
    all(|profile| {
        let Some(profile) = accepted(profile) else { return };
        let regenerates = matches!(profile, Profile::Zigzag { .. } | Profile::Clay { .. });
        for profile in std::iter::once(profile).chain(siblings(profile)) {
            if regenerates && profile.shards() <= 7 && profile.most_terms() <= 1 << 14 {
                small.push(profile);
            } else if profile.most_terms() <= QUICK_TERMS {
                quick.push(profile);
            }
        }
    });
    assert!(small.len() > 100 && quick.len() > 10_000, "{} and {}", small.len(), quick.len());
    small.iter().for_each(|&profile| make(profile, &mut rng));
    for family in 0..9 {
        let of_family: Vec<Profile> =
            quick.iter().copied().filter(|profile| number(*profile) == family).collect();
        for &profile in of_family.choose_multiple(&mut rng, 12) {
            make(profile, &mut rng);
        }
    }
}

/// The number of the profile's family.
fn number(profile: Profile) -> usize {
    match profile {
        Profile::Rs { .. } => 0,
        Profile::RsVan { .. } => 1,
        Profile::JerasureVan { .. } => 2,
        Profile::JerasureR6 { .. } => 3,
        Profile::CauchyOrig { .. } => 4,
        Profile::CauchyGood { .. } => 5,
        Profile::Zigzag { .. } => 6,
        Profile::Clay { .. } => 7,
        Profile::Copies { .. } => 8,
    }
}

/// Profiles that were once accepted although their code could not be made.
#[test]
fn profiles_whose_programs_are_too_long_are_refused_with_the_bound() {
    for name in ["clay:60+60", "clay:54+54", "clay:30+90,d=93", "clay:60+60,mds=rs"] {
        let message = name.parse::<Profile>().unwrap_err().to_string();
        assert!(message.contains(&format!("{name} is out of bounds")), "{message}");
        assert!(message.contains(&format!("{MAX_CODE_TERMS} are the most")), "{message}");
    }
}
