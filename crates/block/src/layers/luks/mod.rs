//! Encrypts and decrypts the sectors of a device that begins with a LUKS header.
//!
//! ```text
//!   store:   | header, key material |  data  .  .  .  .  .  .  |
//!            0                      data offset
//!   above:                          | the device               |
//!                                   0
//! ```
//!
//! # Opening
//!
//! When the store has a size, the layer reads the header ([`unlock`]), and makes a piece of
//! [`Work`] of what takes seconds: reading the passphrase's file and deriving keys. Until that has
//! ended, the device has the size 0, and [`Layer::readiness`] says that it opens. A header that
//! does not open makes the device fail. That failure is final: another try would cost the same
//! seconds and fail in the same way, until a person corrects the passphrase or the header. Only an
//! error of the store while the header is read may pass.
//!
//! # Requests
//!
//! The layer takes whole sectors; `align` above makes them. It adds the data offset to each range.
//!
//! - *Read*: the answer is decrypted into the front-end's memory, or into new memory.
//! - *Write*: encrypted into new memory.
//! - *Trim, `WriteZeroes`*: written as encrypted zeroes, in parts of [`ZEROES_BYTES`], because that
//!   is what librbd does. With the option `trim=pass` they go to the store, which gives the space
//!   back. Then whoever sees the store can tell which sectors are in use.
//! - *Extents*: holes of the store are holes of the device, as far as they are whole sectors.
//!
//! # Ordering
//!
//! A store with blocks smaller than a sector may mix two writes that are in flight together, or
//! give a read some blocks from before a write and some from after. Such a mixture of encrypted
//! bytes is noise. So over such a store the layer orders requests that overlap if one of them
//! changes data: the later one waits for the earlier, and for those that wait in front of it. A
//! write that the store executes in part, because it fails or the power does, leaves noise in a
//! sector all the same. dm-crypt has that limit, too.
//!
//! # Sectors that were never written
//!
//! The store gives zeroes for them, and decrypted zeroes would be noise. The layer gives zeroes for
//! a sector that is stored as zeroes, so that a hole has one content however it is read. No
//! encrypted sector consists of zeroes, but for a chance of 2^-4096 or less. librbd gives zeroes
//! where an object is missing or short, and noise for a hole within an object: the same, but for
//! noise that no program relies on.

mod unlock;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;

use bytes::Bytes;
use fieldstone_buf::{AlignedBuf, zeroes};
use fieldstone_luks::{SectorCipher, Unlocked};
use slab::Slab;

use crate::extents::push_extent;
use crate::layer::{Counter, Flow, Layer, OpenFailure, Readiness, Work, WorkResult};
use crate::pieces::{Pieces, push_piece, to_bytes};
use crate::settings::{SettingError, Settings};
use crate::{
    BlockError, Completion, EXTENTS_MAX, Extent, ExtentKind, Info, Op, Payload, Piece,
    ReadDestination, Request, RequestFlags, RequestId,
};
use unlock::{Opening, Step};

/// The length of the writes in which zeroes are encrypted.
pub const ZEROES_BYTES: u32 = 256 << 10;
/// The most such writes in flight.
pub const ZEROES_IN_FLIGHT: usize = 16;

/// What happens to trimmed sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrimPolicy {
    /// They are written as encrypted zeroes, as librbd does.
    #[default]
    Zeroes,
    /// The store trims them.
    Pass,
}

const TRIM_POLICIES: [(&str, TrimPolicy); 2] =
    [("zeroes", TrimPolicy::Zeroes), ("pass", TrimPolicy::Pass)];

/// The options of the layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LuksOptions {
    /// The file with the passphrase. A device without it fails.
    pub passphrase_file: Option<PathBuf>,
    /// What happens to trimmed sectors.
    pub trim: TrimPolicy,
}

impl LuksOptions {
    /// Takes the options that `settings` names. The others keep their values.
    ///
    /// # Errors
    /// A value cannot be read.
    pub fn set(&mut self, settings: &mut Settings) -> Result<(), SettingError> {
        settings.read("passphrase-file", &mut self.passphrase_file, |text| {
            if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(Some(text.into())) }
        })?;
        settings.choice("trim", &mut self.trim, &TRIM_POLICIES)
    }
}

enum State {
    /// The header is read, and its key slots are tried.
    Opening(Opening),
    Open(Unlocked),
    Failed(OpenFailure),
}

/// A request of this layer's own, and the purpose of its completion.
enum Flight {
    /// A read of the header.
    Header { part: usize },
    /// A read of a range of the device in place of `id`.
    Read { id: RequestId, range: Range<u64>, destination: ReadDestination },
    /// A change of a range in place of `id`, over a store where the layer orders requests.
    Change { id: RequestId, range: Range<u64> },
    /// A query in place of `id`.
    Extents { id: RequestId },
    /// A part of `zeroings[zeroing]`.
    Zeroes { zeroing: usize },
}

/// A trim or a zeroing that is written in parts.
struct Zeroing {
    request: Request,
    /// The part that comes next begins here.
    next_bytes: u64,
    in_flight: usize,
    error: Option<BlockError>,
}

#[derive(Default)]
struct Counts {
    read_bytes: u64,
    written_bytes: u64,
    hole_bytes: u64,
    zeroed_bytes: u64,
    waited: u64,
}

/// Encrypts and decrypts; see the module's text.
pub struct Luks {
    options: LuksOptions,
    below: Option<Info>,
    state: State,
    flights: Slab<Flight>,
    zeroings: Slab<Zeroing>,
    /// Zeroings with parts that were not sent yet, in order.
    unsent: VecDeque<usize>,
    zeroes_in_flight: usize,
    /// The blocks of the store are smaller than a sector.
    is_ordered: bool,
    /// Requests that wait for one that overlaps, in their order.
    waiting: VecDeque<Request>,
    counts: Counts,
}

/// The range of a request.
fn range_of(request: &Request) -> Range<u64> {
    request.offset_bytes..request.end_bytes()
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Luks {
    /// A layer that opens the header with the passphrase that the options name.
    #[must_use]
    pub fn new(options: LuksOptions) -> Self {
        Self {
            state: State::Opening(Opening::new(options.passphrase_file.clone())),
            options,
            below: None,
            flights: Slab::new(),
            zeroings: Slab::new(),
            unsent: VecDeque::new(),
            zeroes_in_flight: 0,
            is_ordered: false,
            waiting: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// A layer for a header that is open already.
    #[must_use]
    pub fn unlocked(options: LuksOptions, unlocked: Unlocked) -> Self {
        Self { state: State::Open(unlocked), ..Self::new(options) }
    }

    fn take_step(&mut self, step: Step, flow: &mut Flow<'_>) {
        match step {
            Step::Wait => {}
            Step::Failed(failure) => self.state = State::Failed(failure),
            Step::Read(parts) => {
                for (part, offset_bytes, len_bytes) in parts {
                    let id = RequestId(0);
                    let request = Request::own(id, Op::Read, offset_bytes, len_bytes);
                    flow.pass_own(self.flights.insert(Flight::Header { part }), request);
                }
            }
        }
    }

    /// True if the request must wait for one that is in flight, or for one of the first `ahead`
    /// that wait.
    fn must_wait(&self, request: &Request, ahead: usize) -> bool {
        let (range, changes) = (range_of(request), request.op.changes_data());
        let in_flight = self.flights.iter().any(|(_, flight)| match flight {
            Flight::Read { range: other, .. } => changes && overlap(&range, other),
            Flight::Change { range: other, .. } => overlap(&range, other),
            Flight::Header { .. } | Flight::Extents { .. } | Flight::Zeroes { .. } => false,
        });
        in_flight
            || self.zeroings.iter().any(|(_, other)| overlap(&range, &range_of(&other.request)))
            || self.waiting.iter().take(ahead).any(|other| {
                (changes || other.op.changes_data()) && overlap(&range, &range_of(other))
            })
    }

    /// Starts the waiting requests that no longer have to wait.
    fn start_waiting(&mut self, flow: &mut Flow<'_>) {
        let mut at = 0;
        while at < self.waiting.len() {
            if self.must_wait(&self.waiting[at], at) {
                at += 1;
            } else if let Some(request) = self.waiting.remove(at) {
                self.start(request, flow);
            }
        }
    }

    /// Passes a change on, at its place in the store.
    fn pass_change(&mut self, mut request: Request, data_offset: u64, flow: &mut Flow<'_>) {
        let range = range_of(&request);
        request.offset_bytes += data_offset;
        if self.is_ordered {
            let flight = Flight::Change { id: request.id, range };
            flow.pass_own(self.flights.insert(flight), request);
        } else {
            flow.pass(request);
        }
    }

    /// Begins a request of an open device.
    fn start(&mut self, mut request: Request, flow: &mut Flow<'_>) {
        let State::Open(Unlocked { cipher, segment, .. }) = &self.state else {
            let error = BlockError::Io("the device is locked".to_owned());
            return flow.answer(Completion::of(&request, Err(error)));
        };
        let data_offset = segment.offset_bytes;
        match (request.op, self.options.trim) {
            (Op::Flush, _) => flow.pass(request),
            (Op::Read, _) => {
                let destination = std::mem::take(&mut request.destination);
                let flight =
                    Flight::Read { id: request.id, range: range_of(&request), destination };
                request.offset_bytes += data_offset;
                flow.pass_own(self.flights.insert(flight), request);
            }
            (Op::Extents, _) => {
                let flight = Flight::Extents { id: request.id };
                request.offset_bytes += data_offset;
                flow.pass_own(self.flights.insert(flight), request);
            }
            (Op::Write, _) => {
                self.counts.written_bytes += u64::from(request.len_bytes);
                request.data = encrypted(cipher, request.offset_bytes, &request.data);
                self.pass_change(request, data_offset, flow);
            }
            (Op::Trim, TrimPolicy::Pass) => self.pass_change(request, data_offset, flow),
            (Op::WriteZeroes, TrimPolicy::Pass) if !request.flags.no_hole => {
                self.pass_change(request, data_offset, flow);
            }
            (Op::Trim | Op::WriteZeroes, _) => self.begin_zeroing(request, flow),
        }
    }

    /// Begins a trim or a zeroing that is written in parts.
    fn begin_zeroing(&mut self, request: Request, flow: &mut Flow<'_>) {
        if request.flags.fast_zero {
            let error = BlockError::NotSupported("zeroes are encrypted and written");
            return flow.answer(Completion::of(&request, Err(error)));
        }
        if request.len_bytes == 0 {
            return flow.answer(Completion::of(&request, Ok(Payload::None)));
        }
        self.counts.zeroed_bytes += u64::from(request.len_bytes);
        let next_bytes = request.offset_bytes;
        let zeroing = Zeroing { request, next_bytes, in_flight: 0, error: None };
        let place = self.zeroings.insert(zeroing);
        self.unsent.push_back(place);
        self.send_zeroes(flow);
    }

    fn send_zeroes(&mut self, flow: &mut Flow<'_>) {
        let State::Open(Unlocked { cipher, segment, .. }) = &self.state else { return };
        while self.zeroes_in_flight < ZEROES_IN_FLIGHT
            && let Some(place) = self.unsent.front().copied()
        {
            let zeroing = &mut self.zeroings[place];
            let left = zeroing.request.end_bytes() - zeroing.next_bytes;
            let part = u32::try_from(left).unwrap_or(u32::MAX).min(ZEROES_BYTES);
            let data = encrypted(cipher, zeroing.next_bytes, &zeroes(part as usize));
            let RequestFlags { fua, .. } = zeroing.request.flags;
            let write = Request {
                op: Op::Write,
                offset_bytes: segment.offset_bytes + zeroing.next_bytes,
                len_bytes: part,
                flags: RequestFlags { fua, ..RequestFlags::default() },
                data,
                ..zeroing.request.clone()
            };
            zeroing.next_bytes += u64::from(part);
            zeroing.in_flight += 1;
            self.zeroes_in_flight += 1;
            if u64::from(part) == left {
                self.unsent.pop_front();
            }
            flow.pass_own(self.flights.insert(Flight::Zeroes { zeroing: place }), write);
        }
    }

    fn zeroes_done(&mut self, place: usize, completion: Completion, flow: &mut Flow<'_>) {
        let zeroing = &mut self.zeroings[place];
        zeroing.in_flight -= 1;
        self.zeroes_in_flight -= 1;
        if let Err(error) = completion.result {
            // The parts that were not sent stay as they are.
            self.unsent.retain(|other| *other != place);
            zeroing.error.get_or_insert(error);
        }
        let sent = zeroing.error.is_some() || zeroing.next_bytes == zeroing.request.end_bytes();
        if zeroing.in_flight == 0 && sent {
            let mut zeroing = self.zeroings.remove(place);
            zeroing.request.stamps.adopt_backend(&completion.stamps);
            let result = zeroing.error.map_or(Ok(Payload::None), Err);
            flow.answer(Completion::of(&zeroing.request, result));
        }
        self.send_zeroes(flow);
    }

    /// The decrypted bytes of a read, from this byte of the device on.
    fn decrypt(
        &mut self,
        offset_bytes: u64,
        pieces: &Pieces,
        destination: ReadDestination,
    ) -> Result<Pieces, BlockError> {
        let State::Open(Unlocked { cipher, .. }) = &self.state else {
            return Err(BlockError::Io("the device is locked".to_owned()));
        };
        let sector = cipher.sector_bytes() as u32;
        let len: u32 = pieces.iter().map(Piece::len_bytes).sum();
        if !len.is_multiple_of(sector) {
            return Err(BlockError::Io("a read gave no whole sectors".to_owned()));
        }
        let mut plain = Pieces::new();
        if pieces.iter().all(|piece| piece.len_bytes().is_multiple_of(sector)) {
            let (mut at, mut destination) = (offset_bytes, destination);
            for piece in pieces {
                match piece {
                    Piece::Zeroes(len) => {
                        self.counts.hole_bytes += u64::from(*len);
                        push_piece(&mut plain, Piece::Zeroes(*len));
                    }
                    Piece::Data(stored) => {
                        let counts = &mut self.counts;
                        let data = decrypted(cipher, at, stored, &mut destination, counts);
                        push_piece(&mut plain, Piece::Data(data));
                    }
                }
                at += u64::from(piece.len_bytes());
            }
        } else {
            let stored = to_bytes(pieces);
            let mut destination = destination;
            let data = decrypted(cipher, offset_bytes, &stored, &mut destination, &mut self.counts);
            push_piece(&mut plain, Piece::Data(data));
        }
        Ok(plain)
    }
}

/// Whole sectors, encrypted into new memory.
fn encrypted(cipher: &SectorCipher, offset_bytes: u64, plain: &[u8]) -> Bytes {
    let mut stored = AlignedBuf::stale(plain.len());
    cipher.encrypt(offset_bytes, plain, &mut stored);
    stored.freeze()
}

/// Whole sectors, decrypted into the destination if it has their length. Sectors that are stored as
/// zeroes stay zeroes.
fn decrypted(
    cipher: &SectorCipher,
    offset_bytes: u64,
    stored: &[u8],
    destination: &mut ReadDestination,
    counts: &mut Counts,
) -> Bytes {
    let len = u32::try_from(stored.len()).unwrap_or(u32::MAX);
    let mut plain = destination.take(len).unwrap_or_else(|| AlignedBuf::stale(stored.len()));
    let sector = cipher.sector_bytes();
    let mut at = offset_bytes;
    for (stored, plain) in stored.chunks_exact(sector).zip(plain.chunks_exact_mut(sector)) {
        if stored[..8] == [0; 8] && stored.iter().all(|byte| *byte == 0) {
            plain.fill(0);
            counts.hole_bytes += sector as u64;
        } else {
            cipher.decrypt(at, stored, plain);
            counts.read_bytes += sector as u64;
        }
        at += sector as u64;
    }
    plain.freeze()
}

/// The extents of whole sectors: a hole that begins or ends within a sector is cut to the sectors
/// inside.
fn whole_sectors(extents: &[Extent], sector: u64) -> Vec<Extent> {
    let mut result = Vec::with_capacity(extents.len());
    let (mut start, mut done) = (0, 0);
    for extent in extents {
        let end = start + extent.len_bytes;
        let (first, last) = (start.next_multiple_of(sector), end - end % sector);
        if extent.kind != ExtentKind::Data && first < last {
            push_extent(&mut result, first - done, ExtentKind::Data);
            push_extent(&mut result, last - first, extent.kind);
            done = last;
        }
        start = end;
    }
    push_extent(&mut result, start - done, ExtentKind::Data);
    result.truncate(EXTENTS_MAX);
    result
}

impl Layer for Luks {
    fn name(&self) -> &'static str {
        "luks"
    }

    fn info(&mut self, below: Info) -> Info {
        let mut info = below.clone();
        match &mut self.state {
            State::Open(Unlocked { cipher, segment, .. }) => {
                let sector = cipher.sector_bytes() as u64;
                let behind = below.size_bytes.saturating_sub(segment.offset_bytes);
                let size = segment.len_bytes.map_or(behind, |len| len.min(behind));
                info.block_bytes = below.block_bytes.max(sector as u32);
                info.size_bytes = size - size % u64::from(info.block_bytes);
                self.is_ordered = below.block_bytes < sector as u32;
            }
            State::Opening(opening) => {
                opening.note(&below);
                info.size_bytes = 0;
            }
            State::Failed(_) => info.size_bytes = 0,
        }
        self.below = Some(below);
        info
    }

    fn submit(&mut self, request: Request, flow: &mut Flow<'_>) {
        match &self.state {
            State::Open(_) => {}
            // Without a size, the device has nothing else.
            State::Opening(_) | State::Failed(_) => return flow.pass(request),
        }
        let orders = self.is_ordered && !matches!(request.op, Op::Flush | Op::Extents);
        if orders && self.must_wait(&request, self.waiting.len()) {
            self.counts.waited += 1;
            self.waiting.push_back(request);
        } else {
            self.start(request, flow);
        }
    }

    fn complete_own(&mut self, index: usize, mut completion: Completion, flow: &mut Flow<'_>) {
        match self.flights.remove(index) {
            Flight::Header { part } => {
                let State::Opening(opening) = &mut self.state else { return };
                let step = opening.read_done(part, completion.result);
                self.take_step(step, flow);
            }
            Flight::Change { id, .. } => {
                completion.id = id;
                flow.answer(completion);
            }
            Flight::Read { id, range, destination } => {
                completion.id = id;
                completion.result = completion.result.and_then(|payload| match payload {
                    Payload::Data(pieces) => {
                        self.decrypt(range.start, &pieces, destination).map(Payload::Data)
                    }
                    other => Ok(other),
                });
                flow.answer(completion);
            }
            Flight::Extents { id } => {
                completion.id = id;
                if let (Ok(Payload::Extents(extents)), State::Open(Unlocked { cipher, .. })) =
                    (&mut completion.result, &self.state)
                {
                    *extents = whole_sectors(extents, cipher.sector_bytes() as u64);
                }
                flow.answer(completion);
            }
            Flight::Zeroes { zeroing } => self.zeroes_done(zeroing, completion, flow),
        }
        if !self.waiting.is_empty() {
            self.start_waiting(flow);
        }
    }

    fn turn(&mut self, flow: &mut Flow<'_>) {
        if let State::Opening(opening) = &mut self.state {
            let step = opening.begin();
            self.take_step(step, flow);
        }
    }

    fn readiness(&self) -> Readiness {
        match &self.state {
            State::Opening(_) => Readiness::Opening,
            State::Open(_) => Readiness::Ready,
            State::Failed(failure) => Readiness::Failed(OpenFailure {
                reason: format!("luks: {failure}"),
                is_final: failure.is_final,
            }),
        }
    }

    fn work(&mut self) -> Option<Work> {
        match &mut self.state {
            State::Opening(opening) => opening.take_work(),
            State::Open(_) | State::Failed(_) => None,
        }
    }

    fn worked(&mut self, result: WorkResult) {
        let below = self.below.as_ref().map_or(1, |below| u64::from(below.block_bytes));
        self.state = match unlock::outcome(result) {
            Ok(unlocked) if unlocked.segment.offset_bytes.is_multiple_of(below) => {
                State::Open(unlocked)
            }
            Ok(_) => State::Failed(OpenFailure::lasting(format!(
                "the data begins within a block of {below} bytes"
            ))),
            Err(failure) => State::Failed(failure),
        };
    }

    fn waits_for(&self) -> Option<String> {
        let opening = matches!(self.state, State::Opening(_));
        opening.then(|| "the key of an encrypted device".to_owned())
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let file = self.options.passphrase_file.as_ref();
        let trim = TRIM_POLICIES.iter().find(|(_, policy)| *policy == self.options.trim);
        let mut options = vec![
            ("passphrase-file", file.map_or_else(String::new, |file| file.display().to_string())),
            ("trim", trim.map_or("", |(word, _)| word).to_owned()),
        ];
        if let State::Open(Unlocked { cipher, .. }) = &self.state {
            options.push(("cipher", cipher.name().to_owned()));
        }
        options
    }

    fn counters(&self) -> Vec<Counter> {
        let Counts { read_bytes, written_bytes, hole_bytes, zeroed_bytes, waited } = self.counts;
        vec![
            Counter { name: "decrypted_bytes", value: read_bytes },
            Counter { name: "encrypted_bytes", value: written_bytes },
            Counter { name: "hole_bytes", value: hole_bytes },
            Counter { name: "zeroed_bytes", value: zeroed_bytes },
            Counter { name: "waited", value: waited },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_cut_to_whole_sectors() {
        let extent = |len_bytes, kind| Extent { len_bytes, kind };
        use ExtentKind::{Data, Hole, Zero};
        let cut = |list: &[(u64, ExtentKind)]| -> Vec<(u64, ExtentKind)> {
            let list: Vec<Extent> = list.iter().map(|(len, kind)| extent(*len, *kind)).collect();
            let cut = whole_sectors(&list, 512);
            cut.iter().map(|extent| (extent.len_bytes, extent.kind)).collect()
        };
        assert_eq!(cut(&[(4096, Hole)]), [(4096, Hole)]);
        assert_eq!(cut(&[(100, Data), (924, Hole)]), [(512, Data), (512, Hole)]);
        assert_eq!(cut(&[(600, Hole), (424, Data)]), [(512, Hole), (512, Data)]);
        assert_eq!(cut(&[(100, Data), (500, Hole), (424, Data)]), [(1024, Data)]);
        assert_eq!(cut(&[(700, Hole), (836, Zero)]), [(512, Hole), (512, Data), (512, Zero)]);
        assert_eq!(cut(&[]), []);
    }
}
