//! A rule of a map, ready to map one input or many.
//!
//! This module selects the mapper (the plain one, the one with speculative draws, or the batch
//! mapper). The selection changes only the time: all mappers give the same results.

use crate::batch::speculate::SpeculativeDraws;
use crate::batch::tables::Tables;
use crate::batch::{self, Kernel};
use crate::choose_args::ChooseArgs;
use crate::map::Map;
use crate::mapper::{Drawer, Items, Mapping, NoDrawer};
use crate::msr;
use crate::rule::{Rule, RuleKind};
use crate::tries::TriesHistogram;
use crate::{CrushError, ItemId, OsdId, Osds, Rows, RuleId};

/// A rule of a map, ready to map.
#[derive(Clone, Copy, Debug)]
pub struct RuleRef<'m> {
    map: &'m Map,
    rule: &'m Rule,
    choose_args: Option<&'m ChooseArgs>,
}

impl Map {
    /// The rule of that number, ready to map.
    pub fn rule(&self, id: RuleId) -> Result<RuleRef<'_>, CrushError> {
        let rule = self.rule_data(id).ok_or(CrushError::NoSuchRule(id))?;
        Ok(RuleRef { map: self, rule, choose_args: None })
    }
}

impl<'m> RuleRef<'m> {
    /// The same rule with other weights: a weight set of the same map, which was checked with the
    /// map. See [`Map::choose_args_for_pool`].
    #[must_use]
    pub fn with_choose_args(self, choose_args: Option<&'m ChooseArgs>) -> Self {
        Self { choose_args, ..self }
    }

    pub(crate) fn map_ref(&self) -> &'m Map {
        self.map
    }

    pub(crate) fn rule_ref(&self) -> &'m Rule {
        self.rule
    }

    pub(crate) fn choose_args_ref(&self) -> Option<&'m ChooseArgs> {
        self.choose_args
    }

    /// The devices for input `x`, at most `width`. `weights[i]` is the 16.16 reweight of device i;
    /// devices past the end of the list are out. If a rule does not descend to devices, its results
    /// are buckets, which are `None` here; [`RuleRef::map_items`] gives the buckets.
    #[must_use]
    pub fn map(&self, x: u32, width: usize, weights: &[u32]) -> Osds {
        Osds(self.run(Kernel::best(), x, width, weights).into_iter().map(device).collect())
    }

    /// [`RuleRef::map`] for many inputs.
    #[must_use]
    pub fn map_batch(&self, xs: &[u32], width: usize, weights: &[u32]) -> Vec<Osds> {
        let rows = self.map_rows(xs, width, weights);
        rows.iter().map(|row| Osds(row.iter().map(|&item| device(item)).collect())).collect()
    }

    /// As [`RuleRef::map_batch`], in one table, for rules that may give buckets too.
    #[must_use]
    pub fn map_rows(&self, xs: &[u32], width: usize, weights: &[u32]) -> Rows {
        self.map_rows_with(Kernel::best(), xs, width, weights)
    }

    /// As [`RuleRef::map_rows`], with a certain kernel, which must be available.
    #[must_use]
    pub fn map_rows_with(&self, kernel: Kernel, xs: &[u32], width: usize, weights: &[u32]) -> Rows {
        let mut rows = Rows::new(xs.len(), width);
        batch::map_rows(kernel, self, xs, weights, &mut rows);
        rows
    }

    /// As [`RuleRef::map_rows`], with a count of failed attempts.
    #[must_use]
    pub fn map_rows_counting(
        &self,
        xs: &[u32],
        width: usize,
        weights: &[u32],
        tries: &TriesHistogram,
    ) -> Rows {
        let mut rows = Rows::new(xs.len(), width);
        for (index, &x) in xs.iter().enumerate() {
            let mapping =
                Mapping { tries: Some(tries), ..self.mapping(&NoDrawer, x, width, weights) };
            rows.set(index, &self.run_rule(&mapping));
        }
        rows
    }

    /// As [`RuleRef::map`], for rules that may give buckets.
    #[must_use]
    pub fn map_items(&self, x: u32, width: usize, weights: &[u32]) -> Vec<Option<ItemId>> {
        self.map_items_with(Kernel::best(), x, width, weights)
    }

    /// As [`RuleRef::map_items`], with a certain kernel, which must be available.
    #[must_use]
    pub fn map_items_with(
        &self,
        kernel: Kernel,
        x: u32,
        width: usize,
        weights: &[u32],
    ) -> Vec<Option<ItemId>> {
        let items = self.run(kernel, x, width, weights);
        items.into_iter().map(|item| (item != ItemId::NONE).then_some(item)).collect()
    }

    pub(crate) fn run(&self, kernel: Kernel, x: u32, width: usize, weights: &[u32]) -> Items {
        let plain = || self.run_rule(&self.mapping(&NoDrawer, x, width, weights));
        if kernel == Kernel::Scalar {
            return plain();
        }
        let tables = Tables::of(self.map, self.choose_args);
        SpeculativeDraws::with(kernel, &tables, x, |draws| match draws {
            Some(draws) => self.run_rule(&self.mapping(draws, x, width, weights)),
            None => plain(),
        })
    }

    fn mapping<'a, D>(
        &'a self,
        drawer: &'a D,
        x: u32,
        width: usize,
        weights: &'a [u32],
    ) -> Mapping<'a, D> {
        let (map, choose_args) = (self.map, self.choose_args);
        Mapping { map, choose_args, x, weights, width, drawer, tries: None }
    }

    fn run_rule<D: Drawer>(&self, mapping: &Mapping<'_, D>) -> Items {
        match self.rule.kind {
            RuleKind::MsrFirstn | RuleKind::MsrIndep => msr::run(mapping, self.rule).into(),
            _ => mapping.rule(self.rule),
        }
    }
}

/// The device of a result; `None` for a bucket.
fn device(item: ItemId) -> Option<OsdId> {
    if item == ItemId::NONE { None } else { item.osd() }
}
