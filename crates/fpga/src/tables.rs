//! What the device's engines need instead of maps: tables, made by compilers.

use std::collections::BTreeMap;
use std::sync::Arc;

use fieldstone_crush::{Map, RuleId};
use fieldstone_gf::LinearMap;

use crate::card::Build;
use crate::regs::ReconfigurableModule;

/// A map with its reweights, as `LOAD_MAP` wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapTable {
    /// The image.
    pub bytes: Vec<u8>,
    /// The module that the map's buckets need in the reconfigurable partition.
    pub module: Option<ReconfigurableModule>,
    /// Where each rule is in the image.
    pub rules: BTreeMap<RuleId, u16>,
}

/// The compilers. An error says why the device cannot do it; the CPU does then.
pub trait Tables: Send + Sync {
    /// The table of a map under these reweights.
    ///
    /// # Errors
    /// The map is beyond the device.
    fn map(&self, map: &Arc<Map>, reweights: &Arc<[u32]>) -> Result<MapTable, String>;

    /// The program of a linear map, as `CODE` wants it.
    ///
    /// # Errors
    /// The linear map is beyond the device.
    fn program(&self, map: &Arc<LinearMap>, build: &Build) -> Result<Vec<u8>, String>;
}
