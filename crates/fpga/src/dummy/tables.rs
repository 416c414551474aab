//! The dummy's compilers: bytes that mean nothing, and a note of what they stand for.

use std::collections::BTreeMap;
use std::sync::Arc;

use fieldstone_accel::crc32c;
use fieldstone_crush::{AlgorithmKind, Map, RuleId};
use fieldstone_gf::LinearMap;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Dummy;
use crate::card::Build;
use crate::regs::ReconfigurableModule;
use crate::tables::{MapTable, Tables};

/// A map that an image stands for.
pub(super) struct KnownMap {
    pub map: Arc<Map>,
    pub reweights: Arc<[u32]>,
    pub rules: BTreeMap<RuleId, u16>,
    pub module: Option<ReconfigurableModule>,
}

/// Compilers for a dummy.
pub struct DummyTables {
    dummy: Dummy,
    /// Linear maps with more rows than this are refused.
    pub max_rows: usize,
}

impl DummyTables {
    /// Compilers that tell this device what their tables stand for.
    #[must_use]
    pub fn new(dummy: &Dummy) -> Self {
        Self { dummy: dummy.clone(), max_rows: 256 }
    }

    /// A table of its own, of some length.
    fn bytes(&self) -> Vec<u8> {
        let mut state = self.dummy.state();
        let mut rng = ChaCha8Rng::seed_from_u64(state.rng.random());
        drop(state);
        let len = 64 * rng.random_range(1..100);
        std::iter::repeat_with(|| rng.random()).take(len).collect()
    }
}

impl Tables for DummyTables {
    fn map(&self, map: &Arc<Map>, reweights: &Arc<[u32]>) -> Result<MapTable, String> {
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
        let known = KnownMap {
            map: Arc::clone(map),
            reweights: Arc::clone(reweights),
            rules: rules.clone(),
            module,
        };
        self.dummy.state().maps.insert(crc32c(&bytes), Arc::new(known));
        Ok(MapTable { bytes, module, rules })
    }

    fn program(&self, map: &Arc<LinearMap>, _build: &Build) -> Result<Vec<u8>, String> {
        let rows: usize = map.steps().iter().map(Vec::len).sum();
        if rows > self.max_rows {
            return Err(format!("{rows} rows"));
        }
        let bytes = self.bytes();
        self.dummy.state().programs.insert(crc32c(&bytes), Arc::clone(map));
        Ok(bytes)
    }
}
