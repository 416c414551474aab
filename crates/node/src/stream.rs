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
//! - *Data node.* It writes its shard like any other. It multiplies the same bytes by the factor of
//!   each parity shard, and passes the products, its *contributions*, on. The shard and its parity
//!   must belong together, so the node first compares the bytes with the writer's checksums,
//!   whatever its configuration is. If they differ, it passes nothing on.
//! - *Parity node.* The first contribution to a piece of a shard takes an accumulator. Each further
//!   one is added, and its entry waits. The last one writes the sum, and the result of this write
//!   answers all of them. So "done" from any data node means that the contributions of all data
//!   nodes are in the file.
//! - *Checksums.* Each contribution has those of its blocks. The node adds them up as well
//!   ([`crc32c_of_sum`]) and stores the sum. It never makes a checksum from the sum of the bytes.
//!   So damage in an accumulator shows like damage on a disk.
//! - *Bounds.* The accumulators share [`crate::NodeConfig::accumulator_bytes`], from the first
//!   contribution until the sum is written. The node denies ([`NodeError::Busy`]) what finds no
//!   room. An accumulator that is not complete in time ([`fieldstone_proto::Route::gather_ms`], at
//!   most [`GATHER_MS_MAX`]) is given up.
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
use fieldstone_gf::{LinearMap, Matrix};
use fieldstone_proto::{
    BLOCK_BYTES, Column, Epoch, NodeError, RequestBody, SealMeta, VolumeId, ZERO_BLOCK_CRC32C,
    crc32c_blocks, crc32c_of_sum,
};

use crate::handlers::{first_mismatch, payload_len};
use crate::limits::GATHER_MS_MAX;
use crate::node::Node;
use crate::relays::NS_PER_MS;
use crate::request_table::{EntryId, Task};
use crate::store::ShardKey;

/// A piece of a parity shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    key: ShardKey,
    offset_bytes: u32,
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
    checksums: Vec<u32>,
    /// The columns, and their entries.
    from: Vec<(u8, EntryId)>,
    due_ns: u64,
}

/// The accumulators.
#[derive(Debug)]
pub(crate) struct Accumulators {
    by_piece: BTreeMap<Piece, Accumulator>,
    due: BTreeSet<(u64, Piece)>,
    /// Bytes of sums: those that are incomplete, and those that are being written.
    used_bytes: usize,
    bytes_max: usize,
}

/// What the entry that writes a sum stands for.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// The entries of the other contributions.
    others: Vec<EntryId>,
    /// Length of the sum.
    len_bytes: usize,
}

impl Accumulators {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { by_piece: BTreeMap::new(), due: BTreeSet::new(), used_bytes: 0, bytes_max }
    }

    /// Bytes in use.
    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// When the next accumulator is given up.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    /// The accumulator of a piece. Takes a new one for the first contribution.
    fn of_piece(
        &mut self,
        piece: Piece,
        kind: Kind,
        due_ns: u64,
    ) -> Result<&mut Accumulator, NodeError> {
        if !self.by_piece.contains_key(&piece) {
            if self.used_bytes + kind.len_bytes > self.bytes_max {
                return Err(NodeError::Busy);
            }
            self.used_bytes += kind.len_bytes;
            let checksums = vec![ZERO_BLOCK_CRC32C; kind.len_bytes / BLOCK_BYTES];
            let (sum, from) = (AlignedBuf::zeroed(kind.len_bytes), Vec::new());
            self.due.insert((due_ns, piece));
            let begun = Accumulator { kind, sum, checksums, from, due_ns };
            self.by_piece.insert(piece, begun);
        }
        let found = self.by_piece.get_mut(&piece).expect("found or made");
        match found.kind == kind {
            true => Ok(found),
            false => Err(NodeError::Invalid("contributions that do not fit together".to_owned())),
        }
    }

    fn remove(&mut self, piece: Piece) -> Option<Accumulator> {
        let removed = self.by_piece.remove(&piece)?;
        self.due.remove(&(removed.due_ns, piece));
        Some(removed)
    }

    /// Gives an incomplete accumulator up. Its entries are to be answered.
    fn give_up(&mut self, piece: Piece) -> Vec<EntryId> {
        let Some(given_up) = self.remove(piece) else { return Vec::new() };
        self.used_bytes -= given_up.kind.len_bytes;
        given_up.from.into_iter().map(|(_, entry)| entry).collect()
    }
}

impl Accumulator {
    fn add(&mut self, column: u8, entry: EntryId, payload: &[Bytes], checksums: &[u32]) {
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
        let Some(Column { index, count, .. }) = relay.route.column else {
            unreachable!("a contribution has a column")
        };
        let piece = Piece { key: ShardKey { volume, segment, shard }, offset_bytes };
        let kind = Kind { epoch, count, len_bytes: payload_len(payload), seal, data_first };
        let wait_ms = relay.route.gather_ms().min(GATHER_MS_MAX);
        let due_ns = now_ns.saturating_add(wait_ms * NS_PER_MS);
        let found = self.accumulators.of_piece(piece, kind, due_ns)?;
        if found.from.iter().any(|(column, _)| *column == index) {
            return Err(NodeError::Invalid(format!("column {index} has contributed already")));
        }
        found.add(index, id, payload, &checksums);
        if found.from.len() < usize::from(count) {
            return Ok(None);
        }
        let Some(complete) = self.accumulators.remove(piece) else { return Ok(None) };
        let others = complete.from.iter().map(|(_, entry)| *entry).filter(|entry| *entry != id);
        relay.gathered = Gathered { others: others.collect(), len_bytes: kind.len_bytes };
        self.counters.gathered += 1;
        let checksums = complete.checksums;
        let body =
            RequestBody::ShardWrite { segment, shard, offset_bytes, checksums, seal, data_first };
        Ok(Some((body, complete.sum.freeze())))
    }

    /// An entry ends that may have written a sum: gives back the sum's memory. Returns the entries
    /// that end with it.
    pub(crate) fn end_gathered(&mut self, id: EntryId) -> Vec<EntryId> {
        let Some(relay) = &mut self.table[id].relay else { return Vec::new() };
        let Gathered { others, len_bytes } = std::mem::take(&mut relay.gathered);
        self.accumulators.used_bytes -= len_bytes;
        others
    }

    /// The volume's contributions from now on carry another pass, or do not come.
    pub(crate) fn drop_accumulators(&mut self, volume: VolumeId) {
        let of_volume = |piece: &&Piece| piece.key.volume == volume;
        let pieces: Vec<Piece> =
            self.accumulators.by_piece.keys().filter(of_volume).copied().collect();
        for piece in pieces {
            self.give_up_piece(piece);
        }
    }

    /// Gives up the accumulators that are not complete in time.
    pub(crate) fn expire_accumulators(&mut self, now_ns: u64) {
        while let Some((due_ns, piece)) = self.accumulators.due.first().copied()
            && due_ns <= now_ns
        {
            self.give_up_piece(piece);
        }
    }

    fn give_up_piece(&mut self, piece: Piece) {
        for entry in self.accumulators.give_up(piece) {
            self.close(entry, Err(NodeError::Busy));
        }
    }
}

/// The contributions of a data shard to the parity shards, with the checksums of their blocks, in
/// the order of the column's coefficients.
///
/// # Errors
/// [`NodeError::Corrupt`] if the bytes are not those of the writer.
pub(crate) fn contributions(
    column: &Column,
    (offset_bytes, checksums): (u32, &[u32]),
    payload: &[Bytes],
) -> Result<Vec<(Vec<u32>, Bytes)>, NodeError> {
    if let Some(block) = first_mismatch(payload, checksums) {
        let offset_bytes = offset_bytes + block * BLOCK_BYTES as u32;
        return Err(NodeError::Corrupt { offset_bytes });
    }
    let factors = &column.coefficients;
    let map = LinearMap::from_matrix(&Matrix::from_fn(factors.len(), 1, |row, _| factors[row]))
        .map_err(|error| NodeError::Invalid(error.to_string()))?;
    let len_bytes = payload_len(payload);
    let mut products: Vec<AlignedBuf> =
        factors.iter().map(|_| AlignedBuf::stale(len_bytes)).collect();
    let mut at = 0;
    for part in payload {
        let end = at + part.len();
        let mut outputs: Vec<&mut [u8]> =
            products.iter_mut().map(|product| &mut product[at..end]).collect();
        map.execute(&[&part[..]], &mut outputs).expect("parts of equal length");
        at = end;
    }
    let with_checksums = |product: AlignedBuf| (crc32c_blocks(&product), product.freeze());
    Ok(products.into_iter().map(with_checksums).collect())
}
