//! librados through its C interface (`rados/librados.h`), loaded when the benchmark runs.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use anyhow::bail;

use crate::library::{Library, Symbol};

/// The file names by which the dynamic linker finds the libraries.
pub const LIBRADOS: &str = "librados.so.2";
/// As [`LIBRADOS`].
pub const LIBRBD: &str = "librbd.so.1";

/// A pointer to one of the library's objects.
pub(super) type Handle = *mut c_void;
type Callback = Option<unsafe extern "C" fn(Handle, *mut c_void)>;

/// The functions of librados that the benchmark calls.
#[derive(Clone, Copy)]
struct Functions {
    create: unsafe extern "C" fn(*mut Handle, *const c_char) -> c_int,
    conf_read_file: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    conf_set: unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> c_int,
    connect: unsafe extern "C" fn(Handle) -> c_int,
    shutdown: unsafe extern "C" fn(Handle),
    ioctx_create: unsafe extern "C" fn(Handle, *const c_char, *mut Handle) -> c_int,
    ioctx_destroy: unsafe extern "C" fn(Handle),
    aio_create_completion: unsafe extern "C" fn(*mut c_void, Callback, *mut Handle) -> c_int,
    aio_release: unsafe extern "C" fn(Handle),
    aio_is_complete: unsafe extern "C" fn(Handle) -> c_int,
    aio_wait_for_complete: unsafe extern "C" fn(Handle) -> c_int,
    aio_get_return_value: unsafe extern "C" fn(Handle) -> c_int,
    aio_read: unsafe extern "C" fn(Handle, *const c_char, Handle, *mut c_char, usize, u64) -> c_int,
    aio_write:
        unsafe extern "C" fn(Handle, *const c_char, Handle, *const c_char, usize, u64) -> c_int,
}

impl Functions {
    fn load() -> anyhow::Result<Self> {
        let library = Library::load(Path::new(LIBRADOS))?;
        // SAFETY: these are the types that librados' header gives these functions.
        unsafe {
            Ok(Self {
                create: function(&library, c"rados_create")?,
                conf_read_file: function(&library, c"rados_conf_read_file")?,
                conf_set: function(&library, c"rados_conf_set")?,
                connect: function(&library, c"rados_connect")?,
                shutdown: function(&library, c"rados_shutdown")?,
                ioctx_create: function(&library, c"rados_ioctx_create")?,
                ioctx_destroy: function(&library, c"rados_ioctx_destroy")?,
                aio_create_completion: function(&library, c"rados_aio_create_completion2")?,
                aio_release: function(&library, c"rados_aio_release")?,
                aio_is_complete: function(&library, c"rados_aio_is_complete")?,
                aio_wait_for_complete: function(&library, c"rados_aio_wait_for_complete")?,
                aio_get_return_value: function(&library, c"rados_aio_get_return_value")?,
                aio_read: function(&library, c"rados_aio_read")?,
                aio_write: function(&library, c"rados_aio_write")?,
            })
        }
    }
}

/// A function of a library as a value of type `F`.
///
/// # Safety
/// `F` is the type of a pointer to this function.
pub(super) unsafe fn function<F: Copy>(library: &Library, name: &CStr) -> anyhow::Result<F> {
    let symbol = library.symbol(name)?;
    assert_eq!(size_of::<F>(), size_of::<Symbol>(), "a pointer to a function");
    // SAFETY: the caller's contract; both are pointers.
    Ok(unsafe { std::mem::transmute_copy(&symbol) })
}

/// An error number of the library as an error.
pub(super) fn check(result: c_int, what: &str) -> anyhow::Result<()> {
    if result < 0 {
        let error = std::io::Error::from_raw_os_error(-result);
        bail!("{what}: {error}");
    }
    Ok(())
}

/// A client of librados with one pool open.
pub struct Librados {
    functions: Functions,
    cluster: Handle,
    pool: Handle,
}

impl Librados {
    /// Loads the library.
    ///
    /// # Errors
    /// It does not exist, or lacks a function.
    pub fn check() -> anyhow::Result<()> {
        Functions::load().map(drop)
    }

    /// Connects to a cluster, and opens a pool. `options` override those of the configuration file.
    ///
    /// # Errors
    /// The library is missing, or the cluster or the pool cannot be reached.
    pub fn open(
        id: &str,
        conf: &Path,
        pool: &str,
        options: &[(&CStr, &CStr)],
    ) -> anyhow::Result<Self> {
        let functions = Functions::load()?;
        let (id, name) = (CString::new(id)?, CString::new(pool)?);
        let conf_name = CString::new(conf.as_os_str().as_encoded_bytes())?;
        let mut open = Self { functions, cluster: ptr::null_mut(), pool: ptr::null_mut() };
        let mut cluster = ptr::null_mut();
        // SAFETY: all texts are C strings, and the results have room. `Drop` ends what has begun.
        unsafe {
            check((functions.create)(&raw mut cluster, id.as_ptr()), "librados")?;
            open.cluster = cluster;
            let read = (functions.conf_read_file)(cluster, conf_name.as_ptr());
            check(read, &conf.display().to_string())?;
            for (name, value) in options {
                let set = (functions.conf_set)(cluster, name.as_ptr(), value.as_ptr());
                check(set, &name.to_string_lossy())?;
            }
            check((functions.connect)(cluster), "librados cannot connect")?;
            let created = (functions.ioctx_create)(cluster, name.as_ptr(), &raw mut open.pool);
            check(created, &format!("pool {pool}"))?;
        }
        Ok(open)
    }

    /// The open pool, for librbd.
    pub(super) fn pool(&self) -> Handle {
        self.pool
    }

    /// Begins to read an object into `buffer`.
    ///
    /// # Errors
    /// The library refuses the request.
    pub fn read(&self, object: &CStr, offset: u64, buffer: Vec<u8>) -> anyhow::Result<Request> {
        let mut request = self.request(buffer)?;
        let (data, len) = (request.buffer.as_mut_ptr(), request.buffer.len());
        // SAFETY: the request keeps the buffer until the library is done with it.
        let begun = unsafe {
            let read = self.functions.aio_read;
            read(self.pool, object.as_ptr(), request.completion, data.cast(), len, offset)
        };
        request.begun(begun, len)
    }

    /// Begins to write `buffer` into an object.
    ///
    /// # Errors
    /// The library refuses the request.
    pub fn write(&self, object: &CStr, offset: u64, buffer: Vec<u8>) -> anyhow::Result<Request> {
        let request = self.request(buffer)?;
        let (data, len) = (request.buffer.as_ptr(), request.buffer.len());
        // SAFETY: the request keeps the buffer until the library is done with it.
        let begun = unsafe {
            let write = self.functions.aio_write;
            write(self.pool, object.as_ptr(), request.completion, data.cast(), len, offset)
        };
        request.begun(begun, 0)
    }

    fn request(&self, buffer: Vec<u8>) -> anyhow::Result<Request> {
        let mut completion = ptr::null_mut();
        // SAFETY: without a callback its argument is unused, and the result has room.
        let made = unsafe {
            (self.functions.aio_create_completion)(ptr::null_mut(), None, &raw mut completion)
        };
        check(made, "librados")?;
        let functions = self.functions;
        Ok(Request { functions, completion, buffer, is_begun: false, expected: 0 })
    }
}

impl Drop for Librados {
    fn drop(&mut self) {
        // SAFETY: what exists was made by the library, and nothing uses it any more: a request
        // waits for its end when it is dropped.
        unsafe {
            if !self.pool.is_null() {
                (self.functions.ioctx_destroy)(self.pool);
            }
            if !self.cluster.is_null() {
                (self.functions.shutdown)(self.cluster);
            }
        }
    }
}

/// A request under way.
pub struct Request {
    functions: Functions,
    completion: Handle,
    buffer: Vec<u8>,
    is_begun: bool,
    /// The result of success.
    expected: usize,
}

impl Request {
    fn begun(mut self, result: c_int, expected: usize) -> anyhow::Result<Self> {
        check(result, "librados refuses a request")?;
        (self.is_begun, self.expected) = (true, expected);
        Ok(self)
    }

    /// Waits for the end.
    pub fn wait(&self) {
        // SAFETY: the completion is alive until this is dropped.
        unsafe { (self.functions.aio_wait_for_complete)(self.completion) };
    }

    /// True if it has ended.
    pub fn is_complete(&self) -> bool {
        // SAFETY: as in `wait`.
        unsafe { (self.functions.aio_is_complete)(self.completion) != 0 }
    }

    /// The buffer, after the end.
    ///
    /// # Errors
    /// The request has failed, or was not done whole.
    pub fn finish(mut self) -> anyhow::Result<Vec<u8>> {
        self.wait();
        // SAFETY: as in `wait`; the request has ended.
        let result = unsafe { (self.functions.aio_get_return_value)(self.completion) };
        check(result, "a request on an object")?;
        if usize::try_from(result)? != self.expected {
            bail!("a request on {} bytes gave {result}", self.buffer.len());
        }
        Ok(std::mem::take(&mut self.buffer))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.is_begun {
            self.wait();
        }
        // SAFETY: the request has ended or never begun, and the completion is dropped once.
        unsafe { (self.functions.aio_release)(self.completion) };
    }
}
