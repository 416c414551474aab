//! Steps that send requests to the open image.

use bytes::Bytes;
use fieldstone_block::{ExtentKind, Op, Payload};
use fieldstone_rbd::format::Features;

use super::{BURST_MAX, Carrier, Course, Io, Random, bytes_of, same};

/// The longest request, in objects.
const OBJECTS_MAX: u64 = 3;

impl<C: Carrier> Course<'_, C> {
    /// A range of the open image: anywhere, or at the borders of objects.
    fn any_range(&self, random: &mut Random) -> (u64, u64) {
        let (size, object) = (self.open().size(), self.open().object_bytes());
        let mut offset = random.below(size);
        let mut len = match random.below(4) {
            0 => random.within(1..64),
            1 => random.within(1..object),
            _ => random.within(1..OBJECTS_MAX * object),
        };
        match random.below(10) {
            0..3 => {
                offset -= offset % object;
                len = len.next_multiple_of(object);
            }
            3 => offset -= offset % 512,
            // Across a border, by a few bytes.
            4 => offset = (offset - offset % object).saturating_sub(random.below(8)),
            _ => {}
        }
        (offset, len.min(size - offset))
    }

    /// Bytes that differ in each request and at each place, and are never 0.
    fn pattern(&mut self, offset: u64, len: u64) -> Bytes {
        self.fill += 1;
        let start = self.step.wrapping_mul(41).wrapping_add(self.fill * 17);
        let byte = |at: u64| ((start + at * 3 + at / 251) % 255 + 1) as u8;
        (offset..offset + len).map(byte).collect()
    }

    /// Requests that do not disturb each other: nothing that one changes is touched by another.
    fn draw_burst(&mut self, random: &mut Random, only_writes: bool) -> Vec<Io> {
        let mut burst: Vec<Io> = Vec::new();
        for _ in 0..=random.below(BURST_MAX) {
            let (offset, len) = self.any_range(random);
            let op = match random.below(10) {
                _ if only_writes => Op::Write,
                0..5 => Op::Write,
                5 => Op::Trim,
                6 => Op::WriteZeroes,
                7 => Op::Flush,
                _ => Op::Read,
            };
            let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset, len) };
            let disturbs = burst.iter().any(|other| {
                (op.changes_data() || other.op.changes_data())
                    && other.offset < offset + len
                    && offset < other.offset + other.len
            });
            if disturbs {
                continue;
            }
            let data = if op == Op::Write { self.pattern(offset, len) } else { Bytes::new() };
            burst.push(Io { op, offset, len, data, no_hole: random.percent(50) });
        }
        burst
    }

    fn log_burst(&mut self, burst: &[Io], what: &str) {
        let said: Vec<String> =
            burst.iter().map(|io| format!("{:?} {}+{}", io.op, io.offset, io.len)).collect();
        self.log(format!("{what}{}", said.join(", ")));
    }

    pub(super) fn burst(&mut self, random: &mut Random) -> Result<(), String> {
        let burst = self.draw_burst(random, false);
        self.log_burst(&burst, "");
        self.carry_out(&burst)
    }

    /// Carries requests out, compares what is read, and notes what is written.
    fn carry_out(&mut self, burst: &[Io]) -> Result<(), String> {
        self.counts.operations += burst.len() as u64;
        let payloads = self.carrier.carry_out(burst.to_vec())?;
        for (io, payload) in burst.iter().zip(payloads) {
            if io.op == Op::Read {
                let found = bytes_of(&payload)?;
                let expected = self.open().range(io.offset, io.len);
                let what = format!("a read at {}+{}", io.offset, io.len);
                same(&what, io.offset, &found, expected)?;
                self.counts.compared_bytes += io.len;
            }
            self.note(io);
        }
        Ok(())
    }

    /// The request was carried out.
    fn note(&mut self, io: &Io) {
        let bytes = self.open_mut().range_mut(io.offset, io.len);
        match io.op {
            Op::Write => bytes.copy_from_slice(&io.data),
            Op::Trim | Op::WriteZeroes => bytes.fill(0),
            Op::Read | Op::Flush | Op::Extents => {}
        }
    }

    pub(super) fn compare_open(&mut self, random: &mut Random) -> Result<(), String> {
        let size = self.open().size();
        let (offset, len) = if random.percent(50) { (0, size) } else { self.any_range(random) };
        self.log(format!("compares {offset}+{len}"));
        self.carry_out(&[Io { op: Op::Read, offset, len, data: Bytes::new(), no_hole: false }])
    }

    /// What is said to be a hole reads as zeroes.
    pub(super) fn list_extents(&mut self) -> Result<(), String> {
        self.log("lists extents");
        self.counts.operations += 1;
        let len = self.open().size();
        let io = Io { op: Op::Extents, offset: 0, len, data: Bytes::new(), no_hole: false };
        let payloads = self.carrier.carry_out(vec![io])?;
        let Some(Payload::Extents(extents)) = payloads.first() else {
            return Err("no extents".to_owned());
        };
        let mut at = 0;
        for extent in extents {
            if extent.kind == ExtentKind::Hole {
                let bytes = self.open().range(at, extent.len_bytes);
                same("a hole", at, &vec![0; bytes.len()], bytes)?;
            }
            at += extent.len_bytes;
        }
        if at == len { Ok(()) } else { Err(format!("extents of {at} bytes, and not of {len}")) }
    }

    /// The client dies with requests in flight. Each byte of them then has its old or its new
    /// value, for good.
    pub(super) fn kill(&mut self, random: &mut Random) -> Result<(), String> {
        let burst = self.draw_burst(random, true);
        self.log_burst(&burst, "dies with ");
        self.counts.kills += 1;
        self.counts.operations += burst.len() as u64;
        self.carrier.kill(burst.clone())?;
        let name = self.open().name.clone();
        self.carrier.open(&name)?;
        self.open_mut().was_killed = true;
        if self.open().has(Features::EXCLUSIVE_LOCK) {
            // With the lock, the dead client is shut out.
            let data = Bytes::copy_from_slice(self.open().range(0, 1));
            let claim = Io { op: Op::Write, offset: 0, len: 1, data, no_hole: false };
            let settled = burst.iter().any(|io| io.offset == 0);
            self.carrier.carry_out(vec![claim])?;
            if settled {
                return self.adopt(&burst, Some(0));
            }
        }
        self.adopt(&burst, None)
    }

    /// Reads what interrupted writes have left, and takes it for the truth from now on. `claimed`:
    /// a byte that was written since.
    fn adopt(&mut self, burst: &[Io], claimed: Option<u64>) -> Result<(), String> {
        for io in burst {
            let read = Io { op: Op::Read, data: Bytes::new(), ..io.clone() };
            let payloads = self.carrier.carry_out(vec![read])?;
            let found = bytes_of(payloads.first().ok_or("no answer")?)?;
            let old = self.open().range(io.offset, io.len);
            let fits = |at: usize| {
                let is_claimed = claimed == Some(io.offset + at as u64);
                found[at] == old[at] || (found[at] == io.data[at] && !is_claimed)
            };
            if let Some(at) = (0..found.len()).find(|&at| !fits(at)) {
                return Err(format!(
                    "byte {} is {} after the client died, and may be {} or {}",
                    io.offset + at as u64,
                    found[at],
                    old[at],
                    io.data[at]
                ));
            }
            self.open_mut().range_mut(io.offset, io.len).copy_from_slice(&found);
        }
        Ok(())
    }
}
