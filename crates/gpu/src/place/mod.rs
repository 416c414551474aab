//! CRUSH placement on a GPU: one rule of one map for many inputs, with the results of the plain
//! mapper of `fieldstone-crush`.
//!
//! The kernel is assembly for the virtual machine PTX ([`kernel_text`]); the driver of the GPU
//! translates it. The kernel does not know maps. It reads an [`Image`]: tables in device memory
//! that hold one map, the reweights of its devices and one rule.
//!
//! # What a thread does
//!
//! A thread maps one input at a time. It is a state machine whose loop makes one draw per turn: it
//! hashes all items of one bucket, and keeps the item with the shortest straw. Then it decides
//! where to draw next: in the bucket that it has drawn, again from the top, for the next position,
//! or for the next input.
//!
//! A warp is 32 threads that run in lockstep. It is fast only while all threads run the same
//! instructions, and nearly all instructions are those of draws (some 180 for each item, 135 of
//! them for the hash). So all threads of a warp draw together, even if one of them is at its second
//! retry below a host and another at the first draw in the root. A thread that draws in a smaller
//! bucket waits for the largest one. The searches of `mapper.rs` as nested loops would let 31
//! threads wait while one of them retries.
//!
//! A thread that is done with its input takes the next one: the input as many rows further as the
//! grid has threads. A grid with a thread for each input is right, too, but there the threads of a
//! warp wait for the one with the most retries.
//!
//! # Launch
//!
//! The kernel is [`KERNEL`], in blocks of [`BLOCK_THREADS`] threads, of one dimension, with
//! [`shared_bytes`] of dynamic shared memory. Any number of blocks up to [`blocks`], which is one
//! thread for each input, maps all inputs. The parameters, in order:
//!
//! | parameter | type | meaning |
//! |-----------|------|---------|
//! | image     | u64  | address of the image, a multiple of 16 |
//! | xs        | u64  | address of the inputs, u32 each |
//! | count     | u32  | number of inputs, at most [`MAX_INPUTS`] |
//! | width     | u32  | most items of a result, 1 to [`MAX_WIDTH`] |
//! | rows      | u64  | address of the results: `count` rows of `width` i32 each |
//! | lens      | u64  | address of the lengths of the results, u32 each |
//!
//! A row holds the items of a result, then [`ItemId::NONE`](fieldstone_crush::ItemId::NONE) up to
//! the width. The length tells an empty position of indep (before the length) from a result that is
//! shorter than the width (after it).
//!
//! # The image
//!
//! All numbers are little-endian. Sections begin at multiples of 16 bytes.
//!
//! ```text
//!   at      bytes
//!   0       64      header
//!   64      2064    129 entries of the logarithm
//!   2128    2048    256 rests of the logarithm
//!   4176    32 n    steps of the rule; the last has the code 0
//!   ...     16 n    buckets; bucket -1 - i is entry i
//!   ...     16 n    items of all buckets, each bucket's in one piece
//!   ...     4 n     reweights of the devices, by number
//!
//!   header      0  u32  0x31475046, "FPG1"
//!               4  u32  bytes of the image
//!               8       zeros
//!              16  u32  where the buckets are
//!              20  u32  where the items are
//!              24  u32  where the reweights are
//!              28       zeros
//!
//!   entry       0  u64  reciprocal RH[k]
//!               8  u64  logarithm LH[k] * 2^11
//!   rest        0  u64  LL[j] * 2^11
//!
//!   step        0  u32  code: 0 end, 1 take, 2 emit, 3 choose
//!               4  i32  take: the item; choose: the count
//!               8  u32  choose: the type of the items
//!              12  u32  choose: 1 for indep, plus 2 for chooseleaf
//!              16  u32  choose: attempts at a position
//!              20  u32  choose: attempts at a leaf
//!              24  u32  choose: bits by which the r of a leaf is shifted; 32 leaves none of them
//!              28  u32  choose: 1 if leaves are stable
//!
//!   bucket      0  u32  index of its first item
//!               4  u32  number of its items
//!               8  u32  its type
//!              12       zeros
//!
//!   item        0  i32  its number, a device or a bucket
//!               4  u32  shift
//!               8  u64  multiplier
//! ```
//!
//! The tunables and the `set` steps of the rule are resolved when the image is made, so every
//! choose step carries its own numbers of attempts.
//!
//! # Shared memory
//!
//! A block copies the 4112 bytes of the logarithm to shared memory. Behind them lie three lists for
//! every thread, of `width` items each: the working list of the step, the items that the step
//! draws, and the leaves below them. A position takes 512 bytes: one item for each of 128 threads,
//! side by side, so that the threads of a warp use different banks.
//!
//! # Why the bits are the same
//!
//! **Hash.** The kernel runs the lines of `hash.rs` on 32-bit words.
//!
//! **Logarithm.** The kernel runs the two table steps of `ln.rs`, with the same tables. It needs
//! N = 2^48 - crush_ln(u) as 2^15 N. A sum of two table entries, each 2^11 times the CPU's, is 2^11
//! times the CPU's sum. The CPU cuts the last four bits of its sum. The kernel clears 15 bits of
//! its own: the same four, and 11 zeros. The result is at most 2^63. Of the product with the
//! reciprocal only bits 48 to 55 matter, which two 32-bit products give.
//!
//! **Division.** The plain mapper divides -N by the weight w, towards zero, and the greatest
//! quotient wins; so the smallest floor(N / w) wins. The kernel multiplies instead. Let l be the
//! least number with w <= 2^l, and m = ceil(2^(48 + l) / w). Then m w = 2^(48 + l) + e with
//! 0 <= e < w, and N m / 2^(48 + l) = N / w + N e / (w 2^(48 + l)). N is at most 2^48, so the last
//! term is at most e / (w 2^l). That is less than 1 / w, because e < w <= 2^l. The fraction of
//! N / w is at most 1 - 1 / w. So the sum has the same integer part as N / w. m is below 2^49; the
//! image holds 2^15 m. The upper 64 bits of 2^15 N times 2^15 m are floor(N m / 2^34), and a shift
//! by 14 + l leaves floor(N m / 2^(48 + l)), because a floor of a floor is one floor.
//!
//! **Items of weight 0** are not in the image. The plain mapper gives them the longest straw, so
//! they win only if no item of the bucket weighs anything. Then the first item wins every draw, and
//! the image has this item alone. Other items draw the same straws without them: a straw depends on
//! an item's number, not on its index.
//!
//! **Searches.** The transitions of the kernel are the searches of `mapper.rs`. Two simplifications
//! change nothing. A collision and a reject are the same without retries inside a bucket. And
//! positions of indep hold `NONE` from the start, not `UNDEFINED`: a bit set says which positions
//! are open, and no item equals either.
//!
//! # What stays on the CPU
//!
//! [`Misfit`] lists the reasons. The kernel takes straw2 buckets below the items that the rule
//! takes, of any depth, and any number of take, choose, chooseleaf and emit steps. It does not take
//! other bucket algorithms, weights that Ceph reads as negative, weight sets, retries inside a
//! bucket, and multi-step-retry rules. A result wider than [`MAX_WIDTH`] does not fit its lists.
//!
//! Every loop of the kernel has a bound that the image sets: items of a bucket, levels of the map
//! (which has no cycles), attempts ([`MAX_ATTEMPTS`]), positions, steps and inputs.

#[cfg(test)]
mod harness;
mod image;
mod rules;
#[cfg(test)]
mod tests;

pub use image::{Image, Misfit};
pub use rules::{MAX_ATTEMPTS, MAX_STEPS};

/// The kernel's name in [`kernel_text`].
pub const KERNEL: &str = "place";
/// Threads of a block. The kernel is written for this number.
pub const BLOCK_THREADS: u32 = 128;
/// Most items of a result.
pub const MAX_WIDTH: u32 = 16;
/// Most inputs of a launch. A thread counts rows in 32 bits, up to a grid past the last input.
pub const MAX_INPUTS: u32 = 1 << 31;

/// The PTX text of the kernel.
#[must_use]
pub fn kernel_text() -> &'static str {
    include_str!("place.ptx")
}

/// Dynamic shared memory of a block for results of that width; `None` if the width is 0 or more
/// than [`MAX_WIDTH`].
#[must_use]
pub fn shared_bytes(width: u32) -> Option<u32> {
    const LISTS: u32 = 3;
    let lists = LISTS * width * BLOCK_THREADS * size_of::<i32>() as u32;
    (1..=MAX_WIDTH).contains(&width).then_some(image::LOGARITHM_BYTES as u32 + lists)
}

/// Blocks with one thread for each input, at least one block.
#[must_use]
pub fn blocks(inputs: u32) -> u32 {
    inputs.div_ceil(BLOCK_THREADS).max(1)
}
