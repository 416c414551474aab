//! Replies on the client's side: parsed, checked against the command, and assembled.

use bytes::{Buf, Bytes};
use zerocopy::FromBytes;

use super::{AllocationExtent, Client, ClientError, Outcome, Reply};
use crate::errors::Errno;
use crate::wire::{
    CHUNK_MAGIC, ChunkHeader, Fields, SIMPLE_REPLY_MAGIC, SimpleReply, chunk, cmd, cmd_flag,
};

/// A command in flight and the parts of its reply so far.
#[derive(Debug)]
pub(super) struct Pending {
    command: u16,
    flags: u16,
    offset_bytes: u64,
    len_bytes: u32,
    /// Content chunks: start relative to the command, length, and bytes unless it is a hole.
    contents: Vec<(u64, u32, Option<Bytes>)>,
    extents: Option<Vec<AllocationExtent>>,
    failure: Option<(Errno, String)>,
}

impl Pending {
    pub fn new(command: u16, flags: u16, offset_bytes: u64, len_bytes: u32) -> Self {
        Self {
            command,
            flags,
            offset_bytes,
            len_bytes,
            contents: Vec::new(),
            extents: None,
            failure: None,
        }
    }

    fn content(
        &mut self,
        offset_bytes: u64,
        len_bytes: u32,
        data: Option<Bytes>,
    ) -> Result<(), ClientError> {
        if self.command != cmd::READ {
            return Err(ClientError::Malformed("content chunk for a command that does not read"));
        }
        let start = offset_bytes.checked_sub(self.offset_bytes);
        let start = start.ok_or(ClientError::Malformed("chunk starts before the command"))?;
        let end = start.checked_add(u64::from(len_bytes));
        if len_bytes == 0 || end.is_none_or(|end| end > u64::from(self.len_bytes)) {
            return Err(ClientError::Malformed("empty chunk, or one past the command's end"));
        }
        if self.flags & cmd_flag::DF != 0 && !self.contents.is_empty() {
            return Err(ClientError::Malformed("second content chunk despite DF"));
        }
        self.contents.push((start, len_bytes, data));
        Ok(())
    }

    fn block_status(&mut self, payload: &[u8], context: Option<u32>) -> Result<(), ClientError> {
        let mut fields = Fields(payload);
        if self.command != cmd::BLOCK_STATUS || self.extents.is_some() {
            return Err(ClientError::Malformed("block status that was not asked for"));
        }
        if fields.u32() != context || !fields.0.len().is_multiple_of(8) {
            return Err(ClientError::Malformed("block status of another context or odd length"));
        }
        let (mut extents, mut covered) = (Vec::new(), 0u64);
        while let (Some(len_bytes), Some(flags)) = (fields.u32(), fields.u32()) {
            if len_bytes == 0 || covered >= u64::from(self.len_bytes) {
                return Err(ClientError::Malformed("empty extent, or one too many"));
            }
            covered += u64::from(len_bytes);
            extents.push(AllocationExtent { len_bytes, flags });
        }
        let one = self.flags & cmd_flag::REQ_ONE != 0;
        let too_long = one && (extents.len() > 1 || covered > u64::from(self.len_bytes));
        if extents.is_empty() || too_long {
            return Err(ClientError::Malformed("no extent, or more than REQ_ONE allows"));
        }
        self.extents = Some(extents);
        Ok(())
    }

    fn error(&mut self, payload: &[u8]) -> Result<(), ClientError> {
        let malformed = ClientError::Malformed("error chunk too short for its message");
        let mut fields = Fields(payload);
        let code = fields.u32().ok_or(malformed.clone())?;
        let len_bytes = fields.u16().ok_or(malformed.clone())?;
        let message = fields.bytes(usize::from(len_bytes)).ok_or(malformed)?;
        if code == 0 || message.len() > 4096 {
            return Err(ClientError::Malformed("error chunk without error, or a long message"));
        }
        let message = String::from_utf8_lossy(message).into_owned();
        self.failure.get_or_insert((Errno::from_code(code), message));
        Ok(())
    }

    fn finish(mut self, cookie: u64) -> Result<Reply, ClientError> {
        let chunks = u32::try_from(self.contents.len()).unwrap_or(u32::MAX);
        let outcome = match (self.failure.take(), self.command) {
            (Some((errno, message)), _) => Outcome::Failed { errno, message },
            (None, cmd::READ) => Outcome::Data(self.assemble()?),
            (None, cmd::BLOCK_STATUS) => {
                let missing = ClientError::Malformed("block status without extents");
                Outcome::Extents(self.extents.take().ok_or(missing)?)
            }
            (None, _) => Outcome::Done,
        };
        Ok(Reply { cookie, outcome, chunks })
    }

    fn assemble(&mut self) -> Result<Bytes, ClientError> {
        self.contents.sort_by_key(|(start, _, _)| *start);
        if let [(0, len_bytes, Some(data))] = self.contents.as_slice()
            && *len_bytes == self.len_bytes
        {
            return Ok(data.clone());
        }
        let mut whole = Vec::with_capacity(self.len_bytes as usize);
        for (start, len_bytes, data) in &self.contents {
            if *start != whole.len() as u64 {
                return Err(ClientError::Malformed("content chunks overlap or leave a gap"));
            }
            match data {
                Some(data) => whole.extend_from_slice(data),
                None => whole.resize(whole.len() + *len_bytes as usize, 0),
            }
        }
        if whole.len() != self.len_bytes as usize {
            return Err(ClientError::Malformed("content chunks do not reach the end"));
        }
        Ok(whole.into())
    }
}

impl Client {
    /// The next complete reply, if there is one.
    ///
    /// # Errors
    /// If the server breaks the specification. The caller should then close the connection.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, ClientError> {
        while self.about().is_some() {
            let Some(magic) = Fields(&self.input).u32() else { break };
            let handled = match magic {
                SIMPLE_REPLY_MAGIC => self.simple_reply()?,
                CHUNK_MAGIC if self.about.structured => self.chunk()?,
                _ => return Err(ClientError::Magic { what: "reply", magic: magic.into() }),
            };
            match handled {
                Handled::Missing => break,
                Handled::Chunk => {}
                Handled::Reply(reply) => return Ok(Some(reply)),
            }
        }
        Ok(None)
    }

    fn simple_reply(&mut self) -> Result<Handled, ClientError> {
        let Ok((header, rest)) = SimpleReply::read_from_prefix(&self.input) else {
            return Ok(Handled::Missing);
        };
        let (cookie, error) = (header.cookie.get(), header.error.get());
        let Some(pending) = self.pending.get(&cookie) else {
            return Err(ClientError::UnknownCookie(cookie));
        };
        let must_be_chunk = [cmd::READ, cmd::BLOCK_STATUS].contains(&pending.command);
        if self.about.structured && must_be_chunk {
            return Err(ClientError::Malformed("simple reply where chunks are due"));
        }
        let brings_data = pending.command == cmd::READ && error == 0;
        let data_len = if brings_data { pending.len_bytes as usize } else { 0 };
        if rest.len() < data_len {
            return Ok(Handled::Missing);
        }
        self.input.advance(size_of::<SimpleReply>());
        let data = self.input.split_to(data_len).freeze();
        self.pending.remove(&cookie);
        let outcome = match error {
            0 if brings_data => Outcome::Data(data),
            0 => Outcome::Done,
            code => Outcome::Failed { errno: Errno::from_code(code), message: String::new() },
        };
        Ok(Handled::Reply(Reply { cookie, outcome, chunks: u32::from(data_len > 0) }))
    }

    fn chunk(&mut self) -> Result<Handled, ClientError> {
        let Ok((header, rest)) = ChunkHeader::read_from_prefix(&self.input) else {
            return Ok(Handled::Missing);
        };
        let (cookie, length) = (header.cookie.get(), header.length.get());
        if rest.len() < length as usize {
            return Ok(Handled::Missing);
        }
        self.input.advance(size_of::<ChunkHeader>());
        let mut payload = self.input.split_to(length as usize).freeze();
        let pending = self.pending.get_mut(&cookie).ok_or(ClientError::UnknownCookie(cookie))?;
        let last = header.flags.get() & chunk::DONE != 0;
        match header.chunk_type.get() {
            chunk::NONE if last && length == 0 => {}
            chunk::OFFSET_DATA if length > 8 => {
                let offset = payload.get_u64();
                pending.content(offset, length - 8, Some(payload))?;
            }
            chunk::OFFSET_HOLE if length == 12 => {
                let offset = payload.get_u64();
                pending.content(offset, payload.get_u32(), None)?;
            }
            chunk::BLOCK_STATUS => pending.block_status(&payload, self.about.allocation_id)?,
            // Unknown error types start like the known ones.
            error if error & (1 << 15) != 0 => pending.error(&payload)?,
            _ => return Err(ClientError::Malformed("unknown chunk type or wrong length")),
        }
        if !last {
            return Ok(Handled::Chunk);
        }
        let pending = self.pending.remove(&cookie).ok_or(ClientError::UnknownCookie(cookie))?;
        Ok(Handled::Reply(pending.finish(cookie)?))
    }
}

enum Handled {
    Missing,
    Chunk,
    Reply(Reply),
}
