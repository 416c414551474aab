//! Time in picoseconds, and rates of links and copies.

use std::ops::{Add, AddAssign, Sub};

/// A point in time or a duration, in picoseconds. A run begins at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ps(pub u64);

impl Ps {
    /// The begin of a run; no time at all.
    pub const ZERO: Self = Self(0);

    /// A number of nanoseconds. Cycles of a 1 GHz clock are nanoseconds, too.
    pub const fn ns(ns: u64) -> Self {
        Self(ns * 1000)
    }

    /// In nanoseconds, with a fraction.
    pub fn as_ns(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// In seconds.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }
}

impl Add for Ps {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Ps {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Ps {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// A rate, in Gbit/s (10^9 bits per second).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    gbit: u64,
}

impl Rate {
    /// A rate in Gbit/s. A rate of zero counts as one.
    pub const fn gbit(gbit: u64) -> Self {
        Self { gbit: if gbit == 0 { 1 } else { gbit } }
    }

    /// The time that a number of bytes takes, rounded up to a picosecond.
    pub const fn time(self, bytes: u64) -> Ps {
        Ps((bytes * 8000).div_ceil(self.gbit))
    }

    /// Bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.gbit as f64 * 1e9 / 8.0
    }
}

/// A server that takes work in the order in which it is asked: a copy engine, a direction of a bus,
/// a core. It stores when it is free again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Server {
    free_at: Ps,
    /// The time that the server has worked.
    pub busy: Ps,
}

impl Server {
    /// Reserves the server for work that may begin at `from`. Returns when the work ends.
    pub fn reserve(&mut self, from: Ps, work: Ps) -> Ps {
        self.free_at = self.free_at.max(from) + work;
        self.busy += work;
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_2_kib_takes_41_ns_at_400_gbit() {
        assert_eq!(Rate::gbit(400).time(2048), Ps(40_960));
        assert_eq!(Rate::gbit(100).time(2048), Ps(163_840));
        assert_eq!(Rate::gbit(541).time(1), Ps(15), "rounded up");
    }

    #[test]
    fn a_server_works_in_order() {
        let mut server = Server::default();
        assert_eq!(server.reserve(Ps::ns(5), Ps::ns(10)), Ps::ns(15));
        assert_eq!(server.reserve(Ps::ns(7), Ps::ns(1)), Ps::ns(16), "after the first");
        assert_eq!(server.reserve(Ps::ns(50), Ps::ns(1)), Ps::ns(51), "idle between");
        assert_eq!(server.busy, Ps::ns(12));
    }
}
