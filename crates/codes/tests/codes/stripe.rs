//! Whole stripes: the functions of `stripe` give the results of the maps and plans, for any code,
//! any loss and any write. Their errors name shards.

use crate::common::{any_code, code, encode, patterns, random_stripe, slices};
use fieldstone_codes::{Code, CodeError, StripeError, Verdict, stripe};
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Buffers whose old content must not matter.
fn buffers(count: usize, len_bytes: usize) -> Vec<Vec<u8>> {
    vec![vec![0x5a; len_bytes]; count]
}

fn writable(buffers: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    buffers.iter_mut().map(Vec::as_mut_slice).collect()
}

fn granule_bytes(code: &dyn Code) -> usize {
    code.layout().granule_bytes(code.elements())
}

/// The shards, with `None` for the missing ones.
fn without<'a>(shards: &'a [Vec<u8>], missing: &[usize]) -> Vec<Option<&'a [u8]>> {
    let there = |(at, shard): (usize, &'a Vec<u8>)| (!missing.contains(&at)).then_some(&shard[..]);
    shards.iter().enumerate().map(there).collect()
}

fn decode(
    code: &dyn Code,
    shards: &[Option<&[u8]>],
    lost: &[usize],
    len_bytes: usize,
) -> Result<Vec<Vec<u8>>, StripeError> {
    let mut outputs = buffers(lost.len(), len_bytes);
    stripe::decode(code, shards, lost, &mut writable(&mut outputs))?;
    Ok(outputs)
}

#[test]
fn every_loss_is_decoded_and_repaired() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for name in [
        "rs:4+2",
        "jerasure-van:3+2,w=16",
        "cauchy-good:4+2,ps=8",
        "zigzag:4+2",
        "clay:4+2",
        "clay:4+3,d=5",
        "copies:3",
    ] {
        let code = code(name);
        let len_bytes = 3 * granule_bytes(&*code);
        let shards = random_stripe(&*code, len_bytes, &mut rng);
        for (lost, available) in patterns(&*code) {
            let expected: Vec<_> = lost.iter().map(|&shard| shards[shard].clone()).collect();
            let decoded = decode(&*code, &without(&shards, &lost), &lost, len_bytes);
            assert_eq!(decoded.as_ref(), Ok(&expected), "{name} {lost:?}");
            let plan = code.repair(&lost, &available).expect("enough shards are left");
            let inputs: Vec<Vec<u8>> = (plan.reads.iter())
                .map(|read| {
                    let ranges = read.ranges_in(len_bytes as u64, code.elements());
                    let part = |r: std::ops::Range<u64>| r.start as usize..r.end as usize;
                    let bytes = ranges.flat_map(|r| &shards[read.shard][part(r)]);
                    bytes.copied().collect()
                })
                .collect();
            let mut outputs = buffers(lost.len(), len_bytes);
            stripe::repair(&*code, &plan, &slices(&inputs), &mut writable(&mut outputs))
                .expect("lengths fit");
            assert_eq!(outputs, expected, "{name} {lost:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn a_stripe_is_encoded_decoded_and_checked(
        seed: u64, name in any_code(), granules in 0usize..6,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let code = code(&name);
        let (k, m) = (code.k(), code.m());
        let len_bytes = granules * granule_bytes(&*code);
        let mut shards = random_stripe(&*code, len_bytes, &mut rng);
        let mut parities = buffers(m, len_bytes);
        stripe::encode(&*code, &slices(&shards[..k]), &mut writable(&mut parities))
            .expect("lengths fit");
        prop_assert_eq!(&parities[..], &shards[k..]);
        prop_assert_eq!(stripe::verify(&*code, &slices(&shards)), Ok(true));
        prop_assert_eq!(stripe::locate(&*code, &slices(&shards)), Ok(Verdict::Consistent));
        // The test decodes some of the missing shards, and one more that is given but may be wrong.
        let mut order: Vec<usize> = (0..k + m).collect();
        order.shuffle(&mut rng);
        let missing = &order[..rng.random_range(0..=m)];
        let lost = &order[..rng.random_range(0..=m)];
        let gone = missing.len().max(lost.len());
        let decoded = decode(&*code, &without(&shards, missing), lost, len_bytes);
        prop_assert!(gone <= m);
        let expected: Vec<_> = lost.iter().map(|&shard| shards[shard].clone()).collect();
        prop_assert_eq!(decoded, Ok(expected));
        if m >= 2 && len_bytes > 0 {
            let (wrong, at) = (rng.random_range(0..k + m), rng.random_range(0..len_bytes));
            shards[wrong][at] ^= 0x40;
            prop_assert_eq!(stripe::verify(&*code, &slices(&shards)), Ok(false));
            prop_assert_eq!(stripe::locate(&*code, &slices(&shards)), Ok(Verdict::Wrong(wrong)));
        }
    }

    #[test]
    fn parities_follow_any_write(seed: u64, name in any_code(), granules in 1usize..5) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let code = code(&name);
        let k = code.k();
        let granule_bytes = granule_bytes(&*code);
        let len_bytes = granules * granule_bytes;
        let mut shards = random_stripe(&*code, len_bytes, &mut rng);
        let shard = rng.random_range(0..k);
        let unit = match code.layout() {
            fieldstone_codes::Layout::Words { field } => field.bytes(),
            _ => 1,
        };
        let start = rng.random_range(0..=len_bytes / unit) * unit;
        let end = rng.random_range(start / unit..=len_bytes / unit) * unit;
        let old = shards[shard][start..end].to_vec();
        let new: Vec<u8> = old.iter().map(|_| rng.random()).collect();
        shards[shard][start..end].copy_from_slice(&new);
        let (data, parities) = shards.split_at_mut(k);
        stripe::update(&*code, shard, start, &old, &new, &mut writable(parities))
            .expect("it is inside the shard");
        prop_assert_eq!(encode(&*code, &slices(data)), parities.to_vec());
    }
}

#[test]
fn what_does_not_fit_is_refused_in_terms_of_shards() {
    let code = code("zigzag:4+2");
    let message = |result: Result<(), StripeError>| result.unwrap_err().to_string();
    let encode = |data: &[usize], parities: &[usize]| {
        let data: Vec<Vec<u8>> = data.iter().map(|&len| vec![0; len]).collect();
        let mut parities: Vec<Vec<u8>> = parities.iter().map(|&len| vec![7; len]).collect();
        let done = stripe::encode(&*code, &slices(&data), &mut writable(&mut parities));
        assert!(done.is_ok() || parities.iter().flatten().all(|&byte| byte == 7));
        done
    };
    assert_eq!(encode(&[8; 4], &[8; 2]), Ok(()));
    assert_eq!(message(encode(&[8; 3], &[8; 2])), "3 data shards were given instead of 4");
    assert_eq!(message(encode(&[8; 4], &[8; 1])), "1 parity shards were given instead of 2");
    assert_eq!(
        message(encode(&[12; 4], &[12; 2])),
        "shards of zigzag:4+2 have multiples of 8 bytes, and 12 is none"
    );
    assert_eq!(message(encode(&[8, 8, 16, 8], &[8; 2])), "shard 2 has 16 bytes instead of 8");
    assert_eq!(message(encode(&[8; 4], &[8, 0])), "shard 5 has 0 bytes instead of 8");

    let shards = vec![vec![0u8; 8]; 6];
    let decode = |missing: &[usize], lost: &[usize]| {
        decode(&*code, &without(&shards, missing), lost, 8).map(|_| ())
    };
    assert_eq!(decode(&[0, 5], &[5, 0]), Ok(()));
    assert_eq!(decode(&[0, 1, 2], &[]), Ok(()));
    let profile = code.profile();
    let too_few = CodeError::TooFewShards { profile, needed: 4, available: 3 };
    assert_eq!(decode(&[0, 1], &[2]), Err(too_few.into()));
    let no_such = CodeError::NoSuchShard { shard: 6, profile };
    assert_eq!(decode(&[], &[6]), Err(no_such.into()));
    let mut short = without(&shards, &[0]);
    short[3] = Some(&shards[3][..0]);
    let mut output = [0u8; 8];
    let done = stripe::decode(&*code, &short, &[0], &mut [&mut output]);
    assert_eq!(message(done), "shard 3 has 0 bytes instead of 8");
    let done = stripe::decode(&*code, &without(&shards, &[0]), &[0], &mut [&mut output[..4]]);
    assert_eq!(message(done), "shard 0 has 4 bytes instead of 8");

    let plan = code.repair(&[1], &[0, 2, 3, 4, 5]).expect("one loss");
    let half = [0u8; 4];
    let repair = |inputs: &[&[u8]]| stripe::repair(&*code, &plan, inputs, &mut [&mut [0; 8]]);
    assert_eq!(repair(&[&half[..]; 5]), Ok(()));
    assert_eq!(message(repair(&[&half[..]; 4])), "4 reads were given instead of 5");
    let whole = [0u8; 8];
    let inputs: [&[u8]; 5] = [&half, &whole, &half, &half, &half];
    assert_eq!(message(repair(&inputs)), "read 1 has 8 bytes instead of 4");

    // The longest possible shards can be planned for.
    let last = plan.reads[0].ranges_in(u64::MAX - 7, 8).last().expect("it reads something");
    assert!(last.start < last.end && last.end <= u64::MAX - 7);

    let check = |shards: &[&[u8]]| stripe::verify(&*code, shards).map(|_| ());
    assert_eq!(message(check(&[&whole[..]; 5])), "5 shards were given instead of 6");
    let inputs: [&[u8]; 6] = [&whole, &whole, &whole, &whole, &whole, &half];
    assert_eq!(message(check(&inputs)), "shard 5 has 4 bytes instead of 8");
}

#[test]
fn impossible_writes_are_refused() {
    let update = |name: &str, shard, offset_bytes, old: &[u8], new: &[u8]| {
        let code = code(name);
        let mut parities = vec![vec![0u8; 16]; code.m()];
        let done =
            stripe::update(&*code, shard, offset_bytes, old, new, &mut writable(&mut parities));
        done.map_err(|error| error.to_string())
    };
    let refused = |message: &str| Err(message.to_owned());
    assert_eq!(update("zigzag:4+2", 3, 13, &[1; 3], &[2; 3]), Ok(()));
    assert_eq!(
        update("zigzag:4+2", 3, 14, &[1; 3], &[2; 3]),
        refused("3 bytes at 14 are not inside a shard of 16 bytes")
    );
    assert!(update("zigzag:4+2", 0, usize::MAX, &[1; 3], &[2; 3]).is_err());
    assert_eq!(
        update("rs:4+2", 4, 0, &[1], &[2]),
        refused("shard 4 is no data shard: those of rs:4+2 are 0 to 3")
    );
    assert_eq!(
        update("rs:4+2", 2, 0, &[1], &[]),
        refused("new content of shard 2 has 0 bytes instead of 1")
    );
    assert_eq!(update("jerasure-van:4+2,w=32", 0, 4, &[1; 8], &[2; 8]), Ok(()));
    for (offset_bytes, len_bytes) in [(2, 4), (4, 6)] {
        assert_eq!(
            update(
                "jerasure-van:4+2,w=32",
                0,
                offset_bytes,
                &[1; 8][..len_bytes],
                &[2; 8][..len_bytes]
            ),
            refused("jerasure-van:4+2,w=32 is updated in whole words of 4 bytes")
        );
    }
}
