//! A volume that a server opens as a client of its pool: with a credential, and without the pool's
//! folder.

use std::path::PathBuf;
use std::sync::Arc;

use fieldstone_block::OpenFailure;
use fieldstone_host::{DeviceSpec, VolumeAuthority, VolumeSpec};
use fieldstone_volume::{Authority, OpenMode};

use crate::admission::Credential;
use crate::metadata::{ClientDevice, RemoteVolume};
use crate::running::VolumeOptions;
use crate::runtime::{DeviceName, OpenDevice, OpenWait, Runtime};

/// A volume, and how it is opened.
#[derive(Clone, Debug)]
pub struct ClientVolume {
    /// The file with the client's credential. It is read for each try to open the volume.
    pub credential: PathBuf,
    /// The name of the volume in its pool.
    pub volume: String,
    /// How it is opened.
    pub options: VolumeOptions,
}

impl ClientVolume {
    /// Opens the volume, and waits until it serves.
    pub(super) fn open(
        &self,
        runtime: &Arc<Runtime>,
        export: &str,
        wait: OpenWait<'_>,
    ) -> anyhow::Result<OpenDevice> {
        let credential = Credential::read(&self.credential)?;
        let name = DeviceName::store(export);
        let device = ClientDevice { runtime: Arc::downgrade(runtime), name: name.clone() };
        let found = RemoteVolume::find(&credential, &self.volume, device);
        let found = found.map_err(OpenFailure::from);
        let found = found.map_err(|mut failure| {
            failure.reason = format!("cannot open {export}: {failure}");
            failure
        })?;
        runtime.wait_at_end(found.farewell);
        let options = &self.options;
        let opening = OpenMode::Open { takeover: options.takeover };
        let config = options.config(&found.volume, opening, Authority::World);
        let store = Box::new(VolumeSpec {
            config,
            authority: VolumeAuthority::Issuer(found.issuer),
            places: Arc::from(found.places),
            engine: runtime.accelerator().engine()?,
        });
        let spec = DeviceSpec { name: export.to_owned(), store, layers: options.layers.clone() };
        let open = runtime.open_device(name.clone(), spec, Some(found.volume.id), wait)?;
        for node in runtime.lacking_nodes(&runtime.snapshot(), &name) {
            eprint_line!("fieldstone: {export} opens without a node: {node}");
        }
        Ok(open)
    }
}
