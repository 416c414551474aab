//! Who accessed the bytes of global memory in a launch.
//!
//! A launch orders no accesses of its threads to global memory, apart from atomic operations. So it
//! is a race when two threads access a byte and at least one writes. Each byte has one word of
//! trace: what was done to it, and by which thread. That is enough, because the first race ends the
//! launch.

use super::fault::Access;

/// Who accesses, as an index in the block and in the launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    /// Index of the block in the grid.
    pub block: u32,
    /// Index of the thread in the block.
    pub thread: u32,
    /// Index of the thread in the launch.
    pub index: u32,
}

/// The most threads of a launch whose accesses can be traced.
pub(super) const MAX_THREADS: u64 = 1 << 30;

/// How a byte is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Read,
    Write,
    Atomic,
}

/// What was done to a byte. Two bits for the kind, the others for the index of the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trace(u32);

const READ: u32 = 1 << 30;
const WRITTEN: u32 = 2 << 30;
/// No thread in particular: several read the byte, or atomic operations changed it.
const SHARED: u32 = 3 << 30;
const SEVERAL: Trace = Trace(SHARED);
const ATOMIC: Trace = Trace(SHARED | 1);

impl Trace {
    /// The trace after an access of a thread.
    ///
    /// # Errors
    ///
    /// The access and an earlier one are a race: says what the earlier one was. `block` is the
    /// number of threads in a block.
    pub fn after(self, how: How, thread: u32, block: u32) -> Result<Self, Access> {
        let (read, written) = (Self(READ | thread), Self(WRITTEN | thread));
        let untouched = self == Self::default();
        match how {
            How::Read if untouched || self == read => Ok(read),
            How::Read if self == written || self == SEVERAL => Ok(self),
            How::Read if self.0 & SHARED == READ => Ok(SEVERAL),
            How::Write if untouched || self == read || self == written => Ok(written),
            How::Atomic if untouched || self == read || self == written => Ok(ATOMIC),
            How::Atomic if self == ATOMIC => Ok(ATOMIC),
            _ => Err(self.access(block)),
        }
    }

    fn access(self, block: u32) -> Access {
        let index = self.0 & !SHARED;
        let (block, thread) = (index / block.max(1), index % block.max(1));
        match self.0 & SHARED {
            READ => Access::Read { block, thread },
            WRITTEN => Access::Written { block, thread },
            _ if self == SEVERAL => Access::ReadBySeveral,
            _ => Access::Atomic,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(accesses: &[(How, u32)]) -> Result<Trace, Access> {
        accesses
            .iter()
            .try_fold(Trace::default(), |trace, &(how, thread)| trace.after(how, thread, 32))
    }

    #[test]
    fn one_thread_does_what_it_wants_before_an_atomic_operation() {
        use How::{Atomic, Read, Write};
        assert!(after(&[(Read, 5), (Write, 5), (Read, 5), (Write, 5), (Atomic, 5)]).is_ok());
        assert!(after(&[(Read, 5), (Read, 6), (Read, 5), (Read, 7)]).is_ok());
        assert!(after(&[(Atomic, 5), (Atomic, 6)]).is_ok());
    }

    #[test]
    fn a_write_and_another_access_are_a_race() {
        use How::{Atomic, Read, Write};
        let written = Err(Access::Written { block: 1, thread: 1 });
        assert_eq!(after(&[(Write, 33), (Read, 5)]), written);
        assert_eq!(after(&[(Write, 33), (Write, 5)]), written);
        assert_eq!(after(&[(Write, 33), (Atomic, 5)]), written);
        let read = Err(Access::Read { block: 0, thread: 5 });
        assert_eq!(after(&[(Read, 5), (Write, 6)]), read);
        assert_eq!(after(&[(Read, 5), (Read, 6), (Write, 5)]), Err(Access::ReadBySeveral));
        assert_eq!(after(&[(Atomic, 5), (Write, 5)]), Err(Access::Atomic));
        assert_eq!(after(&[(Atomic, 5), (Read, 6)]), Err(Access::Atomic));
    }
}
