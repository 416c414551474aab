//! The requests that the stranger makes.
//!
//! A capability is wrong in one of these ways ([`Flaw`]): its signature is not one; a field was
//! changed after the signature; it has expired; it lacks the right; it does not cover the segment;
//! it is one for the stranger's volume under another name; its secret is of a generation that no
//! node knows. The bodies are those of writers, or name what the writers' requests name and do the
//! worst with it.

use bytes::Bytes;
use fieldstone_node::PeerId;
use fieldstone_proto::fragments::fragment;
use fieldstone_proto::{
    BLOCK_BYTES, Capability, Column, Content, Epoch, Factors, Fragments, JournalGen, KeyGeneration,
    Lsn, NodeIndex, Pass, Replica, Request, RequestBody, Rights, Route, SegmentId, ShardIndex,
    Strategy, Tag, VolumeId, crc32c,
};
use fieldstone_volume::Reach;

use super::super::World;
use super::OWN_VOLUMES;
use crate::actor::Cast;
use crate::random::RandomStream;

/// What is wrong with a capability.
#[derive(Clone, Copy, Debug)]
enum Flaw {
    Signature,
    ChangedEpoch,
    ChangedVolume,
    ChangedRights,
    Expired,
    Rights,
    Segments,
    Generation,
}

const FLAWS: [Flaw; 8] = [
    Flaw::Signature,
    Flaw::ChangedEpoch,
    Flaw::ChangedVolume,
    Flaw::ChangedRights,
    Flaw::Expired,
    Flaw::Rights,
    Flaw::Segments,
    Flaw::Generation,
];

impl<C: Cast> World<'_, C> {
    /// A request with a wrong capability for a volume of a user.
    pub(super) fn wrong_request(&mut self, peer: PeerId) -> Option<Request> {
        let recorded = self.stranger.recorder.all();
        if recorded.is_empty() {
            return None;
        }
        let model = recorded[self.stranger.rng.index(recorded.len())].request.clone();
        let node = self.stranger.visits[&peer].node;
        let flaw = self.stranger.rng.pick(&FLAWS);
        let (mut body, mut route, mut payload) = (model.body, model.route, model.payload);
        if self.stranger.rng.chance(500) || body == RequestBody::Identify {
            body = worst_body(&mut self.stranger.rng, &body);
            (route, payload) = (None, Vec::new());
            if matches!(body, RequestBody::ShardWrite { .. }) {
                payload = vec![block()];
            }
        }
        if let Some(route) = &mut route {
            // The request may have gone to another node.
            let rank = route.replicas.iter().position(|replica| replica.node == node);
            route.rank = u8::try_from(rank.unwrap_or_default()).unwrap_or_default();
            if route.rank > 0 {
                route.content = Content::Same;
            }
        }
        let capability = self.wrong_capability(flaw, model.capability, &body)?;
        Some(Request { tag: self.next_tag_of_stranger(), capability, body, route, payload })
    }

    /// `None` if the flaw is none for this body.
    fn wrong_capability(
        &self,
        flaw: Flaw,
        of_writer: Capability,
        body: &RequestBody,
    ) -> Option<Capability> {
        let (volume, epoch) = (of_writer.volume, of_writer.epoch);
        let key = self.secrets.file.derive(volume, epoch);
        let good = Capability::issue(&key, volume, epoch, Rights::ALL, u64::MAX);
        Some(match flaw {
            Flaw::Signature => {
                let mut forged = of_writer;
                forged.mac[usize::from(forged.mac[0]) % 16] ^= 0x10;
                forged
            }
            Flaw::ChangedEpoch => Capability { epoch: Epoch(epoch.0 + 1), ..good },
            Flaw::ChangedVolume => {
                let own = self.own_capability(OWN_VOLUMES[0], epoch);
                Capability { volume, ..own }
            }
            Flaw::ChangedRights => {
                let read = Capability { rights: Rights(1).of_generation(key.generation()), ..good };
                Capability { rights: good.rights, ..read.signed(&key) }
            }
            Flaw::Expired => Capability { expires_ns: 0, ..good }.signed(&key),
            Flaw::Rights => {
                let rights = rights_but_for(body).of_generation(key.generation());
                Capability { rights, ..good }.signed(&key)
            }
            Flaw::Segments => {
                let segment = segment_of(body)?;
                let segment_first = SegmentId(segment.0.checked_add(1)?);
                Capability { segment_first, ..good }.signed(&key)
            }
            Flaw::Generation => {
                let unknown = KeyGeneration(key.generation().0.wrapping_add(1000));
                Capability { rights: good.rights.of_generation(unknown), ..good }
            }
        })
    }

    /// A capability for a volume of the stranger's own, with all rights.
    pub(super) fn own_capability(&self, volume: VolumeId, epoch: Epoch) -> Capability {
        let key = self.secrets.file.derive(volume, epoch);
        Capability::issue(&key, volume, epoch, Rights::ALL, u64::MAX)
    }

    /// Requests that name what belongs to others.
    pub(super) fn looks_for_others(&mut self) -> Vec<RequestBody> {
        let mut bodies = vec![
            RequestBody::ListVolumes,
            RequestBody::ShardList { from: SegmentId(0) },
            RequestBody::JournalDelete { first: JournalGen(0), below: JournalGen(u64::MAX) },
        ];
        for recorded in self.stranger.recorder.all() {
            match &recorded.request.body {
                RequestBody::JournalAppend { generation, .. } => {
                    let (generation, len_bytes) = (*generation, BLOCK_BYTES as u32);
                    bodies.push(RequestBody::JournalRead {
                        generation,
                        offset_bytes: 0,
                        len_bytes,
                    });
                    bodies.push(RequestBody::JournalSync { generation });
                }
                RequestBody::ShardWrite { segment, shard, .. } => {
                    let (segment, shard) = (*segment, *shard);
                    bodies.push(RequestBody::ShardVerify { segment, shard });
                    let (offset_bytes, len_bytes) = (0, BLOCK_BYTES as u32);
                    bodies.push(RequestBody::ShardRead { segment, shard, offset_bytes, len_bytes });
                    bodies.push(RequestBody::ShardDelete { segments: vec![segment] });
                }
                _ => {}
            }
        }
        self.stranger.rng.shuffle(&mut bodies);
        bodies.truncate(4);
        bodies
    }

    /// A write with this capability whose payload does not come, or not all of it: a journal's, or
    /// that of a shard, which the nodes pass on, in the three forms of a route.
    pub(super) fn unfinished_write(
        &mut self,
        peer: PeerId,
        capability: Capability,
    ) -> Vec<Request> {
        let node = self.stranger.visits[&peer].node;
        let mut replicas = vec![self.replica(node)];
        let others: Vec<NodeIndex> =
            (0..self.scenario.nodes).map(NodeIndex).filter(|other| *other != node).collect();
        for _ in 0..self.stranger.rng.index(3) {
            let other = others[self.stranger.rng.index(others.len())];
            let is_new = replicas.iter().all(|replica| replica.node != other);
            if is_new && self.reaches(node, other) {
                replicas.push(self.replica(other));
            }
        }
        let tag = self.next_tag_of_stranger();
        let rng = &mut self.stranger.rng;
        let count = replicas.len();
        let blocks = count * rng.between(1, 3) as usize;
        let mut strategy = rng.pick(&Strategy::ALL[1..]);
        let mut content = Content::Same;
        if count > 1 && rng.chance(500) {
            strategy = Strategy::Primary;
            content = match rng.chance(500) {
                true => Content::Parts,
                false => {
                    let factors = Factors::Scalars(Bytes::from(vec![1; count - 1]));
                    Content::Column(Column { index: 0, count: 2, factors })
                }
            };
        }
        let is_append = content == Content::Same && rng.chance(300);
        let body = match is_append {
            true => RequestBody::JournalAppend { generation: JournalGen(1), lsn: Lsn(0) },
            false => shard_write(SegmentId(rng.between(1, 9)), Vec::new()),
        };
        let sent = rng.index(blocks);
        let gives_up = rng.chance(100);
        let wait_ms = rng.pick(&[10, 600, 10_000]);
        let fragments = Fragments::Follow((blocks * BLOCK_BYTES) as u32);
        let (rank, payload) = (0, Vec::new());
        let route = Route { strategy, rank, wait_ms, replicas, content, fragments };
        let begin = Request { tag, capability, body, route: Some(Box::new(route)), payload };
        let mut requests = vec![begin];
        for _ in 0..sent {
            let checksums = if is_append { Vec::new() } else { vec![crc32c(&block())] };
            requests.push(fragment(tag, checksums, vec![block()]));
        }
        if gives_up {
            requests.push(give_up(tag));
        }
        requests
    }

    fn replica(&self, node: NodeIndex) -> Replica {
        let address = match self.reach_of(node) {
            Reach::At(address) => address,
            _ => Bytes::new(),
        };
        Replica { node, pass: Pass(1), shard: ShardIndex(node.0 as u8), address }
    }

    /// Only a node of the volumes' process reaches those of this process.
    fn reaches(&self, from: NodeIndex, to: NodeIndex) -> bool {
        !self.is_outside(from) || self.is_outside(to)
    }
}

/// The rights without the one that the operation needs.
fn rights_but_for(body: &RequestBody) -> Rights {
    match body {
        RequestBody::ListVolumes
        | RequestBody::Fence { .. }
        | RequestBody::PutRoot { .. }
        | RequestBody::Reserve { .. }
        | RequestBody::RenewRecord
        | RequestBody::RemoveVolume => Rights(3),
        RequestBody::JournalRead { .. }
        | RequestBody::ShardRead { .. }
        | RequestBody::ShardVerify { .. }
        | RequestBody::ShardList { .. }
        | RequestBody::Stat => Rights(6),
        _ => Rights(5),
    }
}

/// The segment whose name the node compares with a capability's range.
fn segment_of(body: &RequestBody) -> Option<SegmentId> {
    match body {
        RequestBody::ShardWrite { segment, .. }
        | RequestBody::ShardRead { segment, .. }
        | RequestBody::ShardVerify { segment, .. } => Some(*segment),
        RequestBody::ShardDelete { segments } => segments.first().copied(),
        _ => None,
    }
}

/// A request that would do harm to what `body` names.
fn worst_body(rng: &mut RandomStream, body: &RequestBody) -> RequestBody {
    let segment = segment_of(body).unwrap_or(SegmentId(1));
    let shard = ShardIndex(0);
    let len_bytes = BLOCK_BYTES as u32;
    match rng.index(14) {
        0 => RequestBody::Fence { takeover: true },
        1 => RequestBody::PutRoot { version: u64::MAX },
        2 => RequestBody::Reserve { slots: 0, spare: 0 },
        3 => RequestBody::RemoveVolume,
        4 => RequestBody::JournalDelete { first: JournalGen(0), below: JournalGen(u64::MAX) },
        5 => RequestBody::ShardDelete { segments: vec![segment] },
        6 => shard_write(segment, vec![crc32c(&block())]),
        7 => RequestBody::ShardRead { segment, shard, offset_bytes: 0, len_bytes },
        8 => RequestBody::ShardVerify { segment, shard },
        9 => RequestBody::ShardList { from: SegmentId(0) },
        10 => RequestBody::AdmitRelays { pass: Pass(u64::MAX) },
        11 => RequestBody::RenewRecord,
        12 => RequestBody::ListVolumes,
        _ => RequestBody::Stat,
    }
}

fn shard_write(segment: SegmentId, checksums: Vec<u32>) -> RequestBody {
    let (shard, offset_bytes, seal, data_first) = (ShardIndex(0), 0, None, false);
    RequestBody::ShardWrite { segment, shard, offset_bytes, checksums, seal, data_first }
}

fn give_up(tag: Tag) -> Request {
    let (capability, body) = (Capability::default(), RequestBody::GiveUp);
    Request { tag, capability, body, route: None, payload: Vec::new() }
}

fn block() -> Bytes {
    Bytes::from_static(&[0xee; BLOCK_BYTES])
}
