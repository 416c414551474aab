//! Timers in user space: at most one per token, ordered by deadline.
//!
//! No timer reaches the kernel: the nearest deadline bounds the wait of the next turn. Setting a
//! token's timer again moves it, which is the behaviour that a state machine with one `deadline()`
//! needs. It leaves no old entry behind.

use std::collections::{BTreeSet, HashMap};

use fieldstone_block::Nanos;

use crate::event::Token;

/// The timers of one reactor.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    by_deadline: BTreeSet<(Nanos, Token)>,
    by_token: HashMap<Token, Nanos>,
}

impl Timers {
    /// Sets the token's timer. Replaces its old timer.
    pub(crate) fn set(&mut self, deadline: Nanos, token: Token) {
        if let Some(old) = self.by_token.insert(token, deadline) {
            if old == deadline {
                return;
            }
            self.by_deadline.remove(&(old, token));
        }
        self.by_deadline.insert((deadline, token));
    }

    /// Removes the token's timer; false if it had none.
    pub(crate) fn cancel(&mut self, token: Token) -> bool {
        match self.by_token.remove(&token) {
            Some(deadline) => self.by_deadline.remove(&(deadline, token)),
            None => false,
        }
    }

    /// The nearest deadline.
    pub(crate) fn nearest(&self) -> Option<Nanos> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// Removes and returns the token of the earliest timer due at `now`.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Token> {
        let (deadline, token) = *self.by_deadline.first()?;
        if deadline > now {
            return None;
        }
        self.by_deadline.remove(&(deadline, token));
        self.by_token.remove(&token);
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a plain map: the same timers fire, in order of deadline, at the right
        /// time.
        #[test]
        fn behaves_like_a_map(
            steps in proptest::collection::vec((0u8..3, 0u64..8, 0u64..50), 1..200),
        ) {
            let mut timers = Timers::default();
            let mut model = HashMap::new();
            for (what, token, at) in steps {
                match what {
                    0 => {
                        timers.set(Nanos(at), Token(token));
                        model.insert(token, at);
                    }
                    1 => {
                        let known = model.remove(&token).is_some();
                        prop_assert_eq!(timers.cancel(Token(token)), known);
                    }
                    _ => {
                        let mut last = 0;
                        while let Some(fired) = timers.pop_due(Nanos(at)) {
                            let deadline = model.remove(&fired.0).expect("fires once");
                            prop_assert!(deadline <= at && deadline >= last);
                            last = deadline;
                        }
                        prop_assert!(model.values().all(|deadline| *deadline > at));
                    }
                }
                prop_assert_eq!(timers.nearest(), model.values().min().map(|at| Nanos(*at)));
            }
        }
    }
}
