//! Contributions in any order: twice, missing, empty, late, of an earlier attempt, after a restart,
//! and without memory for them. A parity node never tells of a sum that is not the sum of all
//! columns of one attempt.
//!
//! In a volume all attempts at a piece have the same bytes. Here each attempt has its own, so a sum
//! of two attempts, or one without a column, is none that the test knows.

use std::collections::{BTreeMap, BTreeSet};

use crate::stream::{LEN_BYTES, PARITY, SEGMENT, VOLUME, WRITER, link, route, write};
use crate::world::{NOW_NS, World, cap, config};
use bytes::Bytes;
use fieldstone_node::{NodeEvent, ParityMemory, limits};
use fieldstone_proto::{Epoch, NodeError, Outcome, Pass, ReplyBody, RequestBody, Tag};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const COLUMNS: u8 = 3;
const PIECES: u32 = 2;

/// The bytes of a column of a piece in the attempt with this pass.
fn data(piece: u32, column: u8, pass: Pass) -> Bytes {
    let seed = pass.0 << 16 | u64::from(piece) << 8 | u64::from(column);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..LEN_BYTES).map(|_| rng.random::<u8>()).collect()
}

fn sum(piece: u32, pass: Pass) -> Bytes {
    let mut sum = vec![0; LEN_BYTES];
    for column in 0..COLUMNS {
        sum.iter_mut().zip(&data(piece, column, pass)).for_each(|(sum, byte)| *sum ^= byte);
    }
    sum.into()
}

/// What the test knows.
struct Known {
    world: World,
    pass: Pass,
    /// The piece and the attempt of contributions that are not answered.
    waiting: BTreeMap<Tag, (u32, Pass)>,
    /// The columns that were sent of an attempt at a piece, since the node started.
    sent: BTreeMap<(u32, Pass), BTreeSet<u8>>,
    /// The newest attempt at each piece that the node told of.
    told: BTreeMap<u32, Pass>,
    /// Contributions to sums without memory.
    denied: usize,
}

impl Known {
    fn new(seed: u64) -> Self {
        let mut config = config(4 * LEN_BYTES as u32, 8);
        if seed % 2 == 1 {
            // The volume has memory for one sum.
            config.parity_memory = ParityMemory::new(2 * limits::PARITY_VOLUMES * LEN_BYTES);
        }
        let mut world = World::new(config, ChaCha8Rng::seed_from_u64(seed));
        let fence = RequestBody::Fence { takeover: false };
        assert!(world.call(WRITER, cap(VOLUME, Epoch(1)), fence, &Bytes::new()).is_ok());
        let (waiting, sent, told) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut known = Self { world, pass: Pass(0), waiting, sent, told, denied: 0 };
        known.admit();
        known
    }

    /// The writer announces a new pass.
    fn admit(&mut self) {
        self.pass = Pass(self.pass.0 + 1);
        let body = RequestBody::AdmitRelays { pass: self.pass };
        let tag = self.world.send(WRITER, cap(VOLUME, Epoch(1)), body, &Bytes::new());
        assert_eq!(self.world.take(tag), Some(Ok(ReplyBody::Done)));
    }

    fn contribute(&mut self, piece: u32, column: u8, pass: Pass) {
        let data = data(piece, column, pass);
        let mut route = route(column, COLUMNS);
        route.replicas[1].pass = pass;
        let body = write(piece * LEN_BYTES as u32, &data, None);
        let capability = cap(VOLUME, Epoch(1));
        let tag = self.world.send_routed(link(column), capability, body, Some(route), &data);
        self.waiting.insert(tag, (piece, pass));
        if pass == self.pass {
            self.sent.entry((piece, pass)).or_default().insert(column);
        }
    }

    /// The data node of this column has no memory for its contribution.
    fn contribute_nothing(&mut self, piece: u32, column: u8) {
        let (pass, capability) = (self.pass, cap(VOLUME, Epoch(1)));
        let (mut route, none) = (route(column, COLUMNS), Bytes::new());
        route.replicas[1].pass = pass;
        let body = write(piece * LEN_BYTES as u32, &none, None);
        let tag = self.world.send_routed(link(column), capability, body, Some(route), &none);
        self.waiting.insert(tag, (piece, pass));
    }

    /// Takes the answers. "Done" needs all columns of the attempt.
    fn take_answers(&mut self) {
        let tags: Vec<Tag> = self.waiting.keys().copied().collect();
        for tag in tags {
            let Some(answer) = self.world.take(tag) else { continue };
            let Some((piece, pass)) = self.waiting.remove(&tag) else { continue };
            let done = match answer {
                Ok(ReplyBody::Outcomes(outcomes)) => {
                    let [Outcome { result, .. }] = &outcomes[..] else { panic!("{outcomes:?}") };
                    self.denied += usize::from(*result == Err(NodeError::Denied));
                    *result == Ok(())
                }
                Err(NodeError::Busy) => false,
                other => panic!("{other:?}"),
            };
            if done {
                let all = self.sent.get(&(piece, pass)).map_or(0, BTreeSet::len);
                assert_eq!(all, usize::from(COLUMNS), "piece {piece}, {pass:?}");
                let told = self.told.entry(piece).or_default();
                *told = pass.max(*told);
            }
        }
    }

    /// What the file has is the sum of one attempt, and of none before the one that the node told
    /// of last.
    fn check(&mut self) {
        if let Some(due_ns) = self.world.node.deadline_ns() {
            self.world.node.handle(due_ns, NodeEvent::Tick);
        }
        self.world.settle();
        self.take_answers();
        for piece in 0..PIECES {
            let (segment, shard, len_bytes) = (SEGMENT, PARITY, LEN_BYTES as u32);
            let offset_bytes = piece * len_bytes;
            let body = RequestBody::ShardRead { segment, shard, offset_bytes, len_bytes };
            let read = self.world.call(WRITER, cap(VOLUME, Epoch(1)), body, &Bytes::new());
            let told = self.told.get(&piece).copied();
            let complete = |columns: &BTreeSet<u8>| columns.len() == usize::from(COLUMNS);
            match read {
                Ok(ReplyBody::Data(found)) => {
                    let attempts = self.sent.iter().filter(|((of, pass), columns)| {
                        *of == piece && Some(*pass) >= told && complete(columns)
                    });
                    let mut sums = attempts.map(|((_, pass), _)| sum(piece, *pass));
                    assert!(sums.any(|sum| sum == found), "piece {piece}: no sum of an attempt");
                }
                Err(_) => assert_eq!(told, None, "piece {piece} is lost"),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_node_tells_of_sums_of_one_attempt_and_all_columns_only() {
    let (mut told, mut denied, mut gone) = (0, 0, 0);
    for seed in 0..150 {
        let mut known = Known::new(seed);
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
        for _ in 0..120 {
            match rng.random_range(0..100) {
                0..60 => {
                    let pass = Pass(known.pass.0 - u64::from(rng.random_range(0..8) == 0));
                    let (piece, column) =
                        (rng.random_range(0..PIECES), rng.random_range(0..COLUMNS));
                    match rng.random_range(0..20) {
                        0 => known.contribute_nothing(piece, column),
                        _ => known.contribute(piece, column, pass),
                    }
                }
                60..66 => known.admit(),
                66..70 => {
                    let peer = link(rng.random_range(0..COLUMNS));
                    known.world.node.handle(NOW_NS, NodeEvent::PeerLost { peer });
                    // Its answers do not leave.
                    known.world.pump();
                }
                70..72 => known.check(),
                _ => {
                    known.world.step();
                }
            }
            known.take_answers();
        }
        known.check();
        told += known.told.len();
        denied += known.denied;
        gone += known.waiting.len();
    }
    assert!(told > 200, "{told} pieces");
    assert!(denied > 500, "{denied} contributions without memory");
    assert!(gone > 0, "some data nodes were gone");
}

/// A node that starts again has neither sums nor passes of its last life.
#[test]
fn what_was_gathered_before_a_restart_is_gone() {
    let mut known = Known::new(1);
    known.contribute(0, 0, Pass(1));
    known.contribute(0, 1, Pass(1));
    known.world.crash(false);
    known.world.start();
    known.waiting.clear();
    known.sent.clear();
    // The last column of the first attempt is late. Then the writer comes back.
    known.contribute(0, 2, Pass(1));
    known.take_answers();
    assert!(known.waiting.is_empty() && known.told.is_empty(), "without a pass it is denied");
    known.admit();
    known.contribute(0, 2, Pass(1));
    known.contribute(0, 2, Pass(2));
    known.check();
    assert!(known.told.is_empty(), "two columns are missing");
    for column in [1, 0, 2] {
        known.contribute(0, column, Pass(2));
    }
    known.check();
    assert_eq!(known.told.get(&0), Some(&Pass(2)));
}
