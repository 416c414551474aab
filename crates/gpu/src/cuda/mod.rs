//! NVIDIA's driver.

mod library;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use self::library::{Copy2d, Library};
use crate::driver::{
    Argument, CardInfo, DeviceAddress, Driver, DriverError, Event, Function, Grid, Resources, Rows,
    Stream,
};

/// Results with a meaning of their own.
const SUCCESS: c_int = 0;
const OUT_OF_MEMORY: c_int = 2;
const NOT_READY: c_int = 600;

/// The driver's names of attributes of a card.
mod attribute {
    use std::ffi::c_int;

    pub(super) const CLOCK_KHZ: c_int = 13;
    pub(super) const MULTIPROCESSORS: c_int = 16;
    pub(super) const CACHE_BYTES: c_int = 38;
    pub(super) const CAPABILITY_MAJOR: c_int = 75;
    pub(super) const CAPABILITY_MINOR: c_int = 76;
    pub(super) const SHARED_BYTES_MAX: c_int = 97;
    /// Of a kernel.
    pub(super) const LOCAL_BYTES: c_int = 3;
    pub(super) const REGISTERS: c_int = 4;
    pub(super) const DYNAMIC_SHARED_BYTES: c_int = 8;
}

/// Options of the translation.
const JIT_ERROR_LOG: c_uint = 5;
const JIT_ERROR_LOG_BYTES: c_uint = 6;
const LOG_BYTES: usize = 8192;

/// Kinds of memory in a copy of rows.
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

/// Streams that do not wait for the default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// Pinned memory that all contexts know.
const HOST_PORTABLE: c_uint = 1;

/// One card.
pub struct Cuda {
    library: Library,
    device: c_int,
    context: *mut c_void,
    info: CardInfo,
    /// Streams and events, which live as long as this value.
    streams: Mutex<Vec<u64>>,
    events: Mutex<Vec<u64>>,
}

// SAFETY: the driver's functions may be called from every thread; each call sets the context of
// its thread first.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Opens a card, by its number from 0 on.
    ///
    /// # Errors
    /// There is no driver or no such card.
    pub fn open(number: u32) -> Result<Self, DriverError> {
        let library = Library::load()?;
        let absent = |library: &Library, what: &str, result: c_int| match result {
            SUCCESS => Ok(()),
            _ => Err(DriverError::Absent(format!("{what}: {}", library.words(result)))),
        };
        // SAFETY: all pointers are to values of the types that the functions write.
        unsafe {
            absent(&library, "the NVIDIA driver does not start", (library.init)(0))?;
            let mut count = 0;
            absent(&library, "cards", (library.device_count)(&raw mut count))?;
            let wanted = c_int::try_from(number).unwrap_or(c_int::MAX);
            if wanted >= count {
                let found = match count {
                    0 => "no card".to_owned(),
                    1 => "one card, number 0".to_owned(),
                    _ => format!("{count} cards, numbers 0 to {}", count - 1),
                };
                let text = format!("there is no GPU {number}: the driver has {found}");
                return Err(DriverError::Absent(text));
            }
            let mut device = 0;
            absent(&library, "the card", (library.device)(&raw mut device, wanted))?;
            let mut context = ptr::null_mut();
            let result = (library.context_retain)(&raw mut context, device);
            absent(&library, "the card cannot be used", result)?;
            let info = describe(&library, device)?;
            let (streams, events) = (Mutex::default(), Mutex::default());
            Ok(Self { library, device, context, info, streams, events })
        }
    }

    /// Makes this card the one to which the thread's next call goes, and makes the call.
    fn call(
        &self,
        operation: &'static str,
        call: impl FnOnce(&Library) -> c_int,
    ) -> Result<(), DriverError> {
        match self.result(call) {
            SUCCESS => Ok(()),
            result => Err(DriverError::Failed { operation, error: self.library.words(result) }),
        }
    }

    fn result(&self, call: impl FnOnce(&Library) -> c_int) -> c_int {
        // SAFETY: the context is retained until this value is dropped.
        match unsafe { (self.library.context_set)(self.context) } {
            SUCCESS => call(&self.library),
            result => result,
        }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let take = |list: &Mutex<Vec<u64>>| {
            std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let (streams, events) = (take(&self.streams), take(&self.events));
        // SAFETY: the handles were made by this value and are used no more; the context is
        // released last.
        self.result(|library| unsafe {
            for event in events {
                (library.event_destroy)(handle(event));
            }
            for stream in streams {
                (library.stream_destroy)(handle(stream));
            }
            SUCCESS
        });
        // SAFETY: as above.
        unsafe { (self.library.context_release)(self.device) };
    }
}

/// A handle of the driver, which this crate keeps as a number.
fn handle(number: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(number as usize)
}

fn number(handle: *mut c_void) -> u64 {
    handle.expose_provenance() as u64
}

fn describe(library: &Library, device: c_int) -> Result<CardInfo, DriverError> {
    let check = |result: c_int| match result {
        SUCCESS => Ok(()),
        _ => Err(DriverError::Absent(format!("the card: {}", library.words(result)))),
    };
    let attribute = |number: c_int| {
        let mut value = 0;
        // SAFETY: the function writes an int.
        check(unsafe { (library.device_attribute)(&raw mut value, number, device) })?;
        Ok(value.unsigned_abs())
    };
    let mut name = [0 as c_char; 256];
    let mut version = 0;
    let mut memory = 0;
    // SAFETY: the functions write at most as many bytes as the values have; the name ends with a
    // zero byte.
    let name = unsafe {
        check((library.device_name)(name.as_mut_ptr(), name.len() as c_int, device))?;
        check((library.driver_version)(&raw mut version))?;
        check((library.device_memory)(&raw mut memory, device))?;
        CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
    };
    let (major, minor) =
        (attribute(attribute::CAPABILITY_MAJOR)?, attribute(attribute::CAPABILITY_MINOR)?);
    Ok(CardInfo {
        name,
        driver: driver_version(),
        interface: format!("{}.{}", version / 1000, version % 1000 / 10),
        capability: format!("{major}.{minor}"),
        multiprocessors: attribute(attribute::MULTIPROCESSORS)?,
        clock_khz: attribute(attribute::CLOCK_KHZ)?,
        memory_bytes: memory as u64,
        cache_bytes: u64::from(attribute(attribute::CACHE_BYTES)?),
        shared_bytes_max: attribute(attribute::SHARED_BYTES_MAX)?,
    })
}

/// The version of the kernel's module.
fn driver_version() -> String {
    let direct = fs::read_to_string("/sys/module/nvidia/version").ok();
    let version = direct.map(|text| text.trim().to_owned()).or_else(|| {
        let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
        let mut words = text.lines().next()?.split_whitespace();
        let numbered =
            |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
        words.find(numbered).map(str::to_owned)
    });
    version.unwrap_or_else(|| "unknown".to_owned())
}

impl Driver for Cuda {
    fn info(&self) -> &CardInfo {
        &self.info
    }

    fn load(&self, text: &str, kernel: &str, shared_bytes: u32) -> Result<Function, DriverError> {
        let invalid = |_| DriverError::Program("the text has a zero byte".to_owned());
        let (text, kernel) =
            (CString::new(text).map_err(invalid)?, CString::new(kernel).map_err(invalid)?);
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES];
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), ptr::without_provenance_mut(LOG_BYTES)];
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the text and the name are C strings; the options say where the log is and how
        // long it may be.
        let result = self.result(|library| unsafe {
            (library.module_load)(
                &raw mut module,
                text.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        if result != SUCCESS {
            let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
            let (words, log) = (self.library.words(result), String::from_utf8_lossy(log));
            return Err(DriverError::Program(format!("{words}. {}", log.trim())));
        }
        // SAFETY: the module is loaded, and the name is a C string.
        self.call("find the kernel", |library| unsafe {
            (library.module_function)(&raw mut function, module, kernel.as_ptr())
        })?;
        let bytes = c_int::try_from(shared_bytes).unwrap_or(c_int::MAX);
        // SAFETY: the function is one of a loaded module.
        self.call("reserve shared memory", |library| unsafe {
            (library.set_function_attribute)(function, attribute::DYNAMIC_SHARED_BYTES, bytes)
        })?;
        Ok(Function { module: number(module), kernel: number(function) })
    }

    fn resources(&self, function: Function, grid: Grid) -> Result<Resources, DriverError> {
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the function writes an int.
            self.call("describe the kernel", |library| unsafe {
                (library.function_attribute)(&raw mut value, which, handle(function.kernel))
            })?;
            Ok(value.unsigned_abs())
        };
        let (threads, shared) = (grid.threads as c_int, grid.shared_bytes as usize);
        let mut blocks = 0;
        // SAFETY: the function writes an int.
        self.call("describe the kernel", |library| unsafe {
            (library.resident_blocks)(&raw mut blocks, handle(function.kernel), threads, shared)
        })?;
        Ok(Resources {
            resident_blocks: blocks.unsigned_abs(),
            registers: attribute(attribute::REGISTERS)?,
            local_bytes: attribute(attribute::LOCAL_BYTES)?,
        })
    }

    fn unload(&self, function: Function) {
        // SAFETY: the module is loaded, and the caller says that nothing uses it.
        self.result(|library| unsafe { (library.module_unload)(handle(function.module)) });
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        let mut address = 0;
        let size = usize::try_from(bytes).unwrap_or(usize::MAX).max(1);
        // SAFETY: the function writes an address.
        let result = self.result(|library| unsafe { (library.allocate)(&raw mut address, size) });
        match result {
            SUCCESS => Ok(DeviceAddress(address)),
            OUT_OF_MEMORY => Err(DriverError::Memory { place: "card", bytes }),
            _ => Err(DriverError::Failed {
                operation: "take memory of the card",
                error: self.library.words(result),
            }),
        }
    }

    fn free(&self, address: DeviceAddress) {
        // SAFETY: the caller says that nothing uses the memory.
        self.result(|library| unsafe { (library.free)(address.0) });
    }

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, DriverError> {
        let mut pointer = ptr::null_mut();
        // SAFETY: the function writes a pointer.
        let result = self.result(|library| unsafe {
            (library.allocate_host)(&raw mut pointer, bytes.max(1), HOST_PORTABLE)
        });
        match (result, NonNull::new(pointer.cast::<u8>())) {
            (SUCCESS, Some(pointer)) => {
                // SAFETY: the driver gave this many bytes.
                unsafe { ptr::write_bytes(pointer.as_ptr(), 0, bytes) };
                Ok(pointer)
            }
            (SUCCESS | OUT_OF_MEMORY, _) => {
                Err(DriverError::Memory { place: "host", bytes: bytes as u64 })
            }
            _ => Err(DriverError::Failed {
                operation: "take memory of the host",
                error: self.library.words(result),
            }),
        }
    }

    unsafe fn free_host(&self, pointer: NonNull<u8>) {
        // SAFETY: the caller says that nothing uses the memory.
        self.result(|library| unsafe { (library.free_host)(pointer.as_ptr().cast()) });
    }

    fn stream(&self) -> Result<Stream, DriverError> {
        let mut stream = ptr::null_mut();
        // SAFETY: the function writes a handle.
        self.call("make a stream", |library| unsafe {
            (library.stream)(&raw mut stream, STREAM_NON_BLOCKING)
        })?;
        let stream = number(stream);
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(Stream(stream))
    }

    fn event(&self) -> Result<Event, DriverError> {
        let mut event = ptr::null_mut();
        // SAFETY: the function writes a handle.
        self.call("make an event", |library| unsafe { (library.event)(&raw mut event, 0) })?;
        let event = number(event);
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        Ok(Event(event))
    }

    unsafe fn copy_in(
        &self,
        stream: Stream,
        to: DeviceAddress,
        from: *const u8,
        rows: Rows,
    ) -> Result<(), DriverError> {
        let Rows { row_bytes, rows: count, host_pitch, card_pitch } = rows;
        let (stream, from) = (handle(stream.0), from.cast::<c_void>());
        // SAFETY: the caller vouches for both places.
        self.call("copy to the card", |library| unsafe {
            if rows.is_one_run() {
                return (library.copy_in)(to.0, from, row_bytes * count, stream);
            }
            let copy = Copy2d {
                from_kind: HOST,
                from_host: from,
                from_pitch: host_pitch,
                to_kind: DEVICE,
                to_device: to.0,
                to_pitch: card_pitch,
                row_bytes,
                rows: count,
                ..Copy2d::NOTHING
            };
            (library.copy_rows)(&raw const copy, stream)
        })
    }

    unsafe fn copy_out(
        &self,
        stream: Stream,
        to: *mut u8,
        from: DeviceAddress,
        rows: Rows,
    ) -> Result<(), DriverError> {
        let Rows { row_bytes, rows: count, host_pitch, card_pitch } = rows;
        let (stream, to) = (handle(stream.0), to.cast::<c_void>());
        // SAFETY: the caller vouches for both places.
        self.call("copy from the card", |library| unsafe {
            if rows.is_one_run() {
                return (library.copy_out)(to, from.0, row_bytes * count, stream);
            }
            let copy = Copy2d {
                from_kind: DEVICE,
                from_device: from.0,
                from_pitch: card_pitch,
                to_kind: HOST,
                to_host: to,
                to_pitch: host_pitch,
                row_bytes,
                rows: count,
                ..Copy2d::NOTHING
            };
            (library.copy_rows)(&raw const copy, stream)
        })
    }

    fn copy_within(
        &self,
        stream: Stream,
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DriverError> {
        // SAFETY: both addresses are on the card, which refuses others.
        self.call("copy within the card", |library| unsafe {
            (library.copy_within)(to.0, from.0, bytes as usize, handle(stream.0))
        })
    }

    fn fill(
        &self,
        stream: Stream,
        to: DeviceAddress,
        byte: u8,
        bytes: u64,
    ) -> Result<(), DriverError> {
        // SAFETY: the address is on the card, which refuses others.
        self.call("fill memory of the card", |library| unsafe {
            (library.fill)(to.0, byte, bytes as usize, handle(stream.0))
        })
    }

    fn launch(
        &self,
        stream: Stream,
        function: Function,
        grid: Grid,
        arguments: &[Argument],
    ) -> Result<(), DriverError> {
        let mut values: Vec<u64> = arguments
            .iter()
            .map(|argument| match *argument {
                // The driver reads the first four bytes.
                Argument::U32(value) => u64::from(value),
                Argument::U64(value) => value,
            })
            .collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let (kernel, stream) = (handle(function.kernel), handle(stream.0));
        let Grid { blocks, threads, shared_bytes } = grid;
        // SAFETY: the pointers are to the kernel's parameters, which the driver copies.
        self.call("start a kernel", |library| unsafe {
            (library.launch)(
                kernel,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                shared_bytes,
                stream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    fn record(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        // SAFETY: both handles are this value's.
        self.call("record an event", |library| unsafe {
            (library.event_record)(handle(event.0), handle(stream.0))
        })
    }

    fn is_complete(&self, event: Event) -> Result<bool, DriverError> {
        // SAFETY: the handle is this value's.
        match self.result(|library| unsafe { (library.event_query)(handle(event.0)) }) {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            result => Err(DriverError::Failed {
                operation: "ask for an event",
                error: self.library.words(result),
            }),
        }
    }

    fn wait(&self, event: Event) -> Result<(), DriverError> {
        // SAFETY: the handle is this value's.
        self.call("wait for the card", |library| unsafe { (library.event_wait)(handle(event.0)) })
    }

    fn wait_on_stream(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        // SAFETY: both handles are this value's.
        self.call("let a stream wait", |library| unsafe {
            (library.stream_wait)(handle(stream.0), handle(event.0), 0)
        })
    }

    fn elapsed_ns(&self, from: Event, to: Event) -> Result<f64, DriverError> {
        let mut milliseconds = 0f32;
        // SAFETY: the function writes a float; both handles are this value's.
        self.call("read the card's clock", |library| unsafe {
            (library.event_elapsed)(&raw mut milliseconds, handle(from.0), handle(to.0))
        })?;
        Ok(f64::from(milliseconds) * 1e6)
    }
}

impl Copy2d {
    const NOTHING: Self = Self {
        from_x: 0,
        from_y: 0,
        from_kind: 0,
        from_host: ptr::null(),
        from_device: 0,
        from_array: ptr::null(),
        from_pitch: 0,
        to_x: 0,
        to_y: 0,
        to_kind: 0,
        to_host: ptr::null_mut(),
        to_device: 0,
        to_array: ptr::null_mut(),
        to_pitch: 0,
        row_bytes: 0,
        rows: 0,
    };
}
