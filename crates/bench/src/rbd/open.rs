//! What it costs to open an image and to close it: by librbd, and by the client here.
//!
//! A process of its own does it once, and reports what all its threads have used between the first
//! call and the end of the last one. The start of the process and the loading of libraries are not
//! in it. Both connect to the cluster, get its maps, open the image with its watch, and undo that.

use std::path::PathBuf;

use fieldstone_embed::{Device, Options};
use serde::{Deserialize, Serialize};

use super::librbd::{self, Image};
use crate::usage::Usage;

/// Who opens the image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OpenTask {
    /// librbd.
    Librbd {
        /// The client's name without its type.
        id: String,
        /// ceph.conf.
        conf: PathBuf,
        /// The pool.
        pool: String,
        /// The image.
        image: String,
    },
    /// Our client, through `embed`.
    Embed {
        /// The image as a target.
        target: String,
    },
}

/// Opens and closes the image.
///
/// # Errors
/// The image cannot be opened.
pub fn measure(task: &OpenTask) -> anyhow::Result<Usage> {
    if matches!(task, OpenTask::Librbd { .. }) {
        // Loaded before, so that the work of the dynamic linker is not counted.
        librbd::check_libraries()?;
    }
    let before = Usage::now();
    match task {
        OpenTask::Librbd { id, conf, pool, image } => {
            drop(Image::open(id, conf, pool, image)?);
        }
        OpenTask::Embed { target } => Device::open(target, &Options::default())?.close()?,
    }
    Ok(Usage::now().without(&before))
}
