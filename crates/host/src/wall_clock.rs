//! The time of day, which capabilities expire by.
//!
//! All deadlines of the host go by the monotonic clock, which never jumps. Capabilities cannot:
//! their issuer and the node that checks them may be on different machines. So nodes and volumes
//! add an *offset* to the monotonic clock, and get the time of day.
//!
//! The offset is not constant. The monotonic clock stands still while the machine is suspended, and
//! a time server or an operator may set the time of day. So each core reads the offset in every
//! turn, after it has got the turn's events and before it handles them, and again after it has
//! taken its mail. It tells its nodes and devices whenever the offset has changed by
//! [`TOLD_STEP_NS`] or more. Thus a node that checks a capability knows of every jump that the
//! volume knew, on the same machine, when it issued the capability.

/// A smaller change is not told. It is nothing against the hour for which capabilities last, and
/// more than the error of one reading.
const TOLD_STEP_NS: u64 = 100_000_000;

/// What a core knows of the time of day.
#[derive(Debug)]
pub struct WallClock {
    read: fn() -> u64,
    /// The offset that the core told last, in nanoseconds.
    told_ns: u64,
}

impl WallClock {
    /// A clock that gets the offset from `read`.
    #[must_use]
    pub fn new(read: fn() -> u64) -> Self {
        Self { read, told_ns: read() }
    }

    /// The offset that nodes and devices of the core know: the one of the last [`WallClock::poll`]
    /// that returned one, or of the beginning.
    #[must_use]
    pub fn told_ns(&self) -> u64 {
        self.told_ns
    }

    /// Reads the offset, and returns it if nodes and devices must know it.
    pub fn poll(&mut self) -> Option<u64> {
        let offset_ns = (self.read)();
        if offset_ns.abs_diff(self.told_ns) < TOLD_STEP_NS {
            return None;
        }
        self.told_ns = offset_ns;
        Some(offset_ns)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local!(static OFFSET_NS: Cell<u64> = const { Cell::new(0) });

    fn set(offset_ns: u64) {
        OFFSET_NS.set(offset_ns);
    }

    #[test]
    fn a_jump_is_told_at_once_and_once() {
        set(5 << 40);
        let mut clock = WallClock::new(|| OFFSET_NS.get());
        assert_eq!((clock.poll(), clock.told_ns()), (None, 5 << 40));
        for jump_ns in [1 << 60, 3, 7 << 40] {
            set(jump_ns);
            assert_eq!((clock.poll(), clock.poll()), (Some(jump_ns), None));
            assert_eq!(clock.told_ns(), jump_ns);
        }
    }

    #[test]
    fn small_steps_add_up() {
        set(1 << 40);
        let mut clock = WallClock::new(|| OFFSET_NS.get());
        let mut told = 0;
        for step in 0..1000 {
            set((1 << 40) - step * (TOLD_STEP_NS / 10));
            told += u32::from(clock.poll().is_some());
            assert!(clock.told_ns().abs_diff(OFFSET_NS.get()) < TOLD_STEP_NS);
        }
        assert_eq!(told, 99, "every tenth step is told");
    }
}
