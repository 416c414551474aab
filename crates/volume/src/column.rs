//! The columns of a volume's code: what nodes need to make its parity.
//!
//! A data node multiplies its shard by the shard's column ([`fieldstone_proto::column`]). The code
//! gives the column as its plan for an update of the whole shard: the contribution to a parity is
//! the parity's change if the shard was all zeroes before.

use bytes::Bytes;
use fieldstone_codes::Code;
use fieldstone_gf::{Source, Target};
use fieldstone_proto::{ElementTable, ElementTerm, Factors};

/// The columns of a code, one for each data shard.
#[derive(Debug)]
pub struct Columns {
    /// Elements of a shard.
    elements: u16,
    /// The factors of each data shard for the parities, or its table of elements as it is encoded.
    of_shards: Vec<Bytes>,
}

impl Columns {
    /// The columns of `code`, or `None` if they are too long for a message.
    #[must_use]
    pub fn of(code: &dyn Code) -> Option<Self> {
        let elements = u16::try_from(code.elements()).ok()?;
        let of_shards = (0..code.k()).map(|shard| column(code, shard)).collect::<Option<_>>()?;
        Some(Self { elements, of_shards })
    }

    /// How contributions follow from a piece of a data shard that the code makes in chunks of
    /// `chunk_bytes`.
    #[must_use]
    pub fn get(&self, shard: usize, chunk_bytes: usize) -> Option<Factors> {
        let of_shard = self.of_shards.get(shard)?.clone();
        if !self.are_tables() {
            return Some(Factors::Scalars(of_shard));
        }
        let (chunk_bytes, elements) = (u32::try_from(chunk_bytes).ok()?, self.elements);
        Some(Factors::Elements(ElementTable { chunk_bytes, elements, encoded: of_shard }))
    }

    /// The columns are tables of elements.
    #[must_use]
    pub fn are_tables(&self) -> bool {
        self.elements > 1
    }
}

/// The column of a data shard: factors, or the rows of a table.
fn column(code: &dyn Code, shard: usize) -> Option<Bytes> {
    let elements = code.elements();
    let plan = code.delta(shard, 0..elements).expect("a data shard and all of its elements");
    let elements = u16::try_from(elements).ok()?;
    let mut rows: Vec<Vec<ElementTerm>> = vec![Vec::new(); code.m() * usize::from(elements)];
    for row in plan.map.steps().iter().flatten() {
        let Target::Output(target) = row.target else { return None };
        let write = &plan.writes[usize::from(target.shard)];
        let mut written = write.elements.iter().cloned().flatten();
        let element = written.nth(target.index as usize).expect("an element that is written");
        let place = (write.shard - code.k()) * usize::from(elements) + element as usize;
        for term in &row.terms {
            let Source::Input(source) = term.source else { return None };
            let element = u16::try_from(source.index).ok()?;
            rows[place].push(ElementTerm { element, factor: term.coefficient });
        }
    }
    if elements > 1 {
        let table = ElementTable::new(0, elements, rows.iter().map(Vec::as_slice))?;
        return Some(table.encoded);
    }
    let factor = |row: &Vec<ElementTerm>| row.iter().fold(0, |sum, term| sum ^ term.factor);
    Some(rows.iter().map(factor).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_codes::Profile;
    use fieldstone_gf::field::mul;

    /// Bytes that differ between shards.
    fn shard_bytes(shard: usize, len_bytes: usize) -> Vec<u8> {
        (0..len_bytes).map(|at| (at * (2 * shard + 3) + at / 7 + shard) as u8).collect()
    }

    /// The contribution of a data shard to a parity, by the words of `proto::column`.
    fn contribution(factors: &Factors, parity: usize, data: &[u8]) -> Vec<u8> {
        let table = match factors {
            Factors::Scalars(factors) => {
                return data.iter().map(|byte| mul(factors[parity], *byte)).collect();
            }
            Factors::Elements(table) => table,
        };
        let rows: Vec<_> = table.rows().collect::<Result<_, _>>().expect("rows");
        let elements = usize::from(table.elements);
        let mut made = Vec::new();
        for chunk in data.chunks(table.chunk_bytes as usize) {
            let element_bytes = chunk.len() / elements;
            for row in &rows[parity * elements..(parity + 1) * elements] {
                let byte = |at: usize| {
                    let term = |t: &ElementTerm| {
                        mul(t.factor, chunk[usize::from(t.element) * element_bytes + at])
                    };
                    row.iter().map(term).fold(0, |sum, term| sum ^ term)
                };
                made.extend((0..element_bytes).map(byte));
            }
        }
        made
    }

    #[test]
    fn contributions_of_all_columns_are_the_parity() {
        for name in [
            "rs:4+2",
            "rs:10+4",
            "rs-van:5+3",
            "jerasure-van:3+2",
            "copies:3",
            "zigzag:4+2",
            "zigzag:6+3",
            "zigzag:8+4",
            "clay:4+2",
            "clay:6+3",
            "clay:8+4",
            "clay:5+3,d=6",
            "cauchy-orig:4+2",
            "cauchy-good:6+3,w=32",
            "jerasure-van:4+2,w=16",
        ] {
            let profile: Profile = name.parse().expect("the name of a code");
            let code = profile.code();
            let columns = Columns::of(&*code).expect("short enough");
            assert_eq!(columns.are_tables(), code.elements() > 1, "{name}");
            let (chunks, chunk_bytes) = (2, 8 * code.elements() as usize);
            let data: Vec<Vec<u8>> =
                (0..code.k()).map(|shard| shard_bytes(shard, chunks * chunk_bytes)).collect();
            for parity in 0..code.m() {
                let mut sum = vec![0; chunks * chunk_bytes];
                for (shard, data) in data.iter().enumerate() {
                    let factors = columns.get(shard, chunk_bytes).expect("a data shard");
                    let contribution = contribution(&factors, parity, data);
                    sum.iter_mut().zip(contribution).for_each(|(sum, byte)| *sum ^= byte);
                }
                for chunk in (0..sum.len()).step_by(chunk_bytes) {
                    let inputs: Vec<&[u8]> =
                        data.iter().map(|data| &data[chunk..chunk + chunk_bytes]).collect();
                    let mut parities = vec![vec![0; chunk_bytes]; code.m()];
                    let mut outputs: Vec<&mut [u8]> =
                        parities.iter_mut().map(Vec::as_mut_slice).collect();
                    // As a volume does, which has one layout for all codes.
                    code.encode().execute(&inputs, &mut outputs).expect("lengths fit");
                    assert_eq!(sum[chunk..chunk + chunk_bytes], parities[parity], "{name}");
                }
            }
        }
    }

    /// With Zigzag a contribution is the shard with its elements in another order.
    #[test]
    fn a_row_of_zigzag_has_one_term() {
        for (name, terms) in [("zigzag:4+2", 16), ("zigzag:8+4", 256), ("clay:4+2", 36)] {
            let profile: Profile = name.parse().expect("the name of a code");
            let columns = Columns::of(&*profile.code()).expect("short enough");
            let Some(Factors::Elements(table)) = columns.get(0, 4096) else { panic!("a table") };
            let count: usize = table.rows().map(|row| row.expect("a row").len()).sum();
            assert_eq!(count, terms, "{name}");
        }
    }
}
