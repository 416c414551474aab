//! Images of the placement kernel on a card.
//!
//! An image takes time to make and to copy, so a card keeps the ones that were used last. A volume
//! places with one map and one rule, and with other reweights only after a change of its nodes, so
//! a few images are enough. The kernel itself is loaded once, with shared memory for the widest
//! results.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fieldstone_crush::{Map, RuleId};
use thiserror::Error;

use crate::card::Card;
use crate::driver::{Argument, DeviceAddress, Driver, DriverError, Function, Grid, Stream};
use crate::place::{self, Image, Misfit};

/// Images that a card keeps.
pub(crate) const IMAGES_MAX: usize = 8;

/// Why a card does not place with a map and a rule.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum ImageError {
    /// The kernel does not take them.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The driver refuses the kernel, or the card has failed or has too little memory.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// What an image is made of. Sources are equal if they share all of it. A kept source keeps its
/// parts alive, so no other part gets their addresses.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) map: Arc<Map>,
    pub(crate) rule: RuleId,
    pub(crate) weights: Arc<[u32]>,
}

impl Source {
    pub(crate) fn new(map: &Arc<Map>, rule: RuleId, weights: &Arc<[u32]>) -> Self {
        Self { map: Arc::clone(map), rule, weights: Arc::clone(weights) }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.rule == other.rule
            && Arc::ptr_eq(&self.map, &other.map)
            && Arc::ptr_eq(&self.weights, &other.weights)
    }
}

/// Values by source. A value that is asked for moves to the back.
pub(crate) struct Recent<V>(VecDeque<(Source, V)>);

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<V> Recent<V> {
    /// The value of a source.
    pub(crate) fn get(&mut self, source: &Source) -> Option<&mut V> {
        let at = self.0.iter().rposition(|(known, _)| known.is(source))?;
        let entry = self.0.remove(at)?;
        self.0.push_back(entry);
        self.0.back_mut().map(|(_, value)| value)
    }

    /// Sets the value of a source. Forgets the source that was used the longest time ago, if there
    /// are more than [`IMAGES_MAX`].
    pub(crate) fn set(&mut self, source: Source, value: V) {
        self.0.retain(|(known, _)| !known.is(&source));
        while self.0.len() >= IMAGES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((source, value));
    }

    /// All values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }
}

/// The loaded kernel.
struct Kernel {
    driver: Arc<dyn Driver>,
    function: Function,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.driver.unload(self.function);
    }
}

/// An image on a card, with the kernel.
pub(crate) struct Placer {
    kernel: Arc<Kernel>,
    image: DeviceAddress,
}

impl Placer {
    fn new(card: &Card, kernel: Arc<Kernel>, source: &Source) -> Result<Self, ImageError> {
        let image = Image::new(&source.map, source.rule, &source.weights, None)?;
        let address = card.driver().allocate(image.bytes().len() as u64)?;
        let placer = Self { kernel, image: address };
        card.upload(address, image.bytes())?;
        Ok(placer)
    }

    /// Starts the kernel on a stream. `places` are the addresses of the inputs, of the rows of
    /// results and of their lengths. The width is at most [`place::MAX_WIDTH`].
    pub(crate) fn launch(
        &self,
        stream: Stream,
        places: [DeviceAddress; 3],
        count: u32,
        width: u32,
    ) -> Result<(), DriverError> {
        let [xs, rows, lens] = places.map(|place| Argument::U64(place.0));
        let grid = Grid {
            blocks: place::blocks(count),
            threads: place::BLOCK_THREADS,
            shared_bytes: place::shared_bytes(width).unwrap_or_default(),
        };
        let (count, width) = (Argument::U32(count), Argument::U32(width));
        let arguments = [Argument::U64(self.image.0), xs, count, width, rows, lens];
        self.kernel.driver.launch(stream, self.kernel.function, grid, &arguments)
    }
}

impl Drop for Placer {
    fn drop(&mut self) {
        self.kernel.driver.free(self.image);
    }
}

/// The images of a card.
#[derive(Default)]
pub(crate) struct Images {
    kernel: OnceLock<Result<Arc<Kernel>, DriverError>>,
    kept: Mutex<Recent<Result<Arc<Placer>, ImageError>>>,
}

impl Images {
    /// The image of a source, kept or else made now. The first call loads the kernel, which may
    /// take seconds.
    pub(crate) fn image(&self, card: &Card, source: &Source) -> Result<Arc<Placer>, ImageError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept().get(source) {
            return known.clone();
        }
        let kernel = self.kernel.get_or_init(|| {
            let shared_bytes = place::shared_bytes(place::MAX_WIDTH).unwrap_or_default();
            let driver = Arc::clone(card.driver());
            let function = driver.load(place::kernel_text(), place::KERNEL, shared_bytes)?;
            Ok(Arc::new(Kernel { driver, function }))
        });
        let made = kernel.clone().map_err(ImageError::from);
        let made = made.and_then(|kernel| Placer::new(card, kernel, source)).map(Arc::new);
        kept().set(source.clone(), made.clone());
        made
    }
}
