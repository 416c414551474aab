//! Requests as bytes.

use bytes::Bytes;

use super::body::{Reader, Writer};
use super::decoder::sealed::Parts;
use super::{
    Envelope, Header, REQUEST_BODY_BYTES_MAX, WIRE_VERSION_BASIC, WIRE_VERSION_COLUMNS,
    WIRE_VERSION_FRAGMENTS, WIRE_VERSION_PARTS, WIRE_VERSION_ROUTES, WIRE_VERSION_TABLES,
    WireError, WireErrorKind, assemble, assemble_with, check_len,
};
use crate::route::{ADDRESS_BYTES_MAX, REPLICAS_MAX};
use crate::{
    Capability, Column, Content, ElementTable, Epoch, FRAGMENT_BYTES_MAX, Factors, FragmentRole,
    Fragments, JournalGen, Lsn, NodeIndex, PAYLOAD_BYTES_MAX, Pass, Replica, Request, RequestBody,
    Rights, Route, SealMeta, SegmentId, SegmentKind, ShardIndex, Strategy, Tag, VolumeId,
};

/// The operations' numbers.
mod op {
    pub(super) const IDENTIFY: u8 = 0;
    pub(super) const LIST_VOLUMES: u8 = 1;
    pub(super) const FENCE: u8 = 2;
    pub(super) const PUT_ROOT: u8 = 3;
    pub(super) const JOURNAL_CREATE: u8 = 4;
    pub(super) const JOURNAL_APPEND: u8 = 5;
    pub(super) const JOURNAL_SYNC: u8 = 6;
    pub(super) const JOURNAL_READ: u8 = 7;
    pub(super) const JOURNAL_DELETE: u8 = 8;
    pub(super) const SHARD_WRITE: u8 = 9;
    pub(super) const SHARD_SYNC: u8 = 10;
    pub(super) const SHARD_READ: u8 = 11;
    pub(super) const SHARD_VERIFY: u8 = 12;
    pub(super) const SHARD_DELETE: u8 = 13;
    pub(super) const SHARD_LIST: u8 = 14;
    pub(super) const REMOVE_VOLUME: u8 = 15;
    pub(super) const STAT: u8 = 16;
    pub(super) const RESERVE: u8 = 17;
    pub(super) const RENEW_RECORD: u8 = 18;
    pub(super) const ADMIT_RELAYS: u8 = 19;
    pub(super) const FRAGMENT: u8 = 20;
    pub(super) const GIVE_UP: u8 = 21;
    /// Added to the number of an operation that has a route.
    pub(super) const ROUTED: u8 = 64;
    /// Added to the number of an operation whose route has a column of factors.
    pub(super) const STREAMED: u8 = 128;
    /// Added to the number of an operation whose route has a column with a table of elements.
    pub(super) const TABLED: u8 = 160;
    /// Added to the number of an operation whose payload has a part for each replica of its route.
    pub(super) const PARTED: u8 = 192;
}

/// The request as a gather list: header and body, then the payload's own pieces.
///
/// # Errors
/// [`WireErrorKind::TooLong`] when the request is above the bounds of a message.
pub fn encode_request(request: &Request) -> Result<Vec<Bytes>, WireError> {
    let mut out = Writer::new();
    if request.has_answer() {
        put_capability(&mut out, &request.capability);
    }
    if let Some(route) = &request.route {
        put_route(&mut out, route);
    }
    let op = put_body(&mut out, &request.body);
    let op = match request.route.as_ref().map(|route| &route.content) {
        None => op,
        Some(Content::Same) => op | op::ROUTED,
        Some(Content::Column(column)) => match column.factors {
            Factors::Scalars(_) => op | op::STREAMED,
            Factors::Elements(_) => op | op::TABLED,
        },
        Some(Content::Parts) => op | op::PARTED,
    };
    let version = match request.fragment_role() {
        FragmentRole::Begins(_) => WIRE_VERSION_FRAGMENTS,
        _ => Request::version_of(op),
    };
    let envelope = Envelope {
        direction: Request::DIRECTION,
        version,
        op,
        tag: request.tag,
        slots_free: 0,
        body_max: Request::BODY_BYTES_MAX,
    };
    match request.body {
        RequestBody::Fragment { payload_crc, .. } => {
            let len_bytes = request.payload.iter().map(Bytes::len).sum();
            check_len("payload", len_bytes, FRAGMENT_BYTES_MAX).map_err(|kind| kind.at(24))?;
            assemble_with(&envelope, out.0, &request.payload, payload_crc)
        }
        _ => assemble(&envelope, out.0, &request.payload),
    }
}

fn put_capability(out: &mut Writer, capability: &Capability) {
    out.u128(capability.volume.0);
    out.u64(capability.epoch.0);
    out.u32(capability.rights.0);
    out.u64(capability.segment_first.0);
    out.u64(capability.segment_last.0);
    out.u64(capability.expires_ns);
    out.raw(&capability.mac);
}

fn get_capability(body: &mut Reader<'_>) -> Result<Capability, WireError> {
    let what = "the capability";
    Ok(Capability {
        volume: VolumeId(body.u128(what)?),
        epoch: Epoch(body.u64(what)?),
        rights: Rights(body.u32(what)?),
        segment_first: SegmentId(body.u64(what)?),
        segment_last: SegmentId(body.u64(what)?),
        expires_ns: body.u64(what)?,
        mac: body.array(what)?,
    })
}

fn put_route(out: &mut Writer, route: &Route) {
    out.u8(route.strategy as u8);
    out.u8(route.rank);
    out.u32(route.wait_ms);
    out.count(route.replicas.len());
    for replica in &route.replicas {
        out.u16(replica.node.0);
        out.u64(replica.pass.0);
        out.u8(replica.shard.0);
        out.bytes(&replica.address);
    }
    if let Content::Column(column) = &route.content {
        out.u8(column.index);
        out.u8(column.count);
        match &column.factors {
            Factors::Scalars(factors) => out.bytes(factors),
            Factors::Elements(table) => {
                out.u32(table.chunk_bytes);
                out.u16(table.elements);
                out.bytes(&table.encoded);
            }
        }
    }
    if let Fragments::Follow(bytes) = route.fragments {
        out.u32(bytes);
    }
}

/// The smallest length of a replica: its fields, with an empty address.
const REPLICA_BYTES: usize = 15;

/// The route of a request whose operation has this number. `in_fragments`: the payload follows, and
/// its length is in the body.
fn get_route(body: &mut Reader<'_>, op: u8, in_fragments: bool) -> Result<Route, WireError> {
    let last = u8::try_from(Strategy::ALL.len() - 1).expect("four strategies");
    let strategy = Strategy::ALL[usize::from(body.choice(last, "the strategy")?)];
    let rank = body.u8("the rank")?;
    let wait_ms = body.u32("the wait")?;
    let count = body.count(REPLICA_BYTES, "the replicas")?;
    if count > REPLICAS_MAX {
        return Err(body.value_error("the number of replicas", count as u64, 4));
    }
    let replicas = (0..count).map(|_| {
        let node = NodeIndex(body.u16("a replica's node")?);
        let pass = Pass(body.u64("a replica's pass")?);
        let shard = ShardIndex(body.u8("a replica's shard")?);
        let address = body.bytes("a replica's address")?;
        match address.len() <= ADDRESS_BYTES_MAX {
            true => Ok(Replica { node, pass, shard, address }),
            false => Err(body.value_error("an address's length", address.len() as u64, 0)),
        }
    });
    let replicas = replicas.collect::<Result<_, WireError>>()?;
    let content = match op {
        op::PARTED.. => Content::Parts,
        op::STREAMED.. => Content::Column(get_column(body, op)?),
        _ => Content::Same,
    };
    let fragments = match in_fragments {
        true => Fragments::Follow(get_payload_len(body)?),
        false => Fragments::Whole,
    };
    Ok(Route { strategy, rank, wait_ms, replicas, content, fragments })
}

/// The length of a payload that follows in fragments.
fn get_payload_len(body: &mut Reader<'_>) -> Result<u32, WireError> {
    let len_bytes = body.u32("the length of the payload")?;
    match len_bytes > 0 && len_bytes as usize <= PAYLOAD_BYTES_MAX {
        true => Ok(len_bytes),
        false => Err(body.value_error("the length of the payload", u64::from(len_bytes), 4)),
    }
}

fn get_column(body: &mut Reader<'_>, op: u8) -> Result<Column, WireError> {
    let (index, count) = (body.u8("the column")?, body.u8("the number of columns")?);
    if op >= op::TABLED {
        let chunk_bytes = body.u32("the length of a chunk")?;
        let elements = body.u16("the number of elements")?;
        let encoded = body.bytes("the table of elements")?;
        let factors = Factors::Elements(ElementTable { chunk_bytes, elements, encoded });
        return Ok(Column { index, count, factors });
    }
    let factors = body.bytes("the factors")?;
    match factors.len() < REPLICAS_MAX {
        true => Ok(Column { index, count, factors: Factors::Scalars(factors) }),
        false => Err(body.value_error("the number of factors", factors.len() as u64, 0)),
    }
}

/// Writes the fields of an operation; returns its number.
fn put_body(out: &mut Writer, body: &RequestBody) -> u8 {
    match body {
        RequestBody::Identify => op::IDENTIFY,
        RequestBody::ListVolumes => op::LIST_VOLUMES,
        RequestBody::Fence { takeover } => {
            out.u8(u8::from(*takeover));
            op::FENCE
        }
        RequestBody::PutRoot { version } => {
            out.u64(*version);
            op::PUT_ROOT
        }
        RequestBody::JournalCreate { generation, ring_bytes } => {
            out.u64(generation.0);
            out.u64(*ring_bytes);
            op::JOURNAL_CREATE
        }
        RequestBody::JournalAppend { generation, lsn } => {
            out.u64(generation.0);
            out.u64(lsn.0);
            op::JOURNAL_APPEND
        }
        RequestBody::JournalSync { generation } => {
            out.u64(generation.0);
            op::JOURNAL_SYNC
        }
        RequestBody::JournalRead { generation, offset_bytes, len_bytes } => {
            out.u64(generation.0);
            out.u64(*offset_bytes);
            out.u32(*len_bytes);
            op::JOURNAL_READ
        }
        RequestBody::JournalDelete { first, below } => {
            out.u64(first.0);
            out.u64(below.0);
            op::JOURNAL_DELETE
        }
        shard => put_shard_body(out, shard),
    }
}

fn put_shard_body(out: &mut Writer, body: &RequestBody) -> u8 {
    match body {
        RequestBody::ShardWrite { segment, shard, offset_bytes, checksums, seal, data_first } => {
            out.u64(segment.0);
            out.u8(shard.0);
            out.u32(*offset_bytes);
            out.u8(match (seal, data_first) {
                (None, _) => 0,
                (Some(_), false) => 1,
                (Some(_), true) => 2,
            });
            if let Some(meta) = seal {
                put_meta(out, meta);
            }
            put_checksums(out, checksums);
            op::SHARD_WRITE
        }
        RequestBody::ShardRead { segment, shard, offset_bytes, len_bytes } => {
            out.u64(segment.0);
            out.u8(shard.0);
            out.u32(*offset_bytes);
            out.u32(*len_bytes);
            op::SHARD_READ
        }
        RequestBody::ShardVerify { segment, shard } => {
            out.u64(segment.0);
            out.u8(shard.0);
            op::SHARD_VERIFY
        }
        RequestBody::ShardDelete { segments } => {
            out.count(segments.len());
            segments.iter().for_each(|segment| out.u64(segment.0));
            op::SHARD_DELETE
        }
        RequestBody::ShardList { from } => {
            out.u64(from.0);
            op::SHARD_LIST
        }
        RequestBody::ShardSync => op::SHARD_SYNC,
        RequestBody::RemoveVolume => op::REMOVE_VOLUME,
        RequestBody::Reserve { slots, spare } => {
            out.u32(*slots);
            out.u32(*spare);
            op::RESERVE
        }
        RequestBody::RenewRecord => op::RENEW_RECORD,
        RequestBody::AdmitRelays { pass } => {
            out.u64(pass.0);
            op::ADMIT_RELAYS
        }
        RequestBody::Fragment { checksums, .. } => {
            put_checksums(out, checksums);
            op::FRAGMENT
        }
        RequestBody::GiveUp => op::GIVE_UP,
        _ => op::STAT,
    }
}

fn put_checksums(out: &mut Writer, checksums: &[u32]) {
    out.count(checksums.len());
    checksums.iter().for_each(|&crc| out.u32(crc));
}

fn get_checksums(body: &mut Reader<'_>) -> Result<Vec<u32>, WireError> {
    let count = body.count(4, "the checksums")?;
    (0..count).map(|_| body.u32("the checksums")).collect()
}

pub(super) fn put_meta(out: &mut Writer, meta: &SealMeta) {
    out.u8(meta.kind as u8);
    out.u64(meta.lsn_first.0);
    out.u64(meta.lsn_end.0);
    out.u32(meta.shard_bytes);
}

pub(super) fn get_meta(body: &mut Reader<'_>) -> Result<SealMeta, WireError> {
    let kind = match body.u8("the kind of the segment")? {
        0 => SegmentKind::Data,
        1 => SegmentKind::Checkpoint,
        other => return Err(body.value_error("the kind of the segment", u64::from(other), 1)),
    };
    Ok(SealMeta {
        kind,
        lsn_first: Lsn(body.u64("the first log position")?),
        lsn_end: Lsn(body.u64("the last log position")?),
        shard_bytes: body.u32("the length of the shard")?,
    })
}

impl Parts for Request {
    const DIRECTION: u8 = 0;
    const BODY_BYTES_MAX: usize = REQUEST_BODY_BYTES_MAX;

    fn version_of(op: u8) -> u16 {
        match op {
            op::TABLED..op::PARTED => WIRE_VERSION_TABLES,
            op::PARTED.. => WIRE_VERSION_PARTS,
            op::STREAMED.. => WIRE_VERSION_COLUMNS,
            op::FRAGMENT | op::GIVE_UP => WIRE_VERSION_FRAGMENTS,
            op::ADMIT_RELAYS.. => WIRE_VERSION_ROUTES,
            _ => WIRE_VERSION_BASIC,
        }
    }

    fn has_version(op: u8, version: u16) -> bool {
        version == Self::version_of(op) || (version == WIRE_VERSION_FRAGMENTS && op >= op::ROUTED)
    }

    fn payload_bytes_max(op: u8, version: u16) -> usize {
        match (op, version) {
            (op::FRAGMENT, _) => FRAGMENT_BYTES_MAX,
            (op::GIVE_UP, _) | (_, WIRE_VERSION_FRAGMENTS) => 0,
            _ => PAYLOAD_BYTES_MAX,
        }
    }

    fn is_fragment(op: u8) -> bool {
        op == op::FRAGMENT
    }

    fn role(&self) -> FragmentRole {
        self.fragment_role()
    }

    fn no_room(&mut self) -> bool {
        match &mut self.route {
            Some(route) => {
                route.fragments = Fragments::NoRoom;
                true
            }
            None => false,
        }
    }

    fn decode(header: &Header, body: &[u8], payload: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(body);
        if matches!(header.op, op::FRAGMENT | op::GIVE_UP) {
            return decode_fragment(header, reader, payload);
        }
        let capability = get_capability(&mut reader)?;
        let first = match header.op {
            op::PARTED.. => op::PARTED,
            op::TABLED.. => op::TABLED,
            op::STREAMED.. => op::STREAMED,
            op::ROUTED.. => op::ROUTED,
            _ => 0,
        };
        let (op, in_fragments) =
            (header.op - first, header.version.get() == WIRE_VERSION_FRAGMENTS);
        let route = match first {
            0 => None,
            _ => Some(Box::new(get_route(&mut reader, header.op, in_fragments)?)),
        };
        let body = match op {
            op::FENCE..=op::JOURNAL_DELETE => get_volume_body(op, &mut reader)?,
            other => get_shard_body(other, &mut reader)?,
        };
        reader.finish()?;
        let payload = if payload.is_empty() { Vec::new() } else { vec![payload] };
        Ok(Request { tag: Tag(header.tag.get()), capability, body, route, payload })
    }
}

/// A fragment of a write, or the end of one whose other fragments do not come.
fn decode_fragment(
    header: &Header,
    mut reader: Reader<'_>,
    payload: Bytes,
) -> Result<Request, WireError> {
    let body = match header.op {
        op::FRAGMENT => RequestBody::Fragment {
            checksums: get_checksums(&mut reader)?,
            payload_crc: header.payload_crc.get(),
        },
        _ => RequestBody::GiveUp,
    };
    reader.finish()?;
    let payload = if payload.is_empty() { Vec::new() } else { vec![payload] };
    let (tag, capability) = (Tag(header.tag.get()), Capability::default());
    Ok(Request { tag, capability, body, route: None, payload })
}

fn get_volume_body(op: u8, body: &mut Reader<'_>) -> Result<RequestBody, WireError> {
    if op == op::FENCE {
        return Ok(RequestBody::Fence { takeover: body.flag("takeover")? });
    }
    if op == op::PUT_ROOT {
        return Ok(RequestBody::PutRoot { version: body.u64("the root's version")? });
    }
    let generation = JournalGen(body.u64("the journal's generation")?);
    Ok(match op {
        op::JOURNAL_CREATE => {
            let ring_bytes = body.u64("the size of the ring")?;
            RequestBody::JournalCreate { generation, ring_bytes }
        }
        op::JOURNAL_APPEND => {
            let lsn = Lsn(body.u64("the log position")?);
            RequestBody::JournalAppend { generation, lsn }
        }
        op::JOURNAL_SYNC => RequestBody::JournalSync { generation },
        op::JOURNAL_READ => RequestBody::JournalRead {
            generation,
            offset_bytes: body.u64("the offset")?,
            len_bytes: body.u32("the length")?,
        },
        _ => RequestBody::JournalDelete {
            first: generation,
            below: JournalGen(body.u64("the first generation that stays")?),
        },
    })
}

fn get_shard_body(op: u8, body: &mut Reader<'_>) -> Result<RequestBody, WireError> {
    Ok(match op {
        op::IDENTIFY => RequestBody::Identify,
        op::LIST_VOLUMES => RequestBody::ListVolumes,
        op::SHARD_SYNC => RequestBody::ShardSync,
        op::REMOVE_VOLUME => RequestBody::RemoveVolume,
        op::STAT => RequestBody::Stat,
        op::RESERVE => RequestBody::Reserve {
            slots: body.u32("the slots")?,
            spare: body.u32("the spare slots")?,
        },
        op::RENEW_RECORD => RequestBody::RenewRecord,
        op::ADMIT_RELAYS => RequestBody::AdmitRelays { pass: Pass(body.u64("the pass")?) },
        op::SHARD_WRITE => get_shard_write(body)?,
        op::SHARD_READ => RequestBody::ShardRead {
            segment: SegmentId(body.u64("the segment")?),
            shard: ShardIndex(body.u8("the shard")?),
            offset_bytes: body.u32("the offset")?,
            len_bytes: body.u32("the length")?,
        },
        op::SHARD_VERIFY => RequestBody::ShardVerify {
            segment: SegmentId(body.u64("the segment")?),
            shard: ShardIndex(body.u8("the shard")?),
        },
        op::SHARD_DELETE => {
            let count = body.count(8, "the segments")?;
            let segments = (0..count).map(|_| body.u64("the segments").map(SegmentId));
            RequestBody::ShardDelete { segments: segments.collect::<Result<_, _>>()? }
        }
        op::SHARD_LIST => RequestBody::ShardList { from: SegmentId(body.u64("the segment")?) },
        other => {
            let value = u64::from(other);
            return Err(WireErrorKind::Value { what: "the operation", value }.at(7));
        }
    })
}

fn get_shard_write(body: &mut Reader<'_>) -> Result<RequestBody, WireError> {
    let segment = SegmentId(body.u64("the segment")?);
    let shard = ShardIndex(body.u8("the shard")?);
    let offset_bytes = body.u32("the offset")?;
    let sealing = body.choice(2, "the seal's presence")?;
    let seal = if sealing > 0 { Some(get_meta(body)?) } else { None };
    let data_first = sealing == 2;
    let checksums = get_checksums(body)?;
    Ok(RequestBody::ShardWrite { segment, shard, offset_bytes, checksums, seal, data_first })
}
