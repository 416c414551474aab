//! A watchdog. It detects a device that does not work, from the device's cycle counter, because the
//! driver has no clock.

use crate::bounds::{
    MAX_RESTING_CHECKS, MAX_SILENT_CYCLES, MAX_STILL_CHECKS, MIN_CYCLES_PER_CHECK, POLLS_PER_CHECK,
};

/// The meaning of polls without a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogResult {
    /// Nothing is wrong yet.
    Wait,
    /// The device runs or rests, but this queue set makes no progress.
    Stuck,
    /// The device does not run.
    Dead,
}

/// The time since the last completion.
#[derive(Debug, Default)]
pub struct Watchdog {
    polls: u32,
    still: u32,
    resting: u32,
    first_cycles: Option<u64>,
    last_cycles: u64,
}

impl Watchdog {
    /// A poll brought a completion.
    pub fn on_completion(&mut self) {
        *self = Self::default();
    }

    /// A poll brought no completion. `cycles` reads the device's counter. The watchdog calls
    /// `cycles` once in [`POLLS_PER_CHECK`] polls.
    pub fn on_empty_poll(&mut self, cycles: impl FnOnce() -> u64) -> WatchdogResult {
        self.polls += 1;
        if self.polls < POLLS_PER_CHECK {
            return WatchdogResult::Wait;
        }
        self.polls = 0;
        let now = cycles();
        if now == u64::MAX {
            return WatchdogResult::Dead;
        }
        let Some(first) = self.first_cycles else {
            (self.first_cycles, self.last_cycles) = (Some(now), now);
            return WatchdogResult::Wait;
        };
        let moved = now.saturating_sub(self.last_cycles);
        self.last_cycles = now;
        let counted = |is_so, count: u32| if is_so { count + 1 } else { 0 };
        self.still = counted(moved == 0, self.still);
        self.resting = counted((1..MIN_CYCLES_PER_CHECK).contains(&moved), self.resting);
        if self.still >= MAX_STILL_CHECKS {
            WatchdogResult::Dead
        } else if self.resting >= MAX_RESTING_CHECKS
            || now.saturating_sub(first) > MAX_SILENT_CYCLES
        {
            WatchdogResult::Stuck
        } else {
            WatchdogResult::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_state(mut cycles: impl FnMut() -> u64) -> (WatchdogResult, u32) {
        let mut watchdog = Watchdog::default();
        for poll in 1.. {
            let state = watchdog.on_empty_poll(&mut cycles);
            if state != WatchdogResult::Wait {
                return (state, poll);
            }
        }
        unreachable!("the range has no end");
    }

    #[test]
    fn a_counter_that_stands_is_death_and_one_that_runs_or_rests_is_a_stuck_queue() {
        assert_eq!(first_state(|| u64::MAX), (WatchdogResult::Dead, POLLS_PER_CHECK));
        let polls = (MAX_STILL_CHECKS + 1) * POLLS_PER_CHECK;
        assert_eq!(first_state(|| 5), (WatchdogResult::Dead, polls));
        let mut now = 0;
        let run = || {
            now += MAX_SILENT_CYCLES / 8;
            now
        };
        assert_eq!(first_state(run), (WatchdogResult::Stuck, 10 * POLLS_PER_CHECK));
        // Only the cycles that the read of the counter takes.
        let mut now = 0;
        let rest = || {
            now += 300;
            now
        };
        let polls = (MAX_RESTING_CHECKS + 1) * POLLS_PER_CHECK;
        assert_eq!(first_state(rest), (WatchdogResult::Stuck, polls));
    }
}
