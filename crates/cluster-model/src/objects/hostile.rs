//! Requests with random bytes: they may fail, and must not panic.

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{PoolInfo, SnapContext, SnapId};
use fieldstone_rados::encoding::EntityAddress;
use fieldstone_rados::op::{ObjectOps, Op};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Caller, Pool, Request};
use crate::store::time_of_day;

fn pool() -> Pool {
    Pool::new(PoolInfo {
        id: PoolId(1),
        name: "pool".to_owned(),
        is_erasure_coded: false,
        takes_overwrites: false,
        alignment_bytes: 1,
        is_full: false,
        pg_num: 8,
        applications: Vec::new(),
    })
}

fn run(pool: &mut Pool, ops: &[Op], context: &SnapContext) {
    let caller = Caller { client: 4100, address: EntityAddress::default() };
    let request = Request {
        caller: &caller,
        ops,
        snapshot: SnapId::HEAD,
        snap_context: context,
        wants_data: true,
        now: time_of_day(Nanos(0)),
        watchers: &[],
    };
    drop(pool.execute(&("".into(), "".into(), "object".into()), &request));
}

fn bytes(random: &mut ChaCha8Rng, max: usize) -> Bytes {
    let mut bytes = vec![0; random.random_range(0..=max)];
    random.fill_bytes(&mut bytes);
    // Small numbers are lengths that fit.
    for byte in &mut bytes {
        if random.random_ratio(2, 3) {
            *byte &= 3;
        }
    }
    bytes.into()
}

#[test]
fn random_operations_do_not_panic() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let mut pool = pool();
    for round in 0..6000_u64 {
        let mut fields = [0; 28];
        fields.copy_from_slice(&[&bytes(&mut random, 28)[..], &[0; 28]].concat()[..28]);
        let mode = [0x1000, 0x2000, 0x3000][random.random_range(0..3)];
        let kind = [0x200, 0x200, 0x300, 0x400, 0x500][random.random_range(0..5)];
        let code = mode | kind | random.random_range(0..48);
        let flags = random.random_range(0..4);
        let op = Op { code, flags, fields, data: bytes(&mut random, 64) };
        let context = SnapContext { seq: SnapId(round / 500), snaps: vec![SnapId(round / 500)] };
        run(&mut pool, &[op], &context);
    }
}

#[test]
fn random_inputs_of_methods_do_not_panic() {
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let names: Vec<_> = crate::classes::all_methods().collect();
    assert!(names.len() > 70);
    for _ in 0..100 {
        let mut pool = pool();
        for _ in 0..200 {
            let (class, method) = names[random.random_range(0..names.len())];
            let mut ops = ObjectOps::new();
            ops.call(class, method, bytes(&mut random, 64));
            run(&mut pool, ops.ops(), &SnapContext::default());
        }
    }
}
