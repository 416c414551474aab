//! The host's build of the firmware as an engine, loaded as a shared object.

use std::cell::RefCell;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::sync::OnceLock;

use fieldstone_nic::firmware::build::{self, Target};
use fieldstone_nic::firmware::command::{self, Command, WORDS, Words};
use fieldstone_nic::firmware::engine::{
    Area, Call, Engine, EngineError, Handler, MAX_REQUESTS, Run,
};
use fieldstone_nic::firmware::packet::MAX_PACKET_BYTES;
use fieldstone_nic::firmware::state::{
    CACHE_BYTES, Multiply, REQUEST_BYTES, SCRATCH_BYTES, Settings, new_pool,
};

use crate::writes::{or_missing, or_skip};

/// `struct nic_task` of `firmware/nic.h`.
#[repr(C)]
struct Task {
    packet: *const u8,
    packet_len: u32,
    request_id: u32,
    request: *mut u8,
    context: *const u8,
    cache: *mut u8,
    pool: *mut u8,
    scratch: *mut u8,
    now: [u32; 2],
}

type HandlerFunction = unsafe extern "C" fn(*const Task) -> u32;
type Issue = unsafe extern "C" fn(*const u32, *const u8, *const u8);

thread_local! {
    static COMMANDS: RefCell<(u32, Vec<Command>)> = const { RefCell::new((0, Vec::new())) };
}

unsafe extern "C" fn issue(words: *const u32, first: *const u8, second: *const u8) {
    // SAFETY: the firmware passes the 8 words of a command.
    let words: [u32; WORDS] = unsafe { *words.cast() };
    let bytes = |start: *const u8, len: u32| {
        if len == 0 {
            return Vec::new();
        }
        // SAFETY: the firmware passes the start of `len` bytes, as `nic.h` says.
        unsafe { std::slice::from_raw_parts(start, len as usize) }.to_vec()
    };
    COMMANDS.with_borrow_mut(|(node, commands)| {
        commands.push(match Words::parse(&words).expect("a command of nic.h") {
            Words::Send { header, .. } => {
                let headers = bytes(first, header[4] >> 16);
                let data = bytes(second, header[4] & 0xffff);
                Command::Send { packet: command::packet(*node, header, &headers, &data) }
            }
            Words::ToHost { len, address, .. } => {
                Command::ToHost { address, bytes: bytes(first, len) }
            }
            Words::Event { code, arguments } => Command::Event { code, arguments },
            Words::Free { request_id } => Command::Free { request_id },
        });
    });
}

/// Words, so that everything is aligned as the firmware needs it.
struct Words32(Vec<u64>, usize);

impl Words32 {
    fn new(bytes: &[u8]) -> Self {
        let mut words = Self(vec![0; bytes.len().div_ceil(8) + 2], bytes.len());
        words.bytes_mut().copy_from_slice(bytes);
        words
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the vector has at least this many bytes, all initialised.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.1) }
    }

    fn at(&mut self, offset: usize) -> *mut u8 {
        self.bytes_mut()[offset..].as_mut_ptr()
    }
}

/// The handlers of one build, loaded for as long as the test runs.
type Handlers = [HandlerFunction; 4];

/// Builds and loads the firmware once for each way to multiply; `None`, with the reason on stderr,
/// without a C compiler.
fn handlers(multiply: Multiply) -> Option<Handlers> {
    static LOADED: [OnceLock<Result<Handlers, String>>; 4] = [const { OnceLock::new() }; 4];
    or_skip(LOADED[multiply as usize].get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let file = or_missing(build::build_in(folder.path(), Target::Host, multiply))?;
        Ok(load(&file))
    }))
}

fn load(file: &Path) -> Handlers {
    let name = CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: the library has no constructors; it is never unloaded.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "the shared object does not load");
    let symbol = |name: &str| -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: a loaded library and a string.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!found.is_null());
        found
    };
    // SAFETY: `void nic_set_issue(nic_issue_function *)` of `host.c`.
    let set: unsafe extern "C" fn(Issue) = unsafe { std::mem::transmute(symbol("nic_set_issue")) };
    // SAFETY: the function lives as long as the program.
    unsafe { set(issue) };
    // SAFETY: these are functions of the firmware with these signatures (`nic.h`).
    Handler::ALL
        .map(|h| unsafe { std::mem::transmute::<*mut c_void, HandlerFunction>(symbol(h.symbol())) })
}

/// The engine.
pub struct HostEngine {
    handlers: Handlers,
    node: u32,
    packet: Words32,
    requests: Words32,
    cache: Words32,
    pool: Words32,
    context: Words32,
    scratch: Words32,
}

impl HostEngine {
    /// An engine with these settings; `None`, with the reason on stderr, without a C compiler.
    pub fn new(settings: &Settings) -> Option<Self> {
        Some(Self {
            handlers: handlers(settings.multiply)?,
            node: settings.node,
            packet: Words32::new(&[0; MAX_PACKET_BYTES + 8]),
            requests: Words32::new(&vec![0; MAX_REQUESTS as usize * REQUEST_BYTES]),
            cache: Words32::new(&[0; CACHE_BYTES]),
            pool: Words32::new(&new_pool()),
            context: Words32::new(&settings.context().unwrap()),
            scratch: Words32::new(&[0; SCRATCH_BYTES]),
        })
    }
}

impl Engine for HostEngine {
    fn run(&mut self, handler: Handler, call: &Call<'_>) -> Result<Run, EngineError> {
        if call.packet.len() > MAX_PACKET_BYTES || call.slot >= MAX_REQUESTS {
            return Err(EngineError::Call);
        }
        self.packet.bytes_mut()[..call.packet.len()].copy_from_slice(call.packet);
        let task = Task {
            packet: self.packet.at(0),
            packet_len: call.packet.len() as u32,
            request_id: call.request_id,
            request: self.requests.at(call.slot as usize * REQUEST_BYTES),
            context: self.context.at(0),
            cache: self.cache.at(0),
            pool: self.pool.at(0),
            scratch: self.scratch.at(0),
            now: [call.now_ns as u32, (call.now_ns >> 32) as u32],
        };
        COMMANDS.set((self.node, Vec::new()));
        // SAFETY: the task names memory of the sizes that `layout.h` says, all alive and aligned.
        let result = unsafe { self.handlers[handler as usize](&raw const task) };
        let (_, commands) = COMMANDS.take();
        Ok(Run { result, commands, counters: None })
    }

    fn set_context(&mut self, context: &[u8]) -> Result<(), EngineError> {
        self.context = Words32::new(context);
        Ok(())
    }

    fn area(&self, area: Area) -> &[u8] {
        match area {
            Area::Requests => self.requests.bytes(),
            Area::Cache => self.cache.bytes(),
            Area::Pool => self.pool.bytes(),
            Area::Context => self.context.bytes(),
        }
    }

    fn area_mut(&mut self, area: Area) -> &mut [u8] {
        match area {
            Area::Requests => self.requests.bytes_mut(),
            Area::Cache => self.cache.bytes_mut(),
            Area::Pool => self.pool.bytes_mut(),
            Area::Context => self.context.bytes_mut(),
        }
    }
}
