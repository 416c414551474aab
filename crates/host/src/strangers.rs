//! Who may stay: connections that have not shown yet what they are for.
//!
//! Any connection costs a descriptor and memory from the moment it is accepted. So a connection is
//! a *stranger* until it has introduced itself: an NBD client by ending the negotiation, a node's
//! client by a request whose capability the node accepts. Strangers stay for a bounded time, and
//! there is a bounded number of them; where one too many comes, the one that came first goes. So a
//! flood of silent connections pushes out other silent connections, while a client that has
//! something to say says it within milliseconds and stays.
//!
//! ```text
//!             admit, arrived                introduced
//!  (accepted) --------------> stranger ----------------------> guest
//!                                |  too old, or too many          |  gone
//!                                +-----------> (closed) <---------+
//! ```
//!
//! Guests are never closed for others. They are bounded too, by descriptors; where all are in use by
//! guests a newcomer is refused.
//!
//! This is a table without I/O: the owner tells it what happened and closes what it names.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;

/// Strangers of one process at a time; fewer where descriptors are few.
pub const STRANGERS_MAX: usize = 256;
/// How long a connection may stay a stranger.
pub const STRANGER_AGE_MS: u64 = 10_000;
/// A client that holds memory which others wait for loses its connection when it neither sends nor
/// takes anything for this long.
pub const STALL_MS: u64 = 10_000;
/// The same once others have been waiting for longer than [`STALL_MS`]: where many clients stall one
/// after the other, each has had its time while it waited.
pub const HURRIED_STALL_MS: u64 = 2_000;
/// Most bytes of one send. Only whole sends show that a client takes what it asked for, so together
/// with [`STALL_MS`] this is how slow a client may be while memory is short: 200 KiB per second, or
/// 1 MiB per second with [`HURRIED_STALL_MS`].
pub const SEND_BYTES_MAX: usize = 2 << 20;

/// One in this many descriptors of the process is for connections; the rest is for files.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Every core may have this many connections, however few descriptors there are.
const CONNECTIONS_MIN: usize = 8;

/// How many connections a core may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// All together.
    pub connections: usize,
    /// Strangers among them.
    pub strangers: usize,
}

impl Bounds {
    /// The share of one of `cores` of a process that may have `open_files` descriptors.
    #[must_use]
    pub fn of(open_files: u64, cores: usize) -> Self {
        let cores = cores.max(1);
        let all = usize::try_from(open_files / DESCRIPTORS_PER_CONNECTION).unwrap_or(usize::MAX);
        let connections = (all / cores).max(CONNECTIONS_MIN);
        let strangers = (STRANGERS_MAX / cores).clamp(CONNECTIONS_MIN / 2, connections / 2);
        Self { connections, strangers }
    }

    /// At most `connections` of them.
    #[must_use]
    pub fn at_most(self, connections: usize) -> Self {
        Self { connections: self.connections.min(connections), ..self }
    }
}

/// How long connections may be silent that hold room for which others wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    wanted_since: Option<Nanos>,
}

impl Patience {
    /// Takes note of whether others wait for room (`wanted`). Says how long connections that hold
    /// room may be silent; for ever (`None`) while no other waits.
    pub fn limit(&mut self, wanted: bool, now: Nanos) -> Option<Nanos> {
        if !wanted {
            self.wanted_since = None;
            return None;
        }
        let since = *self.wanted_since.get_or_insert(now);
        let hurried = now.since(since) > Nanos::from_ms(STALL_MS);
        Some(Nanos::from_ms(if hurried { HURRIED_STALL_MS } else { STALL_MS }))
    }
}

/// What becomes of a connection that was just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// There is room.
    Welcome,
    /// There is, once this stranger is closed.
    InPlaceOf(u32),
    /// Every place is taken by clients that have introduced themselves.
    Full,
}

/// The connections of one core, by names that their owner chose.
#[derive(Debug)]
pub struct Guests {
    bounds: Bounds,
    /// Strangers in the order of their coming, with the time at which they must have gone.
    strangers: BTreeMap<u64, (u32, Nanos)>,
    /// Where each of them stands in that order.
    places: BTreeMap<u32, u64>,
    next_place: u64,
    introduced: usize,
}

impl Guests {
    /// No connections yet.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            strangers: BTreeMap::new(),
            places: BTreeMap::new(),
            next_place: 0,
            introduced: 0,
        }
    }

    /// The bounds that it keeps.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Connections in all.
    #[must_use]
    pub fn count(&self) -> usize {
        self.introduced + self.strangers.len()
    }

    /// Asks for a place for one more. The caller closes whom the answer names, tells so with
    /// [`Guests::gone`], and then [`Guests::arrived`].
    #[must_use]
    pub fn admit(&self) -> Admission {
        let full = self.count() >= self.bounds.connections;
        if !full && self.strangers.len() < self.bounds.strangers {
            return Admission::Welcome;
        }
        self.oldest().map_or(Admission::Full, Admission::InPlaceOf)
    }

    /// The stranger that came first.
    #[must_use]
    pub fn oldest(&self) -> Option<u32> {
        self.strangers.values().next().map(|(id, _)| *id)
    }

    /// A connection is here, as a stranger. One that is here already starts over.
    pub fn arrived(&mut self, id: u32, now: Nanos) {
        if let Some(place) = self.places.remove(&id) {
            self.strangers.remove(&place);
        }
        let deadline = now.plus(Nanos::from_ms(STRANGER_AGE_MS));
        self.strangers.insert(self.next_place, (id, deadline));
        self.places.insert(id, self.next_place);
        self.next_place += 1;
    }

    /// A stranger has introduced itself.
    pub fn introduced(&mut self, id: u32) {
        if let Some(place) = self.places.remove(&id) {
            self.strangers.remove(&place);
            self.introduced += 1;
        }
    }

    /// A connection is closed, or about to be. Call it once for each that arrived.
    pub fn gone(&mut self, id: u32) {
        match self.places.remove(&id) {
            Some(place) => drop(self.strangers.remove(&place)),
            None => self.introduced = self.introduced.saturating_sub(1),
        }
    }

    /// A stranger whose time is over.
    #[must_use]
    pub fn overdue(&self, now: Nanos) -> Option<u32> {
        self.strangers.values().next().filter(|(_, deadline)| *deadline <= now).map(|(id, _)| *id)
    }

    /// When [`Guests::overdue`] will have an answer.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.strangers.values().next().map(|(_, deadline)| *deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Nanos {
        Nanos::from_ms(ms)
    }

    #[test]
    fn the_bounds_follow_from_the_descriptors_and_the_cores() {
        assert_eq!(Bounds::of(1024, 1), Bounds { connections: 512, strangers: 256 });
        assert_eq!(Bounds::of(65_536, 4), Bounds { connections: 8192, strangers: 64 });
        assert_eq!(Bounds::of(64, 1), Bounds { connections: 32, strangers: 16 });
        assert_eq!(Bounds::of(0, 9), Bounds { connections: 8, strangers: 4 });
        assert_eq!(Bounds::of(1 << 20, 1).at_most(1024).connections, 1024);
    }

    #[test]
    fn patience_ends_when_others_have_waited_long() {
        let mut patience = Patience::default();
        assert_eq!(patience.limit(false, at(0)), None);
        assert_eq!(patience.limit(true, at(5)), Some(at(STALL_MS)));
        assert_eq!(patience.limit(true, at(5 + STALL_MS)), Some(at(STALL_MS)));
        assert_eq!(patience.limit(true, at(6 + STALL_MS)), Some(at(HURRIED_STALL_MS)));
        assert_eq!(patience.limit(false, at(7 + STALL_MS)), None);
        assert_eq!(patience.limit(true, at(8 + STALL_MS)), Some(at(STALL_MS)));
    }

    #[test]
    fn the_oldest_stranger_gives_way_and_a_guest_never() {
        let mut guests = Guests::new(Bounds { connections: 4, strangers: 2 });
        for id in 0..2 {
            assert_eq!(guests.admit(), Admission::Welcome);
            guests.arrived(id, at(0));
        }
        assert_eq!(guests.admit(), Admission::InPlaceOf(0));
        guests.introduced(0);
        assert_eq!(guests.admit(), Admission::Welcome);
        guests.arrived(2, at(1));
        assert_eq!(guests.admit(), Admission::InPlaceOf(1), "0 is a guest now");
        for id in [1, 2] {
            guests.introduced(id);
        }
        guests.arrived(3, at(2));
        assert_eq!(guests.admit(), Admission::InPlaceOf(3), "all places are taken");
        guests.introduced(3);
        assert_eq!(guests.admit(), Admission::Full);
        guests.gone(1);
        assert_eq!((guests.admit(), guests.count()), (Admission::Welcome, 3));
    }

    #[test]
    fn strangers_go_when_their_time_is_over_in_the_order_of_their_coming() {
        let mut guests = Guests::new(Bounds { connections: 9, strangers: 9 });
        assert_eq!(guests.deadline(), None);
        for id in [7, 3, 5] {
            guests.arrived(id, at(u64::from(id)));
        }
        assert_eq!(guests.deadline(), Some(at(7 + STRANGER_AGE_MS)));
        assert_eq!(guests.overdue(at(6 + STRANGER_AGE_MS)), None);
        assert_eq!(guests.overdue(at(7 + STRANGER_AGE_MS)), Some(7));
        guests.arrived(7, at(100));
        assert_eq!(guests.overdue(at(7 + STRANGER_AGE_MS)), Some(3), "7 has started over");
        guests.introduced(3);
        guests.gone(5);
        assert_eq!(guests.oldest(), Some(7));
        guests.gone(7);
        assert_eq!((guests.overdue(at(1 << 40)), guests.count()), (None, 1));
    }

    proptest! {
        /// Whatever comes in whatever order, the bounds hold, and only strangers are named.
        #[test]
        fn the_bounds_hold(steps in proptest::collection::vec((0u8..4, any::<u16>()), 0..300)) {
            let mut guests = Guests::new(Bounds { connections: 12, strangers: 5 });
            let (mut strangers, mut introduced) = (Vec::new(), Vec::new());
            let mut next = 0;
            for (what, which) in steps {
                let which = usize::from(which);
                match what {
                    0 | 1 => {
                        match guests.admit() {
                            Admission::Welcome => {}
                            Admission::InPlaceOf(id) => {
                                prop_assert_eq!(id, strangers.remove(0));
                                guests.gone(id);
                            }
                            Admission::Full => {
                                prop_assert_eq!(introduced.len(), 12);
                                continue;
                            }
                        }
                        guests.arrived(next, at(0));
                        strangers.push(next);
                        next += 1;
                    }
                    2 if !strangers.is_empty() => {
                        let id = strangers.remove(which % strangers.len());
                        guests.introduced(id);
                        introduced.push(id);
                    }
                    3 if !introduced.is_empty() => {
                        guests.gone(introduced.remove(which % introduced.len()));
                    }
                    _ => {}
                }
                prop_assert!(strangers.len() <= 5 && guests.count() <= 12);
                prop_assert_eq!(guests.count(), strangers.len() + introduced.len());
                prop_assert_eq!(guests.oldest(), strangers.first().copied());
            }
        }
    }
}
