//! Status, jobs and changes of volumes: through a running server, and of a pool without a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use crate::common::{Model, Process, TestPool, fails, json, ok};

#[test]
fn the_full_cycle_through_the_control_socket() {
    let pool = TestPool::with_volume("rs:4+2");
    let dir = pool.dir();
    let address = pool.socket("v.sock");
    let args = ["serve", &pool.volume("v"), "--nbd", &address, "--metrics", "127.0.0.1:0"];
    let mut server = Process::start(&args);
    let mut model = Model::new((64 << 20) / crate::common::BLOCK, 5);
    let mut disk = pool.connect();
    model.write(&mut disk, 100);
    disk.flush().expect("flushed");

    let report = json(&["status", &dir, "--json"]);
    assert_eq!(report["server"]["pid"], server.pid());
    assert_eq!(report["server"]["listen"][0], address.as_str());
    assert_eq!(report["nodes"].as_array().map(Vec::len), Some(6));
    let volume = &report["volumes"][0];
    assert_eq!(volume["phase"], "serving");
    let requests = volume["io"]["requests"].as_array().expect("a list");
    let writes = requests.iter().find(|op| op["op"] == "write").expect("writes are counted");
    assert_eq!(writes["count"], 100);
    let stages = volume["io"]["stages"].as_array().expect("a list");
    assert!(stages.iter().any(|stage| stage["op"] == "write" && stage["stage"] == "total"));
    let text = ok(&["status", &dir]);
    assert!(text.contains("served by process") && text.contains("volume v"), "{text}");
    let top = ok(&["top", &dir, "--count", "2", "--interval", "0.1"]);
    assert!(top.contains("nodes 6: all up"), "{top}");

    ok(&["volume", "create", &pool.volume("w"), "--size", "16M", "--code", "copies:2"]);
    let list = ok(&["volume", "ls", &dir, "--json"]);
    let lines: Vec<serde_json::Value> =
        list.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["name"], &lines[0]["served"]), (&"v".into(), &true.into()));
    assert_eq!((&lines[1]["name"], &lines[1]["served"]), (&"w".into(), &false.into()));
    let error = fails(&["volume", "rm", &pool.volume("v")]);
    assert!(error.contains("being served"), "{error}");

    // The server does not serve `w`: commands on the pool say so, commands on `v` do not.
    assert_eq!(json(&["status", &dir, "--json"])["not_served"], serde_json::json!(["w"]));
    assert!(json(&["status", &pool.volume("v"), "--json"]).get("not_served").is_none());
    let words = format!("not served by process {}, not checked: w; ", server.pid());
    for job in ["scrub", "rebuild"] {
        let done = json(&[job, &dir, "--json"]);
        assert_eq!((&done["volume"], &done["not_served"]), (&"v".into(), &vec!["w"].into()));
        assert_eq!(json(&[job, &pool.volume("v"), "--json"])["not_served"], serde_json::json!([]));
        for args in [&[job, &dir][..], &[job, &dir, "--detach"], &["status", &dir]] {
            let text = ok(args);
            assert!(text.contains(&words), "{args:?}: {text}");
        }
        let text = ok(&[job, &pool.volume("v")]);
        assert!(!text.contains("not served"), "{text}");
    }
    ok(&["volume", "rm", &pool.volume("w")]);
    assert_eq!(json(&["status", &dir, "--json"])["not_served"], serde_json::json!([]));

    ok(&["volume", "grow", &pool.volume("v"), "--size", "80M"]);
    let mut grown = pool.connect();
    assert_eq!(grown.size_bytes(), 80 << 20);
    let last = (80 << 20) - 4096;
    grown.client().write(last, bytes::Bytes::from_static(&[7; 4096]), 0);
    crate::common::done(grown.next_reply().expect("answered"), "write", last)
        .expect("it is larger");

    let scrub = json(&["scrub", &pool.volume("v"), "--json"]);
    assert_eq!((&scrub["running"], &scrub["damaged"]), (&false.into(), &0.into()));
    let rebuild = json(&["rebuild", &dir, "--limit", "50M", "--json"]);
    assert_eq!((&rebuild["running"], &rebuild["shards_failed"]), (&false.into(), &0.into()));

    let line = server.next_line();
    let url = line.trim().strip_prefix("metrics on http://").expect("the second line");
    let metrics = scrape(url.strip_suffix("/metrics").expect("a path"));
    assert!(metrics.contains("fieldstone_volume_size_bytes{volume=\"v\"} 83886080"), "{metrics}");
    assert!(metrics.contains("fieldstone_node_up{node=\"5\"} 1"), "{metrics}");

    let mut control = UnixStream::connect(pool.path().join("control.sock")).expect("it listens");
    control.write_all(b"{\"op\":\"stop\"}\n").expect("written");
    let mut answer = String::new();
    BufReader::new(&control).read_line(&mut answer).expect("answered");
    assert!(answer.contains("done"), "{answer}");
    server.expect_end();
    assert!(!pool.path().join("control.sock").exists());

    // Without a server, the commands give the same answers.
    let report = json(&["status", &dir, "--json"]);
    assert!(report.get("server").is_none());
    assert_eq!(report["not_served"], serde_json::json!([]));
    assert_eq!(report["volumes"][0]["size_bytes"], 80 << 20);
    ok(&["volume", "grow", &pool.volume("v"), "--size", "96M"]);
    let server = pool.serve();
    let mut disk = pool.connect();
    assert_eq!(disk.size_bytes(), 96 << 20);
    model.check(&mut disk);
    server.stop();
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    text
}
