//! The map of a real cluster, as the objecter asks it.

use fieldstone_crush::OsdId;
use fieldstone_crush::osdmap::{self, Flags, OsdMap, PgId, Pool, PoolId, PoolKind};

use super::map::{ClusterMap, Interval, PoolRules};
use crate::cluster::ObjectName;
use crate::encoding::{AddressKind, Addresses, EntityAddress};

/// The release from which on a replica does not answer with bytes that may be taken back (Ceph 15).
const REPLICAS_ANSWER: u8 = 15;

impl ClusterMap for OsdMap {
    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn pauses_reads(&self) -> bool {
        self.flags.has(Flags::PAUSERD)
    }

    fn pauses_writes(&self) -> bool {
        self.flags.has(Flags::PAUSEWR)
    }

    fn is_full(&self) -> bool {
        self.flags.has(Flags::FULL)
    }

    fn pool(&self, pool: PoolId) -> Option<PoolRules> {
        let pool = self.pools.get(&pool)?;
        Some(PoolRules {
            pg_num: pool.pg_num,
            is_replicated: pool.kind == PoolKind::Replicated
                && self.require_osd_release >= REPLICAS_ANSWER,
            is_full: pool.is_full(),
            fails: pool.has(Pool::EIO),
            resend_epoch: pool.last_force_op_resend,
            read_tier: pool.read_tier,
            write_tier: pool.write_tier,
        })
    }

    fn hash(&self, object: &ObjectName) -> Option<u32> {
        let pool = self.pools.get(&object.pool)?;
        Some(pool.seed(&object.namespace, &object.key, &object.name))
    }

    fn place(&self, pg: PgId) -> Option<Interval> {
        let interval = self.interval(pg).ok()?;
        let target = interval.target;
        Some(Interval {
            acting: target.acting,
            acting_primary: target.acting_primary,
            up: target.up,
            up_primary: target.up_primary,
            shard: target.shard.map_or(-1, |shard| i8::try_from(shard).unwrap_or(-1)),
            sizes: (interval.size, interval.min_size),
            pg_nums: (interval.pg_num, interval.pg_num_pending),
        })
    }

    fn addresses(&self, osd: OsdId) -> Option<Addresses> {
        let addresses = OsdMap::addresses(self, osd)?;
        Some(Addresses(addresses.0.iter().map(address).collect()))
    }
}

/// The same address, in this crate's type.
fn address(address: &osdmap::Address) -> EntityAddress {
    let kind = match address.kind {
        osdmap::AddressKind::Legacy => AddressKind::Legacy,
        osdmap::AddressKind::Msgr2 => AddressKind::Msgr2,
        osdmap::AddressKind::Any => AddressKind::Any,
        _ => AddressKind::None,
    };
    EntityAddress { kind, nonce: address.nonce, socket: address.socket }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fieldstone_block::Nanos;

    use super::super::{Action, Objecter, Options, Token};
    use super::*;
    use crate::cluster::Operation;
    use crate::op::ObjectOps;

    /// A map that a monitor of Ceph 16 made, with a replicated and an erasure-coded pool.
    const OM0: &[u8] = include_bytes!("../../../crush/tests/data/osdmap/om0");

    #[test]
    fn requests_go_where_a_real_map_says() {
        let mut map = OsdMap::decode(OM0).unwrap();
        map.mark_all_up_in();
        let map = Arc::new(map);
        let mut objecter = Objecter::new(Options::default(), Nanos(0));
        objecter.map_changed(Arc::clone(&map), Nanos(0));
        let mut coded = 0;
        for number in 0..60 {
            let pool = map.pool_named(["rep3", "ec42"][number % 2]).unwrap();
            let name = format!("object-{number}");
            let mut ops = ObjectOps::new();
            ops.stat();
            let operation = Operation::new(ObjectName::new(pool, "", &name), ops);
            objecter.submit(Token(number as u64), operation, Nanos(0));
            let pg = map.locate(pool, "", "", &name).unwrap();
            let placement = OsdMap::place(&map, pg).unwrap();
            let mut sent = false;
            while let Some(action) = objecter.poll_action() {
                match action {
                    Action::Open { osd, .. } => objecter.session_ready(osd, Nanos(0)),
                    Action::Send(osd, op) => {
                        sent = true;
                        assert_eq!((op.target.pg, Some(osd)), (pg, placement.acting_primary));
                        assert_eq!(map.pools[&pool].fold(op.hash), pg.seed);
                        assert_eq!(op.target.shard < 0, number % 2 == 0);
                        if let Ok(shard) = usize::try_from(op.target.shard) {
                            assert_eq!(placement.acting[shard].osd(), Some(osd));
                            coded += 1;
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(sent);
        }
        assert_eq!(coded, 30);
    }
}
