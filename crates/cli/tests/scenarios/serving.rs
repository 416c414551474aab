//! A volume from creation to reopening: acknowledged data is there after every event.

use std::io::Write;
use std::process::Stdio;

use crate::common::{Model, NbdDisk, Process, TestPool, connect, fails, json, ok, wait_until};

const BLOCKS: usize = (64 << 20) / crate::common::BLOCK;

#[test]
fn what_was_flushed_survives_kill_nine() {
    for code in ["rs:4+2", "copies:3"] {
        let pool = TestPool::with_volume(code);
        let mut model = Model::new(BLOCKS, 7);
        for _ in 0..3 {
            let server = pool.serve();
            let mut disk = pool.connect();
            model.check(&mut disk);
            model.write(&mut disk, 150);
            disk.flush().expect("flushed");
            server.kill();
        }
        let server = pool.serve();
        model.check(&mut pool.connect());
        assert_eq!(server.stop(), "");
        let status = pool.status();
        assert_eq!(status["protection"], "healthy", "{status}");
    }
}

#[test]
fn lost_nodes_are_replaced_by_a_command_and_rebuilt() {
    let pool = TestPool::with_volume("rs:4+2");
    let mut model = Model::new(BLOCKS, 9);
    let server = pool.serve();
    let mut disk = pool.connect();
    model.write(&mut disk, 300);
    disk.flush().expect("flushed");
    server.kill();
    for lost in [0, 3] {
        std::fs::remove_dir_all(pool.node(lost)).expect("removable");
    }
    let made = json(&["pool", "replace", &pool.dir(), "node.0", "3", "--json"]);
    assert_eq!((&made["nodes"][0]["node"], &made["nodes"][1]["node"]), (&0.into(), &3.into()));
    let server = pool.serve();
    model.check(&mut pool.connect());
    wait_until("rebuilt", || {
        let status = pool.status();
        status["shards_missing"] == 0 && status["rebuild"]["running"] == false
    });
    model.check(&mut pool.connect());
    assert_eq!(server.stop(), "");
    // With two other nodes lost, reads need the rebuilt shards.
    for lost in [1, 4] {
        std::fs::remove_dir_all(pool.node(lost)).expect("removable");
    }
    let server = pool.serve();
    model.check(&mut pool.connect());
    let said = server.stop();
    assert!(said.contains("node.1 is down") && said.contains("pool replace"), "{said}");
    assert!(!pool.node(1).exists() && !pool.node(4).exists(), "the server made a node");
}

#[test]
fn a_folder_lost_while_serving_is_noticed_and_rebuilt() {
    let pool = TestPool::with_volume("rs:4+2");
    let mut model = Model::new(BLOCKS, 11);
    let server = pool.serve();
    let mut disk = pool.connect();
    model.write(&mut disk, 300);
    disk.flush().expect("flushed");
    std::fs::remove_dir_all(pool.node(2)).expect("removable");
    wait_until("noticed", || server.said().contains("node.2"));
    model.check(&mut disk);
    assert!(!pool.node(2).exists(), "the server made a node");
    ok(&["pool", "replace", &pool.dir(), "node.2"]);
    wait_until("rebuilt", || {
        let status = pool.status();
        let nodes = status["nodes"].as_array().expect("a list").clone();
        nodes.iter().all(|node| node["state"] == "up")
            && status["shards_missing"] == 0
            && status["rebuild"]["running"] == false
    });
    model.check(&mut disk);
    server.stop();
}

#[test]
fn commands_and_servers_wait_for_each_other() {
    let pool = TestPool::with_volume("rs:4+2");
    for _ in 0..3 {
        let looking = std::thread::scope(|scope| {
            let looking = scope.spawn(|| ok(&["status", &pool.dir()]));
            let server = pool.serve();
            let shown = looking.join().expect("status ends well");
            server.stop();
            shown
        });
        assert!(looking.contains("volume v"), "{looking}");
    }
}

#[test]
fn a_volume_that_does_not_open_keeps_no_other_from_being_served() {
    let pool = TestPool::with_volume("rs:4+2");
    ok(&["volume", "create", &pool.volume("w"), "--size", "4M", "--code", "copies:6"]);
    let aside = |lost: usize| pool.temp.path().join(format!("aside.{lost}"));
    for lost in [0, 2, 4] {
        std::fs::rename(pool.node(lost), aside(lost)).expect("movable");
    }
    let nbd = pool.socket("v.sock");
    let args = ["serve", &pool.volume("v"), &pool.volume("w"), "--nbd", &nbd];
    let mut server = Process::start(&args);
    assert!(server.line.starts_with("serving w "), "{}", server.line);
    Model::new(64, 1).check(&mut crate::common::connect(&nbd, "w"));
    let waiting = pool.status();
    assert_ne!(waiting["phase"], "serving", "{waiting}");
    assert!(waiting.to_string().contains("nothing lies at"), "{waiting}");
    let error = fails(&["volume", "rm", &pool.volume("v")]);
    assert!(error.contains("opening") || error.contains("could not be opened"), "{error}");
    for lost in [0, 2, 4] {
        std::fs::rename(aside(lost), pool.node(lost)).expect("movable");
    }
    assert!(server.next_line().starts_with("serving v "));
    Model::new(64, 1).check(&mut crate::common::connect(&nbd, ""));
    server.stop();
}

#[test]
fn more_lost_nodes_than_the_code_survives_is_an_error_that_says_so() {
    let pool = TestPool::with_volume("rs:4+2");
    let server = pool.serve();
    let mut disk = pool.connect();
    Model::new(BLOCKS, 13).write(&mut disk, 200);
    disk.flush().expect("flushed");
    server.stop();
    for lost in [0, 2, 4] {
        let aside = pool.temp.path().join(format!("aside.{lost}"));
        std::fs::rename(pool.node(lost), aside).expect("movable");
    }
    let error = fails(&["serve", &pool.volume("v"), "--nbd", &pool.socket("v.sock")]);
    assert!(error.contains("node.0") && error.contains("cannot open v"), "{error}");
    // The failed opening changed nothing: with the nodes back, the volume is served.
    for lost in [0, 2, 4] {
        let aside = pool.temp.path().join(format!("aside.{lost}"));
        std::fs::rename(aside, pool.node(lost)).expect("movable");
    }
    let mut same = Model::new(BLOCKS, 13);
    let server = pool.serve();
    let mut disk = pool.connect();
    // The same seed writes the same blocks again, so the model expects the data that is there
    // already.
    same.write(&mut disk, 200);
    same.check(&mut disk);
    server.stop();
}

#[test]
fn scrub_finds_and_repairs_a_flipped_byte() {
    let pool = TestPool::with_volume("rs:4+2");
    let mut model = Model::new(BLOCKS, 17);
    let server = pool.serve();
    let mut disk = pool.connect();
    model.write(&mut disk, 600);
    disk.flush().expect("flushed");
    server.stop();
    let before = json(&["scrub", &pool.volume("v"), "--json"]);
    assert!(before["shards_total"].as_u64() > Some(0) && before["damaged"] == 0, "{before}");
    // Flip a byte of a shard that is in use. The data file is sparse, so search for such a byte.
    let data = pool.node(1).join("data");
    let bytes = std::fs::read(&data).expect("readable");
    let used = bytes.iter().position(|byte| *byte != 0).expect("the node holds shards");
    crate::common::flip(&data, used);
    let found = json(&["scrub", &pool.volume("v"), "--json"]);
    assert_eq!(found["damaged"], 1, "{found}");
    let after = json(&["scrub", &pool.volume("v"), "--json"]);
    assert_eq!((&after["damaged"], &after["shards_missing"]), (&0.into(), &0.into()), "{after}");
    let server = pool.serve();
    model.check(&mut pool.connect());
    server.stop();
}

#[test]
fn memory_is_served_too_and_read_only_means_it() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let address = format!("unix:{}", temp.path().join("r.sock").display());
    let server =
        crate::common::Process::start(&["serve", "ram:8M", "--nbd", &address, "--cores", "2"]);
    let mut disk = crate::common::connect(&address, "ram");
    let mut model = Model::new((8 << 20) / crate::common::BLOCK, 3);
    model.write(&mut disk, 100);
    // The next connection goes to the other core.
    model.check(&mut crate::common::connect(&address, ""));
    model.check(&mut crate::common::connect(&address, "ram"));
    server.stop();
    let server =
        crate::common::Process::start(&["serve", "ram:8M", "--nbd", &address, "--read-only"]);
    let mut disk = crate::common::connect(&address, "ram");
    disk.client().write(0, bytes::Bytes::from_static(&[1; 4096]), 0);
    let refused = crate::common::done(disk.next_reply().expect("answered"), "write", 0);
    assert!(refused.expect_err("read-only").to_string().contains("Perm"));
    server.stop();
    assert!(!temp.path().join("r.sock").exists(), "the socket's name went with the server");
}

#[test]
fn several_volumes_over_several_cores() {
    let pool = TestPool::with_volume("rs:4+2");
    ok(&["volume", "create", &pool.volume("w"), "--size", "16M", "--code", "copies:3"]);
    let address = pool.socket("v.sock");
    let (v, w) = (pool.volume("v"), pool.volume("w"));
    let args = ["serve", &v, &w, "--nbd", &address, "--nbd", "tcp:127.0.0.1:0", "--cores", "3"];
    // The server serves each volume as soon as it is open, and prints a line then.
    let mut server = crate::common::Process::start(&args);
    server.next_line();
    let tcp = server.line.split_whitespace().last().expect("an address").to_owned();
    assert!(tcp.starts_with("tcp:127.0.0.1:"), "{}", server.line);
    let (mut first, mut second) = (Model::new(BLOCKS, 19), Model::new(4096, 23));
    first.write(&mut crate::common::connect(&address, "v"), 100);
    second.write(&mut crate::common::connect(&tcp, "w"), 100);
    first.check(&mut crate::common::connect(&tcp, "v"));
    second.check(&mut crate::common::connect(&address, "w"));
    server.stop();
    let mut server =
        crate::common::Process::start(&["serve", &v, &w, "--nbd", &address, "--direct"]);
    server.next_line();
    first.check(&mut crate::common::connect(&address, "v"));
    second.check(&mut crate::common::connect(&address, "w"));
    first.write(&mut crate::common::connect(&address, "v"), 50);
    first.check(&mut crate::common::connect(&address, "v"));
    server.stop();
}

#[test]
fn a_stderr_that_is_full_or_not_read_stops_no_server() {
    const PIPE_BYTES: usize = 64 << 10;
    let pool = TestPool::with_volume("rs:4+2");
    // With a node missing, the server writes messages and log lines.
    std::fs::remove_dir_all(pool.node(5)).expect("removable");
    let full_disk = std::fs::File::create("/dev/full").expect("every Linux has it");
    let (_not_read, mut pipe) = std::io::pipe().expect("a pipe");
    pipe.write_all(&[b'x'; PIPE_BYTES]).expect("as much as a pipe holds");
    for (name, stderr) in [("full", Stdio::from(full_disk)), ("pipe", Stdio::from(pipe))] {
        let socket = pool.socket(&format!("{name}.sock"));
        let server =
            Process::begin(&["-vvv", "serve", &pool.volume("v"), "--nbd", &socket], Some(stderr));
        let address = socket.parse().expect("an address");
        wait_until("served", || NbdDisk::connect(&address, "v").is_ok());
        let mut disk = connect(&socket, "v");
        Model::new(BLOCKS, 7).write(&mut disk, 100);
        drop(disk);
        server.stop();
    }
}
