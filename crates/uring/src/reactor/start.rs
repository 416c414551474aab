//! Starting and cancelling operations.

use std::io;

use bytes::Bytes;
use fieldstone_buf::AlignedBuf;

use super::{Flight, Holder, MAX_TRANSFER_BYTES, Queued, Reactor};
use crate::address::Endpoint;
use crate::event::{Event, Token};
use crate::file::File;
use crate::gather::Gather;
use crate::listener::Listener;
use crate::op::{Op, Target, Want};
use crate::socket::{Shutdown, Socket};

/// The change of a file's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Reserve it, so that later writes cannot fail with `ENOSPC`. Extends the file if necessary.
    Reserve,
    /// Give it back. The range reads as zeroes; the file's length stays.
    PunchHole,
    /// Make the range read as zeroes, keeping it reserved, without writing if possible.
    Zero,
}

impl Space {
    fn mode(self) -> i32 {
        match self {
            Space::Reserve => 0,
            Space::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Space::Zero => libc::FALLOC_FL_ZERO_RANGE,
        }
    }
}

/// Every operation that starts here gets exactly one [`Event`] with its token (an accept gets any
/// number), even if the reactor refuses it.
impl Reactor {
    /// Reads from `offset_bytes` until the buffer is full or the file ends. The event returns the
    /// buffer; the result is the number of valid bytes.
    pub fn read(&mut self, file: &File, offset_bytes: u64, buffer: AlignedBuf, token: Token) {
        let len = buffer.len();
        let op = Op::Read { file: file.clone(), offset_bytes, buffer, done_bytes: 0 };
        self.transfer(op, len, token);
    }

    /// Writes all parts, one after the other, from `offset_bytes` on. For short buffered writes,
    /// see also [`Reactor::write_inline`].
    pub fn write(&mut self, file: &File, offset_bytes: u64, parts: Vec<Bytes>, token: Token) {
        let (len, gather) = self.gather(parts);
        self.transfer(Op::Write { file: file.clone(), offset_bytes, gather }, len, token);
    }

    /// Makes completed writes stable. With `data_only`, leaves out metadata that a read of the data
    /// does not need (`fdatasync`).
    pub fn fsync(&mut self, file: &File, data_only: bool, token: Token) {
        self.start(Op::Sync { file: file.clone(), data_only }, token);
    }

    /// Reserves, frees or zeroes a range.
    pub fn fallocate(
        &mut self,
        file: &File,
        space: Space,
        offset_bytes: u64,
        len_bytes: u64,
        token: Token,
    ) {
        let mode = space.mode();
        self.start(Op::Space { file: file.clone(), mode, offset_bytes, len_bytes }, token);
    }

    /// Accepts connections until cancelled. Each connection is an event with a
    /// [`Payload::Socket`](crate::Payload::Socket) (a TCP socket has `TCP_NODELAY`). An error event
    /// ends the operation. After `EMFILE`, for example, start it again when descriptors are free.
    pub fn accept(&mut self, listener: &Listener, token: Token) {
        let multishot = self.multishot_accept;
        self.start(Op::Accept { listener: listener.clone(), multishot }, token);
    }

    /// Connects a new socket to an endpoint. The event brings the socket (a TCP socket has
    /// `TCP_NODELAY`).
    ///
    /// # Errors
    /// The system could not make a socket. Then no event follows.
    pub fn connect(&mut self, endpoint: &Endpoint, token: Token) -> io::Result<()> {
        let socket = Socket::unconnected(endpoint.family())?;
        if endpoint.family() != libc::AF_UNIX {
            socket.tune_tcp()?;
        }
        self.start(Op::Connect { socket, endpoint: Box::new(endpoint.clone()) }, token);
        Ok(())
    }

    /// Receives into a buffer. Zero bytes (or, with [`Want::All`], fewer than the whole length)
    /// mean that the peer ended the stream. The event returns the buffer.
    pub fn recv(&mut self, socket: &Socket, buffer: AlignedBuf, want: Want, token: Token) {
        let len = buffer.len();
        let target = Target::Owned(buffer);
        let op = Op::Recv { socket: socket.clone(), target, want, done_bytes: 0 };
        self.transfer(op, len, token);
    }

    /// Receives into the caller's memory, otherwise as [`Reactor::recv`].
    ///
    /// # Safety
    /// `len_bytes` bytes at `place` must stay valid for writes, and no other code may read or write
    /// them, until a turn has returned this operation's event or the reactor has been dropped.
    /// Cancelling or closing alone does not end the loan of the memory; the operation's event does.
    pub unsafe fn recv_raw(
        &mut self,
        socket: &Socket,
        place: *mut u8,
        len_bytes: u32,
        want: Want,
        token: Token,
    ) {
        let target = Target::Raw(place, len_bytes);
        let op = Op::Recv { socket: socket.clone(), target, want, done_bytes: 0 };
        self.transfer(op, len_bytes as usize, token);
    }

    /// Sends all parts, one after the other, behind earlier sends on the same socket. If the peer
    /// is gone, the result is an error, never a signal.
    pub fn send(&mut self, socket: &Socket, parts: Vec<Bytes>, token: Token) {
        let (len, gather) = self.gather(parts);
        self.transfer(Op::Send { socket: socket.clone(), gather, quiet: false }, len, token);
    }

    /// As [`Reactor::send`], but the event does not end a turn's wait by itself: it comes with the
    /// next other event, or after [`QUIET_MAX`](crate::QUIET_MAX). A send to a socket with room
    /// ends at once, and most callers have nothing to do then. A caller that has something calls
    /// [`Reactor::hear_sends`].
    pub fn send_quietly(&mut self, socket: &Socket, parts: Vec<Bytes>, token: Token) {
        let (len, gather) = self.gather(parts);
        self.transfer(Op::Send { socket: socket.clone(), gather, quiet: true }, len, token);
    }

    /// The next turn ends with the event of any send: something waits for it.
    pub fn hear_sends(&mut self) {
        self.hears_sends = true;
    }

    /// Ends a connection now: shuts it down and cancels its operations. Their events follow. The
    /// descriptor closes with the last of them, if no other handle exists.
    pub fn close(&mut self, socket: Socket) {
        // An error means that the peer was faster.
        let _ = socket.shutdown(Shutdown::Both);
        self.cancel_where(|flight| flight.op.is_on(&socket));
        drop(socket);
    }

    /// Cancels the operations with this token (not its timer) and returns their number. Their
    /// events still come: with `ECANCELED`, or with a result if they were faster. This visits every
    /// operation in flight, so it is not for the data path.
    pub fn cancel(&mut self, token: Token) -> usize {
        self.cancel_where(|flight| flight.token == token)
    }

    fn cancel_where(&mut self, matches: impl Fn(&Flight) -> bool) -> usize {
        let keys: Vec<usize> =
            self.flights.iter().filter(|(_, flight)| matches(flight)).map(|(key, _)| key).collect();
        for key in &keys {
            self.cancel_flight(*key);
        }
        keys.len()
    }

    fn cancel_flight(&mut self, key: usize) {
        let flight = &mut self.flights[key];
        if std::mem::replace(&mut flight.cancelled, true) {
            return;
        }
        match flight.holder {
            Holder::Kernel => {
                let user_data = user_data(key, flight.generation);
                self.enqueue(Queued::Cancel(user_data));
            }
            // `refill` reports it when it reaches the front of the backlog, which is within the
            // next system calls.
            Holder::Backlog => {}
            Holder::Lane => {
                let lane = flight.op.send_lane().expect("only sends wait in lanes");
                self.lanes[lane].retain(|waiting| *waiting != key);
                let flight = self.flights.remove(key);
                self.report(flight, Err(io::Error::from_raw_os_error(libc::ECANCELED)));
            }
        }
    }

    pub(super) fn gather(&mut self, parts: Vec<Bytes>) -> (usize, Gather) {
        let len = parts.iter().map(Bytes::len).fold(0usize, usize::saturating_add);
        // `transfer` refuses a length that is too large before any code uses the total.
        let total_bytes = u32::try_from(len).unwrap_or(u32::MAX);
        (len, Gather::new(parts, total_bytes, &mut self.lists))
    }

    /// Starts an operation that moves `len` bytes.
    pub(super) fn transfer(&mut self, op: Op, len: usize, token: Token) {
        if len == 0 {
            self.answer(op, token, Ok(0));
        } else if len > MAX_TRANSFER_BYTES {
            self.answer(op, token, Err(io::Error::from_raw_os_error(libc::EINVAL)));
        } else {
            self.start(op, token);
        }
    }

    fn start(&mut self, op: Op, token: Token) {
        if self.flights.len() >= self.max_operations {
            self.answer(op, token, Err(io::Error::from_raw_os_error(libc::ENOBUFS)));
            return;
        }
        self.generation = self.generation.wrapping_add(1);
        let lane = op.send_lane();
        let key = self.flights.insert(Flight {
            op,
            token,
            generation: self.generation,
            holder: Holder::Lane,
            cancelled: false,
            repeats: 0,
        });
        if let Some(lane) = lane {
            if self.lanes.len() <= lane {
                self.lanes.resize_with(lane + 1, Default::default);
            }
            self.lanes[lane].push_back(key);
            if self.lanes[lane].len() > 1 {
                self.hears_sends = true;
                return;
            }
        }
        self.enqueue(Queued::Step(key));
    }

    /// Answers an operation that never reached the kernel.
    pub(super) fn answer(&mut self, op: Op, token: Token, result: io::Result<u32>) {
        let payload = op.finish(&result, &mut self.lists);
        self.local.push_back(Event { token, result, payload });
    }

    /// Answers a flight that left the slab before the kernel saw it.
    pub(super) fn report(&mut self, flight: Flight, result: io::Result<u32>) {
        self.answer(flight.op, flight.token, result);
    }
}

/// The kernel's name for a flight.
pub(super) fn user_data(key: usize, generation: u32) -> u64 {
    let key = u32::try_from(key).expect("fewer than 2^32 operations");
    u64::from(generation) << 32 | u64::from(key)
}
