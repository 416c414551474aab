//! Opens a store inside the caller's process, behind the same layers as in `fieldstone serve`.
//!
//! The store is memory (`ram:SIZE`, a multiple of 512 bytes), a file or a block device
//! (`file:PATH`), an image of a Ceph cluster (`ceph:POOL/IMAGE`), or a volume of a pool
//! (`DIR/VOLUME`). For a volume, this process also runs the nodes of the pool that no `fieldstone
//! node` process runs. Commands such as `fieldstone status` then ask this process. No other process
//! can open a volume of the pool meanwhile, unless all nodes are processes of their own. A process
//! that needs several volumes of a pool opens them with one call of [`Device::open_all`].
//!
//! ```
//! use fieldstone_embed::{Device, Options};
//!
//! let device = Device::open("ram:64M", &Options::default())?;
//! device.write(4096, b"stone")?;
//! device.flush()?;
//! let mut back = [0; 5];
//! device.read(4096, &mut back)?;
//! assert_eq!(&back, b"stone");
//! device.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Two kinds of calls
//!
//! *Blocking*: [`Queue::read`], [`Queue::write`] and so on wait for room and for the answer.
//!
//! *Asynchronous*: [`Queue::submit`] takes an [`Operation`] and an [`OnComplete`], and returns at
//! once. [`Operation::ReadInto`] reads into memory of the caller, where a file can put the bytes
//! without a copy. The `OnComplete` names the receiver of the answer: a closure, a
//! [`CompletionQueue`] with an eventfd, or the caller's own [`Complete`]. Any number of threads may
//! submit.
//!
//! ```text
//!  caller's threads                        the core's thread
//! +------------------+   bounded queue   +-------------------------+
//! | submit, read, …  | ----------------> | front-end `embed`       |
//! |                  |  one wake-up for  |   | requests            |
//! |                  |  many requests    |   v                     |
//! |                  | <---------------- | layers, store           |
//! +------------------+   Complete        +-------------------------+
//! ```
//!
//! # Rules
//!
//! - The core's thread calls [`Complete::complete`], which must not block. Meanwhile the core
//!   processes no request of any device. `complete` may submit. Blocking calls and `close` fail
//!   there with [`Error::OnCore`], for every device. [`Device::open`] works there.
//! - Answers come in any order. A read that is submitted after the answer to a write sees that
//!   write. A flush makes the writes stable that were answered before the flush was submitted.
//! - A queue bounds its requests and their bytes ([`Bounds`]). When it is full, `submit` returns
//!   [`Error::Full`], and [`Queue::wait_for_room`] waits for room. When the [`CompletionQueue`] of
//!   the request is full, `submit` returns [`Error::NoPlace`]: take answers first.
//! - [`Queue::close`] refuses further requests, and returns when every request is answered.
//! - A child process after `fork` must not use a device of its parent.
//! - The threads of a device block all signals except those for faults, such as SIGSEGV. So only
//!   the caller's own threads take the process's signals.
//!
//! # The crate as a front-end
//!
//! [`KIND`] is a [`FrontendKind`](fieldstone_host::FrontendKind) like NBD, but outside the host's
//! crate. [`Device::open`] starts a host with it. A program that already runs a host adds it to
//! [`HostConfig::frontends`](fieldstone_host::HostConfig::frontends). The program then calls
//! [`Queue::attach`] for any device of that host.

mod answer;
mod blocking;
mod caller_buffer;
mod completions;
mod device;
mod frontend;
mod queue;

pub use answer::{Answer, Complete, Data, Error, OnComplete, is_in_callback};
pub use caller_buffer::CallerBuffer;
pub use completions::{CompletionQueue, Done};
pub use device::{CloseError, Device, OpenError, Options};
pub use fieldstone_block::BlockError;
pub use frontend::KIND;
pub use queue::{AttachError, Bounds, DISCARD_BYTES_MAX, Operation, Queue, REQUEST_BYTES_MAX};
