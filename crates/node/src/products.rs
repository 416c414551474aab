//! Products: what a data node contributes to the parity shards of a stripe.
//!
//! A write of a data shard may have a column ([`fieldstone_proto::column`]), which says how each
//! contribution follows from the shard's bytes. The node compiles the column to a [`LinearMap`]
//! with the data shard as its input and the contributions as its outputs, and executes it on the
//! shard as it is, or chunk by chunk. So it makes contributions of every code and knows none.
//!
//! A table of elements is long, and the same tables come again and again: those of each column of
//! each code, mostly for all parities. So the node keeps the maps of the last ones
//! ([`COLUMN_TABLES_KEPT`]), and a share of them for each volume. A map of single factors is made
//! anew each time.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use fieldstone_buf::{AlignedBuf, Cutter, join};
use fieldstone_gf::{Element, LinearMap, MapError, Matrix, Row, Shape, Target, Term};
use fieldstone_proto::{
    BLOCK_BYTES, Column, ElementTable, Factors, NodeError, VolumeId, crc32c_blocks,
};

use crate::handlers::{first_mismatch, payload_len};
use crate::limits::{COLUMN_SIZE_KEPT, COLUMN_TABLES_KEPT, COLUMN_TABLES_OF_VOLUME};
use crate::parity_memory::ParityLease;

/// The maps of the tables that were used last.
#[derive(Debug, Default)]
pub(crate) struct ColumnMaps {
    /// The one used last is at the end.
    kept: Vec<KeptMap>,
    /// Maps that are not kept, and that writes in fragments still use.
    in_use: Vec<MapInUse>,
}

/// A map that is not kept any more.
#[derive(Debug)]
struct MapInUse {
    volume: VolumeId,
    map: Weak<LinearMap>,
    size: usize,
}

/// The map of a table.
#[derive(Debug)]
struct KeptMap {
    /// The volume that had it compiled.
    volume: VolumeId,
    elements: u16,
    table: Bytes,
    /// The parities that it makes.
    parities: Vec<usize>,
    map: Arc<LinearMap>,
    /// Its rows and terms.
    size: usize,
}

/// How a data node makes products.
#[derive(Debug)]
pub(crate) struct Multiplication {
    /// From a chunk to the same chunk of each product.
    map: Arc<LinearMap>,
    /// Length of a chunk; `None` if every part of a payload is one.
    chunk_bytes: Option<usize>,
}

impl ColumnMaps {
    /// How the contributions to these parity shards follow from a data shard of the volume. They
    /// are numbered from 0, ascending. There is at least one.
    ///
    /// # Errors
    /// [`NodeError::Invalid`]: the table makes no map. The header handler lets no such column pass.
    /// [`NodeError::Busy`]: too many other maps are in use.
    pub(crate) fn multiplication(
        &mut self,
        volume: VolumeId,
        column: &Column,
        parities: &[usize],
    ) -> Result<Multiplication, NodeError> {
        match &column.factors {
            Factors::Scalars(factors) => {
                let factor = |row: usize, _| factors.get(parities[row]).copied().unwrap_or(0);
                let map = LinearMap::from_matrix(&Matrix::from_fn(parities.len(), 1, factor));
                let map = map.map_err(|error| invalid(&error))?;
                Ok(Multiplication { map: Arc::new(map), chunk_bytes: None })
            }
            Factors::Elements(table) => {
                let chunk_bytes = Some(table.chunk_bytes as usize);
                Ok(Multiplication { map: self.map_of(volume, table, parities)?, chunk_bytes })
            }
        }
    }

    fn map_of(
        &mut self,
        volume: VolumeId,
        table: &ElementTable,
        parities: &[usize],
    ) -> Result<Arc<LinearMap>, NodeError> {
        let same = |kept: &KeptMap| {
            kept.elements == table.elements
                && kept.table == table.encoded
                && kept.parities == parities
        };
        if let Some(at) = self.kept.iter().position(same) {
            self.kept[at..].rotate_left(1);
        } else {
            self.check_in_use(volume)?;
            let map = Arc::new(compile(table, parities)?);
            let size = map.steps().iter().flatten().map(|row| 1 + row.terms.len()).sum();
            let (elements, table) = (table.elements, table.encoded.clone());
            let parities = parities.to_vec();
            self.kept.push(KeptMap { volume, elements, table, parities, map, size });
            self.forget_some(volume);
        }
        let last = self.kept.last().expect("found or made");
        Ok(Arc::clone(&last.map))
    }

    /// Forgets the maps that were not used for the longest time: of the volume above its share, and
    /// of all volumes above the bounds.
    fn forget_some(&mut self, volume: VolumeId) {
        let of_volume = |kept: &KeptMap| kept.volume == volume;
        while self.kept.iter().filter(|kept| of_volume(kept)).count() > COLUMN_TABLES_OF_VOLUME {
            let oldest = self.kept.iter().position(of_volume).expect("it has some");
            self.forget(oldest);
        }
        let mut size: usize = self.kept.iter().map(|kept| kept.size).sum();
        while self.kept.len() > 1
            && (self.kept.len() > COLUMN_TABLES_KEPT || size > COLUMN_SIZE_KEPT)
        {
            size -= self.kept[0].size;
            self.forget(0);
        }
    }

    fn forget(&mut self, at: usize) {
        let KeptMap { volume, map, size, .. } = self.kept.remove(at);
        let map = Arc::downgrade(&map);
        // Nothing has a weak reference that could become a strong one.
        if map.strong_count() > 0 {
            self.in_use.push(MapInUse { volume, map, size });
        }
    }

    /// Maps that are not kept, but in use, are bounded like those that are kept.
    fn check_in_use(&mut self, volume: VolumeId) -> Result<(), NodeError> {
        self.in_use.retain(|in_use| in_use.map.strong_count() > 0);
        let of_volume = self.in_use.iter().filter(|in_use| in_use.volume == volume).count();
        let size: usize = self.in_use.iter().map(|in_use| in_use.size).sum();
        let has_room = of_volume < COLUMN_TABLES_OF_VOLUME
            && self.in_use.len() < COLUMN_TABLES_KEPT
            && size < COLUMN_SIZE_KEPT;
        if has_room { Ok(()) } else { Err(NodeError::Busy) }
    }
}

/// The map from a chunk of the data shard to the same chunk of the contributions to these parities.
fn compile(table: &ElementTable, parities: &[usize]) -> Result<LinearMap, NodeError> {
    let elements = u32::from(table.elements);
    let rows: Vec<_> = table
        .rows()
        .collect::<Result<_, _>>()
        .map_err(|error| NodeError::Invalid(error.to_string()))?;
    let mut step = Vec::new();
    for (output, parity) in parities.iter().enumerate() {
        let shard = u16::try_from(output).unwrap_or(u16::MAX);
        for index in 0..elements {
            let row = rows.get(parity * elements as usize + index as usize);
            let terms = row.into_iter().flatten();
            let terms = terms.map(|term| Term::input(0, u32::from(term.element), term.factor));
            let target = Target::Output(Element { shard, index });
            step.push(Row { target, terms: terms.collect() });
        }
    }
    let shape = Shape::uniform(1, parities.len(), elements);
    LinearMap::from_steps(shape, vec![step]).map_err(|error| invalid(&error))
}

fn invalid(error: &MapError) -> NodeError {
    NodeError::Invalid(error.to_string())
}

/// Checks the bytes of a data shard against the writer's checksums. What a node contributes must
/// belong to them.
///
/// # Errors
/// [`NodeError::Corrupt`] if the bytes are not those of the writer.
pub(crate) fn check(
    (offset_bytes, checksums): (u32, &[u32]),
    payload: &[Bytes],
) -> Result<(), NodeError> {
    match first_mismatch(payload, checksums) {
        None => Ok(()),
        Some(block) => {
            let offset_bytes = offset_bytes + block * BLOCK_BYTES as u32;
            Err(NodeError::Corrupt { offset_bytes })
        }
    }
}

/// The products of a data shard that comes in fragments, one for each parity node that gets one.
#[derive(Debug)]
pub(crate) struct ProductStream {
    multiplication: Multiplication,
    /// The bytes that are not multiplied yet.
    rest: Vec<Bytes>,
    /// The memory of each product. The last reference to its fragments gives it back.
    memory: Vec<Arc<ParityLease>>,
}

impl ProductStream {
    /// There is memory for each product.
    pub(crate) fn new(multiplication: Multiplication, memory: Vec<ParityLease>) -> Self {
        let memory = memory.into_iter().map(Arc::new).collect();
        Self { multiplication, rest: Vec::new(), memory }
    }

    /// The bytes of each product that further bytes of the data shard make possible, with the
    /// checksums of their blocks. Nothing if they complete no chunk.
    pub(crate) fn push(&mut self, payload: &[Bytes]) -> Vec<(Vec<u32>, Bytes)> {
        self.rest.extend(payload.iter().cloned());
        let len_bytes = payload_len(&self.rest);
        let whole_bytes = len_bytes / self.step_bytes() * self.step_bytes();
        if whole_bytes == 0 {
            return Vec::new();
        }
        let mut cutter = Cutter::new(std::mem::take(&mut self.rest));
        let chunks = cutter.next(whole_bytes);
        self.rest = cutter.next(len_bytes - whole_bytes);
        self.multiplication.products(&chunks, self.memory.clone())
    }

    /// What leaves consists of whole chunks and of whole blocks.
    fn step_bytes(&self) -> usize {
        let mut chunks = self.multiplication.chunk_bytes.unwrap_or(1);
        let halves = chunks.trailing_zeros().min(BLOCK_BYTES.trailing_zeros());
        chunks >>= halves;
        chunks * BLOCK_BYTES
    }
}

impl Multiplication {
    /// The contributions of a data shard with the checksums of their blocks. There is memory for
    /// each of them, and each keeps its memory. The payload consists of whole chunks. One with
    /// a part that ends within a chunk is copied. One that came whole over a connection is in one
    /// part.
    pub(crate) fn products(
        &self,
        payload: &[Bytes],
        memory: Vec<impl Send + 'static>,
    ) -> Vec<(Vec<u32>, Bytes)> {
        let len_bytes = payload_len(payload);
        let mut products: Vec<AlignedBuf> =
            memory.iter().map(|_| AlignedBuf::stale(len_bytes)).collect();
        let joined;
        let in_chunks =
            |part: &Bytes| self.chunk_bytes.is_none_or(|n| part.len().is_multiple_of(n));
        let parts = if payload.iter().all(in_chunks) {
            payload
        } else {
            joined = [join(payload)];
            &joined[..]
        };
        let mut at = 0;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            for chunk in part.chunks(self.chunk_bytes.unwrap_or(part.len())) {
                let end = at + chunk.len();
                let mut outputs: Vec<&mut [u8]> =
                    products.iter_mut().map(|product| &mut product[at..end]).collect();
                self.map.execute(&[chunk], &mut outputs).expect("whole chunks");
                at = end;
            }
        }
        let products = products.into_iter().zip(memory);
        products
            .map(|(product, memory)| (crc32c_blocks(&product), product.freeze_leased(memory)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::LinkTarget;
    use crate::parity_memory::ParityMemory;
    use fieldstone_gf::field::mul;
    use fieldstone_proto::{ElementTerm, NodeIndex};

    /// Two elements and two parities: parity 0 has them exchanged, parity 1 has both summed up in
    /// its first element and the first one in its second.
    fn table(factor: u8) -> ElementTable {
        let term = |element, factor| ElementTerm { element, factor };
        let rows = [
            vec![term(1, factor)],
            vec![term(0, 1)],
            vec![term(0, 5), term(1, 7)],
            vec![term(0, 9)],
        ];
        ElementTable::new(8, 2, rows.iter().map(Vec::as_slice)).expect("in bounds")
    }

    fn column(factor: u8) -> Column {
        Column { index: 0, count: 2, factors: Factors::Elements(table(factor)) }
    }

    fn made(maps: &mut ColumnMaps, parities: &[usize], payload: &[Bytes]) -> Vec<Vec<u8>> {
        let memory = ParityMemory::new(1 << 20);
        let to = LinkTarget { node: NodeIndex(1), address: Bytes::new() };
        let lease = |_| memory.lease_product((VolumeId(1), &to), 16).expect("there is memory");
        let leases = parities.iter().map(lease).collect();
        let multiplication =
            maps.multiplication(VolumeId(1), &column(3), parities).expect("it fits");
        let products = multiplication.products(payload, leases);
        products.into_iter().map(|(_, bytes)| bytes.to_vec()).collect()
    }

    #[test]
    fn elements_are_summed_up_within_their_chunk() {
        let data: Vec<u8> = (1..=16).collect();
        let mut maps = ColumnMaps::default();
        let mut expected = [vec![0; 16], vec![0; 16]];
        for chunk in [0, 8] {
            for at in chunk..chunk + 4 {
                let (a, b) = (data[at], data[at + 4]);
                expected[0][at] = mul(3, b);
                expected[0][at + 4] = a;
                expected[1][at] = mul(5, a) ^ mul(7, b);
                expected[1][at + 4] = mul(9, a);
            }
        }
        let whole = Bytes::from(data);
        assert_eq!(made(&mut maps, &[0, 1], std::slice::from_ref(&whole)), expected);
        assert_eq!(made(&mut maps, &[1], std::slice::from_ref(&whole)), expected[1..]);
        for cut in [0, 3, 8, 12] {
            let parts = [whole.slice(..cut), whole.slice(cut..)];
            assert_eq!(made(&mut maps, &[0, 1], &parts), expected, "cut at {cut}");
        }
        assert_eq!(maps.kept.len(), 2, "one for each choice of parities");
    }

    /// The length of chunks does not matter to a map.
    #[test]
    fn the_maps_used_last_are_kept() {
        let mut maps = ColumnMaps::default();
        let mut use_map = |volume: u128, factor: u8| {
            let chunk_bytes = 8 * (u32::from(factor) + volume as u32);
            let table = ElementTable { chunk_bytes, ..table(factor) };
            maps.map_of(VolumeId(volume), &table, &[0, 1]).expect("it fits");
            maps.kept.iter().map(|kept| kept.table[4]).collect::<Vec<u8>>()
        };
        let share = COLUMN_TABLES_OF_VOLUME as u8;
        for factor in 0..share {
            assert_eq!(use_map(1, factor), (0..=factor).collect::<Vec<_>>());
        }
        let kept = use_map(2, 0);
        assert_eq!((kept.len(), kept[0], kept[15]), (16, 1, 0), "0 serves both volumes");
        let kept = use_map(1, 100);
        assert_eq!((kept.len(), kept[0], kept[15]), (16, 2, 100), "1 was used first");
        for volume in 2..20 {
            for factor in 0..share {
                use_map(volume, 10 * volume as u8 + factor);
            }
        }
        assert_eq!(maps.kept.len(), COLUMN_TABLES_KEPT);
    }

    /// Writes in fragments keep their maps for a while, whatever comes after them.
    #[test]
    fn maps_in_use_are_bounded() {
        let mut maps = ColumnMaps::default();
        let mut held = Vec::new();
        let get = |maps: &mut ColumnMaps, factor: usize| {
            let mut table = table(factor as u8);
            table.elements = 2;
            let mut encoded = table.encoded.to_vec();
            encoded[2..4].copy_from_slice(&[(factor >> 8) as u8 % 2, 0]);
            maps.map_of(VolumeId(1), &ElementTable { encoded: encoded.into(), ..table }, &[0, 1])
        };
        for factor in 0..2 * COLUMN_TABLES_OF_VOLUME {
            held.push(get(&mut maps, factor).expect("there is room"));
        }
        assert_eq!(maps.in_use.len(), COLUMN_TABLES_OF_VOLUME);
        assert!(matches!(get(&mut maps, 100), Err(NodeError::Busy)));
        let kept = get(&mut maps, 2 * COLUMN_TABLES_OF_VOLUME - 1);
        assert!(kept.is_ok(), "it is kept");
        held.remove(0);
        assert!(get(&mut maps, 101).is_ok());
    }

    #[test]
    fn long_maps_push_each_other_out() {
        let mut maps = ColumnMaps::default();
        let row = vec![ElementTerm { element: 0, factor: 1 }; 10_000];
        for factor in 0..20 {
            let mut row = row.clone();
            row[0].factor = factor;
            let table = ElementTable::new(4, 1, [&row[..]]).expect("in bounds");
            maps.map_of(VolumeId(u128::from(factor)), &table, &[0]).expect("it fits");
        }
        assert_eq!(maps.kept.len(), COLUMN_SIZE_KEPT / 10_001);
    }
}
