//! Coding: the blocks of a segment are laid out on data shards, and the world makes the parity.

use std::ops::Range;

use bytes::Bytes;
use fieldstone_accel::{Job, Shard};
use fieldstone_buf::{AlignedBuf, join};
use fieldstone_proto::{BLOCK_BYTES, crc32c_blocks};

use crate::core::VolumeCore;
use crate::footer::Footer;
use crate::jobs::JobResult;
use crate::segment::SegmentIndex;
use fieldstone_tasks::Awaited;

impl VolumeCore {
    /// Lays blocks of each shard of a closed segment out, and starts to code them. The range is one
    /// of whole chunks, or the whole shard.
    pub fn code_blocks(&mut self, handle: SegmentIndex, blocks: Range<u32>) -> Option<Coding> {
        let data = self.lay_out(handle, blocks)?;
        Some(self.start_coding(data))
    }

    /// Lays blocks of each data shard of a closed segment out.
    pub fn lay_out(&self, handle: SegmentIndex, blocks: Range<u32>) -> Option<Vec<Shard>> {
        let layout = *self.shape.layout();
        let segment = self.segments.get(handle)?;
        let contents = segment.contents.as_ref()?;
        let (begin, end) = (blocks.start * layout.k, blocks.end * layout.k);
        let mut builder = ShardBuilder::new(layout, blocks.end - blocks.start);
        let mut at = begin;
        let stop = end.min(contents.blocks()).max(begin);
        contents.read(begin, stop - begin, |data| {
            let count = data.len() / BLOCK_BYTES;
            let sums = &contents.checksums[at as usize..at as usize + count];
            builder.put(at - begin, &data, sums);
            at += u32::try_from(count).expect("small");
        });
        if end * BLOCK_BYTES as u32 >= layout.k * segment.shard_bytes {
            let footer = Footer {
                volume: self.config.volume,
                segment: segment.id,
                lsn_first: segment.lsn_first,
                lsn_end: segment.lsn_end,
                entries: contents.entries.clone(),
            }
            .encode();
            let footer_blocks = u32::try_from(footer.len() / BLOCK_BYTES).expect("small");
            builder.put(end - begin - footer_blocks, &footer, &crc32c_blocks(&footer));
        }
        Some(builder.finish())
    }

    /// Starts to make the parity shards.
    pub fn start_coding(&mut self, data: Vec<Shard>) -> Coding {
        let shard_bytes = data.first().map_or(0, |shard| shard.data.len());
        let chunk_bytes = self.coded_bytes(shard_bytes);
        let chunk = |at: usize| {
            data.iter().map(|shard| shard.data.slice(at..at + chunk_bytes)).collect::<Vec<Bytes>>()
        };
        let chunks: Vec<Vec<Bytes>> = (0..shard_bytes).step_by(chunk_bytes).map(chunk).collect();
        let parity = chunks.into_iter().map(|inputs| self.start_encoding(inputs)).collect();
        Coding { data, parity }
    }

    /// Bytes that the code makes at a time of a shard, or a run of chunks, of `len_bytes`: all, or
    /// one chunk.
    pub fn coded_bytes(&self, len_bytes: usize) -> usize {
        let chunk_bytes = self.shape.layout().chunk_blocks as usize * BLOCK_BYTES;
        match self.shape.code().elements() {
            1 => len_bytes.max(1),
            _ => chunk_bytes.min(len_bytes).max(1),
        }
    }

    /// Gives the world the job that makes parity for `inputs`, one for each data shard, and the
    /// checksums of the parity.
    pub fn start_encoding(&mut self, inputs: Vec<Bytes>) -> Awaited<JobResult> {
        let map = std::sync::Arc::clone(self.shape.code().encode());
        self.start_job(Job::Code { map, inputs, checksum_block_bytes: Some(BLOCK_BYTES) })
    }
}

/// Shards whose parity the world is making.
pub struct Coding {
    data: Vec<Shard>,
    /// A job for each chunk.
    parity: Vec<Awaited<JobResult>>,
}

impl Coding {
    /// All shards: those of data, then those of parity.
    pub async fn finish(self) -> Vec<Shard> {
        let mut chunks = Vec::with_capacity(self.parity.len());
        for chunk in self.parity {
            chunks.push(finish_encoding(chunk).await);
        }
        let mut shards = self.data;
        shards.extend(join_chunks(chunks));
        shards
    }
}

/// The shards that consist of these chunks. Each item has the same chunk of all of the shards.
pub fn join_chunks(mut chunks: Vec<Vec<Shard>>) -> Vec<Shard> {
    if chunks.len() == 1 {
        return chunks.remove(0);
    }
    let shards = 0..chunks.first().map_or(0, Vec::len);
    let shard = |shard: usize| {
        let parts: Vec<Bytes> = chunks.iter().map(|chunk| chunk[shard].data.clone()).collect();
        let checksums = chunks.iter().flat_map(|chunk| chunk[shard].checksums.iter().copied());
        Shard { data: join(&parts), checksums: checksums.collect() }
    };
    shards.map(shard).collect()
}

/// The parity shards of [`VolumeCore::start_encoding`].
pub async fn finish_encoding(parity: Awaited<JobResult>) -> Vec<Shard> {
    let output = parity.await.expect("the shape of a segment fits its code");
    output.into_shards().expect("a code job gives shards")
}

/// Lays blocks out on data shards.
pub struct ShardBuilder {
    layout: crate::layout::Layout,
    buffers: Vec<AlignedBuf>,
    /// The length of each buffer that is laid out. Bytes after that are stale.
    ends: Vec<usize>,
    checksums: Vec<Vec<u32>>,
}

impl ShardBuilder {
    /// Data shards of `shard_blocks` zero blocks each.
    #[must_use]
    pub fn new(layout: crate::layout::Layout, shard_blocks: u32) -> Self {
        let bytes = shard_blocks as usize * BLOCK_BYTES;
        let zero = fieldstone_proto::crc32c(&[0; BLOCK_BYTES]);
        Self {
            layout,
            buffers: (0..layout.k).map(|_| AlignedBuf::stale(bytes)).collect(),
            ends: vec![0; layout.k as usize],
            checksums: (0..layout.k).map(|_| vec![zero; shard_blocks as usize]).collect(),
        }
    }

    /// Places blocks from segment block `first` on.
    pub fn put(&mut self, first: u32, data: &[u8], checksums: &[u32]) {
        let count = u32::try_from(data.len() / BLOCK_BYTES).expect("a segment is small");
        let mut at = 0;
        for range in self.layout.ranges(first, count) {
            let (shard, blocks) = (range.shard as usize, range.count as usize);
            let to = range.offset_bytes as usize;
            let bytes = blocks * BLOCK_BYTES;
            let from = at * BLOCK_BYTES;
            self.extend(shard, to);
            self.buffers[shard][to..to + bytes].copy_from_slice(&data[from..from + bytes]);
            self.ends[shard] = self.ends[shard].max(to + bytes);
            let block = to / BLOCK_BYTES;
            self.checksums[shard][block..block + blocks]
                .copy_from_slice(&checksums[at..at + blocks]);
            at += blocks;
        }
    }

    /// Zeroes the bytes between the laid-out end of a shard and `to`.
    fn extend(&mut self, shard: usize, to: usize) {
        if let Some(gap) = self.buffers[shard].get_mut(self.ends[shard]..to) {
            gap.fill(0);
        }
    }

    /// The data shards.
    #[must_use]
    pub fn finish(mut self) -> Vec<Shard> {
        for shard in 0..self.buffers.len() {
            self.extend(shard, self.buffers[shard].len());
        }
        self.buffers
            .into_iter()
            .zip(self.checksums)
            .map(|(buffer, checksums)| Shard { data: buffer.freeze(), checksums })
            .collect()
    }
}
