//! Several clients of one cluster.

use std::cell::RefCell;
use std::rc::Rc;

use fieldstone_rados::cluster::{Operation, SnapContext};
use fieldstone_rados::op::ObjectOps;
use fieldstone_tasks::Executor;

use super::*;

struct Bench {
    cluster: ModelCluster,
    tasks: Executor,
    pool: PoolId,
}

impl Bench {
    fn new(seed: u64, delays: Delays) -> Self {
        let cluster = ModelCluster::new(seed, delays);
        let pool = cluster.add_pool("rbd");
        Self { cluster, tasks: Executor::default(), pool }
    }

    fn name(&self, name: &str) -> ObjectName {
        ObjectName::new(self.pool, "", name)
    }

    fn run_for(&mut self, time: Nanos) {
        let end = self.cluster.now().plus(time);
        loop {
            while self.tasks.run() | self.cluster.step(self.cluster.now()) {}
            match self.cluster.next_time().filter(|&next| next <= end) {
                Some(next) => drop(self.cluster.step(next)),
                None => break,
            }
        }
        self.cluster.step(end);
        self.tasks.run();
    }
}

fn write(object: ObjectName, text: &'static str) -> Operation {
    let mut ops = ObjectOps::new();
    ops.append(Bytes::from_static(text.as_bytes()));
    Operation::new(object, ops)
}

#[test]
fn requests_of_a_client_on_an_object_stay_in_order_and_clients_interleave() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let mut bench = Bench::new(seed, Delays::USUAL);
        let answers = Rc::new(RefCell::new(String::new()));
        for text in ["a", "b"] {
            let (cluster, _) = bench.cluster.client();
            for _ in 0..4 {
                let done = cluster.operate(write(bench.name("o"), text));
                let answers = Rc::clone(&answers);
                bench.tasks.spawn(Box::pin(async move {
                    let reply = done.await.expect("the write succeeds");
                    assert_eq!(reply.result, 0);
                    answers.borrow_mut().push_str(text);
                }));
            }
        }
        bench.run_for(Nanos::from_ms(100));
        assert!(bench.tasks.is_empty());
        let data = bench.cluster.with_store(|store| {
            let object = store.object(&bench.name("o")).expect("it was written");
            String::from_utf8(object.head.data.read(0, 100).to_vec()).expect("it is text")
        });
        assert_eq!(data.len(), 8);
        orders.insert(data);
    }
    assert!(orders.len() > 3, "{orders:?}");
}

#[test]
fn watchers_are_notified_and_answers_come_back() {
    let mut bench = Bench::new(1, Delays::USUAL);
    let (watching, _) = bench.cluster.client();
    let (dying, dying_handle) = bench.cluster.client();
    let (notifying, _) = bench.cluster.client();
    let object = bench.name("o");
    let done = notifying.operate(write(object.clone(), "x"));
    bench.tasks.spawn(Box::pin(async move { drop(done.await) }));
    bench.run_for(Nanos::from_ms(10));
    let place = object.clone();
    bench.tasks.spawn(Box::pin(async move {
        let watch = watching.watch(place).await.expect("the object exists");
        for _ in 0..2 {
            match watch.next().await {
                WatchEvent::Notified { notify_id, payload, .. } => {
                    assert_eq!(payload.as_ref(), b"question");
                    watch.acknowledge(notify_id, Bytes::from_static(b"answer"));
                }
                other => panic!("{other:?}"),
            }
        }
        watch.end().await.expect("the watch stands");
    }));
    let place = object.clone();
    bench.tasks.spawn(Box::pin(async move {
        let watch = dying.watch(place).await.expect("the object exists");
        let event = watch.next().await;
        panic!("a client without answers heard {event:?}");
    }));
    bench.run_for(Nanos::from_ms(10));
    dying_handle.kill();
    let replies = Rc::new(RefCell::new(Vec::new()));
    for (timeout_ms, pause_ms) in [(2000, 40_000), (2000, 4000), (2000, 100)] {
        let (notifying, replies, object) = (notifying.clone(), Rc::clone(&replies), object.clone());
        bench.tasks.spawn(Box::pin(async move {
            let payload = Bytes::from_static(b"question");
            let reply = notifying.notify(object, payload, timeout_ms).await;
            replies.borrow_mut().push(reply.expect("the object exists"));
        }));
        bench.run_for(Nanos::from_ms(pause_ms));
    }
    let replies = replies.borrow();
    assert_eq!((replies[0].acknowledged.len(), replies[0].missed.len()), (1, 1));
    assert_eq!(replies[0].acknowledged[0].1.as_ref(), b"answer");
    // The watch of the client that died has expired.
    assert_eq!((replies[1].acknowledged.len(), replies[1].missed.len()), (1, 0));
    // The first client has ended its watch.
    assert_eq!((replies[2].acknowledged.len(), replies[2].missed.len()), (0, 0));
}

#[test]
fn a_client_that_is_shut_out_gets_an_error_for_everything() {
    let mut bench = Bench::new(2, Delays::NONE);
    let (victim, handle) = bench.cluster.client();
    let (other, _) = bench.cluster.client();
    let (object, address) = (bench.name("o"), handle.address());
    bench.tasks.spawn(Box::pin(async move {
        victim.operate(write(object.clone(), "x")).await.expect("it may still write");
        let watch = victim.watch(object.clone()).await.expect("it may still watch");
        assert_eq!(victim.identity().await.expect("it may ask").1, address);
        let command =
            format!(r#"{{"prefix":"osd blocklist","blocklistop":"add","addr":"{address}"}}"#);
        let reply = other.command(command, Bytes::new()).await.expect("monitors answer");
        assert_eq!(reply.result, 0);
        assert_eq!(watch.next().await, WatchEvent::Lost(Errno::ESHUTDOWN));
        let refused = victim.operate(write(object.clone(), "x")).await;
        assert_eq!(refused.err(), Some(Errno::ESHUTDOWN));
        other.operate(write(object, "x")).await.expect("others may write");
    }));
    bench.run_for(Nanos::from_ms(10));
    assert!(bench.tasks.is_empty());
}

#[test]
fn snapshots_lists_faults_and_full_pools() {
    let mut bench = Bench::new(3, Delays::NONE);
    let (cluster, _) = bench.cluster.client();
    let (model, pool, object) = (bench.cluster.clone(), bench.pool, bench.name("o"));
    bench.tasks.spawn(Box::pin(async move {
        cluster.operate(write(object.clone(), "x")).await.expect("it may write");
        let snap = cluster.create_snap(pool).await.expect("the pool exists");
        let mut second = write(object.clone(), "y");
        second.snap_context = SnapContext { seq: snap, snaps: vec![snap] };
        cluster.operate(second).await.expect("it may write");
        let mut ops = ObjectOps::new();
        ops.read(0, 10);
        let mut read = Operation::new(object.clone(), ops);
        read.snapshot = snap;
        let reply = cluster.operate(read.clone()).await.expect("the snapshot exists");
        assert_eq!(reply.ops[0].data.as_ref(), b"x");
        cluster.remove_snap(pool, snap).await.expect("the pool exists");
        assert_eq!(cluster.operate(read).await.err(), Some(Errno::ENOENT));
        let list = cluster.list(pool, None, ListCursor::default()).await.expect("a list");
        assert_eq!(list.objects, vec![(String::new(), "o".to_owned(), String::new())]);
        assert!(list.next.is_none());
        model.inject(pool, "o", Errno::EIO, 1);
        let failed = cluster.operate(write(object.clone(), "z")).await;
        assert_eq!(failed.err(), Some(Errno::EIO));
        model.set_full(pool, true);
        let mut tries = write(object.clone(), "z");
        tries.flags.full_try = true;
        assert_eq!(cluster.operate(tries).await.err(), Some(Errno::ENOSPC));
        let waits = cluster.operate(write(object.clone(), "z"));
        cluster.newest_map().await.expect("monitors answer");
        model.set_full(pool, false);
        waits.await.expect("there is space again");
        assert_eq!(cluster.pools().await.expect("pools").len(), 1);
    }));
    bench.run_for(Nanos::from_ms(10));
    assert!(bench.tasks.is_empty());
}

#[test]
fn of_the_requests_of_a_client_that_dies_the_first_may_be_executed() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..30 {
        let mut bench = Bench::new(seed, Delays::USUAL);
        let (cluster, handle) = bench.cluster.client();
        for text in ["a", "b", "c"] {
            drop(cluster.operate(write(bench.name("o"), text)));
        }
        bench.cluster.step(Nanos(0));
        handle.kill();
        bench.run_for(Nanos::from_ms(100));
        seen.insert(bench.cluster.with_store(|store| {
            store.object(&bench.name("o")).map(|object| object.head.data.read(0, 9))
        }));
    }
    let texts: Vec<_> = seen.into_iter().map(|data| data.unwrap_or_default()).collect();
    assert!(texts.iter().all(|text| b"abc".starts_with(text)), "{texts:?}");
    assert!(texts.len() > 2, "{texts:?}");
}
