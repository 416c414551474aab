//! The column of a data shard: how its bytes change each parity shard of its stripe.
//!
//! Every code of the project is linear, so a parity shard is the sum of what each data shard
//! contributes to it. The contribution of one data shard is this shard times a part of the code's
//! matrix, its *column*. The writer sends the column with the shard, so a node makes contributions
//! of any code and knows none.
//!
//! - [`Factors::Scalars`], for codes of one element (Reed-Solomon): every byte of a contribution is
//!   the byte at the same place of the data shard, times one factor.
//! - [`Factors::Elements`], for codes that divide shards into elements (Zigzag, Clay, codes over
//!   bits): the shard is a sequence of chunks, and each chunk is a sequence of equal elements. An
//!   element of the contribution is a sum of elements of the same chunk, each times a factor. The
//!   table has a row for each of them. With Zigzag a row has one term: the contribution is the
//!   chunk with its elements in another order, times factors.

use bytes::Bytes;

/// Longest table of an [`ElementTable`]. That of `clay:10+4` has 11,456 bytes.
pub const TABLE_BYTES_MAX: usize = 32 << 10;
/// Most elements of a chunk in an [`ElementTable`].
pub const TABLE_ELEMENTS_MAX: u16 = 1024;
/// Fewest bytes of an element in an [`ElementTable`]. The elements of volumes are whole blocks. A
/// node takes as long for a short element as for one of this length.
pub const TABLE_ELEMENT_BYTES_MIN: usize = 512;
/// Bytes of a term: the number of the element (16 bits, little-endian), and the factor.
const TERM_BYTES: usize = 3;
/// Bytes in front of the terms of a row: their number (16 bits, little-endian).
const COUNT_BYTES: usize = 2;

/// The part that a data shard has in the coding of its stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Number of the data shard.
    pub index: u8,
    /// Number of data shards: so many contributions make a parity shard.
    pub count: u8,
    /// What this data shard contributes to the parity shards of the replicas but the head, by rank.
    pub factors: Factors,
}

/// How contributions follow from a data shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Factors {
    /// A factor for each parity shard: every byte is multiplied by it.
    Scalars(Bytes),
    /// Sums of elements.
    Elements(ElementTable),
}

/// Rows of terms: for each parity shard, for each element of a chunk of its contribution, the
/// elements of the data shard's chunk whose sum it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementTable {
    /// Length of a chunk, in bytes. A shard, or a piece of it, is a sequence of whole chunks.
    pub chunk_bytes: u32,
    /// Elements of a chunk, all of the same length.
    pub elements: u16,
    /// The rows of the first parity shard, one for each element, then those of the next one. A row
    /// is the number of its terms (16 bits), then the terms, each with an element (16 bits) and a
    /// factor (8 bits). Numbers are little-endian.
    pub encoded: Bytes,
}

/// An element of a data shard's chunk, and its factor in a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementTerm {
    /// Number of the element.
    pub element: u16,
    /// Its factor.
    pub factor: u8,
}

impl Column {
    /// The column fits a route with this number of parity nodes.
    #[must_use]
    pub fn fits(&self, parities: usize) -> bool {
        let fits = match &self.factors {
            Factors::Scalars(factors) => factors.len() == parities,
            Factors::Elements(table) => table.fits(parities),
        };
        fits && self.index < self.count
    }

    /// The column as a parity node gets it, with a contribution that is already made: factors of
    /// one.
    #[must_use]
    pub fn made(&self, parities: usize) -> Self {
        let factors = match &self.factors {
            Factors::Scalars(factors) => Factors::Scalars(factors.clone()),
            Factors::Elements(_) => Factors::Scalars(vec![1; parities].into()),
        };
        Self { factors, ..*self }
    }
}

impl ElementTable {
    /// A table of these rows, for each parity shard and each element of a chunk. `None` if it is
    /// out of bounds.
    #[must_use]
    pub fn new<'a>(
        chunk_bytes: u32,
        elements: u16,
        rows: impl IntoIterator<Item = &'a [ElementTerm]>,
    ) -> Option<Self> {
        let mut bytes = Vec::new();
        for row in rows {
            bytes.extend_from_slice(&u16::try_from(row.len()).ok()?.to_le_bytes());
            for ElementTerm { element, factor } in row {
                bytes.extend_from_slice(&element.to_le_bytes());
                bytes.push(*factor);
            }
        }
        let fits = bytes.len() <= TABLE_BYTES_MAX && elements <= TABLE_ELEMENTS_MAX;
        fits.then(|| Self { chunk_bytes, elements, encoded: bytes.into() })
    }

    /// The rows, or an error where the bytes are none.
    pub fn rows(&self) -> impl Iterator<Item = Result<Vec<ElementTerm>, NoRow>> + '_ {
        let term = |bytes: &[u8]| ElementTerm {
            element: u16::from_le_bytes([bytes[0], bytes[1]]),
            factor: bytes[2],
        };
        self.raw_rows().map(move |row| Ok(row?.chunks_exact(TERM_BYTES).map(term).collect()))
    }

    /// The bytes of each row's terms.
    fn raw_rows(&self) -> impl Iterator<Item = Result<&[u8], NoRow>> + '_ {
        let mut rest = &self.encoded[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let row = split_row(rest);
            rest = row.map_or(&[][..], |(_, behind)| behind);
            Some(row.map(|(terms, _)| terms).ok_or(NoRow))
        })
    }

    /// The table has a row for each element of this number of contributions, and names only
    /// elements that exist.
    fn fits(&self, parities: usize) -> bool {
        let elements = usize::from(self.elements);
        let chunk_bytes = self.chunk_bytes as usize;
        let divides = (1..=usize::from(TABLE_ELEMENTS_MAX)).contains(&elements)
            && chunk_bytes.is_multiple_of(elements)
            && chunk_bytes / elements >= TABLE_ELEMENT_BYTES_MIN;
        if !divides || self.encoded.len() > TABLE_BYTES_MAX {
            return false;
        }
        let exists = |term: &[u8]| u16::from_le_bytes([term[0], term[1]]) < self.elements;
        let mut count = 0;
        for row in self.raw_rows() {
            let Ok(row) = row else { return false };
            if !row.chunks_exact(TERM_BYTES).all(exists) {
                return false;
            }
            count += 1;
        }
        count == elements * parities
    }
}

/// Bytes of a table that are no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table of a column ends within a row")]
pub struct NoRow;

/// The bytes of the terms of the first row, and the rows behind it.
fn split_row(rows: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = rows.split_first_chunk::<COUNT_BYTES>()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*count)) * TERM_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(element: u16, factor: u8) -> ElementTerm {
        ElementTerm { element, factor }
    }

    /// Two elements, for two parity shards.
    fn rows() -> Vec<Vec<ElementTerm>> {
        vec![vec![term(1, 3)], vec![term(0, 1), term(1, 7)], vec![], vec![term(0, 0x8e)]]
    }

    fn table(rows: &[Vec<ElementTerm>]) -> ElementTable {
        let rows = rows.iter().map(Vec::as_slice);
        ElementTable::new(8192, 2, rows).expect("in bounds")
    }

    fn column(factors: Factors) -> Column {
        Column { index: 1, count: 4, factors }
    }

    #[test]
    fn a_table_gives_the_rows_that_made_it() {
        let table = table(&rows());
        let back: Vec<_> = table.rows().collect::<Result<_, _>>().expect("rows");
        assert_eq!(back, rows());
        assert!(column(Factors::Elements(table)).fits(2));
    }

    #[test]
    fn a_hostile_table_does_not_fit() {
        let fits = |table: ElementTable| column(Factors::Elements(table)).fits(2);
        let good = table(&rows());
        assert!(fits(good.clone()));
        for (chunk_bytes, elements) in
            [(8192, 0), (0, 2), (8191, 2), (8192, 1), (8192, 4), (1022, 2)]
        {
            assert!(!fits(ElementTable { chunk_bytes, elements, ..good.clone() }), "{elements}");
        }
        for cut in 1..good.encoded.len() {
            let encoded = good.encoded.slice(..cut);
            assert!(!fits(ElementTable { encoded, ..good.clone() }), "{cut}");
        }
        let mut no_such_element = rows();
        no_such_element[0][0].element = 2;
        assert!(!fits(table(&no_such_element)));
        assert!(!fits(table(&rows()[1..])), "a row too few");
        // What `new` does not make may come over a connection.
        let long_row = [&10_923u16.to_le_bytes()[..], &[0; 10_923 * 3]].concat();
        let long = ElementTable { chunk_bytes: 512, elements: 1, encoded: long_row.into() };
        assert!(long.encoded.len() > TABLE_BYTES_MAX);
        assert!(!column(Factors::Elements(long)).fits(1));
        let fits_many = |elements: u16| {
            let encoded = vec![0; usize::from(elements) * COUNT_BYTES].into();
            let chunk_bytes = u32::from(elements) * 512;
            column(Factors::Elements(ElementTable { chunk_bytes, elements, encoded })).fits(1)
        };
        assert!(fits_many(TABLE_ELEMENTS_MAX) && !fits_many(TABLE_ELEMENTS_MAX + 1));
        let row = vec![term(0, 1); TABLE_BYTES_MAX / TERM_BYTES + 1];
        assert!(ElementTable::new(512, 1, [&row[..]]).is_none());
    }

    #[test]
    fn a_parity_node_gets_no_table() {
        let made = column(Factors::Elements(table(&rows()))).made(2);
        assert_eq!(made, column(Factors::Scalars(Bytes::from_static(&[1, 1]))));
        let scalars = column(Factors::Scalars(Bytes::from_static(&[5, 7])));
        assert_eq!(scalars.made(2), scalars);
    }
}
