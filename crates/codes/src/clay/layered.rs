//! Layered decoding of whole shards, and repair of one node; [`super`] explains both.

use std::collections::HashMap;
use std::sync::Arc;

use fieldstone_gf::{LinearMap, Matrix, Source, Term, field};

use super::Clay;
use super::couple::Corner::{Coupled, PartnerCoupled, PartnerUncoupled, Uncoupled};
use super::couple::{Corner, Couple};
use super::geometry::{Geometry, Vertex};
use crate::plan::{ReadIndex, ReadSet};
use crate::program::{Program, term};
use crate::{RepairPlan, ShardRead};

impl Clay {
    /// The plan that computes the shards `lost` from the k whole shards `reads`.
    pub(super) fn decode(&self, lost: &[usize], reads: &[usize]) -> RepairPlan {
        RepairPlan {
            lost: lost.to_vec(),
            reads: reads.iter().map(|&shard| ShardRead::whole(shard, self.elements)).collect(),
            map: Arc::new(self.decode_map(lost, reads)),
        }
    }

    /// The map from the whole shards `reads` to `lost`. All other shards count as lost, too.
    pub(super) fn decode_map(&self, lost: &[usize], reads: &[usize]) -> LinearMap {
        let n = self.elements;
        let read = |shard: usize| reads.contains(&shard);
        let absent = |node: &usize| self.grid.shard(*node).is_some_and(|shard| !read(shard));
        let absent: Vec<usize> = (0..self.grid.nodes()).filter(absent).collect();
        let program = Program::new(vec![n; reads.len()], vec![n; lost.len()]);
        let sources = ReadSet::whole(reads, n).sources();
        let mut layers = Layers::new(self, sources, program, &absent, &absent);
        layers.solve((0..n).collect());
        for (output, &shard) in lost.iter().enumerate() {
            let node = self.grid.node(shard);
            for plane in 0..n {
                let terms = layers.coupled((node, plane));
                layers.program.output(output, plane, terms);
            }
        }
        layers.program.finish()
    }

    /// The plan that computes one shard from the planes with its dot, read from d helpers.
    pub(super) fn rebuild(&self, lost: usize, helpers: &[usize]) -> RepairPlan {
        let grid = &self.grid;
        let node = grid.node(lost);
        let row = grid.y(node);
        let planes: Vec<u32> =
            (0..self.elements).filter(|&plane| grid.is_dot((node, plane))).collect();
        let mut set = ReadSet::default();
        for &shard in helpers {
            planes.iter().for_each(|&plane| set.insert(shard, plane));
        }
        let helps = |node: usize| grid.shard(node).is_none_or(|shard| helpers.contains(&shard));
        let absent: Vec<usize> = (0..grid.nodes()).filter(|&node| !helps(node)).collect();
        let in_row = |node: &usize| grid.y(*node) == row;
        let unknown: Vec<usize> =
            (0..grid.nodes()).filter(|node| in_row(node) || absent.contains(node)).collect();
        let program = Program::new(vec![planes.len() as u32; helpers.len()], vec![self.elements]);
        let mut layers = Layers::new(self, set.sources(), program, &absent, &unknown);
        layers.solve(planes.clone());
        for &plane in &planes {
            let own = layers.coupled((node, plane));
            layers.program.output(0, plane, own);
            for mate in (0..grid.nodes()).filter(|mate| in_row(mate) && *mate != node) {
                let (_, other_plane) = grid.partner((mate, plane));
                let terms = layers.partner_coupled((mate, plane));
                layers.program.output(0, other_plane, terms);
            }
        }
        RepairPlan { lost: vec![lost], reads: set.reads(), map: Arc::new(layers.program.finish()) }
    }
}

/// A program that solves planes.
struct Layers<'a> {
    grid: &'a Geometry,
    couple: &'a Couple,
    sources: ReadIndex,
    program: Program,
    /// For each node: true if its shard is not read.
    absent: Vec<bool>,
    /// The m nodes whose uncoupled elements come from the MDS code.
    unknown: Vec<usize>,
    /// All other nodes.
    known: Vec<usize>,
    /// From the uncoupled elements of `known` to those of `unknown`.
    solve: Matrix,
    /// Uncoupled elements of `unknown`, in planes that are solved.
    uncoupled: HashMap<Vertex, Source>,
}

impl<'a> Layers<'a> {
    fn new(
        clay: &'a Clay,
        sources: ReadIndex,
        program: Program,
        absent: &[usize],
        unknown: &[usize],
    ) -> Self {
        let nodes = 0..clay.grid.nodes();
        let known: Vec<usize> = nodes.clone().filter(|node| !unknown.contains(node)).collect();
        let to_message = clay.generator.select_rows(&known).invert();
        let to_message = to_message.expect("any k + nu rows of an MDS generator are independent");
        let solve = clay.generator.select_rows(unknown).multiply(&to_message);
        Self {
            grid: &clay.grid,
            couple: &clay.couple,
            sources,
            program,
            absent: nodes.map(|node| absent.contains(&node)).collect(),
            unknown: unknown.to_vec(),
            known,
            solve: solve.expect("both have k + nu columns or rows"),
            uncoupled: HashMap::new(),
        }
    }

    /// Solves planes, in the order of their numbers of dots on absent nodes.
    fn solve(&mut self, mut planes: Vec<u32>) {
        let absent: Vec<usize> = (0..self.grid.nodes()).filter(|&node| self.absent[node]).collect();
        let grid = self.grid;
        planes.sort_by_key(|&z| absent.iter().filter(|&&node| grid.is_dot((node, z))).count());
        for plane in planes {
            let known: Vec<Vec<Term>> =
                self.known.iter().map(|&node| self.uncouple((node, plane))).collect();
            for at in 0..self.unknown.len() {
                let mut terms = Vec::new();
                for (node_terms, &c) in known.iter().zip(self.solve.row(at)) {
                    terms.extend(node_terms.iter().map(|t| scaled(*t, c)));
                }
                let source = self.program.scratch(terms);
                self.uncoupled.insert((self.unknown[at], plane), source);
            }
        }
    }

    /// The terms of the uncoupled element of a node that is read. The terms are put into the rows
    /// that need them instead of into scratch. That costs multiplications, which are cheap, and
    /// saves writes and reads of memory.
    fn uncouple(&self, vertex: Vertex) -> Vec<Term> {
        if self.grid.is_dot(vertex) {
            return self.held(vertex, 1);
        }
        let other = if self.absent[self.grid.partner(vertex).0] {
            PartnerUncoupled
        } else {
            PartnerCoupled
        };
        self.follow(vertex, Uncoupled, [Coupled, other])
    }

    /// The terms of the coupled element of an absent node.
    fn coupled(&self, vertex: Vertex) -> Vec<Term> {
        if self.grid.is_dot(vertex) {
            return vec![term(self.uncoupled[&vertex], 1)];
        }
        let other = if self.absent[self.grid.partner(vertex).0] {
            PartnerUncoupled
        } else {
            PartnerCoupled
        };
        self.follow(vertex, Coupled, [Uncoupled, other])
    }

    /// The terms of the coupled element of an absent partner, from both elements of a node that is
    /// read.
    fn partner_coupled(&self, vertex: Vertex) -> Vec<Term> {
        self.follow(vertex, PartnerCoupled, [Coupled, Uncoupled])
    }

    /// One element of a pair, from two others.
    fn follow(&self, vertex: Vertex, wanted: Corner, from: [Corner; 2]) -> Vec<Term> {
        let partner = self.grid.partner(vertex);
        let larger = self.grid.x(vertex.0) > self.grid.x(partner.0);
        let coefficients = self.couple.coefficients(larger, wanted, from);
        let terms = from.into_iter().zip(coefficients).filter(|(_, c)| *c != 0);
        let terms = terms.flat_map(|(corner, c)| match corner {
            Coupled => self.held(vertex, c),
            PartnerCoupled => self.held(partner, c),
            Uncoupled => vec![term(self.uncoupled[&vertex], c)],
            PartnerUncoupled => vec![term(self.uncoupled[&partner], c)],
        });
        terms.collect()
    }

    /// A shard's element times a coefficient. No terms for a virtual node, which holds zeros.
    fn held(&self, (node, plane): Vertex, coefficient: u8) -> Vec<Term> {
        let Some(shard) = self.grid.shard(node) else { return Vec::new() };
        let source = self.sources.get(shard, plane).expect("planes are solved from what is read");
        vec![term(source, coefficient)]
    }
}

fn scaled(term: Term, factor: u8) -> Term {
    Term { coefficient: field::mul(term.coefficient, factor), ..term }
}
