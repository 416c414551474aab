//! Notes in the pool's record which volumes are whole, so that a replaced node counts as rebuilt.

use std::time::Duration;

use fieldstone_proto::NodeIndex;

use super::{PoolStatus, RunningPool};
use crate::pool::record::{self, AllVolumes, Record, WholeVolume};
use crate::report::VolumeReport;

impl RunningPool {
    /// Notes the whole volumes among these. If all nodes have listed their volumes, a replaced node
    /// with which every volume was seen whole counts as rebuilt from now on. A failure delays that
    /// only, and is told to the log.
    pub fn note_whole(&self, volumes: &[VolumeReport], status: &PoolStatus) {
        let whole = volumes.iter().filter(|volume| volume.is_whole()).map(whole_volume);
        let whole: Vec<WholeVolume> = whole.collect();
        let all = all_volumes(status);
        let note = || -> anyhow::Result<()> {
            let (folder, pool) = (&self.pool.folder, self.pool.id);
            // Most of the time there is nothing to note, and no reason to take the lock.
            if Record::read(folder, pool)?.to_rebuild().is_empty() {
                return Ok(());
            }
            record::update(folder, pool, |record| record.note_whole(&whole, all.as_ref()))
        };
        if let Err(error) = note() {
            tracing::info!("cannot note which volumes are whole: {error:#}");
        }
    }

    /// The same for the volume of a client, if the record does not know yet that it is whole.
    pub fn note_client_whole(&self, volume: VolumeReport) {
        /// How long the client waits for the answers of nodes.
        const TIMEOUT: Duration = Duration::from_secs(2);
        let record = Record::read(&self.pool.folder, self.pool.id);
        if volume.is_whole() && record.is_ok_and(|record| record.is_news(&whole_volume(&volume))) {
            let status = self.query_nodes(TIMEOUT);
            let believed = status.listing.as_ref().is_ok_and(|all| all.is_of_writer(&volume));
            if believed {
                self.note_whole(&[volume], &status);
            }
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

/// All volumes, if all nodes have listed theirs.
fn all_volumes(status: &PoolStatus) -> Option<AllVolumes> {
    let listing = status.listing.as_ref().ok().filter(|listing| listing.is_complete())?;
    let incarnation = |answer: &super::NodeAnswer| {
        let stat = answer.stat.as_ref().ok()?;
        Some((answer.node, format!("{:016x}", stat.incarnation)))
    };
    Some(AllVolumes {
        ids: listing.volumes.iter().map(|known| known.id.to_string()).collect(),
        incarnations: status.nodes.iter().filter_map(incarnation).collect(),
    })
}
