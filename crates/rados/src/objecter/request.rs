//! Requests that are not answered yet, and the order in which they were submitted.

use fieldstone_block::Nanos;
use fieldstone_crush::OsdId;
use slab::Slab;

use super::map::Target;
use super::position::Position;
use super::{RequestId, Token};
use crate::cluster::{Operation, OperationFlags};
use crate::encoding::Time;
use crate::message::osd::flag;
use crate::op::code;

/// Who gets the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// The one who submitted it.
    Caller(Token),
    /// The watch or notification with this cookie: it is being registered.
    Register { cookie: u64, renews: bool },
    /// The watch with this cookie: the OSD is told that the client lives.
    Ping { cookie: u64, renewal: u32 },
    /// No one: it is a write that has failed for its caller, and may still be executed.
    Late,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Too much is in flight.
    Queued,
    /// No OSD can take it.
    Homeless,
    /// In this OSD's session, sent or not.
    Session(OsdId),
}

/// No neighbour in the order of submission.
const NONE: usize = usize::MAX;

#[derive(Debug)]
pub(super) struct Request {
    pub serial: u64,
    pub party: Party,
    pub operation: Operation,
    /// The request is for a group, not an object: its seed.
    pub group_seed: Option<u32>,
    /// Flags on the wire.
    pub flags: u32,
    /// The number on the wire; 0 before the first.
    pub tid: u64,
    pub target: Option<Target>,
    pub place: Place,
    /// Sent in the present session, and not answered.
    pub sent: bool,
    /// The map says that it has to wait.
    pub paused: bool,
    /// How often it was sent.
    pub attempts: i32,
    /// The client's global id when it was first sent. OSDs know an executed write by this and its
    /// number, so it stays for all attempts, also if the client gets another id meanwhile.
    pub client: Option<u64>,
    /// The pool was in a map, so it is deleted if it is in the map no more.
    pub pool_seen: bool,
    /// If a map of this epoch does not have the pool, there is none.
    pub decisive_epoch: Option<u32>,
    pub submitted: Nanos,
    pub modified: Time,
    /// What it takes of the bytes in flight.
    pub budget_bytes: u64,
    /// It counts as in flight.
    pub counted: bool,
    /// Answers "try again" and "look elsewhere" so far.
    pub bounces: u32,
    older: usize,
    newer: usize,
}

impl Request {
    pub fn new(party: Party, operation: Operation, serial: u64, now: Nanos) -> Self {
        let flags = wire_flags(&operation);
        let budget_bytes = budget_bytes(&operation);
        Self {
            serial,
            party,
            operation,
            group_seed: None,
            flags,
            tid: 0,
            target: None,
            place: Place::Queued,
            sent: false,
            paused: false,
            attempts: 0,
            client: None,
            pool_seen: false,
            decisive_epoch: None,
            submitted: now,
            modified: Time::default(),
            budget_bytes,
            counted: false,
            bounces: 0,
            older: NONE,
            newer: NONE,
        }
    }

    pub fn is_write(&self) -> bool {
        self.flags & flag::WRITE != 0
    }

    /// An OSD may have executed it, or may do so: it is a write, and was sent.
    pub fn may_be_executed(&self) -> bool {
        self.is_write() && self.attempts > 0
    }

    /// Waits while the pool or the cluster is full.
    pub fn respects_full(&self) -> bool {
        self.is_write() && self.flags & (flag::FULL_TRY | flag::FULL_FORCE) == 0
    }

    /// The place in the order of objects.
    pub fn position(&self) -> Option<Position<'_>> {
        let target = self.target.as_ref()?;
        Some(Position::of_object(&self.operation.object, target.pool.0, target.hash))
    }
}

fn wire_flags(operation: &Operation) -> u32 {
    let OperationFlags { balance_reads, localize_reads, full_try, full_force, wants_data } =
        operation.flags;
    let mode = operation.ops.request_flags();
    let reads = mode & flag::WRITE == 0;
    [
        (reads && balance_reads, flag::BALANCE_READS),
        (reads && localize_reads, flag::LOCALIZE_READS),
        (full_try, flag::FULL_TRY),
        (full_force, flag::FULL_FORCE),
        (wants_data, flag::RETURNVEC),
    ]
    .into_iter()
    .filter(|(is_set, _)| *is_set)
    .fold(mode, |flags, (_, bit)| flags | bit)
}

/// The bytes that a request moves: the data that it carries, and those that it asks for.
fn budget_bytes(operation: &Operation) -> u64 {
    let ops = &operation.ops;
    let read = |op: &crate::op::Op| match op.code {
        code::READ | code::SPARSE_READ => {
            let mut len = [0; 8];
            len.copy_from_slice(&op.fields[8..16]);
            u64::from_le_bytes(len)
        }
        _ => 0,
    };
    ops.ops().iter().map(read).fold(ops.data_bytes() as u64, u64::saturating_add)
}

/// All requests. Those of callers are linked in the order of submission.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slab: Slab<Request>,
    ends: Option<(usize, usize)>,
}

impl Requests {
    pub fn insert(&mut self, mut request: Request) -> usize {
        let is_linked = matches!(request.party, Party::Caller(_));
        let newest = self.ends.map_or(NONE, |(_, newest)| newest);
        if is_linked {
            request.older = newest;
        }
        let key = self.slab.insert(request);
        if is_linked {
            if let Some(before) = self.slab.get_mut(newest) {
                before.newer = key;
            }
            self.ends = Some((self.ends.map_or(key, |(oldest, _)| oldest), key));
        }
        key
    }

    /// Takes a request out.
    ///
    /// # Panics
    /// If there is none with this key.
    pub fn remove(&mut self, key: usize) -> Request {
        let request = self.slab.remove(key);
        if matches!(request.party, Party::Caller(_)) {
            self.unlink(key, request.older, request.newer);
        }
        request
    }

    /// Takes a caller's request out of the order of submission.
    fn unlink(&mut self, key: usize, older: usize, newer: usize) {
        if let Some(before) = self.slab.get_mut(older) {
            before.newer = newer;
        }
        if let Some(after) = self.slab.get_mut(newer) {
            after.older = older;
        }
        self.ends = match self.ends {
            Some((oldest, newest)) if oldest == key && newest == key => None,
            Some((oldest, newest)) if oldest == key => Some((newer, newest)),
            Some((oldest, newest)) if newest == key => Some((oldest, older)),
            other => other,
        };
    }

    /// A caller's request belongs to no one from now on. Gives its token; `None` if it is no
    /// caller's.
    pub fn make_late(&mut self, key: usize) -> Option<Token> {
        let request = self.slab.get_mut(key)?;
        let Party::Caller(token) = request.party else { return None };
        request.party = Party::Late;
        let (older, newer) = (request.older, request.newer);
        self.unlink(key, older, newer);
        Some(token)
    }

    pub fn get(&self, key: usize) -> Option<&Request> {
        self.slab.get(key)
    }

    pub fn get_mut(&mut self, key: usize) -> Option<&mut Request> {
        self.slab.get_mut(key)
    }

    /// The key of a request that is still there.
    pub fn find(&self, id: RequestId) -> Option<usize> {
        let key = id.key as usize;
        self.slab.get(key).filter(|request| request.serial == id.serial).map(|_| key)
    }

    /// The caller's request that was submitted first.
    pub fn oldest(&self) -> Option<usize> {
        self.ends.map(|(oldest, _)| oldest)
    }

    /// The caller's request that was submitted after `key`.
    pub fn after(&self, key: usize) -> Option<usize> {
        self.slab.get(key).map(|request| request.newer).filter(|&newer| newer != NONE)
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Request)> {
        self.slab.iter()
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }
}
