//! Runs a rule on a range of inputs and counts the results: the computation and the output of
//! `crushtool --test`.
//!
//! A [`Trial`] is one rule, one width and a range of x. It is cut into chunks of consecutive x.
//! Workers map a chunk at a time ([`RuleRef::map_rows`](crate::RuleRef::map_rows)), render its rows
//! and count its devices. Chunks come out in the order of x for any number of threads: worker t of
//! n takes chunks t, t + n, t + 2n, ..., and the receiver asks the workers in turn. A worker that
//! is ahead waits, so memory holds at most a few chunks per worker.
//!
//! | module     | idea |
//! |------------|------|
//! | [`trial`]  | the chunks, and the workers |
//! | [`tally`]  | the counts |
//! | [`expect`] | how many objects crushtool expects on a device |
//! | [`text`]   | crushtool's lines, and C++'s way to print a float |
//! | [`csv`]    | crushtool's data sets for other programs |
//! | [`utilization`] | stored objects against the share by weight, summed up over the tree |
//!
//! Equal to crushtool 16.2.15, on purpose: all lines and numbers above. The weight set of pool 0,
//! or else the default one, is used for every pool. The pool's number only replaces x by
//! `hash2(x, pool)`.
//!
//! Different from crushtool: a rule that emits buckets prints their (negative) numbers, where
//! crushtool writes outside its memory. The last x may be the largest number, where crushtool
//! continues with the smallest. Weights and objects are added in 64 bits, so more than 32,767
//! devices, or more than 2^31 objects, do not make the expected numbers negative.

pub mod csv;
pub mod expect;
pub mod tally;
pub mod text;
pub mod trial;
pub mod utilization;

pub use tally::Tally;
pub use trial::{MappingChunk, Trial};

use crate::{Map, OsdId, WEIGHT_ONE};

/// The initial reweights of crushtool: 1.0 for devices that some bucket holds, 0 for other numbers.
#[must_use]
pub fn default_weights(map: &Map) -> Vec<u32> {
    let mut weights = vec![0; map.max_devices() as usize];
    for OsdId(osd) in map.buckets().flat_map(|bucket| &bucket.items).filter_map(|item| item.osd()) {
        weights[osd as usize] = WEIGHT_ONE;
    }
    weights
}

/// The 16.16 reweight that crushtool makes of a number: single precision, cut off, between 0 and
/// 1.0.
#[must_use]
pub fn fixed_weight(weight: f32) -> u32 {
    // Multiplying by a power of two is exact, and `as` saturates.
    ((weight * WEIGHT_ONE as f32) as u32).min(WEIGHT_ONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BucketId, ItemId, MapBuilder, TypeId};

    #[test]
    fn weights_are_cut_off_and_clamped() {
        for (weight, fixed) in
            [(0.0, 0), (0.1, 0x1999), (0.3, 0x4ccc), (1e-3, 0x41), (5.0, 0x10000), (-3.0, 0)]
        {
            assert_eq!(fixed_weight(weight), fixed, "{weight}");
        }
        assert_eq!(fixed_weight(f32::NAN), 0);
    }

    #[test]
    fn devices_in_no_bucket_are_out() {
        let mut builder = MapBuilder::new();
        builder.devices(5);
        let items = [(ItemId(0), 0), (ItemId(3), 0x10000)];
        let map = builder.straw2(BucketId(-1), TypeId(1), items).build().expect("a valid map");
        assert_eq!(default_weights(&map), [0x10000, 0, 0, 0x10000, 0]);
    }
}
