//! What a run of a handler may touch: memory of the NIC, addresses of the host, entries to free.
//!
//! A handler gets what its message needs, and no more. Whose message it is, the scheduler reads
//! itself, from the first packet: the place of the scheme, of the rank and of the segment is fixed.
//! When the header handler accepts the message, the command unit keeps the place that the handler
//! has written into the message's entry. The place must be inside of the extent of the segment that
//! the first packet names, or inside of the message's staging area. Later handlers may change the
//! entry, and reach no other place by it.
//!
//! | handler | memory beside program, stack, task, scratch and the message's entry | host |
//! |---|---|---|
//! | header | packet; fields of the context; capabilities of the core; on a parity node the pool without its accumulators | on a parity node its staging area |
//! | payload | packet; on a data node coefficients and tables; on a parity node its parity write's counts and the packet's accumulator | the place of its write |
//! | completion, cleanup | the node's number; on a parity node the pool's list of free accumulators, its parity write, and all accumulators | nothing |
//!
//! So the keys are for header handlers, which check capabilities. **Not narrower:** the header
//! handler of a parity node looks through all parity writes for its own, and takes accumulators.
//! The handler that ends a parity write gives its accumulators back. There may be 16, which are not
//! next to each other, and a core has [`MAX_GRANTS`](crate::riscv::memory::MAX_GRANTS) grants, of
//! which these handlers need 8 for the rest.

use std::ops::Range;

use super::engine::{Area, Handler};
use super::packet::{PACKET_HEADER_BYTES, PacketHeader};
use super::state::{
    ACCUMULATOR_BYTES, ACCUMULATORS, ACCUMULATORS_AT, CACHE_BYTES, COEFFICIENTS_AT, CONTEXT_BYTES,
    ELEMENTS_AT, EXTENT_BYTES, EXTENTS_AT, GROUP_BYTES, GROUP_PACKETS, GROUPS, GROUPS_AT,
    HOST_LEN_AT, POOL_BYTES, STAGING_LEN_AT, TABLES_AT,
};
use crate::riscv::memory::Permission;

/// Where a message's entry has the place of its write, its length, and its group.
const ENTRY_ADDRESS_AT: usize = 48;
const ENTRY_LENGTH_AT: usize = 56;
const ENTRY_GROUP_AT: usize = 64;
/// In the group's word: the CPU aggregates (`REQUEST_HOST`).
const STAGED: u32 = 0x100;

/// Where a first packet has the volume of its capability, its segment, and its strategy.
const PACKET_VOLUME_AT: usize = PACKET_HEADER_BYTES + 16;
const PACKET_SEGMENT_AT: usize = PACKET_HEADER_BYTES + 84;
const PACKET_STRATEGY_AT: usize = PACKET_SEGMENT_AT + 12;
/// `STRATEGY_CODE` and `STRATEGY_ELEMENTS`: data nodes and parity nodes take part.
const CODES: [u8; 2] = [3, 4];

/// Where a group has its number of packets, whether it failed, what it counts by packet, and which
/// accumulators are its own.
const GROUP_PACKETS_AT: usize = 15 * 4;
const GROUP_FAILED_AT: usize = 20 * 4;
const GROUP_COUNTS_AT: usize = GROUP_ACCUMULATORS_AT - GROUP_COUNTS_BYTES;
const GROUP_COUNTS_BYTES: usize = 2 * 4 * GROUP_PACKETS;
const GROUP_ACCUMULATORS_AT: usize = GROUP_BYTES - 4 * GROUP_PACKETS;

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at + 4)) << 32 | u64::from(word(bytes, at))
}

/// What a node does in the write of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    /// Stores, and perhaps forwards.
    #[default]
    Store,
    /// Stores its data, and encodes it for parity nodes.
    Data,
    /// Adds up what data nodes send.
    Parity,
}

impl Part {
    /// The part that a first packet gives to the node. Whoever lies here gets the grants of another
    /// part for a write that the header handler refuses.
    fn of(packet: &[u8]) -> Self {
        match (PacketHeader::parse(packet), packet.get(PACKET_STRATEGY_AT)) {
            (Some(header), Some(strategy)) if CODES.contains(strategy) => {
                if header.place >> 16 & 0xff == 0 { Part::Data } else { Part::Parity }
            }
            _ => Part::Store,
        }
    }
}

/// The areas of the host's memory where parity writes are staged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Staging {
    /// Storage ends here.
    start: u64,
    area_bytes: u32,
}

impl Staging {
    /// That of a context.
    pub(super) fn of(context: &[u8]) -> Self {
        Self { start: long(context, HOST_LEN_AT), area_bytes: word(context, STAGING_LEN_AT) }
    }

    /// The area of an entry.
    fn area(&self, slot: u32) -> Range<u64> {
        let at = |slot| self.start.saturating_add(u64::from(slot) * u64::from(self.area_bytes));
        at(slot)..at(slot + 1)
    }
}

/// Bytes of a memory that handlers share, and what is allowed there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) area: Area,
    pub(super) bytes: Range<usize>,
    pub(super) permission: Permission,
}

/// What the NIC keeps of a message beside its entry: handlers cannot change it.
#[derive(Clone, Debug, Default)]
pub(super) struct Claim {
    /// The message's name in commands.
    request_id: u32,
    part: Part,
    /// What the header handler's acceptance gave.
    accepted: Option<Accepted>,
}

#[derive(Clone, Debug)]
struct Accepted {
    /// The bytes of the host that the write is for; none if they are not the message's.
    place: Range<u64>,
    /// The word of the entry that names the parity write.
    group: u32,
}

impl Claim {
    /// That of a message before its header handler, by its first packet.
    pub(super) fn of(request_id: u32, packet: &[u8]) -> Self {
        Self { request_id, part: Part::of(packet), accepted: None }
    }

    /// The word that names the message's parity write. Of a message whose header handler was
    /// stopped, the entry alone has it.
    fn group(&self, entry: &[u8]) -> u32 {
        self.accepted.as_ref().map_or(word(entry, ENTRY_GROUP_AT), |accepted| accepted.group)
    }

    /// The header handler has accepted the message of entry `slot`.
    pub(super) fn accept(
        &mut self,
        slot: u32,
        entry: &[u8],
        packet: &[u8],
        context: &[u8],
        staging: Staging,
    ) {
        let start = long(entry, ENTRY_ADDRESS_AT);
        let end = start.saturating_add(u64::from(word(entry, ENTRY_LENGTH_AT)));
        let (place, group) = (start..end, word(entry, ENTRY_GROUP_AT));
        let is_staged = self.part == Part::Parity && contains(&staging.area(slot), &place);
        let is_own = is_staged || is_in_segment(&place, packet, context, staging.start);
        self.accepted = Some(Accepted { place: if is_own { place } else { 0..0 }, group });
    }

    /// The shared memory for a run of a handler.
    pub(super) fn memory(
        &self,
        handler: Handler,
        packet: &[u8],
        entry: &[u8],
        pool: &[u8],
    ) -> Vec<Reach> {
        let read = |bytes| Reach { area: Area::Context, bytes, permission: Permission::READ };
        let group = self.group(entry);
        let is_staged = group & STAGED != 0;
        let group = (group as u8).checked_sub(1).filter(|&group| usize::from(group) < GROUPS);
        let group = group.map(|group| GROUPS_AT + usize::from(group) * GROUP_BYTES);
        let mut all = match handler {
            Handler::Header => {
                let cache = 0..CACHE_BYTES;
                let cache =
                    Reach { area: Area::Cache, bytes: cache, permission: Permission::WRITE };
                vec![read(0..TABLES_AT), cache]
            }
            Handler::Payload if self.part == Part::Data => {
                vec![read(COEFFICIENTS_AT..STAGING_LEN_AT), read(ELEMENTS_AT..CONTEXT_BYTES)]
            }
            Handler::Payload => Vec::new(),
            Handler::Completion | Handler::Cleanup => vec![read(0..4)],
        };
        if self.part == Part::Parity {
            all.extend(match (handler, group) {
                (Handler::Header, _) => vec![pool_reach(0..ACCUMULATORS_AT)],
                (Handler::Payload, Some(group)) if !is_staged => sums(packet, pool, group),
                (Handler::Completion | Handler::Cleanup, Some(group)) => vec![
                    pool_reach(0..GROUPS_AT),
                    pool_reach(group..group + GROUP_BYTES),
                    pool_reach(ACCUMULATORS_AT..POOL_BYTES),
                ],
                _ => Vec::new(),
            });
        }
        all
    }

    /// The addresses of the host that a run of a handler may write.
    pub(super) fn host(&self, handler: Handler, slot: u32, staging: Staging) -> Range<u64> {
        match (handler, &self.accepted) {
            (Handler::Header, _) if self.part == Part::Parity => staging.area(slot),
            (Handler::Payload, Some(accepted)) => accepted.place.clone(),
            _ => 0..0,
        }
    }

    /// Whether a handler of this message may have the NIC forget the message `request_id`: this
    /// one, or one of the same parity write, because the last one that ends does so for all. A
    /// message that is forgotten already may be named. `other` and `other_entry` are those of the
    /// entry that the name is for.
    pub(super) fn may_free(
        &self,
        entry: &[u8],
        request_id: u32,
        (other, other_entry): (&Claim, &[u8]),
    ) -> bool {
        let is_forgotten = other.request_id != request_id || other_entry.iter().all(|&b| b == 0);
        let both = (self.part, other.part);
        request_id == self.request_id
            || is_forgotten
            || (both == (Part::Parity, Part::Parity)
                && self.group(entry) as u8 != 0
                && self.group(entry) as u8 == other.group(other_entry) as u8)
    }
}

pub(super) fn contains(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Whether these addresses are inside of the extent of the segment that a first packet names, and
/// so of storage, which ends at `end`.
fn is_in_segment(place: &Range<u64>, packet: &[u8], context: &[u8], end: u64) -> bool {
    let (Some(volume), Some(segment)) = (
        packet.get(PACKET_VOLUME_AT..PACKET_VOLUME_AT + 16),
        packet.get(PACKET_SEGMENT_AT..PACKET_SEGMENT_AT + 8),
    ) else {
        return false;
    };
    let extents = context[EXTENTS_AT..ELEMENTS_AT].chunks_exact(EXTENT_BYTES);
    extents.filter(|extent| &extent[..16] == volume && &extent[16..24] == segment).any(|extent| {
        let base = long(extent, 24);
        let extent = base..base.saturating_add(u64::from(word(extent, 32))).min(end);
        contains(&extent, place)
    })
}

fn pool_reach(bytes: Range<usize>) -> Reach {
    Reach { area: Area::Pool, bytes, permission: Permission::WRITE }
}

/// For a packet of a parity node: what its parity write has counted, and the packet's accumulator.
/// The list of accumulators is for reading: no packet's handler can change the next one's grants.
fn sums(packet: &[u8], pool: &[u8], group: usize) -> Vec<Reach> {
    let failed = group + GROUP_FAILED_AT;
    let counts = group + GROUP_COUNTS_AT;
    let whole = group..group + GROUP_BYTES;
    let mut all = vec![
        pool_reach(failed..failed + 4),
        pool_reach(counts..counts + GROUP_COUNTS_BYTES),
        Reach { area: Area::Pool, bytes: whole, permission: Permission::READ },
    ];
    let number = PacketHeader::parse(packet).map(|header| header.place & 0xffff);
    let packets = word(pool, group + GROUP_PACKETS_AT).min(GROUP_PACKETS as u32);
    if let Some(number) = number.filter(|&number| number < packets) {
        let at = group + GROUP_ACCUMULATORS_AT + 4 * number as usize;
        let accumulator = word(pool, at) as usize % ACCUMULATORS;
        let start = ACCUMULATORS_AT + accumulator * ACCUMULATOR_BYTES;
        all.push(pool_reach(start..start + ACCUMULATOR_BYTES));
    }
    all
}
