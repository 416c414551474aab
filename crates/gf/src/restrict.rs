//! Restricts a map to some of its outputs; the smaller map reads only the inputs that these need.
//!
//! A reader that wants a few bytes of a lost shard needs only a few of its elements. The rows that
//! lead to these elements, also through scratch, are a separate program. It is often small, because
//! every element of a regenerating code depends on few others.

use std::collections::{BTreeMap, BTreeSet};

use crate::map::{Element, LinearMap, MapError, Row, Shape, Source, Step, Target, Term};

/// The result of [`LinearMap::restrict`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restricted {
    /// The smaller map. It has an input for each entry of `inputs`, and an output for each output
    /// shard of the given map that has a wanted element.
    pub map: LinearMap,
    /// The inputs of the given map that the smaller map reads, ascending, each with the elements
    /// that it reads, ascending. An input of the smaller map is these elements, one after the
    /// other.
    pub inputs: Vec<(u16, Vec<u32>)>,
}

/// New numbers for the elements of shards, after some elements are left out.
#[derive(Default)]
struct Renumbered(BTreeMap<u16, Vec<u32>>);

impl Renumbered {
    fn of(elements: &BTreeSet<Element>) -> Self {
        let mut shards: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
        for element in elements {
            shards.entry(element.shard).or_default().push(element.index);
        }
        Self(shards)
    }

    fn get(&self, element: Element) -> Option<Element> {
        let shard = self.0.keys().position(|&shard| shard == element.shard)?;
        let index = self.0.get(&element.shard)?.binary_search(&element.index).ok()?;
        Some(Element { shard: u16::try_from(shard).ok()?, index: u32::try_from(index).ok()? })
    }

    fn elements(&self) -> Vec<u32> {
        self.0.values().map(|elements| elements.len() as u32).collect()
    }
}

impl LinearMap {
    /// The part of the map that computes the output elements for which `wanted` holds.
    ///
    /// # Errors
    /// No wanted element depends on any input.
    pub fn restrict(&self, wanted: impl Fn(Element) -> bool) -> Result<Restricted, MapError> {
        // From the last step to the first: all scratch that a kept row reads is kept, too.
        let mut scratch: BTreeSet<u32> = BTreeSet::new();
        let mut inputs: BTreeSet<Element> = BTreeSet::new();
        let mut outputs: BTreeSet<Element> = BTreeSet::new();
        let mut steps: Vec<Vec<&Row>> = Vec::new();
        for step in self.steps().iter().rev() {
            let kept: Vec<&Row> = step
                .iter()
                .filter(|row| match row.target {
                    Target::Output(element) => wanted(element),
                    Target::Scratch(index) => scratch.contains(&index),
                })
                .collect();
            for row in &kept {
                if let Target::Output(element) = row.target {
                    outputs.insert(element);
                }
                for term in &row.terms {
                    match term.source {
                        Source::Input(element) => drop(inputs.insert(element)),
                        Source::Scratch(index) => drop(scratch.insert(index)),
                    }
                }
            }
            steps.push(kept);
        }
        let scratch: Vec<u32> = scratch.into_iter().collect();
        let (inputs, outputs) = (Renumbered::of(&inputs), Renumbered::of(&outputs));
        let scratch_number = |index: u32| scratch.binary_search(&index).expect("kept above") as u32;
        let renumber = |row: &Row| Row {
            target: match row.target {
                Target::Output(element) => {
                    Target::Output(outputs.get(element).expect("kept above"))
                }
                Target::Scratch(index) => Target::Scratch(scratch_number(index)),
            },
            terms: row
                .terms
                .iter()
                .map(|term| Term {
                    source: match term.source {
                        Source::Input(element) => {
                            Source::Input(inputs.get(element).expect("kept above"))
                        }
                        Source::Scratch(index) => Source::Scratch(scratch_number(index)),
                    },
                    coefficient: term.coefficient,
                })
                .collect(),
        };
        let steps: Vec<Step> = steps
            .into_iter()
            .rev()
            .map(|step| step.into_iter().map(renumber).collect::<Step>())
            .filter(|step| !step.is_empty())
            .collect();
        let shape = Shape {
            input_elements: inputs.elements(),
            output_elements: outputs.elements(),
            scratch_elements: scratch.len() as u32,
        };
        let map = Self::from_steps(shape, steps)?;
        Ok(Restricted { map, inputs: inputs.0.into_iter().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Random maps of three steps: scratch from inputs, scratch from both, outputs from all.
    fn map() -> impl Strategy<Value = LinearMap> {
        let shards = proptest::collection::vec(1u32..4, 1..4);
        (shards.clone(), shards, any::<u64>()).prop_map(|(inputs, outputs, seed)| {
            let mut state = seed;
            let mut dice = move |below: u32| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u32 % below
            };
            let shards = inputs.clone();
            let mut terms = |scratch: u32| -> Vec<Term> {
                (0..1 + dice(3))
                    .map(|_| {
                        let coefficient = dice(256) as u8;
                        if scratch > 0 && dice(2) == 0 {
                            return Term::scratch(dice(scratch), coefficient);
                        }
                        let shard = dice(shards.len() as u32) as u16;
                        let index = dice(shards[usize::from(shard)]);
                        Term::input(shard, index, coefficient)
                    })
                    .collect()
            };
            let scratch = |index| Target::Scratch(index);
            let first = (0..3).map(|i| Row { target: scratch(i), terms: terms(0) }).collect();
            let second = (3..6).map(|i| Row { target: scratch(i), terms: terms(3) }).collect();
            let mut last = Vec::new();
            for (shard, &elements) in (0u16..).zip(&outputs) {
                for index in 0..elements {
                    let target = Target::Output(Element { shard, index });
                    last.push(Row { target, terms: terms(6) });
                }
            }
            let (input_elements, output_elements) = (inputs, outputs);
            let shape = Shape { input_elements, output_elements, scratch_elements: 6 };
            LinearMap::from_steps(shape, vec![first, second, last]).unwrap()
        })
    }

    fn execute(map: &LinearMap, inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let shape = &map.shape().output_elements;
        let mut outputs: Vec<Vec<u8>> = shape.iter().map(|&n| vec![0; n as usize]).collect();
        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        map.execute(&inputs, &mut slices).unwrap();
        outputs
    }

    proptest! {
        #[test]
        fn a_part_gives_the_same_bytes_from_what_it_reads(map in map(), choice in any::<u16>()) {
            let wanted = |e: Element| choice >> ((u32::from(e.shard) * 3 + e.index) % 16) & 1 == 1;
            let elements = &map.shape().input_elements;
            // One byte per element; all bytes differ.
            let mut next = 0u8;
            let inputs: Vec<Vec<u8>> = elements
                .iter()
                .map(|&n| (0..n).map(|_| { next = next.wrapping_add(37); next }).collect())
                .collect();
            let whole = execute(&map, &inputs);
            let expected: Vec<Vec<u8>> = (0u16..)
                .zip(&whole)
                .map(|(shard, bytes)| {
                    let kept = (0u32..).zip(bytes);
                    let kept = kept.filter(|(index, _)| wanted(Element { shard, index: *index }));
                    kept.map(|(_, byte)| *byte).collect()
                })
                .filter(|bytes: &Vec<u8>| !bytes.is_empty())
                .collect();
            let Ok(part) = map.restrict(wanted) else {
                prop_assert!(expected.is_empty());
                return Ok(());
            };
            let read: Vec<Vec<u8>> = part
                .inputs
                .iter()
                .map(|(shard, elements)| {
                    elements.iter().map(|&e| inputs[usize::from(*shard)][e as usize]).collect()
                })
                .collect();
            prop_assert_eq!(execute(&part.map, &read), expected);
        }
    }

    #[test]
    fn what_nothing_needs_is_not_read() {
        let rows = vec![vec![Term::input(0, 0, 1)], vec![Term::input(1, 1, 2)]];
        let map = LinearMap::new(2, 1, 2, rows).unwrap();
        let part = map.restrict(|element| element.index == 1).unwrap();
        assert_eq!(part.inputs, [(1, vec![1])]);
        assert_eq!(part.map.shape(), &Shape::uniform(1, 1, 1));
        assert_eq!(map.restrict(|_| false), Err(MapError::NoInputs));
    }
}
