//! New tickets over the open session with a monitor.
//!
//! The request and its answer are the payloads of the messages `MAuth` and `MAuthReply`, with
//! protocol 2. Two requests exist:
//!
//! * The ticket for monitors is still fresh: request 0x200, an authorizer by that ticket and the
//!   kinds of services. There is no challenge. The answer has the tickets, encrypted by the session
//!   key of the ticket for monitors.
//! * The ticket for monitors is due too (after days): request 0x100 as in the handshake. The
//!   challenge is that of the handshake of this session, and the client shows its old ticket,
//!   because it keeps its global id. The answer is as in the handshake, without a secret of the
//!   connection.
//!
//! A client that cannot renew has to open a new session: that brings new tickets as well.

use bytes::Bytes;

use super::AuthError;
use super::credentials::{SERVICES, Shared};
use super::monitor::{damaged, prove, read_grant, unreadable};
use super::wire::{
    Authorize, Authorizer, GET_AUTH_SESSION_KEY, GET_PRINCIPAL_SESSION_KEY, decode_reply_header,
    decode_tickets, kinds_bits,
};
use crate::encoding::{Decoder, Encoder, EntityKind};
use crate::errno::Errno;

/// The payload of a request for the tickets that are due.
pub(super) fn request(shared: &mut Shared, due: &[EntityKind]) -> Option<Bytes> {
    if shared.global_id == 0 {
        return None;
    }
    let nonce = shared.random();
    let old = shared.old_ticket()?;
    if due.contains(&EntityKind::Auth) {
        shared.renewal_asks = SERVICES.to_vec();
        return prove(shared, shared.server_challenge, Some(&old)).ok();
    }
    let kinds = if due.is_empty() { &SERVICES } else { due };
    shared.renewal_asks = kinds.to_vec();
    let (blob, session_key) = old;
    let (global_id, kind) = (shared.global_id, EntityKind::Auth as u32);
    let mut into = Encoder::new();
    into.u16(GET_PRINCIPAL_SESSION_KEY);
    let authorize = Authorize { nonce, challenge_plus_one: None };
    Authorizer { global_id, kind, blob }.encode(
        &session_key,
        authorize,
        &mut shared.rng,
        &mut into,
    );
    into.u8(1).u32(kinds_bits(kinds));
    Some(into.finish())
}

/// Takes the answer of a monitor.
pub(super) fn take(shared: &mut Shared, result: i32, payload: Bytes) -> Result<(), AuthError> {
    let refused = |status: i32| {
        let (entity, errno) = (&shared.entity, Errno(status.saturating_abs()));
        AuthError::other(format!("a monitor refuses new tickets for {entity}: {errno}"))
    };
    if result < 0 {
        return Err(refused(result));
    }
    let mut from = Decoder::new(payload);
    let (kind, status) = decode_reply_header(&mut from).map_err(|error| damaged(&error))?;
    if status < 0 {
        return Err(refused(status));
    }
    let old_key = shared.old_ticket().map(|(_, key)| key);
    let key = match kind {
        GET_AUTH_SESSION_KEY => shared.key.clone(),
        GET_PRINCIPAL_SESSION_KEY => old_key.clone(),
        other => return Err(AuthError::other(format!("a monitor answers the request {other:#x}"))),
    };
    let key = key.ok_or_else(|| AuthError::other("a monitor answers what was not asked"))?;
    let tickets = if kind == GET_AUTH_SESSION_KEY {
        read_grant(&mut from, &key, old_key.as_ref()).map(|grant| grant.tickets)
    } else {
        decode_tickets(&mut from, &key, None)
    };
    let tickets = tickets.map_err(|error| unreadable(shared, &error))?;
    let asked = std::mem::take(&mut shared.renewal_asks);
    let now = shared.clock;
    if shared.take_tickets(tickets, &asked, now) {
        shared.renewal_began = None;
    }
    Ok(())
}
