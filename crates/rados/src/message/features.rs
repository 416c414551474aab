//! The features by which two parties agree on encodings.
//!
//! Each party announces 64 bits, and the connection has the bits of both. A writer asks the
//! connection's features which version of a value the reader knows.
//!
//! **A bit is not enough.** Ceph has used bits again for other features. A feature of the second
//! use counts only together with bit 57, and one of the third use only together with the bits 57
//! and 28. So a [`Feature`] is a mask of one to three bits, and [`Feature::is_in`] wants all of
//! them. (A known trap: a client that asks for *any* bit of [`SERVER_SQUID`] takes Ceph 16 for
//! Ceph 19, because both have bit 57. Its requests are dropped without an answer.)
//!
//! **What a client announces.** [`SUPPORTED`] has the features whose encodings this crate reads and
//! writes, and no others:
//!
//! | Feature | What changes |
//! |---|---|
//! | `MSG_ADDR2` | addresses have a marker and a kind; parties have lists of addresses |
//! | `SERVER_LUMINOUS` | requests have version 8, OSDs send backoffs, maps have upmaps |
//! | `NEW_OSDOPREPLY_ENCODING` | a reply has a redirection only where there is one |
//! | `SERVER_MIMIC`, `SERVER_NAUTILUS`, `SERVER_OCTOPUS` | newer parts of maps |
//! | `SERVER_REEF` | a cluster with `pg_upmap_primaries` talks to such clients only |
//! | `SERVER_SQUID` | requests have version 9, with room for a trace |
//! | `SERVER_TENTACLE` | a pool tells which of its shards are never primary |
//! | `CRUSH_MSR` | placement by rules that choose several OSDs under each of several nodes |
//! | `CEPHX_V2` | proof of a session key with a challenge |
//! | `CRUSH_*`, `OSDHASHPSPOOL`, `OSD_CACHEPOOL`, `OSD_PRIMARY_AFFINITY` | a cluster that places by these refuses clients without |
//! | `MONENC`, `OSDMAP_ENC`, `PGID64`, `PGPOOL3`, `OSDENC` | encodings since 2013, which all parties have |
//!
//! Not announced: what only metadata servers, gateways and OSDs use among themselves.
//!
//! A map comes in the encoding of the features of its reader, so a monitor and an OSD may send
//! different bytes of one epoch to different clients. Monitors require no feature of a client, and
//! OSDs require `UID`, `PGID64` and `OSDENC`, besides what the map needs.

/// A feature: all bits that say that a party has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature(pub u64);

impl Feature {
    /// True if `features` has the feature.
    #[must_use]
    pub const fn is_in(self, features: u64) -> bool {
        features & self.0 == self.0
    }
}

/// The bit of Ceph 10: other bits have their second meaning.
const SECOND: u64 = 1 << 57;
/// The bits of Ceph 10 and 13: other bits have their third meaning.
const THIRD: u64 = SECOND | 1 << 28;

macro_rules! features {
    ($($name:ident = $bit:literal $(+ $marker:ident)?, $doc:literal;)*) => {
        $(#[doc = $doc] pub const $name: Feature = Feature(1 << $bit $(| $marker)?);)*

        /// The bit of each feature that stands for it alone, and the feature's name.
        const NAMES: &[(u32, &str)] = &[$(($bit, stringify!($name)),)*];
    };
}

features! {
    UID = 0, "Maps have the identity of the cluster.";
    NOSRCADDR = 1, "Headers of messages have no address.";
    SERVER_NAUTILUS = 2 + THIRD, "Ceph 14.";
    SUBSCRIBE2 = 4, "Subscriptions of version 2.";
    MONNAMES = 5, "Monitors have names.";
    RECONNECT_SEQ = 6, "A reconnection tells the last message seen.";
    OBJECTLOCATOR = 8, "Requests have a locator.";
    PGID64 = 9, "Pools have 64-bit numbers.";
    INCSUBOSDMAP = 10, "A subscription begins at an epoch.";
    PGPOOL3 = 11, "Pools of version 3.";
    OSDREPLYMUX = 12, "Replies have data for each operation.";
    OSDENC = 13, "Values of OSDs are in sections.";
    MONENC = 15, "Values of monitors are in sections.";
    SERVER_OCTOPUS = 16 + THIRD, "Ceph 15.";
    CRUSH_TUNABLES = 18, "Placement with tunables.";
    SERVER_PACIFIC = 20 + THIRD, "Ceph 16.";
    SERVER_LUMINOUS = 21 + SECOND, "Ceph 12.";
    MSG_AUTH = 23, "Messages of messenger 1 are signed; messenger 2 does not use it.";
    CRUSH_TUNABLES2 = 25, "Placement with one tunable more.";
    CREATEPOOLID = 26, "Placement groups know when they were created.";
    SERVER_MIMIC = 28 + SECOND, "Ceph 13.";
    OSDHASHPSPOOL = 30, "The number of a pool goes into placement.";
    SERVER_REEF = 31 + THIRD, "Ceph 18.";
    SERVER_QUINCY = 33 + THIRD, "Ceph 17.";
    OSD_CACHEPOOL = 35, "A pool may be the cache of another.";
    CRUSH_V2 = 36, "Rules for erasure-coded pools.";
    EXPORT_PEER = 37, "Of metadata servers; Ceph's clients announce it.";
    CRUSH_MSR = 38 + SECOND, "Rules that choose several OSDs under each of several nodes; Ceph 19.";
    OSDMAP_ENC = 39, "Maps have a part for clients and a part for OSDs.";
    CRUSH_TUNABLES3 = 41, "Placement with one tunable more; primary affinity.";
    MSGR_KEEPALIVE2 = 42, "Signs of life have a time.";
    OSD_POOLRESEND = 43, "A pool tells when requests have to be repeated.";
    OSD_FADVISE_FLAGS = 46, "Operations have hints.";
    CRUSH_V4 = 48, "Buckets of the kind straw2.";
    SERVER_SQUID = 49 + SECOND, "Ceph 19: requests of version 9.";
    SERVER_TENTACLE = 50 + SECOND, "Ceph 20.";
    NEW_OSDOP_ENCODING = 56, "Requests of version 7, and pools of version 25.";
    SERVER_JEWEL = 57, "Ceph 10; monitors keep the state of subscriptions.";
    CRUSH_TUNABLES5 = 58, "Placement with one tunable more.";
    NEW_OSDOPREPLY_ENCODING = 58, "A reply has a redirection only where there is one.";
    MSG_ADDR2 = 59, "Addresses have a kind, and parties have several.";
    OSD_RECOVERY_DELETES = 60, "Of OSDs; every party since Ceph 12 announces it.";
    CEPHX_V2 = 61, "The proof of a session key answers a challenge.";
}

/// What a client announces.
pub const SUPPORTED: u64 = UID.0
    | NOSRCADDR.0
    | SERVER_NAUTILUS.0
    | SUBSCRIBE2.0
    | MONNAMES.0
    | RECONNECT_SEQ.0
    | OBJECTLOCATOR.0
    | PGID64.0
    | INCSUBOSDMAP.0
    | PGPOOL3.0
    | OSDREPLYMUX.0
    | OSDENC.0
    | MONENC.0
    | SERVER_OCTOPUS.0
    | CRUSH_TUNABLES.0
    | SERVER_PACIFIC.0
    | SERVER_LUMINOUS.0
    | MSG_AUTH.0
    | CRUSH_TUNABLES2.0
    | CREATEPOOLID.0
    | SERVER_MIMIC.0
    | OSDHASHPSPOOL.0
    | SERVER_REEF.0
    | SERVER_QUINCY.0
    | OSD_CACHEPOOL.0
    | CRUSH_V2.0
    | EXPORT_PEER.0
    | CRUSH_MSR.0
    | OSDMAP_ENC.0
    | CRUSH_TUNABLES3.0
    | MSGR_KEEPALIVE2.0
    | OSD_POOLRESEND.0
    | OSD_FADVISE_FLAGS.0
    | CRUSH_V4.0
    | SERVER_SQUID.0
    | SERVER_TENTACLE.0
    | NEW_OSDOP_ENCODING.0
    | SERVER_JEWEL.0
    | CRUSH_TUNABLES5.0
    | NEW_OSDOPREPLY_ENCODING.0
    | MSG_ADDR2.0
    | OSD_RECOVERY_DELETES.0
    | CEPHX_V2.0;

/// The features that a server must have for a connection to be of use. Ceph 14 and newer have them.
pub const REQUIRED: [Feature; 7] = [
    SERVER_NAUTILUS,
    SERVER_LUMINOUS,
    MSG_ADDR2,
    NEW_OSDOP_ENCODING,
    NEW_OSDOPREPLY_ENCODING,
    OSDMAP_ENC,
    CEPHX_V2,
];

/// Of [`REQUIRED`], what a server with these features lacks. 0 if it has all.
#[must_use]
pub fn lacking(features: u64) -> u64 {
    let lacking = REQUIRED.into_iter().filter(|feature| !feature.is_in(features));
    lacking.fold(0, |bits, feature| bits | feature.0 & !features)
}

/// The names of features, for a person: `CRUSH_MSR (bit 38), bit 62`. A bit with several meanings
/// has all their names.
#[must_use]
pub fn names(features: u64) -> String {
    let name = |bit: u32| {
        let names = NAMES.iter().filter(|(of, _)| *of == bit).map(|(_, name)| *name);
        match names.collect::<Vec<_>>().join(" or ") {
            unknown if unknown.is_empty() => format!("bit {bit}"),
            names => format!("{names} (bit {bit})"),
        }
    };
    let bits = (0..u64::BITS).filter(|bit| features >> bit & 1 != 0);
    bits.map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_bit_needs_its_markers() {
        assert!(!SERVER_SQUID.is_in(1 << 57));
        assert!(!SERVER_SQUID.is_in(1 << 49));
        assert!(SERVER_SQUID.is_in(1 << 57 | 1 << 49));
        assert!(!SERVER_REEF.is_in(1 << 57 | 1 << 31));
        assert!(SERVER_REEF.is_in(1 << 57 | 1 << 31 | 1 << 28));
    }

    #[test]
    fn a_client_announces_what_it_knows() {
        for feature in [SERVER_REEF, SERVER_SQUID, SERVER_TENTACLE, CRUSH_MSR] {
            assert!(feature.is_in(SUPPORTED));
        }
        // The second meanings of these bits belong to metadata servers, gateways and whatever
        // comes after Ceph 20.
        for bit in [44, 45, 62, 63] {
            assert_eq!(SUPPORTED >> bit & 1, 0, "bit {bit}");
        }
        assert_eq!(lacking(SUPPORTED), 0);
    }

    #[test]
    fn an_old_server_lacks_features_by_name() {
        // What Ceph 12 has: no messenger 2.1, and only the first marker.
        let luminous = SUPPORTED & !(1 << 2 | 1 << 28 | 1 << 61);
        assert_eq!(
            names(lacking(luminous)),
            "SERVER_NAUTILUS (bit 2), SERVER_MIMIC (bit 28), \
             CEPHX_V2 (bit 61)"
        );
        for feature in REQUIRED {
            let without = SUPPORTED & !feature.0;
            assert_ne!(lacking(without), 0, "{feature:?}");
        }
    }

    #[test]
    fn names_of_bits() {
        assert_eq!(names(0), "");
        assert_eq!(names(1 << 62 | 1 << 38), "CRUSH_MSR (bit 38), bit 62");
        assert_eq!(names(1 << 58), "CRUSH_TUNABLES5 or NEW_OSDOPREPLY_ENCODING (bit 58)");
    }
}
