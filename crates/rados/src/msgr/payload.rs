//! The payloads of control frames.

use bytes::Bytes;

use crate::encoding::{Addresses, DecodeError, Decoder, Encoder, EntityAddress};

/// `HELLO`: u8 kind of the sender, the address at which it sees the receiver.
pub(super) struct Hello {
    pub(super) kind: u8,
    pub(super) seen_as: EntityAddress,
}

impl Hello {
    pub(super) fn encode(&self) -> Bytes {
        let mut to = Encoder::with_capacity(40);
        to.u8(self.kind);
        self.seen_as.encode(&mut to);
        to.finish()
    }

    pub(super) fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(payload);
        let kind = from.u8("the kind of an entity")?;
        Ok(Self { kind, seen_as: EntityAddress::decode(&mut from)? })
    }
}

/// `AUTH_REQUEST`: u32 method, list of u32 modes, blob.
pub(super) struct AuthRequest {
    pub(super) method: u32,
    pub(super) modes: Vec<u32>,
    pub(super) payload: Bytes,
}

impl AuthRequest {
    pub(super) fn encode(request: &crate::auth::AuthRequest) -> Bytes {
        let mut to = Encoder::with_capacity(64 + request.payload.len());
        to.u32(request.method);
        numbers(&mut to, request.modes.iter().map(|&mode| mode as u32));
        to.blob(&request.payload);
        to.finish()
    }

    pub(super) fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(payload);
        Ok(Self {
            method: from.u32("an authentication method")?,
            modes: read_numbers(&mut from, "the modes of a client")?,
            payload: from.blob("an authentication payload")?,
        })
    }
}

/// `AUTH_BAD_METHOD`: u32 method, s32 negative error number, lists of u32 methods and modes.
pub(super) struct AuthBadMethod {
    pub(super) method: u32,
    pub(super) result: i32,
    pub(super) methods: Vec<u32>,
    pub(super) modes: Vec<u32>,
}

impl AuthBadMethod {
    pub(super) fn encode(&self) -> Bytes {
        let mut to = Encoder::new();
        to.u32(self.method).i32(self.result);
        numbers(&mut to, self.methods.iter().copied());
        numbers(&mut to, self.modes.iter().copied());
        to.finish()
    }

    pub(super) fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(payload);
        Ok(Self {
            method: from.u32("an authentication method")?,
            result: from.i32("an error number")?,
            methods: read_numbers(&mut from, "the methods of a server")?,
            modes: read_numbers(&mut from, "the modes of a server")?,
        })
    }
}

/// `AUTH_REPLY_MORE` and `AUTH_REQUEST_MORE`: a blob.
pub(super) fn encode_blob(bytes: &[u8]) -> Bytes {
    let mut to = Encoder::with_capacity(4 + bytes.len());
    to.blob(bytes);
    to.finish()
}

pub(super) fn decode_blob(payload: Bytes) -> Result<Bytes, DecodeError> {
    Decoder::new(payload).blob("an authentication payload")
}

/// `AUTH_DONE`: u64 global id, u32 mode, blob.
pub(super) struct AuthDone {
    pub(super) global_id: u64,
    pub(super) mode: u32,
    pub(super) payload: Bytes,
}

impl AuthDone {
    pub(super) fn encode(&self) -> Bytes {
        let mut to = Encoder::with_capacity(16 + self.payload.len());
        to.u64(self.global_id).u32(self.mode).blob(&self.payload);
        to.finish()
    }

    pub(super) fn decode(payload: Bytes) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(payload);
        Ok(Self {
            global_id: from.u64("a global id")?,
            mode: from.u32("the mode of a connection")?,
            payload: from.blob("an authentication payload")?,
        })
    }
}

/// `CLIENT_IDENT` and `SERVER_IDENT`: addresses of the sender; from a client also the address that
/// it wants to reach; s64 number of the sender, u64 global sequence number, u64 supported and u64
/// required features, u64 flags, u64 cookie.
pub(super) struct Ident {
    pub(super) addresses: Addresses,
    pub(super) target: Option<EntityAddress>,
    pub(super) number: i64,
    pub(super) global_seq: u64,
    pub(super) supported: u64,
    pub(super) required: u64,
    pub(super) flags: u64,
    pub(super) cookie: u64,
}

impl Ident {
    pub(super) fn encode(&self) -> Bytes {
        let mut to = Encoder::with_capacity(160);
        self.addresses.encode(&mut to);
        if let Some(target) = self.target {
            target.encode(&mut to);
        }
        to.i64(self.number).u64(self.global_seq).u64(self.supported).u64(self.required);
        to.u64(self.flags).u64(self.cookie);
        to.finish()
    }

    fn decode(payload: Bytes, with_target: bool) -> Result<Self, DecodeError> {
        let mut from = Decoder::new(payload);
        let addresses = Addresses::decode(&mut from)?;
        let target = if with_target { Some(EntityAddress::decode(&mut from)?) } else { None };
        Ok(Self {
            addresses,
            target,
            number: from.i64("the number of an entity")?,
            global_seq: from.u64("a global sequence number")?,
            supported: from.u64("supported features")?,
            required: from.u64("required features")?,
            flags: from.u64("the flags of a session")?,
            cookie: from.u64("the cookie of a session")?,
        })
    }

    pub(super) fn decode_client(payload: Bytes) -> Result<Self, DecodeError> {
        Self::decode(payload, true)
    }

    pub(super) fn decode_server(payload: Bytes) -> Result<Self, DecodeError> {
        Self::decode(payload, false)
    }
}

/// `IDENT_MISSING_FEATURES` and `ACK`: a u64.
pub(super) fn decode_number(payload: Bytes, what: &'static str) -> Result<u64, DecodeError> {
    Decoder::new(payload).u64(what)
}

fn numbers(to: &mut Encoder, numbers: impl ExactSizeIterator<Item = u32>) {
    to.list(numbers, |to, number| {
        to.u32(number);
    });
}

fn read_numbers(from: &mut Decoder, what: &'static str) -> Result<Vec<u32>, DecodeError> {
    from.list(4, what, |from| from.u32(what))
}
