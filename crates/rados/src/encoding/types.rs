//! The small types that many messages share: names of entities, addresses, times, placement groups.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use fieldstone_crush::osdmap::{PgId, PoolId};

use super::{DecodeError, Decoder, Encoder};

/// The kind of a party of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EntityKind {
    /// A monitor: keeps the maps of the cluster.
    Monitor = 0x01,
    /// A metadata server of CephFS.
    Mds = 0x02,
    /// A storage daemon.
    Osd = 0x04,
    /// A client.
    Client = 0x08,
    /// A manager.
    Manager = 0x10,
    /// The service that authenticates; it has no daemon of its own.
    Auth = 0x20,
}

impl EntityKind {
    /// The kind with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        use EntityKind::{Auth, Client, Manager, Mds, Monitor, Osd};
        [Monitor, Mds, Osd, Client, Manager, Auth].into_iter().find(|&kind| kind as u8 == number)
    }

    /// The name of the kind, as in `osd.3`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EntityKind::Monitor => "mon",
            EntityKind::Mds => "mds",
            EntityKind::Osd => "osd",
            EntityKind::Client => "client",
            EntityKind::Manager => "mgr",
            EntityKind::Auth => "auth",
        }
    }
}

/// A party of the protocol: its kind and number. A client's number is its global id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityName {
    /// The kind.
    pub kind: EntityKind,
    /// The number; -1 for "not known yet".
    pub number: i64,
}

impl fmt::Display for EntityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.number < 0 {
            return write!(f, "{}.?", self.kind.name());
        }
        write!(f, "{}.{}", self.kind.name(), self.number)
    }
}

impl EntityName {
    /// Reads one: u8 kind, s64 number.
    ///
    /// # Errors
    /// The bytes end, or there is no such kind.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let offset = from.offset();
        let number = from.u8("the kind of an entity")?;
        let kind = EntityKind::of(number)
            .ok_or_else(|| Decoder::refused(offset, u64::from(number), "the kind of an entity"))?;
        Ok(Self { kind, number: from.i64("the number of an entity")? })
    }

    /// Writes it.
    pub fn encode(self, into: &mut Encoder) {
        into.u8(self.kind as u8).i64(self.number);
    }
}

/// The protocol that an address is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressKind {
    /// No address.
    #[default]
    None,
    /// Messenger 1.
    Legacy,
    /// Messenger 2.
    Msgr2,
    /// Either.
    Any,
}

/// The address of a party: where it listens, and a number that differs at each start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityAddress {
    /// The protocol.
    pub kind: AddressKind,
    /// Differs at each start of a daemon or client.
    pub nonce: u32,
    /// Address and port; none for a blank address.
    pub socket: Option<SocketAddr>,
}

/// `AF_INET` and `AF_INET6`, as on Linux.
const FAMILY_V4: u16 = 2;
const FAMILY_V6: u16 = 10;

impl fmt::Display for EntityAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.kind {
            AddressKind::None | AddressKind::Any => "",
            AddressKind::Legacy => "v1:",
            AddressKind::Msgr2 => "v2:",
        };
        match self.socket {
            Some(socket) => write!(f, "{prefix}{socket}/{}", self.nonce),
            None => write!(f, "-"),
        }
    }
}

impl EntityAddress {
    /// An address for messenger 2.
    #[must_use]
    pub fn msgr2(socket: SocketAddr, nonce: u32) -> Self {
        Self { kind: AddressKind::Msgr2, nonce, socket: Some(socket) }
    }

    /// Reads one: u8 1, a section with u32 kind, u32 nonce, u32 length, and a socket address: u16
    /// family, then as in the kernel's structures. An old address begins with u8 0: u32 0 (with the
    /// first byte four), u32 nonce, 128 bytes.
    ///
    /// # Errors
    /// The bytes end, or are no address.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let offset = from.offset();
        match from.u8("the marker of an address")? {
            0 => {
                from.skip(3, "the marker of an address")?;
                let nonce = from.u32("the nonce of an address")?;
                let mut storage = Decoder::new(from.bytes(128, "a socket address")?);
                // An old address has its family in network order.
                let family = storage.u16("an address family")?.swap_bytes();
                let socket = decode_socket(family, &mut storage)?;
                let kind = if socket.is_some() { AddressKind::Legacy } else { AddressKind::None };
                Ok(Self { kind, nonce, socket })
            }
            1 => {
                let mut fields = from.section(1, "an address")?.fields;
                let at = fields.offset();
                let kind = match fields.u32("the kind of an address")? {
                    0 => AddressKind::None,
                    1 => AddressKind::Legacy,
                    2 => AddressKind::Msgr2,
                    3 => AddressKind::Any,
                    other => {
                        return Err(Decoder::refused(at, other.into(), "the kind of an address"));
                    }
                };
                let nonce = fields.u32("the nonce of an address")?;
                let mut storage = Decoder::new(fields.blob("a socket address")?);
                let socket = if storage.is_empty() {
                    None
                } else {
                    let family = storage.u16("an address family")?;
                    decode_socket(family, &mut storage)?
                };
                Ok(Self { kind, nonce, socket })
            }
            other => Err(Decoder::refused(offset, other.into(), "the marker of an address")),
        }
    }

    /// Writes it in the form with a section.
    pub fn encode(self, into: &mut Encoder) {
        into.u8(1).section(1, 1, |fields| {
            fields.u32(match self.kind {
                AddressKind::None => 0,
                AddressKind::Legacy => 1,
                AddressKind::Msgr2 => 2,
                AddressKind::Any => 3,
            });
            fields.u32(self.nonce);
            match self.socket {
                None => fields.u32(0),
                Some(SocketAddr::V4(socket)) => fields
                    .u32(16)
                    .u16(FAMILY_V4)
                    .bytes(&socket.port().to_be_bytes())
                    .bytes(&socket.ip().octets())
                    .u64(0),
                Some(SocketAddr::V6(socket)) => fields
                    .u32(28)
                    .u16(FAMILY_V6)
                    .bytes(&socket.port().to_be_bytes())
                    .bytes(&socket.flowinfo().to_be_bytes())
                    .bytes(&socket.ip().octets())
                    .u32(socket.scope_id()),
            };
        });
    }
}

fn decode_socket(family: u16, from: &mut Decoder) -> Result<Option<SocketAddr>, DecodeError> {
    let offset = from.offset();
    match family {
        0 => Ok(None),
        FAMILY_V4 => {
            let port = u16::from_be_bytes(from.array("a port")?);
            let ip = Ipv4Addr::from(from.array::<4>("an IP address")?);
            Ok(Some(SocketAddrV4::new(ip, port).into()))
        }
        FAMILY_V6 => {
            let port = u16::from_be_bytes(from.array("a port")?);
            let flow = u32::from_be_bytes(from.array("a flow")?);
            let ip = Ipv6Addr::from(from.array::<16>("an IP address")?);
            let scope = from.u32("a scope")?;
            Ok(Some(SocketAddrV6::new(ip, port, flow, scope).into()))
        }
        other => Err(Decoder::refused(offset, other.into(), "an address family")),
    }
}

/// All addresses of a party.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addresses(pub Vec<EntityAddress>);

impl Addresses {
    /// The address for messenger 2, if there is one.
    #[must_use]
    pub fn msgr2(&self) -> Option<EntityAddress> {
        self.0
            .iter()
            .copied()
            .find(|address| address.kind == AddressKind::Msgr2 && address.socket.is_some())
    }

    /// Reads them: u8 2 and a list; or one address, in either of its forms.
    ///
    /// # Errors
    /// The bytes end, or are no addresses.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let mut ahead = from.clone();
        if ahead.u8("the marker of addresses")? == 2 {
            *from = ahead;
            return from.list(9, "addresses", EntityAddress::decode).map(Self);
        }
        let only = EntityAddress::decode(from)?;
        Ok(Self(if only.socket.is_some() { vec![only] } else { Vec::new() }))
    }

    /// Writes them as a list.
    pub fn encode(&self, into: &mut Encoder) {
        into.u8(2).list(self.0.iter(), |into, address| address.encode(into));
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[")?;
        for (index, address) in self.0.iter().enumerate() {
            write!(f, "{}{address}", if index == 0 { "" } else { "," })?;
        }
        write!(f, "]")
    }
}

/// A time since 1970: u32 seconds, u32 nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: u32,
    /// Nanoseconds of the second.
    pub nanos: u32,
}

impl Time {
    /// Reads one.
    ///
    /// # Errors
    /// The bytes end before.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        Ok(Self { seconds: from.u32("seconds")?, nanos: from.u32("nanoseconds")? })
    }

    /// Writes it.
    pub fn encode(self, into: &mut Encoder) {
        into.u32(self.seconds).u32(self.nanos);
    }
}

/// Reads a placement group: u8 1, s64 pool, u32 seed, s32 -1.
///
/// # Errors
/// The bytes end before.
pub fn decode_pg(from: &mut Decoder) -> Result<PgId, DecodeError> {
    from.u8("the version of a placement group")?;
    let pool = PoolId(from.i64("the pool of a placement group")?);
    let seed = from.u32("the seed of a placement group")?;
    from.i32("the preferred OSD of a placement group")?;
    Ok(PgId { pool, seed })
}

/// Writes a placement group.
pub fn encode_pg(pg: PgId, into: &mut Encoder) {
    into.u8(1).i64(pg.pool.0).u32(pg.seed).i32(-1);
}
