//! A verilated module: its ports by name, and how to evaluate it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The direction of a port, as the module sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Driven by the user of the model.
    Input,
    /// Driven by the module.
    Output,
}

/// The functions of a verilated design, as the shim declares them.
pub mod ffi {
    use super::{RawPort, c_char, c_int, c_void};

    /// Makes a model, in the state before time 0.
    pub type New = unsafe extern "C" fn() -> *mut c_void;
    /// Frees a model.
    pub type Free = unsafe extern "C" fn(*mut c_void);
    /// Computes the outputs from the inputs.
    pub type Eval = unsafe extern "C" fn(*mut c_void);
    /// Checks assertions from now on.
    pub type AssertOn = unsafe extern "C" fn(*mut c_void);
    /// Writes the `index`-th port; returns 0 past the last.
    pub type GetPort = unsafe extern "C" fn(*mut c_void, c_int, *mut RawPort) -> c_int;
    /// Writes the coverage counts so far to a file.
    pub type WriteCoverage = unsafe extern "C" fn(*mut c_void, *const c_char);
    /// Opens a file of waves; returns 0 if the design was built without waves.
    pub type OpenTrace = unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int;
    /// Adds the values at a time to the open waves.
    pub type DumpTrace = unsafe extern "C" fn(*mut c_void, u64);
}

/// A port as the shim describes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawPort {
    /// The port's name, which lives as long as the program.
    pub name: *const c_char,
    /// Address of the value: 1, 2, 4 or 8 bytes for up to 64 bits, else words of 4 bytes.
    pub data: *mut c_void,
    /// Bits of the port.
    pub bits: u32,
    /// 1 for inputs.
    pub is_input: u32,
}

/// A design that was verilated at build time. It makes models.
#[derive(Debug)]
pub struct Design {
    /// Its name in `designs.toml`.
    pub name: &'static str,
    /// The shim's functions.
    pub new: ffi::New,
    /// See [`ffi::Free`].
    pub free: ffi::Free,
    /// See [`ffi::Eval`].
    pub eval: ffi::Eval,
    /// See [`ffi::AssertOn`].
    pub assert_on: ffi::AssertOn,
    /// See [`ffi::GetPort`].
    pub get_port: ffi::GetPort,
    /// See [`ffi::WriteCoverage`]; `None` if the design was built without coverage.
    pub write_coverage: Option<ffi::WriteCoverage>,
    /// See [`ffi::OpenTrace`].
    pub open_trace: ffi::OpenTrace,
    /// See [`ffi::DumpTrace`].
    pub dump_trace: ffi::DumpTrace,
}

/// A port of one model. Every other model refuses the port, also a later model at the same address,
/// because a port stores the number of its model.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    data: *mut u8,
    bits: u32,
    direction: Direction,
    model: u64,
}

// SAFETY: a port is an address that is used only together with a borrow of its model, whose number
// it has; no two models of a process have the same number.
unsafe impl Send for Port {}

impl Port {
    /// Bits of the port.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// The port's direction.
    #[must_use]
    pub fn direction(self) -> Direction {
        self.direction
    }

    /// Words of 32 bits that hold the value.
    #[must_use]
    pub fn words(self) -> usize {
        self.bits.div_ceil(32) as usize
    }
}

/// One instance of a design.
#[derive(Debug)]
pub struct Model {
    design: &'static Design,
    /// No other model of this process has this number.
    number: u64,
    raw: *mut c_void,
    ports: BTreeMap<&'static str, Port>,
    tracing: bool,
    time: u64,
}

// SAFETY: a model owns its Verilator context and shares no data with other models; any thread may
// use it, one thread at a time.
unsafe impl Send for Model {}

impl Model {
    /// A fresh instance. All inputs are 0, and nothing has been evaluated yet.
    #[must_use]
    pub fn new(design: &'static Design) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the shim's constructor has no requirements.
        let raw = unsafe { (design.new)() };
        assert!(!raw.is_null(), "no memory for a model of {}", design.name);
        let mut ports = BTreeMap::new();
        for index in 0.. {
            let mut port =
                RawPort { name: c"".as_ptr(), data: std::ptr::null_mut(), bits: 0, is_input: 0 };
            // SAFETY: `raw` is a live model of this design and `port` is writable.
            if unsafe { (design.get_port)(raw, index, &raw mut port) } == 0 {
                break;
            }
            // SAFETY: the shim's names are string literals.
            let name = unsafe { CStr::from_ptr(port.name) }.to_str().expect("port names are ASCII");
            let direction = if port.is_input == 1 { Direction::Input } else { Direction::Output };
            let data = port.data.cast();
            ports.insert(name, Port { data, bits: port.bits, direction, model: number });
        }
        Self { design, number, raw, ports, tracing: false, time: 0 }
    }

    /// The design.
    #[must_use]
    pub fn design(&self) -> &'static Design {
        self.design
    }

    /// All ports with their names.
    pub fn ports(&self) -> impl Iterator<Item = (&'static str, Port)> {
        self.ports.iter().map(|(&name, &port)| (name, port))
    }

    /// The port of that name.
    ///
    /// # Panics
    /// When the design has no such port. Names are constants of the program.
    #[must_use]
    pub fn port(&self, name: &str) -> Port {
        let found = self.ports.get(name).copied();
        found.unwrap_or_else(|| panic!("{} has no port {name}", self.design.name))
    }

    /// True if there is a port of that name.
    #[must_use]
    pub fn has_port(&self, name: &str) -> bool {
        self.ports.contains_key(name)
    }

    /// Reads a port of up to 64 bits.
    #[inline]
    #[must_use]
    pub fn get(&self, port: Port) -> u64 {
        assert_eq!(port.model, self.number, "a port of another model");
        // SAFETY: the port belongs to this live model; Verilator keeps values of so many bits in
        // an aligned integer of the next size.
        unsafe {
            match port.bits {
                0..=8 => u64::from(*port.data),
                9..=16 => u64::from(*port.data.cast::<u16>()),
                17..=32 => u64::from(*port.data.cast::<u32>()),
                33..=64 => *port.data.cast::<u64>(),
                bits => panic!("a port of {bits} bits does not fit into 64"),
            }
        }
    }

    /// True if the value (of up to 64 bits) is not 0.
    #[inline]
    #[must_use]
    pub fn is_set(&self, port: Port) -> bool {
        self.get(port) != 0
    }

    /// Drives an input of up to 64 bits. Bits that the port lacks must be 0.
    #[inline]
    pub fn set(&mut self, port: Port, value: u64) {
        assert_eq!(port.model, self.number, "a port of another model");
        assert!(port.direction == Direction::Input, "outputs are driven by the module");
        assert!(
            port.bits >= 64 || value >> port.bits == 0,
            "{value:#x} has more than {} bits",
            port.bits
        );
        // SAFETY: as in `get`.
        unsafe {
            match port.bits {
                0..=8 => *port.data = value as u8,
                9..=16 => *port.data.cast::<u16>() = value as u16,
                17..=32 => *port.data.cast::<u32>() = value as u32,
                33..=64 => *port.data.cast::<u64>() = value,
                bits => panic!("a port of {bits} bits is driven by words"),
            }
        }
    }

    /// Reads a port of any size, as bytes, least significant first; the last byte may be only
    /// partly used.
    #[inline]
    #[must_use]
    pub fn bytes(&self, port: Port) -> &[u8] {
        assert_eq!(port.model, self.number, "a port of another model");
        // SAFETY: Verilator's storage has at least this many bytes (this is a little-endian
        // machine, which the shim checks), and `&self` keeps it from being evaluated meanwhile.
        unsafe { std::slice::from_raw_parts(port.data, port.bits.div_ceil(8) as usize) }
    }

    /// Drives an input of any size from bytes, least significant first. There must be as many bytes
    /// as the port has.
    #[inline]
    pub fn set_bytes(&mut self, port: Port, bytes: &[u8]) {
        assert_eq!(port.model, self.number, "a port of another model");
        assert!(port.direction == Direction::Input, "outputs are driven by the module");
        assert_eq!(bytes.len(), port.bits.div_ceil(8) as usize, "bytes for {} bits", port.bits);
        if !port.bits.is_multiple_of(8) {
            let top = bytes[bytes.len() - 1];
            assert!(top >> (port.bits % 8) == 0, "bits above the port's {}", port.bits);
        }
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), port.data, bytes.len()) };
    }

    /// Computes the outputs from the inputs.
    #[inline]
    pub fn eval(&mut self) {
        // SAFETY: `raw` is a live model of this design.
        unsafe { (self.design.eval)(self.raw) };
        if self.tracing {
            // SAFETY: as above, and waves are open.
            unsafe { (self.design.dump_trace)(self.raw, self.time) };
        }
        self.time += 1;
    }

    /// Checks the design's assertions from now on, if it was built with them. Before its first
    /// reset a module may be in any state.
    pub fn assert_on(&mut self) {
        // SAFETY: `raw` is a live model of this design.
        unsafe { (self.design.assert_on)(self.raw) };
    }

    /// Writes waves to `path` from now on. False if the design was built without waves.
    pub fn open_trace(&mut self, path: &Path) -> bool {
        let path =
            CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero byte in a path");
        // SAFETY: `raw` is live, the path ends with a zero byte.
        self.tracing = unsafe { (self.design.open_trace)(self.raw, path.as_ptr()) } != 0;
        self.tracing
    }
}

impl Drop for Model {
    /// Writes the coverage, if the design counts it, to a new file in the folder that
    /// [`coverage::FOLDER_VARIABLE`](crate::coverage::FOLDER_VARIABLE) names.
    fn drop(&mut self) {
        if let Some(write) = self.design.write_coverage
            && let Some(path) = crate::coverage::next_file(self.design.name)
        {
            let path = CString::new(path.into_os_string().into_encoded_bytes());
            if let Ok(path) = path {
                // SAFETY: `raw` is live, the path ends with a zero byte.
                unsafe { write(self.raw, path.as_ptr()) };
            }
        }
        // SAFETY: no code uses `raw` afterwards; ports check their model before they are used.
        unsafe { (self.design.free)(self.raw) };
    }
}
