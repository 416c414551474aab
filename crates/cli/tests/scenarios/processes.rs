//! Nodes as separate processes: they crash, come back and are replaced; a second writer is refused
//! or takes over.

use crate::common::{Model, Process, TestPool, fails, json, ok, wait_until};

const BLOCKS: usize = (64 << 20) / crate::common::BLOCK;

/// Starts the process of a node. Nodes with an odd index listen on TCP.
fn start_node(pool: &TestPool, index: usize) -> Process {
    let folder = pool.node(index);
    let listen = match index % 2 {
        0 => pool.socket(&format!("n{index}.sock")),
        _ => "tcp:127.0.0.1:0".to_owned(),
    };
    Process::start(&["node", folder.to_str().expect("UTF-8"), "--listen", &listen])
}

fn start_nodes(pool: &TestPool) -> Vec<Option<Process>> {
    (0..6).map(|index| Some(start_node(pool, index))).collect()
}

fn wait_healthy(pool: &TestPool) {
    wait_until("healthy", || {
        let status = pool.status();
        let nodes = status["nodes"].as_array().expect("a list").clone();
        nodes.iter().all(|node| node["state"] == "up")
            && status["shards_missing"] == 0
            && status["rebuild"]["running"] == false
    });
}

#[test]
fn node_processes_die_come_back_and_are_replaced_under_a_server() {
    let pool = TestPool::new("rs:4+2");
    let mut nodes = start_nodes(&pool);
    ok(&["volume", "create", &pool.volume("v"), "--size", "64M"]);
    let server = pool.serve();
    let mut disk = pool.connect();
    let mut model = Model::new(BLOCKS, 31);
    model.write(&mut disk, 200);

    // A node crashes and comes back with its data.
    nodes[2].take().expect("it runs").kill();
    model.write(&mut disk, 100);
    model.check(&mut disk);
    nodes[2] = Some(start_node(&pool, 2));
    wait_healthy(&pool);

    // Two nodes are lost with their folders, then replaced.
    for lost in [0, 3] {
        nodes[lost].take().expect("it runs").kill();
        std::fs::remove_dir_all(pool.node(lost)).expect("removable");
    }
    model.check(&mut disk);
    model.write(&mut disk, 100);
    let folder = pool.node(0);
    let error =
        fails(&["node", folder.to_str().expect("UTF-8"), "--listen", &pool.socket("n.sock")]);
    assert!(error.contains("pool replace") && !folder.exists(), "{error}");
    ok(&["pool", "replace", &pool.dir(), "node.0", "node.3"]);
    for lost in [0, 3] {
        nodes[lost] = Some(start_node(&pool, lost));
    }
    wait_healthy(&pool);
    model.check(&mut disk);
    disk.flush().expect("flushed");

    // Without two of the old nodes, reads need the data on the new ones.
    for lost in [1, 5] {
        nodes[lost].take().expect("it runs").kill();
    }
    model.check(&mut disk);
    server.stop();
}

#[test]
fn a_server_reaches_nodes_at_given_addresses() {
    let pool = TestPool::with_volume("copies:3");
    let address = pool.socket("n4.sock");
    let folder = pool.node(4);
    let node = Process::start(&["node", folder.to_str().expect("UTF-8"), "--listen", &address]);
    let given = format!("4={address}");
    let nbd = pool.socket("v.sock");
    let server = Process::start(&["serve", &pool.volume("v"), "--nbd", &nbd, "--node", &given]);
    let report = json(&["status", &pool.dir(), "--json"]);
    assert_eq!(report["nodes"][4]["place"], address.as_str());
    assert_eq!(report["nodes"][4]["state"], "up");
    let mut model = Model::new(BLOCKS, 37);
    let mut disk = pool.connect();
    model.write(&mut disk, 100);
    model.check(&mut disk);
    server.stop();
    assert_eq!(node.stop(), "");
    let error = fails(&["serve", &pool.volume("v"), "--nbd", &nbd, "--node", "6=unix:/x"]);
    assert!(error.contains("no node.6"), "{error}");
}

#[test]
fn a_second_writer_is_refused_and_a_takeover_fences_the_first() {
    let pool = TestPool::new("rs:4+2");
    let _nodes = start_nodes(&pool);
    ok(&["volume", "create", &pool.volume("v"), "--size", "64M"]);
    let mut first = pool.serve();
    let mut disk = pool.connect();
    let mut model = Model::new(BLOCKS, 41);
    model.write(&mut disk, 50);
    let second = pool.socket("second.sock");
    let error = fails(&["serve", &pool.volume("v"), "--nbd", &second]);
    assert!(error.contains("in use by another writer"), "{error}");
    model.write(&mut disk, 50);
    disk.flush().expect("flushed");

    let args = ["serve", &pool.volume("v"), "--nbd", &second, "--takeover"];
    let taken = Process::start(&args);
    let mut other = crate::common::connect(&second, "v");
    model.check(&mut other);
    model.write(&mut other, 50);
    // The first writer can no longer write. It reports that and ends.
    disk.client().write(0, bytes::Bytes::from_static(&[9; 4096]), 0);
    let refused = disk.next_reply().map(|reply| crate::common::done(reply, "write", 0));
    assert!(!matches!(refused, Ok(Ok(_))), "a fenced writer wrote");
    assert_eq!(first.wait_end().code(), Some(1));
    assert!(first.said().contains("took the volume over"), "{}", first.said());
    model.check(&mut other);
    taken.stop();
}

#[test]
fn the_quickstart_shows_everything_and_leaves_nothing() {
    let temp = tempfile::tempdir().expect("a temporary folder");
    let folder = temp.path().join("q");
    let text = ok(&["quickstart", "--size", "16M", "--dir", folder.to_str().expect("UTF-8")]);
    for part in ["killed with SIGKILL", "rebuild", "every byte as written; healthy", "p99", "next"]
    {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(!folder.exists(), "it cleaned up");
}
