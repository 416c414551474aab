//! The encodings of cephx.
//!
//! Most structures begin with u8 version, and have no length. `sealed(x)` is u32 length and x
//! encrypted behind the magic number, for its usage ([`CryptoKey::seal`]).
//!
//! | Structure | Fields |
//! |---|---|
//! | server challenge | u8 1, u64 challenge |
//! | request | u16 kind, then as the kind says |
//! | 0x100 authenticate | u8 3, u64 client challenge, u64 proof, blob of the old ticket, u32 kinds of further tickets |
//! | 0x200 tickets | authorizer, u8 1, u32 kinds |
//! | reply | u16 kind, s32 status, tickets; to 0x100 also blob of the connection's secret, blob of further tickets |
//! | tickets | u8 1, u32 count; each u32 kind, u8 1, sealed(service ticket), u8 sealed?, blob or sealed(blob) of a ticket's blob |
//! | service ticket | u8 1, key, time of validity |
//! | blob of a ticket | u8 1, u64 number of the service's secret, blob |
//! | authorizer | u8 1, u64 global id, u32 kind, blob of the ticket, sealed(authorize) |
//! | authorize | u8 2, u64 nonce, u8 with challenge?, u64 challenge + 1 |
//! | reply to an authorizer | sealed(u8 2, u64 nonce + 1, string secret of the connection) |
//!
//! Ceph: `CephXAuthenticate` v3, `CephXTicketBlob` v1, `CephXAuthorize` v2, `CephXAuthorizeReply`
//! v1 and v2. They are the same in Ceph 16 to 20.

use bytes::Bytes;

use rand_chacha::rand_core::RngCore;

use super::CryptoKey;
use super::aes256::Usage;
use super::secret::OpenError;
use crate::encoding::{DecodeError, Decoder, Encoder, EntityKind, Time};

/// The request for a ticket of the monitors, by the client's key.
pub const GET_AUTH_SESSION_KEY: u16 = 0x0100;
/// The request for tickets of services, by the ticket of the monitors.
pub const GET_PRINCIPAL_SESSION_KEY: u16 = 0x0200;
/// The first byte of a payload for a monitor. An authorizer begins with 1.
pub const MODE_MONITOR: u8 = 10;

/// Why a part of a payload cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A value is wrong.
    #[error("{0}")]
    Decode(#[from] DecodeError),
    /// An encrypted part cannot be read.
    #[error("{what}: {cause}")]
    Sealed {
        /// The part.
        what: &'static str,
        /// Why.
        cause: OpenError,
    },
}

/// Reads `sealed(…)`.
///
/// # Errors
/// The bytes end, or another key encrypted them.
pub fn open_blob(
    from: &mut Decoder,
    key: &CryptoKey,
    usage: Usage,
    what: &'static str,
) -> Result<Decoder, WireError> {
    let blob = from.blob(what)?;
    key.open(usage, &blob).map_err(|cause| WireError::Sealed { what, cause })
}

/// A set of kinds of services, as a number with one bit each.
#[must_use]
pub fn kinds_bits(kinds: &[EntityKind]) -> u32 {
    kinds.iter().fold(0, |bits, &kind| bits | kind as u32)
}

/// Reads u8 version and u64, as in the challenges of monitors and services.
///
/// # Errors
/// The bytes end before.
pub fn decode_challenge(from: &mut Decoder) -> Result<u64, DecodeError> {
    from.u8("the version of a challenge")?;
    from.u64("a challenge")
}

/// Writes a challenge.
pub fn encode_challenge(challenge: u64, into: &mut Encoder) {
    into.u8(1).u64(challenge);
}

/// What a client shows to a service. The client cannot read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TicketBlob {
    /// The secret of the service that encrypts the blob.
    pub secret_id: u64,
    /// The encrypted bytes; empty for no ticket.
    pub bytes: Bytes,
}

impl TicketBlob {
    /// Reads one.
    ///
    /// # Errors
    /// The bytes end before.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        from.u8("the version of a ticket's blob")?;
        let secret_id = from.u64("the number of a ticket's secret")?;
        Ok(Self { secret_id, bytes: from.blob("a ticket's blob")? })
    }

    /// Writes it.
    pub fn encode(&self, into: &mut Encoder) {
        into.u8(1).u64(self.secret_id).blob(&self.bytes);
    }
}

/// The client's half of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTicket {
    /// The key that client and service share.
    pub session_key: CryptoKey,
    /// How long the ticket is good; zero is for ever.
    pub validity: Time,
}

/// A ticket of a reply: the kind of the service and both halves.
pub type NamedTicket = (u32, ServiceTicket, TicketBlob);

/// Reads the tickets of a reply. `key` opens the client's halves. A ticket's blob may be encrypted
/// once more, by the session key of the client's ticket for the monitors (`old_key`).
///
/// # Errors
/// The bytes are damaged, or other keys encrypted them.
pub fn decode_tickets(
    from: &mut Decoder,
    key: &CryptoKey,
    old_key: Option<&CryptoKey>,
) -> Result<Vec<NamedTicket>, WireError> {
    from.u8("the version of tickets")?;
    let count = from.count(15, "tickets")?;
    (0..count).map(|_| decode_ticket(from, key, old_key)).collect()
}

fn decode_ticket(
    from: &mut Decoder,
    key: &CryptoKey,
    old_key: Option<&CryptoKey>,
) -> Result<NamedTicket, WireError> {
    let kind = from.u32("the kind of a ticket")?;
    from.u8("the version of a ticket")?;
    let mut half = open_blob(from, key, Usage::TicketKey, "a ticket")?;
    half.u8("the version of a ticket")?;
    let session_key = CryptoKey::decode(&mut half)?;
    let service = ServiceTicket { session_key, validity: Time::decode(&mut half)? };

    let offset = from.offset();
    let what = "the encryption of a ticket's blob";
    let mut blob = match (from.u8(what)?, old_key) {
        (0, _) => Decoder::new(from.blob("a ticket's blob")?),
        (_, Some(old_key)) => {
            let mut plain = open_blob(from, old_key, Usage::TicketBlob, "a ticket's blob")?;
            Decoder::new(plain.blob("a ticket's blob")?)
        }
        (sealed, None) => return Err(Decoder::refused(offset, sealed.into(), what).into()),
    };
    Ok((kind, service, TicketBlob::decode(&mut blob)?))
}

/// Writes the tickets of a reply.
pub fn encode_tickets(
    tickets: &[NamedTicket],
    key: &CryptoKey,
    old_key: Option<&CryptoKey>,
    rng: &mut impl RngCore,
    into: &mut Encoder,
) {
    into.u8(1).list(tickets.iter(), |into, (kind, service, blob)| {
        let half = key.seal(Usage::TicketKey, rng, |half| {
            half.u8(1);
            service.session_key.encode(half);
            service.validity.encode(half);
        });
        into.u32(*kind).u8(1).blob(&half);
        let mut plain = Encoder::new();
        blob.encode(&mut plain);
        let plain = plain.into_vec();
        match old_key {
            None => into.u8(0).blob(&plain),
            Some(old_key) => into.u8(1).blob(&old_key.seal(Usage::TicketBlob, rng, |sealed| {
                sealed.blob(&plain);
            })),
        };
    });
}

/// The request for a ticket of the monitors, without the kind of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticate {
    /// The version: from 3 on a client that keeps its global id must show its old ticket.
    pub version: u8,
    /// A random number of the client.
    pub client_challenge: u64,
    /// Both challenges, encrypted and folded.
    pub proof: u64,
    /// The ticket that a client shows which keeps its global id.
    pub old_ticket: TicketBlob,
    /// The services for which the client wants tickets too.
    pub other_kinds: u32,
}

impl Authenticate {
    /// Reads one.
    ///
    /// # Errors
    /// The bytes end before.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let version = from.u8("the version of an answer to a challenge")?;
        let client_challenge = from.u64("a client's challenge")?;
        let proof = from.u64("a client's proof")?;
        let old_ticket = TicketBlob::decode(from)?;
        let other_kinds = if version >= 2 { from.u32("the kinds of tickets")? } else { 0 };
        Ok(Self { version, client_challenge, proof, old_ticket, other_kinds })
    }

    /// Writes it.
    pub fn encode(&self, into: &mut Encoder) {
        into.u8(self.version).u64(self.client_challenge).u64(self.proof);
        self.old_ticket.encode(into);
        into.u32(self.other_kinds);
    }
}

/// The part of an authorizer that the session key encrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authorize {
    /// A random number of the client.
    pub nonce: u64,
    /// The service's challenge plus one, if there was one.
    pub challenge_plus_one: Option<u64>,
}

impl Authorize {
    /// Reads one.
    ///
    /// # Errors
    /// The bytes end before.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let version = from.u8("the version of an authorizer")?;
        let nonce = from.u64("the nonce of an authorizer")?;
        let mut challenge_plus_one = None;
        if version >= 2 && from.bool("whether an authorizer has a challenge")? {
            challenge_plus_one = Some(from.u64("the challenge of an authorizer")?);
        }
        Ok(Self { nonce, challenge_plus_one })
    }

    /// Writes it.
    pub fn encode(self, into: &mut Encoder) {
        into.u8(2).u64(self.nonce).bool(self.challenge_plus_one.is_some());
        into.u64(self.challenge_plus_one.unwrap_or(0));
    }
}

/// What a client shows to a service, or to a monitor for more tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorizer {
    /// The client's global id.
    pub global_id: u64,
    /// The kind of the service.
    pub kind: u32,
    /// The ticket.
    pub blob: TicketBlob,
}

impl Authorizer {
    /// Reads the open part. The sealed part follows.
    ///
    /// # Errors
    /// The bytes end before.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        from.u8("the version of an authorizer")?;
        let global_id = from.u64("the global id of an authorizer")?;
        let kind = from.u32("the service of an authorizer")?;
        Ok(Self { global_id, kind, blob: TicketBlob::decode(from)? })
    }

    /// Writes the open part, and the sealed part behind it.
    pub fn encode(
        &self,
        key: &CryptoKey,
        authorize: Authorize,
        rng: &mut impl RngCore,
        into: &mut Encoder,
    ) {
        into.u8(1).u64(self.global_id).u32(self.kind);
        self.blob.encode(into);
        into.blob(&key.seal(Usage::Authorize, rng, |sealed| authorize.encode(sealed)));
    }
}

/// A service's answer to an authorizer.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorizeReply {
    /// The nonce of the authorizer plus one.
    pub nonce_plus_one: u64,
    /// The secret of the connection; empty in mode crc.
    pub connection_secret: Vec<u8>,
}

impl AuthorizeReply {
    /// Reads one.
    ///
    /// # Errors
    /// The bytes end before.
    pub fn decode(from: &mut Decoder) -> Result<Self, DecodeError> {
        let version = from.u8("the version of a reply to an authorizer")?;
        let nonce_plus_one = from.u64("the nonce of a reply to an authorizer")?;
        let mut connection_secret = Vec::new();
        if version >= 2 {
            connection_secret = from.blob("the secret of a connection")?.to_vec();
        }
        Ok(Self { nonce_plus_one, connection_secret })
    }

    /// Writes it.
    pub fn encode(&self, into: &mut Encoder) {
        let has_secret = !self.connection_secret.is_empty();
        into.u8(if has_secret { 2 } else { 1 }).u64(self.nonce_plus_one);
        if has_secret {
            into.blob(&self.connection_secret);
        }
    }
}

/// The head of a monitor's reply: the kind of the request, and a result.
///
/// # Errors
/// The bytes end before.
pub fn decode_reply_header(from: &mut Decoder) -> Result<(u16, i32), DecodeError> {
    Ok((from.u16("the kind of a reply")?, from.i32("the status of a reply")?))
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_chacha::rand_core::SeedableRng;

    use super::*;
    use crate::auth::KeyKind;

    fn bytes(encode: impl FnOnce(&mut Encoder)) -> Vec<u8> {
        let mut into = Encoder::new();
        encode(&mut into);
        into.into_vec()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Written down from the description of the structures, by hand.
    #[test]
    fn golden_authenticate() {
        let old_ticket = TicketBlob { secret_id: 3, bytes: Bytes::from_static(b"blob") };
        let request = Authenticate {
            version: 3,
            client_challenge: 1,
            proof: 2,
            old_ticket,
            other_kinds: kinds_bits(&[EntityKind::Osd, EntityKind::Manager]),
        };
        let encoded = bytes(|into| request.encode(into));
        let parts = [
            "03",
            "0100000000000000",
            "0200000000000000",
            "01",
            "0300000000000000",
            "04000000",
            "626c6f62",
            "14000000",
        ];
        assert_eq!(hex(&encoded), parts.concat());
        let mut from = Decoder::new(encoded.into());
        assert_eq!(Authenticate::decode(&mut from), Ok(request));
        assert!(from.is_empty());
    }

    #[test]
    fn golden_authorize() {
        let authorize = Authorize { nonce: 1234, challenge_plus_one: Some(0x0102) };
        let encoded = bytes(|into| authorize.encode(into));
        assert_eq!(hex(&encoded), "02d204000000000000010201000000000000");
        assert_eq!(Authorize::decode(&mut Decoder::new(encoded.into())), Ok(authorize));
        let old = [&[1_u8][..], &7_u64.to_le_bytes()].concat();
        let old = Authorize::decode(&mut Decoder::new(old.into()));
        assert_eq!(old, Ok(Authorize { nonce: 7, challenge_plus_one: None }));
    }

    #[test]
    fn golden_replies_to_authorizers() {
        for (secret, golden) in [
            (&b""[..], "017b00000000000000"),
            (&b"secret"[..], "027b0000000000000006000000736563726574"),
        ] {
            let reply = AuthorizeReply { nonce_plus_one: 123, connection_secret: secret.to_vec() };
            let encoded = bytes(|into| reply.encode(into));
            assert_eq!(hex(&encoded), golden);
            let decoded = AuthorizeReply::decode(&mut Decoder::new(encoded.into())).expect("valid");
            assert!(decoded == reply);
        }
    }

    #[test]
    fn tickets_there_and_back() {
        for kind in [KeyKind::Aes128, KeyKind::Aes256] {
            tickets_of(kind);
        }
    }

    fn tickets_of(kind: KeyKind) {
        let validity = Time { seconds: 3600, nanos: 0 };
        let mut rng = ChaCha20Rng::from_seed([4; 32]);
        let [key, old_key, session_key] =
            [1, 2, 3].map(|_| CryptoKey::generate_kind(kind, &mut rng));
        let service = ServiceTicket { session_key, validity };
        let blob = TicketBlob { secret_id: 9, bytes: Bytes::from_static(b"for the service") };
        let tickets = vec![(4, service, blob)];
        for old in [None, Some(&old_key)] {
            let encoded =
                Bytes::from(bytes(|into| encode_tickets(&tickets, &key, old, &mut rng, into)));
            let read = |bytes: Bytes, old| decode_tickets(&mut Decoder::new(bytes), &key, old);
            assert_eq!(read(encoded.clone(), Some(&old_key)), Ok(tickets.clone()));
            assert_eq!(read(encoded.clone(), None).is_ok(), old.is_none());
            assert_eq!(read(encoded.clone(), Some(&key)).is_ok(), old.is_none());
            for len in 0..encoded.len() {
                assert!(read(encoded.slice(..len), Some(&old_key)).is_err());
            }
        }
    }
}
