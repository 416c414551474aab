//! Executes the operations of a request as one transaction.

use bytes::Bytes;
use fieldstone_rados::cluster::{PoolInfo, SnapContext, SnapId, Watcher};
use fieldstone_rados::encoding::{EntityAddress, Time};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::{Op, OpResult, Reply};
use smallvec::SmallVec;

use super::object::{Change, Found};
use super::request::{self, FLAG_FAIL_OK, Step, WatchStep};
use super::{Content, Intervals, Object};
use crate::classes;

/// Largest object, as the default of `osd_max_object_size`.
pub(super) const MAX_OBJECT_BYTES: u64 = 128 << 20;
/// Ceph adds the offset of a difference to this number in the result of a comparison.
pub(super) const MAX_ERRNO: i32 = 4095;
/// The state of all snapshots, as a list of snapshots reads it (Ceph: `CEPH_SNAPDIR`).
const ALL_SNAPSHOTS: SnapId = SnapId(u64::MAX);

/// Who sends a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The client's global id.
    pub client: u64,
    /// The client's address.
    pub address: EntityAddress,
}

/// A request on an object.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Who sends it.
    pub caller: &'a Caller,
    /// The operations.
    pub ops: &'a [Op],
    /// The state that reads see.
    pub snapshot: SnapId,
    /// The snapshots that writes keep.
    pub snap_context: &'a SnapContext,
    /// A write gives the data of its operations.
    pub wants_data: bool,
    /// The time of the OSD's clock.
    pub now: Time,
    /// The watchers of the object, with their timeouts in seconds and their addresses.
    pub watchers: &'a [(Watcher, u32, EntityAddress)],
}

/// What a request does beside its changes of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A watch begins, or its client is back.
    Watch {
        /// The client's cookie.
        cookie: u64,
        /// The watch ends when the client is gone for this time.
        timeout_s: u32,
    },
    /// A watch ends.
    Unwatch {
        /// The client's cookie.
        cookie: u64,
    },
    /// The watchers are to be notified.
    Notify {
        /// The cookie by which the notifier knows the completion.
        cookie: u64,
        /// How long to wait for answers.
        timeout_s: u32,
        /// The notifier's bytes.
        payload: Bytes,
        /// Index of the operation, whose data becomes the number of the notification.
        index: usize,
    },
    /// A watcher answers a notification.
    Acknowledge {
        /// The notification.
        notify_id: u64,
        /// The watcher's cookie.
        cookie: u64,
        /// The answer.
        payload: Bytes,
    },
    /// The object is gone, and its watches with it.
    Deleted,
}

/// A request under execution. Methods of classes work on it as well.
pub struct Execution<'a> {
    pub(super) pool: &'a PoolInfo,
    pub(super) object: Option<&'a Object>,
    pub(super) request: &'a Request<'a>,
    /// The state before the request.
    pub(super) before: Option<&'a Content>,
    /// The object exists, as later operations see it.
    pub(super) exists: bool,
    /// The object's size, as later operations see it.
    pub(super) len: u64,
    pub(super) changes: SmallVec<[Change; 4]>,
    pub(super) changed: Intervals,
    pub(super) effects: SmallVec<[Effect; 1]>,
    /// The request may write, so an absent object is no error by itself.
    pub(super) may_write: bool,
    /// A class may do only what its method says.
    pub(super) method_writes: bool,
}

/// What a request has done.
pub struct Outcome {
    /// The answer; `user_version` is the one before the request.
    pub reply: Reply,
    /// The rest is empty unless the request succeeded.
    pub effects: SmallVec<[Effect; 1]>,
    pub(super) changes: SmallVec<[Change; 4]>,
    pub(super) changed: Intervals,
    pub(super) exists: bool,
    pub(super) existed: bool,
}

/// True if the request may write.
#[must_use]
pub fn may_write(ops: &[Op]) -> bool {
    ops.iter().any(|op| {
        if request::is_ping(op) {
            return false;
        }
        request::writes(op)
            || request::called(op)
                .is_some_and(|(class, method)| classes::writes(&class, &method) == Some(true))
    })
}

impl<'a> Execution<'a> {
    /// Executes a request on an object, if there is one, without a change of it.
    #[must_use]
    pub fn run(
        pool: &'a PoolInfo,
        object: Option<&'a Object>,
        request: &'a Request<'a>,
    ) -> Outcome {
        let may_write = may_write(request.ops);
        match Self::begin(pool, object, request, may_write) {
            Ok(execution) => execution.steps(),
            Err(error) => Outcome {
                reply: Reply {
                    result: -error.0,
                    user_version: 0,
                    ops: request.ops.iter().map(|_| OpResult::default()).collect(),
                },
                effects: SmallVec::new(),
                changes: SmallVec::new(),
                changed: Intervals::default(),
                exists: false,
                existed: false,
            },
        }
    }

    fn begin(
        pool: &'a PoolInfo,
        object: Option<&'a Object>,
        request: &'a Request<'a>,
        may_write: bool,
    ) -> Result<Self, Errno> {
        let is_head = request.snapshot == SnapId::HEAD;
        if may_write && !is_head {
            return Err(Errno::EINVAL);
        }
        if may_write && !is_valid(request.snap_context) {
            return Err(Errno::EINVAL);
        }
        let before = match (object, request.snapshot) {
            (None, _) => None,
            (Some(object), SnapId::HEAD | ALL_SNAPSHOTS) => object.present(),
            (Some(object), snap) => object.at(snap),
        };
        let lists_snaps = object.is_some() && request.ops.iter().any(|op| op.code == 0x120a);
        if before.is_none() && !may_write && !lists_snaps {
            return Err(Errno::ENOENT);
        }
        Ok(Self {
            pool,
            object,
            request,
            before,
            exists: before.is_some(),
            len: before.map_or(0, |content| content.data.len()),
            changes: SmallVec::new(),
            changed: Intervals::default(),
            effects: SmallVec::new(),
            may_write,
            method_writes: false,
        })
    }

    fn steps(mut self) -> Outcome {
        let mut results: SmallVec<[OpResult; 2]> = SmallVec::with_capacity(self.request.ops.len());
        let mut last = 0;
        for (index, op) in self.request.ops.iter().enumerate() {
            let done = Step::read(op).and_then(|step| self.step(op, index, step));
            let result = match done {
                Ok((result, data)) => OpResult { result, data },
                Err(error) => OpResult { result: -error.0, data: Bytes::new() },
            };
            last = result.result;
            results.push(result);
            if last < 0 {
                if op.flags & FLAG_FAIL_OK == 0 {
                    break;
                }
                last = 0;
            }
        }
        results.resize(self.request.ops.len(), OpResult::default());
        let has_changes = !self.changes.is_empty() || self.effects.iter().any(Effect::is_stored);
        if last >= 0 && self.may_write && has_changes && !self.request.wants_data {
            last = 0;
            results.iter_mut().for_each(|result| result.data = Bytes::new());
        }
        if last < 0 {
            self.changes.clear();
            self.effects.clear();
        }
        let user_version = self.before.map_or(0, |content| content.user_version);
        Outcome {
            reply: Reply { result: last, user_version, ops: results },
            effects: self.effects,
            changes: self.changes,
            changed: self.changed,
            exists: self.exists,
            existed: self.before.is_some(),
        }
    }

    fn step(&mut self, op: &Op, index: usize, step: Step) -> Result<(i32, Bytes), Errno> {
        match step {
            Step::Call { class, method, input } => {
                let (writes, run) = classes::find(&class, &method).ok_or(Errno::EOPNOTSUPP)?;
                self.method_writes = writes;
                let output = run(self, input)?;
                Ok((0, output))
            }
            Step::Notify { cookie, timeout_s, payload } => {
                self.effects.push(Effect::Notify { cookie, timeout_s, payload, index });
                Ok((0, Bytes::new()))
            }
            Step::NotifyAcknowledge { notify_id, cookie, payload } => {
                self.effects.push(Effect::Acknowledge { notify_id, cookie, payload });
                Ok((0, Bytes::new()))
            }
            Step::Watch { cookie, step, timeout_s } => {
                self.watch(cookie, step, timeout_s).map(|()| (0, Bytes::new()))
            }
            step => match self.read_step(step) {
                Ok(done) => done,
                Err(step) => self.write_step(op.flags, step).map(|()| (0, Bytes::new())),
            },
        }
    }

    fn watch(&mut self, cookie: u64, step: WatchStep, timeout_s: u32) -> Result<(), Errno> {
        if !self.exists {
            return Err(Errno::ENOENT);
        }
        let me = Watcher { client: self.request.caller.client, cookie };
        let watches = self.request.watchers.iter().any(|&(watcher, ..)| watcher == me);
        match step {
            WatchStep::Watch => self.effects.push(Effect::Watch { cookie, timeout_s }),
            WatchStep::Reconnect if watches => {
                self.effects.push(Effect::Watch { cookie, timeout_s });
            }
            WatchStep::Ping if watches => {}
            WatchStep::Reconnect | WatchStep::Ping => return Err(Errno::ENOTCONN),
            WatchStep::Unwatch if watches => self.effects.push(Effect::Unwatch { cookie }),
            WatchStep::Unwatch => {}
        }
        Ok(())
    }

    /// Who sends the request.
    pub(crate) fn caller(&self) -> &'a Caller {
        self.request.caller
    }

    /// The time of the OSD's clock.
    pub(crate) fn now(&self) -> Time {
        self.request.now
    }

    /// The newest snapshot that the object has heard of.
    pub(crate) fn snap_seq(&self) -> Option<SnapId> {
        self.object.map(|object| object.snaps.seq)
    }

    pub(super) fn found(&self, snap: SnapId) -> Option<Found<'a>> {
        self.object?.find(snap)
    }
}

impl Effect {
    /// True if an OSD stores the effect with the object.
    fn is_stored(&self) -> bool {
        matches!(self, Effect::Watch { .. } | Effect::Unwatch { .. })
    }
}

/// True if the snapshots are in order, newest first, and none is newer than `seq`.
fn is_valid(context: &SnapContext) -> bool {
    context.snaps.first().is_none_or(|&newest| newest <= context.seq)
        && context.snaps.windows(2).all(|pair| pair[0] > pair[1])
}
