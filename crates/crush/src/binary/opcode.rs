//! The numbers of a rule's steps.

use crate::rule::RuleStep;
use crate::{ItemId, TypeId};

/// The step with this opcode and its two arguments. `Err` names the invalid argument, or `None` for
/// an invalid opcode.
pub(super) fn step(opcode: u32, arg1: i32, arg2: i32) -> Result<RuleStep, Option<i32>> {
    let kind = || u16::try_from(arg2).map(TypeId).map_err(|_| Some(arg2));
    let count = arg1;
    Ok(match opcode {
        0 => RuleStep::Noop,
        1 => RuleStep::Take(ItemId(arg1)),
        2 => RuleStep::ChooseFirstn { count, kind: kind()? },
        3 => RuleStep::ChooseIndep { count, kind: kind()? },
        4 => RuleStep::Emit,
        6 => RuleStep::ChooseleafFirstn { count, kind: kind()? },
        7 => RuleStep::ChooseleafIndep { count, kind: kind()? },
        8 => RuleStep::SetChooseTries(arg1),
        9 => RuleStep::SetChooseleafTries(arg1),
        10 => RuleStep::SetChooseLocalTries(arg1),
        11 => RuleStep::SetChooseLocalFallbackTries(arg1),
        12 => RuleStep::SetChooseleafVaryR(arg1),
        13 => RuleStep::SetChooseleafStable(arg1),
        14 => RuleStep::SetMsrDescents(arg1),
        15 => RuleStep::SetMsrCollisionTries(arg1),
        16 => RuleStep::ChooseMsr { count, kind: kind()? },
        _ => return Err(None),
    })
}

/// The opcode and the two arguments of a step, as binary maps and Ceph's C interface have them.
#[must_use]
pub fn numbers(step: RuleStep) -> (u32, i32, i32) {
    match step {
        RuleStep::Noop => (0, 0, 0),
        RuleStep::Take(item) => (1, item.0, 0),
        RuleStep::ChooseFirstn { count, kind } => (2, count, kind.0.into()),
        RuleStep::ChooseIndep { count, kind } => (3, count, kind.0.into()),
        RuleStep::Emit => (4, 0, 0),
        RuleStep::ChooseleafFirstn { count, kind } => (6, count, kind.0.into()),
        RuleStep::ChooseleafIndep { count, kind } => (7, count, kind.0.into()),
        RuleStep::SetChooseTries(n) => (8, n, 0),
        RuleStep::SetChooseleafTries(n) => (9, n, 0),
        RuleStep::SetChooseLocalTries(n) => (10, n, 0),
        RuleStep::SetChooseLocalFallbackTries(n) => (11, n, 0),
        RuleStep::SetChooseleafVaryR(n) => (12, n, 0),
        RuleStep::SetChooseleafStable(n) => (13, n, 0),
        RuleStep::SetMsrDescents(n) => (14, n, 0),
        RuleStep::SetMsrCollisionTries(n) => (15, n, 0),
        RuleStep::ChooseMsr { count, kind } => (16, count, kind.0.into()),
    }
}
