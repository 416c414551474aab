//! A node's own delays, which it does not blame on others.
//!
//! A node that was stopped finds the time of its waits over, and what it waited for in its sockets.
//! So a wait that it ends very late ([`OWN_DELAY_NS`]) goes on for that long. Each wait is
//! forgiven once: a node that is always late must not wait without end.

use crate::limits::OWN_DELAY_NS;

/// What a node forgives.
#[derive(Debug, Default)]
pub(crate) struct OwnDelay {
    /// No wait ends before this time, because the node itself was late.
    forgiven_until_ns: u64,
}

impl OwnDelay {
    /// When a wait ends that is due at this time, in nanoseconds of the node's clock.
    pub(crate) fn end_ns(&self, due_ns: u64) -> u64 {
        due_ns.max(self.forgiven_until_ns)
    }

    /// Whether the wait that is due first, at this time, is over. If the node is late itself, the
    /// wait goes on.
    pub(crate) fn is_over(&mut self, now_ns: u64, due_ns: u64) -> bool {
        let end_ns = self.end_ns(due_ns);
        if end_ns > now_ns {
            return false;
        }
        let is_forgiven = self.forgiven_until_ns >= due_ns;
        if !is_forgiven && now_ns - end_ns > OWN_DELAY_NS {
            self.forgiven_until_ns = now_ns + OWN_DELAY_NS;
            return false;
        }
        true
    }
}
