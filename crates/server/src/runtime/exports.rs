//! What NBD clients are offered.

use std::sync::{Arc, PoisonError};

use fieldstone_host::frontends::nbd::{self, Exports};

use super::{Runtime, Stage};

impl Runtime {
    /// Offers every open target to NBD clients that come from now on.
    ///
    /// # Errors
    /// As [`Runtime::exports`].
    pub fn offer_exports(&self, read_only: bool) -> anyhow::Result<()> {
        let _one_at_a_time = self.offering.lock().unwrap_or_else(PoisonError::into_inner);
        nbd::offer(self.handle(), self.exports(read_only)?)?;
        Ok(())
    }

    /// What NBD clients are offered: every target that is open. The first target is the default
    /// export, also while it is not open: then there is none.
    ///
    /// # Errors
    /// When a device is beyond what the protocol can say, or none is open.
    fn exports(&self, read_only: bool) -> anyhow::Result<Exports> {
        let targets = self.targets();
        let snapshot = self.snapshot();
        let (mut exports, mut devices) = (Vec::new(), Vec::new());
        for target in &targets {
            let Stage::Serving(device) = &target.stage else { continue };
            // Its size now: it may have grown since it was opened.
            let found = snapshot.iter().flat_map(|core| &core.devices);
            let mut found = found.filter(|found| found.device == device.device);
            let info = found.next().map_or_else(|| device.info.clone(), |found| found.info.clone());
            let mut export = fieldstone_nbd::Export::new(device.export.as_str(), &info);
            export.can_multi_conn = true;
            export.read_only |= read_only;
            exports.push(export);
            devices.push(device.device);
        }
        let has_default =
            targets.first().is_some_and(|first| matches!(first.stage, Stage::Serving(_)));
        let mut list = fieldstone_nbd::ExportList::new(exports)?;
        if !has_default {
            list = list.without_default();
        }
        Ok(Exports { list: Arc::new(list), devices })
    }
}
