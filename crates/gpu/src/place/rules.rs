//! A rule as the steps of an image.
//!
//! The steps carry the numbers that the plain mapper takes from the tunables and from the rule's
//! `set` steps at that point. So an image has no `set` steps.

use fieldstone_crush::{Map, Rule, RuleStep, Tunables, TypeId};

use super::MAX_WIDTH;
use super::image::Misfit;

/// Most steps of a rule in an image.
pub const MAX_STEPS: usize = 256;
/// Most attempts below one bucket of a choose step: positions, times attempts, times attempts for
/// the leaf of each. This bounds the time of a thread.
pub const MAX_ATTEMPTS: u64 = 1 << 20;

/// Words of a step.
const STEP_WORDS: usize = 8;
const END: u32 = 0;
const TAKE: u32 = 1;
const EMIT: u32 = 2;
const CHOOSE: u32 = 3;
const INDEP: u32 = 1;
const LEAF: u32 = 2;
/// A shift that leaves no bit.
const NO_BITS: u32 = 32;

/// One step of an image.
pub(super) type Step = [u32; STEP_WORDS];

/// A choose step of a rule.
struct Choose {
    count: i32,
    kind: TypeId,
    indep: bool,
    leaf: bool,
}

impl Choose {
    fn of(step: RuleStep) -> Option<Self> {
        let (count, kind, indep, leaf) = match step {
            RuleStep::ChooseFirstn { count, kind } => (count, kind, false, false),
            RuleStep::ChooseIndep { count, kind } => (count, kind, true, false),
            RuleStep::ChooseleafFirstn { count, kind } => (count, kind, false, true),
            RuleStep::ChooseleafIndep { count, kind } => (count, kind, true, true),
            _ => return None,
        };
        Some(Self { count, kind, indep, leaf })
    }
}

/// The numbers of attempts at one point of a rule.
struct Attempts {
    choose: u32,
    /// 0: not set by the rule.
    leaf: u32,
    local: u32,
    local_fallback: u32,
    descend_once: bool,
    vary_r: u32,
    stable: bool,
}

impl Attempts {
    fn new(tunables: &Tunables) -> Self {
        Self {
            // The tunable counts retries, not attempts.
            choose: tunables.choose_total_tries.saturating_add(1),
            leaf: 0,
            local: tunables.choose_local_tries,
            local_fallback: tunables.choose_local_fallback_tries,
            descend_once: tunables.chooseleaf_descend_once,
            vary_r: tunables.chooseleaf_vary_r.into(),
            stable: tunables.chooseleaf_stable,
        }
    }

    /// Applies a `set` step. Other steps change nothing.
    fn set(&mut self, step: RuleStep) {
        let (field, n, least) = match step {
            RuleStep::SetChooseTries(n) => (&mut self.choose, n, 1),
            RuleStep::SetChooseleafTries(n) => (&mut self.leaf, n, 1),
            RuleStep::SetChooseLocalTries(n) => (&mut self.local, n, 0),
            RuleStep::SetChooseLocalFallbackTries(n) => (&mut self.local_fallback, n, 0),
            RuleStep::SetChooseleafVaryR(n) => (&mut self.vary_r, n, 0),
            RuleStep::SetChooseleafStable(n) => {
                self.stable = if n >= 0 { n != 0 } else { self.stable };
                return;
            }
            _ => return,
        };
        if n >= least {
            *field = n.unsigned_abs();
        }
    }

    fn step(&self, choose: &Choose) -> Result<Step, Misfit> {
        if !choose.indep && (self.local > 0 || self.local_fallback > 0) {
            return Err(Misfit::LocalTries);
        }
        let leaf = match self.leaf {
            0 if choose.indep || self.descend_once => 1,
            0 => self.choose,
            set => set,
        };
        // A count of 0 or less counts from the width.
        let positions = u64::from(choose.count.max(MAX_WIDTH as i32).unsigned_abs());
        let leaf_attempts = if choose.leaf { leaf.into() } else { 1 };
        let attempts = positions.saturating_mul(self.choose.into()).saturating_mul(leaf_attempts);
        if attempts > MAX_ATTEMPTS {
            return Err(Misfit::TooManyAttempts(attempts));
        }
        // Numbers above 32 shift modulo 32, as in the plain mapper.
        let shift = self.vary_r.checked_sub(1).map_or(NO_BITS, |shift| shift % 32);
        let flags = if choose.indep { INDEP } else { 0 } | if choose.leaf { LEAF } else { 0 };
        let kind = choose.kind.0.into();
        let count = choose.count as u32;
        Ok([CHOOSE, count, kind, flags, self.choose, leaf, shift, self.stable.into()])
    }
}

/// The steps of a rule, with an end.
pub(super) fn steps(map: &Map, rule: &Rule) -> Result<Vec<Step>, Misfit> {
    if rule.kind.is_msr() {
        return Err(Misfit::MultiStepRetry);
    }
    let mut attempts = Attempts::new(map.tunables());
    let mut steps = Vec::new();
    for &step in &rule.steps {
        if let Some(choose) = Choose::of(step) {
            steps.push(attempts.step(&choose)?);
            continue;
        }
        match step {
            // A step that takes what the map does not have changes nothing.
            RuleStep::Take(item) if map.contains(item) => {
                steps.push([TAKE, item.0 as u32, 0, 0, 0, 0, 0, 0]);
            }
            RuleStep::Emit => steps.push([EMIT, 0, 0, 0, 0, 0, 0, 0]),
            set => attempts.set(set),
        }
    }
    if steps.len() > MAX_STEPS {
        return Err(Misfit::TooManySteps(steps.len()));
    }
    steps.push([END; STEP_WORDS]);
    Ok(steps)
}
