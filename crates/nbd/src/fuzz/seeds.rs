//! Valid sessions from which fuzzing starts.

use crate::wire::{
    BASE_ALLOCATION, OPTION_MAGIC, REQUEST_MAGIC, cmd, cmd_flag, handshake, info, opt,
};

/// Inputs for [`super::session`]: a seed and a client's bytes. Together they use every option,
/// command and flag.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![legacy(), browsing(), simple()];
    for seed in 0..4 {
        seeds.push(full(seed));
    }
    seeds
}

/// An input: the seed and the client's bytes.
struct SeedInput(Vec<u8>);

impl SeedInput {
    fn new(seed: u64, client_flags: u16) -> Self {
        let mut input = Self(seed.to_le_bytes().to_vec());
        input.0.extend(u32::from(client_flags).to_be_bytes());
        input
    }

    fn option(mut self, code: u32, data: &[u8]) -> Self {
        self.0.extend(OPTION_MAGIC.to_be_bytes());
        self.0.extend(code.to_be_bytes());
        self.0.extend(counted(data));
        self
    }

    fn request(mut self, command: u16, flags: u16, offset: u64, len: u32) -> Self {
        let cookie = self.0.len() as u64;
        self.0.extend(REQUEST_MAGIC.to_be_bytes());
        self.0.extend(flags.to_be_bytes());
        self.0.extend(command.to_be_bytes());
        self.0.extend(cookie.to_be_bytes());
        self.0.extend(offset.to_be_bytes());
        self.0.extend(len.to_be_bytes());
        if command == cmd::WRITE {
            self.0.resize(self.0.len() + len as usize, 0x5a);
        }
        self
    }
}

const FIXED: u16 = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;

/// An old client: no fixed newstyle, `EXPORT_NAME`, simple replies.
fn legacy() -> Vec<u8> {
    SeedInput::new(1, 0)
        .option(opt::EXPORT_NAME, b"disk")
        .request(cmd::WRITE, 0, 0, 512)
        .request(cmd::READ, 0, 0, 512)
        .request(cmd::DISC, 0, 0, 0)
        .0
}

/// A client that lists exports and contexts, and leaves.
fn browsing() -> Vec<u8> {
    SeedInput::new(2, FIXED)
        .option(opt::STARTTLS, b"")
        .option(opt::LIST, b"")
        .option(opt::STRUCTURED_REPLY, b"")
        .option(opt::LIST_META_CONTEXT, &contexts("fixed", &["base:"]))
        .option(opt::INFO, &describe("fixed"))
        .option(opt::INFO, &describe("missing"))
        .option(opt::ABORT, b"")
        .0
}

/// The Linux kernel's client: `GO` and simple replies; on the read-only export.
fn simple() -> Vec<u8> {
    SeedInput::new(3, FIXED)
        .option(opt::GO, &describe("fixed"))
        .request(cmd::READ, 0, 4096, 4096)
        .request(cmd::WRITE, cmd_flag::FUA, 0, 1000)
        .request(cmd::FLUSH, 0, 0, 0)
        .request(cmd::TRIM, 0, 0, 4096)
        .request(cmd::READ, 0, 1 << 19, 1 << 19)
        .request(cmd::DISC, 0, 0, 0)
        .0
}

/// A modern client that uses everything.
fn full(seed: u64) -> Vec<u8> {
    let zeroing = cmd_flag::FUA | cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO;
    SeedInput::new(seed, FIXED)
        .option(opt::STRUCTURED_REPLY, b"")
        .option(opt::SET_META_CONTEXT, &contexts("disk", &[BASE_ALLOCATION]))
        .option(opt::GO, &describe("disk"))
        .request(cmd::WRITE, cmd_flag::FUA, 4096, 4096)
        .request(cmd::READ, cmd_flag::DF, 0, 65_536)
        .request(cmd::READ, 0, 0, 100_000)
        .request(cmd::WRITE, 0, 1000, 50_000)
        .request(cmd::WRITE_ZEROES, zeroing, 0, 1 << 20)
        .request(cmd::BLOCK_STATUS, cmd_flag::REQ_ONE, 0, 1 << 20)
        .request(cmd::BLOCK_STATUS, 0, 512, 1 << 19)
        .request(cmd::CACHE, 0, 0, 4096)
        .request(cmd::READ, 0, 1 << 20, 1)
        .request(cmd::WRITE, 0, 1 << 20, 40_000)
        .request(cmd::READ, 0, 0, 0)
        .request(99, 0, 0, 0)
        .request(cmd::TRIM, cmd_flag::FUA, 0, 8192)
        .request(cmd::FLUSH, cmd_flag::FUA, 0, 0)
        .request(cmd::DISC, 0, 0, 0)
        .0
}

fn counted(data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).expect("seeds are short");
    [&len.to_be_bytes(), data].concat()
}

fn describe(name: &str) -> Vec<u8> {
    let mut data = counted(name.as_bytes());
    data.extend(3u16.to_be_bytes());
    for item in [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE] {
        data.extend(item.to_be_bytes());
    }
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = counted(name.as_bytes());
    data.extend(u32::try_from(queries.len()).expect("seeds are short").to_be_bytes());
    for query in queries {
        data.extend(counted(query.as_bytes()));
    }
    data
}
