//! This project's client and a null cluster, over TCP.

use std::path::Path;

use bytes::Bytes;
use fieldstone_block::{
    Backend, Completion, Nanos, Op, Payload, Piece, QueueId, ReadDestination, Request,
    RequestFlags, RequestId, Stamps,
};
use fieldstone_host::ceph::{CephSettings, Session};
use fieldstone_null_cluster::{Faults, ImageOption, Method, NullCluster, Options};
use fieldstone_rados::cluster::{Cluster, ObjectName, Operation, WatchEvent};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::{ObjectOps, Reply};
use fieldstone_rbd::{Image, ImageSpec, Phase};

const BLOCK: usize = 4096;

struct Running {
    cluster: NullCluster,
    _folder: tempfile::TempDir,
}

fn start(change: impl FnOnce(&mut Options)) -> Running {
    let folder = tempfile::tempdir().expect("temp");
    let mut options = Options {
        folder: folder.path().join("cluster"),
        osds: 4,
        port: 0,
        pools: vec!["pool".to_owned()],
        pgs: 16,
        images: Vec::new(),
        cores: 1,
        method: Method::Cephx,
        faults: Faults::default(),
    };
    change(&mut options);
    let cluster = NullCluster::start(&options).expect("it starts");
    Running { cluster, _folder: folder }
}

fn connect(conf: &Path, more: &[&str]) -> Session {
    let mut words = vec!["--conf".to_owned(), conf.to_str().expect("a text").to_owned()];
    words.extend(more.iter().map(|&word| word.to_owned()));
    let settings = CephSettings::read(&words).expect("the files are there");
    Session::connect(&settings).expect("it connects")
}

impl Running {
    fn connect(&self, more: &[&str]) -> Session {
        connect(self.cluster.conf(), more)
    }
}

async fn operate(
    cluster: &Cluster,
    name: &str,
    fill: impl FnOnce(&mut ObjectOps),
) -> Result<Reply, Errno> {
    let pools = cluster.pools().await?;
    let pool = pools.iter().find(|pool| pool.name == "pool").ok_or(Errno::ENOENT)?;
    let mut ops = ObjectOps::new();
    fill(&mut ops);
    cluster.operate(Operation::new(ObjectName::new(pool.id, "", name), ops)).await
}

fn bytes(seed: usize, len: usize) -> Bytes {
    (0..len).map(|at| (at * 31 + at / BLOCK + seed) as u8).collect()
}

/// Writes and reads objects of several sizes, many at a time.
fn write_and_read(session: &mut Session, count: usize) {
    let cluster = session.cluster();
    let work = async move {
        for number in 0..count {
            let name = format!("object{}", number % 17);
            let len = [BLOCK, 5, 100_000, 3 * BLOCK][number % 4];
            let data = bytes(number, len);
            let written = data.clone();
            operate(&cluster, &name, move |ops| {
                ops.write_full(written);
            })
            .await?;
            let reply = operate(&cluster, &name, |ops| {
                ops.read(0, 0).stat();
            })
            .await?;
            assert_eq!(reply.ops[0].data, data, "{name} in round {number}");
            assert_eq!(reply.ops[1].data[..8], (len as u64).to_le_bytes());
        }
        let missing = operate(&cluster, "missing", |ops| {
            ops.read(0, 10);
        });
        assert_eq!(missing.await, Err(Errno::ENOENT));
        Ok::<_, Errno>(())
    };
    session.run(work, |_| {}).expect("the client lives").expect("no error");
}

#[test]
fn objects_are_written_and_read() {
    let one_core = start(|_| {});
    let mut session = one_core.connect(&[]);
    write_and_read(&mut session, 100);
    session.close();
    let two_cores = start(|options| {
        options.cores = 2;
        options.method = Method::None;
    });
    let mut session = two_cores.connect(&[]);
    write_and_read(&mut session, 100);
    session.close();
    let secure = start(|_| {});
    let mut session = secure.connect(&["--ms_client_mode=secure"]);
    write_and_read(&mut session, 20);
    session.close();
}

/// The client's results are right whatever goes wrong; so few rounds take little time.
fn survives(rounds: usize, fill: impl FnOnce(&mut Faults)) {
    let running = start(|options| fill(&mut options.faults));
    let mut session = running.connect(&[]);
    write_and_read(&mut session, rounds);
    session.close();
}

#[test]
fn connections_that_break_cost_nothing_but_time() {
    // More than the largest answer, which would never come otherwise.
    survives(60, |faults| faults.drop_every_bytes = Some(300_000));
    survives(40, |faults| faults.truncate_every = Some(9));
    survives(40, |faults| faults.wrong_crc_every = Some(9));
}

#[test]
fn late_and_repeated_answers_are_understood() {
    survives(60, |faults| faults.duplicate_replies = true);
    survives(20, |faults| faults.slow_osds = vec![(0, 30), (1, 1)]);
}

#[test]
fn a_client_that_nobody_tells_finds_the_new_primaries() {
    let running = start(|options| options.faults.stale_maps = true);
    let mut session = running.connect(&[]);
    let first = session.map().expect("there is a map").epoch;
    // Two changes, and a client that works meanwhile.
    for _ in 0..25 {
        write_and_read(&mut session, 10);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(session.map().expect("there is a map").epoch >= first + 2);
    session.close();
}

/// Carries out one request on an image.
fn request(
    session: &mut Session,
    image: &mut Image,
    op: Op,
    at: u64,
    data: Bytes,
    len: u32,
) -> Bytes {
    let mut new = Some(Request {
        id: RequestId(1),
        op,
        offset_bytes: at,
        len_bytes: len,
        flags: RequestFlags::default(),
        data,
        destination: ReadDestination::default(),
        queue: QueueId::default(),
        stamps: Stamps::default(),
    });
    let mut completions: Vec<Completion> = Vec::new();
    let step = |image: &mut Image, now: Nanos| {
        if let Some(new) = new.take() {
            image.submit(new, now);
        }
        image.poll(now, &mut completions);
        completions.pop()
    };
    let done = session.drive(image, step, |_| {}).expect("the client lives");
    let Payload::Data(pieces) = done.result.expect("no error") else { return Bytes::new() };
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(&data),
            Piece::Zeroes(len) => bytes.resize(bytes.len() + len as usize, 0),
        }
    }
    bytes.into()
}

fn wait_for(session: &mut Session, image: &mut Image, wanted: &Phase) {
    let is_there = |image: &mut Image, _: Nanos| match image.phase() {
        Phase::Failed(error) => panic!("{error}"),
        phase => (phase == *wanted).then_some(()),
    };
    session.drive(image, is_there, |_| {}).expect("the client lives");
}

#[test]
fn an_image_is_there_from_the_start() {
    let running = start(|options| {
        options.images.push(ImageOption {
            pool: "images".to_owned(),
            name: "disk".to_owned(),
            size_bytes: 16 << 20,
        });
    });
    let mut session = running.connect(&[]);
    let spec = ImageSpec {
        pool: "images".to_owned(),
        namespace: String::new(),
        image: "disk".to_owned(),
        snapshot: None,
        read_only: false,
        exclusive: false,
        ..ImageSpec::default()
    };
    for round in 0..2 {
        let mut image = Image::open(session.cluster(), spec.clone());
        wait_for(&mut session, &mut image, &Phase::Open);
        assert_eq!(image.info().size_bytes, 16 << 20);
        let zeros = request(&mut session, &mut image, Op::Read, 9 << 20, Bytes::new(), 100);
        assert_eq!(zeros, vec![0; 100]);
        let data = bytes(3, 9 * BLOCK);
        // Across two objects.
        let at = (4 << 20) - 5_000;
        if round == 0 {
            let len = data.len() as u32;
            request(&mut session, &mut image, Op::Write, at, data.clone(), len);
        }
        let len = data.len() as u32;
        let back = request(&mut session, &mut image, Op::Read, at, Bytes::new(), len);
        assert_eq!(back, data, "in round {round}");
        image.close();
        wait_for(&mut session, &mut image, &Phase::Closed);
    }
    session.close();
}

#[test]
fn a_wrong_key_is_refused() {
    let running = start(|_| {});
    let conf = running.cluster.conf().to_str().expect("a text").to_owned();
    let key = "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==".to_owned();
    let words = ["--conf".to_owned(), conf, format!("--key={key}")];
    let refused =
        CephSettings::read(&words).and_then(|settings| Session::connect(&settings).map(drop));
    assert!(refused.is_err());
}

#[test]
fn a_notification_goes_from_one_client_to_another() {
    // OSDs of both cores.
    let running = start(|options| options.cores = 2);
    let mut watcher = running.connect(&[]);
    let cluster = watcher.cluster();
    let watch = watcher.run(
        async move {
            operate(&cluster, "watched", |ops| {
                ops.create(false);
            })
            .await?;
            let pools = cluster.pools().await?;
            let object = ObjectName::new(pools[0].id, "", "watched");
            let watch = cluster.watch(object.clone()).await?;
            Ok::<_, Errno>((watch, object))
        },
        |_| {},
    );
    let (watch, object) = watch.expect("the client lives").expect("no error");
    let conf = running.cluster.conf().to_owned();
    let thread = std::thread::spawn(move || {
        let mut notifier = connect(&conf, &[]);
        let cluster = notifier.cluster();
        let work = async move { cluster.notify(object, Bytes::from_static(b"news"), 10_000).await };
        let reply = notifier.run(work, |_| {}).expect("the client lives").expect("no error");
        reply.acknowledged
    });
    let heard = watcher.run(
        async move {
            let event = watch.next().await;
            if let WatchEvent::Notified { notify_id, .. } = event {
                watch.acknowledge(notify_id, Bytes::from_static(b"heard"));
            }
            // The acknowledgement is on its way when the watch has ended.
            watch.end().await.map(|()| event)
        },
        |_| {},
    );
    let heard = heard.expect("the client lives").expect("no error");
    assert!(matches!(&heard, WatchEvent::Notified { payload, .. } if &payload[..] == b"news"));
    let answers = thread.join().expect("no panic");
    assert_eq!(answers.len(), 1);
    assert_eq!(&answers[0].1[..], b"heard");
}
