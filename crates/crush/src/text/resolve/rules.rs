//! Rules.

use super::{Compiler, at, duplicate, undefined, unknown};
use crate::check;
use crate::names::ClassId;
use crate::rule::{Rule, RuleKind, RuleStep};
use crate::text::error::{ParseError, Problem, shown};
use crate::text::lexer::Word;
use crate::text::syntax::{self, Step};
use crate::{ItemId, RuleId};

const KINDS: [&str; 4] = ["replicated", "erasure", "msr_firstn", "msr_indep"];

const STEPS: [&str; 14] = [
    "take",
    "choose",
    "chooseleaf",
    "choosemsr",
    "emit",
    "set_choose_tries",
    "set_chooseleaf_tries",
    "set_choose_local_tries",
    "set_choose_local_fallback_tries",
    "set_chooseleaf_vary_r",
    "set_chooseleaf_stable",
    "set_msr_descents",
    "set_msr_collision_tries",
    "noop",
];

impl Compiler {
    pub(super) fn rule(&mut self, text: &syntax::Rule<'_>) -> Result<(), ParseError> {
        let most = i64::from(check::MAX_RULES) - 1;
        // Below MAX_RULES.
        let id = RuleId(text.number.number("the number of a rule", 0, most)? as u32);
        let size = |word: Option<Word<'_>>, default| match word {
            Some(word) => word.number("a size", 0, u8::MAX.into()).map(|size| size as u8),
            None => Ok(default),
        };
        let rule = Rule {
            kind: kind(text.kind)?,
            ruleset: id.0 as u8,
            min_size: size(text.min_size, Rule::DEFAULT_MIN_SIZE)?,
            max_size: size(text.max_size, Rule::DEFAULT_MAX_SIZE)?,
            steps: text.steps.iter().map(|step| self.step(step)).collect::<Result<_, _>>()?,
        };
        at(check::rule(id, &rule, &self.parts.tunables), text.place)?;
        if let Some(name) = text.name {
            if !self.rules.insert(name.text.to_owned()) {
                return Err(duplicate("rule", name));
            }
            self.parts.names.rules.insert(id, name.text.to_owned());
        }
        match self.parts.rules.insert(id, rule) {
            None => Ok(()),
            Some(_) => Err(duplicate("rule", text.number)),
        }
    }

    fn step(&self, step: &Step<'_>) -> Result<RuleStep, ParseError> {
        match step {
            Step::Noop => Ok(RuleStep::Noop),
            Step::Emit => Ok(RuleStep::Emit),
            Step::Take { item, class: None } => self.item_named(*item).map(RuleStep::Take),
            Step::Take { item, class: Some(class) } => self.take_shadow(*item, *class),
            Step::Choose { verb, mode, count, kind } => {
                // The checks of the whole rule use a tighter bound.
                let bound = i64::from(i32::MAX);
                let count = count.number("a count", -bound, bound)? as i32;
                let kind = self.type_named(*kind)?;
                Ok(match (verb.text, mode.map(|mode| (mode, mode.text))) {
                    ("choose", Some((_, "firstn"))) => RuleStep::ChooseFirstn { count, kind },
                    ("choose", Some((_, "indep"))) => RuleStep::ChooseIndep { count, kind },
                    ("chooseleaf", Some((_, "firstn"))) => {
                        RuleStep::ChooseleafFirstn { count, kind }
                    }
                    ("chooseleaf", Some((_, "indep"))) => RuleStep::ChooseleafIndep { count, kind },
                    (_, Some((mode, _))) => return Err(mode.expected("`firstn` or `indep`")),
                    (_, None) => RuleStep::ChooseMsr { count, kind },
                })
            }
            Step::Set { name, value } => set(*name, *value),
        }
    }

    fn take_shadow(&self, item: Word<'_>, class: Word<'_>) -> Result<RuleStep, ParseError> {
        let id = self.item_named(item)?;
        let known: Option<&ClassId> = self.classes.get(class.text);
        let known = known.ok_or_else(|| undefined("class", class))?;
        let shadows = id.bucket().and_then(|id| self.parts.classes.shadows.get(&id));
        let Some(&shadow) = shadows.and_then(|of_class| of_class.get(known)) else {
            let (item_name, class) = (shown(item.text), shown(class.text));
            return Err(Problem::NoShadow { item: item_name, class }.at(item.place));
        };
        Ok(RuleStep::Take(ItemId::from(shadow)))
    }
}

fn kind(word: Word<'_>) -> Result<RuleKind, ParseError> {
    if let Ok(number) = word.text.parse::<u8>() {
        return Ok(RuleKind::from_number(number));
    }
    let kinds = [RuleKind::Replicated, RuleKind::Erasure, RuleKind::MsrFirstn, RuleKind::MsrIndep];
    let kind = kinds.into_iter().find(|kind| kind.word() == Some(word.text));
    kind.ok_or_else(|| unknown("kind of rule", word, &KINDS))
}

fn set(name: Word<'_>, value: Word<'_>) -> Result<RuleStep, ParseError> {
    let step = match name.text {
        "set_choose_tries" => RuleStep::SetChooseTries,
        "set_chooseleaf_tries" => RuleStep::SetChooseleafTries,
        "set_choose_local_tries" => RuleStep::SetChooseLocalTries,
        "set_choose_local_fallback_tries" => RuleStep::SetChooseLocalFallbackTries,
        "set_chooseleaf_vary_r" => RuleStep::SetChooseleafVaryR,
        "set_chooseleaf_stable" => RuleStep::SetChooseleafStable,
        "set_msr_descents" => RuleStep::SetMsrDescents,
        "set_msr_collision_tries" => RuleStep::SetMsrCollisionTries,
        _ => return Err(unknown("step", name, &STEPS)),
    };
    let value = value.number("the value of a step", i32::MIN.into(), i32::MAX.into())?;
    Ok(step(value as i32))
}
