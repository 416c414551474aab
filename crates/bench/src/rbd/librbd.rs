//! A load on an image by librbd through C, whose callbacks submit the next requests.
//!
//! It is the peer of the contender `embed-callback`: the same accesses, on the same image, made in
//! the same way. librbd calls back on a thread of its own, so no thread of the load is woken for an
//! answer. fio's rbd engine, the contender `librbd`, has such a thread.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::librados::{Handle, LIBRBD, Librados, check, function};
use crate::course::Course;
use crate::fio::{Load, Measured};
use crate::generator::{ANSWER_MAX, random_bytes};
use crate::library::Library;
use crate::usage::Usage;

/// A load on an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageLoad {
    /// The client's name without its type.
    pub id: String,
    /// ceph.conf.
    pub conf: PathBuf,
    /// The pool.
    pub pool: String,
    /// The image.
    pub image: String,
    /// Size of the image.
    pub size_bytes: u64,
    /// The accesses.
    pub load: Load,
    /// Length of the run in seconds.
    pub seconds: f64,
    /// The same seed makes the same random addresses.
    pub seed: u64,
}

type Callback = unsafe extern "C" fn(Handle, *mut c_void);

/// The functions of librbd that the benchmark calls.
#[derive(Clone, Copy)]
struct Functions {
    open: unsafe extern "C" fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int,
    close: unsafe extern "C" fn(Handle) -> c_int,
    aio_create_completion: unsafe extern "C" fn(*mut c_void, Callback, *mut Handle) -> c_int,
    aio_release: unsafe extern "C" fn(Handle),
    aio_get_return_value: unsafe extern "C" fn(Handle) -> isize,
    aio_read: unsafe extern "C" fn(Handle, u64, usize, *mut c_char, Handle) -> c_int,
    aio_write: unsafe extern "C" fn(Handle, u64, usize, *const c_char, Handle) -> c_int,
}

impl Functions {
    fn load() -> anyhow::Result<Self> {
        let library = Library::load(Path::new(LIBRBD))?;
        // SAFETY: these are the types that librbd's header gives these functions.
        unsafe {
            Ok(Self {
                open: function(&library, c"rbd_open")?,
                close: function(&library, c"rbd_close")?,
                aio_create_completion: function(&library, c"rbd_aio_create_completion")?,
                aio_release: function(&library, c"rbd_aio_release")?,
                aio_get_return_value: function(&library, c"rbd_aio_get_return_value")?,
                aio_read: function(&library, c"rbd_aio_read")?,
                aio_write: function(&library, c"rbd_aio_write")?,
            })
        }
    }
}

/// Loads the libraries.
///
/// # Errors
/// One does not exist, or lacks a function.
pub fn check_libraries() -> anyhow::Result<()> {
    Librados::check()?;
    Functions::load().map(drop)
}

/// An image that librbd has open.
pub struct Image {
    functions: Functions,
    handle: Handle,
    /// Closed after the image.
    _rados: Librados,
}

impl Image {
    /// Opens an image, without librbd's cache.
    ///
    /// # Errors
    /// A library is missing, the cluster cannot be reached, or there is no such image.
    pub fn open(id: &str, conf: &Path, pool: &str, image: &str) -> anyhow::Result<Self> {
        let functions = Functions::load()?;
        let rados = Librados::open(id, conf, pool, &[(c"rbd_cache", c"false")])?;
        let name = CString::new(image).context("the image's name has a zero byte")?;
        let mut handle = ptr::null_mut();
        // SAFETY: the pool is open, the name is a C string, the result has room, and no snapshot is
        // named.
        unsafe {
            let opened =
                (functions.open)(rados.pool(), name.as_ptr(), &raw mut handle, ptr::null());
            check(opened, image)?;
        }
        Ok(Self { functions, handle, _rados: rados })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the image is open, and no request is under way.
        unsafe { (self.functions.close)(self.handle) };
    }
}

/// Runs a load.
///
/// # Errors
/// The image cannot be opened, or a request fails.
pub fn measure(load: &ImageLoad) -> anyhow::Result<Measured> {
    let before = Usage::now();
    let image = Image::open(&load.id, &load.conf, &load.pool, &load.image)?;
    let len = usize::try_from(load.load.block_bytes)?;
    let course = Course::new(load.load, load.size_bytes, Some(load.seconds), load.seed)?;
    // librbd uses the memory of the requests until their ends, which may never come. So it is never
    // freed; the process ends soon after.
    let chain: &'static Chain = Box::leak(Box::new(Chain {
        functions: image.functions,
        image: image.handle,
        reads: load.load.pattern.reads(),
        progress: Mutex::new(Progress { course, under_way: 0, failure: None }),
        ended: Condvar::new(),
    }));
    let data = random_bytes(len, load.seed);
    let slots: Vec<Slot> = (0..load.load.depth)
        .map(|_| Slot {
            chain,
            access: Mutex::new(Access { buffer: data.to_vec(), submitted: Instant::now() }),
        })
        .collect();
    slots.leak().iter().for_each(|slot| chain.next(slot));
    let mut progress = chain.lock();
    let mut before_wait = u64::MAX;
    while progress.under_way > 0 {
        let ios = progress.course.measured().ios;
        if ios == before_wait {
            // An image with requests under way cannot be closed.
            std::mem::forget(image);
            bail!("no request was answered for {ANSWER_MAX:?}");
        }
        before_wait = ios;
        let waited = chain.ended.wait_timeout(progress, ANSWER_MAX);
        progress = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    let failure = progress.failure.take();
    let mut measured = progress.course.measured();
    drop(progress);
    drop(image);
    if let Some(failure) = failure {
        bail!("a request on {}: {failure}", load.image);
    }
    let used = Usage::now().without(&before);
    (measured.cpu_s, measured.switches) = (used.cpu_s(), used.switches as u64);
    Ok(measured)
}

/// The requests of a load, and how far it is.
struct Chain {
    functions: Functions,
    image: Handle,
    reads: bool,
    progress: Mutex<Progress>,
    /// The last request has ended.
    ended: Condvar,
}

// SAFETY: librbd's functions may be called with an image on any thread.
unsafe impl Sync for Chain {}

struct Progress {
    course: Course,
    under_way: usize,
    failure: Option<std::io::Error>,
}

/// One of the requests under way, again and again.
struct Slot {
    chain: &'static Chain,
    access: Mutex<Access>,
}

struct Access {
    buffer: Vec<u8>,
    submitted: Instant,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Access> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chain {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits the next request of a slot, if there is one.
    fn next(&self, slot: &'static Slot) {
        let now = Instant::now();
        let offset_bytes = {
            let mut progress = self.lock();
            let next = progress.failure.is_none().then(|| progress.course.next(now)).flatten();
            let Some(offset_bytes) = next else { return };
            progress.under_way += 1;
            offset_bytes
        };
        let mut access = slot.lock();
        access.submitted = now;
        let (data, len) = (access.buffer.as_mut_ptr(), access.buffer.len());
        drop(access);
        let mut completion = ptr::null_mut();
        let argument = ptr::from_ref(slot).cast_mut().cast();
        // SAFETY: the image is open while requests are under way. Slot and buffer live for ever.
        // Only this request uses the buffer: the slot's next one begins after its answer.
        let result = unsafe {
            match (self.functions.aio_create_completion)(argument, answered, &raw mut completion) {
                0 if self.reads => (self.functions.aio_read)(
                    self.image,
                    offset_bytes,
                    len,
                    data.cast(),
                    completion,
                ),
                0 => {
                    let write = self.functions.aio_write;
                    write(self.image, offset_bytes, len, data.cast(), completion)
                }
                refused => refused,
            }
        };
        if result < 0 {
            self.fail(result);
            self.end_one();
        }
    }

    fn fail(&self, result: c_int) {
        let error = std::io::Error::from_raw_os_error(-result);
        self.lock().failure.get_or_insert(error);
    }

    fn end_one(&self) {
        let mut progress = self.lock();
        progress.under_way -= 1;
        if progress.under_way == 0 {
            self.ended.notify_all();
        }
    }
}

/// librbd has the answer of a request.
///
/// # Safety
/// `slot` is the slot of the request, and the request has ended.
unsafe extern "C" fn answered(completion: Handle, slot: *mut c_void) {
    let now = Instant::now();
    // SAFETY: the caller's contract; slots are never freed.
    let slot: &'static Slot = unsafe { &*slot.cast::<Slot>() };
    let chain = slot.chain;
    // SAFETY: the completion is that of the request, and nothing uses it later.
    let result = unsafe {
        let result = (chain.functions.aio_get_return_value)(completion);
        (chain.functions.aio_release)(completion);
        result
    };
    let access = slot.lock();
    let (submitted, len) = (access.submitted, access.buffer.len());
    drop(access);
    let whole = if chain.reads { len.cast_signed() } else { 0 };
    match result {
        _ if result == whole => chain.lock().course.done(submitted, now),
        short if short >= 0 => chain.fail(-libc::EIO),
        failed => chain.fail(c_int::try_from(failed).unwrap_or(-libc::EIO)),
    }
    chain.next(slot);
    chain.end_one();
}
