//! The model's compilers. They make bytes without a meaning, and note which table the bytes stand
//! for.

use std::collections::BTreeMap;
use std::sync::Arc;

use fieldstone_accel::crc32c;
use fieldstone_crush::{AlgorithmKind, Map, RuleId};
use fieldstone_gf::LinearMap;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::DeviceModel;
use crate::card::Build;
use crate::regs::ReconfigurableModule;
use crate::tables::{MapTable, TableCompiler};

/// A map that an image stands for.
pub(super) struct KnownMap {
    pub map: Arc<Map>,
    pub reweights: Arc<[u32]>,
    pub rules: BTreeMap<RuleId, u16>,
    pub module: Option<ReconfigurableModule>,
}

/// Compilers for a device model.
pub struct ModelTables {
    model: DeviceModel,
    /// Real compilers, whose tables are used instead of bytes without a meaning.
    real: Option<Box<dyn TableCompiler>>,
}

/// Without real compilers, the model refuses linear maps with more rows than this.
const MAX_ROWS: usize = 256;

impl ModelTables {
    /// Compilers that tell this device which table their bytes stand for.
    #[must_use]
    pub fn new(model: &DeviceModel) -> Self {
        Self { model: model.clone(), real: None }
    }

    /// Real compilers; they also tell this device which table their bytes stand for.
    #[must_use]
    pub fn around(model: &DeviceModel, real: Box<dyn TableCompiler>) -> Self {
        Self { model: model.clone(), real: Some(real) }
    }

    /// Bytes without a meaning, of a random length.
    fn bytes(&self) -> Vec<u8> {
        let mut state = self.model.state();
        let mut rng = ChaCha8Rng::seed_from_u64(state.rng.random());
        drop(state);
        let len = 64 * rng.random_range(1..100);
        std::iter::repeat_with(|| rng.random()).take(len).collect()
    }
}

impl TableCompiler for ModelTables {
    fn map(&self, map: &Arc<Map>, reweights: &Arc<[u32]>) -> Result<MapTable, String> {
        let table = match &self.real {
            Some(real) => real.map(map, reweights)?,
            None => self.made_up(map)?,
        };
        let known = KnownMap {
            map: Arc::clone(map),
            reweights: Arc::clone(reweights),
            rules: table.rules.clone(),
            module: table.module,
        };
        self.model.state().maps.insert(crc32c(&table.bytes), Arc::new(known));
        Ok(table)
    }

    fn program(&self, map: &Arc<LinearMap>, build: &Build) -> Result<Vec<u8>, String> {
        let rows: usize = map.steps().iter().map(Vec::len).sum();
        let bytes = match &self.real {
            Some(real) => real.program(map, build)?,
            None if rows > MAX_ROWS => return Err(format!("{rows} rows")),
            None => self.bytes(),
        };
        self.model.state().programs.insert(crc32c(&bytes), Arc::clone(map));
        Ok(bytes)
    }
}

impl ModelTables {
    /// A table without a meaning, but with the module that the map needs.
    fn made_up(&self, map: &Map) -> Result<MapTable, String> {
        let mut module = None;
        for bucket in map.buckets() {
            let needed = match bucket.algorithm.kind() {
                AlgorithmKind::Uniform => ReconfigurableModule::Uniform,
                AlgorithmKind::List => ReconfigurableModule::List,
                AlgorithmKind::Tree => ReconfigurableModule::Tree,
                AlgorithmKind::Straw | AlgorithmKind::Straw2 => continue,
            };
            if module.is_some_and(|module| module != needed) {
                return Err("the map needs two modules".to_owned());
            }
            module = Some(needed);
        }
        let bytes = self.bytes();
        let rules: BTreeMap<RuleId, u16> = map.rules().map(|(id, _)| id).zip(0..).collect();
        Ok(MapTable { bytes, module, rules })
    }
}
