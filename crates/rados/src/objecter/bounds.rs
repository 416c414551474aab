//! The bounds of the objecter's queues, caches and retries, and its times.

use fieldstone_block::Nanos;

/// Most requests in flight.
pub const MAX_IN_FLIGHT: usize = 1024;
/// Most bytes in flight.
pub const MAX_IN_FLIGHT_BYTES: u64 = 100 << 20;
/// Most requests that wait until there is room. More are refused with `EBUSY`.
pub const MAX_QUEUED: usize = 1 << 20;
/// Sessions that are kept. More are opened only if they are needed at once.
pub const MAX_SESSIONS: usize = 4096;
/// Most groups whose place is remembered.
pub const MAX_CACHED_GROUPS: usize = 65_536;
/// Most answers "try again" and "look elsewhere" to one request.
pub const MAX_BOUNCES: u32 = 16;
/// Most watches and notifications.
pub const MAX_LINGERS: usize = 65_536;
/// The time between looks for requests that wait long (Ceph: `objecter_tick_interval`).
pub const TICK: Nanos = Nanos::from_ms(5_000);
/// After this time without an answer, the connection is probed (Ceph: `objecter_timeout`).
pub const LAGGY: Nanos = Nanos::from_ms(10_000);
/// The delay before a session is opened again: doubles with each failure after the first.
pub const REOPEN_DELAY: Nanos = Nanos::from_ms(100);
/// The longest delay before a session is opened again.
pub const MAX_REOPEN_DELAY: Nanos = Nanos::from_ms(5_000);
/// A session that stood for so long makes earlier failures count no more. Shorter ones do not, even
/// if the OSD answered: it may answer one request and break at the next, again and again.
pub const SETTLED: Nanos = Nanos::from_ms(5_000);
/// OSDs forget a watch of which they hear nothing for so long, in seconds.
pub const WATCH_TIMEOUT_S: u32 = 30;
/// The end of a notification has to come so long after the time that its watchers had. An OSD that
/// dies or hangs meanwhile is noticed earlier: the notification is then sent again.
pub const NOTIFY_GRACE: Nanos = Nanos::from_ms(60_000);
