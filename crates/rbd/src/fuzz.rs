//! Fuzzing of what OSDs and other clients give to an image: answers of class methods, object maps,
//! locks, and notices. Any bytes as input; none may cause a panic, a loop without end, or memory
//! beyond a small multiple of the input.
//!
//! An input: u8 which decoder, and the bytes. The cargo-fuzz target in the repository's `fuzz/`
//! folder and a seeded smoke test use [`answer`]. [`seeds`] gives valid inputs to start from.

use bytes::Bytes;
use fieldstone_rados::cluster::SnapId;
use fieldstone_rados::encoding::{DecodeError, Encoder, EntityAddress};

use crate::format::lock::{self, LockInfo, LockKind, Locker};
use crate::format::notice::{self, ClientId, Notice, RequestId};
use crate::format::{Layout, ObjectMap, ObjectState, class};

type Decode = fn(&Bytes) -> Result<(), DecodeError>;

/// All decoders.
const TARGETS: [Decode; 24] = [
    |bytes| {
        let (order, size) = class::decode_size(bytes)?;
        // What the header does with them.
        if let Ok(layout) = Layout::new(order, 0, 0) {
            let _ = layout.objects(size);
        }
        Ok(())
    },
    |bytes| {
        let (unit, count) = class::decode_stripes(bytes)?;
        for order in [0, 12, 22, 25, 26] {
            if let Ok(layout) = Layout::new(order, unit, count) {
                let _ = (layout.objects(u64::MAX), layout.map(1 << 40, 4096));
            }
        }
        Ok(())
    },
    |bytes| class::decode_text(bytes).map(drop),
    |bytes| class::decode_texts(bytes).map(drop),
    |bytes| class::decode_u64(bytes).map(drop),
    |bytes| class::decode_i64(bytes).map(drop),
    |bytes| class::decode_time(bytes).map(drop),
    |bytes| class::decode_features(bytes).map(drop),
    |bytes| class::decode_snap_context(bytes).map(drop),
    |bytes| class::decode_parent(bytes).map(drop),
    |bytes| class::decode_overlap(bytes).map(drop),
    |bytes| class::decode_old_parent(bytes).map(drop),
    |bytes| class::decode_snapshot(bytes).map(drop),
    |bytes| class::decode_protection(bytes).map(drop),
    |bytes| class::decode_children(bytes).map(drop),
    |bytes| class::decode_directory(bytes).map(drop),
    |bytes| class::decode_metadata(bytes).map(drop),
    |bytes| class::decode_group(bytes).map(drop),
    |bytes| {
        let info = LockInfo::decode(bytes)?;
        for locker in &info.lockers {
            let _ = (locker.blocklist_address(), lock::parse_cookie(&locker.cookie));
        }
        let again = LockInfo::decode(&info.encode());
        assert_eq!(again.as_ref(), Ok(&info), "a lock changes when it is written");
        Ok(())
    },
    |bytes| {
        let notice = Notice::decode(bytes)?;
        if !matches!(notice, Notice::OwnerRequest(_) | Notice::Other(_)) {
            let again = Notice::decode(&notice.encode());
            assert_eq!(again, Ok(notice), "a notice changes when it is written");
        }
        Ok(())
    },
    |bytes| notice::decode_response(bytes).map(drop),
    |bytes| {
        let map = ObjectMap::decode(bytes)?;
        let _ = (map.get(0), map.get(map.len()), map.get(u64::MAX), map.changed().count());
        let again = ObjectMap::decode(&map.encode());
        assert_eq!(again, Ok(map), "an object map changes when it is written");
        Ok(())
    },
    |bytes| {
        // A map that changes.
        let mut map = ObjectMap::decode(bytes)?;
        map.resize(5, ObjectState::Exists);
        assert_eq!((map.len(), map.get(5)), (5, ObjectState::Nonexistent));
        Ok(())
    },
    |bytes| class::decode_u64(bytes).map(SnapId).map(drop),
];

/// Feeds an input to the decoder that it names. True if it was understood.
///
/// # Panics
/// If a property does not hold. This is the finding.
#[must_use]
pub fn answer(input: &[u8]) -> bool {
    let Some((&target, rest)) = input.split_first() else { return false };
    TARGETS[usize::from(target) % TARGETS.len()](&Bytes::copy_from_slice(rest)).is_ok()
}

/// Valid inputs for [`answer`]: pieces from which every decoder's answer can be made.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut pieces: Vec<Bytes> = Vec::new();
    let mut piece = |write: &dyn Fn(&mut Encoder)| {
        let mut into = Encoder::new();
        write(&mut into);
        pieces.push(into.finish());
    };
    piece(&|into| {
        into.u8(22).u64(1 << 30);
    });
    piece(&|into| {
        into.u64(65_536).u64(4);
    });
    piece(&|into| {
        into.string("rbd_data.1");
    });
    piece(&|into| {
        into.u32(2).string("a").string("b");
    });
    piece(&|into| {
        into.u64(5).u32(2).u64(5).u64(2);
    });
    piece(&|into| {
        into.u32(1).string("key").string("value");
    });
    piece(&|into| {
        into.u8(1).u64(4096);
    });
    piece(&|into| {
        into.u8(1).section(1, 1, |into| {
            into.i64(2).string("n").string("id").u64(4);
        });
    });
    piece(&|into| {
        into.section(1, 1, |into| {
            into.u64(4).section(1, 1, |into| {
                into.u32(2).string("old");
            });
            into.string("name").u64(1 << 30).u64(0).u32(1);
        });
    });
    piece(&|into| {
        into.u32(1).section(1, 1, |into| {
            into.i64(2).string("n").string("id");
        });
    });
    piece(&|into| {
        into.section(1, 1, |into| {
            into.i64(2).string("n").string("id").u64(4);
        });
    });
    piece(&|into| {
        into.i64(2).string("id").u64(4).u64(4096);
    });
    let (client, mut map) = (ClientId { client: 1, watch: 2 }, ObjectMap::default());
    map.resize(70, ObjectState::Exists);
    let address = EntityAddress::msgr2(([10, 0, 0, 1], 0).into(), 7);
    let locker = Locker {
        client: lock::client(4123),
        cookie: lock::cookie(9),
        address,
        description: String::new(),
    };
    let lockers = vec![locker];
    let lock = LockInfo { lockers, kind: LockKind::Exclusive, tag: lock::INTERNAL_TAG.into() };
    pieces.extend([
        lock.encode(),
        map.encode(),
        map.encode_input(),
        Notice::RequestLock(client, true).encode(),
        Notice::AsyncProgress(RequestId { client, request: 3 }, 4, 5).encode(),
        notice::response(-95),
    ]);
    let targets = 0..u8::try_from(TARGETS.len()).expect("few");
    let all = targets.flat_map(|target| pieces.iter().map(move |piece| (target, piece)));
    all.map(|(target, piece)| [&[target], &piece[..]].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_decoder_understands_a_seed() {
        for target in 0..TARGETS.len() {
            let understood = |seed: &Vec<u8>| usize::from(seed[0]) == target && answer(seed);
            assert!(seeds().iter().any(understood), "decoder {target}");
        }
    }
}
