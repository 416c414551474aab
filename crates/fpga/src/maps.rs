//! The device's loaded map and module, and how the driver loads others.
//!
//! The device holds one map at a time, under an *epoch*: the driver's number for one map with its
//! reweights. The driver compiles images once and keeps them in card memory, so loading one again
//! is a single descriptor. The driver does not replace a map that is in use. It gives back jobs of
//! another map until the last job with the map is done.
//!
//! Buckets of the kinds uniform, list and tree need a module in the reconfigurable partition. The
//! driver gives back jobs whose map needs a module that is not loaded. After [`SWAP_PATIENCE`] such
//! jobs in a row, it changes the partition, once no job uses its module. Until the new module runs,
//! the driver also gives back the jobs that need a module.

use std::collections::BTreeMap;
use std::sync::Arc;

use fieldstone_crush::{Map, RuleId};

use crate::allocator::{Allocation, Allocator};
use crate::bounds::{MAX_IMAGES, SWAP_PATIENCE};
use crate::regs::ReconfigurableModule;
use crate::tables::{MapTable, TableCompiler};

/// The decision about a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The placement may start. The caller calls [`Maps::release`] when it is done.
    Go(Ticket),
    /// Not now.
    Busy,
    /// Not now. The partition should change to this module.
    Swap(ReconfigurableModule),
}

/// Pins the loaded map and module that a placement uses. They stay loaded until the placement is
/// done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPin {
    /// The map's epoch.
    pub epoch: u32,
    /// True if the placement also uses the partition's module.
    pub module: bool,
}

/// The right to place with a map, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The map and module that stay loaded.
    pub pin: MapPin,
    /// The rule's slot in its image.
    pub rule: u16,
    /// The image to load first; `None` if it is loaded.
    pub load: Option<Load>,
}

/// An image to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Its address in card memory.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// The image, if it must be copied to that address first.
    pub image: Option<Arc<[u8]>>,
}

/// The state of the device's only place for a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    Nothing,
    /// A queue set has a `LOAD_MAP` under way; later jobs of the same queue set come after it.
    Loading {
        epoch: u32,
        queue_set: u16,
    },
    Ready {
        epoch: u32,
    },
}

struct Entry {
    map: Arc<Map>,
    reweights: Arc<[u32]>,
    epoch: u32,
    used_at: u64,
    image: Option<LoadedImage>,
}

struct LoadedImage {
    bytes: Arc<[u8]>,
    module: Option<ReconfigurableModule>,
    rules: BTreeMap<RuleId, u16>,
    place: Option<Allocation>,
    is_in_card: bool,
}

/// The maps of a card.
pub struct Maps {
    entries: Vec<Entry>,
    loaded: Loaded,
    /// Jobs that use the loaded map, and the number of them that use the module.
    users: u32,
    module_users: u32,
    last_epoch: u32,
    time: u64,
    /// The module in the partition; `None` during a change.
    module: Option<ReconfigurableModule>,
    is_physical: bool,
    missed: u32,
    /// Memory of images that were evicted.
    unused: Vec<Allocation>,
}

impl Maps {
    /// No map, and a partition with this module. Only function 0 loads maps and changes the
    /// partition; the driver of another function places nothing.
    #[must_use]
    pub fn new(module: Option<ReconfigurableModule>, is_physical: bool) -> Self {
        Self {
            entries: Vec::new(),
            loaded: Loaded::Nothing,
            users: 0,
            module_users: 0,
            last_epoch: 0,
            time: 0,
            module,
            is_physical,
            missed: 0,
            unused: Vec::new(),
        }
    }

    /// True if the device can place with this rule: now, or with another module.
    pub fn takes(
        &mut self,
        tables: &dyn TableCompiler,
        map: &Arc<Map>,
        reweights: &Arc<[u32]>,
        rule: RuleId,
    ) -> bool {
        if !self.is_physical {
            return false;
        }
        let Some(index) = self.find(tables, map, reweights) else { return false };
        let image = self.entries[index].image.as_ref();
        image.is_some_and(|image| image.rules.contains_key(&rule))
    }

    /// Admits a placement of a queue set if its map is loaded or can be loaded now.
    pub fn admit(
        &mut self,
        tables: &dyn TableCompiler,
        card: &mut Allocator,
        (map, reweights): (&Arc<Map>, &Arc<[u32]>),
        rule: RuleId,
        queue_set: u16,
    ) -> Admission {
        self.unused.drain(..).for_each(|place| card.release(place));
        let Some(index) = self.find(tables, map, reweights) else { return Admission::Busy };
        let Some(image) = &self.entries[index].image else { return Admission::Busy };
        let (Some(&rule), module) = (image.rules.get(&rule), image.module) else {
            return Admission::Busy;
        };
        if module.is_some() && module != self.module {
            return self.miss(module);
        }
        let pin = MapPin { epoch: self.entries[index].epoch, module: module.is_some() };
        if pin.module && self.missed >= SWAP_PATIENCE {
            // The partition changes as soon as no job uses its module. The count falls here, so the
            // module stays if no more jobs come that need another one.
            self.missed -= 1;
            return Admission::Busy;
        }
        self.missed = if pin.module { 0 } else { self.missed };
        let epoch = pin.epoch;
        let load = match self.loaded {
            Loaded::Ready { epoch: loaded } if loaded == epoch => None,
            Loaded::Loading { epoch: coming, queue_set: loader }
                if coming == epoch && loader == queue_set =>
            {
                None
            }
            Loaded::Loading { .. } => return Admission::Busy,
            _ if self.users > 0 => return Admission::Busy,
            _ => {
                let Some(load) = self.load(index, card) else { return Admission::Busy };
                self.loaded = Loaded::Loading { epoch, queue_set };
                Some(load)
            }
        };
        self.users += 1;
        self.module_users += u32::from(pin.module);
        Admission::Go(Ticket { pin, rule, load })
    }

    /// An admitted placement is done.
    pub fn release(&mut self, pin: MapPin) {
        self.users -= 1;
        self.module_users -= u32::from(pin.module);
    }

    /// The device has loaded the map of this epoch.
    pub fn loaded(&mut self, epoch: u32) {
        self.loaded = Loaded::Ready { epoch };
        if let Some(image) = self.image_of(epoch) {
            image.is_in_card = true;
        }
    }

    /// The device has refused the image of this epoch.
    pub fn refused(&mut self, epoch: u32, card: &mut Allocator) {
        self.forget_loaded();
        let entry = self.entries.iter_mut().find(|entry| entry.epoch == epoch);
        if let Some(place) = entry.and_then(|entry| entry.image.take()?.place) {
            card.release(place);
        }
    }

    /// A queue set is being reset, so the image that it was loading is not loaded. Returns the
    /// image's memory if the image may still be on its way there: the memory must stay unused until
    /// the reset has ended.
    #[must_use]
    pub fn queue_set_reset(&mut self, queue_set: u16) -> Option<Allocation> {
        let Loaded::Loading { epoch, queue_set: loader } = self.loaded else { return None };
        if loader != queue_set {
            return None;
        }
        self.forget_loaded();
        let image = self.image_of(epoch)?;
        if image.is_in_card { None } else { image.place.take() }
    }

    /// The driver no longer knows which map is loaded.
    pub fn forget_loaded(&mut self) {
        self.loaded = Loaded::Nothing;
    }

    /// Begins a change of the partition. Returns false if the partition must not change after all:
    /// since [`Admission::Swap`] was given, another job that uses the module was admitted, or
    /// another queue set began a change.
    pub fn swap_begins(&mut self) -> bool {
        let may = self.module.is_some() && self.module_users == 0;
        if may {
            (self.module, self.missed) = (None, 0);
        }
        may
    }

    /// A change has ended, with this module in the partition.
    pub fn swap_ended(&mut self, module: Option<ReconfigurableModule>) {
        (self.module, self.missed) = (module, 0);
    }

    /// The module in the partition; `None` while the partition is being changed, or if the module
    /// is unknown.
    #[must_use]
    pub fn module(&self) -> Option<ReconfigurableModule> {
        self.module
    }

    /// A job came whose map needs a module that is not loaded.
    fn miss(&mut self, module: Option<ReconfigurableModule>) -> Admission {
        if self.module.is_none() {
            return Admission::Busy; // a change is under way
        }
        self.missed = (self.missed + 1).min(SWAP_PATIENCE);
        let is_due = self.missed == SWAP_PATIENCE && self.module_users == 0;
        module.filter(|_| is_due).map_or(Admission::Busy, Admission::Swap)
    }

    /// Prepares the loading of an image; `None` if card memory has no room for it.
    fn load(&mut self, index: usize, card: &mut Allocator) -> Option<Load> {
        let image = self.entries[index].image.as_mut()?;
        if image.place.is_none() {
            image.place = Some(card.allocate_to_stay(image.bytes.len())?);
            image.is_in_card = false;
        }
        let address = image.place.as_ref()?.address;
        let missing = (!image.is_in_card).then(|| Arc::clone(&image.bytes));
        Some(Load { address, bytes: image.bytes.len() as u64, image: missing })
    }

    /// The index of the map's entry, which is made if it is missing. `None` if no entry can be
    /// evicted.
    fn find(
        &mut self,
        tables: &dyn TableCompiler,
        map: &Arc<Map>,
        reweights: &Arc<[u32]>,
    ) -> Option<usize> {
        self.time += 1;
        let same = |entry: &Entry| {
            Arc::ptr_eq(&entry.map, map)
                && (Arc::ptr_eq(&entry.reweights, reweights) || entry.reweights == *reweights)
        };
        let index = match self.entries.iter().position(same) {
            Some(index) => index,
            None => {
                let table = tables.map(map, reweights);
                let image = table.inspect_err(|reason| tracing::debug!("not placed: {reason}"));
                self.insert(map, reweights, image.ok())?
            }
        };
        self.entries[index].used_at = self.time;
        Some(index)
    }

    fn insert(
        &mut self,
        map: &Arc<Map>,
        reweights: &Arc<[u32]>,
        table: Option<MapTable>,
    ) -> Option<usize> {
        let image = table.map(|table| LoadedImage {
            bytes: table.bytes.into(),
            module: table.module,
            rules: table.rules,
            place: None,
            is_in_card: false,
        });
        self.last_epoch = self.last_epoch.wrapping_add(1);
        let mut entry = Entry {
            map: Arc::clone(map),
            reweights: Arc::clone(reweights),
            epoch: self.last_epoch,
            used_at: self.time,
            image,
        };
        if self.entries.len() < MAX_IMAGES {
            self.entries.push(entry);
            return Some(self.entries.len() - 1);
        }
        // Evicts the entry that was not used for the longest time, but never the loaded one.
        let current = match self.loaded {
            Loaded::Nothing => None,
            Loaded::Loading { epoch, .. } | Loaded::Ready { epoch } => Some(epoch),
        };
        let others = self.entries.iter().enumerate();
        let others = others.filter(|(_, entry)| Some(entry.epoch) != current);
        let (index, oldest) = others.min_by_key(|(_, entry)| entry.used_at)?;
        debug_assert!(Some(oldest.epoch) != current);
        std::mem::swap(&mut self.entries[index], &mut entry);
        self.unused.extend(entry.image.and_then(|image| image.place));
        Some(index)
    }

    fn image_of(&mut self, epoch: u32) -> Option<&mut LoadedImage> {
        self.entries.iter_mut().find(|entry| entry.epoch == epoch)?.image.as_mut()
    }
}
