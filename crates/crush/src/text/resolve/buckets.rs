//! Buckets: first their numbers, then their items.

use super::{Compiler, at, duplicate, undefined, unknown};
use crate::check::{self, BuildError, MAX_BUCKETS, MAX_DEPTH};
use crate::shadow::free_number;
use crate::text::error::{ParseError, Problem, shown};
use crate::text::lexer::Word;
use crate::text::syntax::{self, Entry, Text};
use crate::text::weight;
use crate::{AlgorithmKind, Bucket, BucketId, ItemId, WEIGHT_ONE};

impl Compiler {
    /// Reserves all numbers that the text gives, because buckets without a number get one of the
    /// others.
    pub(super) fn reserve_ids(&mut self, text: &Text<'_>) -> Result<(), ParseError> {
        for entry in &text.entries {
            let Entry::Bucket(bucket) = entry else { continue };
            for &(number, _) in &bucket.ids {
                if !self.taken.insert(bucket_number(number)?) {
                    return Err(duplicate("bucket number", number));
                }
            }
        }
        Ok(())
    }

    pub(super) fn bucket(&mut self, text: &syntax::Bucket<'_>) -> Result<(), ParseError> {
        let kind = self.types.get(text.kind.text).copied();
        let kind = kind.ok_or_else(|| undefined("type", text.kind))?;
        let id = self.ids(text)?;
        let words = AlgorithmKind::ALL.map(AlgorithmKind::word);
        let algorithm = AlgorithmKind::from_word(text.algorithm.text)
            .ok_or_else(|| unknown("algorithm", text.algorithm, &words))?;
        if let Some(hash) = text.hashes.iter().find(|hash| !["0", "rjenkins1"].contains(&hash.text))
        {
            return Err(unknown("hash", *hash, &["0", "rjenkins1"]));
        }
        let items = self.items(text, algorithm)?;
        let sum: u64 = items.iter().map(|&(_, weight)| u64::from(weight)).sum();
        if u32::try_from(sum).is_err() {
            return Err(Problem::TooHeavy { bucket: shown(text.name.text) }.at(text.name.place));
        }
        let below = items.iter().filter_map(|(item, _)| self.levels.get(&item.bucket()?));
        let levels = 1 + below.max().copied().unwrap_or(0);
        if levels > MAX_DEPTH {
            return at(Err(BuildError::CycleOrTooDeep(id)), text.name.place);
        }
        self.levels.insert(id, levels);
        let version = self.parts.tunables.straw_calc_version;
        let bucket = Bucket::new(id, kind, algorithm, version, items);
        at(check::bucket(&bucket), text.name.place)?;
        self.name_item(id.into(), text.name)?;
        self.index.insert(id, self.parts.buckets.len());
        self.parts.buckets.push(bucket);
        Ok(())
    }

    /// The bucket's number. The numbers of its shadows are stored.
    fn ids(&mut self, text: &syntax::Bucket<'_>) -> Result<BucketId, ParseError> {
        let mut own = None;
        let mut of_shadows = Vec::new();
        for &(number, class) in &text.ids {
            let id = bucket_number(number)?;
            match class {
                Some(name) => of_shadows.push((name, self.class(name), id)),
                None if own.replace(id).is_none() => {}
                None => return Err(duplicate("the number of this bucket, as", number)),
            }
        }
        let id = match own {
            Some(id) => id,
            None => {
                let id = free_number(&self.taken, &mut self.next_id);
                self.taken.insert(id);
                id
            }
        };
        at(check::slot(id), text.name.place)?;
        for (name, class, shadow) in of_shadows {
            if self.requested.insert((id, class), shadow).is_some() {
                return Err(duplicate("the shadow of class", name));
            }
        }
        Ok(id)
    }

    /// Items and weights, in the order of their positions.
    fn items(
        &self,
        text: &syntax::Bucket<'_>,
        algorithm: AlgorithmKind,
    ) -> Result<Vec<(ItemId, u32)>, ParseError> {
        let mut slots = vec![None; text.items.len()];
        let mut first = None;
        let mut unplaced = Vec::new();
        for item in &text.items {
            let id = self.item_named(item.name)?;
            let weight = match item.weight {
                Some(word) => weight::read(word)?,
                None => self.own_weight(id),
            };
            let first = *first.get_or_insert(weight);
            if algorithm == AlgorithmKind::Uniform && weight != first {
                let problem = Problem::NotUniform { first: weight::rounded(first) };
                return Err(problem.at(item.weight.unwrap_or(item.name).place));
            }
            let Some(word) = item.position else {
                unplaced.push((id, weight));
                continue;
            };
            let position = word.number("a position", 0, i64::from(i32::MAX))? as usize;
            match slots.get_mut(position) {
                Some(slot @ None) => *slot = Some((id, weight)),
                _ => {
                    let problem = Problem::Position { position, items: text.items.len() };
                    return Err(problem.at(word.place));
                }
            }
        }
        // There are as many items without a position as empty slots.
        let mut unplaced = unplaced.into_iter();
        Ok(slots.into_iter().filter_map(|slot| slot.or_else(|| unplaced.next())).collect())
    }

    /// The weight of an item whose line does not give it.
    fn own_weight(&self, item: ItemId) -> u32 {
        match item.bucket().and_then(|id| self.index.get(&id)) {
            Some(&at) => self.parts.buckets[at].weight,
            None => WEIGHT_ONE,
        }
    }
}

pub(super) fn bucket_number(word: Word<'_>) -> Result<BucketId, ParseError> {
    let number = word.number("the number of a bucket", -(MAX_BUCKETS as i64), -1)?;
    // The number was checked against this range.
    Ok(BucketId(number as i32))
}
