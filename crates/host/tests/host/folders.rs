//! A folder that hangs stops its own node and no other.

use std::time::{Duration, Instant};

use fieldstone_host::{Attempt, LocalNodeConfig, OpeningState};

use crate::common::{Hang, down, opening, start, wait_until};

fn is_down(opening: fieldstone_host::Opening) -> LocalNodeConfig {
    LocalNodeConfig { opening, folder: Err("of the test".to_owned()), late: None }
}

/// Both nodes are on one core and are down. The folder of the first node hangs when it is opened
/// again. The second node still comes up.
#[test]
fn a_folder_that_hangs_delays_no_other_node() {
    let pool = tempfile::tempdir().expect("temp");
    let (registry, go_on) = Hang::registry();
    let nodes = vec![
        is_down(opening(pool.path(), 0, Some(registry))),
        is_down(opening(pool.path(), 1, None)),
    ];
    let host = start(nodes);
    wait_until("the second node is up", || down(&host, 1).is_none());
    assert_eq!(down(&host, 0).as_deref(), Some("of the test"));
    go_on.send(()).expect("the opening waits");
    wait_until("the first node is up", || down(&host, 0).is_none());
    host.stop().expect("no core failed");
}

/// A node waits for an opening that began before the host started. A second opening next to it
/// would find the folder in use by this process.
#[test]
fn a_late_opening_brings_its_node_up() {
    let pool = tempfile::tempdir().expect("temp");
    let (registry, go_on) = Hang::registry();
    let opening = opening(pool.path(), 0, Some(registry));
    let soon = || Instant::now() + Duration::from_millis(50);
    let mut attempt = Attempt::start(opening.clone()).expect("threads");
    let locked = attempt.lock(Instant::now() + Duration::from_secs(20));
    assert!(matches!(locked, OpeningState::Locked), "{locked:?}");
    assert!(attempt.finish(soon()).is_none());
    let config = LocalNodeConfig { late: Some(attempt), ..is_down(opening) };
    let host = start(vec![config]);
    // This is longer than the pause between two looks at a folder.
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(down(&host, 0).as_deref(), Some("of the test"));
    go_on.send(()).expect("the opening waits");
    wait_until("the node is up", || down(&host, 0).is_none());
    host.stop().expect("no core failed");
}
