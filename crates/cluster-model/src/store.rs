//! The pools, watches and shut-out clients of a cluster: what all its OSDs and monitors share.

use std::collections::BTreeMap;

use bytes::Bytes;
use fieldstone_crush::osdmap::PoolId;
use fieldstone_rados::Nanos;
use fieldstone_rados::cluster::{ObjectName, Operation, PoolInfo, Watcher};
use fieldstone_rados::encoding::{EntityAddress, Time};
use fieldstone_rados::errno::Errno;
use fieldstone_rados::op::{Op, Reply};

use crate::objects::{Caller, Effect, Object, Pool, Request, called, key_of, may_write};
use crate::watches::{NOTIFY_TIMEOUT_S, Place, Watches};

/// The time of day when the model's time is 0, in seconds since 1970.
const START_S: u64 = 1_750_000_000;
const SECOND: u64 = 1_000_000_000;
/// How long a client is shut out if the command gives no time, in seconds (Ceph:
/// `mon_osd_blocklist_default_expire`).
const BLOCKLIST_S: u64 = 3600;

/// The time of day, unless a store has another: see [`Store::set_start`].
#[must_use]
pub fn time_of_day(now: Nanos) -> Time {
    time_after(START_S, now)
}

fn time_after(start_s: u64, now: Nanos) -> Time {
    let seconds = start_s + now.0 / SECOND;
    Time { seconds: seconds as u32, nanos: (now.0 % SECOND) as u32 }
}

/// An error that requests on an object get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The error.
    pub error: Errno,
    /// How many requests get it.
    pub times: u32,
    /// Only requests that call this method of a class get it; `None`: all requests.
    pub method: Option<&'static str>,
    /// The requests are executed, and only their answers are lost.
    pub executes: bool,
}

/// What a cluster stores.
#[derive(Default)]
pub struct Store {
    pools: BTreeMap<PoolId, Pool>,
    /// The watches.
    pub watches: Watches,
    /// Addresses without protocol, e.g. `10.0.0.1:0/5`, or an IP address for all clients there;
    /// each with the end of its time.
    shut_out: BTreeMap<String, Nanos>,
    faults: BTreeMap<(PoolId, String), Vec<Fault>>,
    /// Monitors know only the commands of Ceph 14 and 15.
    pub(crate) has_old_monitors: bool,
    /// The time of day at time 0, if it is not the model's, in seconds since 1970.
    start_s: Option<u64>,
}

/// Operations that need to know the watchers.
fn needs_watchers(op: &Op) -> bool {
    matches!(op.code, 0x220f | 0x1209)
}

/// An address without the name of its protocol.
fn without_protocol(address: &str) -> &str {
    ["v1:", "v2:", "any:"]
        .iter()
        .find_map(|protocol| address.strip_prefix(protocol))
        .unwrap_or(address)
}

impl Store {
    /// Sets the time of day at time 0, in seconds since 1970.
    pub fn set_start(&mut self, start_s: u64) {
        self.start_s = Some(start_s);
    }

    /// The time of day.
    #[must_use]
    pub fn time_of_day(&self, now: Nanos) -> Time {
        time_after(self.start_s.unwrap_or(START_S), now)
    }

    /// Adds a pool.
    pub fn add_pool(&mut self, info: PoolInfo) {
        self.pools.insert(info.id, Pool::new(info));
    }

    /// A pool.
    #[must_use]
    pub fn pool(&self, pool: PoolId) -> Option<&Pool> {
        self.pools.get(&pool)
    }

    /// A pool, to change it.
    pub fn pool_mut(&mut self, pool: PoolId) -> Option<&mut Pool> {
        self.pools.get_mut(&pool)
    }

    /// All pools.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.values()
    }

    /// An object, also if it is a whiteout.
    #[must_use]
    pub fn object(&self, name: &ObjectName) -> Option<&Object> {
        self.pools.get(&name.pool)?.object(&key_of(name))
    }

    /// The next requests on an object get an error.
    pub fn inject(&mut self, pool: PoolId, name: &str, error: Errno, times: u32) {
        self.faults.remove(&(pool, name.to_owned()));
        self.inject_fault(pool, name, Fault { error, times, method: None, executes: false });
    }

    /// Adds an error for requests on an object. Of several that fit, a request gets the first.
    pub fn inject_fault(&mut self, pool: PoolId, name: &str, fault: Fault) {
        self.faults.entry((pool, name.to_owned())).or_default().push(fault);
    }

    /// From now on, monitors refuse the commands that Ceph 16 brought.
    pub fn make_monitors_old(&mut self) {
        self.has_old_monitors = true;
    }

    /// True if no client is shut out, and no error waits for a request.
    pub(crate) fn is_plain(&self) -> bool {
        self.shut_out.is_empty() && self.faults.is_empty()
    }

    /// The error that a request gets, and whether it is executed all the same.
    fn fault(&mut self, operation: &Operation) -> Option<(Errno, bool)> {
        if self.faults.is_empty() {
            return None;
        }
        let key = (operation.object.pool, operation.object.name.to_string());
        let faults = self.faults.get_mut(&key)?;
        let calls = |wanted: &'static str| {
            let mut called = operation.ops.ops().iter().filter_map(called);
            called.any(|(_, method)| method == wanted)
        };
        let index = faults.iter().position(|fault| fault.method.is_none_or(calls))?;
        let fault = &mut faults[index];
        let found = (fault.error, fault.executes);
        fault.times = fault.times.saturating_sub(1);
        if fault.times == 0 {
            faults.remove(index);
        }
        if faults.is_empty() {
            self.faults.remove(&key);
        }
        Some(found)
    }

    /// True if a request has to wait, because its pool is full.
    #[must_use]
    pub fn must_wait(&self, operation: &Operation) -> bool {
        let flags = operation.flags;
        let is_full = self.pools.get(&operation.object.pool).is_some_and(|pool| pool.info.is_full);
        is_full && !flags.full_try && !flags.full_force && may_write(operation.ops.ops())
    }

    /// Executes a request. Signals for clients are in [`Store::watches`].
    ///
    /// # Errors
    /// The request was refused as a whole: no such pool, a client that is shut out, a full pool.
    pub fn execute(
        &mut self,
        now: Nanos,
        caller: &Caller,
        operation: &Operation,
    ) -> Result<Reply, Errno> {
        if self.is_shut_out(&caller.address, now) {
            return Err(Errno::ESHUTDOWN);
        }
        let fault = self.fault(operation);
        if let Some((error, false)) = fault {
            return Err(error);
        }
        let name = &operation.object;
        let key = key_of(name);
        let time = self.time_of_day(now);
        let pool = self.pools.get_mut(&name.pool).ok_or(Errno::ENOENT)?;
        let ops = operation.ops.ops();
        if pool.info.is_full && !operation.flags.full_force && may_write(ops) {
            return Err(Errno::ENOSPC);
        }
        let place = || (name.pool, key_of(name));
        let watchers =
            if ops.iter().any(needs_watchers) { self.watches.of(&place()) } else { Vec::new() };
        let request = Request {
            caller,
            ops,
            snapshot: operation.snapshot,
            snap_context: &operation.snap_context,
            wants_data: operation.flags.wants_data,
            now: time,
            watchers: &watchers,
        };
        let mut outcome = pool.execute(&key, &request);
        for effect in outcome.effects {
            self.carry_out(now, caller, place(), effect, &mut outcome.reply);
        }
        match fault {
            Some((error, _)) => Err(error),
            None => Ok(outcome.reply),
        }
    }

    fn carry_out(
        &mut self,
        now: Nanos,
        caller: &Caller,
        place: Place,
        effect: Effect,
        reply: &mut Reply,
    ) {
        let me = |cookie| Watcher { client: caller.client, cookie };
        match effect {
            Effect::Watch { cookie, timeout_s } => {
                self.watches.watch(place, caller, cookie, timeout_s);
            }
            Effect::Unwatch { cookie } => self.watches.unwatch(&place, me(cookie)),
            Effect::Notify { cookie, timeout_s, payload, index } => {
                let timeout_s = if timeout_s == 0 { NOTIFY_TIMEOUT_S } else { timeout_s };
                let deadline = now.plus(Nanos(u64::from(timeout_s) * SECOND));
                let id = self.watches.notify(&place, me(cookie), &payload, deadline);
                if let Some(result) = reply.ops.get_mut(index) {
                    result.data = Bytes::copy_from_slice(&id.to_le_bytes());
                }
            }
            Effect::Acknowledge { notify_id, cookie, payload } => {
                self.watches.acknowledge(notify_id, me(cookie), payload);
            }
            Effect::Deleted => self.watches.deleted(&place),
        }
    }

    /// Shuts a client out: its address as [`EntityAddress`] is displayed, or an IP address.
    pub fn shut_out(&mut self, address: &str, seconds: Option<u64>, now: Nanos) {
        let time = Nanos(seconds.unwrap_or(BLOCKLIST_S).saturating_mul(SECOND));
        let address = without_protocol(address);
        self.shut_out.insert(address.to_owned(), now.plus(time));
        let shut_out = &self.shut_out;
        self.watches.shut_out(|address| is_in(shut_out, address, now));
    }

    /// Lets a client in again. Returns false if it was not shut out.
    pub fn let_in(&mut self, address: &str) -> bool {
        self.shut_out.remove(without_protocol(address)).is_some()
    }

    /// True if requests from an address are refused.
    #[must_use]
    pub fn is_shut_out(&self, address: &EntityAddress, now: Nanos) -> bool {
        !self.shut_out.is_empty() && is_in(&self.shut_out, address, now)
    }

    /// The addresses that are shut out, each with the end of its time.
    pub fn all_shut_out(&self) -> impl Iterator<Item = (&str, Nanos)> {
        self.shut_out.iter().map(|(address, &until)| (address.as_str(), until))
    }
}

fn is_in(shut_out: &BTreeMap<String, Nanos>, address: &EntityAddress, now: Nanos) -> bool {
    let text = address.to_string();
    let whole = without_protocol(&text);
    let ip = address.socket.map(|socket| socket.ip().to_string());
    let is_now = |key: &str| shut_out.get(key).is_some_and(|&until| now < until);
    is_now(whole) || ip.is_some_and(|ip| is_now(&ip) || is_now(&format!("{ip}:0/0")))
}
