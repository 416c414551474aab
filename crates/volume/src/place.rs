//! Placement of shards and journals. The engine draws the nodes, so that a device can do it; the
//! pool's map then fills the result up.

use fieldstone_accel::Job;
use fieldstone_crush::{Osds, PoolMap, RuleId};

use crate::core::Core;

impl Core {
    /// [`PoolMap::place_shards`], drawn by the engine.
    pub fn place_shards(
        &mut self,
        key: u64,
        width: usize,
        in_weights: &[u32],
    ) -> Vec<Option<usize>> {
        let drawn = self.draw(PoolMap::SHARDS, key, width, in_weights);
        self.pool.shards_from(key, width, in_weights, &drawn)
    }

    /// [`PoolMap::place_journal`], drawn by the engine.
    pub fn place_journal(&mut self, key: u64, copies: usize, in_weights: &[u32]) -> Vec<usize> {
        let drawn = self.draw(PoolMap::JOURNAL, key, copies, in_weights);
        self.pool.journal_from(key, copies, in_weights, &drawn)
    }

    fn draw(&mut self, rule: RuleId, key: u64, width: usize, in_weights: &[u32]) -> Osds {
        let job = Job::Place {
            map: self.pool.map().clone(),
            rule,
            width: self.pool.draw_width(width),
            xs: vec![PoolMap::input(key)],
            weights: in_weights.into(),
        };
        let output = self.engine.run(job).expect("both rules are made with the map");
        let placements = output.into_placements().expect("a placement places");
        placements.into_iter().next().expect("one input was given")
    }
}
