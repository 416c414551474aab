//! The tables that the device's engines need instead of maps. Compilers make them.

use std::collections::BTreeMap;
use std::sync::Arc;

use fieldstone_crush::{Map, RuleId};
use fieldstone_gf::LinearMap;

use crate::card::Build;
use crate::regs::ReconfigurableModule;

/// A map with its reweights, in the form that `LOAD_MAP` needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapTable {
    /// The image.
    pub bytes: Vec<u8>,
    /// The module that the map's buckets need in the reconfigurable partition.
    pub module: Option<ReconfigurableModule>,
    /// The slot of each rule in the image.
    pub rules: BTreeMap<RuleId, u16>,
}

/// The compilers of tables. An error says why the device cannot do a job; the CPU does the job
/// then.
pub trait TableCompiler: Send + Sync {
    /// The table of a map under these reweights.
    ///
    /// # Errors
    /// The device cannot hold or run the map.
    fn map(&self, map: &Arc<Map>, reweights: &Arc<[u32]>) -> Result<MapTable, String>;

    /// The program of a linear map, in the form that `CODE` needs.
    ///
    /// # Errors
    /// The device cannot hold or run the linear map.
    fn program(&self, map: &Arc<LinearMap>, build: &Build) -> Result<Vec<u8>, String>;
}
