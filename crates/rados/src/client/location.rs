//! How far OSDs are from the client, for reads of the nearest replica.
//!
//! The client has a place in the CRUSH map, such as `root=default rack=r1 host=h7`
//! (`crush_location`; by default the host's name and the root `default`). The distance of an OSD is
//! the type of the smallest bucket that has both: types are numbered from small to large.

use std::collections::BTreeMap;
use std::sync::Arc;

use fieldstone_crush::osdmap::OsdMap;
use fieldstone_crush::{ItemId, Map, OsdId};

use crate::objecter::Distance;

/// The distance of an OSD that has no bucket of the client's place above it.
const FAR: u32 = u32::MAX;
/// Trees are not deeper.
const DEPTH_MAX: u32 = 64;

/// The distances from a place: pairs of a bucket's type and name. `None` if the map has none of the
/// buckets: then all OSDs are equally far.
pub(super) fn distances(map: &OsdMap, place: &[(String, String)]) -> Option<Distance> {
    let mut nearest: BTreeMap<OsdId, u32> = BTreeMap::new();
    for (kind, name) in place {
        let names = map.crush.names();
        let Some((&item, _)) = names.items.iter().find(|(_, known)| *known == name) else {
            continue;
        };
        let Some(bucket) = item.bucket().and_then(|id| map.crush.bucket(id)) else { continue };
        if names.types.get(&bucket.kind).is_some_and(|known| known == kind) {
            let distance = u32::from(bucket.kind.0);
            note_osds(&map.crush, item, DEPTH_MAX, &mut |osd| {
                let known = nearest.entry(osd).or_insert(distance);
                *known = distance.min(*known);
            });
        }
    }
    (!nearest.is_empty())
        .then(|| -> Distance { Arc::new(move |osd| nearest.get(&osd).copied().unwrap_or(FAR)) })
}

/// Tells all OSDs below an item.
fn note_osds(map: &Map, item: ItemId, depth: u32, note: &mut impl FnMut(OsdId)) {
    if let Some(osd) = item.osd() {
        return note(osd);
    }
    if depth > 0
        && let Some(bucket) = item.bucket().and_then(|id| map.bucket(id))
    {
        bucket.items.iter().for_each(|&child| note_osds(map, child, depth - 1, note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use fieldstone_crush::{BucketId, MapBuilder, TypeId};

    #[test]
    fn the_nearest_osds_are_those_of_the_host() {
        let mut builder = MapBuilder::new();
        let (host, root) = (TypeId(1), TypeId(11));
        builder.type_names(["osd", "host"]);
        builder.host_tree(root, host, &[&[0x10000; 2], &[0x10000; 2]]);
        for (id, name) in [(-1, "default"), (-2, "h0"), (-3, "h1")] {
            builder.item_name(BucketId(id).into(), name.to_owned());
        }
        let crush = builder.build().unwrap();
        let mut parts = crush.into_parts();
        parts.names.types.insert(root, "root".to_owned());
        let map = OsdMap::of_crush(Map::new(parts).unwrap(), BTreeMap::new());
        let place = |parts: &[(&str, &str)]| {
            let owned: Vec<_> =
                parts.iter().map(|(kind, name)| (kind.to_string(), name.to_string())).collect();
            distances(&map, &owned)
        };
        let near = place(&[("root", "default"), ("host", "h1")]).unwrap();
        assert_eq!([0, 1, 2, 3, 9].map(|osd| near(OsdId(osd))), [11, 11, 1, 1, FAR]);
        // No such host, and a root of another type than it says.
        assert!(place(&[("host", "h7"), ("rack", "default")]).is_none());
    }
}
