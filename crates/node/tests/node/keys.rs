//! Generations of the pool's secret: which capabilities a node accepts during and after a rotation.

use bytes::Bytes;
use fieldstone_node::PeerId;
use fieldstone_proto::{
    Capability, CapabilityError, Epoch, KeyGeneration, MasterKey, NodeError, PoolKeys, ReplyBody,
    RequestBody, Rights, VolumeId,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::world::{KEY, World, config};

const VOLUME: VolumeId = VolumeId(5);
const PEER: PeerId = PeerId(1);
const NEXT: MasterKey = MasterKey([10; 16]);

/// The keys of the pool before a rotation, and after each of its steps.
fn steps() -> [PoolKeys; 4] {
    let settled = PoolKeys::from(KEY);
    let staged = settled.stage(NEXT).expect("settled");
    let issuing = staged.issue().expect("staged");
    [settled, staged, issuing, issuing.retire().expect("issuing")]
}

/// A capability for everything, signed by the secret that signs in `keys`.
fn signed(keys: &PoolKeys, epoch: u64) -> Capability {
    let key = keys.derive(VOLUME, Epoch(epoch));
    Capability::issue(&key, VOLUME, Epoch(epoch), Rights::ALL, u64::MAX)
}

fn world() -> World {
    let mut world = World::new(config(16384, 8), ChaCha8Rng::seed_from_u64(1));
    let fence = RequestBody::Fence { takeover: false };
    let old = signed(&steps()[0], 1);
    world.call(PEER, old, fence, &Bytes::new()).expect("a new volume");
    world
}

/// What the node answers to a request that needs the right to read.
fn ask(world: &mut World, capability: Capability) -> Result<(), NodeError> {
    let listed = world.call(PEER, capability, RequestBody::Stat, &Bytes::new());
    listed.map(|body| assert!(matches!(body, ReplyBody::Stat(_))))
}

fn refused(error: CapabilityError) -> Result<(), NodeError> {
    Err(NodeError::Capability(error))
}

#[test]
fn each_step_of_a_rotation_accepts_its_generations() {
    let mut world = world();
    let [settled, staged, issuing, retired] = steps();
    let (old, new) = (signed(&settled, 1), signed(&issuing, 1));
    assert_eq!(signed(&staged, 1), old, "a staged secret does not sign");
    assert_eq!(signed(&retired, 1), new);
    let unknown = refused(CapabilityError::UnknownGeneration);
    let table = [
        (settled, Ok(()), unknown.clone()),
        (staged, Ok(()), Ok(())),
        (issuing, Ok(()), Ok(())),
        (retired, refused(CapabilityError::Retired), Ok(())),
    ];
    for (keys, of_old, of_new) in table {
        world.node.set_keys(keys);
        assert_eq!(ask(&mut world, old), of_old, "{keys:?}");
        assert_eq!(ask(&mut world, new), of_new, "{keys:?}");
        // Twice: the key of the other generation is derived, and must not replace the kept one.
        assert_eq!(ask(&mut world, old), of_old, "{keys:?}");
        let mut later = new;
        later.rights = Rights::ALL.of_generation(KeyGeneration(2));
        assert_eq!(ask(&mut world, later), unknown, "{keys:?}");
    }
    assert_eq!(world.node.stat().refused, 7, "refusals are counted");
}

/// The generation that a capability names is signed, so it cannot be changed to another one. A
/// secret signs for its own generation only.
#[test]
fn a_generation_is_no_way_around_a_signature() {
    let mut world = world();
    let [settled, staged, issuing, retired] = steps();
    let forged = refused(CapabilityError::Forged);
    for keys in [staged, issuing] {
        world.node.set_keys(keys);
        let (mut old, mut new) = (signed(&settled, 1), signed(&issuing, 1));
        old.rights = old.rights.of_generation(KeyGeneration(1));
        new.rights = new.rights.of_generation(KeyGeneration(0));
        assert_eq!(ask(&mut world, old), forged);
        assert_eq!(ask(&mut world, new), forged);
    }
    // After the retirement the old secret gives nothing, under no name.
    world.node.set_keys(retired);
    let of_old_secret = KEY.derive(VOLUME, Epoch(1));
    let mut capability = signed(&settled, 1);
    capability.rights = Rights::ALL.of_generation(KeyGeneration(1));
    assert_eq!(ask(&mut world, capability.signed(&of_old_secret)), forged);
}

/// What was stored with the old secret belongs to the volume and its epoch, not to the secret. The
/// epoch goes on, too: a fence with the new secret, and a restart of the node with the new keys.
#[test]
fn volumes_and_epochs_outlive_a_secret() {
    let mut world = world();
    let [settled, _, issuing, retired] = steps();
    world.node.set_keys(issuing);
    let fence = RequestBody::Fence { takeover: true };
    let state = world.call(PEER, signed(&issuing, 2), fence, &Bytes::new());
    assert!(
        matches!(state, Ok(ReplyBody::VolumeState(ref state)) if state.epoch_before == Epoch(1))
    );
    let stale = world.call(PEER, signed(&settled, 1), RequestBody::ShardSync, &Bytes::new());
    assert_eq!(stale, Err(NodeError::Fenced { sent: Epoch(1), current: Epoch(2) }));
    world.node.set_keys(retired);
    world.crash(false);
    world.node.set_keys(retired);
    world.start();
    let sync = world.call(PEER, signed(&retired, 2), RequestBody::ShardSync, &Bytes::new());
    assert_eq!(sync, Ok(ReplyBody::Done));
    assert_eq!(ask(&mut world, signed(&settled, 2)), refused(CapabilityError::Retired));
}
