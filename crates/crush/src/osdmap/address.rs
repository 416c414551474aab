//! Addresses of daemons and clients, and times.
//!
//! | part | layout |
//! |---|---|
//! | addresses of a daemon | u8 2, list of addresses; or one address |
//! | address | u8 1, versioned: u32 kind, u32 nonce, u32 length, that many bytes of socket address |
//! | – older form | u32 0, u32 nonce, 128 bytes of socket address, whose family is big-endian |
//! | socket address | u16 family (2: IPv4, 10: IPv6), then as in the kernel's structures |
//! | time | u32 seconds since 1970, u32 nanoseconds |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::DecodeError;
use super::cursor::OsdMapCursor;
use super::writer::Writer;

/// `AF_INET` and `AF_INET6`, as on Linux.
const FAMILY_V4: u16 = 2;
const FAMILY_V6: u16 = 10;
/// Bytes of a socket address in the older form.
const STORAGE_LEN: usize = 128;
/// Bytes of the shortest address: marker, version, length, kind, nonce, length.
const MIN_ADDRESS_LEN: usize = 1 + 6 + 12;
const WHAT: &str = "an address";

/// The protocol that an address is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressKind {
    /// A blank address.
    #[default]
    None,
    /// Messenger 1.
    Legacy,
    /// Messenger 2.
    Msgr2,
    /// Any protocol: entries of blocklists.
    Any,
    /// A range of addresses; the nonce is the length of the prefix in bits.
    Range,
    /// A kind that this crate does not know.
    Other(u32),
}

impl AddressKind {
    fn from_number(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Legacy,
            2 => Self::Msgr2,
            3 => Self::Any,
            4 => Self::Range,
            other => Self::Other(other),
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Legacy => 1,
            Self::Msgr2 => 2,
            Self::Any => 3,
            Self::Range => 4,
            Self::Other(other) => other,
        }
    }
}

/// An address: a protocol, a socket address, and a number that differs at each start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The protocol.
    pub kind: AddressKind,
    /// Differs at each start of a daemon or client.
    pub nonce: u32,
    /// IP address and port; `None` for a blank address, and for families other than IP.
    pub socket: Option<SocketAddr>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = match self.kind {
            AddressKind::Legacy => "v1:",
            AddressKind::Msgr2 => "v2:",
            _ => "",
        };
        match self.socket {
            Some(socket) => write!(f, "{prefix}{socket}/{}", self.nonce),
            None => write!(f, "-"),
        }
    }
}

impl Address {
    /// An address for messenger 2.
    #[must_use]
    pub fn msgr2(socket: SocketAddr, nonce: u32) -> Self {
        Self { kind: AddressKind::Msgr2, nonce, socket: Some(socket) }
    }

    /// True if `other` lies in this range of a blocklist. Ports and nonces do not count.
    #[must_use]
    pub fn range_contains(&self, other: &Address) -> bool {
        let (Some(range), Some(socket)) = (self.socket, other.socket) else { return false };
        match (range.ip(), socket.ip()) {
            (IpAddr::V4(range), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32_u32.saturating_sub(self.nonce)).unwrap_or(0);
                range.to_bits() & mask == ip.to_bits() & mask
            }
            (IpAddr::V6(range), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(self.nonce)).unwrap_or(0);
                range.to_bits() & mask == ip.to_bits() & mask
            }
            _ => false,
        }
    }

    pub(super) fn decode(r: &mut OsdMapCursor<'_>) -> Result<Self, DecodeError> {
        let marker = r.u8(WHAT)?;
        Self::after_marker(r, marker)
    }

    fn after_marker(r: &mut OsdMapCursor<'_>, marker: u8) -> Result<Self, DecodeError> {
        match marker {
            0 => {
                r.take(3, WHAT)?;
                let nonce = r.u32(WHAT)?;
                let mut storage = OsdMapCursor::new(r.take(STORAGE_LEN, WHAT)?);
                let family = storage.u16(WHAT)?.swap_bytes();
                let socket = decode_socket(family, &mut storage)?;
                let kind = if socket.is_some() { AddressKind::Legacy } else { AddressKind::None };
                Ok(Self { kind, nonce, socket })
            }
            1 => {
                let mut fields = r.versioned(1, WHAT)?.fields;
                let kind = AddressKind::from_number(fields.u32(WHAT)?);
                let nonce = fields.u32(WHAT)?;
                let mut storage = fields.sub_blob(WHAT)?;
                let socket = match storage.left() {
                    0 => None,
                    _ => {
                        let family = storage.u16(WHAT)?;
                        decode_socket(family, &mut storage)?
                    }
                };
                Ok(Self { kind, nonce, socket })
            }
            marker => {
                let (what, offset) = ("the marker of an address", r.offset());
                Err(DecodeError::OutOfBounds { what, offset, value: marker.into(), min: 0, max: 1 })
            }
        }
    }

    /// Writes the address in the newer form.
    pub(super) fn encode(&self, out: &mut Writer) {
        out.u8(1);
        out.versioned(1, 1, |out| {
            out.u32(self.kind.number());
            out.u32(self.nonce);
            match self.socket {
                None => out.u32(0),
                Some(SocketAddr::V4(socket)) => {
                    out.u32(16);
                    out.u16(FAMILY_V4);
                    out.raw(&socket.port().to_be_bytes());
                    out.raw(&socket.ip().octets());
                    out.u64(0);
                }
                Some(SocketAddr::V6(socket)) => {
                    out.u32(28);
                    out.u16(FAMILY_V6);
                    out.raw(&socket.port().to_be_bytes());
                    out.raw(&socket.flowinfo().to_be_bytes());
                    out.raw(&socket.ip().octets());
                    out.u32(socket.scope_id());
                }
            }
        });
    }
}

fn decode_socket(family: u16, r: &mut OsdMapCursor<'_>) -> Result<Option<SocketAddr>, DecodeError> {
    Ok(match family {
        FAMILY_V4 => {
            let port = u16::from_be_bytes(r.array(WHAT)?);
            let ip = Ipv4Addr::from(r.array::<4>(WHAT)?);
            Some(SocketAddrV4::new(ip, port).into())
        }
        FAMILY_V6 => {
            let port = u16::from_be_bytes(r.array(WHAT)?);
            let flow = u32::from_be_bytes(r.array(WHAT)?);
            let ip = Ipv6Addr::from(r.array::<16>(WHAT)?);
            Some(SocketAddrV6::new(ip, port, flow, r.u32(WHAT)?).into())
        }
        _ => None,
    })
}

/// All addresses of a daemon, one for each protocol that it speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addresses(pub Vec<Address>);

impl Addresses {
    /// The address for messenger 2, if there is one.
    #[must_use]
    pub fn msgr2(&self) -> Option<Address> {
        let usable = |a: &&Address| a.kind == AddressKind::Msgr2 && a.socket.is_some();
        self.0.iter().find(usable).copied()
    }

    pub(super) fn decode(r: &mut OsdMapCursor<'_>) -> Result<Self, DecodeError> {
        match r.u8("addresses")? {
            2 => {
                let count = r.count(MIN_ADDRESS_LEN, "addresses")?;
                (0..count).map(|_| Address::decode(r)).collect::<Result<_, _>>().map(Self)
            }
            marker => {
                let only = Address::after_marker(r, marker)?;
                Ok(Self(if only.socket.is_some() { vec![only] } else { Vec::new() }))
            }
        }
    }

    pub(super) fn encode(&self, out: &mut Writer) {
        out.u8(2);
        out.count(self.0.len());
        self.0.iter().for_each(|address| address.encode(out));
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

/// A time since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: u32,
    /// Nanoseconds of the second.
    pub nanos: u32,
}

impl Time {
    pub(super) fn decode(r: &mut OsdMapCursor<'_>) -> Result<Self, DecodeError> {
        Ok(Self { seconds: r.u32("a time")?, nanos: r.u32("a time")? })
    }

    pub(super) fn encode(self, out: &mut Writer) {
        out.u32(self.seconds);
        out.u32(self.nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str, bits: u32) -> Address {
        let socket = Some(SocketAddr::new(text.parse().unwrap(), 0));
        Address { kind: AddressKind::Range, nonce: bits, socket }
    }

    fn contains(range: Address, text: &str) -> bool {
        let socket = SocketAddr::new(text.parse().unwrap(), 6800);
        range.range_contains(&Address::msgr2(socket, 3))
    }

    #[test]
    fn ranges_contain_their_addresses() {
        assert!(contains(range("10.9.0.0", 16), "10.9.255.1"));
        assert!(!contains(range("10.9.0.0", 16), "10.8.255.1"));
        assert!(contains(range("10.9.0.7", 32), "10.9.0.7"));
        assert!(!contains(range("10.9.0.7", 32), "10.9.0.6"));
        assert!(contains(range("0.0.0.0", 0), "1.2.3.4"));
        assert!(!contains(range("0.0.0.0", 0), "::1"));
        assert!(contains(range("fe80::", 10), "fe81::1"));
        assert!(!contains(range("fe80::", 16), "fe81::1"));
        assert!(contains(range("fe80::1", 128), "fe80::1"));
        assert!(contains(range("fe80::1", u32::MAX), "fe80::1"));
    }

    #[test]
    fn addresses_survive_and_the_older_form_is_read() {
        let v4: SocketAddr = "1.2.3.4:6789".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::7]:3300".parse().unwrap();
        let all = Addresses(vec![
            Address::msgr2(v4, 7),
            Address { kind: AddressKind::Legacy, nonce: 8, socket: Some(v6) },
            Address { kind: AddressKind::Other(9), nonce: 0, socket: None },
        ]);
        let mut out = Writer::new();
        all.encode(&mut out);
        let bytes = out.bytes;
        assert_eq!(Addresses::decode(&mut OsdMapCursor::new(&bytes)).as_ref(), Ok(&all));
        assert_eq!(all.msgr2(), Some(all.0[0]));
        assert_eq!(all.to_string(), "[v2:1.2.3.4:6789/7,v1:[2001:db8::7]:3300/8,-]");
        for len in 0..bytes.len() {
            assert!(Addresses::decode(&mut OsdMapCursor::new(&bytes[..len])).is_err());
        }

        let mut old = vec![0, 0, 0, 0, 7, 0, 0, 0, 0, 2];
        old.extend_from_slice(&6789_u16.to_be_bytes());
        old.extend_from_slice(&[1, 2, 3, 4]);
        old.resize(4 + 4 + STORAGE_LEN, 0);
        let only = Address { kind: AddressKind::Legacy, nonce: 7, socket: Some(v4) };
        let read = Addresses::decode(&mut OsdMapCursor::new(&old)).unwrap();
        assert_eq!(read, Addresses(vec![only]));
    }
}
