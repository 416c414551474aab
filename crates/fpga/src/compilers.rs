//! The compilers of the device: images of maps, programs of linear maps.

use std::sync::Arc;

use fieldstone_crush::{AlgorithmKind, Map};
use fieldstone_gf::LinearMap;

use crate::card::Build;
use crate::image::Image;
use crate::program::{EngineShape, Program};
use crate::regs::ReconfigurableModule;
use crate::tables::{MapTable, TableCompiler};

/// [`Image`] and [`Program`] behind the driver's trait.
pub struct Compilers;

impl TableCompiler for Compilers {
    fn map(&self, map: &Arc<Map>, reweights: &Arc<[u32]>) -> Result<MapTable, String> {
        let image = Image::compile(map, reweights, None).map_err(|error| error.to_string())?;
        let module = module_of(image.algorithms())?;
        let rules = map.rules().map(|(id, _)| id).filter(|&id| image.misfit(id).is_none());
        // The slot of a rule is the rule's number.
        let rules = rules.filter_map(|id| Some((id, u16::try_from(id.0).ok()?))).collect();
        Ok(MapTable { bytes: image.bytes().to_vec(), module, rules })
    }

    fn program(&self, map: &Arc<LinearMap>, build: &Build) -> Result<Vec<u8>, String> {
        let shape = EngineShape {
            lanes: build.code_lanes as usize,
            lane_beats: build.lane_beats as usize,
            operations: build.program_ops as usize,
        };
        let program = Program::compile(map, &shape).map_err(|error| error.to_string())?;
        Ok(program.bytes().to_vec())
    }
}

/// The module that these algorithms need. The partition has room for one module.
fn module_of(algorithms: &[AlgorithmKind]) -> Result<Option<ReconfigurableModule>, String> {
    let needed = |kind: &AlgorithmKind| match kind {
        AlgorithmKind::Uniform => Some(ReconfigurableModule::Uniform),
        AlgorithmKind::List => Some(ReconfigurableModule::List),
        AlgorithmKind::Tree => Some(ReconfigurableModule::Tree),
        AlgorithmKind::Straw | AlgorithmKind::Straw2 => None,
    };
    let modules: Vec<_> = algorithms.iter().filter_map(needed).collect();
    match modules[..] {
        [] => Ok(None),
        [module] => Ok(Some(module)),
        _ => Err("the map has buckets of several kinds that need a module each".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AlgorithmKind::{List, Straw, Straw2, Tree, Uniform};

    #[test]
    fn the_partition_has_room_for_one_module() {
        assert_eq!(module_of(&[Straw, Straw2]), Ok(None));
        assert_eq!(module_of(&[Straw2, Tree]), Ok(Some(ReconfigurableModule::Tree)));
        assert_eq!(module_of(&[Uniform]), Ok(Some(ReconfigurableModule::Uniform)));
        assert!(module_of(&[List, Tree]).is_err());
    }
}
