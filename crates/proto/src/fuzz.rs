//! Fuzzing of the wire decoder: it gets any bytes, and the properties below must hold.
//!
//! The input's first byte says which side sends the bytes. The second byte says how the stream is
//! cut, and whether its frames are mended: checksums and lengths become correct, because a fuzzer
//! cannot guess checksums and would never get past the header. The rest are the peer's bytes. The
//! properties:
//!
//! - no panic; the decoder takes every byte, or the stream has failed for good;
//! - every way to cut the stream gives the same messages, and the same error at the same byte;
//! - encoding a decoded message and decoding it again gives the same message.
//!
//! The cargo-fuzz target in the repository's `fuzz/` folder and a property test use [`wire`].
//! [`seeds`] gives valid streams to start from.

use bytes::Bytes;
use zerocopy::{FromBytes, IntoBytes};

use crate::wire::{Decoder, Header, Message, WIRE_HEADER_BYTES, WireError, mend_header};
use crate::wire::{encode_reply, encode_request};
use crate::{
    Capability, CapabilityError, Column, Content, ElementTable, ElementTerm, Epoch, Factors,
    Fragments, JournalGen, JournalInfo, Lsn, NodeError, NodeIndex, NodeStat, Outcome, Pass,
    Replica, Reply, ReplyBody, Request, RequestBody, Route, SealMeta, SegmentId, SegmentKind,
    ShardIndex, ShardInfo, Strategy, Tag, VolumeId, VolumeState, VolumeSummary, crc32c,
};

/// The lowest bit of the second byte: mend the frames. The bits above hold the length of the
/// pieces.
const MEND: u8 = 1;

/// The progress of the decoder in an input, so that a test can judge its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Number of decoded messages.
    pub messages: u32,
    /// The stream ended with an error.
    pub failed: bool,
}

/// Feeds `input` to a decoder.
///
/// # Panics
/// If a property does not hold. This is the finding.
pub fn wire(input: &[u8]) -> Coverage {
    let (options, stream) = input.split_at(input.len().min(2));
    let [from_node, schedule] = [0, 1].map(|at| options.get(at).copied().unwrap_or(0));
    if from_node & 1 == 0 {
        check(stream, schedule, |request: &Request| encode_request(request))
    } else {
        check(stream, schedule, |reply: &Reply| encode_reply(reply))
    }
}

type Encoded = Result<Vec<Bytes>, WireError>;

fn check<M>(stream: &[u8], schedule: u8, encode: impl Fn(&M) -> Encoded) -> Coverage
where
    M: Message + std::fmt::Debug + PartialEq,
{
    let mut stream = stream.to_vec();
    if schedule & MEND != 0 {
        mend::<M>(&mut stream);
    }
    let whole = decode::<M>(&stream, stream.len().max(1));
    let cut = decode::<M>(&stream, usize::from(schedule >> 1) + 1);
    assert_eq!(whole.0, cut.0, "the messages depend on how the stream is cut");
    // Compares position and kind: the decoder reports a wrong magic as soon as its first byte is
    // there.
    let place = |error: WireError| (error.at_byte, std::mem::discriminant(&error.kind));
    let (messages, error) = whole;
    assert_eq!(error.clone().map(place), cut.1.map(place), "the error depends on it");
    for message in &messages {
        let said = encode(message).expect("what came in a message fits in one").concat();
        let (again, error) = decode::<M>(&said, said.len());
        assert_eq!((again.len(), &error), (1, &None), "{message:?} is not understood");
        // Compares encodings, not messages: decoding corrects a text that is not UTF-8.
        let again = encode(&again[0]).expect("it was a message").concat();
        assert_eq!(again, said, "{message:?} changes when it is said again");
    }
    let count = u32::try_from(messages.len()).expect("a message has 40 bytes");
    Coverage { messages: count, failed: error.is_some() }
}

/// All messages of a stream in pieces of `piece_bytes`, and the error that ends it.
fn decode<M: Message>(stream: &[u8], piece_bytes: usize) -> (Vec<M>, Option<WireError>) {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    for mut piece in stream.chunks(piece_bytes) {
        loop {
            match decoder.feed(&mut piece) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.feed(&mut &[][..]).err(), Some(error.clone()));
                    return (messages, Some(error));
                }
            }
        }
        assert!(piece.is_empty(), "{} bytes were not taken", piece.len());
    }
    (messages, None)
}

/// Makes all frames of a stream valid, so that the remaining errors are in the bodies.
fn mend<M: Message>(stream: &mut [u8]) {
    let mut rest = stream;
    while let Some((header, behind)) = rest.split_at_mut_checked(WIRE_HEADER_BYTES) {
        let mut mended = Header::read_from_bytes(header).expect("it has the length of a header");
        let (body, payload) = mend_header::<M>(&mut mended, behind);
        header.copy_from_slice(mended.as_bytes());
        rest = &mut behind[body + payload..];
    }
}

/// Valid inputs for [`wire`]. Together they use every request and reply.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for schedule in [0, MEND, 6 << 1, 99 << 1 | MEND] {
        let requests = requests().into_iter().map(|body| {
            let payload = match &body {
                RequestBody::ShardWrite { .. } | RequestBody::Fragment { .. } => {
                    vec![Bytes::from_static(b"fieldstone")]
                }
                _ => Vec::new(),
            };
            let (tag, route) = (Tag(1), route_of(&body).map(Box::new));
            let request = Request { tag, capability: Capability::default(), body, route, payload };
            encode_request(&request).expect("it is short").concat()
        });
        let replies = replies().into_iter().map(|result| {
            let reply = Reply { tag: Tag(2), result, slots_free: 3 };
            encode_reply(&reply).expect("it is short").concat()
        });
        seeds.push([vec![0, schedule], requests.collect::<Vec<_>>().concat()].concat());
        seeds.push([vec![1, schedule], replies.collect::<Vec<_>>().concat()].concat());
    }
    seeds
}

fn meta() -> SealMeta {
    let kind = SegmentKind::Checkpoint;
    SealMeta { kind, lsn_first: Lsn(1), lsn_end: Lsn(2), shard_bytes: 4096 }
}

/// The log position of the append that has a route.
const ROUTED: u64 = 11;

/// The log position of the append that comes in fragments.
const IN_FRAGMENTS: u64 = 13;

/// The offset of the write of a shard whose payload has parts.
const PARTED: u32 = 12288;

/// The offset of the write of a shard whose column has a table of elements.
const TABLED: u32 = 16384;

fn route() -> Route {
    let replica = |node, address: &'static str| Replica {
        node: NodeIndex(node),
        pass: Pass(21),
        shard: ShardIndex(22),
        address: Bytes::from_static(address.as_bytes()),
    };
    let replicas = vec![replica(2, ""), replica(0, "tcp:[::1]:7000"), replica(1, "unix:/n/1")];
    Route { strategy: Strategy::Tree, rank: 1, wait_ms: 23, replicas, ..Route::default() }
}

/// One append and three writes of shards have routes, and another append has one and comes in
/// fragments.
fn route_of(body: &RequestBody) -> Option<Route> {
    match body {
        RequestBody::JournalAppend { lsn, .. } if lsn.0 == ROUTED => Some(route()),
        RequestBody::JournalAppend { lsn, .. } if lsn.0 == IN_FRAGMENTS => {
            Some(Route { fragments: Fragments::Follow(8192), ..route() })
        }
        RequestBody::ShardWrite { data_first: true, .. } => {
            let factors = Factors::Scalars(Bytes::from_static(&[1, 2]));
            let content = Content::Column(Column { index: 1, count: 4, factors });
            Some(Route { strategy: Strategy::Primary, content, ..route() })
        }
        RequestBody::ShardWrite { offset_bytes: PARTED, .. } => {
            let (strategy, content) = (Strategy::Primary, Content::Parts);
            Some(Route { strategy, rank: 0, content, ..route() })
        }
        RequestBody::ShardWrite { offset_bytes: TABLED, .. } => {
            let term = ElementTerm { element: 0, factor: 3 };
            let rows = [&[term][..], &[], &[term, term], &[]];
            let table = ElementTable::new(8192, 2, rows).expect("it is short");
            let column = Column { index: 1, count: 4, factors: Factors::Elements(table) };
            let (strategy, content) = (Strategy::Primary, Content::Column(column));
            Some(Route { strategy, rank: 0, content, ..route() })
        }
        _ => None,
    }
}

fn requests() -> Vec<RequestBody> {
    let (segment, shard, generation) = (SegmentId(4), ShardIndex(5), JournalGen(6));
    let (offset_bytes, len_bytes) = (4096, 8192);
    let write = |offset_bytes, seal, data_first| RequestBody::ShardWrite {
        segment,
        shard,
        offset_bytes,
        checksums: vec![7, 8],
        seal,
        data_first,
    };
    vec![
        RequestBody::Identify,
        RequestBody::ListVolumes,
        RequestBody::Fence { takeover: true },
        RequestBody::PutRoot { version: 9 },
        RequestBody::JournalCreate { generation, ring_bytes: 1 << 20 },
        RequestBody::JournalAppend { generation, lsn: Lsn(10) },
        RequestBody::JournalAppend { generation, lsn: Lsn(ROUTED) },
        RequestBody::JournalAppend { generation, lsn: Lsn(IN_FRAGMENTS) },
        RequestBody::Fragment { checksums: vec![9, 10], payload_crc: crc32c(b"fieldstone") },
        RequestBody::Fragment { checksums: Vec::new(), payload_crc: crc32c(b"fieldstone") },
        RequestBody::GiveUp,
        RequestBody::JournalSync { generation },
        RequestBody::JournalRead { generation, offset_bytes: 4096, len_bytes },
        RequestBody::JournalDelete { first: generation, below: JournalGen(9) },
        write(offset_bytes, None, false),
        write(offset_bytes, Some(meta()), false),
        write(offset_bytes, Some(meta()), true),
        write(PARTED, None, false),
        write(TABLED, None, false),
        RequestBody::ShardSync,
        RequestBody::ShardRead { segment, shard, offset_bytes, len_bytes },
        RequestBody::ShardVerify { segment, shard },
        RequestBody::ShardDelete { segments: vec![segment, SegmentId(11)] },
        RequestBody::ShardList { from: segment },
        RequestBody::RemoveVolume,
        RequestBody::Stat,
        RequestBody::Reserve { slots: 3, spare: 1 },
        RequestBody::RenewRecord,
        RequestBody::AdmitRelays { pass: Pass(24) },
    ]
}

fn replies() -> Vec<Result<ReplyBody, NodeError>> {
    let (epoch, root) = (Epoch(12), Bytes::from_static(b"root"));
    let volume =
        VolumeSummary { volume: VolumeId(13), epoch, root_version: 14, root: root.clone() };
    let shard = ShardInfo { segment: SegmentId(15), shard: ShardIndex(16), meta: meta() };
    let state = VolumeState {
        epoch_before: epoch,
        root_version: 17,
        root,
        journals: vec![JournalInfo { generation: JournalGen(18), ring_bytes: 4096 }],
        stat: NodeStat::default(),
    };
    let not_passed_on = NodeError::NotPassedOn { from: NodeIndex(1), to: NodeIndex(3) };
    vec![
        Ok(ReplyBody::Done),
        Ok(ReplyBody::Data(Bytes::from_static(b"data"))),
        Ok(ReplyBody::Stat(NodeStat::default())),
        Ok(ReplyBody::Volumes(vec![volume])),
        Ok(ReplyBody::VolumeState(state)),
        Ok(ReplyBody::Shards { shards: vec![shard], next: Some(SegmentId(19)) }),
        Ok(ReplyBody::Shards { shards: vec![shard, shard], next: None }),
        Err(NodeError::Capability(CapabilityError::Range)),
        Err(NodeError::Fenced { sent: epoch, current: Epoch(20) }),
        Err(NodeError::InUse { current: epoch }),
        Err(NodeError::NotFound),
        Err(NodeError::Corrupt { offset_bytes: 4096 }),
        Err(NodeError::NoSpace),
        Err(NodeError::Busy),
        Err(NodeError::Invalid("why".to_owned())),
        Err(NodeError::Io("ärger".to_owned())),
        Err(NodeError::Unreachable),
        Err(not_passed_on.clone()),
        Err(NodeError::Denied),
        Ok(ReplyBody::Outcomes(vec![
            Outcome { node: NodeIndex(2), result: Ok(()) },
            Outcome { node: NodeIndex(1), result: Err(NodeError::Io("why".to_owned())) },
            Outcome { node: NodeIndex(3), result: Err(not_passed_on) },
            Outcome { node: NodeIndex(4), result: Err(NodeError::Denied) },
        ])),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn seeds_are_understood_to_the_end() {
        for seed in seeds() {
            let coverage = wire(&seed);
            let count = if seed[0] == 0 { requests().len() } else { replies().len() };
            assert_eq!((coverage.messages as usize, coverage.failed), (count, false));
        }
    }

    /// Changes, cuts or doubles a range behind the first two bytes.
    fn mutate(input: &mut Vec<u8>, kind: u8, at: usize, len: usize, byte: u8) {
        let end = (at + len).min(input.len());
        match kind % 5 {
            0 => input[at] ^= byte,
            1 => input[at..end].fill(byte),
            2 => drop(input.drain(at..end)),
            3 => {
                let copy = input[at..end].to_vec();
                input.splice(at..at, copy);
            }
            _ => input.truncate(end),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn mutated_streams_keep_every_property(
            seed in any::<prop::sample::Selector>(),
            schedule in any::<u8>(),
            changes in proptest::collection::vec(
                (any::<u8>(), any::<prop::sample::Index>(), 1usize..300, any::<u8>()), 1..6
            ),
        ) {
            let mut input = seed.select(seeds());
            input[1] = schedule;
            for (kind, at, len, byte) in changes {
                if input.len() > 2 {
                    let at = 2 + at.index(input.len() - 2);
                    mutate(&mut input, kind, at, len, byte);
                }
            }
            wire(&input);
        }

        #[test]
        fn random_bytes_keep_every_property(
            input in proptest::collection::vec(any::<u8>(), 0..600)
        ) {
            wire(&input);
        }
    }
}
