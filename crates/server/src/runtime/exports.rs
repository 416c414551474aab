//! Offers the open devices to NBD clients.

use std::sync::{Arc, PoisonError};

use fieldstone_host::frontends::nbd::{self, Exports};

use super::{DeviceState, Runtime};

impl Runtime {
    /// Offers every open device to NBD clients that connect from now on, if this runtime has a
    /// front-end for them.
    ///
    /// # Errors
    /// As [`Runtime::exports`].
    pub fn offer_exports(&self, read_only: bool) -> anyhow::Result<()> {
        if self.handle.frontend(nbd::KIND.name).is_err() {
            return Ok(());
        }
        let _one_at_a_time = self.offering.lock().unwrap_or_else(PoisonError::into_inner);
        nbd::offer(self.handle(), self.exports(read_only)?)?;
        Ok(())
    }

    /// The exports: every open device. The first device is the default export. While the first
    /// device is not open, there is no default export.
    ///
    /// # Errors
    /// The protocol cannot express a device, or no device is open.
    fn exports(&self, read_only: bool) -> anyhow::Result<Exports> {
        let served = self.served_devices();
        let snapshot = self.snapshot();
        let (mut exports, mut devices) = (Vec::new(), Vec::new());
        for served in &served {
            let DeviceState::Serving(device) = &served.state else { continue };
            // The current size: the device may have grown since its opening.
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
            served.first().is_some_and(|first| matches!(first.state, DeviceState::Serving(_)));
        let mut list = fieldstone_nbd::ExportList::new(exports)?;
        if !has_default {
            list = list.without_default();
        }
        Ok(Exports { list: Arc::new(list), devices })
    }
}
