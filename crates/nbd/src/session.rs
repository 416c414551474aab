//! One connection, from greeting to close: the state machine that ties the other modules together.
//!
//! ```text
//! Negotiating --GO, EXPORT_NAME--> Transmission --DISC--> Closing --all replies taken--> Closed
//!      |  ABORT                        |                     ^
//!      +-------------------------------+-----violation-------+
//! ```
//!
//! The caller drives decoding: [`Session::received`] only notes that bytes arrived.
//! [`Session::next_request`] decodes one message after another until one of them is a request for
//! the backend. So a request leaves at once or stays undecoded in the receive buffer, and the
//! bounds of [`Limits`] need no queue of decoded requests.

use std::sync::Arc;

use bytes::Bytes;
use fieldstone_block::{
    Completion, Nanos, Op, QueueId, ReadDestination, Request, RequestFlags, Stage, Stamps,
};
use fieldstone_buf::{AlignedBuf, Budget};
use zerocopy::FromBytes;

use crate::errors::{Errno, Violation};
use crate::export::{ExportIndex, ExportList};
use crate::inbox::Inbox;
use crate::limits::{LARGE_WRITE_BYTES, Limits};
use crate::memory_lease::MemoryLease;
use crate::negotiation::{After, Agreed, Negotiation, Replies, greet};
use crate::outbox::Outbox;
use crate::reply::Replier;
use crate::slots::{InFlightRequest, Kind, Slots};
use crate::transmission::{CheckResult, Command, Failure, check_request};
use crate::wire::{
    OPTION_HEADER_BYTES, OPTION_MAGIC, OptionHeader, REQUEST_HEADER_BYTES, opt, rep,
};

/// The phase of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionPhase {
    /// Client and server exchange options.
    Negotiating,
    /// The session serves requests to this export.
    Transmission(ExportIndex),
    /// The session reads no more. Some replies are not completed or not taken yet.
    Closing,
    /// No work is left: close the socket once the taken output is sent.
    Closed,
}

/// The kind of the next bytes.
#[derive(Debug)]
enum Expect {
    ClientFlags,
    Option,
    Request,
    /// The rest of a large write.
    Payload {
        command: Command,
        flags: RequestFlags,
    },
    /// Bytes to skip before the session answers with an error.
    Skip {
        left_bytes: u32,
        then: Deferred,
    },
}

#[derive(Clone, Copy, Debug)]
enum Deferred {
    OptionTooBig { option: u32 },
    Fail { cookie: u64, failure: Failure },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    /// The client ends the session. Requests in flight still get answers.
    Drain,
    /// The connection is lost or broken. The session drops completions.
    Drop,
}

/// The result of one decoding step.
pub(crate) enum Step {
    /// No step: bytes are missing, or a bound is reached.
    Idle,
    /// A message was handled.
    Progress,
    /// A message was a request.
    Request(ExportIndex, Request),
}

/// The server's side of one NBD connection. See the crate's head for how to drive it.
#[derive(Debug)]
pub struct Session {
    exports: Arc<ExportList>,
    limits: Limits,
    inbox: Inbox,
    outbox: Outbox,
    slots: Slots,
    negotiation: Negotiation,
    agreed: Option<Agreed>,
    expect: Expect,
    leaving: Leaving,
    violation: Option<Violation>,
    now: Nanos,
    options_seen: u32,
    /// Payload bytes of the requests in flight.
    charged_bytes: usize,
    /// Bytes of taken output that are not sent yet. Counted only where sessions share memory.
    sending_bytes: usize,
    /// This session's part of the shared memory.
    memory_lease: MemoryLease,
    /// The last step ended at a bound, not because bytes were missing.
    stalled: bool,
    shutting_down: bool,
}

impl Session {
    /// A session that offers `exports`. Its greeting is ready to take.
    #[must_use]
    pub fn new(exports: Arc<ExportList>, limits: Limits) -> Self {
        let limits = limits.corrected();
        let mut outbox = Outbox::default();
        greet(&mut outbox);
        Self {
            exports,
            limits,
            inbox: Inbox::new(limits.option_bytes().min(limits.receive_bytes)),
            outbox,
            slots: Slots::default(),
            negotiation: Negotiation::default(),
            agreed: None,
            expect: Expect::ClientFlags,
            leaving: Leaving::No,
            violation: None,
            now: Nanos(0),
            options_seen: 0,
            charged_bytes: 0,
            sending_bytes: 0,
            memory_lease: MemoryLease::default(),
            stalled: false,
            shutting_down: false,
        }
    }

    /// The same session with a shared budget: payloads and replies beyond
    /// [`OWN_BYTES`](crate::OWN_BYTES) count against it. The caller must then call
    /// [`Session::sent`].
    #[must_use]
    pub fn with_budget(mut self, budget: &Arc<Budget>) -> Self {
        self.memory_lease = MemoryLease::of(budget);
        self
    }

    /// The session's phase.
    #[must_use]
    pub fn phase(&self) -> SessionPhase {
        let drained = self.outbox.pending_bytes() == 0;
        match (self.leaving, self.agreed) {
            (Leaving::No, None) => SessionPhase::Negotiating,
            (Leaving::No, Some(agreed)) => SessionPhase::Transmission(agreed.export),
            (Leaving::Drain, _) if drained && self.slots.in_flight() == 0 => SessionPhase::Closed,
            (Leaving::Drop, _) if drained => SessionPhase::Closed,
            _ => SessionPhase::Closing,
        }
    }

    /// Why the server ended the session, if the client broke the protocol.
    #[must_use]
    pub fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Requests that were submitted and have not completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Payload bytes of requests in flight and queued reply bytes, which [`Limits`] bounds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.charged_bytes + self.outbox.pending_bytes()
    }

    /// True while the session does not decode a request because the shared budget has no room for
    /// it. Call [`Session::next_request`] again when [`Budget::returns`] has changed.
    #[must_use]
    pub fn waits_for_room(&self) -> bool {
        self.memory_lease.is_waiting()
    }

    /// True if the session holds memory of the shared budget.
    #[must_use]
    pub fn holds_room(&self) -> bool {
        self.memory_lease.is_held()
    }

    /// True while the session holds memory for a payload that is not complete: it waits for the
    /// client.
    #[must_use]
    pub fn awaits_payload(&self) -> bool {
        matches!(self.expect, Expect::Payload { .. })
    }

    /// Whether to receive more now. False at a bound of [`Limits`] and when closing. Check again
    /// after the next [`Session::next_request`].
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.leaving == Leaving::No && !self.stalled && self.inbox.has_space()
    }

    /// The space for received bytes: the receive buffer, or the payload of a large write itself.
    ///
    /// The bytes stay in their place until [`Session::received`] is called, no matter which other
    /// methods are called in between, and even if the session itself is moved. A second call gives
    /// the same place. So a receive may run asynchronously on a raw pointer to them, as long as the
    /// session is not dropped before the receive ends.
    pub fn receive_space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// Notes that `len_bytes` bytes were received into the start of [`Session::receive_space`] at
    /// `now`. Zero means that the client closed the connection. Continue with
    /// [`Session::next_request`].
    ///
    /// # Panics
    /// If `len_bytes` is larger than the space: the caller wrote out of bounds.
    pub fn received(&mut self, len_bytes: usize, now: Nanos) {
        self.now = now;
        self.inbox.received(len_bytes);
        if len_bytes == 0 && self.leaving == Leaving::No {
            self.disconnect();
        }
    }

    /// The connection is lost: drops queued replies and all later completions.
    pub fn disconnect(&mut self) {
        self.leaving = Leaving::Drop;
        self.outbox.take_into(&mut Vec::new());
        self.memory_lease.stop_waiting();
    }

    /// The server shuts down. From now on the session answers requests with `ESHUTDOWN` and options
    /// with `ERR_SHUTDOWN`. Requests in flight still complete. The host decides when to close the
    /// connection.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// The next request for the backend of an export; `None` if bytes are missing or a bound is
    /// reached. Call this until it gives `None`, after each [`Session::received`],
    /// [`Session::complete`] and [`Session::output`].
    pub fn next_request(&mut self) -> Option<(ExportIndex, Request)> {
        loop {
            match self.step() {
                Step::Idle => return None,
                Step::Progress => {}
                Step::Request(export, request) => return Some((export, request)),
            }
        }
    }

    /// Queues the reply to a request. Drops a completion of a request that is not in flight, or
    /// that comes after the connection was lost.
    pub fn complete(&mut self, completion: Completion) {
        let Some(request) = self.slots.remove(completion.id) else { return };
        self.charged_bytes -= request.charge_bytes;
        self.stalled = false;
        if self.leaving != Leaving::Drop {
            self.replier().complete(&request, completion.result);
        }
        self.memory_lease.settle(self.held_bytes());
    }

    /// Moves the bytes to send to the end of `out`, in order, as a gather list.
    ///
    /// Take output only when the last output is sent: taken output no longer counts for [`Limits`].
    /// For a shared budget it counts until [`Session::sent`].
    pub fn output(&mut self, out: &mut Vec<Bytes>) {
        if self.memory_lease.is_shared() {
            self.sending_bytes = self.outbox.pending_bytes();
        }
        self.outbox.take_into(out);
        self.stalled = false;
    }

    /// The last taken output is sent, or will never be.
    pub fn sent(&mut self) {
        self.sending_bytes = 0;
        self.stalled = false;
        self.memory_lease.settle(self.held_bytes());
    }

    /// Bytes that count against a shared budget.
    fn held_bytes(&self) -> usize {
        self.memory_bytes() + self.sending_bytes
    }

    pub(crate) fn structured(&self) -> bool {
        self.agreed.is_some_and(|agreed| agreed.structured)
    }

    /// Bytes of queued replies.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.outbox.pending_bytes()
    }

    fn replier(&mut self) -> Replier<'_> {
        Replier {
            structured: self.structured(),
            outbox: &mut self.outbox,
            max_extents: self.limits.max_extents,
        }
    }

    /// Handles at most one message.
    pub(crate) fn step(&mut self) -> Step {
        if self.leaving != Leaving::No {
            return Step::Idle;
        }
        self.stalled = self.outbox.pending_bytes() > self.limits.max_output_bytes;
        if self.stalled {
            self.memory_lease.stop_waiting();
            return Step::Idle;
        }
        let result = match self.expect {
            Expect::ClientFlags => self.client_flags(),
            Expect::Option => self.option(),
            Expect::Request => self.request(),
            Expect::Payload { command, flags } => Ok(self.large_payload(&command, flags)),
            Expect::Skip { left_bytes, then } => Ok(self.skip(left_bytes, then)),
        };
        result.unwrap_or_else(|violation| {
            self.violation = Some(violation);
            self.leaving = Leaving::Drop;
            Step::Progress
        })
    }

    fn client_flags(&mut self) -> Result<Step, Violation> {
        let Some(flags) = self.inbox.bytes().first_chunk::<4>() else { return Ok(Step::Idle) };
        let flags = u32::from_be_bytes(*flags);
        self.inbox.consume(4);
        self.negotiation.client_flags(flags)?;
        self.expect = Expect::Option;
        Ok(Step::Progress)
    }

    fn option(&mut self) -> Result<Step, Violation> {
        let bytes = self.inbox.bytes();
        let Some(head) = bytes.get(..OPTION_HEADER_BYTES) else { return Ok(Step::Idle) };
        let Ok(header) = OptionHeader::read_from_bytes(head) else { return Ok(Step::Idle) };
        let (option, len_bytes) = (header.option.get(), header.length.get());
        if header.magic.get() != OPTION_MAGIC {
            return Err(Violation::OptionMagic { magic: header.magic.get() });
        }
        self.negotiation.check_style(option)?;
        if self.options_seen == self.limits.max_options {
            return Err(Violation::OptionFlood { limit: self.limits.max_options });
        }
        if len_bytes > self.limits.max_option_bytes {
            return self.long_option(option, len_bytes);
        }
        let end = OPTION_HEADER_BYTES + len_bytes as usize;
        let Some(data) = bytes.get(OPTION_HEADER_BYTES..end) else { return Ok(Step::Idle) };
        self.options_seen += 1;
        let after = self.negotiation.option(
            option,
            data,
            &self.exports,
            self.shutting_down,
            &mut self.outbox,
        )?;
        self.inbox.consume(end);
        match after {
            After::Continue => {}
            After::Abort => self.leaving = Leaving::Drain,
            After::Start(agreed) => {
                self.agreed = Some(agreed);
                self.expect = Expect::Request;
                self.inbox.widen(self.limits.receive_bytes);
            }
        }
        Ok(Step::Progress)
    }

    fn long_option(&mut self, option: u32, len_bytes: u32) -> Result<Step, Violation> {
        if len_bytes > self.limits.max_discard_bytes || option == opt::EXPORT_NAME {
            let limit_bytes = self.limits.max_option_bytes;
            return Err(Violation::OptionTooLong { option, len_bytes, limit_bytes });
        }
        self.options_seen += 1;
        self.inbox.consume(OPTION_HEADER_BYTES);
        let then = Deferred::OptionTooBig { option };
        self.expect = Expect::Skip { left_bytes: len_bytes, then };
        Ok(Step::Progress)
    }

    fn request(&mut self) -> Result<Step, Violation> {
        let Some(parsed) = Command::parse(self.inbox.bytes()) else { return Ok(Step::Idle) };
        let command = parsed?;
        let Some(agreed) = self.agreed else { return Ok(Step::Idle) };
        let Some(export) = self.exports.get(agreed.export) else { return Ok(Step::Idle) };
        let mut result = check_request(&command, export, agreed);
        if self.shutting_down && result != CheckResult::Disconnect {
            result = CheckResult::Fail(Failure {
                errno: Errno::Shutdown,
                message: "the server is shutting down",
            });
        }
        if let CheckResult::Submit { kind, .. } = result
            && !self.memory_lease.fits_ever(kind.charge_bytes(command.len_bytes))
        {
            result = CheckResult::Fail(Failure {
                errno: Errno::NoMem,
                message: "the request is longer than the server's memory for payloads",
            });
        }
        match result {
            CheckResult::Disconnect => {
                self.inbox.consume(REQUEST_HEADER_BYTES);
                self.leaving = Leaving::Drain;
                Ok(Step::Progress)
            }
            CheckResult::Done(kind) => {
                self.inbox.consume(REQUEST_HEADER_BYTES);
                self.replier().done(command.cookie, kind);
                Ok(Step::Progress)
            }
            CheckResult::Fail(failure) => self.refuse(&command, failure),
            CheckResult::Submit { op, kind, flags } => Ok(self.accept(&command, op, kind, flags)),
        }
    }

    fn refuse(&mut self, command: &Command, failure: Failure) -> Result<Step, Violation> {
        let left_bytes = command.payload_bytes();
        if left_bytes > self.limits.max_discard_bytes {
            let limit_bytes = self.limits.max_discard_bytes;
            return Err(Violation::PayloadTooLong { len_bytes: left_bytes, limit_bytes });
        }
        self.inbox.consume(REQUEST_HEADER_BYTES);
        let then = Deferred::Fail { cookie: command.cookie, failure };
        Ok(self.skip(left_bytes, then))
    }

    /// Skips received bytes. When all are skipped, answers.
    fn skip(&mut self, left_bytes: u32, then: Deferred) -> Step {
        let skipped = self.inbox.discard(left_bytes as usize);
        let left_bytes = left_bytes - u32::try_from(skipped).expect("at most left_bytes");
        if left_bytes > 0 {
            self.expect = Expect::Skip { left_bytes, then };
            return if skipped > 0 { Step::Progress } else { Step::Idle };
        }
        match then {
            Deferred::OptionTooBig { option } => {
                self.expect = Expect::Option;
                let message = "the option's data is longer than this server reads";
                Replies { option, outbox: &mut self.outbox }
                    .send(rep::ERR_TOO_BIG, &[message.as_bytes()]);
            }
            Deferred::Fail { cookie, failure } => {
                self.expect = Expect::Request;
                self.replier().fail(cookie, failure.errno, failure.message);
            }
        }
        Step::Progress
    }

    fn accept(&mut self, command: &Command, op: Op, kind: Kind, flags: RequestFlags) -> Step {
        let charge_bytes = kind.charge_bytes(command.len_bytes);
        let large = op == Op::Write && command.len_bytes >= LARGE_WRITE_BYTES;
        let memory = self.held_bytes();
        let max_bytes = self.limits.max_memory_bytes.min(self.memory_lease.share_bytes());
        self.stalled = self.slots.in_flight() >= self.limits.max_in_flight as usize
            || (memory > 0 && memory + charge_bytes > max_bytes);
        if self.stalled {
            self.memory_lease.stop_waiting();
            return Step::Idle;
        }
        if large {
            if self.inbox.bytes().len() < REQUEST_HEADER_BYTES + LARGE_WRITE_BYTES as usize
                && self.memory_lease.wants_sign_of_life(charge_bytes, memory + charge_bytes)
            {
                return Step::Idle;
            }
            self.stalled = !self.memory_lease.cover(memory + charge_bytes);
            if self.stalled {
                return Step::Idle;
            }
            self.inbox.consume(REQUEST_HEADER_BYTES);
            self.inbox.open_payload(command.len_bytes as usize);
            self.expect = Expect::Payload { command: *command, flags };
            self.charged_bytes += charge_bytes;
            return Step::Progress;
        }
        let end = REQUEST_HEADER_BYTES + command.payload_bytes() as usize;
        if self.inbox.bytes().len() < end {
            return Step::Idle;
        }
        self.stalled = !self.memory_lease.cover(memory + charge_bytes);
        if self.stalled {
            return Step::Idle;
        }
        let payload = &self.inbox.bytes()[REQUEST_HEADER_BYTES..end];
        let data = match op {
            Op::Write => AlignedBuf::copy_from(payload).freeze(),
            _ => Bytes::new(),
        };
        self.inbox.consume(end);
        self.inbox.expect_large_write(false);
        self.charged_bytes += charge_bytes;
        self.submit(command, op, kind, flags, data)
    }

    fn large_payload(&mut self, command: &Command, flags: RequestFlags) -> Step {
        let Some(data) = self.inbox.take_payload() else { return Step::Idle };
        self.inbox.expect_large_write(true);
        self.expect = Expect::Request;
        self.submit(command, Op::Write, Kind::Write, flags, data)
    }

    fn submit(
        &mut self,
        command: &Command,
        op: Op,
        kind: Kind,
        flags: RequestFlags,
        data: Bytes,
    ) -> Step {
        let Some(agreed) = self.agreed else { return Step::Idle };
        let charge_bytes = kind.charge_bytes(command.len_bytes);
        let id = self.slots.insert(InFlightRequest {
            cookie: command.cookie,
            offset_bytes: command.offset_bytes,
            len_bytes: command.len_bytes,
            kind,
            charge_bytes,
        });
        let mut stamps = Stamps::default();
        stamps.stamp(Stage::Received, self.now);
        let request = Request {
            id,
            op,
            offset_bytes: command.offset_bytes,
            len_bytes: command.len_bytes,
            flags,
            data,
            destination: ReadDestination::default(),
            // The host sets the queue of this connection.
            queue: QueueId::default(),
            stamps,
        };
        Step::Request(agreed.export, request)
    }
}
