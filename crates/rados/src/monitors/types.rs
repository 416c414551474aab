//! What a client of monitors is told, and what it tells.

use std::collections::BTreeMap;

use super::{RequestId, hunt};
use crate::Nanos;
use crate::cluster::{CommandReply, SnapId};
use crate::encoding::{Addresses, EntityName};
use crate::errno::Errno;
use crate::message::Message;
use crate::message::monitor::{AuthReply, Fsid, MonMap, PoolStats, StatFsReply};

/// Names a session with a monitor, from the attempt to open it to its end. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonitorSession(pub u32);

/// How a client deals with its monitors. The defaults are Ceph's where there is a name of Ceph's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The cluster; `None`: whichever the monitors belong to.
    pub fsid: Option<Fsid>,
    /// The name of this host.
    pub hostname: String,
    /// Chooses among monitors.
    pub seed: u64,
    /// Monitors that are tried at a time (`mon_client_hunt_parallel`).
    pub parallel: usize,
    /// An attempt that is not ready after this is given up (`mon_client_hunt_interval`).
    pub hunt_interval: Nanos,
    /// The interval grows up to this, by one half each time
    /// (`mon_client_hunt_interval_max_multiple`).
    pub hunt_interval_max: Nanos,
    /// A session that lasts this long takes one such growth back (`mon_client_ping_interval`).
    pub relax_interval: Nanos,
    /// A monitor that does not tell the list of monitors in this time is left.
    pub subscription_timeout: Nanos,
    /// A monitor that does not answer a request in this time is left. Doubles each time that the
    /// request is sent, three times at most. 0: never, as in Ceph.
    pub request_patience: Nanos,
    /// A request fails after this (`rados_mon_op_timeout`). 0: never.
    pub request_timeout: Nanos,
    /// [`Trouble::Unreachable`] is told after this time without a session.
    pub unreachable_after: Nanos,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fsid: None,
            hostname: String::new(),
            seed: 0,
            parallel: 3,
            hunt_interval: Nanos::from_ms(3_000),
            hunt_interval_max: Nanos::from_ms(30_000),
            relax_interval: Nanos::from_ms(10_000),
            subscription_timeout: Nanos::from_ms(10_000),
            request_patience: Nanos::from_ms(60_000),
            request_timeout: Nanos(0),
            unreachable_after: Nanos::from_ms(10_000),
        }
    }
}

/// What the owner has to do. In order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a session.
    Open {
        /// Names it.
        attempt: MonitorSession,
        /// The peer. Its number is -1: ranks change, addresses tell monitors apart.
        peer: EntityName,
        /// Where the monitor listens.
        addresses: Addresses,
    },
    /// Close a session. No more events of it are wanted.
    Close(MonitorSession),
    /// Send a message.
    Send(MonitorSession, Message),
}

impl Action {
    /// The session that the action is for.
    #[must_use]
    pub fn session(&self) -> MonitorSession {
        match self {
            Action::Open { attempt, .. } => *attempt,
            Action::Close(session) | Action::Send(session, _) => *session,
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session is established. Requests are sent again by themselves; a renewal of tickets is
    /// not.
    Session(MonitorSession),
    /// The session is over. The search goes on.
    SessionLost(MonitorSession, Lost),
    /// A new list of monitors.
    MonMap(MonMap),
    /// Maps of OSDs, undecoded.
    OsdMaps(Message),
    /// The configuration that the monitors keep for this client.
    Config(BTreeMap<String, String>),
    /// The answer to a command.
    CommandReply {
        /// Names the request.
        id: RequestId,
        /// The answer.
        reply: CommandReply,
    },
    /// The answer to a question for a version.
    Version {
        /// Names the request.
        id: RequestId,
        /// The newest version.
        newest: u64,
        /// The oldest that the monitors have.
        oldest: u64,
    },
    /// The answer to a change of a pool.
    PoolOpReply {
        /// Names the request.
        id: RequestId,
        /// The result; negative is an error number.
        result: i32,
        /// The epoch of the map of OSDs that has the change.
        osdmap_epoch: u32,
        /// The new snapshot.
        snap: Option<SnapId>,
    },
    /// Space used.
    StatFs {
        /// Names the request.
        id: RequestId,
        /// The answer.
        reply: StatFsReply,
    },
    /// Statistics of pools.
    PoolStats {
        /// Names the request.
        id: RequestId,
        /// By name; a pool that does not exist is left out.
        pools: BTreeMap<String, PoolStats>,
    },
    /// The answer to [`Monitors::send_auth`](super::Monitors::send_auth).
    AuthReply(AuthReply),
    /// A request is given up: its time is over (`ETIMEDOUT`), or the client is refused (`EACCES`).
    Failed {
        /// Names the request.
        id: RequestId,
        /// The reason.
        errno: Errno,
    },
    /// Something that an operator should know.
    Trouble(Trouble),
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The connection is over.
    #[error("{0}")]
    Closed(String),
    /// The monitor did not tell the list of monitors: it hangs, or is out of the quorum.
    #[error("the monitor does not answer the subscription")]
    NoSubscription,
    /// The monitor did not answer a request.
    #[error("the monitor does not answer a request")]
    NoAnswer,
    /// The monitor is no longer one of the cluster's.
    #[error("the monitor was removed")]
    Removed,
    /// The monitor belongs to another cluster.
    #[error("the monitor belongs to another cluster")]
    OtherCluster,
    /// Tickets could not be renewed over this session.
    #[error("the monitor does not renew the tickets: {0}")]
    RenewalRefused(String),
    /// A message of the monitor is not as it should be.
    #[error("the monitor breaks the protocol: {0}")]
    Invalid(String),
}

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// No monitor answers since this time. The search goes on. Told once until a session is
    /// established.
    #[error("no monitor answers; the last one: {last}")]
    Unreachable {
        /// When the last session ended, or the client began.
        since: Nanos,
        /// The last reason.
        last: String,
    },
    /// All monitors refuse the client's key. Final: all requests fail.
    #[error("the monitors refuse the key: {0}")]
    Refused(String),
}

/// The monitors of a map that can be reached with messenger 2.
pub(super) fn known_of(map: &MonMap) -> Vec<hunt::Known> {
    map.by_rank()
        .filter(|(_, info)| info.addresses.msgr2().is_some())
        .map(|(_, info)| hunt::Known::new(info.addresses.clone(), info.priority))
        .collect()
}
