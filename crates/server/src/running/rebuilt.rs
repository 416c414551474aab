//! Notes in the pool's record which volumes are whole, so that a replaced node counts as rebuilt.

use fieldstone_proto::NodeIndex;

use super::{Listing, RunningPool};
use crate::pool::record::{self, Record, WholeVolume};
use crate::report::VolumeReport;

impl RunningPool {
    /// Notes the whole volumes among these. If the listing is complete, a replaced node with which
    /// every volume was seen whole counts as rebuilt from now on. A failure delays that only, and
    /// is told to the log.
    pub fn note_whole(&self, volumes: &[VolumeReport], listing: &Listing) {
        let whole: Vec<WholeVolume> =
            volumes.iter().filter(|volume| volume.is_whole()).map(whole_volume).collect();
        let ids = || listing.volumes.iter().map(|known| known.id.to_string()).collect();
        let all: Option<Vec<String>> = listing.is_complete().then(ids);
        let note = || -> anyhow::Result<()> {
            let (folder, pool) = (&self.pool.folder, self.pool.id);
            // Most of the time there is nothing to note, and no reason to take the lock.
            if Record::read(folder, pool)?.to_rebuild().is_empty() {
                return Ok(());
            }
            record::update(folder, pool, |record| record.note_whole(&whole, all.as_deref()))
        };
        if let Err(error) = note() {
            tracing::info!("cannot note which volumes are whole: {error:#}");
        }
    }
}

fn whole_volume(volume: &VolumeReport) -> WholeVolume {
    let nodes = volume.nodes.iter();
    WholeVolume {
        id: volume.id.clone(),
        incarnations: nodes.map(|at| (NodeIndex(at.node), at.incarnation.clone())).collect(),
    }
}
