//! Products of planes of bits: the straight-line code of the firmware's `planes.h`.
//!
//! A product by a constant of GF(2^8) is linear over bits: each bit of the product is a sum of bits
//! of the factor. If a word holds the same bit of 32 elements, a product of 32 elements is sums of
//! 8 words, without a table. All parities of a data node are sums of the same 8 words, so they
//! share partial sums. These are found by Paar's greedy rule: again and again, the two words that
//! most sums have in common become one. Ties are broken at random, with fixed seeds, and the
//! shortest code of some tries is kept. (C. Paar, "Optimized arithmetic for Reed-Solomon encoders",
//! IEEE International Symposium on Information Theory, 1997.)
//!
//! The text is C for both builds of the firmware: a function for each column of the codes of
//! [`CODES`], for each pair of factors that elements of [`ELEMENT_CODES`] have, and one that finds
//! the function by the coefficients. Each sum is stored as soon as it is made, so that the values
//! fit the registers of a core.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use fieldstone_gf::field;

use super::state::{ElementColumn, Multiply};

/// The codes that have code of their own: those of the paper's Table II. Others take a loop.
pub const CODES: [(usize, usize); 2] = [(3, 2), (6, 3)];
/// The codes with elements that have code of their own, too.
pub const ELEMENT_CODES: [&str; 1] = ["zigzag:4+2"];
/// Words of a block, and bits of an element.
const PLANES: usize = 8;
/// How often ties are broken in another way.
const TRIES: u64 = 32;

/// The sums of one column of a code, word by word. Values 0 to 7 are the words of the data, and
/// value 8 + i is the sum of pair i.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sums {
    pairs: Vec<(usize, usize)>,
    /// The values of the parities' words, in the order of parities and then of planes.
    outputs: Vec<usize>,
}

/// The words of the data that make word `plane` of the product by `coefficient`, a bit for each.
fn row(coefficient: u8, plane: usize) -> u128 {
    let takes = |bit: usize| u128::from(field::mul(coefficient, 1 << bit) >> plane & 1) << bit;
    (0..PLANES).map(takes).sum()
}

/// Takes the lowest value out of a sum.
fn take_value(row: &mut u128) -> usize {
    let value = row.trailing_zeros() as usize;
    *row &= *row - 1;
    value
}

impl Sums {
    /// The shortest code that was found for these coefficients, one for each parity. None of them
    /// is 0.
    fn of(coefficients: &[u8]) -> Self {
        let tries = (0..TRIES).map(|seed| Self::search(coefficients, seed));
        tries.min_by_key(|sums| sums.pairs.len()).expect("at least one try")
    }

    fn search(coefficients: &[u8], seed: u64) -> Self {
        let rows: Vec<u128> = coefficients
            .iter()
            .flat_map(|&c| (0..PLANES).map(move |plane| row(c, plane)))
            .collect();
        // By sum: the words of the data and the partial sums that it still adds.
        let mut left: BTreeMap<u128, u128> = rows.iter().map(|&row| (row, row)).collect();
        let mut pairs = Vec::new();
        let mut random = seed;
        loop {
            let values = PLANES + pairs.len();
            let both = |a: usize, b: usize| 1u128 << a | 1 << b;
            let uses = |pair: u128| left.values().filter(|&&row| row & pair == pair).count();
            let mut most = 2;
            let mut ties = Vec::new();
            for (a, b) in (1..values).flat_map(|b| (0..b).map(move |a| (a, b))) {
                let uses = uses(both(a, b));
                if uses > most {
                    most = uses;
                    ties.clear();
                }
                if uses == most {
                    ties.push((a, b));
                }
            }
            if ties.is_empty() {
                break;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (a, b) = ties[(random >> 33) as usize % ties.len()];
            let pair = both(a, b);
            for row in left.values_mut().filter(|row| **row & pair == pair) {
                *row = *row & !pair | 1 << values;
            }
            pairs.push((a, b));
        }
        let mut values = BTreeMap::new();
        for (row, mut left) in left {
            let mut sum = take_value(&mut left);
            while left != 0 {
                pairs.push((sum, take_value(&mut left)));
                sum = PLANES + pairs.len() - 1;
            }
            values.insert(row, sum);
        }
        Self { pairs, outputs: rows.iter().map(|row| values[row]).collect() }
    }

    /// Writes the statements that make `value`, but for those that were written before.
    fn write_value(&self, value: usize, written: &mut [bool], text: &mut String) {
        let Some(pair) = value.checked_sub(PLANES) else { return };
        if std::mem::replace(&mut written[pair], true) {
            return;
        }
        let (a, b) = self.pairs[pair];
        self.write_value(a, written, text);
        self.write_value(b, written, text);
        line(text, format_args!("        const uint32_t v{value} = v{a} ^ v{b};"));
    }

    /// Writes the function `name`.
    fn write_function(&self, name: &str, text: &mut String) {
        let parities = self.outputs.len() / PLANES;
        let outputs: String = (0..parities).map(|p| format!(", uint32_t *restrict y{p}")).collect();
        // A function of its own has all registers.
        let (sums, words) = (self.pairs.len(), "const uint32_t *restrict x, const uint32_t *end");
        line(text, format_args!("/* {sums} sums. */\n__attribute__((noinline))"));
        line(text, format_args!("static void {name}({words}{outputs})\n{{\n    do {{"));
        for plane in 0..PLANES {
            line(text, format_args!("        const uint32_t v{plane} = x[{plane}];"));
        }
        let mut written = vec![false; self.pairs.len()];
        for (at, &value) in self.outputs.iter().enumerate() {
            self.write_value(value, &mut written, text);
            let (parity, plane) = (at / PLANES, at % PLANES);
            line(text, format_args!("        y{parity}[{plane}] = v{value};"));
        }
        line(text, format_args!("        x += {PLANES};"));
        for parity in 0..parities {
            line(text, format_args!("        y{parity} += {PLANES};"));
        }
        line(text, format_args!("    }} while (x != end);\n}}\n"));
    }
}

fn line(text: &mut String, of: std::fmt::Arguments<'_>) {
    writeln!(text, "{of}").expect("a string has room");
}

/// The coefficients of each column of a code.
///
/// # Errors
/// If the code does not exist.
fn columns(k: usize, m: usize) -> Result<Vec<Vec<u8>>, String> {
    let rows = Multiply::Planes.coefficients(k, m)?;
    Ok((0..k).map(|column| rows.iter().map(|row| row[column]).collect()).collect())
}

/// The factors for each parity that elements of [`ELEMENT_CODES`] have, each choice once, but for
/// those that columns of [`CODES`] have.
///
/// # Errors
/// If a code does not exist.
fn element_columns() -> Result<BTreeSet<Vec<u8>>, String> {
    let mut all = BTreeSet::new();
    for code in ELEMENT_CODES {
        let profile: fieldstone_codes::Profile = code.parse().map_err(|e| format!("{e}"))?;
        for column in 0..profile.k() as u8 {
            let terms = ElementColumn::of(code, column)?.terms;
            let factors = |at: usize| terms.iter().map(|row| row[at].1).collect();
            all.extend((0..profile.elements() as usize).map(factors));
        }
    }
    for (k, m) in CODES {
        for column in columns(k, m)? {
            all.remove(&column);
        }
    }
    Ok(all)
}

/// Writes the case of the function `name` for these coefficients.
fn write_case(name: &str, coefficients: &[u8], cases: &mut String) {
    let key = coefficients.iter().rev().fold(0u32, |key, &c| key << 8 | u32::from(c));
    let outputs: String = (0..coefficients.len()).map(|p| format!(", y[{p}]")).collect();
    line(cases, format_args!("    case {key:#x}u:\n        {name}(x, end{outputs});"));
    line(cases, format_args!("        return 1;"));
}

/// The text of `planes.h`.
///
/// # Errors
/// If a code of [`CODES`] does not exist.
pub fn source() -> Result<String, String> {
    let mut text = "/* crates/nic/src/firmware/planes.rs made this file. */\n".to_owned();
    let mut cases = String::new();
    for (k, m) in CODES {
        for (column, coefficients) in columns(k, m)?.iter().enumerate() {
            let name = format!("planes_{k}_{m}_{column}");
            Sums::of(coefficients).write_function(&name, &mut text);
            write_case(&name, coefficients, &mut cases);
        }
    }
    for (index, coefficients) in element_columns()?.iter().enumerate() {
        let name = format!("planes_elements_{index}");
        Sums::of(coefficients).write_function(&name, &mut text);
        write_case(&name, coefficients, &mut cases);
    }
    text.push_str(
        "/* Whether there is code for the coefficients, lowest byte first. */\n\
         static int planes_encode(uint32_t column, const uint32_t *x, const uint32_t *end,\n\
         \x20                        uint32_t *const *y)\n{\n    switch (column) {\n",
    );
    text.push_str(&cases);
    text.push_str("    default:\n        return 0;\n    }\n}\n");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sums {
        /// The words of all parities for these words of data.
        fn execute(&self, data: [u32; PLANES]) -> Vec<u32> {
            let mut values = data.to_vec();
            for &(a, b) in &self.pairs {
                values.push(values[a] ^ values[b]);
            }
            self.outputs.iter().map(|&value| values[value]).collect()
        }
    }

    /// Element `element` of a block.
    fn element(block: &[u32], element: usize) -> u8 {
        let bit = |(plane, word): (usize, &u32)| ((word >> element & 1) as u8) << plane;
        block.iter().enumerate().map(bit).sum()
    }

    #[test]
    fn sums_are_products() {
        // Every element is in some place, and no two places are alike.
        let blocks = (0..8u32).map(|block| {
            std::array::from_fn(|plane| {
                let bit = |e: u32| ((block * 32 + e) >> plane & 1) << e;
                (0..32).map(bit).sum::<u32>()
            })
        });
        let blocks: Vec<[u32; PLANES]> = blocks.collect();
        for coefficient in 1..=u8::MAX {
            let coefficients = [coefficient, 1, coefficient.wrapping_mul(37).max(1)];
            let sums = Sums::search(&coefficients, u64::from(coefficient));
            for block in &blocks {
                let parities = sums.execute(*block);
                for (parity, &c) in parities.chunks(PLANES).zip(&coefficients) {
                    for e in 0..32 {
                        assert_eq!(element(parity, e), field::mul(c, element(block, e)));
                    }
                }
            }
        }
    }

    /// The bound of 2 instructions per byte leaves room for 32 loads and stores and about 22 sums.
    /// The last column is the dearest: its figures stand for all.
    #[test]
    fn columns_have_few_sums_and_the_last_one_most() {
        for ((k, m), most) in CODES.into_iter().zip([6, 22]) {
            let counts: Vec<usize> =
                columns(k, m).unwrap().iter().map(|c| Sums::of(c).pairs.len()).collect();
            assert!(counts.is_sorted() && counts[0] == 0 && counts[k - 1] <= most, "{counts:?}");
        }
    }
}
