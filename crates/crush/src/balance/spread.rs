//! How evenly shards are spread.

use super::state::PoolDevice;
use crate::OsdId;

/// The shards of a pool on one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceSpread {
    /// The device.
    pub osd: OsdId,
    /// Shards on the device.
    pub shards: u32,
    /// The device's share by weight, in shards.
    pub target: f64,
}

impl DeviceSpread {
    /// Shards above the device's share; negative: below.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        f64::from(self.shards) - self.target
    }
}

/// How evenly the shards of a pool are spread over the devices that its rule reaches and that are
/// in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// The devices, by number.
    pub devices: Vec<DeviceSpread>,
}

impl Spread {
    pub(super) fn of(devices: &[PoolDevice]) -> Self {
        let reached = devices.iter().enumerate().filter(|(_, device)| device.target > 0.0);
        let devices = reached.map(|(osd, device)| DeviceSpread {
            osd: OsdId(osd as u32),
            shards: device.shards.len() as u32,
            target: device.target,
        });
        Self { devices: devices.collect() }
    }

    /// The greatest excess of a device, in shards.
    #[must_use]
    pub fn most_above(&self) -> f64 {
        self.devices.iter().map(DeviceSpread::deviation).fold(0.0, f64::max)
    }

    /// The greatest lack of a device, in shards.
    #[must_use]
    pub fn most_below(&self) -> f64 {
        self.devices.iter().map(|device| -device.deviation()).fold(0.0, f64::max)
    }

    /// The greater of the excess and the lack.
    #[must_use]
    pub fn max_deviation(&self) -> f64 {
        self.most_above().max(self.most_below())
    }

    /// The standard deviation from the targets, in shards.
    #[must_use]
    pub fn standard_deviation(&self) -> f64 {
        let squares: f64 = self.devices.iter().map(|device| device.deviation().powi(2)).sum();
        (squares / self.devices.len().max(1) as f64).sqrt()
    }

    /// The fullest device's shards relative to its share: 1.2 means that the pool can hold 1/1.2 of
    /// the capacity of its devices.
    #[must_use]
    pub fn fullest(&self) -> f64 {
        let fill = |device: &DeviceSpread| f64::from(device.shards) / device.target;
        self.devices.iter().map(fill).fold(0.0, f64::max)
    }
}
