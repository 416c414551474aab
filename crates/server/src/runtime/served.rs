//! The devices that a server is told to serve, and the state of each.
//!
//! ```text
//!            opened
//! Opening -----------> Serving
//!   |  ^
//!   |  | tried again, unless the failure is final
//!   v  |
//! Failed
//! ```
//!
//! The list exists from the server's start. So `status` reports a volume before it is open, and a
//! call that needs an open volume can say what the opening waits for.

use std::sync::PoisonError;

use anyhow::bail;
use fieldstone_block::OpenFailure;
use fieldstone_console::signals::Undone;
use fieldstone_host::{CoreSnapshot, DeviceId, DeviceSnapshot, Phase, VolumeStatus};
use fieldstone_volume::NodeHealth;

use super::{DeviceName, OpenDevice, Runtime};

/// The state of a device.
#[derive(Clone, Debug)]
pub enum DeviceState {
    /// The device is being looked up or opened for the first time.
    Opening,
    /// The device was opened.
    Serving(OpenDevice),
    /// The device could not be opened. The server tries again, unless the failure is final.
    Failed(OpenFailure),
}

/// A device that a server is told to serve.
#[derive(Clone, Debug)]
pub struct ServedDevice {
    /// The name of the device.
    pub name: DeviceName,
    /// The name of its export.
    pub export: String,
    /// Its state.
    pub state: DeviceState,
}

impl Runtime {
    /// Sets the served devices, in the order of the exports.
    pub fn set_served(&self, names: impl Iterator<Item = (DeviceName, String)>) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let device = |(name, export)| ServedDevice { name, export, state: DeviceState::Opening };
        *served = names.map(device).collect();
    }

    /// Sets the state of a device.
    pub fn set_state(&self, name: &DeviceName, state: DeviceState) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = served.iter_mut().find(|device| device.name == *name) {
            device.state = state;
        }
    }

    /// Removes a device that is closed from the served ones.
    pub fn remove_served(&self, name: &DeviceName) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.retain(|device| device.name != *name);
    }

    /// The served devices, in the order of the exports.
    pub fn served_devices(&self) -> Vec<ServedDevice> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks that a volume is not being opened.
    ///
    /// # Errors
    /// It is being opened, or will be tried again: the error says what the opening waits for. Or it
    /// has failed for good.
    pub fn check_not_opening(&self, name: &DeviceName) -> anyhow::Result<()> {
        let served = self.served_devices();
        let shown = &name.name;
        match served.iter().find(|device| device.name == *name).map(|device| &device.state) {
            Some(DeviceState::Opening) => {
                bail!("the volume {shown:?} is still opening{}", self.waiting_for(name))
            }
            Some(DeviceState::Failed(failure)) if failure.is_final => {
                bail!("{shown:?} could not be opened: {failure}")
            }
            Some(DeviceState::Failed(failure)) => bail!(
                "the volume {shown:?} could not be opened and is tried again: {failure}{}",
                self.waiting_for(name)
            ),
            Some(DeviceState::Serving(_)) | None => Ok(()),
        }
    }

    /// If there are served devices and all have failed, returns the reasons. A device has failed if
    /// it could not be opened, or if it failed later, for example because it was fenced.
    pub fn all_failed(&self) -> Option<String> {
        let cores = self.snapshot();
        let phase = |id: DeviceId| {
            let mut devices = cores.iter().flat_map(|core| &core.devices);
            let found = devices.find(|found| found.device == id)?;
            Some(found.phase.clone())
        };
        let failure = |device: &ServedDevice| match &device.state {
            DeviceState::Opening => None,
            DeviceState::Failed(failure) => Some(failure.reason.clone()),
            DeviceState::Serving(open) => match phase(open.device) {
                Some(Phase::Failed(reason)) => {
                    // A client that is evicted is fenced, as by another writer. The service knows.
                    let refused = |reason| format!("the metadata service refuses: {reason}");
                    let reason = self.refusal(&device.name).map_or(reason, refused);
                    Some(format!("{}: {reason}", device.export))
                }
                _ => None,
            },
        };
        let reasons: Option<Vec<String>> = self.served_devices().iter().map(failure).collect();
        reasons.filter(|reasons| !reasons.is_empty()).map(|reasons| reasons.join("; "))
    }

    /// The reason why the opening of a volume waits, as a text to append: the nodes that are not
    /// up, each with the reason.
    pub fn waiting_for(&self, name: &DeviceName) -> String {
        self.waits_for(&self.snapshot(), name)
    }

    /// As [`Runtime::waiting_for`], from a snapshot of the cores. A snapshot may take seconds when
    /// a core hangs, so the caller uses the same snapshot for several volumes.
    pub fn waits_for(&self, cores: &[CoreSnapshot], name: &DeviceName) -> String {
        let waits = self.lacking_nodes(cores, name);
        if waits.is_empty() { String::new() } else { format!("; {}", waits.join("; ")) }
    }

    /// The nodes of a volume that are not up, each with the reason.
    pub fn lacking_nodes(&self, cores: &[CoreSnapshot], name: &DeviceName) -> Vec<String> {
        let mut devices = cores.iter().flat_map(|core| &core.devices);
        let is_it = |found: &&DeviceSnapshot| self.name_of(found.device).as_ref() == Some(name);
        let Some(device) = devices.find(is_it) else { return Vec::new() };
        node_reasons(device, |node| {
            let nodes = cores.iter().flat_map(|core| &core.nodes);
            let mut mine =
                nodes.filter(|found| Some(found.pool) == name.pool && found.node.0 == node);
            mine.find_map(|found| found.down.clone())
        })
    }

    /// What a process leaves undone if it ends at once.
    pub fn unclosed(&self) -> Vec<Undone> {
        let mut undone = self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let cores = self.handle.snapshot(true);
        for open in self.open_devices() {
            let mut devices = cores.iter().flat_map(|core| &core.devices);
            match devices.find(|found| found.device == open.device) {
                Some(device) => undone.extend(undone_of(device)),
                None => undone.push(Undone {
                    text: format!(
                        "the core of {} does not answer: writes that no flush has covered may be \
                         lost",
                        open.export
                    ),
                    loses_data: true,
                }),
            }
        }
        undone
    }
}

/// What a device leaves undone if its process ends at once.
fn undone_of(device: &DeviceSnapshot) -> Vec<Undone> {
    let name = &device.name;
    let mut undone = Vec::new();
    if let Some(status) =
        device.status_of::<VolumeStatus>().filter(|_| device.phase != Phase::Closed)
    {
        let journal = fieldstone_units::size(status.volume.journal_used_bytes);
        let text = format!(
            "{name} is not closed: {journal} lie only in its journal, and its next opening replays \
             them"
        );
        undone.push(Undone { text, loses_data: false });
    }
    let kept = |counter| device.stats.counter("write-cache", counter);
    let bytes = kept("dirty_bytes") + kept("out_bytes");
    if bytes > 0 {
        let bytes = fieldstone_units::size(bytes);
        let text =
            format!("{name}: {bytes} of writes have not left its write cache, and may be lost");
        undone.push(Undone { text, loses_data: true });
    }
    undone
}

/// The nodes of a volume that are not up, with the reasons. Prefers the reason of the node itself
/// (`local`) to the reason that the volume knows.
fn node_reasons(device: &DeviceSnapshot, local: impl Fn(u16) -> Option<String>) -> Vec<String> {
    let Some(status) = device.status_of::<VolumeStatus>() else { return Vec::new() };
    let lacking = status.volume.nodes.iter().filter(|node| node.health != NodeHealth::Up);
    lacking
        .map(|node| match local(node.node.0) {
            Some(reason) => format!("{} is down: {reason}", node.node),
            None if node.health == NodeHealth::Joining => format!("{} is joining", node.node),
            None if node.reason.is_empty() => format!("{} is down", node.node),
            None => format!("{} is down: {}", node.node, node.reason),
        })
        .collect()
}
