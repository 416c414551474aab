//! A node's disk: carries out [`DiskOp`]s on the files of the node's folder.
//!
//! Reads, writes, syncs and discards go to the ring, except the short writes that the core makes
//! itself ([`INLINE_BYTES`]). Creating, removing and listing files may block in the kernel for any
//! time. So a *thread for blocking calls* does this, and posts the result to the core's mailbox.
//! Each node has its own such thread, so a folder that hangs delays only the calls of its own node.
//! The thread makes a few calls every two seconds and sleeps otherwise, and a process has few
//! nodes.
//!
//! The core itself opens a file at its first use, and may have to wait for the folder then. The
//! file stays open. Nearly every request needs `slots` or `data`, so the disk finds these two
//! without a search.
//!
//! With `O_DIRECT` the kernel needs memory on block boundaries. Payloads from a socket and slices
//! of larger buffers may lie elsewhere. The disk copies a write that has such a part, and no other
//! write.
//!
//! Each opening and each loss of the node's folder begins a new *era* of its disk. The disk drops
//! results of an earlier era, whose operations were still in flight.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc;

use bytes::Bytes;
use fieldstone_block::Nanos;
use fieldstone_buf::{AlignedBuf, is_aligned};
use fieldstone_node::{DiskError, DiskId, DiskOp, DiskOutput, FileId};
use slab::Slab;

use crate::folder::{self, Dir, Identity, NodeFolder};
use crate::message::{LocalNodeId, Message};
use crate::pace::{Group, Pace};
use crate::token::{Kind, token};
use fieldstone_uring::{
    Caching, Creation, Event, File, FileOptions, Inlined, Payload, Reactor, Sender, Space, Unsure,
    start_thread,
};

/// The core makes buffered writes up to this length itself, while the disk keeps [`Pace`].
const INLINE_BYTES: usize = 256 << 10;

/// A call that may block.
#[derive(Debug)]
pub enum BlockingCall {
    /// List the files.
    List(Dir),
    /// Create a file.
    Create {
        /// The folder.
        dir: Dir,
        /// The file.
        file: FileId,
        /// Its length in bytes.
        len_bytes: u64,
        /// Whether to reserve its space on the disk.
        allocate: bool,
    },
    /// Remove a file.
    Remove(Dir, FileId),
    /// Check whether the node's folder is still the one that was opened, and how much room it has.
    Check(PathBuf, Identity),
    /// Open the node's folder.
    Open(Box<folder::Opening>),
    /// Wait for an opening of the node's folder that is already under way.
    Await(folder::Attempt),
}

/// A call, with its node and the place for its result.
#[derive(Debug)]
pub struct BlockingRequest {
    /// The node.
    pub node: LocalNodeId,
    /// The era of its disk.
    pub era: u32,
    /// The operation's place in the table; `u32::MAX` for calls without one.
    pub index: u32,
    /// The call.
    pub call: BlockingCall,
}

/// A call's result.
#[derive(Debug)]
pub struct BlockingDone {
    /// The node.
    pub node: LocalNodeId,
    /// The era of its disk.
    pub era: u32,
    /// The operation's place in the table; `u32::MAX` for calls without one.
    pub index: u32,
    /// The result.
    pub outcome: BlockingOutput,
}

/// The result of a call.
#[derive(Debug)]
pub enum BlockingOutput {
    /// The result of a list, creation or removal.
    Disk(Result<DiskOutput, DiskError>),
    /// The result of a check.
    Checked {
        /// The folder is the one that was opened.
        same: bool,
        /// See [`folder::room_bytes`]; `None` if it is not known.
        room_bytes: Option<u64>,
    },
    /// The result of an opening. The error is text for people.
    Opened(Result<Box<NodeFolder>, String>),
}

/// Starts a node's thread for blocking calls. The thread posts its results to `results`. It ends
/// when the returned sender is dropped and the present call is done. No thread waits for this end,
/// because a folder may hang.
///
/// # Errors
/// The system cannot start a thread.
pub fn start_blocking_thread(
    node: LocalNodeId,
    results: Sender<Message>,
) -> std::io::Result<mpsc::Sender<BlockingRequest>> {
    let (tickets, queue) = mpsc::channel::<BlockingRequest>();
    start_thread(format!("blocking {node}"), move || {
        for ticket in queue {
            let BlockingRequest { node, era, index, call } = ticket;
            let outcome = carry_out(call);
            let mut message =
                Message::Blocking(Box::new(BlockingDone { node, era, index, outcome }));
            // A full mailbox empties within a turn. A closed one means that the core has ended.
            while let Err(fieldstone_uring::SendError::Full(back)) = results.send(message) {
                message = back;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    })?;
    Ok(tickets)
}

fn carry_out(call: BlockingCall) -> BlockingOutput {
    match call {
        BlockingCall::List(dir) => BlockingOutput::Disk(
            folder::list(&dir.path()).map(DiskOutput::Files).map_err(|error| disk_error(&error)),
        ),
        BlockingCall::Create { dir, file, len_bytes, allocate } => BlockingOutput::Disk(
            folder::create_file(&dir.path().join(folder::file_name(file)), len_bytes, allocate)
                .map(|()| DiskOutput::Done)
                .map_err(|error| disk_error(&error)),
        ),
        BlockingCall::Remove(dir, file) => BlockingOutput::Disk(
            folder::remove_file(&dir.path().join(folder::file_name(file)))
                .map(|()| DiskOutput::Done)
                .map_err(|e| disk_error(&e)),
        ),
        BlockingCall::Check(path, identity) => BlockingOutput::Checked {
            same: identity.is_at(&path),
            room_bytes: folder::room_bytes(&path).ok(),
        },
        BlockingCall::Open(opening) => {
            BlockingOutput::Opened(opening.run().map(Box::new).map_err(|e| e.to_string()))
        }
        BlockingCall::Await(attempt) => {
            BlockingOutput::Opened(attempt.wait().map(Box::new).map_err(|e| e.to_string()))
        }
    }
}

fn disk_error(error: &std::io::Error) -> DiskError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => DiskError::NoSpace,
        _ if error.kind() == std::io::ErrorKind::StorageFull => DiskError::NoSpace,
        _ if error.kind() == std::io::ErrorKind::NotFound => DiskError::NotFound,
        _ => DiskError::Io(error.to_string()),
    }
}

/// The kind of an operation, which says what its result is.
#[derive(Clone, Copy, Debug)]
enum OpKind {
    Read,
    Other,
}

/// How an operation is dispatched: on the ring, or otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dispatch {
    Ring,
    Other,
}

#[derive(Debug)]
struct InFlight {
    id: DiskId,
    kind: OpKind,
    era: u32,
    /// The pace group of an operation on the ring; `None` for other operations.
    group: Option<Group>,
}

/// The disk of one node.
#[derive(Debug)]
pub struct Disk {
    node: LocalNodeId,
    /// The folder, if it is open.
    dir: Option<Dir>,
    caching: Caching,
    era: u32,
    data: Option<File>,
    slots: Option<File>,
    others: Vec<(FileId, File)>,
    in_flight: Slab<InFlight>,
    pace: Pace,
    blocking: mpsc::Sender<BlockingRequest>,
    /// Results that were known at once.
    ready: Vec<(DiskId, Result<DiskOutput, DiskError>)>,
}

impl Disk {
    /// The disk of `node`, whose folder is not open yet.
    #[must_use]
    pub fn new(
        node: LocalNodeId,
        caching: Caching,
        blocking: mpsc::Sender<BlockingRequest>,
    ) -> Self {
        Self {
            node,
            dir: None,
            caching,
            era: 0,
            data: None,
            slots: None,
            others: Vec::new(),
            in_flight: Slab::new(),
            pace: Pace::default(),
            blocking,
            ready: Vec::new(),
        }
    }

    /// Forgets open files and pending results, because the folder vanished or was opened again as
    /// `dir`. Returns the new era.
    pub fn next_era(&mut self, dir: Option<Dir>) -> u32 {
        self.dir = dir;
        self.data = None;
        self.slots = None;
        self.others.clear();
        self.ready.clear();
        // The folder may now be on another disk.
        self.pace = Pace::default();
        self.era += 1;
        self.era
    }

    /// The present era.
    #[must_use]
    pub fn era(&self) -> u32 {
        self.era
    }

    /// True if no operation is in flight and no result waits.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && self.ready.is_empty()
    }

    /// Takes a result that was known at once.
    pub fn next_ready(&mut self) -> Option<(DiskId, Result<DiskOutput, DiskError>)> {
        self.ready.pop()
    }

    /// Gives the thread for blocking calls a call for this node.
    pub fn call_blocking(&self, index: u32, call: BlockingCall) {
        let ticket = BlockingRequest { node: self.node, era: self.era, index, call };
        // The thread lives as long as this sender does.
        if self.blocking.send(ticket).is_err() {
            tracing::error!(node = %self.node, "the thread for blocking calls has ended");
        }
    }

    /// Starts an operation.
    pub fn start(&mut self, id: DiskId, op: DiskOp, reactor: &mut Reactor) {
        let kind = if matches!(op, DiskOp::Read { .. }) { OpKind::Read } else { OpKind::Other };
        let era = self.era;
        let index = self.in_flight.insert(InFlight { id, kind, era, group: None });
        let index32 = u32::try_from(index).expect("a node's request table bounds its operations");
        match self.dispatch(index32, op, reactor) {
            Ok(Dispatch::Ring) => {
                self.in_flight[index].group = Some(self.pace.begin(reactor.now()));
            }
            Ok(Dispatch::Other) => {}
            Err(error) => {
                self.in_flight.remove(index);
                self.ready.push((id, Err(disk_error(&error))));
            }
        }
    }

    fn dispatch(
        &mut self,
        index: u32,
        op: DiskOp,
        reactor: &mut Reactor,
    ) -> std::io::Result<Dispatch> {
        let token = token(Kind::Disk, self.node.number, index);
        match op {
            DiskOp::Read { file, offset_bytes, len_bytes } => {
                let buffer = AlignedBuf::stale(len_bytes as usize);
                reactor.read(self.file(file)?, offset_bytes, buffer, token);
            }
            DiskOp::Write { file, offset_bytes, data } => {
                let data = self.writable(data);
                let short = data.iter().map(Bytes::len).sum::<usize>() <= INLINE_BYTES;
                let inline = self.caching == Caching::Buffered && short;
                let kept = self.pace.is_kept(reactor.now());
                let file = self.file(file)?;
                if !inline {
                    reactor.write(file, offset_bytes, data, token);
                    return Ok(Dispatch::Ring);
                }
                let unsure = if kept { Unsure::Block } else { Unsure::Ring };
                match reactor.write_inline(file, offset_bytes, data, unsure, token) {
                    Inlined::AtOnce => {}
                    Inlined::Blocking(took) => self.pace.blocked(took, reactor.now()),
                    Inlined::Ring => return Ok(Dispatch::Ring),
                }
                return Ok(Dispatch::Other);
            }
            DiskOp::Sync { file } => reactor.fsync(self.file(file)?, true, token),
            DiskOp::Discard { file, offset_bytes, len_bytes } => {
                let file = self.file(file)?;
                reactor.fallocate(file, Space::PunchHole, offset_bytes, len_bytes, token);
            }
            DiskOp::List => {
                self.call_blocking(index, BlockingCall::List(self.dir()?));
                return Ok(Dispatch::Other);
            }
            DiskOp::Create { file, len_bytes, allocate } => {
                let dir = self.dir()?;
                self.call_blocking(index, BlockingCall::Create { dir, file, len_bytes, allocate });
                return Ok(Dispatch::Other);
            }
            DiskOp::Remove { file } => {
                self.others.retain(|(other, _)| *other != file);
                self.call_blocking(index, BlockingCall::Remove(self.dir()?, file));
                return Ok(Dispatch::Other);
            }
        }
        Ok(Dispatch::Ring)
    }

    /// The data in aligned memory. With `O_DIRECT` and unaligned data, this is one aligned copy.
    fn writable(&self, data: Vec<Bytes>) -> Vec<Bytes> {
        if self.caching == Caching::Buffered || data.iter().all(|part| is_aligned(part)) {
            return data;
        }
        vec![AlignedBuf::concat(data.iter().map(AsRef::as_ref)).freeze()]
    }

    fn dir(&self) -> std::io::Result<Dir> {
        self.dir.clone().ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    fn file(&mut self, id: FileId) -> std::io::Result<&File> {
        let place = match id {
            FileId::Data => &mut self.data,
            FileId::Slots => &mut self.slots,
            other => {
                let known = self.others.iter().position(|(file, _)| *file == other);
                let at = match known {
                    Some(at) => at,
                    None => {
                        let file = open(&self.dir()?, other, self.caching)?;
                        self.others.push((other, file));
                        self.others.len() - 1
                    }
                };
                return Ok(&self.others[at].1);
            }
        };
        match (place, &self.dir) {
            (Some(file), _) => Ok(file),
            (place @ None, Some(dir)) => Ok(place.insert(open(dir, id, self.caching)?)),
            (None, None) => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    /// Takes the end of an operation on the ring. `None` if the operation belongs to an earlier
    /// era.
    pub fn finished(
        &mut self,
        index: u32,
        event: Event,
        now: Nanos,
    ) -> Option<(DiskId, Result<DiskOutput, DiskError>)> {
        let InFlight { id, kind, era, group } = self.in_flight.try_remove(index as usize)?;
        if era != self.era {
            return None;
        }
        if let Some(group) = group {
            self.pace.end(group, now);
        }
        let result = match (event.result, kind, event.payload) {
            (Err(error), _, _) => Err(disk_error(&error)),
            (Ok(read_bytes), OpKind::Read, Payload::Buffer(mut buffer)) => {
                // The bytes after the end of the file are zeroes.
                buffer[read_bytes as usize..].fill(0);
                Ok(DiskOutput::Data(buffer.freeze()))
            }
            (Ok(_), _, _) => Ok(DiskOutput::Done),
        };
        Some((id, result))
    }

    /// Takes the result of a call with a place. `None` if the call belongs to an earlier era.
    pub fn blocking_finished(
        &mut self,
        index: u32,
        result: Result<DiskOutput, DiskError>,
    ) -> Option<(DiskId, Result<DiskOutput, DiskError>)> {
        let InFlight { id, era, .. } = self.in_flight.try_remove(index as usize)?;
        (era == self.era).then_some((id, result))
    }
}

fn open(dir: &Dir, id: FileId, caching: Caching) -> std::io::Result<File> {
    let options = FileOptions { write: true, creation: Creation::Existing, caching };
    let file = File::open(&dir.path().join(folder::file_name(id)), options)?;
    folder::mark_used(&file.as_fd())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::time::Duration;

    use fieldstone_proto::NodeIndex;

    use super::*;
    use crate::token::split;
    use fieldstone_uring::ReactorOptions;

    fn make_fifo(path: &Path) {
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("no zero byte");
        // SAFETY: `name` is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    }

    /// Waits for one operation.
    fn finish(disk: &mut Disk, reactor: &mut Reactor) {
        let mut events = Vec::new();
        while events.is_empty() {
            reactor.turn(&mut events).expect("the ring works");
        }
        for event in events {
            let (_, _, index) = split(event.token).expect("of the disk");
            let (_, result) = disk.finished(index, event, reactor.now()).expect("of this era");
            result.expect("it worked");
        }
    }

    /// `slots` is a FIFO: reading it hangs until the test writes to it. The file system of `data`
    /// counts as one that cannot promise not to block. So while the read hangs, writes to `data` go
    /// to the ring.
    #[test]
    fn a_disk_that_hangs_is_not_written_to_by_the_core() {
        const LEN_BYTES: u32 = 4096;
        let folder = tempfile::tempdir().expect("temp");
        let slots = folder.path().join(folder::file_name(FileId::Slots));
        make_fifo(&slots);
        std::fs::write(folder.path().join(folder::file_name(FileId::Data)), "").expect("made");
        let (blocking, _queue) = mpsc::channel();
        let node = LocalNodeId { number: 0, index: NodeIndex(0) };
        let mut disk = Disk::new(node, Caching::Buffered, blocking);
        disk.next_era(Some(Dir::open(folder.path()).expect("there")));
        disk.file(FileId::Data).expect("there").note_refuses_nowait();
        let mut reactor = Reactor::new(ReactorOptions::default()).expect("a ring");
        let write = || {
            let data = vec![Bytes::from(vec![1; LEN_BYTES as usize])];
            DiskOp::Write { file: FileId::Data, offset_bytes: 0, data }
        };

        disk.start(DiskId(1), write(), &mut reactor);
        finish(&mut disk, &mut reactor);
        let read = DiskOp::Read { file: FileId::Slots, offset_bytes: 0, len_bytes: LEN_BYTES };
        disk.start(DiskId(2), read, &mut reactor);
        disk.start(DiskId(3), write(), &mut reactor);
        finish(&mut disk, &mut reactor);
        assert_eq!(reactor.counters().inline_writes, 2, "the read may only be slow");

        std::thread::sleep(Duration::from_millis(250));
        reactor.fresh_now();
        disk.start(DiskId(4), write(), &mut reactor);
        finish(&mut disk, &mut reactor);
        assert_eq!(reactor.counters().inline_writes, 2, "the read hangs");

        let mut end = std::fs::OpenOptions::new().write(true).open(&slots).expect("it is read");
        end.write_all(&[2; LEN_BYTES as usize]).expect("room");
        finish(&mut disk, &mut reactor);
        disk.start(DiskId(5), write(), &mut reactor);
        finish(&mut disk, &mut reactor);
        assert_eq!(reactor.counters().inline_writes, 3, "the disk answers again");
        assert!(disk.is_quiet());
    }
}
