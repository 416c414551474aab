//! PCIe between the simulated host and the device: what may pass what.
//!
//! PCIe has three kinds of packets. A **posted** request (a write of memory, an interrupt) has no
//! answer. A **non-posted** request (a read) is answered by **completions**. Each direction carries
//! all three. The rules that this module keeps are those of the PCI Express Base Specification,
//! table "Ordering Rules Summary" (section 2.4.1), without relaxed or ID-based ordering:
//!
//! ```text
//!   may this pass that, if that was sent before?   posted   read   completion
//!   posted request                                 no       yes    yes
//!   read request                                   no       yes    yes
//!   completion                                     no       yes    of another read only
//! ```
//!
//! **Towards the host** ([`Upstream`]): the device's writes and interrupts arrive in the order in
//! which they were sent. The answer to a register read, and a read of host memory, arrive after all
//! writes and interrupts that were sent before them. So a driver that reads a register also has
//! everything in memory that the device wrote before its answer.
//!
//! **Towards the device** ([`Downstream`]): data of host memory waits until the device has taken
//! all register writes that the host sent before the data. So a device that takes no register write
//! until its own read of host memory is answered waits for ever. Data may pass register reads.
//!
//! A link has [`Limits`]: bytes of a write and of a read request, and reads that wait for their
//! answer (tags).
//!
//! The types have no ports and read no clock: the caller names the cycle (`now`) and the cycle at
//! which a packet arrives if nothing is in its way (`due`).

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::ops::Range;

/// The bounds that the host configures for its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a write, and of a completion with data (`Max_Payload_Size`): 128 to 512.
    pub max_payload_bytes: u64,
    /// Most bytes of a read request (`Max_Read_Request_Size`): 128 to 512.
    pub max_read_bytes: u64,
    /// Reads that may wait for their last completion.
    pub tags: usize,
}

impl Default for Limits {
    /// The smallest sizes that PCIe has, and the tags of an endpoint with extended tags.
    fn default() -> Self {
        Self { max_payload_bytes: 128, max_read_bytes: 128, tags: 256 }
    }
}

/// No request crosses a multiple of so many bytes.
const BOUNDARY_BYTES: u64 = 4096;

impl Limits {
    /// Checks a read request of the device.
    ///
    /// # Errors
    /// It is larger than the host allows, or crosses a multiple of 4 KiB.
    pub fn check_read(&self, address: u64, bytes: u64) -> Result<(), String> {
        if bytes > self.max_read_bytes {
            return Err(format!(
                "a read of {bytes} bytes at {address:#x}: the host allows {}",
                self.max_read_bytes
            ));
        }
        within_boundary(address, bytes)
    }

    /// Checks a write of the device, of the bytes that `strobe` selects from `address` on.
    ///
    /// # Errors
    /// It is larger than the host allows, crosses a multiple of 4 KiB, or has a gap: byte enables
    /// select a range.
    pub fn check_write(&self, address: u64, strobe: u64) -> Result<(), String> {
        let bytes = u64::from(strobe.count_ones());
        if bytes > self.max_payload_bytes {
            return Err(format!(
                "a write of {bytes} bytes at {address:#x}: the host allows {}",
                self.max_payload_bytes
            ));
        }
        let first = strobe.trailing_zeros();
        if strobe != 0 && (strobe >> first).trailing_ones() != strobe.count_ones() {
            return Err(format!("a write with gaps at {address:#x}: bytes {strobe:#x}"));
        }
        within_boundary(address + u64::from(first % 64), bytes)
    }
}

fn within_boundary(address: u64, bytes: u64) -> Result<(), String> {
    if bytes > 0 && address / BOUNDARY_BYTES != (address + bytes - 1) / BOUNDARY_BYTES {
        return Err(format!("{bytes} bytes at {address:#x} cross a multiple of 4 KiB"));
    }
    Ok(())
}

/// The reads of the device that wait for their last beat, by tag.
#[derive(Debug, Default)]
pub struct Tags(BTreeSet<u64>);

impl Tags {
    /// Reads in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.len()
    }

    /// The device sends a read with this tag.
    ///
    /// # Errors
    /// An earlier read with the tag is in flight: the device could not tell their data apart.
    pub fn take(&mut self, tag: u64) -> Result<(), String> {
        if self.0.insert(tag) {
            return Ok(());
        }
        Err(format!("a read with tag {tag:#x}, which a read in flight has"))
    }

    /// The device takes the last beat of the read with this tag.
    ///
    /// # Errors
    /// No read with the tag is in flight.
    pub fn give_back(&mut self, tag: u64) -> Result<(), String> {
        if self.0.remove(&tag) {
            return Ok(());
        }
        Err(format!("the end of a read with tag {tag:#x}, which no read in flight has"))
    }
}

/// A packet with the cycle at which it arrives. The smallest is the earliest; among equals, the one
/// that was sent first.
#[derive(Debug)]
struct Timed<T> {
    due: u64,
    sequence: u64,
    packet: T,
}

impl<T> PartialEq for Timed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Timed<T> {}

impl<T> PartialOrd for Timed<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Timed<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due, self.sequence).cmp(&(other.due, other.sequence))
    }
}

/// What is on its way from the device to the host. `P` is a posted request, `R` a read request, `A`
/// the answer to a register read.
#[derive(Debug)]
pub struct Upstream<P, R, A> {
    posted: VecDeque<(u64, P)>,
    /// Cycle at which the last posted request arrives.
    posted_due: u64,
    reads: BinaryHeap<Reverse<Timed<R>>>,
    sequence: u64,
    answers: VecDeque<(u64, A)>,
    answer_due: u64,
}

impl<P, R, A> Default for Upstream<P, R, A> {
    fn default() -> Self {
        Self {
            posted: VecDeque::new(),
            posted_due: 0,
            reads: BinaryHeap::new(),
            sequence: 0,
            answers: VecDeque::new(),
            answer_due: 0,
        }
    }
}

impl<P, R, A> Upstream<P, R, A> {
    /// True if nothing is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.posted.is_empty() && self.reads.is_empty() && self.answers.is_empty()
    }

    /// The device sends a write or an interrupt.
    pub fn post(&mut self, due: u64, posted: P) {
        self.posted_due = self.posted_due.max(due);
        self.posted.push_back((self.posted_due, posted));
    }

    /// The device sends a read request. Reads pass each other, and no earlier posted request.
    pub fn read(&mut self, due: u64, read: R) {
        self.sequence += 1;
        let (due, sequence) = (due.max(self.posted_due), self.sequence);
        self.reads.push(Reverse(Timed { due, sequence, packet: read }));
    }

    /// The device sends the answer to a register read. It passes no earlier posted request.
    pub fn answer(&mut self, due: u64, answer: A) {
        self.answer_due = self.answer_due.max(due).max(self.posted_due);
        self.answers.push_back((self.answer_due, answer));
    }

    /// The next posted request that has arrived.
    pub fn arrived_posted(&mut self, now: u64) -> Option<P> {
        self.has_posted(now).then(|| self.posted.pop_front().map(|(_, posted)| posted))?
    }

    /// The next read request that has arrived: none before the posted requests that have arrived
    /// are taken.
    pub fn arrived_read(&mut self, now: u64) -> Option<R> {
        let is_due = self.reads.peek().is_some_and(|read| read.0.due <= now);
        (is_due && !self.has_posted(now)).then(|| self.reads.pop().map(|read| read.0.packet))?
    }

    /// The next answer to a register read that has arrived: none before the posted requests that
    /// have arrived are taken.
    pub fn arrived_answer(&mut self, now: u64) -> Option<A> {
        let is_due = self.answers.front().is_some_and(|(due, _)| *due <= now);
        (is_due && !self.has_posted(now)).then(|| self.answers.pop_front().map(|next| next.1))?
    }

    fn has_posted(&self, now: u64) -> bool {
        self.posted.front().is_some_and(|(due, _)| *due <= now)
    }
}

/// A register access on its way to the device.
#[derive(Debug)]
struct Access<M> {
    due: u64,
    is_posted: bool,
    access: M,
}

/// What is on its way from the host to the device. `M` is a register access, `D` a beat of data
/// that answers a read of host memory.
#[derive(Debug)]
pub struct Downstream<M, D> {
    accesses: VecDeque<Access<M>>,
    access_due: u64,
    /// Register writes that the host has sent, and that the device has taken.
    writes_sent: u64,
    writes_taken: u64,
    /// Data, each with the register writes that were sent before it.
    data: BinaryHeap<Reverse<Timed<(u64, D)>>>,
    sequence: u64,
}

impl<M, D> Default for Downstream<M, D> {
    fn default() -> Self {
        Self {
            accesses: VecDeque::new(),
            access_due: 0,
            writes_sent: 0,
            writes_taken: 0,
            data: BinaryHeap::new(),
            sequence: 0,
        }
    }
}

impl<M, D> Downstream<M, D> {
    /// True if the device has taken everything.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.accesses.is_empty() && self.data.is_empty()
    }

    /// True if the device has taken all register accesses.
    #[must_use]
    pub fn has_no_access(&self) -> bool {
        self.accesses.is_empty()
    }

    /// Register accesses that the device has not taken.
    #[must_use]
    pub fn accesses(&self) -> usize {
        self.accesses.len()
    }

    /// The host sends an access to a register. Accesses arrive in order. A write is posted.
    pub fn access(&mut self, due: u64, is_write: bool, access: M) {
        self.access_due = self.access_due.max(due);
        self.writes_sent += u64::from(is_write);
        self.accesses.push_back(Access { due: self.access_due, is_posted: is_write, access });
    }

    /// The access to offer to the device.
    #[must_use]
    pub fn offered_access(&self, now: u64) -> Option<&M> {
        self.accesses.front().filter(|access| access.due <= now).map(|access| &access.access)
    }

    /// The device has taken the offered access.
    pub fn take_access(&mut self) -> Option<M> {
        let Access { is_posted, access, .. } = self.accesses.pop_front()?;
        self.writes_taken += u64::from(is_posted);
        Some(access)
    }

    /// The host sends data. Data passes no register write that was sent before it.
    pub fn complete(&mut self, due: u64, data: D) {
        self.sequence += 1;
        let (sequence, packet) = (self.sequence, (self.writes_sent, data));
        self.data.push(Reverse(Timed { due, sequence, packet }));
    }

    /// Data to deliver to the device, if some has arrived.
    pub fn arrived_data(&mut self, now: u64) -> Option<D> {
        let Reverse(next) = self.data.peek()?;
        let is_due = next.due <= now && next.packet.0 <= self.writes_taken;
        is_due.then(|| self.data.pop().map(|next| next.0.packet.1))?
    }
}

/// Cycles that a packet takes, at random from a range. A range without a number between its ends
/// gives its start.
pub fn latency(range: &Range<u64>, rng: &mut impl rand::Rng) -> u64 {
    if range.is_empty() { range.start } else { rng.random_range(range.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_passes_a_posted_request_towards_the_host() {
        let mut up: Upstream<u32, u32, u32> = Upstream::default();
        up.read(4, 1);
        up.post(9, 10);
        up.read(5, 2);
        up.answer(5, 20);
        up.post(3, 11);
        up.answer(1, 21);
        assert_eq!(up.arrived_read(4), Some(1), "it was sent before the write");
        assert_eq!((up.arrived_read(8), up.arrived_answer(8)), (None, None));
        assert_eq!((up.arrived_read(9), up.arrived_answer(9)), (None, None), "writes come first");
        assert_eq!((up.arrived_posted(9), up.arrived_posted(9)), (Some(10), Some(11)));
        assert_eq!(up.arrived_posted(9), None);
        assert_eq!(up.arrived_read(9), Some(2));
        assert_eq!((up.arrived_answer(9), up.arrived_answer(9)), (Some(20), Some(21)));
        assert!(up.is_idle());
    }

    #[test]
    fn data_passes_reads_of_registers_and_no_write() {
        let mut down: Downstream<&str, u32> = Downstream::default();
        down.complete(9, 0);
        down.access(5, false, "read");
        down.complete(6, 1);
        down.access(2, true, "write");
        down.complete(7, 2);
        assert_eq!((down.offered_access(4), down.offered_access(5)), (None, Some(&"read")));
        assert_eq!(down.arrived_data(6), Some(1));
        assert_eq!(down.arrived_data(9), None, "the register write was sent before");
        assert_eq!((down.take_access(), down.arrived_data(9)), (Some("read"), None));
        assert!(!down.has_no_access() && down.accesses() == 1);
        assert_eq!((down.take_access(), down.arrived_data(9)), (Some("write"), Some(2)));
        assert_eq!(down.arrived_data(9), Some(0));
        assert!(down.is_idle() && down.take_access().is_none());
    }

    #[test]
    fn a_tag_of_two_reads_is_found() {
        let mut tags = Tags::default();
        assert_eq!((tags.take(7), tags.take(0x107)), (Ok(()), Ok(())));
        assert!(tags.take(7).unwrap_err().contains("tag 0x7"));
        assert_eq!((tags.in_flight(), tags.give_back(7)), (2, Ok(())));
        assert!(tags.give_back(7).is_err());
        assert_eq!((tags.take(7), tags.in_flight()), (Ok(()), 2));
    }

    #[test]
    fn requests_beyond_the_limits_are_found() {
        let limits = Limits::default();
        assert_eq!(limits.check_read(0x1000, 128), Ok(()));
        assert!(limits.check_read(0x1000, 192).unwrap_err().contains("the host allows 128"));
        assert!(limits.check_read(0xfc0, 128).unwrap_err().contains("4 KiB"));
        assert_eq!(limits.check_write(0xfc0, u64::MAX), Ok(()));
        assert_eq!(limits.check_write(0xfc0, 0), Ok(()));
        assert_eq!(limits.check_write(0xfc0, 0xffff_ffff << 32), Ok(()));
        assert!(limits.check_write(0, 0b101).unwrap_err().contains("gaps"));
        let small = Limits { max_payload_bytes: 32, ..limits };
        assert!(small.check_write(0, u64::MAX).unwrap_err().contains("the host allows 32"));
    }
}
