//! Refusals. The message names the thing and says what to do.

use std::os::unix::process::CommandExt;

use crate::common::{TestPool, fails, fieldstone, flip, ok, run};

#[test]
fn a_second_server_of_a_pool_is_refused_with_the_first_ones_number() {
    let pool = TestPool::with_volume("rs:4+2");
    let server = pool.serve();
    let error = fails(&["serve", &pool.volume("v"), "--nbd", &pool.socket("other.sock")]);
    assert!(error.contains(&format!("process {}", server.pid())), "{error}");
    assert!(error.contains("stop that one first"), "{error}");
    // The first server still works.
    crate::common::Model::new(64, 1).check(&mut pool.connect());
    server.stop();
}

#[test]
fn a_damaged_superblock_is_named_and_one_is_survived() {
    let pool = TestPool::with_volume("rs:4+2");
    let damaged = pool.node(2).join("superblock");
    flip(&damaged, 20);
    let server = pool.serve();
    let said = server.said();
    assert!(said.contains("node.2") && said.contains("damaged"), "{said}");
    crate::common::Model::new(64, 1).check(&mut pool.connect());
    server.stop();
    let node = pool.node(2);
    let listen = pool.socket("n.sock");
    let error = fails(&["node", node.to_str().expect("UTF-8"), "--listen", &listen]);
    assert!(error.contains("superblock") && error.contains("damaged"), "{error}");
    for also in [0, 1] {
        flip(&pool.node(also).join("superblock"), 20);
    }
    let error = fails(&["serve", &pool.volume("v"), "--nbd", &pool.socket("v.sock")]);
    assert!(error.contains("node.0") && error.contains("damaged"), "{error}");
}

#[test]
fn newer_versions_are_left_alone() {
    let pool = TestPool::with_volume("rs:4+2");
    let path = pool.node(1).join("superblock");
    let mut bytes = std::fs::read(&path).expect("readable");
    bytes[12] = 9;
    let crc = fieldstone_proto::crc32c(&bytes[12..fieldstone_proto::disk::SECTOR_BYTES]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, &bytes).expect("writable");
    let server = pool.serve();
    assert!(server.said().contains("version 9"), "{}", server.said());
    server.stop();
    assert_eq!(std::fs::read(&path).expect("readable"), bytes);
    let path = pool.path().join("pool.json");
    let text = std::fs::read_to_string(&path).expect("readable");
    std::fs::write(&path, text.replace("\"format\": 1", "\"format\": 7")).expect("writable");
    for args in [
        vec!["status", &pool.dir()],
        vec!["volume", "ls", &pool.dir()],
        vec!["serve", &pool.volume("v"), "--nbd", "unix:/nonexistent/x"],
    ] {
        let error = fails(&args);
        assert!(error.contains("newer version") || error.contains("/nonexistent/x"), "{error}");
    }
}

#[test]
fn a_node_of_another_pool_is_refused() {
    let (ours, theirs) = (TestPool::with_volume("rs:4+2"), TestPool::new("rs:4+2"));
    std::fs::remove_dir_all(ours.node(3)).expect("removable");
    std::fs::rename(theirs.node(3), ours.node(3)).expect("movable");
    let server = ours.serve();
    let said = server.said();
    assert!(said.contains("node.3") && said.contains("belongs elsewhere"), "{said}");
    server.stop();
}

#[test]
fn permission_denied_names_the_file() {
    let pool = TestPool::with_volume("rs:4+2");
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let mut command = fieldstone(&["status", &pool.dir()]);
    if root {
        // Only the owner may read the temporary folder, so run the command as another user.
        command.uid(65_534).gid(65_534);
    } else {
        use std::os::unix::fs::PermissionsExt;
        let closed = std::fs::Permissions::from_mode(0o0);
        std::fs::set_permissions(pool.path().join("pool.key"), closed).expect("ours");
    }
    match command.output() {
        // The other user may not even read the binary, so this machine cannot run the test.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
        output => {
            let output = output.expect("it starts");
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains(&pool.dir()), "{error}");
        }
    }
}

#[test]
fn an_address_in_use_is_named_before_anything_is_opened() {
    let pool = TestPool::with_volume("rs:4+2");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("tcp:{}", taken.local_addr().expect("bound"));
    let error = fails(&["serve", &pool.volume("v"), "--nbd", &address]);
    assert!(error.contains(&address) && error.contains("in use"), "{error}");
    let metrics = taken.local_addr().expect("bound").to_string();
    let nbd = pool.socket("v.sock");
    let error = fails(&["serve", &pool.volume("v"), "--nbd", &nbd, "--metrics", &metrics]);
    assert!(error.contains(&metrics), "{error}");
    let error = fails(&["serve", "ram:1M", "--nbd", &nbd, "--nbd", &nbd]);
    assert!(error.contains(&nbd) && error.contains("is given twice"), "{error}");
    let error = fails(&["serve", "ram:1M", "--nbd", &nbd, "--listen", &format!("nbd:{nbd}")]);
    assert!(error.contains(&nbd) && error.contains("is given twice"), "{error}");
    let file = pool.temp.path().join("precious");
    std::fs::write(&file, "data").expect("writable");
    let address = format!("unix:{}", file.display());
    let error = fails(&["serve", "ram:1M", "--nbd", &address]);
    assert!(error.contains("not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "data");
}

#[test]
fn wrong_names_say_what_there_is() {
    let pool = TestPool::with_volume("rs:4+2");
    let error = fails(&["serve", &pool.volume("x"), "--nbd", &pool.socket("x.sock")]);
    assert!(error.contains("there are: v"), "{error}");
    let error = fails(&["volume", "create", &pool.volume("v"), "--size", "1M"]);
    assert!(error.contains("already"), "{error}");
    let error = fails(&["volume", "create", &pool.volume("node.1"), "--size", "1M"]);
    assert!(error.contains("choose another"), "{error}");
    let error = fails(&["volume", "create", &pool.volume("y"), "--size", "1000"]);
    assert!(error.contains("multiple of 4096"), "{error}");
    let error = fails(&["volume", "create", &pool.volume("y"), "--size", "1M", "--code", "rs:6+2"]);
    assert!(error.contains("8 different nodes"), "{error}");
    let error = fails(&["volume", "rm", &pool.volume("x")]);
    assert!(error.contains("no volume \"x\""), "{error}");
    let error = fails(&["pool", "create", &pool.dir()]);
    assert!(error.contains("a pool already"), "{error}");
    let error = fails(&["status", "/nonexistent/pool"]);
    assert!(error.contains("/nonexistent"), "{error}");
    let error = fails(&["node", &format!("{}/node.6", pool.dir()), "--listen", "tcp:127.0.0.1:0"]);
    assert!(error.contains("0 to 5"), "{error}");
    let error = fails(&["top", &pool.dir()]);
    assert!(error.contains("no server"), "{error}");
    ok(&["volume", "rm", &pool.volume("v")]);
    assert!(ok(&["volume", "ls", &pool.dir()]).contains("no volumes"));
}

#[test]
fn a_command_line_without_sense_is_exit_code_two() {
    for args in [
        vec!["frobnicate"],
        vec!["serve"],
        vec!["serve", "ram:1M"],
        vec!["serve", "ram:1M", "--nbd", "carrier-pigeon:7"],
        vec!["serve", "ram:1M", "--listen", "ublk:unix:/tmp/x"],
        vec!["serve", "ram:lots", "--nbd", "unix:/tmp/x"],
        vec!["pool", "create", "/tmp/x", "--code", "rs:4"],
        vec!["sim"],
        vec!["sim", "--seeds", "5..5"],
        vec!["volume", "create", "/tmp/x/y"],
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    assert!(run(&["--help"]).status.success() && run(&["--version"]).status.success());
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let pool = TestPool::with_volume("rs:4+2");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = fieldstone(&["status", &pool.dir()]);
    let output = command.stdout(writer).output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.is_empty(), "{}: {told}", output.status);
    // A full disk is an error.
    let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
    let output = fieldstone(&["status", &pool.dir()]).stdout(full).output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.matches("cannot write to stdout").count(), 1, "{told}");
    assert_eq!(output.status.code(), Some(1));
}
