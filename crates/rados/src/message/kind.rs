//! The numbers of messages.

/// The messages that this crate knows, with Ceph's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum MessageKind {
    /// A monitor's list of monitors.
    MonMap = 4,
    /// A question to a monitor for space used.
    StatFs = 13,
    /// Its answer.
    StatFsReply = 14,
    /// A client subscribes to maps.
    MonSubscribe = 15,
    /// A monitor acknowledges a subscription.
    MonSubscribeAck = 16,
    /// A part of authentication, for the renewal of tickets.
    Auth = 17,
    /// Its answer.
    AuthReply = 18,
    /// A question for the newest version of a map.
    MonGetVersion = 19,
    /// Its answer.
    MonGetVersionReply = 20,
    /// OSDMaps, full and incremental.
    OsdMap = 41,
    /// A request on an object.
    OsdOp = 42,
    /// Its answer.
    OsdOpReply = 43,
    /// A notification of a watched object.
    WatchNotify = 44,
    /// A change of a pool, such as a new snapshot number.
    PoolOp = 49,
    /// Its answer.
    PoolOpReply = 48,
    /// A command to a monitor.
    MonCommand = 50,
    /// Its answer.
    MonCommandAck = 51,
    /// An OSD asks a client to hold requests back, or to go on.
    OsdBackoff = 61,
    /// The configuration that monitors keep.
    Config = 62,
    /// A question for statistics of pools.
    GetPoolStats = 58,
    /// Its answer.
    GetPoolStatsReply = 59,
}
