//! Rules as the device's rule machine runs them: `rule_t` and `step_t` of rtl/crush/crush_pkg.sv.
//!
//! The device has no local retries, counts attempts in 16 bits, and wants at most 31 items of a choose
//! step. What matters is what a rule comes to: a map with local retries is fine for rules that switch
//! them off, and for those that only use indep, which knows none. Rules that do not fit are left out;
//! the CPU runs those.

use fieldstone_crush::{Map, Rule, RuleId, RuleStep, TypeId};
use thiserror::Error;

/// Largest count of a choose step.
pub const MAX_COUNT: i32 = 31;
/// Most attempts, at an item or at its leaf.
pub const MAX_TRIES: u32 = u16::MAX as u32;
/// Most steps of all rules together.
pub const MAX_STEPS: usize = u16::MAX as usize;

/// Why a rule does not fit.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RuleError {
    /// Multi-step-retry rules have a mapper of their own.
    #[error("it is a multi-step-retry rule")]
    Msr,
    /// Retries in the same bucket.
    #[error("it retries in the same bucket")]
    LocalRetries,
    /// Too many items of one step.
    #[error("it wants {0} items of one step, at most {MAX_COUNT} are possible")]
    Count(i32),
    /// Too many attempts.
    #[error("it makes {0} attempts, at most {MAX_TRIES} are possible")]
    Tries(u32),
    /// A type that the image has no number for.
    #[error("it chooses type {}, which has no number on the device", .0.0)]
    Kind(TypeId),
    /// The steps of all rules do not fit.
    #[error("there are more than {MAX_STEPS} steps")]
    Steps,
}

/// The rules of a map as words of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// One word per rule number, from 0 on.
    pub rules: Vec<u64>,
    /// The steps of all rules.
    pub steps: Vec<u64>,
    /// Rules that the device cannot run.
    pub left_out: Vec<(RuleId, RuleError)>,
}

impl Rules {
    /// The rules of `map`; `kind` gives the device's numbers for types.
    #[must_use]
    pub fn compile(map: &Map, kind: impl Fn(TypeId) -> Option<u8>) -> Self {
        let mut all = Self::default();
        for (id, rule) in map.rules() {
            let slot = id.0 as usize;
            all.rules.resize(all.rules.len().max(slot + 1), 0);
            let first = all.steps.len();
            match compile_rule(map, rule, &kind) {
                Ok(steps) if first + steps.len() <= MAX_STEPS => {
                    all.rules[slot] = 1 << 32 | (steps.len() as u64) << 16 | first as u64;
                    all.steps.extend(steps);
                }
                Ok(_) => all.left_out.push((id, RuleError::Steps)),
                Err(error) => all.left_out.push((id, error)),
            }
        }
        all
    }

    /// True if the device can run that rule.
    #[must_use]
    pub fn has(&self, id: RuleId) -> bool {
        self.rules.get(id.0 as usize).is_some_and(|rule| rule >> 32 & 1 == 1)
    }
}

/// The settings that decide whether a choose step fits, as the rule has changed them so far.
struct Settings {
    choose_tries: u32,
    leaf_tries: u32,
    local_tries: u32,
    local_fallback_tries: u32,
}

impl Settings {
    fn check(&self, count: i32, is_firstn: bool) -> Result<(), RuleError> {
        if is_firstn && (self.local_tries > 0 || self.local_fallback_tries > 0) {
            return Err(RuleError::LocalRetries);
        }
        if count > MAX_COUNT {
            return Err(RuleError::Count(count));
        }
        match self.choose_tries.max(self.leaf_tries) {
            tries if tries > MAX_TRIES => Err(RuleError::Tries(tries)),
            _ => Ok(()),
        }
    }
}

fn compile_rule(
    map: &Map,
    rule: &Rule,
    kind: &impl Fn(TypeId) -> Option<u8>,
) -> Result<Vec<u64>, RuleError> {
    if rule.kind.is_msr() {
        return Err(RuleError::Msr);
    }
    let tunables = map.tunables();
    let mut settings = Settings {
        choose_tries: tunables.choose_total_tries.saturating_add(1),
        leaf_tries: 0,
        local_tries: tunables.choose_local_tries,
        local_fallback_tries: tunables.choose_local_fallback_tries,
    };
    let set = |to: &mut u32, n: i32, least: i32| {
        if n >= least {
            *to = n.unsigned_abs();
        }
    };
    let word = |op: u64, kind: u8, argument: i32| {
        u64::from(argument as u32) << 32 | u64::from(kind) << 8 | op
    };
    let mut steps = Vec::new();
    for &step in &rule.steps {
        match step {
            RuleStep::Take(item) if map.contains(item) => steps.push(word(1, 0, item.0)),
            RuleStep::Emit => steps.push(word(4, 0, 0)),
            RuleStep::ChooseFirstn { count, kind: wanted }
            | RuleStep::ChooseIndep { count, kind: wanted }
            | RuleStep::ChooseleafFirstn { count, kind: wanted }
            | RuleStep::ChooseleafIndep { count, kind: wanted } => {
                let (op, is_firstn) = match step {
                    RuleStep::ChooseFirstn { .. } => (2, true),
                    RuleStep::ChooseIndep { .. } => (3, false),
                    RuleStep::ChooseleafFirstn { .. } => (6, true),
                    _ => (7, false),
                };
                settings.check(count, is_firstn)?;
                steps.push(word(op, kind(wanted).ok_or(RuleError::Kind(wanted))?, count));
            }
            RuleStep::SetChooseTries(n) => {
                set(&mut settings.choose_tries, n, 1);
                steps.push(word(8, 0, n));
            }
            RuleStep::SetChooseleafTries(n) => {
                set(&mut settings.leaf_tries, n, 1);
                steps.push(word(9, 0, n));
            }
            RuleStep::SetChooseLocalTries(n) => set(&mut settings.local_tries, n, 0),
            RuleStep::SetChooseLocalFallbackTries(n) => {
                set(&mut settings.local_fallback_tries, n, 0);
            }
            RuleStep::SetChooseleafVaryR(n) => steps.push(word(12, 0, n)),
            RuleStep::SetChooseleafStable(n) => steps.push(word(13, 0, n)),
            // Nothing to do; so is a take of what is gone, and what only MSR rules heed.
            RuleStep::Noop
            | RuleStep::Take(_)
            | RuleStep::ChooseMsr { .. }
            | RuleStep::SetMsrDescents(_)
            | RuleStep::SetMsrCollisionTries(_) => {}
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_crush::{BucketId, ItemId, MapBuilder, Tunables, WEIGHT_ONE};

    const HOST: TypeId = TypeId(1);

    fn compile(tunables: Tunables, steps: Vec<RuleStep>) -> Rules {
        let mut builder = MapBuilder::new();
        builder.tunables(tunables);
        builder.straw2(BucketId(-1), HOST, [(ItemId(0), WEIGHT_ONE)]);
        builder.rule(RuleId(1), steps);
        Rules::compile(&builder.build().unwrap(), |kind| u8::try_from(kind.0).ok())
    }

    fn firstn(count: i32, kind: TypeId) -> RuleStep {
        RuleStep::ChooseFirstn { count, kind }
    }

    #[test]
    fn steps_are_as_the_device_reads_them() {
        let rules = compile(
            Tunables::JEWEL,
            vec![
                RuleStep::Take(ItemId(-1)),
                RuleStep::Noop,
                RuleStep::ChooseleafIndep { count: -2, kind: HOST },
                RuleStep::Emit,
            ],
        );
        assert_eq!(rules.rules, [0, 0x1_0003_0000]);
        let steps = [0xffff_ffff_0000_0001, 0xffff_fffe_0000_0107, 0x0000_0000_0000_0004];
        assert_eq!(rules.steps, steps);
        assert!(rules.has(RuleId(1)) && !rules.has(RuleId(0)) && !rules.has(RuleId(2)));
    }

    #[test]
    fn what_does_not_fit_is_left_out_with_its_reason() {
        let reason = |tunables, step| {
            let rules = compile(tunables, vec![step]);
            assert_eq!(rules.has(RuleId(1)), rules.left_out.is_empty());
            rules.left_out.first().map(|(_, error)| *error)
        };
        let device = TypeId::DEVICE;
        assert_eq!(reason(Tunables::JEWEL, firstn(31, device)), None);
        assert_eq!(reason(Tunables::JEWEL, firstn(32, device)), Some(RuleError::Count(32)));
        assert_eq!(
            reason(Tunables::JEWEL, firstn(0, TypeId(256))),
            Some(RuleError::Kind(TypeId(256)))
        );
        assert_eq!(reason(Tunables::ARGONAUT, firstn(0, device)), Some(RuleError::LocalRetries));
        let indep = RuleStep::ChooseIndep { count: 0, kind: device };
        assert_eq!(reason(Tunables::ARGONAUT, indep), None);
        let patient = Tunables { choose_total_tries: 65_535, ..Tunables::JEWEL };
        assert_eq!(reason(patient, firstn(1, device)), Some(RuleError::Tries(65_536)));
    }

    #[test]
    fn a_rule_may_switch_local_retries_off() {
        let steps = vec![
            RuleStep::SetChooseLocalTries(0),
            RuleStep::SetChooseLocalFallbackTries(0),
            firstn(0, TypeId::DEVICE),
        ];
        let rules = compile(Tunables::ARGONAUT, steps);
        assert_eq!((rules.left_out, rules.steps.len()), (vec![], 1));
    }
}
