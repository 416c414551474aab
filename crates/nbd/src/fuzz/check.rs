//! The grammar of the server's output: each message must be one that the protocol allows there.

use crate::errors::Errno;
use crate::wire::{
    CHUNK_MAGIC, EXPORT_NAME_ZEROES, Fields, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    SIMPLE_REPLY_MAGIC, chunk, rep,
};

/// The expected content of a part of the output.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    /// The server's first bytes.
    Greeting,
    /// The replies to one option, or the answer to `EXPORT_NAME`.
    Negotiation,
    /// Exactly one reply. If it is a successful simple one, it has `data` bytes of data.
    Reply { data: usize },
}

pub(super) fn check(expected: Expected, message: &[u8], structured: bool) {
    let mut fields = Fields(message);
    match expected {
        Expected::Greeting => {
            assert_eq!((fields.u64(), fields.u64()), (Some(INIT_MAGIC), Some(OPTION_MAGIC)));
            assert_eq!(fields.0.len(), 2);
        }
        Expected::Negotiation => negotiation(fields),
        Expected::Reply { data } => match fields.u32() {
            Some(SIMPLE_REPLY_MAGIC) => simple_reply(fields, data, structured),
            Some(CHUNK_MAGIC) if structured => chunks(message),
            other => panic!("a reply starts with {other:x?}"),
        },
    }
}

fn negotiation(mut fields: Fields) {
    let len = fields.0.len();
    if fields.u64() != Some(OPTION_REPLY_MAGIC) {
        assert!(len == 10 || len == 10 + EXPORT_NAME_ZEROES, "neither option reply nor export");
        return;
    }
    let mut option = None;
    loop {
        let code = fields.u32().expect("option");
        assert_eq!(*option.get_or_insert(code), code, "replies to two options in one answer");
        let reply_type = fields.u32().expect("type");
        fields.string().expect("length and data");
        let last = reply_type == rep::ACK || reply_type & rep::ERROR_BIT != 0;
        if last {
            assert!(fields.0.is_empty(), "more replies after the last");
            return;
        }
        assert_eq!(fields.u64(), Some(OPTION_REPLY_MAGIC), "no last reply");
    }
}

fn simple_reply(mut fields: Fields, data: usize, structured: bool) {
    let error = fields.u32().expect("error");
    fields.u64().expect("cookie");
    let with_data = error == 0 && !structured;
    assert!(fields.0.is_empty() || (with_data && fields.0.len() == data), "wrong amount of data");
    check_errno(error, true);
}

fn chunks(message: &[u8]) {
    let mut fields = Fields(message);
    let mut reply_cookie = None;
    loop {
        assert_eq!(fields.u32(), Some(CHUNK_MAGIC));
        let last = fields.u16().expect("flags") == chunk::DONE;
        let chunk_type = fields.u16().expect("type");
        let cookie = fields.u64().expect("cookie");
        assert_eq!(*reply_cookie.get_or_insert(cookie), cookie, "chunks of two replies");
        let payload = fields.string().expect("length and payload");
        let mut inner = Fields(payload);
        match chunk_type {
            chunk::NONE => assert!(payload.is_empty() && last),
            chunk::OFFSET_DATA => assert!(payload.len() > 8),
            chunk::OFFSET_HOLE => {
                inner.u64().expect("offset");
                assert!(inner.u32().is_some_and(|len| len > 0) && inner.0.is_empty());
            }
            chunk::BLOCK_STATUS => assert!(payload.len() >= 12 && (payload.len() - 4) % 8 == 0),
            chunk::ERROR => {
                check_errno(inner.u32().expect("error"), false);
                let len = inner.u16().expect("message length");
                assert_eq!(inner.0.len(), usize::from(len));
                assert!(std::str::from_utf8(inner.0).is_ok());
            }
            other => panic!("chunk type {other:#x}"),
        }
        if last {
            assert!(fields.0.is_empty(), "more chunks after the last");
            return;
        }
    }
}

fn check_errno(code: u32, zero_is_fine: bool) {
    let known = Errno::ALL.iter().any(|errno| errno.code() == code);
    assert!(known || (zero_is_fine && code == 0), "error {code}");
}
