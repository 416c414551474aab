//! How an object is found: pool, namespace and key (Ceph: `object_locator_t`).

use fieldstone_crush::osdmap::{PgId, PoolId};

use super::ShardedPg;
use crate::encoding::{DecodeError, Decoder, Encoder, decode_pg, encode_pg};

/// A locator as it stands in messages: a section with s64 pool, s32 -1, key, namespace, s64 hash.
pub(super) struct Locator {
    pub(super) pool: PoolId,
    pub(super) key: String,
    pub(super) namespace: String,
}

/// The newest version of a locator.
const VERSION: u8 = 6;
/// A reader that knows no hash may read a locator without one.
const COMPAT: u8 = 3;

/// Writes a locator. With a hash it is for a request on a group; otherwise the hash is that of name
/// or key.
pub(super) fn encode_locator(
    pool: PoolId,
    key: &str,
    namespace: &str,
    hash: Option<u32>,
    into: &mut Encoder,
) {
    let compat = if hash.is_some() { VERSION } else { COMPAT };
    into.section(VERSION, compat, |fields| {
        fields.i64(pool.0).i32(-1).string(key).string(namespace);
        fields.i64(hash.map_or(-1, i64::from));
    });
}

impl Locator {
    pub(super) fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let section = from.section(VERSION, "a locator")?.at_least(5, "a locator")?;
        let mut fields = section.fields;
        let pool = PoolId(fields.i64("the pool of a locator")?);
        fields.i32("the preferred OSD of a locator")?;
        let key = text(&mut fields, "the key of a locator")?;
        let namespace = text(&mut fields, "the namespace of a locator")?;
        Ok(Self { pool, key, namespace })
    }
}

/// A text of which bytes that are no UTF-8 are replaced.
pub(super) fn text(from: &mut Decoder, what: &'static str) -> Result<String, DecodeError> {
    Ok(String::from_utf8_lossy(&from.blob(what)?).into_owned())
}

impl ShardedPg {
    /// Reads one: a section with the group and s8 shard.
    ///
    /// # Errors
    /// The bytes end before.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let mut fields = from.section(1, "a placement group with its shard")?.fields;
        let pg: PgId = decode_pg(&mut fields)?;
        Ok(Self { pg, shard: fields.u8("a shard")?.cast_signed() })
    }

    /// Writes it.
    pub fn encode(self, into: &mut Encoder) {
        into.section(1, 1, |fields| {
            encode_pg(self.pg, fields);
            fields.u8(self.shard.cast_unsigned());
        });
    }
}
