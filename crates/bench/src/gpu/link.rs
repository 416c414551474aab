//! The link between the host and the card, with copies in both directions at once.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use bytes::Bytes;
use fieldstone_buf::AlignedBuf;
use fieldstone_gpu::Card;
use fieldstone_gpu::driver::{Event, Stream};

use super::arena::Arena;
use super::device;

/// Two streams, and a pinned buffer for the bytes that the card copies out.
pub struct Link {
    inward: (Stream, Event),
    outward: (Stream, Event),
    back: AlignedBuf,
}

impl Link {
    /// A link for objects with at most this many bytes of outputs.
    ///
    /// # Errors
    /// The card has failed, or there is too little pinned memory.
    pub fn new(card: &Arc<Card>, output_bytes_max: usize) -> anyhow::Result<Self> {
        let driver = card.driver();
        let back = device::host_buffer(card, output_bytes_max)
            .context("there is too little memory that the card writes directly")?;
        Ok(Self {
            inward: (driver.stream()?, driver.event()?),
            outward: (driver.stream()?, driver.event()?),
            back,
        })
    }

    /// Copies the inputs of so many objects to the card, each input in one copy, and at the same
    /// time as many outputs of these lengths back. Objects take turns. Returns the seconds until
    /// the slower direction is done.
    ///
    /// # Errors
    /// The card has failed, or the objects are larger than the buffers.
    pub fn pass(
        &mut self,
        arena: &Arena,
        objects: &[Vec<Bytes>],
        outputs: &[u64],
        count: usize,
    ) -> anyhow::Result<f64> {
        let output_bytes: u64 = outputs.iter().sum();
        let half = arena.len_bytes() / 2 / 256 * 256;
        ensure!(
            output_bytes <= half && output_bytes <= self.back.len() as u64,
            "the outputs of an object are larger than their buffer"
        );
        let input_bytes = |inputs: &Vec<Bytes>| inputs.iter().map(|i| i.len() as u64).sum::<u64>();
        ensure!(
            objects.iter().all(|inputs| input_bytes(inputs) <= half),
            "the inputs of an object are larger than the memory of the card that is taken"
        );
        let driver = arena.card().driver();
        let begun = Instant::now();
        for inputs in objects.iter().cycle().take(count) {
            let mut at = 0;
            for input in inputs {
                let rows = device::rows(input.len(), 1, input.len());
                // SAFETY: the caller keeps the inputs, and this function waits for the copy. The
                // place is in the first half of the arena. After an error the card does nothing
                // more.
                unsafe {
                    driver.copy_in(self.inward.0, arena.at(at), input.as_ptr(), rows)?;
                }
                at += input.len() as u64;
            }
            let mut at = 0;
            for &bytes in outputs {
                let rows = device::rows(bytes as usize, 1, bytes as usize);
                let to = self.back[at as usize..].as_mut_ptr();
                // SAFETY: the bytes are inside the buffer, which nothing else uses, and this
                // function waits for the copy. The place is in the second half of the arena. After
                // an error the card does nothing more.
                unsafe { driver.copy_out(self.outward.0, to, arena.at(half + at), rows)? };
                at += bytes;
            }
        }
        for (stream, event) in [self.inward, self.outward] {
            driver.record(event, stream)?;
        }
        driver.wait(self.inward.1)?;
        driver.wait(self.outward.1)?;
        Ok(begun.elapsed().as_secs_f64())
    }
}
