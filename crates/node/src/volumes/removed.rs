//! The volumes that were removed last. The parent module's essay says why.

use std::collections::VecDeque;

use fieldstone_proto::{Epoch, VolumeId};

use crate::limits::REMOVED_VOLUMES_MAX;

/// Removed volumes and their last epochs, the oldest removal first.
#[derive(Debug, Default)]
pub(crate) struct Removed(VecDeque<(VolumeId, Epoch)>);

impl Removed {
    /// The volume was removed at this epoch.
    pub(crate) fn note(&mut self, volume: VolumeId, epoch: Epoch) {
        self.0.retain(|(removed, _)| *removed != volume);
        if self.0.len() >= REMOVED_VOLUMES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((volume, epoch));
    }

    /// The last epoch of the volume, or 0 if the node does not remember its removal.
    pub(crate) fn last_epoch(&self, volume: VolumeId) -> Epoch {
        let found = self.0.iter().find(|(removed, _)| *removed == volume);
        found.map_or(Epoch(0), |(_, epoch)| *epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_removals_are_remembered() {
        let mut removed = Removed::default();
        for volume in 0..REMOVED_VOLUMES_MAX as u64 + 1 {
            removed.note(VolumeId(volume.into()), Epoch(volume + 1));
        }
        assert_eq!(removed.last_epoch(VolumeId(0)), Epoch(0));
        assert_eq!(removed.last_epoch(VolumeId(1)), Epoch(2));
        removed.note(VolumeId(1), Epoch(9));
        assert_eq!(removed.last_epoch(VolumeId(1)), Epoch(9));
        assert_eq!(removed.0.len(), REMOVED_VOLUMES_MAX);
    }
}
