//! Snapshots against a model that keeps a full copy for each, and the errors of operations.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::cluster::{PoolInfo, SnapContext, SnapId};
use fieldstone_rados::encoding::{Decoder, EntityAddress};
use fieldstone_rados::op::{ALL_SNAPSHOTS, FAIL_OK, ObjectOps, Reply};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Caller, Intervals, ObjectKey, Pool, Request};
use crate::store::time_of_day;

struct Bench {
    pool: Pool,
    context: SnapContext,
}

fn key() -> ObjectKey {
    ("".into(), "".into(), "object".into())
}

impl Bench {
    fn new(is_erasure_coded: bool) -> Self {
        let info = PoolInfo {
            id: PoolId(1),
            name: "pool".to_owned(),
            is_erasure_coded,
            takes_overwrites: false,
            alignment_bytes: 1,
            is_full: false,
            pg_num: 8,
            applications: Vec::new(),
        };
        Self { pool: Pool::new(info), context: SnapContext::default() }
    }

    fn run_at(&mut self, snapshot: SnapId, fill: impl FnOnce(&mut ObjectOps)) -> Reply {
        let mut ops = ObjectOps::new();
        fill(&mut ops);
        let request = Request {
            caller: &Caller { client: 4100, address: EntityAddress::default() },
            ops: ops.ops(),
            snapshot,
            snap_context: &self.context,
            wants_data: false,
            now: time_of_day(fieldstone_rados::Nanos(0)),
            watchers: &[],
        };
        self.pool.execute(&key(), &request).reply
    }

    fn run(&mut self, fill: impl FnOnce(&mut ObjectOps)) -> Reply {
        self.run_at(SnapId::HEAD, fill)
    }

    fn result(&mut self, fill: impl FnOnce(&mut ObjectOps)) -> i32 {
        self.run(fill).result
    }

    fn snap(&mut self) -> SnapId {
        let snap = self.pool.create_snap();
        self.context.seq = snap;
        self.context.snaps.insert(0, snap);
        snap
    }

    fn read_at(&mut self, snap: SnapId) -> Result<Bytes, i32> {
        let mut reply = self.run_at(snap, |ops| {
            ops.read(0, 1 << 20).get_xattrs();
        });
        if reply.result < 0 {
            Err(reply.result)
        } else {
            Ok(std::mem::take(&mut reply.ops[0].data))
        }
    }
}

/// An object as the naive model keeps it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Copy {
    data: Vec<u8>,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

const SPACE: usize = 40_000;

fn change(bench: &mut Bench, present: &mut Option<Copy>, random: &mut ChaCha8Rng) {
    let offset = random.random_range(0..SPACE);
    let len = random.random_range(1..SPACE / 2);
    let byte = random.random_range(1..=255_u8);
    match random.random_range(0..7) {
        0 | 1 => {
            bench.run(|ops| {
                ops.write(offset as u64, vec![byte; len].into());
            });
            let data = &mut present.get_or_insert_default().data;
            data.resize(data.len().max(offset + len), 0);
            data[offset..offset + len].fill(byte);
        }
        2 => {
            bench.run(|ops| {
                ops.write_full(vec![byte; len].into());
            });
            present.get_or_insert_default().data = vec![byte; len];
        }
        3 => {
            bench.run(|ops| {
                ops.truncate(offset as u64);
            });
            if let Some(copy) = present {
                copy.data.resize(offset, 0);
            }
        }
        4 => {
            bench.run(|ops| {
                ops.zero(offset as u64, len as u64);
            });
            if let Some(copy) = present.as_mut().filter(|copy| offset < copy.data.len()) {
                if offset + len < copy.data.len() {
                    copy.data[offset..offset + len].fill(0);
                } else {
                    copy.data.truncate(offset);
                }
            }
        }
        5 => {
            bench.run(|ops| {
                ops.omap_set([([byte % 4], [byte])]);
            });
            present.get_or_insert_default().entries.insert(vec![byte % 4], vec![byte]);
        }
        _ => {
            let result = bench.result(|ops| {
                ops.delete();
            });
            assert_eq!(result, if present.is_some() { 0 } else { -2 });
            *present = None;
        }
    }
}

fn check(bench: &mut Bench, snap: SnapId, wanted: Option<&Copy>) {
    match wanted {
        None => assert_eq!(bench.read_at(snap), Err(-2), "at {snap:?}"),
        Some(copy) => {
            assert_eq!(bench.read_at(snap).expect("it exists"), copy.data, "at {snap:?}");
            let object = bench.pool.object(&key()).expect("it exists");
            let content = if snap == SnapId::HEAD { object.present() } else { object.at(snap) };
            let entries: BTreeMap<_, _> = content
                .expect("it exists")
                .omap
                .iter()
                .map(|(key, value)| (key.to_vec(), value.to_vec()))
                .collect();
            assert_eq!(entries, copy.entries);
        }
    }
}

/// Bytes that a clone claims to share with its successor must be the same in both.
fn check_overlaps(bench: &Bench) {
    let Some(object) = bench.pool.object(&key()) else { return };
    let clones = &object.snaps.clones;
    for (index, clone) in clones.iter().enumerate() {
        let next = clones.get(index + 1).map_or(&object.head, |next| &next.content);
        for (offset, len) in clone.overlap.extents() {
            assert_eq!(clone.content.data.read(offset, len), next.data.read(offset, len));
        }
    }
}

#[test]
fn snapshots_equal_full_copies() {
    for seed in 0..60 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut bench = Bench::new(false);
        let mut present: Option<Copy> = None;
        let mut copies: BTreeMap<SnapId, Option<Copy>> = BTreeMap::new();
        for _ in 0..40 {
            match random.random_range(0..10) {
                0..6 => change(&mut bench, &mut present, &mut random),
                6 | 7 => {
                    let snap = bench.snap();
                    copies.insert(snap, present.clone());
                }
                8 => {
                    let at = random.random_range(0..=copies.len().max(1));
                    let Some((&snap, _)) = copies.iter().nth(at) else { continue };
                    copies.remove(&snap);
                    bench.context.snaps.retain(|&kept| kept != snap);
                    bench.pool.remove_snap(snap);
                }
                _ => {
                    let at = random.random_range(0..=copies.len().max(1));
                    let Some((&snap, copy)) = copies.iter().nth(at) else { continue };
                    assert_eq!(
                        bench.result(|ops| {
                            ops.rollback(snap);
                        }),
                        0
                    );
                    present = copy.clone();
                }
            }
            check(&mut bench, SnapId::HEAD, present.as_ref());
            for (&snap, copy) in &copies {
                check(&mut bench, snap, copy.as_ref());
            }
            check_overlaps(&bench);
        }
        for &snap in copies.keys() {
            bench.pool.remove_snap(snap);
        }
        let left = bench.pool.object(&key());
        assert_eq!(left.is_some(), present.is_some(), "seed {seed}");
        assert!(left.is_none_or(|object| object.snaps.clones.is_empty()));
    }
}

#[test]
fn a_removed_snapshot_in_an_old_context_makes_no_clone() {
    let mut bench = Bench::new(false);
    bench.run(|ops| {
        ops.write_full(b"a".to_vec().into());
    });
    let snap = bench.snap();
    bench.pool.remove_snap(snap);
    bench.run(|ops| {
        ops.write_full(b"b".to_vec().into());
    });
    let object = bench.pool.object(&key()).expect("it exists");
    assert!(object.snaps.clones.is_empty());
    assert_eq!(object.snaps.seq, snap);
}

/// The number of clones that an operation makes of an object of 8192 bytes that has a snapshot.
fn clones_after(fill: impl FnOnce(&mut ObjectOps, SnapId)) -> usize {
    let mut bench = Bench::new(false);
    bench.run(|ops| {
        ops.write_full(vec![1; 8192].into());
    });
    let snap = bench.snap();
    let reply = bench.run(|ops| fill(ops, snap));
    assert_eq!(reply.result, 0);
    bench.pool.object(&key()).expect("it exists").snaps.clones.len()
}

#[test]
fn only_a_change_makes_a_clone() {
    type Fill = fn(&mut ObjectOps);
    let cases: [(&str, Fill, usize); 5] = [
        ("zeroes at the end", |ops| _ = ops.zero(8192, 100), 0),
        ("zeroes behind the end", |ops| _ = ops.zero(1 << 20, 100), 0),
        ("zeroes across the end", |ops| _ = ops.zero(8191, 100), 1),
        ("cut at the end", |ops| _ = ops.truncate(8192), 1),
        ("made although it is there", |ops| _ = ops.create(false), 1),
    ];
    for (what, fill, clones) in cases {
        assert_eq!(clones_after(|ops, _| fill(ops)), clones, "{what}");
    }
    let rolled_back = clones_after(|ops, snap| _ = ops.rollback(snap));
    assert_eq!(rolled_back, 1, "rolled back to what it is");
}

#[test]
fn a_list_of_snapshots_has_clones_overlaps_and_the_head() {
    let mut bench = Bench::new(false);
    bench.run(|ops| {
        ops.write_full(vec![1; 8192].into());
    });
    let first = bench.snap();
    let second = bench.snap();
    bench.run(|ops| {
        ops.write(4096, vec![2; 100].into());
    });
    let reply = bench.run_at(ALL_SNAPSHOTS, |ops| {
        ops.list_snaps();
    });
    let snaps =
        fieldstone_rados::op::results::Snapshots::decode(&reply.ops[0].data).expect("it is a list");
    assert_eq!(snaps.seq, second);
    let text = format!("{snaps:?}");
    assert!(text.contains("4196"), "{text}");
    let object = bench.pool.object(&key()).expect("it exists");
    let clone = &object.snaps.clones[0];
    assert_eq!((clone.id, clone.snaps.as_slice()), (second, [second, first].as_slice()));
    let mut overlap = Intervals::below(8192);
    overlap.remove(4096, 4196);
    assert_eq!(clone.overlap, overlap);
    assert_eq!(object.present().map(|head| head.data.len()), Some(8192));
}

#[test]
fn errors_are_cephs() {
    let mut bench = Bench::new(false);
    assert_eq!(
        bench.result(|ops| {
            ops.read(0, 10);
        }),
        -2
    );
    assert_eq!(
        bench.result(|ops| {
            ops.delete();
        }),
        -2
    );
    assert_eq!(
        bench.result(|ops| {
            ops.omap_clear();
        }),
        -2
    );
    assert_eq!(
        bench.result(|ops| {
            ops.truncate(5);
        }),
        0
    );
    assert_eq!(bench.read_at(SnapId::HEAD), Err(-2));
    assert_eq!(
        bench.result(|ops| {
            ops.create(true);
        }),
        0
    );
    assert_eq!(
        bench.result(|ops| {
            ops.create(true);
        }),
        -17
    );
    assert_eq!(
        bench.result(|ops| {
            ops.create(false);
        }),
        0
    );
    assert_eq!(
        bench.result(|ops| {
            ops.get_xattr("name");
        }),
        -61
    );
    bench.run(|ops| {
        ops.set_xattr("name", b"b");
    });
    use fieldstone_rados::op::CompareOp;
    assert_eq!(
        bench.result(|ops| {
            ops.compare_xattr("name", CompareOp::Equal, b"b");
        }),
        1
    );
    assert_eq!(
        bench.result(|ops| {
            ops.compare_xattr("name", CompareOp::Equal, b"a");
        }),
        -125
    );
    let version = bench
        .run(|ops| {
            ops.write(0, b"hello".to_vec().into());
        })
        .user_version;
    assert_eq!(
        bench.result(|ops| {
            ops.assert_version(version);
        }),
        0
    );
    assert_eq!(
        bench.result(|ops| {
            ops.assert_version(version - 1);
        }),
        -34
    );
    assert_eq!(
        bench.result(|ops| {
            ops.assert_version(version + 1);
        }),
        -75
    );
    let wrong = b"helpo".to_vec();
    assert_eq!(
        bench.result(|ops| {
            ops.compare_extent(0, wrong.into());
        }),
        -4095 - 3
    );
    assert_eq!(
        bench.result(|ops| {
            ops.write((128 << 20) - 1, vec![1; 2].into());
        }),
        -27
    );
}

#[test]
fn a_request_is_all_or_nothing() {
    let mut bench = Bench::new(false);
    let reply = bench.run(|ops| {
        ops.write_full(b"new".to_vec().into()).omap_set([("key", "value")]).create(true);
    });
    assert_eq!(reply.result, -17);
    assert!(bench.pool.object(&key()).is_none());
    let reply = bench.run(|ops| {
        ops.delete().with_flags(FAIL_OK).write_full(b"new".to_vec().into());
    });
    assert_eq!((reply.result, reply.ops[0].result), (0, -2));
    assert_eq!(bench.read_at(SnapId::HEAD), Ok(Bytes::from_static(b"new")));
}

#[test]
fn an_erasure_coded_pool_has_no_entries_and_appends() {
    let mut bench = Bench::new(true);
    assert_eq!(
        bench.result(|ops| {
            ops.omap_set([("key", "value")]);
        }),
        -95
    );
    assert_eq!(
        bench.result(|ops| {
            ops.write(0, b"ab".to_vec().into());
        }),
        0
    );
    assert_eq!(
        bench.result(|ops| {
            ops.append(b"cd".to_vec().into());
        }),
        0
    );
    assert_eq!(
        bench.result(|ops| {
            ops.write(1, b"x".to_vec().into());
        }),
        -95
    );
    bench.pool.info.takes_overwrites = true;
    assert_eq!(
        bench.result(|ops| {
            ops.write(1, b"x".to_vec().into());
        }),
        0
    );
    assert_eq!(bench.read_at(SnapId::HEAD), Ok(Bytes::from_static(b"axcd")));
}

#[test]
fn a_sparse_read_leaves_holes_out() {
    let mut bench = Bench::new(false);
    bench.run(|ops| {
        ops.write(40_000, vec![7; 100].into());
    });
    let reply = bench.run(|ops| {
        ops.sparse_read(0, 1 << 22);
    });
    let mut data = Decoder::new(reply.ops[0].data.clone());
    assert_eq!(data.u32("").expect("a count"), 1);
    let (offset, len) = (data.u64("").expect("an offset"), data.u64("").expect("a length"));
    assert_eq!((offset, offset + len), (36_864, 40_100));
    assert_eq!(data.blob("").expect("the data").len() as u64, len);
}
