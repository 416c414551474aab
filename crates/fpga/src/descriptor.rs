//! Descriptors and completions.

use crate::field::Field;
use crate::regs::{C2hOp, H2cOp};
use crate::regs::{
    COMPLETION_BYTES, DESCRIPTOR_BYTES, Status, completion, completion_flag, descriptor,
};

/// One operation, in the device's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor(pub [u8; DESCRIPTOR_BYTES]);

impl Descriptor {
    fn new(op: u64) -> Self {
        Self([0; DESCRIPTOR_BYTES]).with(descriptor::OP, op)
    }

    /// The descriptor with this field set.
    #[must_use]
    pub fn with(mut self, field: Field, value: u64) -> Self {
        field.put(&mut self.0, value);
        self
    }

    /// The descriptor with these flags set in addition.
    #[must_use]
    pub fn flagged(self, flags: u64) -> Self {
        let flags = flags | descriptor::FLAGS.get(&self.0);
        self.with(descriptor::FLAGS, flags)
    }

    /// The descriptor with this number, which comes back in its completion.
    #[must_use]
    pub fn cookie(self, cookie: u16) -> Self {
        self.with(descriptor::COOKIE, cookie.into())
    }

    /// A copy from host memory to card memory.
    #[must_use]
    pub fn to_card(host: u64, card: u64, bytes: u64) -> Self {
        Self::operation(H2cOp::Copy, host, card, bytes)
    }

    /// A copy from card memory to host memory, once the H2C ring has completed `after` descriptors.
    #[must_use]
    pub fn to_host(card: u64, host: u64, bytes: u64, after: u32) -> Self {
        Self::new(C2hOp::Copy as u64)
            .with(descriptor::SOURCE, card)
            .with(descriptor::DESTINATION, host)
            .with(descriptor::LENGTH, bytes)
            .with(descriptor::AFTER, after.into())
    }

    /// A descriptor without an operation, for either ring.
    #[must_use]
    pub fn nop() -> Self {
        Self::new(H2cOp::Nop as u64)
    }

    /// An operation of the H2C ring.
    #[must_use]
    pub fn operation(op: H2cOp, source: u64, destination: u64, bytes: u64) -> Self {
        Self::new(op as u64)
            .with(descriptor::SOURCE, source)
            .with(descriptor::DESTINATION, destination)
            .with(descriptor::LENGTH, bytes)
    }
}

/// The completion of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The status; `Err` holds a number that this driver does not know.
    pub status: Result<Status, u64>,
    /// True for the C2H ring, false for the H2C ring.
    pub is_c2h: bool,
    /// The descriptor's number.
    pub cookie: u16,
    /// Descriptors that the ring has completed, with this one.
    pub index: u32,
    /// The result; its meaning depends on the operation.
    pub result: u64,
    /// Cycles that the descriptor took.
    pub cycles: u32,
    /// The wrong field or value.
    pub detail: u64,
}

impl Completion {
    /// The phase bit of a completion's bytes.
    #[must_use]
    pub fn phase(bytes: &[u8; COMPLETION_BYTES]) -> bool {
        completion::FLAGS.get(bytes) & completion_flag::PHASE != 0
    }

    /// Decodes a completion.
    #[must_use]
    pub fn parse(bytes: &[u8; COMPLETION_BYTES]) -> Self {
        let number = completion::STATUS.get(bytes);
        Self {
            status: Status::from_number(number).ok_or(number),
            is_c2h: completion::FLAGS.get(bytes) & completion_flag::C2H != 0,
            cookie: completion::COOKIE.get(bytes) as u16,
            index: completion::INDEX.get(bytes) as u32,
            result: completion::RESULT.get(bytes),
            cycles: completion::CYCLES.get(bytes) as u32,
            detail: completion::DETAIL.get(bytes),
        }
    }

    /// True if the descriptor succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status == Ok(Status::Ok)
    }

    /// The error, for people.
    #[must_use]
    pub fn reason(&self) -> String {
        match self.status {
            Ok(status) => format!("{} ({:#x})", status.name(), self.detail),
            Err(number) => format!("status {number} ({:#x})", self.detail),
        }
    }
}
