//! The client's handshake: one option at a time. The client awaits each answer before it sends the
//! next option.

use bytes::Buf;
use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

use super::{Client, ClientError};
use crate::wire::{
    BASE_ALLOCATION, Fields, Greeting, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader,
    OptionReplyHeader, handshake, info, opt, rep,
};

/// The message that the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeState {
    Greeting,
    Option(u32),
    ExportName,
    Ready,
}

impl Client {
    /// Handles one message; false if more bytes are needed.
    pub(super) fn handshake_step(&mut self) -> Result<bool, ClientError> {
        match self.state {
            HandshakeState::Greeting => self.greeting(),
            HandshakeState::Option(option) => self.option_reply(option),
            HandshakeState::ExportName => Ok(self.export_name_reply()),
            HandshakeState::Ready => Ok(false),
        }
    }

    fn greeting(&mut self) -> Result<bool, ClientError> {
        let Ok((greeting, _)) = Greeting::read_from_prefix(&self.input) else { return Ok(false) };
        for (magic, expected) in
            [(greeting.init_magic, INIT_MAGIC), (greeting.option_magic, OPTION_MAGIC)]
        {
            if magic.get() != expected {
                return Err(ClientError::Magic { what: "greeting", magic: magic.get() });
            }
        }
        let needed = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        if greeting.flags.get() & needed != needed {
            return Err(ClientError::Malformed("the server lacks fixed newstyle or NO_ZEROES"));
        }
        self.input.advance(size_of::<Greeting>());
        self.outbox.copy(&u32::from(needed).to_be_bytes());
        if self.config.structured {
            self.send_option(opt::STRUCTURED_REPLY, &[]);
        } else {
            self.start();
        }
        Ok(true)
    }

    fn send_option(&mut self, option: u32, data: &[u8]) {
        self.outbox.push(&OptionHeader {
            magic: U64::new(OPTION_MAGIC),
            option: U32::new(option),
            length: U32::new(len(data)),
        });
        self.outbox.copy(data);
        self.state = HandshakeState::Option(option);
    }

    fn select_context(&mut self) {
        let mut data = counted(self.config.export.as_bytes());
        data.extend(1u32.to_be_bytes());
        data.extend(counted(BASE_ALLOCATION.as_bytes()));
        self.send_option(opt::SET_META_CONTEXT, &data);
    }

    fn start(&mut self) {
        let name = self.config.export.as_bytes().to_vec();
        if self.config.go {
            let mut data = counted(&name);
            data.extend(3u16.to_be_bytes());
            for item in [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE] {
                data.extend(item.to_be_bytes());
            }
            self.send_option(opt::GO, &data);
        } else {
            self.send_option(opt::EXPORT_NAME, &name);
            self.state = HandshakeState::ExportName;
        }
    }

    fn export_name_reply(&mut self) -> bool {
        let mut fields = Fields(&self.input);
        let (Some(size_bytes), Some(flags)) = (fields.u64(), fields.u16()) else { return false };
        self.input.advance(10);
        (self.about.size_bytes, self.about.flags) = (size_bytes, flags);
        self.state = HandshakeState::Ready;
        true
    }

    fn option_reply(&mut self, option: u32) -> Result<bool, ClientError> {
        let Ok((header, rest)) = OptionReplyHeader::read_from_prefix(&self.input) else {
            return Ok(false);
        };
        if header.magic.get() != OPTION_REPLY_MAGIC {
            let magic = header.magic.get();
            return Err(ClientError::Magic { what: "option reply", magic });
        }
        if header.option.get() != option {
            return Err(ClientError::Malformed("reply to another option"));
        }
        let length = header.length.get() as usize;
        if rest.len() < length {
            return Ok(false);
        }
        self.input.advance(size_of::<OptionReplyHeader>());
        let data = self.input.split_to(length).freeze();
        let reply_type = header.reply_type.get();
        match (option, reply_type) {
            (opt::STRUCTURED_REPLY, rep::ACK) => {
                self.about.structured = true;
                if self.config.allocation {
                    self.select_context();
                } else {
                    self.start();
                }
            }
            // An old server has no structured replies. Go on without them.
            (opt::STRUCTURED_REPLY, rep::ERR_UNSUP) | (opt::SET_META_CONTEXT, rep::ACK) => {
                self.start();
            }
            (opt::SET_META_CONTEXT, rep::META_CONTEXT) => {
                let mut fields = Fields(&data);
                let id = fields.u32();
                if fields.0 == BASE_ALLOCATION.as_bytes() {
                    self.about.allocation_id = id;
                }
            }
            (opt::GO, rep::INFO) => self.information(&data)?,
            (opt::GO, rep::ACK) => self.state = HandshakeState::Ready,
            _ if reply_type & rep::ERROR_BIT != 0 => {
                let message = String::from_utf8_lossy(&data).into_owned();
                return Err(ClientError::Refused { option, reply_type, message });
            }
            _ => return Err(ClientError::Malformed("unexpected reply to an option")),
        }
        Ok(true)
    }

    fn information(&mut self, data: &[u8]) -> Result<(), ClientError> {
        let short = ClientError::Malformed("information too short");
        let mut fields = Fields(data);
        let item = fields.u16().ok_or(short.clone())?;
        let text = String::from_utf8_lossy(fields.0).into_owned();
        match item {
            info::EXPORT => {
                self.about.size_bytes = fields.u64().ok_or(short.clone())?;
                self.about.flags = fields.u16().ok_or(short)?;
            }
            info::NAME => self.about.name = Some(text),
            info::DESCRIPTION => self.about.description = Some(text),
            info::BLOCK_SIZE => {
                let mut next = || fields.u32().ok_or(short.clone());
                self.about.block_sizes = Some([next()?, next()?, next()?]);
            }
            _ => {}
        }
        Ok(())
    }
}

fn len(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("names fit in memory and in 32 bits")
}

/// `text` with its 32-bit length in front.
fn counted(text: &[u8]) -> Vec<u8> {
    [&len(text).to_be_bytes(), text].concat()
}
