//! A driver of one queue set. For every descriptor it checks status, result and data. Completions
//! must come in order, once each, and only for descriptors that ask for them or fail.

use std::collections::VecDeque;

use fieldstone_fpga::field::Field;
use fieldstone_fpga::regs::{
    DESCRIPTOR_BYTES, QueueCommand, QueueState, completion, completion_flag, context_flag,
    descriptor, descriptor_flag, queue, queue_context,
};

use crate::testbench::{CARD_WINDOW, HOST_WINDOW, Testbench};

/// Number of queue sets of a function; its windows are divided among them.
pub const SETS: u64 = 4;
/// A descriptor's own number (ring in bit 31), which engines see.
pub const TAG: Field = Field { offset: 96, bytes: 8 };

/// The two rings of descriptors.
pub const H2C: usize = 0;
pub const C2H: usize = 1;

/// Memory that must hold these bytes after a descriptor has completed.
#[derive(Clone, Debug)]
pub enum Check {
    Nothing,
    Card(u64, Vec<u8>),
    Host(u64, Vec<u8>),
}

impl Check {
    pub fn holds(&self, tb: &Testbench) -> bool {
        match self {
            Self::Nothing => true,
            Self::Card(at, bytes) => tb.card.bytes[*at as usize..][..bytes.len()] == bytes[..],
            Self::Host(at, bytes) => tb.host.bytes[*at as usize..][..bytes.len()] == bytes[..],
        }
    }
}

/// A descriptor, and its expected result.
#[derive(Clone, Debug)]
pub struct DescriptorCase {
    pub bytes: [u8; DESCRIPTOR_BYTES],
    pub status: u64,
    pub result: u64,
    pub check: Check,
}

impl DescriptorCase {
    pub fn new(op: u64, flags: u64) -> Self {
        let bytes = [0; DESCRIPTOR_BYTES];
        Self { bytes, status: 0, result: 0, check: Check::Nothing }
            .with(descriptor::OP, op)
            .with(descriptor::FLAGS, flags)
    }

    pub fn with(mut self, field: Field, value: u64) -> Self {
        field.put(&mut self.bytes, value);
        self
    }

    /// LENGTH bytes from SOURCE to DESTINATION.
    pub fn moving(self, source: u64, destination: u64, length: u64) -> Self {
        self.with(descriptor::SOURCE, source)
            .with(descriptor::DESTINATION, destination)
            .with(descriptor::LENGTH, length)
    }

    pub fn expect(mut self, status: u64, result: u64, check: Check) -> Self {
        (self.status, self.result, self.check) = (status, result, check);
        self
    }

    pub fn completes(&self) -> bool {
        self.status != 0 || self.flag(descriptor_flag::COMPLETE)
    }

    pub fn flag(&self, flag: u64) -> bool {
        descriptor::FLAGS.get(&self.bytes) & flag != 0
    }
}

/// A posted descriptor: its number in its ring, from 1, and whether it is the last of its ring
/// entry.
pub struct Posted {
    pub number: u32,
    pub job: DescriptorCase,
    ends_entry: bool,
}

/// A ring of descriptors.
pub struct Ring {
    pub base: u64,
    pub log2: u32,
    pub producer: u32,
    /// Number of descriptors posted.
    pub count: u32,
    /// Entries in use.
    pub used: u32,
    pub posted: VecDeque<Posted>,
}

/// A completion as the driver read it.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub ring: usize,
    pub number: u32,
    pub status: u64,
    pub cycles: u64,
    pub detail: u64,
}

/// A queue set, as its driver sees it.
pub struct Queue {
    pub function: u64,
    pub number: u64,
    pub rings: [Ring; 2],
    pub cq_base: u64,
    pub cq_log2: u32,
    pub consumer: u32,
    /// Addresses of its data in host memory and card memory.
    pub host: u64,
    pub card: u64,
    links: u64,
    next_link: u64,
    context: u64,
}

impl Queue {
    /// Lays out the rings of a queue set that is not enabled yet.
    pub fn new(function: u64, number: u64, log2s: [u32; 3]) -> Self {
        let host = function * HOST_WINDOW + number * (HOST_WINDOW / SETS);
        let card = function * CARD_WINDOW + number * (CARD_WINDOW / SETS);
        let ring = |base, log2| Ring {
            base,
            log2,
            producer: 0,
            count: 0,
            used: 0,
            posted: VecDeque::new(),
        };
        Self {
            function,
            number,
            rings: [ring(host + 0x1000, log2s[0]), ring(host + 0x3000, log2s[1])],
            cq_base: host + 0x5000,
            cq_log2: log2s[2],
            consumer: 0,
            host: host + 0x10000,
            card,
            links: host + 0x8000,
            next_link: 0,
            context: host,
        }
    }

    /// Offset of a register of this queue set in its function's page.
    pub fn register(&self, offset: u64) -> u64 {
        queue::BASE + self.number * queue::STRIDE + offset
    }

    /// State and status.
    pub fn control(&self, tb: &mut Testbench) -> (u64, u64) {
        let value = tb.read(self.function, self.register(queue::CONTROL));
        (queue::CONTROL_STATE.of(value), queue::CONTROL_STATUS.of(value))
    }

    /// The queue set's context, as the device reads it.
    pub fn context_bytes(&self, interrupts: bool) -> [u8; queue_context::BYTES] {
        let mut context = [0; queue_context::BYTES];
        queue_context::H2C_BASE.put(&mut context, self.rings[H2C].base);
        queue_context::C2H_BASE.put(&mut context, self.rings[C2H].base);
        queue_context::CQ_BASE.put(&mut context, self.cq_base);
        queue_context::H2C_LOG2.put(&mut context, self.rings[H2C].log2.into());
        queue_context::C2H_LOG2.put(&mut context, self.rings[C2H].log2.into());
        queue_context::CQ_LOG2.put(&mut context, self.cq_log2.into());
        let flags = if interrupts { context_flag::INTERRUPTS } else { 0 };
        queue_context::FLAGS.put(&mut context, flags);
        context
    }

    /// Asks the device to enable the queue set with that context.
    pub fn start_enable(&self, tb: &mut Testbench, context: &[u8]) {
        let at = self.context as usize;
        tb.host.bytes[at..at + context.len()].copy_from_slice(context);
        let command = queue::CONTROL_COMMAND.with(QueueCommand::Enable as u64)
            | queue::CONTROL_CONTEXT_BASE.with(self.context / 64);
        tb.write(self.function, self.register(queue::CONTROL), command);
    }

    /// Polls until the device has the context, or has refused it. Returns state and status.
    pub fn enabled(&self, tb: &mut Testbench) -> (u64, u64) {
        for _ in 0..1000 {
            let control = self.control(tb);
            if control.0 != QueueState::Enabling as u64 {
                return control;
            }
        }
        panic!("enabling does not end");
    }

    /// Enables the queue set with that context. Returns state and status.
    pub fn enable_with(&self, tb: &mut Testbench, context: &[u8]) -> (u64, u64) {
        self.start_enable(tb, context);
        self.enabled(tb)
    }

    /// Enables the queue set, with empty rings.
    pub fn enable(&mut self, tb: &mut Testbench, interrupts: bool) {
        let cq = self.cq_base as usize;
        tb.host.bytes[cq..cq + (32 << self.cq_log2)].fill(0);
        for ring in &mut self.rings {
            (ring.producer, ring.count, ring.used) = (0, 0, 0);
            ring.posted.clear();
        }
        self.consumer = 0;
        let state = self.enable_with(tb, &self.context_bytes(interrupts));
        assert_eq!(state, (QueueState::Enabled as u64, 0));
    }

    /// Resets the queue set and waits until it is disabled.
    pub fn reset(&self, tb: &mut Testbench) {
        let command = queue::CONTROL_COMMAND.with(QueueCommand::Reset as u64);
        tb.write(self.function, self.register(queue::CONTROL), command);
        for _ in 0..10_000 {
            if self.control(tb) == (QueueState::Disabled as u64, 0) {
                return;
            }
        }
        panic!("a reset does not end");
    }

    /// Entries of the ring that a driver may fill.
    pub fn free(&self, ring: usize) -> u32 {
        (1 << self.rings[ring].log2) - self.rings[ring].used
    }

    /// Puts descriptors into the next entry of a ring: the first into the ring, the others linked
    /// behind it.
    pub fn post(&mut self, tb: &mut Testbench, r: usize, mut jobs: Vec<DescriptorCase>) {
        let links: Vec<u64> = (1..jobs.len())
            .map(|_| {
                self.next_link = (self.next_link + 1) % 256;
                self.links + self.next_link * DESCRIPTOR_BYTES as u64
            })
            .collect();
        let ring = &mut self.rings[r];
        let size = 1 << ring.log2;
        let entry = ring.base + u64::from(ring.producer % size) * DESCRIPTOR_BYTES as u64;
        let count = jobs.len();
        for (i, mut job) in jobs.drain(..).enumerate() {
            ring.count += 1;
            descriptor::COOKIE
                .put(&mut job.bytes, u64::from(ring.count & 0x7fff) | (r as u64) << 15);
            if i + 1 < count {
                descriptor::NEXT.put(&mut job.bytes, links[i]);
            }
            let at = if i == 0 { entry } else { links[i - 1] } as usize;
            tb.host.bytes[at..at + DESCRIPTOR_BYTES].copy_from_slice(&job.bytes);
            ring.posted.push_back(Posted { number: ring.count, job, ends_entry: i + 1 == count });
        }
        ring.used += 1;
        ring.producer = (ring.producer + 1) % (2 * size);
    }

    /// Tells the device of new descriptors.
    pub fn ring(&self, tb: &mut Testbench, r: usize) {
        let offset = [queue::H2C_PRODUCER, queue::C2H_PRODUCER][r];
        tb.write(self.function, self.register(offset), self.rings[r].producer.into());
    }

    /// Tells the device of completions read.
    pub fn consumed(&self, tb: &mut Testbench) {
        let register = self.register(queue::CQ_CONSUMER);
        tb.write(self.function, register, self.consumer.into());
    }

    /// Reads the next completion, if there is one, and compares it with the expected one.
    pub fn poll(&mut self, tb: &Testbench) -> Option<Completion> {
        let size = 1 << self.cq_log2;
        let at = self.cq_base as usize + (self.consumer % size) as usize * completion::BYTES;
        let entry = &tb.host.bytes[at..at + completion::BYTES];
        let flags = completion::FLAGS.get(entry);
        let phase = u64::from((self.consumer / size).is_multiple_of(2));
        if flags & completion_flag::PHASE != phase * completion_flag::PHASE {
            return None;
        }
        self.consumer = (self.consumer + 1) % (2 * size);
        let r = usize::from(flags & completion_flag::C2H != 0);
        let (number, status) = (completion::INDEX.get(entry) as u32, completion::STATUS.get(entry));
        let ring = &mut self.rings[r];
        let who =
            format!("function {} queue {} ring {r} number {number}", self.function, self.number);
        loop {
            let posted = ring.posted.pop_front().unwrap_or_else(|| panic!("{who}: nothing posted"));
            let job = &posted.job;
            ring.used -= u32::from(posted.ends_entry);
            assert!(posted.job.check.holds(tb), "{who}: wrong data of {}", posted.number);
            if posted.number != number {
                assert!(posted.number < number, "{who}: completed twice, or out of order");
                assert!(!job.completes(), "{who}: no completion of {}", posted.number);
                continue;
            }
            assert_eq!(completion::COOKIE.get(entry), descriptor::COOKIE.get(&job.bytes), "{who}");
            assert_eq!(status, job.status, "{who}: status");
            assert_eq!(completion::RESULT.get(entry), job.result, "{who}: result");
            assert!(job.completes(), "{who}: a completion that no descriptor asked for");
            break;
        }
        let (cycles, detail) = (completion::CYCLES.get(entry), completion::DETAIL.get(entry));
        Some(Completion { ring: r, number, status, cycles, detail })
    }

    /// Waits for a completion, and tells the device that the driver has read it.
    pub fn wait(&mut self, tb: &mut Testbench) -> Completion {
        for _ in 0..200_000 {
            if let Some(completion) = self.poll(tb) {
                self.consumed(tb);
                return completion;
            }
            tb.cycle();
        }
        panic!("function {} queue {}: no completion", self.function, self.number);
    }

    /// Posts one descriptor and waits for its completion.
    pub fn run(&mut self, tb: &mut Testbench, ring: usize, job: DescriptorCase) -> Completion {
        self.post(tb, ring, vec![job]);
        self.ring(tb, ring);
        self.wait(tb)
    }
}
