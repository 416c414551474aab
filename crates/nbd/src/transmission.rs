//! Checks requests: finds the operation that a header requests, and whether it is allowed.
//!
//! [`check_request`] is a pure function from a header, the export and the agreed options to a
//! [`CheckResult`]. If a request has several faults, the order of the checks decides which error
//! it gets: unknown command, flag, read-only export, reserved fields, length, range.
//!
//! A range is checked here only against the size that this client was told, which no one else
//! knows: the device may have grown since. The device's stack checks the range against the device.
//!
//! | fault | error |
//! |---|---|
//! | unknown command; unknown flag, or one that does not belong to the command | `EINVAL` |
//! | write, trim or write-zeroes on a read-only export | `EPERM` |
//! | block status without a selected context, or of no bytes | `EINVAL` |
//! | payload over 32 MiB: write | `EINVAL` |
//! | payload over 32 MiB: read, cache | `EOVERFLOW` (read without structured replies: `EINVAL`) |
//! | range past the end: write, write-zeroes | `ENOSPC` |
//! | range past the end: all others | `EINVAL` |
//!
//! FUA is valid on every command, as the specification demands. It changes nothing on commands that
//! do not write. Requests of zero bytes that pass the checks succeed at once.

use fieldstone_block::{Op, RequestFlags};
use zerocopy::FromBytes;

use crate::errors::{Errno, Violation};
use crate::export::Export;
use crate::limits::MAX_PAYLOAD_BYTES;
use crate::negotiation::Agreed;
use crate::slots::Kind;
use crate::wire::{REQUEST_HEADER_BYTES, REQUEST_MAGIC, RequestHeader, cmd, cmd_flag};

/// A request header in native integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset_bytes: u64,
    pub len_bytes: u32,
}

impl Command {
    /// The header at the start of `bytes`; `None` until it is complete.
    pub fn parse(bytes: &[u8]) -> Option<Result<Self, Violation>> {
        let header = RequestHeader::ref_from_bytes(bytes.get(..REQUEST_HEADER_BYTES)?).ok()?;
        if header.magic.get() != REQUEST_MAGIC {
            return Some(Err(Violation::RequestMagic { magic: header.magic.get() }));
        }
        Some(Ok(Self {
            flags: header.flags.get(),
            command: header.command.get(),
            cookie: header.cookie.get(),
            offset_bytes: header.offset.get(),
            len_bytes: header.length.get(),
        }))
    }

    /// Bytes that follow the header.
    pub fn payload_bytes(&self) -> u32 {
        if self.command == cmd::WRITE { self.len_bytes } else { 0 }
    }
}

/// The result of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckResult {
    /// Pass the request on.
    Submit { op: Op, kind: Kind, flags: RequestFlags },
    /// The request succeeds without any work.
    Done(Kind),
    /// The request fails.
    Fail(Failure),
    /// The client ends the session.
    Disconnect,
}

/// A failure that the session itself detects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub errno: Errno,
    pub message: &'static str,
}

fn fail<T>(errno: Errno, message: &'static str) -> Result<T, Failure> {
    Err(Failure { errno, message })
}

pub(crate) fn check_request(command: &Command, export: &Export, agreed: Agreed) -> CheckResult {
    if command.command == cmd::DISC {
        return CheckResult::Disconnect;
    }
    match check(command, export, agreed) {
        Ok((_, kind)) if command.len_bytes == 0 && kind != Kind::Flush => CheckResult::Done(kind),
        Ok((op, kind)) => {
            let has = |bit| command.flags & bit != 0;
            let flags = RequestFlags {
                fua: has(cmd_flag::FUA) && matches!(op, Op::Write | Op::Trim | Op::WriteZeroes),
                no_hole: has(cmd_flag::NO_HOLE),
                fast_zero: has(cmd_flag::FAST_ZERO),
            };
            CheckResult::Submit { op, kind, flags }
        }
        Err(failure) => CheckResult::Fail(failure),
    }
}

fn check(command: &Command, export: &Export, agreed: Agreed) -> Result<(Op, Kind), Failure> {
    let (op, kind) = classify(command)?;
    let df = if agreed.structured { cmd_flag::DF } else { 0 };
    let valid = cmd_flag::FUA
        | match kind {
            Kind::Read { .. } => df,
            Kind::WriteZeroes { .. } => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
            Kind::BlockStatus { .. } => cmd_flag::REQ_ONE,
            Kind::Write | Kind::Flush | Kind::Trim | Kind::Cache => 0,
        };
    if command.flags & !valid != 0 {
        return fail(Errno::Inval, "a flag is unknown or does not belong to this command");
    }
    if export.read_only && matches!(kind, Kind::Write | Kind::Trim | Kind::WriteZeroes { .. }) {
        return fail(Errno::Perm, "the export is read-only");
    }
    if kind == Kind::Flush {
        return if command.offset_bytes == 0 && command.len_bytes == 0 {
            Ok((op, kind))
        } else {
            fail(Errno::Inval, "offset and length of a flush must be zero")
        };
    }
    if matches!(kind, Kind::BlockStatus { .. }) {
        if !agreed.allocation {
            return fail(Errno::Inval, "no metadata context is selected for this export");
        }
        if command.len_bytes == 0 {
            return fail(Errno::Inval, "a block status of no bytes has no extent");
        }
    }
    check_length(command, kind, agreed)?;
    check_agreed_size(command, kind, export)?;
    Ok((op, kind))
}

fn classify(command: &Command) -> Result<(Op, Kind), Failure> {
    let has = |bit| command.flags & bit != 0;
    Ok(match command.command {
        cmd::READ => (Op::Read, Kind::Read { whole: has(cmd_flag::DF) }),
        cmd::WRITE => (Op::Write, Kind::Write),
        cmd::FLUSH => (Op::Flush, Kind::Flush),
        cmd::TRIM => (Op::Trim, Kind::Trim),
        cmd::CACHE => (Op::Read, Kind::Cache),
        cmd::WRITE_ZEROES => {
            (Op::WriteZeroes, Kind::WriteZeroes { fast: has(cmd_flag::FAST_ZERO) })
        }
        cmd::BLOCK_STATUS => (Op::Extents, Kind::BlockStatus { one: has(cmd_flag::REQ_ONE) }),
        _ => return fail(Errno::Inval, "unknown command"),
    })
}

/// The bound on payloads that the server announced.
fn check_length(command: &Command, kind: Kind, agreed: Agreed) -> Result<(), Failure> {
    if command.len_bytes > MAX_PAYLOAD_BYTES {
        match kind {
            Kind::Read { .. } if !agreed.structured => {
                return fail(Errno::Inval, "a read is longer than 32 MiB");
            }
            Kind::Read { .. } | Kind::Cache => {
                return fail(Errno::Overflow, "a read is longer than 32 MiB");
            }
            Kind::Write => return fail(Errno::Inval, "a write is longer than 32 MiB"),
            Kind::Flush | Kind::Trim | Kind::WriteZeroes { .. } | Kind::BlockStatus { .. } => {}
        }
    }
    Ok(())
}

/// The size that this client was told. A client must not reach what it does not know of, so that
/// its errors do not depend on when the device grows. A write that is refused here needs no memory
/// for its payload.
fn check_agreed_size(command: &Command, kind: Kind, export: &Export) -> Result<(), Failure> {
    let end = command.offset_bytes.checked_add(u64::from(command.len_bytes));
    if end.is_some_and(|end| end <= export.size_bytes) {
        return Ok(());
    }
    match kind {
        Kind::Write | Kind::WriteZeroes { .. } => fail(Errno::NoSpc, "the range passes the end"),
        _ => fail(Errno::Inval, "the range passes the end"),
    }
}
