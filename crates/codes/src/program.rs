//! Builds maps of several steps.
//!
//! A plan names the terms of each scratch element and each output. The builder puts every row into
//! the earliest step in which all of its sources are written. So independent rows share a step, and
//! the author of a plan need not count steps.

use fieldstone_gf::{Element, LinearMap, Row, Shape, Source, Step, Target, Term};

/// A map under construction.
pub(crate) struct Program {
    shape: Shape,
    steps: Vec<Step>,
    /// For each scratch element, the first step that may read it.
    ready: Vec<usize>,
}

impl Program {
    /// A program over shards with these numbers of elements.
    pub(crate) fn new(input_elements: Vec<u32>, output_elements: Vec<u32>) -> Self {
        let shape = Shape { input_elements, output_elements, scratch_elements: 0 };
        Self { shape, steps: Vec::new(), ready: Vec::new() }
    }

    /// A new scratch element, the sum of `terms`.
    pub(crate) fn scratch(&mut self, terms: Vec<Term>) -> Source {
        let index = self.ready.len() as u32;
        let step = self.push(Target::Scratch(index), terms);
        self.ready.push(step + 1);
        Source::Scratch(index)
    }

    /// Element `index` of output `shard` is the sum of `terms`.
    pub(crate) fn output(&mut self, shard: usize, index: u32, terms: Vec<Term>) {
        self.push(Target::Output(Element { shard: shard as u16, index }), terms);
    }

    fn push(&mut self, target: Target, terms: Vec<Term>) -> usize {
        let ready = |term: &Term| match term.source {
            Source::Input(_) => 0,
            Source::Scratch(index) => self.ready[index as usize],
        };
        let step = terms.iter().map(ready).max().unwrap_or(0);
        if self.steps.len() <= step {
            self.steps.resize_with(step + 1, Vec::new);
        }
        self.steps[step].push(Row { target, terms });
        step
    }

    /// The map. Every output element must be given.
    pub(crate) fn finish(mut self) -> LinearMap {
        self.shape.scratch_elements = self.ready.len() as u32;
        LinearMap::from_steps(self.shape, self.steps)
            .expect("plans write every output once, within the bounds of profiles")
    }
}

/// A term for any source.
pub(crate) fn term(source: Source, coefficient: u8) -> Term {
    Term { source, coefficient }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_to_the_earliest_step_that_has_their_sources() {
        let mut program = Program::new(vec![2], vec![2]);
        let first = program.scratch(vec![Term::input(0, 0, 2)]);
        let second = program.scratch(vec![term(first, 3), Term::input(0, 1, 1)]);
        program.output(0, 0, vec![Term::input(0, 1, 1)]);
        program.output(0, 1, vec![term(second, 1), term(first, 1)]);
        let map = program.finish();
        assert_eq!(map.steps().iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1]);
        let (mut output, input) = ([0; 2], [1, 7]);
        map.execute(&[&input], &mut [&mut output]).unwrap();
        assert_eq!(output, [7, 6 ^ 7 ^ 2]);
    }
}
