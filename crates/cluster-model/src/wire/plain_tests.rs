//! The short way gives the same answers and leaves the same state as the usual one.

use bytes::Bytes;
use fieldstone_rados::cluster::{ObjectName, SnapContext};
use fieldstone_rados::message::osd::flag;
use fieldstone_rados::op::ObjectOps;
use proptest::prelude::*;

use super::tests::{Bench, FEATURES};
use super::*;
use crate::objects::BlockSums;

const NAMES: [&str; 3] = ["one", "two", "three"];
const CLIENT: u64 = 7;

/// A request, drawn.
#[derive(Clone, Debug)]
struct Drawn {
    name: usize,
    kind: u8,
    offset: u64,
    len: usize,
    byte: u8,
    snap: u64,
    odd: u8,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let block = 4096_usize;
    let at = prop_oneof![
        3 => (0..40_u64).prop_map(move |number| number * block as u64),
        2 => 0..200_000_u64,
    ];
    let len = prop_oneof![
        3 => (0..40_usize).prop_map(move |number| number * block),
        2 => 0..100_000_usize,
    ];
    let numbers = (0..NAMES.len(), 0..16_u8, any::<u8>(), 0..4_u64, 0..24_u8);
    (numbers, at, len).prop_map(|((name, kind, byte, snap, odd), offset, len)| Drawn {
        name,
        kind,
        offset,
        len,
        byte,
        snap,
        odd,
    })
}

impl Drawn {
    fn ops(&self) -> ObjectOps {
        let mut ops = ObjectOps::new();
        let (offset, len) = (self.offset, self.len as u64);
        let data = || Bytes::from(vec![self.byte; self.len]);
        match self.kind {
            0 | 1 => ops.read(offset, len),
            2 => ops.sparse_read(offset, len),
            3 => ops.stat(),
            4 => ops.stat().read(offset, len).sparse_read(0, len),
            5..=7 => ops.write(offset, data()),
            8 => ops.set_alloc_hint(4 << 20, 4 << 20, 0).write(offset, data()),
            9 => ops.write_full(data()),
            10 => ops.zero(offset, len.max(1)),
            11 => ops.truncate(offset),
            12 => ops.delete(),
            13 => ops.append(data()),
            14 => ops.create(true),
            _ => ops.set_alloc_hint(1, 1, 0).stat(),
        };
        ops
    }

    fn request(&self, bench: &mut Bench) -> OsdOp {
        let name = NAMES[self.name];
        let ops = self.ops();
        let mut request = bench.request(CLIENT, name, |all| *all = ops);
        if request.ops.is_write() && self.snap > 0 {
            let snaps = (1..=self.snap).rev().map(SnapId).collect();
            request.snap_context = SnapContext { seq: SnapId(self.snap), snaps };
        }
        match self.odd {
            0 => request.attempt = 1,
            1 => request.hash ^= 0x1000_0000,
            2 => request.target.pg.seed ^= 1,
            3 => request.client = 0,
            4 => request.flags |= flag::BALANCE_READS,
            5 if !request.ops.is_write() => request.snapshot = SnapId(self.snap),
            6 => request.object = ObjectName::new(request.object.pool, "apart", name),
            7 => request.target.shard = 0,
            8 => request.map_epoch += 1,
            9 => request.snap_context.snaps.reverse(),
            _ => {}
        }
        request
    }
}

type Sent = Vec<(SessionId, Message)>;

/// A message without the cuts between the pieces of its data.
fn flat(message: Message) -> Message {
    let data = message.data.concat();
    let data = (!data.is_empty()).then(|| Bytes::from(data)).into_iter().collect();
    Message { data, ..message }
}

/// Offers a message to the short way, then to the usual one. True if the short way took it.
fn short(bench: &mut Bench, id: SessionId, osd: u32, message: &Message) -> (bool, Sent) {
    let data = message.data.concat();
    let sums = BlockSums::of(&data);
    let request = PlainRequest::read(message.version, message.tid, &message.front, data.len());
    let answer = request
        .as_ref()
        .and_then(|request| bench.cluster.plain(id, osd, request, (&data, &sums), Nanos(0)));
    let (Some(request), Some(answer)) = (request, answer) else {
        return (false, usual(bench, id, message));
    };
    let mut front = Vec::new();
    answer.encode_front(&request, &mut front);
    let mut data = Vec::new();
    for one in &answer.data {
        let start = data.len();
        data.extend_from_slice(&one.prefix);
        one.parts().for_each(|part| data.extend_from_slice(part));
        assert_eq!(one.len(), data.len() - start);
        if let Some(sum) = one.sum {
            assert_eq!(sum, BlockSums::of(&data[start..]).whole, "a sum is wrong");
        }
    }
    let kind = fieldstone_rados::message::MessageKind::OsdOpReply;
    let reply = Message::new(kind, answer.version(), answer.compat_version(), front.into());
    let reply = Message { tid: message.tid, data: [Bytes::from(data)].into(), ..reply };
    (true, vec![(id, flat(reply))])
}

fn usual(bench: &mut Bench, id: SessionId, message: &Message) -> Sent {
    bench.cluster.receive(id, message, Nanos(0));
    let all = std::iter::from_fn(|| bench.cluster.poll_output());
    all.map(|(id, message)| (id, flat(message))).collect()
}

/// Everything that a request could see of the objects.
fn assert_same_state(one: &mut Bench, two: &mut Bench) {
    let (one, two) = (one.cluster.store(), two.cluster.store());
    let [one, two] = [one, two].map(|store| store.pool(PoolId(1)).expect("it exists"));
    assert_eq!(one.objects().count(), two.objects().count());
    for ((key, object), (other_key, other)) in one.objects().zip(two.objects()) {
        assert_eq!(key, other_key);
        assert_eq!(object.is_whiteout, other.is_whiteout, "{key:?}");
        assert_eq!(object.snaps.seq, other.snaps.seq, "{key:?}");
        assert_eq!(object.snaps.clones.len(), other.snaps.clones.len(), "{key:?}");
        let (head, other) = (&object.head, &other.head);
        assert_eq!(head.data.read(0, u64::MAX), other.data.read(0, u64::MAX), "{key:?}");
        assert_eq!(head.data.extents(0, u64::MAX), other.data.extents(0, u64::MAX), "{key:?}");
        assert_eq!(head.user_version, other.user_version, "{key:?}");
        assert_eq!(head.modified, other.modified, "{key:?}");
    }
}

/// Both ways, each on a cluster of its own. Gives the number of requests on the short way.
fn compare(all: &[Drawn]) -> usize {
    let (mut one, mut two) = (Bench::new(), Bench::new());
    let connect = |bench: &mut Bench| -> Vec<SessionId> {
        (0..3).map(|osd| bench.connect(Server::Osd(osd), CLIENT)).collect()
    };
    let (first, second) = (connect(&mut one), connect(&mut two));
    assert_eq!(first, second);
    let mut taken = 0;
    let mut before: Option<(u32, Message)> = None;
    for drawn in all {
        let Server::Osd(mut osd) = one.primary(NAMES[drawn.name]) else { unreachable!() };
        let (request, _) = (drawn.request(&mut one), drawn.request(&mut two));
        let mut message = request.encode(FEATURES);
        if drawn.odd == 10 {
            osd = (osd + 1) % 3;
        }
        if let (11, Some((at, last))) = (drawn.odd, &before) {
            // The client sends its last request again.
            let mut again = OsdOp::decode(last).expect("it is a request");
            again.attempt = 1;
            (osd, message) = (*at, again.encode(FEATURES));
        }
        let id = first[osd as usize];
        let (is_short, sent) = short(&mut two, id, osd, &message);
        assert_eq!(usual(&mut one, id, &message), sent, "{drawn:?}");
        taken += usize::from(is_short);
        before = Some((osd, message));
    }
    assert_same_state(&mut one, &mut two);
    taken
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn both_ways_are_the_same(all in prop::collection::vec(drawn(), 1..40)) {
        compare(&all);
    }
}

#[test]
fn usual_requests_take_the_short_way() {
    let one = |kind, offset, len| Drawn { name: 0, kind, offset, len, byte: 9, snap: 0, odd: 99 };
    let requests = [
        one(5, 0, 8192),
        one(0, 0, 4096),
        one(2, 0, 8192),
        one(3, 0, 0),
        one(8, 100, 7),
        one(9, 0, 5),
    ];
    assert_eq!(compare(&requests), requests.len());
    // An object that does not exist, and a write that it has to keep a snapshot for.
    assert_eq!(compare(&[one(0, 0, 4096)]), 1);
    let keeps = Drawn { snap: 1, ..one(5, 0, 4096) };
    assert_eq!(compare(&[one(5, 0, 4096), keeps]), 1);
}

#[test]
fn nothing_is_plain_while_something_is_unusual() {
    let mut bench = Bench::new();
    let Server::Osd(osd) = bench.primary("one") else { unreachable!() };
    let id = bench.connect(Server::Osd(osd), CLIENT);
    let is_short = |bench: &mut Bench| {
        let request = bench.request(CLIENT, "one", |ops| {
            ops.read(0, 10);
        });
        short(bench, id, osd, &request.encode(FEATURES)).0
    };
    assert!(is_short(&mut bench));
    bench.cluster.store().shut_out("10.0.0.9:0/1", None, Nanos(0));
    assert!(!is_short(&mut bench));
    bench.cluster.store().let_in("10.0.0.9:0/1");
    assert!(is_short(&mut bench));
    let pg = bench.pg("two");
    bench.cluster.block(pg);
    assert!(!is_short(&mut bench));
}
