//! Moves data between an image and this process: many requests in flight, answered in order.

use std::collections::VecDeque;

use anyhow::anyhow;
use bytes::Bytes;
use fieldstone_block::{
    Backend, Completion, Nanos, Op, Payload, QueueId, ReadDestination, Request, RequestFlags,
    RequestId, Stamps,
};
use fieldstone_host::ceph::Session;
use fieldstone_rbd::{Image, ImageSpec, Phase};

/// The longest read or write.
pub(super) const CHUNK_BYTES: u64 = 4 << 20;
/// Bytes of reads and writes in flight.
const BYTES_AT_ONCE: u64 = 64 << 20;
/// Reads and writes in flight.
const REQUESTS_AT_ONCE: usize = 256;

/// An image that a command has open.
pub(super) struct OpenImage<'s> {
    session: &'s mut Session,
    image: Image,
    path: String,
}

/// A read or write.
pub(super) struct Piece {
    /// Where it begins.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// What is written; empty for a read.
    pub data: Bytes,
}

/// Says what requests wait for, once for each reason.
fn teller() -> impl FnMut(&str) {
    let mut last = String::new();
    move |waits_for| {
        if !waits_for.is_empty() && waits_for != last {
            eprint_line!("fieldstone: {waits_for}");
            waits_for.clone_into(&mut last);
        }
    }
}

impl<'s> OpenImage<'s> {
    /// Opens an image.
    ///
    /// # Errors
    /// There is no such image or snapshot, or it cannot be opened.
    pub(super) fn open(session: &'s mut Session, spec: ImageSpec) -> anyhow::Result<Self> {
        let path = spec.path();
        let mut image = Image::open(session.cluster(), spec);
        let ended = |image: &mut Image, _| match image.phase() {
            Phase::Open => Some(Ok(())),
            Phase::Failed(error) => Some(Err(error)),
            _ => None,
        };
        session.drive(&mut image, ended, teller()).map_err(|error| anyhow!("{error}"))??;
        Ok(Self { session, image, path })
    }

    /// The size.
    pub(super) fn size_bytes(&self) -> u64 {
        self.image.info().size_bytes
    }

    /// Sends the requests that `next` gives, many at the same time, and hands the answers to
    /// `done`, in the order of the requests.
    ///
    /// # Errors
    /// Those of `next`, `done` and the requests. Then requests may be in flight.
    pub(super) fn pump(
        &mut self,
        op: Op,
        next: impl FnMut() -> anyhow::Result<Option<Piece>>,
        done: impl FnMut(&Piece, Payload) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut window = Window {
            op,
            next,
            done,
            path: self.path.clone(),
            first: 0,
            bytes: 0,
            is_at_end: false,
            slots: VecDeque::new(),
            completions: Vec::new(),
        };
        let step = |image: &mut Image, now| window.step(image, now).transpose();
        self.session.drive(&mut self.image, step, teller()).map_err(|error| anyhow!("{error}"))?
    }

    /// Waits until what was written is stable, and closes the image.
    ///
    /// # Errors
    /// The image has stopped.
    pub(super) fn close(mut self) -> anyhow::Result<()> {
        if !self.image.spec().is_read_only() {
            let mut flush = Some(Piece { offset_bytes: 0, len_bytes: 0, data: Bytes::new() });
            self.pump(Op::Flush, || Ok(flush.take()), |_, _| Ok(()))?;
        }
        self.image.close();
        let ended = |image: &mut Image, _| match image.phase() {
            Phase::Closed => Some(Ok(())),
            Phase::Failed(error) => Some(Err(error)),
            _ => None,
        };
        let ended = self.session.drive(&mut self.image, ended, teller());
        ended.map_err(|error| anyhow!("{error}"))??;
        Ok(())
    }
}

/// Requests in flight, and what goes in and comes out.
struct Window<N, D> {
    op: Op,
    next: N,
    done: D,
    path: String,
    /// The number of the request at the front.
    first: u64,
    /// The lengths of all requests.
    bytes: u64,
    is_at_end: bool,
    slots: VecDeque<(Piece, Option<Payload>)>,
    completions: Vec<Completion>,
}

impl<N, D> Window<N, D>
where
    N: FnMut() -> anyhow::Result<Option<Piece>>,
    D: FnMut(&Piece, Payload) -> anyhow::Result<()>,
{
    /// Takes answers and sends requests, until that needs answers of the cluster. `Some` at the
    /// end.
    fn step(&mut self, image: &mut Image, now: Nanos) -> anyhow::Result<Option<()>> {
        loop {
            let sent = self.send(image, now)?;
            image.poll(now, &mut self.completions);
            if self.completions.is_empty() {
                if self.is_at_end && self.slots.is_empty() {
                    return Ok(Some(()));
                }
                if !sent {
                    return Ok(None);
                }
            }
            self.take()?;
        }
    }

    fn send(&mut self, image: &mut Image, now: Nanos) -> anyhow::Result<bool> {
        let mut sent = false;
        while !self.is_at_end && self.slots.len() < REQUESTS_AT_ONCE && self.bytes < BYTES_AT_ONCE {
            let Some(piece) = (self.next)()? else {
                self.is_at_end = true;
                break;
            };
            let request = Request {
                id: RequestId(self.first + self.slots.len() as u64),
                op: self.op,
                offset_bytes: piece.offset_bytes,
                len_bytes: u32::try_from(piece.len_bytes)?,
                flags: RequestFlags::default(),
                data: piece.data.clone(),
                destination: ReadDestination::default(),
                queue: QueueId::default(),
                stamps: Stamps::default(),
            };
            self.bytes += piece.len_bytes;
            self.slots.push_back((piece, None));
            image.submit(request, now);
            sent = true;
        }
        Ok(sent)
    }

    fn take(&mut self) -> anyhow::Result<()> {
        for completion in self.completions.drain(..) {
            let index = completion.id.0.checked_sub(self.first).map(|index| index as usize);
            let Some((piece, payload)) = index.and_then(|index| self.slots.get_mut(index)) else {
                continue;
            };
            let result = completion.result.map_err(|error| {
                let at = fieldstone_units::size(piece.offset_bytes);
                anyhow!("{}: a request at {at} failed: {error}", self.path)
            });
            *payload = Some(result?);
        }
        while let Some((_, Some(_))) = self.slots.front() {
            if let Some((piece, Some(payload))) = self.slots.pop_front() {
                self.first += 1;
                self.bytes -= piece.len_bytes;
                (self.done)(&piece, payload)?;
            }
        }
        Ok(())
    }
}

/// Cuts a range into reads.
pub(super) fn reads_of(offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = Piece> {
    let end = offset_bytes + len_bytes;
    let mut at = offset_bytes;
    std::iter::from_fn(move || {
        // Reads end where chunks of the image do, so that most stay within one object.
        let len_bytes = (CHUNK_BYTES - at % CHUNK_BYTES).min(end - at);
        let piece = Piece { offset_bytes: at, len_bytes, data: Bytes::new() };
        at += len_bytes;
        (len_bytes > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cover_a_range_and_end_at_chunks() {
        let parts: Vec<(u64, u64)> = reads_of(CHUNK_BYTES - 10, CHUNK_BYTES + 30)
            .map(|piece| (piece.offset_bytes, piece.len_bytes))
            .collect();
        let expected = [(CHUNK_BYTES - 10, 10), (CHUNK_BYTES, CHUNK_BYTES), (2 * CHUNK_BYTES, 20)];
        assert_eq!(parts, expected);
        assert_eq!(reads_of(5, 0).count(), 0);
    }
}
