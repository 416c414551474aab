//! An open image, as a block device.
//!
//! [`Image`] runs its procedures by itself: the owner calls [`Image::run`] with the time after it
//! has delivered answers of the cluster, and carries out the calls that the cluster's queue has
//! then. Each request is a task. Files, bottom up: [`view`] reads objects and parents, [`map`]
//! keeps the object map, [`owner`] gets and gives the lock, [`late`] keeps it, [`watcher`] listens
//! to other clients, [`requests`] does what they ask the owner for, [`asking`] asks another owner,
//! [`write`] changes objects.
//!
//! **Failure.** A request that fails says why. If the cluster has blocked this client, or the image
//! is gone, the image stops: all requests from then on fail with that error.

mod asking;
mod cleanup;
mod core;
mod extents;
mod late;
mod map;
mod owner;
mod requests;
mod session;
mod sync;
mod view;
mod watcher;
mod write;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use fieldstone_block::{
    Backend, BlockError, Completion, Info, Nanos, Op, Payload, Request, Sharing, Stage,
};
use fieldstone_rados::cluster::Cluster;
use fieldstone_rados::errno::Errno;
use fieldstone_tasks::Executor;

pub(crate) use core::Core;
pub use core::ImageSpec;
pub(crate) use session::open;
use sync::Event;
pub(crate) use sync::Spawner;
pub use sync::Timer;
pub use view::PARENTS_MAX;
pub(crate) use view::View;
use view::{Pieces, push_zeroes};

use crate::error::RbdError;
use crate::format::ObjectState;
use write::Change;

/// The longest request that is best for an image.
const PREFERRED_BYTES_MAX: u64 = 4 << 20;
/// How far a layer should read ahead.
const READ_AHEAD_BYTES: u64 = 1 << 20;
/// How often a read is begun again because the parent has changed meanwhile.
const READ_ATTEMPTS: usize = 4;

/// What an image does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It is being opened. Requests wait.
    Opening,
    /// It takes requests.
    Open,
    /// It could not be opened, or has stopped.
    Failed(RbdError),
    /// It is being closed.
    Closing,
    /// It is closed.
    Closed,
}

/// What the image and its tasks share.
struct Shared {
    phase: RefCell<Phase>,
    core: RefCell<Option<Rc<Core>>>,
    completions: RefCell<Vec<Completion>>,
    /// Opening has ended, well or not.
    opened: Event,
    /// The image is closed while it is being opened.
    is_broken_off: Cell<bool>,
    broken_off: Event,
}

/// Opens an image, until it is to be closed. What is watched or locked by then is given up.
async fn open_unless_closed(
    opening: impl Future<Output = Result<Rc<Core>, RbdError>>,
    shared: &Shared,
    path: &str,
) -> Result<Rc<Core>, RbdError> {
    let mut opening = pin!(opening);
    let mut broken_off = shared.broken_off.next();
    poll_fn(|context| {
        if let Poll::Ready(opened) = opening.as_mut().poll(context) {
            return Poll::Ready(opened);
        }
        if !shared.is_broken_off.get() {
            let _ = Pin::new(&mut broken_off).poll(context);
        }
        match &*shared.core.borrow() {
            Some(core) if shared.is_broken_off.get() && !core.closing.get() => core.begin_close(),
            // Nothing has begun that has to be undone.
            None if shared.is_broken_off.get() => {
                return Poll::Ready(Err(RbdError::Closed(path.to_owned())));
            }
            _ => {}
        }
        Poll::Pending
    })
    .await
}

/// An open image.
pub struct Image {
    shared: Rc<Shared>,
    executor: Executor,
    spawner: Spawner,
    timer: Timer,
    spec: ImageSpec,
    /// Requests that came before the image was open.
    waiting: Vec<Request>,
}

/// How many requests wait for an image that is being opened. More fail.
const WAITING_MAX: usize = 4096;

impl Image {
    /// Begins to open an image. It goes on in [`Image::run`], until [`Image::phase`] says that it
    /// is open or has failed.
    #[must_use]
    pub fn open(cluster: Cluster, spec: ImageSpec) -> Self {
        let shared = Rc::new(Shared {
            phase: RefCell::new(Phase::Opening),
            core: RefCell::default(),
            completions: RefCell::default(),
            opened: Event::default(),
            is_broken_off: Cell::new(false),
            broken_off: Event::default(),
        });
        let (spawner, timer) = (Spawner::default(), Timer::new());
        let begun = Rc::clone(&shared);
        let begun = move |core: &Rc<Core>| *begun.core.borrow_mut() = Some(Rc::clone(core));
        let opening = open(cluster, timer.clone(), spawner.clone(), spec.clone(), begun);
        let (result, path) = (Rc::clone(&shared), spec.path());
        spawner.spawn(async move {
            let opened = open_unless_closed(opening, &result, &path).await;
            *result.phase.borrow_mut() = match opened {
                Ok(_) => Phase::Open,
                Err(error) => {
                    *result.core.borrow_mut() = None;
                    Phase::Failed(error)
                }
            };
            result.opened.happen();
        });
        let mut image = Self {
            shared,
            executor: Executor::default(),
            spawner,
            timer,
            spec,
            waiting: Vec::new(),
        };
        image.go_on();
        image
    }

    /// What the image does.
    #[must_use]
    pub fn phase(&self) -> Phase {
        let phase = self.shared.phase.borrow().clone();
        if phase == Phase::Open
            && let Some(fault) = self.core().and_then(|core| core.fault())
        {
            return Phase::Failed(fault);
        }
        phase
    }

    /// The image that was asked for.
    #[must_use]
    pub fn spec(&self) -> &ImageSpec {
        &self.spec
    }

    /// True if this client has the lock of the image.
    #[must_use]
    pub fn owns_lock(&self) -> bool {
        self.core().is_some_and(|core| core.needs_lock() && core.owns_lock())
    }

    /// Lets all procedures go on that can. Call it after answers of the cluster were delivered, and
    /// at [`Backend::deadline`].
    pub fn run(&mut self, now: Nanos) {
        self.timer.advance(now);
        self.go_on();
        if !self.waiting.is_empty() && self.shared.phase.borrow().clone() != Phase::Opening {
            for request in std::mem::take(&mut self.waiting) {
                self.start(request);
            }
            self.go_on();
        }
    }

    /// Begins to close the image: the writes in flight end, the lock is given up. Goes on in
    /// [`Image::run`], until the phase is [`Phase::Closed`].
    pub fn close(&mut self) {
        let phase = self.phase();
        if matches!(phase, Phase::Closing | Phase::Closed) {
            return;
        }
        let shared = Rc::clone(&self.shared);
        *shared.phase.borrow_mut() = match phase {
            Phase::Opening => Phase::Opening,
            _ => Phase::Closing,
        };
        if phase == Phase::Opening {
            shared.is_broken_off.set(true);
            shared.broken_off.happen();
        }
        self.spawner.spawn(async move {
            // Opening ends soon.
            while shared.phase.borrow().clone() == Phase::Opening {
                shared.opened.next().await;
            }
            *shared.phase.borrow_mut() = Phase::Closing;
            let core = shared.core.borrow().clone();
            if let Some(core) = core {
                core.close().await;
            }
            *shared.phase.borrow_mut() = Phase::Closed;
        });
        self.go_on();
    }

    fn core(&self) -> Option<Rc<Core>> {
        self.shared.core.borrow().clone()
    }

    fn go_on(&mut self) {
        loop {
            for task in self.spawner.take() {
                self.executor.spawn(task);
            }
            if !self.executor.run() {
                return;
            }
        }
    }

    fn start(&mut self, mut request: Request) {
        let shared = Rc::clone(&self.shared);
        let Some(core) = self.core() else {
            let error = match self.phase() {
                Phase::Failed(error) => error.to_block_error(),
                _ => BlockError::ShuttingDown,
            };
            shared.completions.borrow_mut().push(Completion::of(&request, Err(error)));
            return;
        };
        request.stamps.stamp(Stage::Sent, self.timer.now());
        let timer = self.timer.clone();
        let end = move |mut request: Request, result: Result<Payload, RbdError>| {
            request.stamps.stamp(Stage::Replied, timer.now());
            let result = result.map_err(|error| error.to_block_error());
            shared.completions.borrow_mut().push(Completion::of(&request, result));
        };
        // Most requests of a busy image are such reads. Their task is a tenth of the other one.
        if let Some(read) = core.simple_read(&request) {
            self.executor.spawn(Box::pin(async move {
                let read = read.await.map(Payload::Data);
                end(request, read.map_err(|errno| core.error("a read", errno)));
            }));
            return;
        }
        self.executor.spawn(Box::pin(async move {
            let result = core.serve(&request).await;
            end(request, result);
        }));
    }
}

impl Core {
    async fn serve(self: &Rc<Self>, request: &Request) -> Result<Payload, RbdError> {
        let (offset, len) = (request.offset_bytes, u64::from(request.len_bytes));
        if len == 0 && request.op != Op::Flush {
            return Ok(request.empty_payload());
        }
        match request.op {
            Op::Read => return self.read(offset, len).await.map(Payload::Data),
            Op::Write => self.change(offset, len, Change::Write(request.data.clone())).await,
            Op::Trim => self.change(offset, len, Change::Discard).await,
            Op::WriteZeroes if request.flags.no_hole => {
                self.change(offset, len, Change::Zeroes).await
            }
            Op::WriteZeroes => self.change(offset, len, Change::Discard).await,
            Op::Flush => {
                self.check()?;
                self.flush().await;
                Ok(())
            }
            Op::Extents => return self.extents(offset, len).await.map(Payload::Extents),
        }
        .map(|()| Payload::None)
    }

    /// Sends a read that needs one answer and no other step: of one object that may exist, of an
    /// image without a parent, with a header that is up to date. `None` for any other request.
    fn simple_read(
        &self,
        request: &Request,
    ) -> Option<impl Future<Output = Result<Pieces, Errno>> + use<>> {
        let (offset, len) = (request.offset_bytes, u64::from(request.len_bytes));
        if request.op != Op::Read || len == 0 || self.is_stale() || self.check().is_err() {
            return None;
        }
        let view = self.view();
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= view.size_bytes);
        if view.parent.is_some() || !is_inside {
            return None;
        }
        let extents = view.layout.map(offset, len);
        let [extent] = &extents[..] else { return None };
        if !self.may_exist(extent.object) {
            return None;
        }
        let sent = view.read_object(extent);
        Some(async move {
            let mut pieces = Pieces::new();
            if !sent.await?.append_to(&mut pieces, len)? {
                push_zeroes(&mut pieces, len);
            }
            Ok(pieces)
        })
    }

    async fn read(self: &Rc<Self>, offset: u64, len: u64) -> Result<Pieces, RbdError> {
        let mut attempt = 0;
        loop {
            self.check()?;
            self.refresh().await?;
            attempt += 1;
            let view = self.view();
            if offset.checked_add(len).is_none_or(|end| end > view.size_bytes) {
                return Err(RbdError::Invalid(format!(
                    "image {}: a read at {offset}+{len} is behind its end at {}",
                    self.name, view.size_bytes
                )));
            }
            let mut pieces = Pieces::new();
            let may_exist = |object| self.state(object).is_none_or(ObjectState::may_exist);
            let done = view.read(offset, len, may_exist, &mut pieces).await;
            done.map_err(|errno| self.error("a read", errno))?;
            // If the image was detached from its parent meanwhile, the parent may be gone, and its
            // bytes are now in the image's own objects. Whoever removes the parent has told of it.
            if view.parent.is_some() {
                self.refresh().await?;
            }
            let detached = view.parent.is_some() && self.view().parent.is_none();
            if !detached || attempt >= READ_ATTEMPTS {
                return Ok(pieces);
            }
        }
    }
}

impl Backend for Image {
    fn info(&self) -> Info {
        let Some(core) = self.core() else {
            return Info {
                size_bytes: 0,
                block_bytes: 1,
                preferred_bytes: 4096,
                read_ahead_bytes: 0,
                read_only: self.spec.is_read_only(),
            };
        };
        let view = core.view();
        let object_bytes = view.layout.object_bytes();
        let bounded = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        Info {
            size_bytes: view.size_bytes,
            block_bytes: 1,
            preferred_bytes: bounded(object_bytes.min(PREFERRED_BYTES_MAX)),
            read_ahead_bytes: bounded(object_bytes.min(READ_AHEAD_BYTES)),
            read_only: self.spec.is_read_only(),
        }
    }

    fn submit(&mut self, mut request: Request, now: Nanos) {
        self.timer.advance(now);
        request.stamps.stamp(Stage::Submitted, now);
        if *self.shared.phase.borrow() == Phase::Opening {
            if self.waiting.len() < WAITING_MAX {
                self.waiting.push(request);
            } else {
                let error = Err(BlockError::Io("too many requests wait for the image".into()));
                self.shared.completions.borrow_mut().push(Completion::of(&request, error));
            }
            return;
        }
        self.start(request);
        self.go_on();
    }

    fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        self.run(now);
        out.append(&mut self.shared.completions.borrow_mut());
    }

    fn deadline(&self) -> Option<Nanos> {
        self.timer.deadline()
    }

    /// The data of a snapshot does not change. Otherwise only the owner of the lock may rely on
    /// what it has read, and delay writes.
    fn shared(&self) -> Option<Sharing> {
        let shared = |why, for_good| Some(Sharing { why, for_good });
        let Some(core) = self.core() else { return shared("the image is not open", false) };
        if self.spec.snapshot.is_some() || core.owns_lock_alone() {
            None
        } else if !core.needs_lock() {
            shared("the image has not the feature exclusive-lock: other clients may write", true)
        } else if self.spec.is_read_only() {
            shared("the image is read-only here, and other clients may write", true)
        } else if core.ownership.is_leaving() {
            shared("another client asks for the lock of the image", false)
        } else {
            shared("this client has not the lock of the image", false)
        }
    }

    fn settled(&mut self) {
        if let Some(core) = self.core() {
            core.ownership.layers_settled();
            self.go_on();
        }
    }
}
