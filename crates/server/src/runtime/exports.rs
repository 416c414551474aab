//! Offers the open devices to clients that connect.

use std::sync::PoisonError;

use fieldstone_host::OfferedDevice;

use super::{DeviceState, Runtime};

impl Runtime {
    /// Offers every open device to clients that connect from now on, through each front-end of this
    /// runtime that has such clients.
    ///
    /// # Errors
    /// A front-end's protocol cannot express a device.
    pub fn offer_exports(&self, read_only: bool) -> anyhow::Result<()> {
        let _one_at_a_time = self.offering.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = self.offered(read_only);
        for offer in self.handle.frontends().iter().filter_map(|kind| kind.offer) {
            offer(self.handle(), &devices)?;
        }
        Ok(())
    }

    /// Every open device. The first device is the default one. While the first device is not open,
    /// there is no default.
    fn offered(&self, read_only: bool) -> Vec<OfferedDevice> {
        let snapshot = self.snapshot();
        let offered =
            self.served_devices().into_iter().enumerate().filter_map(|(place, served)| {
                let DeviceState::Serving(open) = served.state else { return None };
                // The current size: the device may have grown since its opening.
                let mut found = snapshot.iter().flat_map(|core| &core.devices);
                let found = found.find(|found| found.device == open.device);
                Some(OfferedDevice {
                    device: open.device,
                    name: open.export,
                    info: found.map_or(open.info, |found| found.info.clone()),
                    read_only,
                    is_default: place == 0,
                })
            });
        offered.collect()
    }
}
