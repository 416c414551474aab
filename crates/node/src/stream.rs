//! Streamed parity: the nodes code a stripe while they store it.
//!
//! A write of a data shard may have a route with a column ([`fieldstone_proto::Column`]). This is
//! TriEC as the network-accelerated DFS paper streams it (section VI-B), with messages in place of
//! packets:
//!
//! ```text
//!  volume --data 0--> data node 0 --product--+--> parity node k      sum of k products: write it,
//!         --data 1--> data node 1 --product--+                       then answer all of them
//!         ...                                +--> parity node k + 1  the same with other factors
//! ```
//!
//! - *Data node.* It writes its shard like any other. It multiplies the same bytes by its column of
//!   the code (`products`), and passes the products, its *contributions*, on. The shard and its
//!   parity must belong together, so the node first compares the bytes with the writer's checksums,
//!   whatever its configuration is. If they differ, it passes nothing on; of a shard that comes in
//!   fragments, nothing more.
//! - *Parity node.* The first contribution to a piece of a shard takes an accumulator. Each further
//!   one is added, and its entry waits. The last one writes the sum, and the result of this write
//!   answers all of them. So "done" from any data node means that the contributions of all data
//!   nodes are in the file.
//! - *Checksums.* Each contribution has those of its blocks. The node adds them up as well
//!   ([`crc32c_of_sum`]) and stores the sum. It never makes a checksum from the sum of the bytes.
//!   So damage in an accumulator shows like damage on a disk.
//! - *Memory.* Sums and products have memory of their own (`parity_memory`): sums from the first
//!   contribution until the disk has the sum, products until they have left. A parity node that has
//!   none for a sum denies the sum ([`NodeError::Denied`]): this contribution, those that have come
//!   and those that come later (`denied_sums`). A data node that has none for a product passes an
//!   empty contribution on, and the parity node denies the sum, too. So the data nodes have their
//!   answers at once, the volume makes this parity, and other sums go on.
//! - *Bounds.* One volume may also use a part of the request table for contributions that wait
//!   ([`GATHERING_PER_VOLUME_MAX`]). The node denies the sum that finds no room there. It gives up
//!   an accumulator that is not complete in time ([`fieldstone_proto::Route::gather_ms`]), unless
//!   it was late itself (`own_delay`).
//! - *Passes.* Contributions come from other nodes, so they need the writer's pass (`volumes`).
//!   Without it an accumulator can never become complete. So a new pass, and the loss of the
//!   writer's connection, end the volume's accumulators at once, with [`NodeError::Busy`].
//! - *Fences and removals* do not wait for contributions that wait for others. They wait for the
//!   write of a sum, which the last contribution's entry stands for. After a fence the older
//!   epoch's contributions are refused, so its accumulators end by time.
//! - *Twice.* A column that has contributed already is refused, so no product counts twice.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_proto::{
    BLOCK_BYTES, Column, Epoch, NodeError, RequestBody, SealMeta, VolumeId, ZERO_BLOCK_CRC32C,
    crc32c_of_sum,
};

use crate::control_events::ControlEvent;
use crate::denied_sums::DeniedSums;
use crate::handlers::payload_len;
use crate::limits::GATHERING_PER_VOLUME_MAX;
use crate::node::Node;
use crate::own_delay::OwnDelay;
use crate::parity_memory::{ParityLease, ParityMemory};
use crate::relays::NS_PER_MS;
use crate::request_table::{EntryId, Task};
use crate::store::ShardKey;

/// A piece of a parity shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Piece {
    pub(crate) key: ShardKey,
    pub(crate) offset_bytes: u32,
}

/// What all contributions to a piece have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    epoch: Epoch,
    /// Number of contributions.
    count: u8,
    len_bytes: usize,
    seal: Option<SealMeta>,
    data_first: bool,
}

/// The sum of the contributions that have come.
#[derive(Debug)]
struct Accumulator {
    kind: Kind,
    sum: AlignedBuf,
    memory: ParityLease,
    checksums: Vec<u32>,
    /// The columns, and their entries.
    from: Vec<(u8, EntryId)>,
    due_ns: u64,
}

/// What one volume uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    /// Bytes of sums: those that are incomplete, and those that are being written.
    bytes: usize,
    /// Contributions that wait for others.
    waiting: usize,
}

/// The accumulators.
#[derive(Debug)]
pub(crate) struct Accumulators {
    by_piece: BTreeMap<Piece, Accumulator>,
    due: BTreeSet<(u64, Piece)>,
    delay: OwnDelay,
    /// The shares of volumes that use anything.
    shares: BTreeMap<VolumeId, Share>,
    /// The sum of their bytes.
    used_bytes: usize,
    memory: ParityMemory,
    denied: DeniedSums,
}

/// What the entry that writes a sum stands for.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// The entries of the other contributions.
    others: Vec<EntryId>,
    /// Length of the sum; 0 if the entry writes none.
    len_bytes: usize,
}

/// Why a contribution is not added.
enum Refusal {
    NoMemory,
    /// Too many contributions wait.
    NoRoom,
    Invalid(String),
}

impl Accumulators {
    pub(crate) fn new(memory: ParityMemory) -> Self {
        Self {
            by_piece: BTreeMap::new(),
            due: BTreeSet::new(),
            delay: OwnDelay::default(),
            shares: BTreeMap::new(),
            used_bytes: 0,
            memory,
            denied: DeniedSums::default(),
        }
    }

    /// Bytes in use.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// When the next accumulator is given up.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| self.delay.end_ns(*due_ns))
    }

    /// For tests: nothing is in use.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_piece.is_empty()
            && self.due.is_empty()
            && self.shares.is_empty()
            && self.used_bytes == 0
            && self.denied.is_consistent()
    }

    /// Adds a contribution. Takes a new accumulator for the first one to a piece, and gives the
    /// accumulator with the last one. The bytes of a complete sum stay in use until
    /// [`Accumulators::give_back`].
    fn add(
        &mut self,
        piece: Piece,
        (kind, due_ns): (Kind, u64),
        contribution: &Contribution<'_>,
    ) -> Result<Option<Accumulator>, Refusal> {
        let share = self.shares.get(&piece.key.volume).copied().unwrap_or_default();
        let found = self.by_piece.get(&piece);
        if found.is_some_and(|found| found.kind != kind) {
            return Err(Refusal::Invalid("contributions that do not fit together".to_owned()));
        }
        let column = contribution.column;
        if found.is_some_and(|found| found.from.iter().any(|(other, _)| *other == column)) {
            return Err(Refusal::Invalid(format!("column {column} has contributed already")));
        }
        let is_last = found.map_or(0, |found| found.from.len()) + 1 == usize::from(kind.count);
        if !is_last && share.waiting >= GATHERING_PER_VOLUME_MAX {
            return Err(Refusal::NoRoom);
        }
        if found.is_none() {
            let memory = self.memory.lease_sum(piece.key.volume, kind.len_bytes);
            let memory = memory.ok_or(Refusal::NoMemory)?;
            self.used_bytes += kind.len_bytes;
            self.due.insert((due_ns, piece));
            self.by_piece.insert(piece, Accumulator::new(kind, memory, due_ns));
        }
        let accumulator = self.by_piece.get_mut(&piece).expect("found or made");
        let is_first = accumulator.from.is_empty();
        accumulator.add(contribution);
        let share = self.shares.entry(piece.key.volume).or_default();
        share.bytes += if is_first { kind.len_bytes } else { 0 };
        share.waiting += 1;
        Ok(is_last.then(|| self.remove(piece)).flatten())
    }

    /// Ends an accumulator. Its contributions do not wait any more.
    fn remove(&mut self, piece: Piece) -> Option<Accumulator> {
        let removed = self.by_piece.remove(&piece)?;
        self.due.remove(&(removed.due_ns, piece));
        if let Some(share) = self.shares.get_mut(&piece.key.volume) {
            share.waiting -= removed.from.len();
        }
        Some(removed)
    }

    /// The bytes of a sum of the volume are not in use any more.
    fn give_back(&mut self, volume: VolumeId, len_bytes: usize) {
        self.used_bytes -= len_bytes;
        if let Some(share) = self.shares.get_mut(&volume) {
            share.bytes -= len_bytes;
            if *share == Share::default() {
                self.shares.remove(&volume);
            }
        }
    }

    /// Gives an incomplete accumulator up, if there is one. The entries of its columns are to be
    /// answered.
    fn give_up(&mut self, piece: Piece) -> Vec<(u8, EntryId)> {
        let Some(given_up) = self.remove(piece) else { return Vec::new() };
        self.give_back(piece.key.volume, given_up.kind.len_bytes);
        given_up.from
    }

    /// The piece of an accumulator whose time is over, if there is one, and the number of its
    /// contributions.
    fn overdue(&mut self, now_ns: u64) -> Option<(Piece, u8)> {
        let (due_ns, piece) = *self.due.first()?;
        let count = self.by_piece.get(&piece)?.kind.count;
        self.delay.is_over(now_ns, due_ns).then_some((piece, count))
    }
}

/// What a data node contributes to a piece.
struct Contribution<'a> {
    column: u8,
    entry: EntryId,
    payload: &'a [Bytes],
    checksums: &'a [u32],
}

impl Accumulator {
    fn new(kind: Kind, memory: ParityLease, due_ns: u64) -> Self {
        let sum = AlignedBuf::zeroed(kind.len_bytes);
        let checksums = vec![ZERO_BLOCK_CRC32C; kind.len_bytes / BLOCK_BYTES];
        Self { kind, sum, memory, checksums, from: Vec::new(), due_ns }
    }

    fn add(&mut self, contribution: &Contribution<'_>) {
        let Contribution { column, entry, payload, checksums } = *contribution;
        self.from.push((column, entry));
        let mut rest = &mut self.sum[..];
        for part in payload {
            let (sum, after) = rest.split_at_mut(part.len());
            sum.iter_mut().zip(&part[..]).for_each(|(sum, byte)| *sum ^= byte);
            rest = after;
        }
        for (sum, checksum) in self.checksums.iter_mut().zip(checksums) {
            *sum = crc32c_of_sum(*sum, *checksum);
        }
    }
}

impl Node {
    /// Takes an admitted contribution to a parity shard.
    pub(crate) fn contribute(&mut self, now_ns: u64, id: EntryId) {
        let task = std::mem::replace(&mut self.table[id].task, Task::Gathering);
        let Task::Parked(request) = task else { unreachable!("a write was just admitted") };
        let (body, payload) = *request;
        match self.add_contribution(now_ns, id, body, &payload) {
            Err(error) => self.close(id, Err(error)),
            Ok(None) => {
                let entry = &mut self.table[id];
                let (volume, counted) = (entry.volume, std::mem::take(&mut entry.counted));
                self.release(volume, counted);
            }
            Ok(Some((body, sum))) => {
                self.table[id].task = Task::Parked(Box::new((body, vec![sum])));
                self.start_entry(id);
            }
        }
    }

    /// Adds a contribution. Gives the write of the sum if this is the last one.
    fn add_contribution(
        &mut self,
        now_ns: u64,
        id: EntryId,
        body: RequestBody,
        payload: &[Bytes],
    ) -> Result<Option<(RequestBody, Bytes)>, NodeError> {
        let RequestBody::ShardWrite { segment, shard, offset_bytes, checksums, seal, data_first } =
            body
        else {
            unreachable!("the header handler admits no other contribution")
        };
        let entry = &mut self.table[id];
        let (volume, epoch) = (entry.volume, entry.epoch);
        let Some(relay) = &mut entry.relay else { unreachable!("a contribution has a route") };
        let Some(&Column { index, count, .. }) = relay.route.column() else {
            unreachable!("a contribution has a column")
        };
        let piece = Piece { key: ShardKey { volume, segment, shard }, offset_bytes };
        let kind = Kind { epoch, count, len_bytes: payload_len(payload), seal, data_first };
        let gather_ns = relay.route.gather_ms() * NS_PER_MS;
        let due_ns = now_ns.saturating_add(gather_ns);
        if self.accumulators.denied.denies(now_ns, piece, index) {
            return Err(NodeError::Denied);
        }
        let contribution =
            Contribution { column: index, entry: id, payload, checksums: &checksums };
        let added = match kind.len_bytes {
            // Its data node had no memory for it.
            0 => Err(Refusal::NoRoom),
            _ => self.accumulators.add(piece, (kind, due_ns), &contribution),
        };
        let complete = match added {
            Ok(None) => return Ok(None),
            Ok(Some(complete)) => complete,
            Err(Refusal::Invalid(reason)) => return Err(NodeError::Invalid(reason)),
            Err(Refusal::NoRoom | Refusal::NoMemory) => {
                // The data nodes wait for twice the time that the parity node does.
                let until_ns = due_ns.saturating_add(gather_ns);
                return Err(self.deny_sum((now_ns, until_ns), piece, (index, count)));
            }
        };
        let others = complete.from.iter().map(|(_, entry)| *entry).filter(|entry| *entry != id);
        relay.gathered = Gathered { others: others.collect(), len_bytes: kind.len_bytes };
        self.counters.gathered += 1;
        let checksums = complete.checksums;
        let body =
            RequestBody::ShardWrite { segment, shard, offset_bytes, checksums, seal, data_first };
        Ok(Some((body, complete.sum.freeze_leased(complete.memory))))
    }

    /// A contribution finds no memory, here or at its data node: denies the sum until this time.
    /// Returns the error of this contribution.
    fn deny_sum(
        &mut self,
        (now_ns, until_ns): (u64, u64),
        piece: Piece,
        (column, count): (u8, u8),
    ) -> NodeError {
        let ended = self.accumulators.give_up(piece);
        let columns = ended.iter().map(|(column, _)| *column).chain([column]).collect();
        let noted = self.accumulators.denied.note(now_ns, piece, (columns, count), until_ns);
        let error = if noted { NodeError::Denied } else { NodeError::Busy };
        self.end_contributions(ended, &error);
        error
    }

    /// An entry ends that may have written a sum: counts the sum no more. Returns the entries that
    /// end with it.
    pub(crate) fn end_gathered(&mut self, id: EntryId) -> Vec<EntryId> {
        let Some(relay) = &mut self.table[id].relay else { return Vec::new() };
        let Gathered { others, len_bytes } = std::mem::take(&mut relay.gathered);
        if len_bytes > 0 {
            self.accumulators.give_back(self.table[id].volume, len_bytes);
        }
        others
    }

    /// The volume's contributions from now on carry another pass, or do not come.
    pub(crate) fn drop_accumulators(&mut self, volume: VolumeId) {
        let of_volume = |piece: &&Piece| piece.key.volume == volume;
        let pieces: Vec<Piece> =
            self.accumulators.by_piece.keys().filter(of_volume).copied().collect();
        for piece in pieces {
            let entries = self.accumulators.give_up(piece);
            self.end_contributions(entries, &NodeError::Busy);
        }
        self.accumulators.denied.forget(volume);
    }

    /// Gives up the accumulators that are not complete in time.
    pub(crate) fn expire_accumulators(&mut self, now_ns: u64) {
        while let Some((piece, count)) = self.accumulators.overdue(now_ns) {
            let entries = self.accumulators.give_up(piece);
            self.control_events.push(ControlEvent::SumGivenUp {
                volume: piece.key.volume,
                segment: piece.key.segment,
                arrived: entries.len(),
                count: usize::from(count),
            });
            self.end_contributions(entries, &NodeError::Busy);
        }
    }

    fn end_contributions(&mut self, entries: Vec<(u8, EntryId)>, error: &NodeError) {
        for (_, entry) in entries {
            self.close(entry, Err(error.clone()));
        }
    }
}
