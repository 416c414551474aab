//! Bounds for connections that have not shown their purpose yet.
//!
//! Each connection costs a descriptor and memory from the moment it is accepted. So a connection is
//! *pending* until it has introduced itself. An NBD client does so by completing the negotiation, a
//! node's client by a request whose capability the node accepts. Pending ones stay for a bounded
//! time, and their number is bounded. If there is one too many, the oldest is closed. So a flood of
//! silent connections pushes out other silent connections. A real client introduces itself within
//! milliseconds, and stays.
//!
//! ```text
//!             admit, arrived                introduced
//!  (accepted) --------------> pending  ----------------> established
//!                                |  too old, or too many      |  gone
//!                                +---------> (closed) <-------+
//! ```
//!
//! An established connection is never closed to make room for others. The number of connections is
//! bounded too, by the number of descriptors. When established connections have all places, a new
//! connection is refused.
//!
//! This is a table without I/O: the owner reports the events, and closes the connections that the
//! table names.

use std::collections::BTreeMap;

use fieldstone_block::Nanos;

/// The most pending connections of one kind of front-end, or of the node servers, over all cores.
/// There are fewer if descriptors are few, and more on more than 64 cores.
pub const PENDING_MAX: usize = 256;
/// How long a connection may stay pending.
pub const PENDING_AGE_MS: u64 = 10_000;
/// A client that holds memory for which others wait loses its connection when it neither sends nor
/// takes anything for this long.
pub const STALL_MS: u64 = 10_000;
/// The same limit once others have waited for longer than [`STALL_MS`]. So many clients that stall
/// one after another do not each cost the others [`STALL_MS`].
pub const HURRIED_STALL_MS: u64 = 2_000;
/// The most bytes of one send. Only a whole send shows that a client takes its answers. So together
/// with [`STALL_MS`] this is the lowest rate of a client while memory is short: 200 KiB per second,
/// or 1 MiB per second with [`HURRIED_STALL_MS`].
pub const SEND_BYTES_MAX: usize = 2 << 20;

/// One in this many descriptors of the process may be a connection. The others are for files.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// The fewest connections that every core may have, even if descriptors are few.
const CONNECTIONS_MIN: usize = 8;

/// How many connections a core may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// All connections.
    pub connections: usize,
    /// The pending ones among them.
    pub pending: usize,
}

impl Bounds {
    /// The bounds for one of `cores` cores of a process that may have `open_files` descriptors.
    #[must_use]
    pub fn of(open_files: u64, cores: usize) -> Self {
        let cores = cores.max(1);
        let all = usize::try_from(open_files / DESCRIPTORS_PER_CONNECTION).unwrap_or(usize::MAX);
        let connections = (all / cores).max(CONNECTIONS_MIN);
        let pending = (PENDING_MAX / cores).clamp(CONNECTIONS_MIN / 2, connections / 2);
        Self { connections, pending }
    }

    /// The same bounds, with at most `connections` connections.
    #[must_use]
    pub fn at_most(self, connections: usize) -> Self {
        Self { connections: self.connections.min(connections), ..self }
    }
}

/// How long a connection may be silent while it holds room for which others wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct StallLimit {
    wanted_since: Option<Nanos>,
}

impl StallLimit {
    /// Notes whether others wait for room (`wanted`). Returns how long a connection that holds room
    /// may be silent; `None` means without limit, while no other waits.
    pub fn current(&mut self, wanted: bool, now: Nanos) -> Option<Nanos> {
        if !wanted {
            self.wanted_since = None;
            return None;
        }
        let since = *self.wanted_since.get_or_insert(now);
        let hurried = now.since(since) > Nanos::from_ms(STALL_MS);
        Some(Nanos::from_ms(if hurried { HURRIED_STALL_MS } else { STALL_MS }))
    }
}

/// The decision about a connection that was just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// There is room.
    Welcome,
    /// There is room after this pending connection is closed.
    InPlaceOf(u32),
    /// Established connections have all places.
    Full,
}

/// The connections of one core, by ids that their owner chose.
#[derive(Debug)]
pub struct ConnectionTable {
    bounds: Bounds,
    /// Pending connections in the order of their arrival, each with the time at which it must be
    /// closed.
    pending: BTreeMap<u64, (u32, Nanos)>,
    /// The place of each pending connection in that order.
    places: BTreeMap<u32, u64>,
    next_place: u64,
    introduced: usize,
}

impl ConnectionTable {
    /// A table without connections.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            pending: BTreeMap::new(),
            places: BTreeMap::new(),
            next_place: 0,
            introduced: 0,
        }
    }

    /// The bounds of the table.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Number of all connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.introduced + self.pending.len()
    }

    /// Asks for a place for one more connection. The caller closes the connection that the answer
    /// names, reports it with [`ConnectionTable::gone`], and then calls
    /// [`ConnectionTable::arrived`].
    #[must_use]
    pub fn admit(&self) -> Admission {
        let full = self.count() >= self.bounds.connections;
        if !full && self.pending.len() < self.bounds.pending {
            return Admission::Welcome;
        }
        self.oldest().map_or(Admission::Full, Admission::InPlaceOf)
    }

    /// The oldest pending connection.
    #[must_use]
    pub fn oldest(&self) -> Option<u32> {
        self.pending.values().next().map(|(id, _)| *id)
    }

    /// A connection has arrived, and is pending. One that is already in the table starts over.
    pub fn arrived(&mut self, id: u32, now: Nanos) {
        if let Some(place) = self.places.remove(&id) {
            self.pending.remove(&place);
        }
        let deadline = now.plus(Nanos::from_ms(PENDING_AGE_MS));
        self.pending.insert(self.next_place, (id, deadline));
        self.places.insert(id, self.next_place);
        self.next_place += 1;
    }

    /// A pending connection has introduced itself.
    pub fn introduced(&mut self, id: u32) {
        if let Some(place) = self.places.remove(&id) {
            self.pending.remove(&place);
            self.introduced += 1;
        }
    }

    /// A connection is closed, or is about to be. Call this once for each connection that arrived.
    pub fn gone(&mut self, id: u32) {
        match self.places.remove(&id) {
            Some(place) => drop(self.pending.remove(&place)),
            None => self.introduced = self.introduced.saturating_sub(1),
        }
    }

    /// A pending connection that must be closed now.
    #[must_use]
    pub fn overdue(&self, now: Nanos) -> Option<u32> {
        self.pending.values().next().filter(|(_, deadline)| *deadline <= now).map(|(id, _)| *id)
    }

    /// When [`ConnectionTable::overdue`] will name a connection.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.pending.values().next().map(|(_, deadline)| *deadline)
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
        assert_eq!(Bounds::of(1024, 1), Bounds { connections: 512, pending: 256 });
        assert_eq!(Bounds::of(65_536, 4), Bounds { connections: 8192, pending: 64 });
        assert_eq!(Bounds::of(64, 1), Bounds { connections: 32, pending: 16 });
        assert_eq!(Bounds::of(0, 9), Bounds { connections: 8, pending: 4 });
        assert_eq!(Bounds::of(1 << 20, 1).at_most(1024).connections, 1024);
    }

    #[test]
    fn the_stall_limit_shrinks_when_others_have_waited_long() {
        let mut stall_limit = StallLimit::default();
        assert_eq!(stall_limit.current(false, at(0)), None);
        assert_eq!(stall_limit.current(true, at(5)), Some(at(STALL_MS)));
        assert_eq!(stall_limit.current(true, at(5 + STALL_MS)), Some(at(STALL_MS)));
        assert_eq!(stall_limit.current(true, at(6 + STALL_MS)), Some(at(HURRIED_STALL_MS)));
        assert_eq!(stall_limit.current(false, at(7 + STALL_MS)), None);
        assert_eq!(stall_limit.current(true, at(8 + STALL_MS)), Some(at(STALL_MS)));
    }

    #[test]
    fn the_oldest_pending_connection_gives_way_and_an_established_one_never() {
        let mut table = ConnectionTable::new(Bounds { connections: 4, pending: 2 });
        for id in 0..2 {
            assert_eq!(table.admit(), Admission::Welcome);
            table.arrived(id, at(0));
        }
        assert_eq!(table.admit(), Admission::InPlaceOf(0));
        table.introduced(0);
        assert_eq!(table.admit(), Admission::Welcome);
        table.arrived(2, at(1));
        assert_eq!(table.admit(), Admission::InPlaceOf(1), "0 is established now");
        for id in [1, 2] {
            table.introduced(id);
        }
        table.arrived(3, at(2));
        assert_eq!(table.admit(), Admission::InPlaceOf(3), "all places are taken");
        table.introduced(3);
        assert_eq!(table.admit(), Admission::Full);
        table.gone(1);
        assert_eq!((table.admit(), table.count()), (Admission::Welcome, 3));
    }

    #[test]
    fn pending_connections_go_when_their_time_is_over_in_order_of_arrival() {
        let mut table = ConnectionTable::new(Bounds { connections: 9, pending: 9 });
        assert_eq!(table.deadline(), None);
        for id in [7, 3, 5] {
            table.arrived(id, at(u64::from(id)));
        }
        assert_eq!(table.deadline(), Some(at(7 + PENDING_AGE_MS)));
        assert_eq!(table.overdue(at(6 + PENDING_AGE_MS)), None);
        assert_eq!(table.overdue(at(7 + PENDING_AGE_MS)), Some(7));
        table.arrived(7, at(100));
        assert_eq!(table.overdue(at(7 + PENDING_AGE_MS)), Some(3), "7 has started over");
        table.introduced(3);
        table.gone(5);
        assert_eq!(table.oldest(), Some(7));
        table.gone(7);
        assert_eq!((table.overdue(at(1 << 40)), table.count()), (None, 1));
    }

    proptest! {
        /// After any sequence of events the bounds hold, and the table names only pending
        /// connections.
        #[test]
        fn the_bounds_hold(steps in proptest::collection::vec((0u8..4, any::<u16>()), 0..300)) {
            let mut table = ConnectionTable::new(Bounds { connections: 12, pending: 5 });
            let (mut pending, mut introduced) = (Vec::new(), Vec::new());
            let mut next = 0;
            for (what, which) in steps {
                let which = usize::from(which);
                match what {
                    0 | 1 => {
                        match table.admit() {
                            Admission::Welcome => {}
                            Admission::InPlaceOf(id) => {
                                prop_assert_eq!(id, pending.remove(0));
                                table.gone(id);
                            }
                            Admission::Full => {
                                prop_assert_eq!(introduced.len(), 12);
                                continue;
                            }
                        }
                        table.arrived(next, at(0));
                        pending.push(next);
                        next += 1;
                    }
                    2 if !pending.is_empty() => {
                        let id = pending.remove(which % pending.len());
                        table.introduced(id);
                        introduced.push(id);
                    }
                    3 if !introduced.is_empty() => {
                        table.gone(introduced.remove(which % introduced.len()));
                    }
                    _ => {}
                }
                prop_assert!(pending.len() <= 5 && table.count() <= 12);
                prop_assert_eq!(table.count(), pending.len() + introduced.len());
                prop_assert_eq!(table.oldest(), pending.first().copied());
            }
        }
    }
}
