//! The flags of the whole cluster.

/// A release of Ceph as maps number it; 12 is "luminous".
const LUMINOUS: u8 = 12;
/// Ceph 14.
const NAUTILUS: u8 = 14;

/// The flags of the whole cluster (`ceph osd set FLAG`), with Ceph's bit numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// OSDs are nearly full. Not set since Ceph 14, which has pool flags instead.
    pub const NEARFULL: u32 = 1 << 0;
    /// OSDs are full: writes wait. Not set since Ceph 14.
    pub const FULL: u32 = 1 << 1;
    /// Reads wait (`ceph osd set pause`).
    pub const PAUSERD: u32 = 1 << 2;
    /// Writes wait (`ceph osd set pause`).
    pub const PAUSEWR: u32 = 1 << 3;
    /// No recovery.
    pub const PAUSEREC: u32 = 1 << 4;
    /// OSDs cannot come up.
    pub const NOUP: u32 = 1 << 5;
    /// OSDs are not marked down.
    pub const NODOWN: u32 = 1 << 6;
    /// OSDs that are down stay in.
    pub const NOOUT: u32 = 1 << 7;
    /// New OSDs stay out.
    pub const NOIN: u32 = 1 << 8;
    /// Objects are sorted by the reversed bits of their hashes; every cluster since Ceph 10.
    pub const SORTBITWISE: u32 = 1 << 15;
    /// Three obsolete flags that demanded releases 10, 11 and 12 of OSDs.
    pub const LEGACY_REQUIRE: u32 = 0b111 << 16;
    /// Deletions are done during recovery; every cluster since Ceph 12.
    pub const RECOVERY_DELETES: u32 = 1 << 19;
    /// Logs of placement groups have a hard limit; every cluster since Ceph 14.
    pub const PGLOG_HARDLIMIT: u32 = 1 << 22;

    /// True if all of these flags are set.
    #[must_use]
    pub fn has(self, flags: u32) -> bool {
        self.0 & flags == flags
    }

    /// True if reads must wait.
    #[must_use]
    pub fn pauses_reads(self) -> bool {
        self.has(Self::PAUSERD)
    }

    /// True if writes must wait: they are paused, or the cluster is full.
    #[must_use]
    pub fn pauses_writes(self) -> bool {
        self.0 & (Self::PAUSEWR | Self::FULL) != 0
    }

    /// The flags that follow from the release that OSDs must have.
    pub(super) fn for_release(mut self, release: u8) -> Self {
        // Numbers from 128 up mean "none".
        let release = if release > i8::MAX as u8 { 0 } else { release };
        if release >= LUMINOUS {
            self.0 = self.0 & !Self::LEGACY_REQUIRE | Self::RECOVERY_DELETES;
        }
        if release >= NAUTILUS {
            self.0 |= Self::PGLOG_HARDLIMIT;
        }
        self
    }
}
