//! The instructions of a section's code: loads, sums of products, stores.
//!
//! For each bundle there are several ways to compute (module [`words`](super::words)). The body is
//! written in each way that fits, and the cheapest is kept. Rows whose coefficients are all 1 are
//! XORs in any form.

use std::collections::HashMap;

use fieldstone_gf::field;

use super::sections::{Bundle, Code, Read, Variant, VariedColumn, Write};
use super::words::{WORDS, Words, double, transpose};
use crate::ptx::{Reg, Work, Writer};

/// Most sources of a bundle by Horner's rule, which needs all of them in registers at once.
const HORNER_SOURCES_MAX: usize = 14;

/// Ways to compute the sums of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// XORs of bit planes.
    Planes,
    /// Horner's rule over the bits of the coefficients.
    Horner,
    /// The doubles of each source, shared by all rows.
    Doubles,
}

/// All methods.
pub const METHODS: [Method; 3] = [Method::Planes, Method::Horner, Method::Doubles];

/// Moves elements between registers and memory, for the skeleton of a kernel.
pub(crate) trait Operands {
    /// Loads a thread's part of an input, packed.
    fn load(&self, writer: &mut Writer, input: u32) -> Words;
    /// Loads a shared element, in planes.
    fn load_shared(&self, writer: &mut Writer, shared: u32) -> Words;
    /// Stores a thread's part of an output, packed.
    fn store(&self, writer: &mut Writer, output: u32, words: &Words);
    /// Stores a shared element, in planes.
    fn store_shared(&self, writer: &mut Writer, shared: u32, words: &Words);
    /// The operand that says which variant of a column the section takes.
    fn selector(&self, writer: &mut Writer, selector: u32) -> Reg;
}

/// Integer instructions that one product of the multiplier is worth: the two units work side by
/// side, so products cost little.
const PRODUCT_COST: f64 = 0.25;

/// The cost of instructions, in integer instructions.
pub(crate) fn cost(work: Work) -> f64 {
    f64::from(work.logic) + PRODUCT_COST * f64::from(work.products)
}

/// A value in the forms that the thread has so far.
#[derive(Clone, Copy, Default)]
struct Value {
    packed: Option<Words>,
    planes: Option<Words>,
}

/// The values of a section.
#[derive(Clone, Default)]
struct Values {
    inputs: Vec<Value>,
    shared: Vec<Value>,
    temporaries: HashMap<u32, Value>,
}

/// A body as it is written.
pub(crate) struct Body<'a, O> {
    operands: &'a O,
    /// Inputs that are loaded before the one that is needed next.
    ahead: usize,
    method: Option<Method>,
    values: Values,
}

impl<'a, O: Operands> Body<'a, O> {
    /// Writes the instructions of `code`. `ahead` is the number of inputs that are loaded before
    /// they are needed; `method` is the only method if given.
    pub(crate) fn write(
        writer: &mut Writer,
        code: &Code,
        operands: &'a O,
        ahead: usize,
        method: Option<Method>,
    ) {
        let inputs = vec![Value::default(); code.inputs as usize];
        let shared = vec![Value::default(); code.shared_reads as usize];
        let values = Values { inputs, shared, temporaries: HashMap::new() };
        let mut body = Self { operands, ahead, method, values };
        for bundle in &code.bundles {
            body.bundle(writer, bundle);
        }
    }

    fn bundle(&mut self, writer: &mut Writer, bundle: &Bundle) {
        if !bundle.columns.is_empty() {
            return self.varied_bundle(writer, bundle);
        }
        let fits = |method: &Method| match method {
            Method::Horner => bundle.reads.len() <= HORNER_SOURCES_MAX,
            Method::Planes | Method::Doubles => true,
        };
        let wanted = |method: &&Method| self.method.is_none_or(|only| only == **method);
        let mut methods: Vec<Method> = METHODS.iter().filter(wanted).copied().collect();
        methods.retain(fits);
        if methods.is_empty() {
            methods.push(Method::Planes);
        }
        let before = self.values.clone();
        let drafts = methods.into_iter().map(|method| {
            let mut draft = writer.draft();
            let mut body = Self { values: before.clone(), ..*self };
            let results = body.rows(&mut draft, bundle, method);
            for ((to, _), value) in bundle.rows.iter().zip(results) {
                body.finish(&mut draft, *to, value);
            }
            (draft, body.values)
        });
        let best = drafts.min_by(|(a, _), (b, _)| cost(a.work()).total_cmp(&cost(b.work())));
        let (draft, values) = best.expect("there is a method");
        writer.adopt(&draft);
        self.values = values;
    }

    /// A bundle whose sums differ between sections, in planes.
    fn varied_bundle(&mut self, writer: &mut Writer, bundle: &Bundle) {
        let mut sums = vec![Sum::default(); bundle.rows.len() * WORDS];
        for column in &bundle.columns {
            let planes = self.varied_sum(writer, column);
            add_product(writer, &mut sums, &planes, &column.coefficients);
        }
        for ((to, _), words) in bundle.rows.iter().zip(finish(writer, sums)) {
            self.finish(writer, *to, Value { planes: Some(words), packed: None });
        }
    }

    /// The sum of a column in the section's variant, in planes.
    fn varied_sum(&mut self, writer: &mut Writer, column: &VariedColumn) -> Words {
        // The loads from memory are the same for all variants, and come before the branches. A
        // shared element that a section does not need may not be written yet.
        for (read, _) in column.variants.iter().flatten() {
            if matches!(read, Read::Input(_)) {
                self.loaded(writer, *read);
            }
        }
        let (Some(selector), [first, others @ ..]) = (column.selector, &column.variants[..]) else {
            return self.scaled_sum(writer, &column.variants[0]);
        };
        let chosen = self.operands.selector(writer, selector);
        let sum: Words = std::array::from_fn(|_| writer.reg());
        let done = writer.label();
        for (number, variant) in (1..).zip(others) {
            let (skip, other) = (writer.label(), writer.pred());
            writer.line(format_args!("setp.ne.u32 {other}, {chosen}, {number};"));
            writer.line(format_args!("@{other} bra {skip};"));
            self.branch(writer, variant, &sum);
            writer.line(format_args!("bra.uni {done};"));
            writer.place(skip);
        }
        self.branch(writer, first, &sum);
        writer.place(done);
        sum
    }

    /// The sum of one variant, in given registers. Forms that values get here are not known behind
    /// the branch.
    fn branch(&mut self, writer: &mut Writer, variant: &Variant, sum: &Words) {
        let before = self.values.clone();
        let words = self.scaled_sum(writer, variant);
        for (to, word) in sum.iter().zip(words) {
            writer.line(format_args!("mov.b32 {to}, {word};"));
        }
        self.values = before;
    }

    /// The sum of elements times their factors, in planes.
    fn scaled_sum(&mut self, writer: &mut Writer, variant: &Variant) -> Words {
        let mut sums = vec![Sum::default(); WORDS];
        // Elements with one factor stand together.
        for alike in variant.chunk_by(|(_, a), (_, b)| a == b) {
            let reads: Vec<Read> = alike.iter().map(|(read, _)| *read).collect();
            let mut sum = self.sum(writer, &reads, false);
            let planes = planes(writer, &mut sum);
            if alike.len() == variant.len() && alike[0].1 == 1 {
                return planes;
            }
            add_product(writer, &mut sums, &planes, &[alike[0].1]);
        }
        finish(writer, sums)[0]
    }

    fn finish(&mut self, writer: &mut Writer, to: Write, mut value: Value) {
        match to {
            Write::Output(output) => {
                let words = packed(writer, &mut value);
                self.operands.store(writer, output, &words);
            }
            Write::Shared(shared) => {
                let words = planes(writer, &mut value);
                self.operands.store_shared(writer, shared, &words);
            }
            Write::Temporary(number) => drop(self.values.temporaries.insert(number, value)),
        }
    }

    /// The results of a bundle's rows.
    fn rows(&mut self, writer: &mut Writer, bundle: &Bundle, method: Method) -> Vec<Value> {
        let mut results = vec![Value::default(); bundle.rows.len()];
        let ones = |row: &[u8]| row.iter().all(|&coefficient| coefficient <= 1);
        let (plain, products): (Vec<usize>, Vec<usize>) =
            (0..bundle.rows.len()).partition(|&row| ones(&bundle.rows[row].1));
        if !products.is_empty() {
            let rows: Vec<&[u8]> = products.iter().map(|&row| &*bundle.rows[row].1).collect();
            let columns = columns(&bundle.reads, &rows);
            let words = match method {
                Method::Planes => self.by_planes(writer, &columns, rows.len()),
                Method::Horner => self.by_horner(writer, &columns, rows.len()),
                Method::Doubles => self.by_doubles(writer, &columns, rows.len()),
            };
            for (&row, words) in products.iter().zip(words) {
                results[row] = match method {
                    Method::Planes => Value { planes: Some(words), packed: None },
                    Method::Horner | Method::Doubles => Value { packed: Some(words), planes: None },
                };
            }
        }
        for row in plain {
            let (to, coefficients) = &bundle.rows[row];
            let reads = bundle.reads.iter().zip(coefficients).filter(|(_, c)| **c != 0);
            let reads: Vec<Read> = reads.map(|(read, _)| *read).collect();
            let output = matches!(to, Write::Output(_));
            results[row] = self.sum(writer, &reads, output);
        }
        results
    }

    /// The sum of elements, in the form that takes fewer transpositions. `output` says that the
    /// packed form is needed.
    fn sum(&mut self, writer: &mut Writer, reads: &[Read], output: bool) -> Value {
        let missing = |has: fn(&Value) -> bool| {
            reads.iter().filter(|read| !self.value(**read).is_some_and(|value| has(&value))).count()
        };
        let to_pack = missing(|value| value.packed.is_some() || value.planes.is_none());
        let to_planes = missing(|value| value.planes.is_some()) + usize::from(output);
        let pack = to_pack <= to_planes;
        let sources: Vec<Words> = reads
            .iter()
            .map(|&read| match pack {
                true => self.packed(writer, read),
                false => self.planes(writer, read),
            })
            .collect();
        let words = std::array::from_fn(|word| {
            let operands: Vec<Reg> = sources.iter().map(|source| source[word]).collect();
            writer.xor_all(&operands)
        });
        match pack {
            true => Value { packed: Some(words), planes: None },
            false => Value { packed: None, planes: Some(words) },
        }
    }

    /// The sum of a column's elements, packed.
    fn packed_sum(&mut self, writer: &mut Writer, column: &Column) -> Words {
        match column.reads[..] {
            [only] => self.packed(writer, only),
            _ => {
                let mut sum = self.sum(writer, &column.reads, true);
                packed(writer, &mut sum)
            }
        }
    }

    /// The sum of a column's elements, in planes.
    fn planes_sum(&mut self, writer: &mut Writer, column: &Column) -> Words {
        match column.reads[..] {
            [only] => self.planes(writer, only),
            _ => {
                let mut sum = self.sum(writer, &column.reads, false);
                planes(writer, &mut sum)
            }
        }
    }

    fn by_planes(&mut self, writer: &mut Writer, columns: &[Column], rows: usize) -> Vec<Words> {
        let mut sums = vec![Sum::default(); rows * WORDS];
        let mut columns = columns.iter().peekable();
        while let Some(column) = columns.next() {
            let mut planes = self.planes_sum(writer, column);
            // Columns that are multiples of this one stand behind it.
            while let Some(multiple) = columns.next_if(|next| rows > 1 && next.of == column.of) {
                let other = self.planes_sum(writer, multiple);
                let factor = field::div(multiple.first(), column.first());
                let mut sum: Vec<Sum> = planes.iter().map(|&plane| Sum::from(plane)).collect();
                add_product(writer, &mut sum, &other, &[factor.unwrap_or(1)]);
                let mut sum = sum.into_iter().map(|sum| sum.finish(writer));
                planes = std::array::from_fn(|_| sum.next().expect("one sum per plane"));
            }
            add_product(writer, &mut sums, &planes, &column.coefficients);
        }
        finish(writer, sums)
    }

    fn by_horner(&mut self, writer: &mut Writer, columns: &[Column], rows: usize) -> Vec<Words> {
        let sources: Vec<Words> =
            columns.iter().map(|column| self.packed_sum(writer, column)).collect();
        let row = |row: usize| {
            let all = columns.iter().fold(0, |all, column| all | column.coefficients[row]);
            let highest = all.checked_ilog2().unwrap_or(0);
            std::array::from_fn(|word| {
                let mut sum = None;
                for bit in (0..=highest).rev() {
                    let chosen = sources.iter().zip(columns);
                    let chosen = chosen.filter(|(_, c)| c.coefficients[row] >> bit & 1 == 1);
                    let mut operands: Vec<Reg> = chosen.map(|(source, _)| source[word]).collect();
                    if let Some(sum) = sum {
                        operands.insert(0, double(writer, sum));
                    }
                    sum = Some(writer.xor_all(&operands));
                }
                sum.expect("there is a bit 0")
            })
        };
        (0..rows).map(row).collect()
    }

    fn by_doubles(&mut self, writer: &mut Writer, columns: &[Column], rows: usize) -> Vec<Words> {
        let mut sums = vec![Sum::default(); rows * WORDS];
        for column in columns {
            let all = column.coefficients.iter().fold(0, |all, coefficient| all | coefficient);
            let Some(highest) = all.checked_ilog2() else { continue };
            let mut words = self.packed_sum(writer, column);
            for bit in 0..=highest {
                if bit > 0 {
                    words = words.map(|word| double(writer, word));
                }
                let rows = column.coefficients.iter().zip(sums.chunks_exact_mut(WORDS));
                for (_, sums) in rows.filter(|(coefficient, _)| **coefficient >> bit & 1 == 1) {
                    sums.iter_mut().zip(words).for_each(|(sum, word)| sum.add(writer, word));
                }
            }
        }
        finish(writer, sums)
    }

    /// The value as far as it is known.
    fn value(&self, read: Read) -> Option<Value> {
        match read {
            Read::Input(input) => self.values.inputs.get(input as usize).copied(),
            Read::Shared(shared) => {
                // Shared elements are in planes.
                let value = self.values.shared.get(shared as usize).copied();
                value.map(|value| Value { planes: value.planes.or(Some(NOT_LOADED)), ..value })
            }
            Read::Temporary(number) => self.values.temporaries.get(&number).copied(),
        }
    }

    fn packed(&mut self, writer: &mut Writer, read: Read) -> Words {
        let mut value = self.loaded(writer, read);
        let words = packed(writer, &mut value);
        self.keep(read, value);
        words
    }

    fn planes(&mut self, writer: &mut Writer, read: Read) -> Words {
        let mut value = self.loaded(writer, read);
        let words = planes(writer, &mut value);
        self.keep(read, value);
        words
    }

    fn keep(&mut self, read: Read, value: Value) {
        match read {
            Read::Input(input) => self.values.inputs[input as usize] = value,
            Read::Shared(shared) => self.values.shared[shared as usize] = value,
            Read::Temporary(number) => drop(self.values.temporaries.insert(number, value)),
        }
    }

    fn loaded(&mut self, writer: &mut Writer, read: Read) -> Value {
        match read {
            Read::Input(input) => {
                let end = (input as usize + 1 + self.ahead).min(self.values.inputs.len());
                for at in 0..end {
                    let value = &mut self.values.inputs[at];
                    if value.packed.is_none() && value.planes.is_none() {
                        value.packed = Some(self.operands.load(writer, at as u32));
                    }
                }
                self.values.inputs[input as usize]
            }
            Read::Shared(shared) => {
                let value = &mut self.values.shared[shared as usize];
                if value.planes.is_none() {
                    value.planes = Some(self.operands.load_shared(writer, shared));
                }
                *value
            }
            Read::Temporary(number) => self.values.temporaries[&number],
        }
    }
}

/// Stands for the planes of a shared element that is not loaded yet.
const NOT_LOADED: Words = [Reg::NONE; WORDS];

fn packed(writer: &mut Writer, value: &mut Value) -> Words {
    *value
        .packed
        .get_or_insert_with(|| transpose(writer, &value.planes.expect("a value has a form")))
}

fn planes(writer: &mut Writer, value: &mut Value) -> Words {
    *value
        .planes
        .get_or_insert_with(|| transpose(writer, &value.packed.expect("a value has a form")))
}

/// The elements that all rows multiply by the same coefficients: their sum is multiplied.
struct Column {
    reads: Vec<Read>,
    /// One coefficient per row.
    coefficients: Vec<u8>,
    /// The coefficients divided by the first that is not 0: equal for multiples of a column.
    of: Vec<u8>,
}

impl Column {
    /// The first coefficient that is not 0.
    fn first(&self) -> u8 {
        self.coefficients.iter().copied().find(|coefficient| *coefficient != 0).unwrap_or(1)
    }
}

/// The columns of rows that are not 0. Multiples of each other stand together.
fn columns(reads: &[Read], rows: &[&[u8]]) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for (at, &read) in reads.iter().enumerate() {
        let coefficients: Vec<u8> = rows.iter().map(|row| row[at]).collect();
        let Some(first) = coefficients.iter().copied().find(|coefficient| *coefficient != 0) else {
            continue;
        };
        match columns.iter_mut().find(|column| column.coefficients == coefficients) {
            Some(column) => column.reads.push(read),
            None => {
                let of = coefficients.iter().map(|&c| field::div(c, first).unwrap_or(0)).collect();
                columns.push(Column { reads: vec![read], coefficients, of });
            }
        }
    }
    let mut ordered: Vec<Column> = Vec::with_capacity(columns.len());
    for column in columns {
        let place = ordered.iter().rposition(|before| before.of == column.of);
        ordered.insert(place.map_or(ordered.len(), |place| place + 1), column);
    }
    ordered
}

/// Adds the product of a source and each row's coefficient to the row's sums.
fn add_product(writer: &mut Writer, sums: &mut [Sum], planes: &Words, coefficients: &[u8]) {
    // The planes of the source in each plane of each row's result, as bits.
    let parts: Vec<u8> = coefficients.iter().flat_map(|&c| matrix(c)).collect();
    for (half, planes) in planes.as_chunks::<4>().0.iter().enumerate() {
        let parts: Vec<u8> = parts.iter().map(|part| part >> (4 * half) & 15).collect();
        add_parts(writer, sums, planes, &parts);
    }
    // Operands that waited for those of the next source would take registers meanwhile.
    sums.iter_mut().for_each(|sum| sum.settle(writer));
}

/// The results of all rows.
fn finish(writer: &mut Writer, sums: Vec<Sum>) -> Vec<Words> {
    let rows = sums.len() / WORDS;
    let mut words = sums.into_iter().map(|sum| sum.finish(writer));
    (0..rows).map(|_| std::array::from_fn(|_| words.next().expect("WORDS sums per row"))).collect()
}

/// Row p has the bits of a source whose XOR is bit p of the product with `coefficient`.
fn matrix(coefficient: u8) -> [u8; 8] {
    std::array::from_fn(|plane| {
        (0..8).fold(0, |row, bit| row | (field::mul(coefficient, 1 << bit) >> plane & 1) << bit)
    })
}

/// An XOR that grows. Operands wait until there are two, because `lop3` adds two at once.
#[derive(Clone, Default)]
struct Sum {
    sum: Option<Reg>,
    waiting: Vec<Reg>,
}

impl Sum {
    fn from(operand: Reg) -> Self {
        Self { sum: Some(operand), waiting: Vec::new() }
    }

    fn add(&mut self, writer: &mut Writer, operand: Reg) {
        self.waiting.push(operand);
        if self.waiting.len() + usize::from(self.sum.is_some()) == 3 {
            self.flush(writer);
        }
    }

    /// Adds an operand that waits for another one to a sum that exists.
    fn settle(&mut self, writer: &mut Writer) {
        if self.sum.is_some() && !self.waiting.is_empty() {
            self.flush(writer);
        }
    }

    fn flush(&mut self, writer: &mut Writer) -> Reg {
        let operands: Vec<Reg> =
            self.sum.take().into_iter().chain(self.waiting.drain(..)).collect();
        let sum = writer.xor_all(&operands);
        self.sum = Some(sum);
        sum
    }

    fn finish(mut self, writer: &mut Writer) -> Reg {
        match (self.sum, &self.waiting[..]) {
            (Some(sum), []) => sum,
            _ => self.flush(writer),
        }
    }
}

/// Adds to each sum the XOR of the planes that the bits of its part choose.
///
/// Often several sums choose the same planes. Their XOR is computed once if that saves
/// instructions: half an instruction for each operand less.
fn add_parts(writer: &mut Writer, sums: &mut [Sum], planes: &[Reg; 4], parts: &[u8]) {
    let mut uses = [0u32; 16];
    parts.iter().for_each(|&part| uses[usize::from(part)] += 1);
    let mut known: [Option<Reg>; 16] = [None; 16];
    for pattern in 1..16u8 {
        let (planes_of, uses) = (pattern.count_ones(), uses[usize::from(pattern)]);
        if planes_of >= 2 && uses * (planes_of - 1) > 2 {
            let chosen: Vec<Reg> = chosen(planes, pattern).collect();
            known[usize::from(pattern)] = Some(match pattern {
                // Four planes are one more than three, or two more than two.
                15 => match (0..15).rev().find_map(|part| Some((part as u8, known[part]?))) {
                    Some((part, sum)) => {
                        let rest = self::chosen(planes, 15 ^ part);
                        let operands: Vec<Reg> = std::iter::once(sum).chain(rest).collect();
                        writer.xor_all(&operands)
                    }
                    None => writer.xor_all(&chosen),
                },
                _ => writer.xor_all(&chosen),
            });
        }
    }
    for (sum, &part) in sums.iter_mut().zip(parts) {
        match known[usize::from(part)] {
            Some(operand) => sum.add(writer, operand),
            None => chosen(planes, part).for_each(|operand| sum.add(writer, operand)),
        }
    }
}

fn chosen(planes: &[Reg; 4], pattern: u8) -> impl Iterator<Item = Reg> + '_ {
    planes.iter().enumerate().filter(move |(bit, _)| pattern >> bit & 1 == 1).map(|(_, reg)| *reg)
}
