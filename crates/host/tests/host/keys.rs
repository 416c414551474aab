//! New secrets of a pool reach the nodes of a process that runs, and those that come back later.

use std::time::{Duration, Instant};

use fieldstone_host::{Host, LocalNodeConfig, LocalNodeId, NodePlace, NodeSession, SessionError};
use fieldstone_proto::{
    Capability, CapabilityError, Epoch, KeyGeneration, MasterKey, NodeError, NodeIndex, PoolKeys,
    RequestBody, Rights, VolumeId,
};

use crate::common::{TIMEOUT, opening, start};

const CALL: Duration = Duration::from_secs(10);

/// What the node answers to a capability that the secret of this generation signs.
fn ask(host: &Host, keys: &PoolKeys, generation: u16) -> Result<(), SessionError> {
    let place = NodePlace::Here(LocalNodeId { number: 0, index: NodeIndex(0) });
    let mut session = NodeSession::connect(host.handle(), NodeIndex(0), &place, CALL)?;
    let (volume, epoch) = (VolumeId(0), Epoch(0));
    let key = keys.derive_for(KeyGeneration(generation), volume, epoch).expect("it has the secret");
    let capability = Capability::issue(&key, volume, epoch, Rights::ALL, u64::MAX);
    session.ask(capability, &RequestBody::Stat).map(|_| ())
}

fn is_refused(answer: &Result<(), SessionError>, why: CapabilityError) -> bool {
    let expected = NodeError::Capability(why);
    matches!(answer, Err(SessionError::Refused { source, .. }) if *source == expected)
}

#[test]
fn a_node_takes_new_secrets_while_it_runs_and_after_it_was_away() {
    let pool = tempfile::tempdir().expect("temp");
    let opening = opening(pool.path(), 0, None);
    let shared = opening.keys.clone();
    let (path, away) = (opening.path.clone(), pool.path().join("away"));
    let folder = opening.run().map_err(|error| error.to_string());
    let host = start(vec![LocalNodeConfig { opening, folder, late: None }]);
    let settled = shared.get();
    let staged = settled.stage(MasterKey([4; 16])).expect("settled");
    let issuing = staged.issue().expect("staged");

    ask(&host, &staged, 0).expect("the first secret");
    assert!(is_refused(&ask(&host, &staged, 1), CapabilityError::UnknownGeneration));
    assert_eq!(shared.advance(staged), Ok(true));
    assert!(host.handle().keys_changed(), "no core hangs");
    ask(&host, &staged, 0).expect("the old secret");
    ask(&host, &staged, 1).expect("the new secret");

    // The node's disk is away while the old secret is retired.
    std::fs::rename(&path, &away).expect("renamed");
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < TIMEOUT, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let is_down = || matches!(ask(&host, &staged, 1), Err(SessionError::Unreachable { .. }));
    until("the node goes down", &is_down);
    let retired = issuing.retire().expect("issuing");
    assert_eq!(shared.advance(retired), Ok(true));
    assert!(host.handle().keys_changed(), "no core hangs");
    std::fs::rename(&away, &path).expect("renamed");
    until("the node comes back", &|| ask(&host, &retired, 1).is_ok());
    assert!(is_refused(&ask(&host, &settled, 0), CapabilityError::Retired));
    host.stop().expect("no core failed");
}
