//! One operation in flight: its memory, its entry for the kernel, and the meaning of a result.
//!
//! An operation is a small state machine. [`Op::entry`] describes the next step for the kernel.
//! [`Op::advance`] takes the step's result and says whether the operation is done or goes on. So
//! short reads, writes and sends continue without the caller's help. All memory that the kernel
//! dereferences (buffers, vectors, headers, addresses) is on the heap and belongs to the operation.
//! So moving an `Op` moves nothing that the kernel can see.

use std::io;

use fieldstone_buf::AlignedBuf;
use io_uring::{opcode, squeue, types};

use crate::address::Endpoint;
use crate::event::Payload;
use crate::file::{Caching, File};
use crate::gather::{Gather, ListPool, Window};
use crate::listener::Listener;
use crate::socket::{Shutdown, Socket};

/// When a receive is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// As soon as any bytes arrived.
    Any,
    /// When the whole length arrived, or the stream ended.
    All,
}

/// The memory for received bytes.
pub(crate) enum Target {
    Owned(AlignedBuf),
    /// Memory that the caller of `recv_raw` keeps valid.
    Raw(*mut u8, u32),
}

impl Target {
    fn place(&mut self) -> (*mut u8, u32) {
        match self {
            Target::Owned(buffer) => (buffer.as_mut_ptr(), buffer.len() as u32),
            Target::Raw(place, len_bytes) => (*place, *len_bytes),
        }
    }
}

/// An operation in flight.
pub(crate) enum Op {
    Read { file: File, offset_bytes: u64, buffer: AlignedBuf, done_bytes: u32 },
    Write { file: File, offset_bytes: u64, gather: Gather },
    Sync { file: File, data_only: bool },
    Space { file: File, mode: i32, offset_bytes: u64, len_bytes: u64 },
    Accept { listener: Listener, multishot: bool },
    Recv { socket: Socket, target: Target, want: Want, done_bytes: u32 },
    Send { socket: Socket, gather: Gather, quiet: bool },
    Connect { socket: Socket, endpoint: Box<Endpoint> },
}

/// The next action after a result from the kernel.
pub(crate) enum Step {
    /// Give the next step to the kernel.
    Again,
    /// The operation is over.
    Done(io::Result<u32>),
}

/// `O_DIRECT` moves whole sectors. A count that is no multiple of this means the end of the file.
const SECTOR_BYTES: u32 = 512;

impl Op {
    /// The next step, without user data. Its pointers stay valid until [`Op::advance`] is called
    /// or the operation is dropped.
    pub(crate) fn entry(&mut self) -> squeue::Entry {
        match self {
            Op::Read { file, offset_bytes, buffer, done_bytes } => {
                let rest = &mut buffer[*done_bytes as usize..];
                let fd = types::Fd(file.raw());
                opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32)
                    .offset(*offset_bytes + u64::from(*done_bytes))
                    .build()
            }
            Op::Write { file, offset_bytes, gather } => {
                let at = *offset_bytes + u64::from(gather.done_bytes());
                let fd = types::Fd(file.raw());
                match gather.window() {
                    Window::Run(from, len) => opcode::Write::new(fd, from, len).offset(at).build(),
                    Window::Vectors(list, len) => {
                        opcode::Writev::new(fd, list, len).offset(at).build()
                    }
                }
            }
            Op::Sync { file, data_only } => {
                let flags = if *data_only {
                    types::FsyncFlags::DATASYNC
                } else {
                    types::FsyncFlags::empty()
                };
                opcode::Fsync::new(types::Fd(file.raw())).flags(flags).build()
            }
            Op::Space { file, mode, offset_bytes, len_bytes } => {
                opcode::Fallocate::new(types::Fd(file.raw()), *len_bytes)
                    .offset(*offset_bytes)
                    .mode(*mode)
                    .build()
            }
            Op::Accept { listener, multishot } => {
                let fd = types::Fd(listener.raw());
                if *multishot {
                    opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build()
                } else {
                    opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                        .flags(libc::SOCK_CLOEXEC)
                        .build()
                }
            }
            Op::Recv { socket, target, want, done_bytes } => {
                let (start, len_bytes) = target.place();
                // The place after the bytes that have already arrived; never past the end.
                let place = start.wrapping_add(*done_bytes as usize);
                let flags = if *want == Want::All { libc::MSG_WAITALL } else { 0 };
                opcode::Recv::new(types::Fd(socket.raw()), place, len_bytes - *done_bytes)
                    .flags(flags)
                    .build()
            }
            Op::Send { socket, gather, quiet } => send_entry(socket, gather, *quiet),
            Op::Connect { socket, endpoint } => {
                let (address, len_bytes) = endpoint.as_raw();
                opcode::Connect::new(types::Fd(socket.raw()), address, len_bytes).build()
            }
        }
    }

    /// Takes the kernel's result of the last step. Not for accepts: they may have many results.
    pub(crate) fn advance(&mut self, result: i32) -> Step {
        let count = match u32::try_from(result) {
            Ok(count) => count,
            Err(_) => return Step::Done(Err(io::Error::from_raw_os_error(-result))),
        };
        match self {
            Op::Read { file, buffer, done_bytes, .. } => {
                *done_bytes += count;
                let sector_cut =
                    file.caching() == Caching::Direct && !count.is_multiple_of(SECTOR_BYTES);
                if count == 0 || sector_cut || *done_bytes as usize == buffer.len() {
                    Step::Done(Ok(*done_bytes))
                } else {
                    Step::Again
                }
            }
            Op::Write { gather, .. } | Op::Send { gather, .. } => {
                gather.advance(count);
                if gather.is_done() {
                    Step::Done(Ok(gather.done_bytes()))
                } else if count == 0 {
                    Step::Done(Err(io::ErrorKind::WriteZero.into()))
                } else {
                    Step::Again
                }
            }
            Op::Recv { target, want, done_bytes, .. } => {
                *done_bytes += count;
                let (_, len_bytes) = target.place();
                if count == 0 || *want == Want::Any || *done_bytes == len_bytes {
                    Step::Done(Ok(*done_bytes))
                } else {
                    Step::Again
                }
            }
            Op::Sync { .. } | Op::Space { .. } | Op::Connect { .. } | Op::Accept { .. } => {
                Step::Done(Ok(0))
            }
        }
    }

    /// True if a step that failed with `EINTR` or `EAGAIN` can be repeated.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self, Op::Connect { .. } | Op::Accept { .. })
    }

    /// The socket whose sends must follow each other, if this operation is a send.
    pub(crate) fn send_lane(&self) -> Option<usize> {
        match self {
            Op::Send { socket, .. } => {
                Some(usize::try_from(socket.raw()).expect("open descriptors are not negative"))
            }
            _ => None,
        }
    }

    /// A quiet send found too little room: from now on its result ends a wait.
    pub(crate) fn end_quiet(&mut self) {
        if let Op::Send { quiet, .. } = self {
            *quiet = false;
        }
    }

    /// True for a send whose result alone ends no wait.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, Op::Send { quiet: true, .. })
    }

    /// True if the kernel may write to memory that the caller owns.
    pub(crate) fn borrows_memory(&self) -> bool {
        matches!(self, Op::Recv { target: Target::Raw(..), .. })
    }

    /// True if this operation is on `socket`.
    pub(crate) fn is_on(&self, socket: &Socket) -> bool {
        match self {
            Op::Recv { socket: own, .. }
            | Op::Send { socket: own, .. }
            | Op::Connect { socket: own, .. } => own.raw() == socket.raw(),
            _ => false,
        }
    }

    /// Takes the finished operation apart: recycles its list and returns its memory.
    pub(crate) fn finish(self, result: &io::Result<u32>, pool: &mut ListPool) -> Payload {
        match self {
            Op::Read { buffer, .. } | Op::Recv { target: Target::Owned(buffer), .. } => {
                Payload::Buffer(buffer)
            }
            Op::Write { gather, .. } => Payload::Parts(gather.dissolve(pool)),
            Op::Send { socket, gather, .. } => {
                if result.is_err() && gather.done_bytes() > 0 {
                    // A part of a message is on the wire. No other message may follow it as if it
                    // were whole. An error means that the connection is already gone.
                    let _ = socket.shutdown(Shutdown::Write);
                }
                Payload::Parts(gather.dissolve(pool))
            }
            Op::Connect { socket, .. } if result.is_ok() => Payload::Socket(socket),
            Op::Connect { .. }
            | Op::Recv { target: Target::Raw(..), .. }
            | Op::Sync { .. }
            | Op::Space { .. }
            | Op::Accept { .. } => Payload::None,
        }
    }
}

fn send_entry(socket: &Socket, gather: &mut Gather, quiet: bool) -> squeue::Entry {
    let flags = libc::MSG_NOSIGNAL
        | match quiet {
            // The result comes within the call that submits the send, with or without room.
            true => libc::MSG_DONTWAIT,
            // Newer kernels themselves continue after a short send.
            false => libc::MSG_WAITALL,
        };
    let fd = types::Fd(socket.raw());
    match gather.window() {
        Window::Run(from, len) => opcode::Send::new(fd, from, len).flags(flags).build(),
        Window::Vectors(..) => {
            opcode::SendMsg::new(fd, gather.header()).flags(flags.cast_unsigned()).build()
        }
    }
}
