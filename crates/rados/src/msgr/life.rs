//! When a connection sends signs of life, and when it gives its peer up.
//!
//! A handshake has [`HANDSHAKE_LIMIT`]. Afterwards a client sends a keepalive frame every
//! [`KEEPALIVE_PERIOD`], which the server answers. Any byte of the peer is a sign of life. The
//! client gives up when there was none for [`SILENCE_LIMIT`], and a keepalive frame has waited for
//! [`KEEPALIVE_PERIOD`] too: so a client that was itself stopped for a while asks before it judges.
//!
//! Keepalive frames leave at whole multiples of [`KEEPALIVE_GRAIN`]. So a client with a thousand
//! connections wakes up a few times in a second for them, and not for each of them alone.

use super::{HANDSHAKE_LIMIT, KEEPALIVE_GRAIN, KEEPALIVE_PERIOD, SILENCE_LIMIT};
use crate::Nanos;

/// The clock of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    started: Nanos,
    received: Nanos,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Handshake,
    /// A ready client.
    Watching {
        next_keepalive: Nanos,
        /// When the first keepalive frame left after the peer's last byte.
        asked: Option<Nanos>,
    },
    /// A ready server waits for its client without end.
    Patient,
}

/// What has to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Keepalive,
    /// The peer is silent, for as many ms.
    Dead(u64),
}

impl Life {
    pub(super) fn new(now: Nanos) -> Self {
        Self { started: now, received: now, phase: Phase::Handshake }
    }

    /// The peer sent bytes.
    pub(super) fn received(&mut self, now: Nanos) {
        self.received = now;
        if let Phase::Watching { asked, .. } = &mut self.phase {
            *asked = None;
        }
    }

    /// The handshake is over.
    pub(super) fn ready(&mut self, now: Nanos, client: bool) {
        self.phase = if client {
            Phase::Watching { next_keepalive: next_keepalive(now), asked: None }
        } else {
            Phase::Patient
        };
    }

    /// When [`Life::tick`] has something to do.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        match self.phase {
            Phase::Handshake => Some(self.started.plus(HANDSHAKE_LIMIT)),
            Phase::Watching { next_keepalive, asked } => {
                Some(self.dead_at(asked).map_or(next_keepalive, |dead| dead.min(next_keepalive)))
            }
            Phase::Patient => None,
        }
    }

    fn dead_at(&self, asked: Option<Nanos>) -> Option<Nanos> {
        Some(asked?.plus(KEEPALIVE_PERIOD).max(self.received.plus(SILENCE_LIMIT)))
    }

    /// Says what is due.
    pub(super) fn tick(&mut self, now: Nanos) -> Due {
        let dead = match self.phase {
            Phase::Handshake => self.deadline(),
            Phase::Watching { asked, .. } => self.dead_at(asked),
            Phase::Patient => None,
        };
        if dead.is_some_and(|dead| dead <= now) {
            let since = match self.phase {
                Phase::Handshake => self.started,
                _ => self.received,
            };
            return Due::Dead(now.since(since).0 / 1_000_000);
        }
        match &mut self.phase {
            Phase::Watching { next_keepalive: next, asked } if *next <= now => {
                *next = next_keepalive(now);
                asked.get_or_insert(now);
                Due::Keepalive
            }
            _ => Due::Nothing,
        }
    }
}

/// One period later, or less than a grain earlier.
fn next_keepalive(now: Nanos) -> Nanos {
    let at = now.plus(KEEPALIVE_PERIOD).0;
    Nanos(at - at % KEEPALIVE_GRAIN.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Nanos {
        Nanos::from_ms(1000 * seconds)
    }

    #[test]
    fn a_handshake_has_a_limit() {
        let mut life = Life::new(s(5));
        life.received(s(19));
        assert_eq!(life.deadline(), Some(s(20)));
        assert_eq!(life.tick(Nanos(s(20).0 - 1)), Due::Nothing);
        assert_eq!(life.tick(s(20)), Due::Dead(15_000));
    }

    #[test]
    fn a_silent_peer_is_given_up() {
        let mut life = Life::new(s(0));
        life.ready(s(1), true);
        life.received(s(2));
        for second in [11, 21, 31] {
            assert_eq!(life.deadline(), Some(s(second)));
            assert_eq!(life.tick(s(second)), Due::Keepalive);
        }
        assert_eq!(life.deadline(), Some(s(32)));
        assert_eq!(life.tick(s(32)), Due::Dead(30_000));
    }

    #[test]
    fn connections_send_keepalives_together() {
        let mut due: Vec<Nanos> = Vec::new();
        for number in 0..1_000_u64 {
            let mut life = Life::new(s(0));
            life.ready(Nanos(number * 7_000_001), true);
            let first = life.deadline().expect("a ready client has a deadline");
            // A timer is late by a little, and the phase stays.
            assert_eq!(life.tick(Nanos(first.0 + 90_000)), Due::Keepalive);
            life.received(Nanos(first.0 + 500_000));
            let second = life.deadline().expect("a ready client has a deadline");
            assert_eq!(second, first.plus(KEEPALIVE_PERIOD));
            due.push(second);
        }
        due.dedup();
        // The connections were made within 7 s.
        assert_eq!(due.len(), 28);
    }

    #[test]
    fn an_answer_is_a_sign_of_life() {
        let mut life = Life::new(s(0));
        life.ready(s(0), true);
        for second in 1..=1000 {
            let due = life.tick(s(second));
            assert_eq!(due, if second % 10 == 0 { Due::Keepalive } else { Due::Nothing });
            if second % 20 == 19 {
                life.received(s(second));
            }
        }
    }

    #[test]
    fn a_client_that_slept_asks_first() {
        let mut life = Life::new(s(0));
        life.ready(s(0), true);
        assert_eq!(life.tick(s(500)), Due::Keepalive);
        assert_eq!(life.deadline(), Some(s(510)));
        assert_eq!(life.tick(s(510)), Due::Dead(510_000));
    }

    #[test]
    fn a_ready_server_waits() {
        let mut life = Life::new(s(0));
        life.ready(s(0), false);
        assert_eq!((life.deadline(), life.tick(s(9999))), (None, Due::Nothing));
    }
}
