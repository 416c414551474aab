//! The list of monitors (`MonMap`), and the message that brings it.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Fsid, front, fsid};
use crate::encoding::{Addresses, DecodeError, Decoder, Encoder, Time};
use crate::message::{Message, MessageKind};

/// The newest version of the section that this crate reads and writes. Ceph 16 writes it; newer
/// ones add fields behind.
const VERSION: u8 = 9;
/// The lowest version that a reader of ours has to know.
const COMPAT: u8 = 6;
/// The oldest version that is read: with names and ranks, of Ceph 14.
const OLDEST: u8 = 6;

/// The newest version of a monitor's entry that this crate reads and writes.
const INFO_VERSION: u8 = 5;

/// A monitor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonitorInfo {
    /// Where it listens.
    pub addresses: Addresses,
    /// Clients prefer monitors with a lower number.
    pub priority: u16,
    /// The share of clients that should choose it, among those of its priority; 0 in all for equal
    /// shares.
    pub weight: u16,
    /// Its place, as (type, name) pairs; empty if not told.
    pub location: BTreeMap<String, String>,
}

/// The list of monitors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonMap {
    /// The cluster.
    pub fsid: Fsid,
    /// Grows with each change.
    pub epoch: u32,
    /// When it was changed.
    pub changed: Time,
    /// When the first one was made.
    pub created: Time,
    /// Features that all monitors have, and that cannot be taken back.
    pub persistent_features: u64,
    /// Features that all monitors have, and that an operator chose.
    pub optional_features: u64,
    /// The monitors by name.
    pub monitors: BTreeMap<String, MonitorInfo>,
    /// The names in the order of ranks: the rank is the number in `mon.0`.
    pub ranks: Vec<String>,
    /// The release that all monitors have at least: 16 for Pacific. 0: not known.
    pub least_release: u8,
    /// Ranks that were removed since the last election.
    pub removed_ranks: Vec<u32>,
    /// How leaders are elected: 1 by rank, 2 with some disallowed, 3 by quality of connection.
    pub election_strategy: u8,
    /// Monitors that may not lead.
    pub disallowed_leaders: Vec<String>,
    /// Monitors stand in two sites, with one that decides.
    pub is_stretched: bool,
    /// The monitor that decides.
    pub tiebreaker: String,
    /// Monitors that are counted out in stretch mode.
    pub stretch_marked_down: Vec<String>,
}

impl MonitorInfo {
    fn decode(from: &mut Decoder) -> Result<(String, Self), DecodeError> {
        let section = from.section(INFO_VERSION, "a monitor")?;
        let (version, mut fields) = (section.version, section.fields);
        let name = fields.string("the name of a monitor")?;
        let mut info = Self { addresses: Addresses::decode(&mut fields)?, ..Self::default() };
        if version >= 2 {
            info.priority = fields.u16("the priority of a monitor")?;
        }
        if version >= 4 {
            info.weight = fields.u16("the weight of a monitor")?;
        }
        if version >= 5 {
            let pairs = fields.list(8, "the place of a monitor", |fields| {
                Ok((fields.string("a type of place")?, fields.string("a place")?))
            })?;
            info.location = pairs.into_iter().collect();
        }
        Ok((name, info))
    }

    fn encode(&self, name: &str, into: &mut Encoder) {
        // A reader must know places only if there are some.
        let compat = if self.location.is_empty() { 1 } else { INFO_VERSION };
        into.section(INFO_VERSION, compat, |fields| {
            fields.string(name);
            self.addresses.encode(fields);
            fields.u16(self.priority).u16(self.weight);
            fields.list(self.location.iter(), |fields, (kind, place)| {
                fields.string(kind).string(place);
            });
        });
    }
}

fn decode_features(from: &mut Decoder) -> Result<u64, DecodeError> {
    from.section(1, "features of monitors")?.fields.u64("features of monitors")
}

fn decode_names(from: &mut Decoder, what: &'static str) -> Result<Vec<String>, DecodeError> {
    from.list(4, what, |from| from.string(what))
}

fn encode_names(names: &[String], into: &mut Encoder) {
    into.list(names.iter(), |into, name| {
        into.string(name);
    });
}

impl MonMap {
    /// Reads one, as in a message or in a file of `monmaptool`.
    ///
    /// # Errors
    /// The bytes end, the map is older than Ceph 14's or wants a newer reader, or a rank has a name
    /// that no monitor has.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let section = from.section(VERSION, "a list of monitors")?;
        let section = section.at_least(OLDEST, "a list of monitors")?;
        let (version, mut fields) = (section.version, section.fields);
        let fields = &mut fields;
        let mut map = Self {
            fsid: fsid(fields)?,
            epoch: fields.u32("the epoch of monitors")?,
            changed: Time::decode(fields)?,
            created: Time::decode(fields)?,
            persistent_features: decode_features(fields)?,
            optional_features: decode_features(fields)?,
            ..Self::default()
        };
        let monitors = fields.list(4 + 6, "monitors", |fields| {
            let key = fields.string("the name of a monitor")?;
            Ok((key, MonitorInfo::decode(fields)?.1))
        })?;
        map.monitors = monitors.into_iter().collect();
        let offset = fields.offset();
        map.ranks = decode_names(fields, "ranks of monitors")?;
        if let Some(rank) = map.ranks.iter().position(|name| !map.monitors.contains_key(name)) {
            return Err(Decoder::refused(offset, rank as u64, "ranks of monitors"));
        }
        if version >= 7 {
            map.least_release = fields.u8("the release of monitors")?;
        }
        if version >= 8 {
            map.removed_ranks = fields.list(4, "removed ranks", |fields| fields.u32("a rank"))?;
            map.election_strategy = fields.u8("the strategy of elections")?;
            map.disallowed_leaders = decode_names(fields, "disallowed leaders")?;
        }
        if version >= 9 {
            map.is_stretched = fields.bool("stretch mode")?;
            map.tiebreaker = fields.string("the tiebreaker")?;
            map.stretch_marked_down = decode_names(fields, "monitors that are marked down")?;
        }
        Ok(map)
    }

    /// Writes it as version 9, Ceph 16's.
    pub fn encode(&self, into: &mut Encoder) {
        into.section(VERSION, COMPAT, |fields| {
            fields.bytes(&self.fsid).u32(self.epoch);
            self.changed.encode(fields);
            self.created.encode(fields);
            for features in [self.persistent_features, self.optional_features] {
                fields.section(1, 1, |fields| {
                    fields.u64(features);
                });
            }
            fields.list(self.monitors.iter(), |fields, (name, info)| {
                fields.string(name);
                info.encode(name, fields);
            });
            encode_names(&self.ranks, fields);
            fields.u8(self.least_release);
            fields.list(self.removed_ranks.iter(), |fields, &rank| {
                fields.u32(rank);
            });
            fields.u8(self.election_strategy);
            encode_names(&self.disallowed_leaders, fields);
            fields.bool(self.is_stretched).string(&self.tiebreaker);
            encode_names(&self.stretch_marked_down, fields);
        });
    }

    /// The monitors in the order of ranks.
    pub fn by_rank(&self) -> impl Iterator<Item = (&str, &MonitorInfo)> {
        self.ranks
            .iter()
            .filter_map(|name| self.monitors.get(name).map(|info| (name.as_str(), info)))
    }
}

/// A monitor tells the list of monitors (`MMonMap` v1; v2 of newer releases adds the quorum, which
/// is passed over).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonMapMessage {
    /// The list.
    pub map: MonMap,
}

impl MonMapMessage {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Message {
        let mut map = Encoder::new();
        self.map.encode(&mut map);
        let mut front = Encoder::with_capacity(4 + map.written());
        front.blob(&map.finish());
        Message::new(MessageKind::MonMap, 1, 0, front.finish())
    }

    /// Reads the message.
    ///
    /// # Errors
    /// It is another message, or not as it should be.
    pub fn decode(message: &Message) -> Result<Self, DecodeError> {
        let map: Bytes = front(message, MessageKind::MonMap)?.blob("a list of monitors")?;
        Ok(Self { map: MonMap::decode(&mut Decoder::new(map))? })
    }
}
