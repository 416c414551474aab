//! Requests to the volume, and their expected answers.

use super::*;

impl Bench {
    pub fn submit(&mut self, op: Op, block: u64, blocks: u64) -> u64 {
        self.requests += 1;
        let id = self.requests;
        let mut data = Bytes::new();
        if op == Op::Write {
            self.writes += 1;
            self.written_before.clone_from(&self.written);
            let mut bytes = Vec::new();
            for at in block..block + blocks {
                self.written[at as usize] = self.writes;
                bytes.extend(content(at, self.writes));
            }
            data = bytes.into();
        }
        let request = Request {
            id: RequestId(id),
            op,
            offset_bytes: block * BLOCK_BYTES as u64,
            len_bytes: (blocks * BLOCK_BYTES as u64) as u32,
            flags: RequestFlags::default(),
            data,
            destination: ReadDestination::default(),
            queue: QueueId::default(),
            stamps: Stamps::default(),
        };
        let now = self.now();
        self.volume().submit(request, now);
        self.pump_volume();
        id
    }

    pub fn is_answered(&self, id: u64) -> bool {
        self.answers.contains_key(&id)
    }

    /// The volume refused the last write: its blocks keep their old content.
    pub fn forget_write(&mut self) {
        self.written.clone_from(&self.written_before);
    }

    /// Submits one request. Returns its answer, if it comes within `ns_max`.
    pub fn request(
        &mut self,
        op: Op,
        block: u64,
        blocks: u64,
        ns_max: u64,
    ) -> Option<Result<Payload, BlockError>> {
        let id = self.submit(op, block, blocks);
        self.until(ns_max, |bench| bench.answers.contains_key(&id));
        self.answers.remove(&id)
    }

    /// Does `op` to these blocks, `step` at a time, with several requests in flight. Reads must
    /// give the written data.
    pub fn sweep(
        &mut self,
        op: Op,
        blocks: std::ops::Range<u64>,
        step: u64,
        ns_max: u64,
    ) -> Result<(), String> {
        let mut waiting: Vec<(u64, u64, Nanos)> = Vec::new();
        let mut next = blocks.start;
        while next < blocks.end || !waiting.is_empty() {
            while next < blocks.end && waiting.len() < DEPTH {
                let id = self.submit(op, next, step);
                waiting.push((id, next, self.now()));
                next += step;
            }
            let oldest = waiting.iter().map(|(_, _, since)| *since).min().unwrap_or_default();
            let left_ns = ns_max.saturating_sub(self.now().since(oldest).0);
            let answered =
                |bench: &Self| waiting.iter().any(|(id, ..)| bench.answers.contains_key(id));
            if !self.until(left_ns, answered) {
                return Err(format!("{op:?} unanswered for {} ms", ns_max / 1_000_000));
            }
            let mut left = Vec::new();
            for (id, block, since) in waiting {
                let Some(answer) = self.answers.remove(&id) else {
                    left.push((id, block, since));
                    continue;
                };
                self.slowest_ns = self.slowest_ns.max(self.now().since(since).0);
                let payload =
                    answer.map_err(|error| format!("{op:?} of block {block}: {error}"))?;
                if op == Op::Read {
                    self.compare(block, step, payload)?;
                }
            }
            waiting = left;
        }
        Ok(())
    }

    fn compare(&self, block: u64, blocks: u64, payload: Payload) -> Result<(), String> {
        let Payload::Data(pieces) = payload else {
            return Err(format!("a read of block {block} gave no data"));
        };
        let found: Vec<u8> = pieces.iter().flat_map(bytes_of).collect();
        for (at, found) in (block..block + blocks).zip(found.chunks(BLOCK_BYTES)) {
            if found != content(at, self.written[at as usize]) {
                return Err(format!("block {at} does not read as it was written"));
            }
        }
        Ok(())
    }

    pub fn flush(&mut self, ns_max: u64) -> Result<(), String> {
        match self.request(Op::Flush, 0, 0, ns_max) {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(format!("flush: {error}")),
            None => Err(format!("a flush is unanswered for {} ms", ns_max / 1_000_000)),
        }
    }
}

fn bytes_of(piece: &Piece) -> Vec<u8> {
    match piece {
        Piece::Data(data) => data.to_vec(),
        Piece::Zeroes(len_bytes) => vec![0; *len_bytes as usize],
    }
}

/// The content of block `block` after write number `write`.
fn content(block: u64, write: u32) -> Vec<u8> {
    let word = if write == 0 { 0 } else { block << 32 | u64::from(write) };
    word.to_le_bytes().repeat(BLOCK_BYTES / 8)
}
