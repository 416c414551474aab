//! Rules and steps in the layout of the rule engine, 8 bytes each.

use fieldstone_crush::{Map, Rule, RuleStep};

/// Largest count of a choose step: draws have five bits for it.
const MAX_COUNT: i32 = 31;
/// Most tries that a step may set.
const MAX_TRIES: i32 = 65_535;
/// Most steps of a rule.
const MAX_STEPS: usize = 65_535;

/// Why a rule cannot run on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleMisfit {
    /// A multi-step-retry rule, which has another mapper.
    #[error("it is a multi-step-retry rule")]
    Msr,
    /// The rule retries in the same bucket.
    #[error("it retries in the same bucket (choose_local_tries or choose_local_fallback_tries)")]
    LocalTries,
    /// More positions than a draw has bits for.
    #[error("a step chooses {0} items, more than {MAX_COUNT}")]
    Count(i32),
    /// More tries than the device counts.
    #[error("a step sets {0} tries, more than {MAX_TRIES}")]
    Tries(i32),
    /// More steps than the device's memory holds.
    #[error("it has too many steps")]
    TooLong,
    /// A type above 255.
    #[error("a step chooses items of type {0}; types go up to 255")]
    Type(u16),
}

/// `step_t` of every step.
pub(super) fn encode(map: &Map, rule: &Rule) -> Result<Vec<[u8; 8]>, RuleMisfit> {
    if rule.kind.is_msr() {
        return Err(RuleMisfit::Msr);
    }
    if rule.steps.len() > MAX_STEPS {
        return Err(RuleMisfit::TooLong);
    }
    let tunables = map.tunables();
    let (mut local, mut fallback) =
        (tunables.choose_local_tries as i32, tunables.choose_local_fallback_tries as i32);
    let mut steps = Vec::new();
    for &step in &rule.steps {
        match step {
            RuleStep::SetChooseLocalTries(n) if n >= 0 => local = n,
            RuleStep::SetChooseLocalFallbackTries(n) if n >= 0 => fallback = n,
            RuleStep::ChooseFirstn { .. } | RuleStep::ChooseleafFirstn { .. }
                if local > 0 || fallback > 0 =>
            {
                return Err(RuleMisfit::LocalTries);
            }
            _ => {}
        }
        steps.push(encode_step(map, step)?);
    }
    Ok(steps)
}

fn encode_step(map: &Map, step: RuleStep) -> Result<[u8; 8], RuleMisfit> {
    let (op, kind, argument) = match step {
        RuleStep::Take(item) if map.contains(item) => (1, 0, item.0),
        RuleStep::ChooseFirstn { count, kind } => (2, kind.0, count),
        RuleStep::ChooseIndep { count, kind } => (3, kind.0, count),
        RuleStep::Emit => (4, 0, 0),
        RuleStep::ChooseleafFirstn { count, kind } => (6, kind.0, count),
        RuleStep::ChooseleafIndep { count, kind } => (7, kind.0, count),
        RuleStep::SetChooseTries(n) => (8, 0, n),
        RuleStep::SetChooseleafTries(n) => (9, 0, n),
        RuleStep::SetChooseleafVaryR(n) => (12, 0, n),
        RuleStep::SetChooseleafStable(n) => (13, 0, n),
        RuleStep::Take(_)
        | RuleStep::Noop
        | RuleStep::ChooseMsr { .. }
        | RuleStep::SetChooseLocalTries(_)
        | RuleStep::SetChooseLocalFallbackTries(_)
        | RuleStep::SetMsrDescents(_)
        | RuleStep::SetMsrCollisionTries(_) => (0, 0, 0),
    };
    if matches!(op, 2 | 3 | 6 | 7) && argument > MAX_COUNT {
        return Err(RuleMisfit::Count(argument));
    }
    if matches!(op, 8 | 9) && argument > MAX_TRIES {
        return Err(RuleMisfit::Tries(argument));
    }
    let kind = u8::try_from(kind).map_err(|_| RuleMisfit::Type(kind))?;
    let mut bytes = [op, kind, 0, 0, 0, 0, 0, 0];
    bytes[4..].copy_from_slice(&argument.to_le_bytes());
    Ok(bytes)
}
