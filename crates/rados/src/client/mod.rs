//! The client of a cluster: connections, authentication, monitors, maps and requests, put together.
//! A state machine without I/O.
//!
//! ```text
//!            Cluster (futures)                      one per client
//!                 | calls      ^ answers
//!  +--------------v------------+---------------------------------------+
//!  | client      calls.rs: each call to its part, each answer back     |
//!  |                                                                   |
//!  |   Monitors            Objecter             Credentials            |
//!  |   maps, commands      requests on objects  tickets                |
//!  |      |                   |                    |                   |
//!  |   links.rs: one msgr::Connection for each monitor and OSD         |
//!  +------+--------------------------------------------^---------------+
//!         | Action::Connect, outgoing bytes            | received, broken
//!         v                                            |
//!            the world: sockets of the host, or of a test
//! ```
//!
//! **A turn.** The owner gives the client what has happened ([`Client::received`],
//! [`Client::broken`]), lets it [run](Client::run) until nothing is left to do, carries out its
//! [`Action`]s, and sends the [outgoing](Client::outgoing) bytes: whatever a turn causes leaves in
//! one send per link.
//!
//! **Maps.** The client asks the monitors for the newest map once. Later maps come from OSDs, which
//! send them to a client whose requests have an old epoch, and from the monitors, when a request
//! waits for a newer map. So a cluster of many clients sends no map that no client needs.
//!
//! **Tickets** are renewed over the session with the monitor when three quarters of their time are
//! over. An OSD that refuses a ticket makes the client renew it.
//!
//! **Several cores.** A client may have [branches](branch) on other cores: each has the links to
//! some of the OSDs. The client stays one, with one name and one address. Its owner carries
//! [errands](Client::take_errands) to the branches and [reports](Client::reported) back. The CPU
//! time of the cores decides which links move to a branch.
//!
//! **The end.** [`Client::close`] fails what is not answered, and closes the links. A client whose
//! key all monitors refuse, or which cannot read a map, fails ([`Phase::Failed`]).

mod balance;
pub mod branch;
mod branches;
mod calls;
mod links;
mod location;
mod maps;
mod places;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use fieldstone_crush::osdmap::OsdMap;
use slab::Slab;

use crate::Nanos;
use crate::auth::{Credentials, Mode};
use crate::cluster::{CallId, Calls, Cluster};
use crate::encoding::{Addresses, EntityAddress, Time};
use crate::errno::Errno;
use crate::message::features::SUPPORTED;
use crate::message::monitor::AuthReply;
use crate::monitors::{self, Monitors, Trouble};
use crate::objecter::{self, Objecter, Wait, WaitReason};

use links::Links;
use places::Places;

pub use branch::{Branch, BranchId, CoreLoad, Errand, Report};
pub use links::LinkId;

/// How long a request waits before [`Client::waits_for`] names it.
const LONG_WAIT: Nanos = Nanos::from_ms(2_000);

/// The settings of a client.
pub struct ClientOptions {
    /// The monitors to begin with, each with its addresses.
    pub monitors: Vec<Addresses>,
    /// Who the client is.
    pub credentials: Credentials,
    /// The modes for connections to monitors, the best first.
    pub monitor_modes: Vec<Mode>,
    /// The modes for connections to OSDs, the best first.
    pub osd_modes: Vec<Mode>,
    /// A number that differs at each start of a client on this machine.
    pub nonce: u32,
    /// Decides among monitors and replicas, and makes cookies.
    pub seed: u64,
    /// Requests to monitors fail after this; 0 for never (`rados_mon_op_timeout`).
    pub monitor_timeout: Nanos,
    /// Requests to OSDs fail after this; 0 for never (`rados_osd_op_timeout`). A write may be
    /// executed all the same: see [`Cluster::late_writes`].
    pub osd_timeout: Nanos,
    /// The client fails if it has no map after this; 0 for never (`client_mount_timeout`).
    pub connect_timeout: Nanos,
    /// The time of day at the time zero of [`Nanos`], in nanoseconds since 1970.
    pub unix_nanos_at_zero: u64,
    /// The name of this host.
    pub hostname: String,
    /// The place of this client in the CRUSH map, as types and names of buckets: for reads of the
    /// nearest replica. If it is empty, the place is the host, below the root `default`.
    pub crush_location: Vec<(String, String)>,
    /// A fault of the settings that may be the reason if the monitors refuse the client; or empty.
    pub note: String,
}

/// What the owner has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect a link to this address.
    Connect(LinkId, SocketAddr),
    /// Close a link. No event of it is wanted any more.
    Close(LinkId),
}

/// The phase of a client's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The client has no map of the OSDs yet.
    Connecting,
    /// The client can do what it is asked for.
    Serving,
    /// The client has ended.
    Closed,
    /// The client cannot go on, for this reason.
    Failed(String),
}

/// A client of a cluster.
pub struct Client {
    options: ClientOptions,
    phase: Phase,
    began: Nanos,
    calls: Calls,
    links: Links,
    places: Places,
    /// What branches told, and is not handled yet.
    reports: VecDeque<(BranchId, Report)>,
    monitors: Monitors,
    objecter: Objecter<OsdMap>,
    map: Option<Arc<OsdMap>>,
    /// Calls at the objecter, by its tokens.
    at_objecter: Slab<calls::Pending>,
    /// Calls at the monitors.
    at_monitors: BTreeMap<monitors::RequestId, calls::Asked>,
    /// Answers that wait for a map.
    for_epoch: Vec<calls::ForEpoch>,
    /// Calls that wait for the first map.
    early: Vec<CallId>,
    actions: VecDeque<Action>,
    /// The next time to look at tickets.
    tickets_at: Nanos,
}

/// The time between two looks at tickets, if none is due before: the clock may be set meanwhile.
const TICKETS_PERIOD_MAX: Nanos = Nanos::from_ms(10_000);
/// The shortest time between two looks at tickets.
const TICKETS_PERIOD_MIN: Nanos = Nanos::from_ms(1_000);

impl Client {
    /// A client that begins to connect, and the cluster that it serves.
    #[must_use]
    pub fn new(mut options: ClientOptions, now: Nanos) -> (Self, Cluster) {
        if options.crush_location.is_empty() {
            let host = options.hostname.split('.').next().unwrap_or_default();
            let bucket = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
            options.crush_location = vec![bucket("host", host), bucket("root", "default")];
        }
        let (cluster, calls) = Cluster::new();
        let monitor_options = monitors::Options {
            hostname: options.hostname.clone(),
            seed: options.seed,
            request_timeout: options.monitor_timeout,
            ..monitors::Options::default()
        };
        let objecter_options = objecter::Options {
            features: SUPPORTED,
            unix_nanos_at_zero: options.unix_nanos_at_zero,
            timeout_ms: options.osd_timeout.0 / 1_000_000,
            seed: options.seed,
            ..objecter::Options::default()
        };
        let mut monitors = Monitors::new(options.monitors.clone(), monitor_options, now);
        monitors.subscribe_osdmap(0, false);
        let own_address =
            EntityAddress { nonce: options.nonce, ..EntityAddress::msgr2(UNSPECIFIED, 0) };
        let client = Self {
            links: Links::new(options.seed, own_address),
            places: Places::default(),
            reports: VecDeque::new(),
            monitors,
            objecter: Objecter::new(objecter_options, now),
            phase: Phase::Connecting,
            began: now,
            calls,
            map: None,
            at_objecter: Slab::new(),
            at_monitors: BTreeMap::new(),
            for_epoch: Vec::new(),
            early: Vec::new(),
            actions: VecDeque::new(),
            tickets_at: now,
            options,
        };
        (client, cluster)
    }

    /// The present phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase.clone()
    }

    /// The newest map of the OSDs.
    #[must_use]
    pub fn map(&self) -> Option<&Arc<OsdMap>> {
        self.map.as_ref()
    }

    /// Bytes arrived on a link.
    pub fn received(&mut self, link: LinkId, bytes: Bytes, now: Nanos) {
        self.links.received(link, bytes, now);
    }

    /// The transport of a link broke, or could not be made. The owner has closed it. What follows
    /// happens in [`Client::run`]: until then, the numbers of links mean what they meant when the
    /// owner's events happened.
    pub fn broken(&mut self, link: LinkId, why: String) {
        self.links.broken(link, why);
    }

    /// Carries out calls and handles what has arrived, and does what is due. True if there was
    /// anything to do.
    pub fn run(&mut self, now: Nanos, wall: Time) -> bool {
        if self.has_ended() {
            return self.take_calls(now);
        }
        self.options.credentials.set_wall_clock(wall);
        let mut did = self.tick(now, wall);
        loop {
            let mut busy = self.take_calls(now);
            busy |= self.hear_links(now);
            busy |= self.hear_branches(now);
            busy |= self.run_monitors(now);
            busy |= self.run_objecter(now);
            if !busy {
                return did;
            }
            did = true;
            if self.has_ended() {
                return true;
            }
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Closed | Phase::Failed(_))
    }

    /// Does what is due. True if there was anything.
    fn tick(&mut self, now: Nanos, wall: Time) -> bool {
        let is_due = |deadline: Option<Nanos>| deadline.is_some_and(|deadline| deadline <= now);
        let mut did = false;
        if is_due(self.monitors.deadline()) {
            self.monitors.tick(now);
            did = true;
        }
        if is_due(self.objecter.deadline()) {
            self.objecter.tick(now);
            did = true;
        }
        if is_due(self.links.deadline()) {
            self.links.tick(now);
            did = true;
        }
        did |= self.end_waits_for_epoch(now);
        if now >= self.tickets_at {
            self.renew_tickets(wall);
            self.tickets_at = now.plus(self.tickets_wait(wall));
        }
        let timeout = self.options.connect_timeout;
        if self.phase == Phase::Connecting && timeout.0 > 0 && now >= self.began.plus(timeout) {
            let seconds = timeout.0 / 1_000_000_000;
            let why = self.monitors.last_failure();
            self.fail(format!("no monitor of the cluster gave a map in {seconds} s: {why}"));
        }
        did
    }

    /// Asks the monitor for new tickets, if some are due.
    fn renew_tickets(&mut self, wall: Time) {
        let credentials = &self.options.credentials;
        if self.monitors.session().is_none() || credentials.renewal_due(wall).is_none() {
            return;
        }
        if let Some(payload) = credentials.begin_renewal()
            && !self.monitors.send_auth(payload)
        {
            credentials.abandon_renewal();
        }
    }

    /// The time until the next look at tickets.
    fn tickets_wait(&self, wall: Time) -> Nanos {
        let Some(at) = self.options.credentials.renewal_at() else { return TICKETS_PERIOD_MAX };
        let seconds = at.seconds.saturating_sub(wall.seconds);
        Nanos::from_ms(u64::from(seconds) * 1_000).clamp(TICKETS_PERIOD_MIN, TICKETS_PERIOD_MAX)
    }

    fn tickets_came(&mut self, reply: AuthReply, now: Nanos) {
        self.tickets_at = now;
        let result = self.options.credentials.finish_renewal(reply.result, reply.payload);
        if let Err(error) = result {
            tracing::warn!("tickets could not be renewed: {error}");
            // A new session brings new tickets.
            self.monitors.leave(monitors::Lost::RenewalRefused(error.to_string()), now);
        }
    }

    /// The next thing for the owner to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Gives the bytes to send, link by link. `parts` is a buffer to use; `send` takes its content.
    pub fn outgoing(&mut self, parts: &mut Vec<Bytes>, send: impl FnMut(LinkId, &mut Vec<Bytes>)) {
        self.links.outgoing(parts, send);
    }

    /// When to [run](Self::run) the client even if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        if self.has_ended() {
            return None;
        }
        let timeout = self.options.connect_timeout;
        let connect =
            (self.phase == Phase::Connecting && timeout.0 > 0).then(|| self.began.plus(timeout));
        [
            self.monitors.deadline(),
            self.objecter.deadline(),
            self.links.deadline(),
            Some(self.tickets_at),
            self.for_epoch.iter().filter_map(|waiting| waiting.until).min(),
            connect,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Ends the client: calls that are not answered fail with `ECANCELED`, and the links are
    /// closed. An owner that wants the end of a watch to arrive waits for its answer first.
    pub fn close(&mut self) {
        if !matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Closed;
        }
        self.end(Errno::ECANCELED);
    }

    fn fail(&mut self, why: String) {
        tracing::debug!("the Ceph client ends: {why}");
        self.phase = Phase::Failed(why);
        self.end(Errno::EACCES);
    }

    fn end(&mut self, errno: Errno) {
        for link in self.links.close_all() {
            self.actions.push_back(Action::Close(link));
        }
        self.close_branches();
        self.fail_calls(errno);
    }

    /// The reason why requests wait, in a text for people; empty if none waits for long.
    #[must_use]
    pub fn waits_for(&self, now: Nanos) -> String {
        if self.phase == Phase::Connecting {
            return format!("the monitors: {}", self.monitors.last_failure());
        }
        let long = |wait: &Wait| wait.longest >= LONG_WAIT;
        let waits: Vec<String> =
            self.objecter.waits(now).into_iter().filter(long).take(4).map(|w| said(&w)).collect();
        waits.join("; ")
    }

    /// The monitors refused for good, or something else that an operator should know.
    fn trouble(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Refused(why) => {
                let entity = self.options.credentials.entity();
                let note = match self.options.note.as_str() {
                    "" => String::new(),
                    note => format!("; {note}"),
                };
                self.fail(format!("the monitors refuse {entity}: {why}{note}"));
            }
            Trouble::Unreachable { .. } => tracing::warn!("{trouble}"),
        }
    }
}

/// Any address, any port: a client listens nowhere.
const UNSPECIFIED: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// A wait in words.
fn said(wait: &Wait) -> String {
    let reason = match wait.reason {
        WaitReason::Room => "requests in flight to end".to_owned(),
        WaitReason::Map => "a newer map of the OSDs".to_owned(),
        WaitReason::Pool(pool) => format!("the monitors to say whether pool {} exists", pool.0),
        WaitReason::PoolFails(pool) => {
            format!("pool {}, which fails all requests (its flag eio)", pool.0)
        }
        WaitReason::NoPrimary(pg) => format!("an OSD for placement group {pg}: all are down"),
        WaitReason::Full(pool) => format!("space: pool {} or the cluster is full", pool.0),
        WaitReason::Paused => "the end of a pause (`ceph osd unpause`)".to_owned(),
        WaitReason::Connection(osd) => format!("a connection to osd.{}", osd.0),
        WaitReason::Backoff(osd, pg) => format!("osd.{}, which holds {pg} back", osd.0),
        WaitReason::Answer(osd) => format!("an answer of osd.{}", osd.0),
    };
    let (requests, seconds) = (wait.requests, wait.longest.0 / 1_000_000_000);
    let plural = if requests == 1 { "request" } else { "requests" };
    format!("{reason} ({requests} {plural}, the oldest for {seconds} s)")
}
