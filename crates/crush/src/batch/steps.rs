//! A rule over a block of inputs: the steps around the searches.
//!
//! Every input has a working list and a result, as in the plain mapper. A choose step turns the
//! working lists into tasks, one for each bucket in them. The items found for the tasks of an
//! input, in order, are the input's new working list.

use super::tasks::{OneOrEach, SelectedItems, Tasks};
use super::{BatchParams, Choose, MAX_POSITIONS};
use crate::bucket::AlgorithmKind;
use crate::map::Map;
use crate::mapper::Tries;
use crate::rule::RuleStep;
use crate::rule_ref::RuleRef;
use crate::{ItemId, Rows};

/// One step, in the form for lanes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take(ItemId),
    Choose { choose: Choose, indep: bool },
    Emit,
}

/// A rule that runs over a block of inputs.
pub(crate) struct Steps {
    width: usize,
    steps: Vec<Step>,
    /// The next step.
    at: usize,
    /// Working lists and results, a row for each input.
    working: Rows,
    results: Rows,
    /// Tasks of the current step: inputs, slots, positions, and the input that each belongs to.
    xs: Vec<u32>,
    slots: Vec<u32>,
    lens: Vec<u32>,
    owners: Vec<u32>,
    found: Rows,
    stretched: Vec<u32>,
}

impl Steps {
    /// `None` if the vectors cannot run the rule at that width.
    pub(crate) fn new(rule: &RuleRef<'_>, width: usize) -> Option<Self> {
        let (map, rule) = (rule.map_ref(), rule.rule_ref());
        if rule.kind.is_msr() || width == 0 || width > MAX_POSITIONS {
            return None;
        }
        let mut tries = Tries::new(map);
        let mut steps = Vec::new();
        for &step in &rule.steps {
            let (count, kind, indep, is_leaf) = match step {
                RuleStep::Take(item) => {
                    if map.contains(item) {
                        steps.push(Step::Take(item));
                    }
                    continue;
                }
                RuleStep::Emit => {
                    steps.push(Step::Emit);
                    continue;
                }
                RuleStep::ChooseFirstn { count, kind } => (count, kind, false, false),
                RuleStep::ChooseleafFirstn { count, kind } => (count, kind, false, true),
                RuleStep::ChooseIndep { count, kind } => (count, kind, true, false),
                RuleStep::ChooseleafIndep { count, kind } => (count, kind, true, true),
                set => {
                    tries.set(set);
                    continue;
                }
            };
            if !indep && (tries.local > 0 || tries.local_fallback > 0) {
                return None;
            }
            let positions = if count > 0 { count } else { count.saturating_add(width as i32) };
            let choose = Choose {
                kind: kind.0.into(),
                is_leaf,
                positions: positions.max(0) as u32,
                tries: tries.choose,
                leaf_tries: tries.leaf(indep),
                // As `Tries::leaf_r`.
                leaf_shift: tries.vary_r.checked_sub(1).map(|shift| shift % 32),
                stable: tries.stable,
            };
            steps.push(Step::Choose { choose, indep });
        }
        Some(Self {
            width,
            steps,
            at: 0,
            working: Rows::default(),
            results: Rows::default(),
            xs: Vec::new(),
            slots: Vec::new(),
            lens: Vec::new(),
            owners: Vec::new(),
            found: Rows::default(),
            stretched: Vec::new(),
        })
    }

    /// The bucket to choose below, if the rule only chooses once. Then the tasks are the inputs,
    /// and the found items are the result.
    pub(crate) fn single_choose(&self, map: &Map) -> Option<(u32, Choose, bool)> {
        let [Step::Take(item), Step::Choose { choose, indep }, Step::Emit] = self.steps[..] else {
            return None;
        };
        let bucket = item.bucket().filter(|&id| map.bucket(id).is_some())?;
        (choose.positions > 0).then_some((!bucket.0 as u32, choose, indep))
    }

    /// Begins a block of that many inputs.
    pub(crate) fn start(&mut self, inputs: usize) {
        self.at = 0;
        self.working.reset(inputs, self.width);
        self.results.reset(inputs, self.width);
    }

    /// Runs steps up to and including the next choose step that has tasks, and prepares the tasks.
    pub(crate) fn next_choose(
        &mut self,
        xs: &[u32],
        params: &BatchParams<'_>,
    ) -> Option<(Choose, bool)> {
        while let Some(&step) = self.steps.get(self.at) {
            self.at += 1;
            match step {
                Step::Take(item) => {
                    for input in 0..xs.len() {
                        self.working.set(input, &[item]);
                    }
                }
                Step::Emit => {
                    for input in 0..xs.len() {
                        self.results.append(input, self.working.row(input));
                        self.working.set(input, &[]);
                    }
                }
                Step::Choose { choose, indep } => {
                    self.prepare(xs, params, &choose, indep);
                    if !self.xs.is_empty() {
                        return Some((choose, indep));
                    }
                    self.collect();
                }
            }
        }
        None
    }

    fn prepare(&mut self, xs: &[u32], params: &BatchParams<'_>, choose: &Choose, indep: bool) {
        for tasks in [&mut self.xs, &mut self.slots, &mut self.lens, &mut self.owners] {
            tasks.clear();
        }
        let positions = choose.positions as usize;
        for (input, &x) in xs.iter().enumerate() {
            let mut taken = 0;
            for &item in self.working.row(input) {
                let Some(bucket) = item.bucket().filter(|&id| params.map.bucket(id).is_some())
                else {
                    continue;
                };
                let len = positions.min(self.width - taken);
                // Only indep knows before the choice how many positions are left for the next task.
                taken += if indep { len } else { 0 };
                if len > 0 {
                    self.xs.push(x);
                    self.slots.push(!bucket.0 as u32);
                    self.lens.push(len as u32);
                    self.owners.push(input as u32);
                }
            }
        }
        self.found.reset(self.xs.len(), positions.min(self.width));
        self.stretch(params, choose, indep);
    }

    /// Marks the uniform buckets in which the step counts rounds differently.
    pub(crate) fn stretch(&mut self, params: &BatchParams<'_>, choose: &Choose, indep: bool) {
        self.stretched.clear();
        let tables = params.tables;
        let uniform = AlgorithmKind::Uniform as u32;
        if indep && choose.positions > 0 && tables.algorithms & 1 << uniform != 0 {
            let buckets = tables.algorithm.iter().zip(&tables.bucket);
            self.stretched.extend(buckets.map(|(&algorithm, &[_, size])| {
                u32::from(algorithm == uniform && size.is_multiple_of(choose.positions))
            }));
        }
    }

    /// The prepared tasks, the tables of selected items, and the stretched buckets.
    pub(crate) fn work(&mut self) -> (Tasks<'_>, SelectedItems<'_>, Option<&[u32]>) {
        let tasks = Tasks {
            xs: &self.xs,
            slots: OneOrEach::of(&self.slots),
            lens: OneOrEach::of(&self.lens),
        };
        let max_items = self.found.width();
        let selected = SelectedItems::new(self.found.rows_mut(0..self.xs.len()), max_items);
        (tasks, selected, stretched(&self.stretched))
    }

    /// The stretched buckets of the parameters.
    pub(crate) fn stretched(&self) -> Option<&[u32]> {
        stretched(&self.stretched)
    }

    /// Makes the found items the working lists.
    pub(crate) fn collect(&mut self) {
        for input in 0..self.working.len() {
            self.working.set(input, &[]);
        }
        for (task, &owner) in self.owners.iter().enumerate() {
            self.working.append(owner as usize, self.found.row(task));
        }
    }

    /// Writes the results into `rows` from row `from` on.
    pub(crate) fn write(&self, rows: &mut Rows, from: usize) {
        for (input, row) in self.results.iter().enumerate() {
            rows.set(from + input, row);
        }
    }
}

fn stretched(by_slot: &[u32]) -> Option<&[u32]> {
    (!by_slot.is_empty()).then_some(by_slot)
}
