//! An open card: its driver, and the programs that it has loaded.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fieldstone_buf::AlignedBuf;
use fieldstone_gf::LinearMap;
use thiserror::Error;

use crate::checksum::Sums;
use crate::cuda::Cuda;
use crate::driver::{
    Argument, CardInfo, DeviceAddress, Driver, DriverError, Event, Function, Grid, Resources, Rows,
    Stream,
};
use crate::host_memory::HostMemory;
use crate::images::{ImageError, Images, Placer, Source};
use crate::program::{Misfit, Program, Tuning};

/// Programs that a card keeps, those that were used last.
const PROGRAMS_MAX: usize = 64;

/// Why a card does not execute a map.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LoadError {
    /// The map is no program.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The driver refuses it, or the card has failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// A map, and its program or the reason that there is none.
type Known = (Arc<LinearMap>, Result<Arc<Loaded>, LoadError>);

/// An open card.
pub struct Card {
    driver: Arc<dyn Driver>,
    /// Copies of tables.
    copies: Mutex<(Stream, Event)>,
    /// Streams with an event each that devices have given back.
    idle_streams: Mutex<Vec<(Stream, Event)>>,
    host_memory: Arc<HostMemory>,
    /// The map that was used last is at the back.
    programs: Mutex<VecDeque<Known>>,
    images: Images,
    /// The checksum kernel, once it was wanted; none if the card cannot execute it.
    sums: OnceLock<Option<Arc<Sums>>>,
}

impl std::fmt::Debug for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Card").field("info", self.info()).finish_non_exhaustive()
    }
}

impl Card {
    /// Opens one of the machine's cards, by its number from 0 on.
    ///
    /// # Errors
    /// There is no driver or no such card, or the card has failed.
    pub fn open(number: u32) -> Result<Arc<Self>, DriverError> {
        Self::with_driver(Arc::new(Cuda::open(number)?))
    }

    /// A card behind any driver.
    ///
    /// # Errors
    /// The card has failed.
    pub fn with_driver(driver: Arc<dyn Driver>) -> Result<Arc<Self>, DriverError> {
        let copies = Mutex::new((driver.stream()?, driver.event()?));
        let host_memory = HostMemory::new(Arc::clone(&driver));
        let programs = Mutex::default();
        let images = Images::default();
        let (idle_streams, sums) = (Mutex::default(), OnceLock::new());
        Ok(Arc::new(Self { driver, copies, idle_streams, host_memory, programs, images, sums }))
    }

    /// The card's description.
    #[must_use]
    pub fn info(&self) -> &CardInfo {
        self.driver.info()
    }

    /// The card's driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// A buffer with arbitrary content in memory that the card reads and writes directly. `None` if
    /// there is no more of it.
    #[must_use]
    pub fn host_buffer(self: &Arc<Self>, len_bytes: usize) -> Option<AlignedBuf> {
        self.host_memory.take(len_bytes)
    }

    /// Whether the card reads these bytes directly.
    #[must_use]
    pub fn reads_directly(&self, bytes: &[u8]) -> bool {
        self.host_memory.has(bytes)
    }

    /// A stream and an event without work.
    pub(crate) fn take_stream(&self) -> Result<(Stream, Event), DriverError> {
        let idle = self.idle_streams.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(idle) => Ok(idle),
            None => Ok((self.driver.stream()?, self.driver.event()?)),
        }
    }

    /// Takes a stream and an event back whose work is complete. The driver keeps both until it
    /// ends, so devices use them again.
    pub(crate) fn give_stream(&self, stream: Stream, event: Event) {
        let mut idle = self.idle_streams.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push((stream, event));
    }

    /// The checksum kernel, loaded now at the first call. `None` if the card cannot execute it.
    pub(crate) fn sums(&self) -> Option<Arc<Sums>> {
        self.sums.get_or_init(|| Sums::new(self).ok().map(Arc::new)).clone()
    }

    /// Copies bytes to memory of the card, and waits until they are there.
    pub(crate) fn upload(&self, to: DeviceAddress, bytes: &[u8]) -> Result<(), DriverError> {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let (stream, event) = *copies;
        // SAFETY: this function waits for the copy; the caller's place has room for the bytes.
        unsafe { self.driver.copy_in(stream, to, bytes.as_ptr(), Rows::one(bytes.len()))? };
        self.driver.record(event, stream)?;
        self.driver.wait(event)
    }

    /// The program of a map, from the cache or else compiled now, which may take seconds.
    ///
    /// # Errors
    /// The map is too large, or the card has failed.
    pub fn program(&self, map: &Arc<LinearMap>) -> Result<Arc<Loaded>, LoadError> {
        if let Some(known) = self.known(map) {
            return known;
        }
        let loaded = Loaded::new(self, map, &Tuning::default()).map(Arc::new);
        let lasts = match &loaded {
            Ok(_) | Err(LoadError::Misfit(_) | LoadError::Driver(DriverError::Program(_))) => true,
            // Another time there may be memory.
            Err(LoadError::Driver(_)) => false,
        };
        if !lasts {
            return loaded;
        }
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = if programs.len() < PROGRAMS_MAX { None } else { programs.pop_front() };
        programs.push_back((Arc::clone(map), loaded.clone()));
        // To forget a program may take long.
        drop(programs);
        drop(oldest);
        loaded
    }

    /// The image of a map, a rule and reweights, from the cache or else made now. The first call
    /// loads the placement kernel, which may take seconds.
    pub(crate) fn placer(&self, source: &Source) -> Result<Arc<Placer>, ImageError> {
        self.images.image(self, source)
    }

    /// The program of a map that was asked for before.
    fn known(&self, map: &Arc<LinearMap>) -> Option<Result<Arc<Loaded>, LoadError>> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let at = programs.iter().rposition(|(known, _)| Arc::ptr_eq(known, map))?;
        let entry = programs.remove(at)?;
        let loaded = entry.1.clone();
        programs.push_back(entry);
        Some(loaded)
    }
}

/// A map's program on a card.
pub struct Loaded {
    driver: Arc<dyn Driver>,
    program: Program,
    function: Function,
    table: DeviceAddress,
    resources: Resources,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("resources", &self.resources).finish_non_exhaustive()
    }
}

impl Loaded {
    /// Compiles and loads a map's program.
    ///
    /// # Errors
    /// The map is too large, or the card has failed.
    pub fn new(card: &Card, map: &LinearMap, tuning: &Tuning) -> Result<Self, LoadError> {
        let program = Program::tuned(map, tuning)?;
        let driver = Arc::clone(&card.driver);
        let geometry = program.geometry();
        let function = driver.load(program.text(), Program::KERNEL, geometry.shared_bytes)?;
        let grid =
            Grid { blocks: 1, threads: geometry.threads(), shared_bytes: geometry.shared_bytes };
        let resources = driver.resources(function, grid)?;
        let bytes: Vec<u8> = program.table().iter().flat_map(|word| word.to_le_bytes()).collect();
        let table = driver.allocate(bytes.len() as u64)?;
        let loaded = Self { driver, program, function, table, resources };
        card.upload(table, &bytes)?;
        Ok(loaded)
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The registers and so on that the driver's assembler gave it.
    #[must_use]
    pub fn resources(&self) -> Resources {
        self.resources
    }

    /// Starts the program on a stream. The elements of all inputs lie at `inputs` and those of all
    /// outputs at `outputs`, one behind the other at distances of `pitch` bytes, a multiple of
    /// [`PITCH_ALIGN_BYTES`](crate::program::PITCH_ALIGN_BYTES). Both places are aligned to it.
    ///
    /// # Errors
    /// The card has failed.
    pub fn launch(
        &self,
        stream: Stream,
        inputs: DeviceAddress,
        outputs: DeviceAddress,
        pitch: u32,
    ) -> Result<(), DriverError> {
        let geometry = self.program.geometry();
        let grid = Grid {
            blocks: geometry.blocks(u64::from(pitch)),
            threads: geometry.threads(),
            shared_bytes: geometry.shared_bytes,
        };
        let arguments = [
            Argument::U64(inputs.0),
            Argument::U64(outputs.0),
            Argument::U64(self.table.0),
            Argument::U32(pitch),
        ];
        self.driver.launch(stream, self.function, grid, &arguments)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.driver.free(self.table);
        self.driver.unload(self.function);
    }
}
