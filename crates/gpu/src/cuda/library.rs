//! The functions of NVIDIA's driver library, found when the program runs.
//!
//! Nothing of CUDA is needed to build this project: the library comes with the driver. The names
//! and types are those of the driver's documented interface. Functions whose name ends in `_v2` are
//! the ones that a program compiled against the header uses.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;

use crate::driver::DriverError;

/// The library's name, which the dynamic linker looks for.
const LIBRARY: &CStr = c"libcuda.so.1";

/// A copy of rows, as the driver's `CUDA_MEMCPY2D`.
#[repr(C)]
pub(super) struct Copy2d {
    pub(super) from_x: usize,
    pub(super) from_y: usize,
    pub(super) from_kind: c_uint,
    pub(super) from_host: *const c_void,
    pub(super) from_device: u64,
    pub(super) from_array: *const c_void,
    pub(super) from_pitch: usize,
    pub(super) to_x: usize,
    pub(super) to_y: usize,
    pub(super) to_kind: c_uint,
    pub(super) to_host: *mut c_void,
    pub(super) to_device: u64,
    pub(super) to_array: *mut c_void,
    pub(super) to_pitch: usize,
    pub(super) row_bytes: usize,
    pub(super) rows: usize,
}

/// Declares the table of functions and finds them all.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        /// The functions.
        pub(super) struct Library {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Library {
            fn find(handle: NonNull<c_void>) -> Result<Self, DriverError> {
                Ok(Self {
                    $($field: {
                        let symbol = symbol(handle, $symbol)?;
                        // SAFETY: this is the function's type in the documented interface.
                        unsafe {
                            std::mem::transmute::<
                                NonNull<c_void>,
                                unsafe extern "C" fn($($argument),*) -> c_int,
                            >(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit": fn(c_uint);
    driver_version = c"cuDriverGetVersion": fn(*mut c_int);
    error_name = c"cuGetErrorName": fn(c_int, *mut *const c_char);
    error_text = c"cuGetErrorString": fn(c_int, *mut *const c_char);
    device_count = c"cuDeviceGetCount": fn(*mut c_int);
    device = c"cuDeviceGet": fn(*mut c_int, c_int);
    device_name = c"cuDeviceGetName": fn(*mut c_char, c_int, c_int);
    device_memory = c"cuDeviceTotalMem_v2": fn(*mut usize, c_int);
    device_attribute = c"cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
    context_retain = c"cuDevicePrimaryCtxRetain": fn(*mut *mut c_void, c_int);
    context_release = c"cuDevicePrimaryCtxRelease_v2": fn(c_int);
    context_set = c"cuCtxSetCurrent": fn(*mut c_void);
    module_load = c"cuModuleLoadDataEx":
        fn(*mut *mut c_void, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    module_unload = c"cuModuleUnload": fn(*mut c_void);
    module_function = c"cuModuleGetFunction": fn(*mut *mut c_void, *mut c_void, *const c_char);
    function_attribute = c"cuFuncGetAttribute": fn(*mut c_int, c_int, *mut c_void);
    set_function_attribute = c"cuFuncSetAttribute": fn(*mut c_void, c_int, c_int);
    resident_blocks = c"cuOccupancyMaxActiveBlocksPerMultiprocessor":
        fn(*mut c_int, *mut c_void, c_int, usize);
    allocate = c"cuMemAlloc_v2": fn(*mut u64, usize);
    free = c"cuMemFree_v2": fn(u64);
    allocate_host = c"cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    free_host = c"cuMemFreeHost": fn(*mut c_void);
    stream = c"cuStreamCreate": fn(*mut *mut c_void, c_uint);
    stream_destroy = c"cuStreamDestroy_v2": fn(*mut c_void);
    event = c"cuEventCreate": fn(*mut *mut c_void, c_uint);
    event_destroy = c"cuEventDestroy_v2": fn(*mut c_void);
    event_record = c"cuEventRecord": fn(*mut c_void, *mut c_void);
    event_query = c"cuEventQuery": fn(*mut c_void);
    event_wait = c"cuEventSynchronize": fn(*mut c_void);
    event_elapsed = c"cuEventElapsedTime": fn(*mut f32, *mut c_void, *mut c_void);
    stream_wait = c"cuStreamWaitEvent": fn(*mut c_void, *mut c_void, c_uint);
    copy_in = c"cuMemcpyHtoDAsync_v2": fn(u64, *const c_void, usize, *mut c_void);
    copy_out = c"cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, *mut c_void);
    copy_within = c"cuMemcpyDtoDAsync_v2": fn(u64, u64, usize, *mut c_void);
    copy_rows = c"cuMemcpy2DAsync_v2": fn(*const Copy2d, *mut c_void);
    fill = c"cuMemsetD8Async": fn(u64, u8, usize, *mut c_void);
    launch = c"cuLaunchKernel": fn(
        *mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void,
        *mut *mut c_void, *mut *mut c_void
    );
}

impl Library {
    /// Loads the library. It stays loaded until the process ends.
    ///
    /// # Errors
    /// There is none, or it lacks a function.
    pub(super) fn load() -> Result<Self, DriverError> {
        // SAFETY: the name is a C string; the library is that of the system's driver.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(handle) = NonNull::new(handle) else {
            return Err(DriverError::Absent(format!(
                "there is no NVIDIA driver on this machine: {}",
                last_error()
            )));
        };
        Self::find(handle)
    }

    /// The driver's words for a result.
    pub(super) fn words(&self, result: c_int) -> String {
        let text = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the function writes a pointer to a constant C string, or null.
            unsafe {
                function(result, &raw mut text);
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        match (text(self.error_name), text(self.error_text)) {
            (Some(name), Some(text)) => format!("{text} ({name})"),
            _ => format!("error {result}"),
        }
    }
}

fn symbol(handle: NonNull<c_void>, name: &CStr) -> Result<NonNull<c_void>, DriverError> {
    // SAFETY: the handle is open and the name is a C string.
    let symbol = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
    NonNull::new(symbol).ok_or_else(|| {
        let name = name.to_string_lossy();
        DriverError::Absent(format!("the NVIDIA driver is too old: it has no function {name}"))
    })
}

fn last_error() -> String {
    // SAFETY: the result is null or a C string that stays valid until the next call on this thread.
    unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => "unknown error".to_owned(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}
