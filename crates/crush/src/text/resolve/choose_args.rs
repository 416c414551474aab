//! Sets of choose_args.

use super::buckets::bucket_number;
use super::{Compiler, duplicate, undefined};
use crate::ItemId;
use crate::choose_args::{ChooseArg, ChooseArgs, ChooseArgsId};
use crate::text::error::{ParseError, Problem};
use crate::text::lexer::Word;
use crate::text::{syntax, weight};

impl Compiler {
    pub(super) fn choose_args(&mut self, text: &syntax::ChooseArgs<'_>) -> Result<(), ParseError> {
        let set = set_number(text.number)?;
        let mut args = ChooseArgs::default();
        for entry in &text.buckets {
            let id = bucket_number(entry.bucket)?;
            let index = self.index.get(&id).ok_or_else(|| undefined("bucket", entry.bucket))?;
            let items = self.parts.buckets[*index].items.len();
            if args.buckets.contains_key(&id) {
                return Err(duplicate("bucket", entry.bucket));
            }
            let arg = choose_arg(entry, items)?;
            if arg != ChooseArg::default() {
                args.buckets.insert(id, arg);
            }
        }
        match self.parts.choose_args.insert(set, args) {
            None => Ok(()),
            Some(_) => Err(duplicate("choose_args", text.number)),
        }
    }
}

/// The number is cut to 32 bits, as Ceph's compiler does.
fn set_number(word: Word<'_>) -> Result<ChooseArgsId, ParseError> {
    match word.text.parse::<u64>() {
        Ok(number) => {
            let clamped = i64::try_from(number).unwrap_or(i64::MAX);
            Ok(ChooseArgsId(i64::from(clamped as i32)))
        }
        Err(_) => Err(word.expected("the number of a pool, or 18446744073709551615 for all")),
    }
}

fn choose_arg(text: &syntax::ChooseArg<'_>, items: usize) -> Result<ChooseArg, ParseError> {
    let mut arg = ChooseArg::default();
    for (words, end) in &text.weight_sets {
        length("weights", items, words, *end)?;
        arg.weight_sets
            .push(words.iter().map(|&word| weight::read(word)).collect::<Result<_, _>>()?);
    }
    if let Some((words, end)) = &text.ids {
        length("ids", items, words, *end)?;
        let (min, max) = (i32::MIN.into(), i32::MAX.into());
        let id = |word: &Word<'_>| Ok(ItemId(word.number("an id", min, max)? as i32));
        let ids = words.iter().map(id).collect::<Result<Vec<_>, _>>()?;
        arg.ids = (!ids.is_empty()).then_some(ids);
    }
    Ok(arg)
}

fn length(
    what: &'static str,
    items: usize,
    words: &[Word<'_>],
    end: Word<'_>,
) -> Result<(), ParseError> {
    let found = words.len();
    if found == items { Ok(()) } else { Err(Problem::Length { what, items, found }.at(end.place)) }
}
