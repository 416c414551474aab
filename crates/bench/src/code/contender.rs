//! The contenders of a case.
//!
//! Every contender gets the same buffers, and its tables are made beforehand. Before any timing, a
//! check compares the bytes that contenders compute. There are two exceptions: the limits compute
//! nothing, and in a rebuild the contenders use different codes.

use std::sync::Arc;

use anyhow::ensure;
use fieldstone_codes::Profile;
use fieldstone_gf::{
    Element, LinearMap, Matrix, Options, Source, StoreMode, Target, Update, field,
};

use super::case::{CacheState, Case, Kind, Workload};
use super::isal::{Isal, coefficients};
use super::jerasure::Jerasure;
use super::limit::{Writes, skeleton};
use super::memory::{BufferLengths, Stripe};

/// Data nodes of the MSR engine paper's code {6,4,8}, the profile `zigzag:4+2`.
const ZIGZAG_K: usize = 4;

/// Most outputs of a map in this file.
const MAX_OUTPUTS: usize = 8;

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// Our engine, which chooses its kind of stores itself.
    Ours,
    /// Our engine with non-temporal stores, which write around the caches.
    OursStreaming,
    /// Our Reed-Solomon, in cases where `Ours` is a rebuild of Zigzag.
    OursRs,
    /// ISA-L. In the encoding of Zigzag, one call per element.
    Isal,
    /// Jerasure's matrix coder.
    Jerasure,
    /// gf-complete through Jerasure: one call per term, the MSR paper's CPU method.
    GfComplete,
    /// The limit, with plain stores.
    LimitPlain,
    /// The limit, with non-temporal stores.
    LimitStreaming,
}

impl Contender {
    /// All contenders, in the order of the report.
    pub const ALL: [Self; 8] = [
        Self::Ours,
        Self::OursStreaming,
        Self::OursRs,
        Self::Isal,
        Self::Jerasure,
        Self::GfComplete,
        Self::LimitPlain,
        Self::LimitStreaming,
    ];

    /// The name in reports, rows and choices.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OursStreaming => "ours-streaming",
            Self::OursRs => "ours-rs",
            Self::Isal => "isa-l",
            Self::Jerasure => "jerasure",
            Self::GfComplete => "gf-complete",
            Self::LimitPlain => "limit-plain",
            Self::LimitStreaming => "limit-streaming",
        }
    }

    /// True for the limits, which compute nothing.
    pub fn is_limit(self) -> bool {
        matches!(self, Self::LimitPlain | Self::LimitStreaming)
    }
}

/// The libraries that were loaded.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// ISA-L.
    pub isal: Option<Isal>,
    /// Jerasure with gf-complete.
    pub jerasure: Option<Jerasure>,
}

/// A function that executes a case once on the buffers of a stripe.
pub type StripeFn = Box<dyn Fn(&Stripe) + Send + Sync>;

/// A case with its contenders, ready to run.
pub struct PreparedCase {
    /// The buffers of one execution.
    pub lengths: BufferLengths,
    /// Bytes that one execution counts for: data encoded, decoded or updated.
    pub data_bytes: usize,
    /// The contenders.
    pub contenders: Vec<(Contender, StripeFn)>,
}

impl PreparedCase {
    /// Prepares a case for all contenders that can take part.
    pub fn new(case: &Case, peers: &Peers) -> Self {
        let mut prepared = match case.work {
            Workload::Encode(kind) => encode(case, kind, peers),
            Workload::DecodeOne => decode(case, &[0], peers),
            Workload::DecodeMany => {
                decode(case, &(0..case.m).map(|place| 2 * place).collect::<Vec<_>>(), peers)
            }
            Workload::DecodeRun => decode(case, &(0..case.m).collect::<Vec<_>>(), peers),
            Workload::Update(kind) => update(case, kind, peers),
            Workload::Zigzag => zigzag_encode(case, peers),
            Workload::Rebuild => rebuild(case, peers),
        };
        if case.cache == CacheState::Hot {
            prepared.contenders.retain(|(contender, _)| *contender != Contender::OursStreaming);
        }
        prepared
    }

    /// Checks that all contenders compute the same bytes. In a rebuild, it compares nothing,
    /// because the codes differ.
    ///
    /// # Errors
    /// Two contenders differ.
    pub fn verify(&self, stripe: &mut Stripe) -> anyhow::Result<()> {
        let before = stripe.copy_outputs();
        let mut expected = None;
        for (contender, run) in self.contenders.iter().filter(|(who, _)| !who.is_limit()) {
            stripe.restore_outputs(&before);
            run(stripe);
            let outputs = stripe.copy_outputs();
            // The codes differ: only the number of bytes is the same.
            if self.contenders.iter().any(|(who, _)| *who == Contender::OursRs)
                && *contender != Contender::Ours
            {
                continue;
            }
            let expected = expected.get_or_insert_with(|| outputs.clone());
            ensure!(*expected == outputs, "{} computes other bytes than ours", contender.name());
        }
        Ok(())
    }
}

fn parity_matrix(k: usize, m: usize, kind: Kind) -> Matrix {
    let cauchy = |row: usize, column: usize| {
        field::inverse(((k + row) ^ column) as u8).expect("row k + i differs from column j < k")
    };
    let mut word = 1u32;
    Matrix::from_fn(m, k, |row, column| match kind {
        Kind::Cauchy => cauchy(row, column),
        Kind::Ones => field::div(cauchy(row, column), cauchy(0, column)).expect("not zero"),
        Kind::Random => {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 24) as u8 % 254 + 2
        }
    })
}

fn map_of(matrix: &Matrix) -> Arc<LinearMap> {
    Arc::new(LinearMap::from_matrix(matrix).expect("a matrix with rows and columns is a map"))
}

fn ours(map: &Arc<LinearMap>, stores: StoreMode, update: Update) -> StripeFn {
    let map = Arc::clone(map);
    let options = Options { stores, update, ..Options::default() };
    Box::new(move |stripe| execute(&map, options, &stripe.inputs, &stripe.outputs, stripe))
}

/// Runs a map on the first buffers of two lists. The map determines the lengths.
fn execute(
    map: &LinearMap,
    options: Options,
    inputs: &[*mut u8],
    outputs: &[*mut u8],
    stripe: &Stripe,
) {
    const EMPTY: &[u8] = &[];
    const MAX_INPUTS: usize = 16;
    let element_bytes = stripe.output_bytes(0) / map.shape().output_elements[0] as usize;
    let (count, targets) = (map.inputs(), map.outputs());
    let mut sources = [EMPTY; MAX_INPUTS];
    for ((slice, input), elements) in
        sources.iter_mut().zip(inputs).zip(&map.shape().input_elements)
    {
        // SAFETY: the case's shape gives every input this length, and no thread writes to it.
        *slice = unsafe { std::slice::from_raw_parts(*input, *elements as usize * element_bytes) };
    }
    let mut slices: [&mut [u8]; MAX_OUTPUTS] = Default::default();
    for ((slice, output), elements) in
        slices.iter_mut().zip(outputs).zip(&map.shape().output_elements)
    {
        let len_bytes = *elements as usize * element_bytes;
        // SAFETY: the case's shape gives every output this length, and no other thread uses it.
        *slice = unsafe { std::slice::from_raw_parts_mut(*output, len_bytes) };
    }
    map.execute_with(options, &sources[..count], &mut slices[..targets])
        .expect("the buffers have the lengths of the map");
}

/// Both limits, for the first `inputs` inputs.
fn limits(inputs: usize, len_bytes: usize) -> [(Contender, StripeFn); 2] {
    [(Contender::LimitPlain, Writes::Plain), (Contender::LimitStreaming, Writes::Streaming)]
        .map(|(contender, writes)| (contender, limit(inputs, len_bytes, writes)))
}

fn limit(inputs: usize, len_bytes: usize, writes: Writes) -> StripeFn {
    Box::new(move |stripe| {
        // SAFETY: all these buffers have at least this length.
        unsafe { skeleton(&stripe.inputs[..inputs], &stripe.outputs, len_bytes, writes) };
    })
}

/// Our engine, ISA-L and the limits for a map of one element per shard.
fn contenders(map: &Arc<LinearMap>, len_bytes: usize, peers: &Peers) -> Vec<(Contender, StripeFn)> {
    let mut all = vec![
        (Contender::Ours, ours(map, StoreMode::Auto, Update::Replace)),
        (Contender::OursStreaming, ours(map, StoreMode::Streaming, Update::Replace)),
    ];
    if let Some(isal) = &peers.isal {
        let tables = isal.tables(map);
        let run: StripeFn = Box::new(move |stripe| {
            // SAFETY: the buffers have this length.
            unsafe { tables.encode(&stripe.inputs, &stripe.outputs, len_bytes) };
        });
        all.push((Contender::Isal, run));
    }
    all.extend(limits(map.inputs(), len_bytes));
    all
}

fn encode(case: &Case, kind: Kind, peers: &Peers) -> PreparedCase {
    let map = map_of(&parity_matrix(case.k, case.m, kind));
    let len_bytes = case.shard_bytes;
    let mut contenders = contenders(&map, len_bytes, peers);
    if let Some(jerasure) = peers.jerasure.clone() {
        let matrix: Vec<i32> = coefficients(&map).into_iter().map(i32::from).collect();
        let run: StripeFn = Box::new(move |stripe| {
            // SAFETY: the buffers have this length, and the matrix is the map's.
            unsafe { jerasure.encode(&matrix, &stripe.inputs, &stripe.outputs, len_bytes) };
        });
        contenders.push((Contender::Jerasure, run));
    }
    PreparedCase {
        lengths: BufferLengths::uniform(case.k, case.m, len_bytes),
        data_bytes: case.k * len_bytes,
        contenders,
    }
}

fn decode(case: &Case, lost: &[usize], peers: &Peers) -> PreparedCase {
    let Case { k, m, shard_bytes, .. } = *case;
    let code = Profile::rs(k, m).expect("the shapes are within bounds").code();
    let available: Vec<usize> = (0..k + m).filter(|shard| !lost.contains(shard)).collect();
    let plan = code.repair(lost, &available).expect("no more than m are lost");
    let mut contenders = contenders(&plan.map, shard_bytes, peers);
    if let Some(jerasure) = peers.jerasure.clone() {
        let matrix: Vec<i32> = coefficients(code.encode()).into_iter().map(i32::from).collect();
        let reads: Vec<usize> = plan.reads.iter().map(|read| read.shard).collect();
        let lost: Vec<usize> = lost.to_vec();
        let numbers: Vec<i32> = lost.iter().map(|&shard| shard as i32).collect();
        let run: StripeFn = Box::new(move |stripe| {
            // Decoding does not read the other parities. Their places hold an input.
            let mut shards = [stripe.inputs[0]; 16];
            reads.iter().zip(&stripe.inputs).for_each(|(&shard, input)| shards[shard] = *input);
            lost.iter().zip(&stripe.outputs).for_each(|(&shard, output)| shards[shard] = *output);
            let (data, parity) = shards[..k + m].split_at(k);
            // SAFETY: the buffers have this length; only the lost ones are written.
            unsafe { jerasure.decode(&matrix, &numbers, data, parity, shard_bytes) };
        });
        contenders.push((Contender::Jerasure, run));
    }
    PreparedCase {
        lengths: BufferLengths::uniform(k, lost.len(), shard_bytes),
        data_bytes: k * shard_bytes,
        contenders,
    }
}

fn update(case: &Case, kind: Kind, peers: &Peers) -> PreparedCase {
    const UPDATED: usize = 1;
    let len_bytes = case.shard_bytes;
    let matrix = parity_matrix(case.k, case.m, kind);
    let column = map_of(&Matrix::from_fn(case.m, 1, |row, _| matrix.row(row)[UPDATED]));
    let mut contenders =
        vec![(Contender::Ours, ours(&column, StoreMode::Auto, Update::Accumulate))];
    if let Some(isal) = &peers.isal {
        let tables = isal.tables(&map_of(&matrix));
        let run: StripeFn = Box::new(move |stripe| {
            // SAFETY: the buffers have this length.
            unsafe { tables.update(UPDATED, stripe.inputs[0], &stripe.outputs, len_bytes) };
        });
        contenders.push((Contender::Isal, run));
    }
    contenders.push((Contender::LimitPlain, limit(1, len_bytes, Writes::Add)));
    PreparedCase {
        lengths: BufferLengths::uniform(1, case.m, len_bytes),
        data_bytes: len_bytes,
        contenders,
    }
}

/// A part of a shard, with its coefficient if it is a source.
struct Term {
    shard: usize,
    offset_bytes: usize,
    coefficient: u8,
}

impl Term {
    fn of(element: Element, element_bytes: usize, coefficient: u8) -> Self {
        let offset_bytes = element.index as usize * element_bytes;
        Self { shard: usize::from(element.shard), offset_bytes, coefficient }
    }

    fn pointer(&self, shards: &[*mut u8]) -> *mut u8 {
        shards[self.shard].wrapping_add(self.offset_bytes)
    }
}

/// Each output element of a map of one step, with the terms that sum to it.
fn sums(map: &LinearMap, element_bytes: usize) -> Vec<(Term, Vec<Term>)> {
    let rows = map.steps().iter().flatten().filter_map(|row| {
        let Target::Output(target) = row.target else { return None };
        let terms = row.terms.iter().filter_map(|term| match term.source {
            Source::Input(source) => Some(Term::of(source, element_bytes, term.coefficient)),
            Source::Scratch(_) => None,
        });
        Some((Term::of(target, element_bytes, 1), terms.collect()))
    });
    rows.collect()
}

fn zigzag_encode(case: &Case, peers: &Peers) -> PreparedCase {
    let code = Profile::zigzag(case.k, case.m).expect("4 + 2").code();
    let map = Arc::clone(code.encode());
    let node_bytes = case.shard_bytes;
    let element_bytes = node_bytes / code.elements() as usize;
    let mut contenders = vec![
        (Contender::Ours, ours(&map, StoreMode::Auto, Update::Replace)),
        (Contender::OursStreaming, ours(&map, StoreMode::Streaming, Update::Replace)),
    ];
    if let Some(isal) = &peers.isal {
        let rows: Vec<_> = sums(&map, element_bytes)
            .into_iter()
            .map(|(target, terms)| {
                let row = Matrix::from_fn(1, terms.len(), |_, column| terms[column].coefficient);
                (target, isal.tables(&map_of(&row)), terms)
            })
            .collect();
        let run: StripeFn = Box::new(move |stripe| {
            for (target, tables, terms) in &rows {
                let mut inputs = [stripe.inputs[0]; ZIGZAG_K];
                for (input, term) in inputs.iter_mut().zip(terms) {
                    *input = term.pointer(&stripe.inputs);
                }
                let output = [target.pointer(&stripe.outputs)];
                // SAFETY: elements lie inside their nodes.
                unsafe { tables.encode(&inputs, &output, element_bytes) };
            }
        });
        contenders.push((Contender::Isal, run));
    }
    if let Some(jerasure) = peers.jerasure.clone() {
        let rows = sums(&map, element_bytes);
        let run: StripeFn = Box::new(move |stripe| {
            for (target, terms) in &rows {
                let output = target.pointer(&stripe.outputs);
                for (place, term) in terms.iter().enumerate() {
                    let (input, add) = (term.pointer(&stripe.inputs), place > 0);
                    // SAFETY: elements lie inside their nodes.
                    unsafe {
                        jerasure.multiply_add(input, term.coefficient, output, element_bytes, add);
                    }
                }
            }
        });
        contenders.push((Contender::GfComplete, run));
    }
    contenders.extend(limits(ZIGZAG_K, node_bytes));
    PreparedCase {
        lengths: BufferLengths::uniform(ZIGZAG_K, 2, node_bytes),
        data_bytes: ZIGZAG_K * node_bytes,
        contenders,
    }
}

/// The inputs are the halves that Zigzag reads of five nodes, then the four shards that
/// Reed-Solomon reads. The output is the lost node.
fn rebuild(case: &Case, peers: &Peers) -> PreparedCase {
    const SURVIVORS: usize = ZIGZAG_K + 1;
    let node_bytes = case.shard_bytes;
    let (lost, there) = ([1], [0, 2, 3, 4, 5]);
    let zigzag = Profile::zigzag(case.k, case.m).expect("4 + 2").code();
    let map = Arc::clone(&zigzag.repair(&lost, &there).expect("one is lost").map);
    let code = Profile::rs(case.k, case.m).expect("4 + 2").code();
    let plan = code.repair(&lost, &there).expect("one is lost");
    let rs = Arc::clone(&plan.map);
    let mut contenders: Vec<(Contender, StripeFn)> =
        vec![(Contender::Ours, ours(&map, StoreMode::Auto, Update::Replace))];
    let ours_rs: StripeFn = Box::new(move |stripe| {
        execute(&rs, Options::default(), &stripe.inputs[SURVIVORS..], &stripe.outputs, stripe);
    });
    contenders.push((Contender::OursRs, ours_rs));
    if let Some(isal) = &peers.isal {
        let tables = isal.tables(&plan.map);
        let run: StripeFn = Box::new(move |stripe| {
            // SAFETY: the buffers have this length.
            unsafe { tables.encode(&stripe.inputs[SURVIVORS..], &stripe.outputs, node_bytes) };
        });
        contenders.push((Contender::Isal, run));
    }
    let halves = vec![node_bytes / 2; SURVIVORS];
    let inputs = [halves, vec![node_bytes; ZIGZAG_K]].concat();
    let lengths = BufferLengths { inputs, outputs: vec![node_bytes] };
    PreparedCase { lengths, data_bytes: node_bytes, contenders }
}

#[cfg(test)]
mod tests {
    use super::super::case::{self, Cores};
    use super::super::memory::Region;
    use super::*;

    #[test]
    fn peers_that_are_installed_compute_our_bytes() {
        let peers = Peers {
            isal: Isal::load("libisal.so.2".as_ref()).ok(),
            jerasure: Jerasure::load("libJerasure.so.2".as_ref()).ok(),
        };
        let region = Region::map(2 << 20).expect("2 MiB");
        let small = |case: &Case| {
            case.shard_bytes <= 16 << 10
                && case.cache == CacheState::Cold
                && case.cores == Cores::One
        };
        let mut checked = 0;
        for case in case::all().into_iter().filter(small) {
            let prepared = PreparedCase::new(&case, &peers);
            let mut stripes = region.parts(1)[0].stripes(&prepared.lengths, 1);
            assert_eq!(prepared.contenders[0].0, Contender::Ours);
            prepared
                .verify(&mut stripes[0])
                .unwrap_or_else(|error| panic!("{}: {error}", case.name()));
            checked += 1;
        }
        assert!(checked > 30);
    }

    #[test]
    fn a_contender_with_other_bytes_is_caught() {
        let case = case::all()[0];
        let mut prepared = PreparedCase::new(&case, &Peers::default());
        let wrong: StripeFn = Box::new(|stripe| {
            // SAFETY: the output has more than one byte.
            unsafe { stripe.outputs[0].write(!stripe.outputs[0].read()) };
        });
        prepared.contenders.push((Contender::Isal, wrong));
        let region = Region::map(2 << 20).expect("2 MiB");
        let mut stripes = region.parts(1)[0].stripes(&prepared.lengths, 1);
        assert!(prepared.verify(&mut stripes[0]).is_err());
    }
}
