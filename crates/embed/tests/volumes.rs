//! Opens volumes of pools in the test's own process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fieldstone_embed::{Device, OpenError, Options};
use fieldstone_server::control::{Request, Response, find_server};
use fieldstone_server::pool::{self, Sizes};
use fieldstone_server::running::RunningPool;
use fieldstone_server::runtime::RuntimeOptions;
use tempfile::TempDir;

const SIZE_BYTES: u64 = 16 << 20;

/// A pool with two volumes, `v` and `w`.
fn pool(folder: &TempDir, name: &str) -> PathBuf {
    let path = folder.path().join(name);
    let sizes = Sizes { node_bytes: Some(64 << 20), overcommit: true };
    let profile = "rs:2+1".parse().expect("a profile");
    let ways = (pool::Strategy::Flat, pool::Encode::Client);
    let pool = pool::create(&path, 3, profile, ways, sizes).expect("created");
    let running = RunningPool::with_pool(pool, &RuntimeOptions::offline(&[])).expect("it runs");
    for volume in ["v", "w"] {
        running.create_volume(volume, SIZE_BYTES, None, false).expect("created");
    }
    running.finish().expect("closed");
    path
}

fn target(pool: &Path, volume: &str) -> String {
    pool.join(volume).display().to_string()
}

fn read(device: &Device, offset_bytes: u64) -> [u8; 5] {
    let mut bytes = [0; 5];
    device.read(offset_bytes, &mut bytes).expect("read");
    bytes
}

#[test]
fn what_is_written_to_a_volume_is_there_when_it_is_opened_again() {
    let folder = tempfile::tempdir().expect("temp");
    let pool = pool(&folder, "pool");
    let device = Device::open(&target(&pool, "v"), &Options::default()).expect("it opens");
    assert_eq!(device.size_bytes(), SIZE_BYTES);
    device.write(4093, b"stone").expect("written");
    device.write_zeroes(8192, 4096).expect("zeroed");
    device.flush().expect("stable");
    device.write(1 << 20, b"field").expect("written");
    device.close().expect("stable");
    let options = Options { read_only: true, ..Options::default() };
    let device = Device::open(&target(&pool, "v"), &options).expect("it opens again");
    assert_eq!((&read(&device, 4093), &read(&device, 1 << 20)), (b"stone", b"field"));
    assert!(device.write(0, b"x").is_err(), "it was opened to read");
}

#[test]
fn devices_that_are_opened_together_share_a_core_and_a_pool() {
    let folder = tempfile::tempdir().expect("temp");
    let (one, other) = (pool(&folder, "one"), pool(&folder, "other"));
    let targets = [target(&one, "v"), target(&one, "w"), target(&other, "v"), "ram:1M".to_owned()];
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let mut devices = Device::open_all(&targets, &Options::default()).expect("they open");
    for (device, byte) in devices.iter().zip(b'a'..) {
        device.write(4096, &[byte; 5]).expect("written");
    }
    for (device, byte) in devices.iter().zip(b'a'..) {
        assert_eq!(read(device, 4096), [byte; 5], "each is a device of its own");
    }
    devices.drain(1..);
    let mut client = find_server(&one, Some("v")).expect("it answers").expect("it is there");
    let Response::Status(report) = client.ask(&Request::Status).expect("it answers") else {
        panic!("no report");
    };
    let names: Vec<&str> = report.volumes.iter().map(|volume| &*volume.name).collect();
    assert_eq!(names, ["v"], "w is closed");
    // As long as one of them is open, this process has both pools.
    assert!(matches!(Device::open(targets[2], &Options::default()), Err(OpenError::Start(_))));
    drop(devices);
    let device = Device::open(targets[2], &Options::default()).expect("it opens again");
    assert_eq!(read(&device, 4096), [b'c'; 5]);
}

#[test]
fn commands_reach_the_pool_while_a_program_has_it() {
    let folder = tempfile::tempdir().expect("temp");
    let pool = pool(&folder, "pool");
    let device = Device::open(&target(&pool, "v"), &Options::default()).expect("it opens");
    let mut client = find_server(&pool, Some("v")).expect("it answers").expect("it is there");
    let Response::Status(report) = client.ask(&Request::Status).expect("it answers") else {
        panic!("no report");
    };
    assert_eq!((&*report.volumes[0].name, &*report.volumes[0].phase), ("v", "serving"));
    let limit = Request::VolumeLimit { name: "v".to_owned(), options: "iops=1000".to_owned() };
    assert!(matches!(client.ask(&limit), Ok(Response::Done)));
    let size_bytes = 2 * SIZE_BYTES;
    let grow = Request::VolumeGrow { name: "v".to_owned(), size_bytes, thin: true };
    assert!(matches!(client.ask(&grow).expect("it grows"), Response::Volumes { .. }));
    let start = Instant::now();
    while device.size_bytes() != size_bytes {
        assert!(start.elapsed() < Duration::from_secs(30), "the program does not hear of it");
        std::thread::sleep(Duration::from_millis(1));
    }
    device.write(size_bytes - 5, b"field").expect("it has these bytes now");
    assert_eq!(&read(&device, size_bytes - 5), b"field");
    let refused = client.ask(&Request::Stop).map(|_| ()).expect_err("only the program's user can");
    assert!(refused.to_string().contains("end that program"), "{refused}");
    device.close().expect("stable");
    assert!(find_server(&pool, None).expect("readable").is_none(), "the socket is gone");
}

#[test]
fn a_path_that_names_no_volume_is_refused() {
    let folder = tempfile::tempdir().expect("temp");
    let pool = pool(&folder, "pool");
    let refused = |target: &str| match Device::open(target, &Options::default()) {
        Err(OpenError::Target { reason, .. } | OpenError::Store { reason, .. }) => reason,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("{target} opens"),
    };
    assert!(refused(&target(&pool, "u")).contains('u'));
    assert!(refused(&pool.display().to_string()).contains("is a pool, not a volume"));
    assert!(refused("nowhere/v").contains("is not a pool"));
    let twice = target(&pool, "v");
    let refused = Device::open_all(&[&twice, &twice], &Options::default());
    assert!(matches!(refused, Err(OpenError::Target { .. })), "one writer at a time");
    Device::open(&target(&pool, "v"), &Options::default()).expect("the pool is free");
}

/// The names of the threads of this process.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

#[test]
fn closing_leaves_no_thread_behind() {
    // Other tests of this program run in other threads of the process, so this one runs alone.
    if std::env::var_os("FIELDSTONE_ALONE").is_none() {
        let program = std::env::current_exe().expect("Linux");
        let mut alone = std::process::Command::new(program);
        alone.args(["--exact", "closing_leaves_no_thread_behind"]);
        let ended = alone.env("FIELDSTONE_ALONE", "1").output().expect("it runs");
        return assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    }
    let before = threads();
    let folder = tempfile::tempdir().expect("temp");
    let pool = pool(&folder, "pool");
    for _ in 0..3 {
        let device = Device::open(&target(&pool, "v"), &Options::default()).expect("it opens");
        assert!(threads().len() > before.len());
        device.close().expect("stable");
    }
    // The system removes a thread a moment after its end.
    let began = Instant::now();
    while threads() != before && began.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(threads(), before);
}

#[test]
fn opening_waits_for_nodes_no_longer_than_the_options_say() {
    let folder = tempfile::tempdir().expect("temp");
    let pool = pool(&folder, "pool");
    let timeout = Duration::from_millis(1500);
    let options = Options { open_timeout: Some(timeout), ..Options::default() };
    // Two of three nodes are away. The pool's record tells which volumes there are.
    let away = |node: &str| pool.join(format!("{node}.away"));
    for node in ["node.1", "node.2"] {
        std::fs::rename(pool.join(node), away(node)).expect("renamed");
    }
    let began = Instant::now();
    let refused = Device::open(&target(&pool, "v"), &options).map(drop).expect_err("too few nodes");
    let OpenError::Store { reason, .. } = refused else { panic!("{refused:?}") };
    assert!(reason.contains("node.1") && reason.contains("node.2"), "{reason}");
    assert!(began.elapsed() < 10 * timeout, "{:?}", began.elapsed());
    for node in ["node.1", "node.2"] {
        std::fs::rename(away(node), pool.join(node)).expect("renamed");
    }
    let device = Device::open(&target(&pool, "v"), &options).expect("it opens in time");
    device.write(0, b"stone").expect("written");
    device.close().expect("stable");
}
