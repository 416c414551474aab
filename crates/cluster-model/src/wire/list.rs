//! Lists of the objects of a placement group, in the order of positions.

use fieldstone_crush::osdmap::{OsdMap, PgId};
use fieldstone_rados::cluster::{ObjectName, SnapId};
use fieldstone_rados::encoding::{DecodeError, Decoder, Encoder};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::message::osd::{ObjectPosition, OsdOp};
use fieldstone_rados::op::{Op, OpResult, Reply};
use smallvec::smallvec;

use crate::store::Store;

/// Objects that one answer has at most.
const MAX_OBJECTS: u64 = 1024;
/// The namespace that stands for all of them.
const ALL_NAMESPACES: &str = "\u{1}";

/// The first position of a group.
pub(super) fn group_start(pg: PgId) -> ObjectPosition {
    ObjectPosition { pool: pg.pool, hash: pg.seed, ..ObjectPosition::first() }
}

/// The position behind a group: the start of the next one in the order, or the end.
pub(super) fn group_end(pg: PgId, pg_num: u32) -> ObjectPosition {
    // Bits of the hash that name the group: one fewer for a group that will split before others.
    let bits = u32::BITS - pg_num.saturating_sub(1).leading_zeros();
    let half = 1_u32 << bits.saturating_sub(1);
    let bits = if bits > 0 && pg.seed % half + half >= pg_num { bits - 1 } else { bits };
    let rest = u64::from(u32::MAX) >> bits;
    let end = (u64::from(pg.seed.reverse_bits()) | rest) + 1;
    match u32::try_from(end) {
        Ok(end) => ObjectPosition { hash: end.reverse_bits(), ..group_start(pg) },
        Err(_) => ObjectPosition::last(),
    }
}

/// Reads the operation: how many, and from where.
fn wanted(op: &Op) -> Result<(u64, ObjectPosition), DecodeError> {
    let mut fields = Decoder::new(bytes::Bytes::copy_from_slice(&op.fields));
    let max = fields.u64("a number of objects")?;
    Ok((max, ObjectPosition::decode(&mut Decoder::new(op.data.clone()))?))
}

pub(super) fn execute(store: &Store, map: Option<&OsdMap>, request: &OsdOp) -> Reply {
    let pg = request.target.pg;
    let listed = (|| {
        let op = request.ops.ops().first().ok_or(Errno::EINVAL)?;
        let (max, start) = wanted(op).map_err(|_| Errno::EINVAL)?;
        let known = map.and_then(|map| map.pools.get(&pg.pool)).ok_or(Errno::ENOENT)?;
        let pool = store.pool(pg.pool).ok_or(Errno::ENOENT)?;
        let mut objects = Vec::new();
        for ((namespace, key, name), object) in pool.objects() {
            let hash = known.seed(namespace, key, name);
            let is_wanted = *request.object.namespace == *ALL_NAMESPACES
                || *namespace == request.object.namespace;
            if known.fold(hash) != pg.seed || object.is_whiteout || !is_wanted {
                continue;
            }
            let (namespace, key, name) = (namespace.clone(), key.clone(), name.clone());
            let object = ObjectName { pool: pg.pool, namespace, key, name };
            objects.push(ObjectPosition::of(&object, hash, SnapId::HEAD));
        }
        objects.sort();
        objects.retain(|object| *object >= start);
        let count = objects.len().min(max.min(MAX_OBJECTS) as usize);
        let next = objects.get(count).cloned();
        let next = next.unwrap_or_else(|| group_end(pg, known.pg_num));
        let mut into = Encoder::new();
        into.section(1, 1, |into| {
            next.encode(into);
            into.list(objects[..count].iter(), |into, object| {
                into.string(&object.namespace).string(&object.name).string(&object.key);
            });
        });
        let is_end = count == objects.len();
        Ok(OpResult { result: i32::from(is_end), data: into.finish() })
    })();
    match listed {
        Ok(result) => Reply { result: result.result, user_version: 0, ops: smallvec![result] },
        Err(error) => {
            let error: Errno = error;
            Reply { result: -error.0, user_version: 0, ops: smallvec![OpResult::default()] }
        }
    }
}
